//! Architecture: the page of the book has a row for each top-level directory, and imports follow the layers.

mod imports;
mod life_of_a_packet;
mod modules;
mod source;

use std::fs;
use std::path::Path;

/// Returns the root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("docs is a directory of the repository")
}

#[test]
fn top_level_directories_are_on_the_page() {
    let page = fs::read_to_string(root().join("docs/src/architecture.md")).unwrap();
    for entry in fs::read_dir(root()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() && !name.starts_with('.') && name != "target" {
            assert!(page.contains(&format!("| `{name}` |")), "the architecture page has no row for {name}");
        }
    }
}
