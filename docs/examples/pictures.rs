//! Draws the book's pictures with graphviz, for `./run pictures`: `docs/NAME.dot` becomes `docs/src/pictures/NAME.svg`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{fs, io};

/// Directory of the book.
pub const BOOK: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the names of the files in a directory of the book with this extension.
pub fn names(directory: &str, extension: &str) -> BTreeSet<String> {
    let files = fs::read_dir(Path::new(BOOK).join(directory)).expect("a directory of the book");
    let files = files.map(|entry| entry.expect("a readable directory").path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == extension));
    files.map(|path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned()).collect()
}

/// Returns the first line of a picture: checksums of its `source` and of the `picture` itself.
pub fn stamp(source: &str, picture: &str) -> String {
    format!("<!-- Made by ./run pictures; do not edit. Source {:016x}, picture {:016x}. -->", sum(source), sum(picture))
}

/// Returns the 64-bit FNV-1a hash, which detects accidental changes.
fn sum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the output of graphviz for a source, from `<svg` on, without the version of graphviz.
fn drawn(source: &Path) -> io::Result<String> {
    let output = Command::new("dot").arg("-Tsvg").arg(source).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.find("<svg") {
        Some(at) if output.status.success() => Ok(text[at..].to_owned()),
        _ => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

fn main() -> ExitCode {
    for name in names("", "dot") {
        let source = Path::new(BOOK).join(&name).with_extension("dot");
        let done = drawn(&source).and_then(|picture| {
            let text = fs::read_to_string(&source)?;
            fs::write(format!("{BOOK}/src/pictures/{name}.svg"), format!("{}\n{picture}", stamp(&text, &picture)))
        });
        match done {
            Ok(()) => println!("docs/src/pictures/{name}.svg"),
            Err(error) => {
                eprintln!("{}: {error}: if dot is missing, run apt-get install graphviz", source.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
