//! Draws the book's pictures, as `./run pictures` asks: each `docs/pictures/NAME.dot` becomes
//! `docs/src/pictures/NAME.svg`, by graphviz.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::{fs, io};

/// The directory of the book.
pub const BOOK: &str = env!("CARGO_MANIFEST_DIR");

/// The line of a picture that says what it was made of: `source` as it was, and `picture` as it came out.
pub fn stamp(source: &str, picture: &str) -> String {
    format!("<!-- Made by ./run pictures; do not edit. Source {:016x}, picture {:016x}. -->", sum(source), sum(picture))
}

/// FNV-1a of 64 bits: it tells what was changed by mistake, and needs to tell no more.
fn sum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the output of graphviz for a source, from `<svg` on: what stands before names its version.
fn drawn(source: &Path) -> io::Result<String> {
    let output = Command::new("dot").arg("-Tsvg").arg(source).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.find("<svg") {
        Some(at) if output.status.success() => Ok(text[at..].to_owned()),
        _ => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

fn main() -> ExitCode {
    let sources = fs::read_dir(format!("{BOOK}/pictures")).expect("the sources are there");
    for source in sources.map(|entry| entry.expect("it can be read").path()) {
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let done = drawn(&source).and_then(|picture| {
            let text = fs::read_to_string(&source)?;
            fs::write(format!("{BOOK}/src/pictures/{name}.svg"), format!("{}\n{picture}", stamp(&text, &picture)))
        });
        match done {
            Ok(()) => println!("docs/src/pictures/{name}.svg"),
            Err(error) => {
                eprintln!("{}: {error}: apt-get install graphviz, if there is no dot", source.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
