//! Figures that the documentation shows: fragments of Markdown, which the book includes and the README repeats.
//!
//! A fragment is what a program printed, between a comment that names the command and a line that names the machine. Nobody edits
//! one: [`write()`] does, and has the README repeat it between `<!-- figures: NAME -->` and `<!-- end -->`.

use linerate_apps::doctor::{Machine, examine, facts};
use linerate_compare::utc::Utc;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// What a fragment begins with.
pub const MARK: &str = "<!-- Written by `./run bench`; do not edit. Printed by: ";
/// What a region of the README begins with, before its fragment's name, and ends with.
const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end -->";
/// Programs whose versions count where a figure speaks of them.
const PROGRAMS: [&str; 3] = ["redis-server", "memcached", "sockperf"];

/// Why a figure was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A region of the README does not end.
    #[error("README.md: the region of the figures {0} has no {END}: add it")]
    Endless(String),
}

/// Where the project's files are: what this was built from.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of a workspace").to_owned()
}

fn fragment_of(root: &Path, name: &str) -> PathBuf {
    root.join("docs/src/figures").join(name).with_extension("md")
}

fn file<T>(path: &Path, done: io::Result<T>) -> Result<T, Error> {
    done.map_err(|error| Error::File { path: path.to_owned(), error })
}

/// Writes the fragment `name` below `root`: what `command` `printed`, which was measured on `machine`. Then has the README repeat
/// all of its fragments.
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

/// `text` with the fragment of its name in each region.
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

/// What figures in `printed` were measured on, and when: processor, kernel, and the versions of what took part.
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

/// What `program` says of its version.
fn version(name: &str, program: &str) -> Option<String> {
    let said = Command::new(program).arg("--version").output().ok()?;
    number(&String::from_utf8_lossy(&said.stdout)).map(|number| format!("{name} {number}"))
}

/// The first number with a point in it: all programs say their version so, among different words.
fn number(said: &str) -> Option<&str> {
    let numbers = said.split(|c: char| !c.is_ascii_digit() && c != '.');
    numbers.map(|number| number.trim_matches('.')).find(|number| number.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn the_readme_repeats_the_fragments_as_they_are() {
        let text = read(&root().join("README.md"));
        let repeated = repeat(&text, |name| Ok(read(&fragment_of(&root(), name)))).unwrap();
        assert!(text.contains(BEGIN), "the README shows figures");
        assert!(
            repeated == text,
            "a region of README.md differs from its fragment in docs/src/figures: ./run bench writes both"
        );
    }

    #[test]
    fn every_fragment_is_written_by_a_command_and_shown_and_what_is_shown_is_there() {
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
                "{} is shown nowhere",
                path.display()
            );
            assert!(read(&path).starts_with(MARK), "{} does not say which command wrote it", path.display());
            fragments.push(name);
        }
        for shown in pages.iter().flat_map(|page| page.split("{{#include figures/").skip(1)) {
            let name = shown.split(".md}}").next().unwrap();
            assert!(fragments.iter().any(|fragment| fragment == name), "figures/{name}.md is shown, but is not there");
        }
    }

    #[test]
    fn a_figure_that_is_written_is_in_its_fragment_and_in_the_readme() {
        let directory = tempfile::tempdir().unwrap();
        let readme = directory.path().join("README.md");
        fs::write(&readme, "before\n<!-- figures: echo -->\nold\n<!-- end -->\nafter\n").unwrap();
        write(directory.path(), "echo", "engine --curve", "| a | b |\n\n", "a machine").unwrap();
        let fragment = read(&directory.path().join("docs/src/figures/echo.md"));
        assert_eq!(fragment, format!("{MARK}engine --curve -->\n\n| a | b |\n\n*a machine*\n"));
        let expected = format!("before\n<!-- figures: echo -->\n{fragment}<!-- end -->\nafter\n");
        assert_eq!(read(&readme), expected);
        write(directory.path(), "other", "kv store", "42", "a machine").unwrap();
        assert_eq!(read(&readme), expected, "what it does not show changes nothing");
    }

    #[test]
    fn a_region_without_an_end_is_told() {
        let error = repeat("<!-- figures: echo -->\nold\n", |_| Ok(String::new())).unwrap_err();
        assert!(error.to_string().contains("figures echo"), "{error}");
    }

    #[test]
    fn versions_are_found_among_what_programs_say() {
        for (said, expected) in [
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1", Some("7.0.15")),
            ("memcached 1.6.18", Some("1.6.18")),
            ("sockperf, version 3.7-no.git", Some("3.7")),
            ("rustc 1.95.0 (59807616e 2026-04-14)", Some("1.95.0")),
            ("nothing. 1", None),
        ] {
            assert_eq!(number(said), expected, "{said}");
        }
    }
}
