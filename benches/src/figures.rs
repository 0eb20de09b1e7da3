//! Figures of the documentation: Markdown fragments, which the book includes and the README repeats.
//!
//! A fragment is the output of a program between a comment that names the command and a line that names the machine.
//! [`write()`] generates it and copies it into the README between `<!-- figures: NAME -->` and `<!-- end -->`.

use linerate_apps::doctor::{Machine, examine, facts};
use linerate_compare::utc::Utc;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// Beginning of a fragment.
pub const MARK: &str = "<!-- Written by `./run bench`; do not edit. Printed by: ";
/// Beginning of a README region, before the fragment's name, and its end.
const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end -->";
/// Programs whose versions are recorded if a figure mentions them.
const PROGRAMS: [&str; 3] = ["redis-server", "memcached", "sockperf"];

/// Error that prevents the output of a figure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        error: io::Error,
    },
    /// A region of the README has no end.
    #[error("README.md: the region of the figures {0} has no end: add {END}")]
    Endless(String),
}

/// Returns the root of the source tree that this program was built from.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of a workspace").to_owned()
}

fn fragment_of(root: &Path, name: &str) -> PathBuf {
    root.join("docs/src/figures").join(name).with_extension("md")
}

fn file<T>(path: &Path, done: io::Result<T>) -> Result<T, Error> {
    done.map_err(|error| Error::File { path: path.to_owned(), error })
}

/// Writes the fragment `name` below `root` with the output `printed` of `command`, measured on `machine`, and updates
/// all fragments in the README.
pub fn write(root: &Path, name: &str, command: &str, printed: &str, machine: &str) -> Result<(), Error> {
    let path = fragment_of(root, name);
    file(&path, fs::create_dir_all(path.parent().expect("a directory of fragments")))?;
    file(&path, fs::write(&path, format!("{MARK}{command} -->\n\n{}\n\n*{machine}*\n", printed.trim())))?;
    let readme = root.join("README.md");
    let text = file(&readme, fs::read_to_string(&readme))?;
    let repeated = repeat(&text, |name| {
        let path = fragment_of(root, name);
        file(&path, fs::read_to_string(&path))
    })?;
    if repeated == text { Ok(()) } else { file(&readme, fs::write(&readme, repeated)) }
}

/// Returns `text` with the named fragment in each region.
pub fn repeat(text: &str, fragment: impl Fn(&str) -> Result<String, Error>) -> Result<String, Error> {
    let mut repeated = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        repeated += line;
        repeated += "\n";
        let Some(name) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        if !lines.any(|line| line == END) {
            return Err(Error::Endless(name.to_owned()));
        }
        repeated += &fragment(name)?;
        repeated += END;
        repeated += "\n";
    }
    Ok(repeated)
}

/// Returns the machine, date and versions of the programs in `printed`.
pub fn machine(printed: &str) -> String {
    let machine = Machine::local();
    let facts = facts(&machine, &examine(&machine));
    let hypervisor = facts.virtualised_by.map(|name| format!(", virtualised by {name}")).unwrap_or_default();
    let mut words = vec![format!("{}, {} cores{hypervisor}", facts.cpu, facts.cores), facts.kernel];
    words.extend(facts.versions);
    words.extend(version("rustc", "rustc"));
    let taking_part = PROGRAMS.iter().filter(|program| printed.contains(**program));
    words.extend(taking_part.filter_map(|program| version(program, program)));
    let day = Utc::now().rfc_3339();
    format!("{}; {}.", words.join("; "), day.split('T').next().unwrap_or_default())
}

/// Returns the version that `program` prints.
fn version(name: &str, program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    number(&String::from_utf8_lossy(&output.stdout)).map(|number| format!("{name} {number}"))
}

/// Returns the first number with a point, which is the version in the output of all programs.
fn number(text: &str) -> Option<&str> {
    let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    numbers.map(|number| number.trim_matches('.')).find(|number| number.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn readme_repeats_fragments() {
        let text = read(&root().join("README.md"));
        let repeated = repeat(&text, |name| Ok(read(&fragment_of(&root(), name)))).unwrap();
        assert!(text.contains(BEGIN), "the README shows figures");
        assert!(
            repeated == text,
            "a region of README.md differs from its fragment in docs/src/figures: ./run bench writes both"
        );
    }

    #[test]
    fn fragments_and_their_uses_are_complete() {
        let root = root();
        let pages: Vec<String> = fs::read_dir(root.join("docs/src"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .chain([root.join("docs/decisions.md")])
            .filter(|path| path.extension().is_some_and(|end| end == "md"))
            .map(|path| read(&path))
            .collect();
        let readme = read(&root.join("README.md"));
        let mut fragments = Vec::new();
        for entry in fs::read_dir(root.join("docs/src/figures")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let shown = format!("{{{{#include figures/{name}.md}}}}");
            assert!(
                readme.contains(&format!("{BEGIN}{name} -->")) || pages.iter().any(|page| page.contains(&shown)),
                "{} is not used",
                path.display()
            );
            assert!(read(&path).starts_with(MARK), "{} does not name the command that wrote it", path.display());
            fragments.push(name);
        }
        for shown in pages.iter().flat_map(|page| page.split("{{#include figures/").skip(1)) {
            let name = shown.split(".md}}").next().unwrap();
            assert!(fragments.iter().any(|fragment| fragment == name), "figures/{name}.md is used, but does not exist");
        }
    }

    #[test]
    fn written_figure_is_in_fragment_and_readme() {
        let directory = tempfile::tempdir().unwrap();
        let readme = directory.path().join("README.md");
        fs::write(&readme, "before\n<!-- figures: echo -->\nold\n<!-- end -->\nafter\n").unwrap();
        write(directory.path(), "echo", "engine --curve", "| a | b |\n\n", "a machine").unwrap();
        let fragment = read(&directory.path().join("docs/src/figures/echo.md"));
        assert_eq!(fragment, format!("{MARK}engine --curve -->\n\n| a | b |\n\n*a machine*\n"));
        let expected = format!("before\n<!-- figures: echo -->\n{fragment}<!-- end -->\nafter\n");
        assert_eq!(read(&readme), expected);
        write(directory.path(), "other", "kv store", "42", "a machine").unwrap();
        assert_eq!(read(&readme), expected, "a figure that the README does not use changes nothing");
    }

    #[test]
    fn region_without_end_is_an_error() {
        let error = repeat("<!-- figures: echo -->\nold\n", |_| Ok(String::new())).unwrap_err();
        assert!(error.to_string().contains("figures echo"), "{error}");
    }

    #[test]
    fn versions_are_found_in_program_output() {
        for (text, expected) in [
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1", Some("7.0.15")),
            ("memcached 1.6.18", Some("1.6.18")),
            ("sockperf, version 3.7-no.git", Some("3.7")),
            ("rustc 1.95.0 (59807616e 2026-04-14)", Some("1.95.0")),
            ("nothing. 1", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
    }
}
