//! Builds the book to `target/book`, for `./run book`: `cargo run -p linerate-book --example book`.

use mdbook_driver::MDBook;
use mdbook_driver::errors::Result;

fn main() -> Result<()> {
    let book = MDBook::load(env!("CARGO_MANIFEST_DIR"))?;
    book.build()?;
    println!("{}", book.build_dir_for("html").join("index.html").display());
    Ok(())
}
