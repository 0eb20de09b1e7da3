//! `./run book` and `./run pictures`.

use crate::cargo::{build, cargo, release};
use crate::error::Error;
use crate::machine::{Machine, reserve_hugepages};
use crate::output::{note, say};
use crate::process;

/// Builds the book in `target/book`.
pub fn build_pages() -> Result<(), Error> {
    say("book");
    process::run(cargo("run --profile test -p linerate-book --features mdbook --example book"))
}

/// Draws the pictures of the book.
pub fn draw_pictures(machine: &Machine) -> Result<(), Error> {
    process::run(cargo("run --profile test -p linerate-book --example pictures"))?;
    if !machine.dpdk() {
        note("left out: the pictures of linerate top and of the dashboard need DPDK");
        return Ok(());
    }
    say("building in release mode");
    process::run(build(machine, ""))?;
    let _hugepages = reserve_hugepages(512);
    for example in ["screens", "dashboard"] {
        let mut drawing = cargo(&format!("run --profile test -p linerate-book --example {example}"));
        drawing.arg(release("linerate"));
        process::run(drawing)?;
    }
    Ok(())
}
