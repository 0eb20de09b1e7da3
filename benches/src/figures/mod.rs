//! Figures of the documentation: Markdown fragments, which the book includes, and plots of some, which the README shows
//! as well.
//!
//! A fragment is the output of a program between a comment that names the command and a line that names the machine.
//! Its plot is drawn from its tables.

mod plots;

use linerate_apps::doctor::{Machine, examine, facts};
use linerate_compare::utc::Utc;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// Beginning of a fragment.
pub const MARK: &str = "<!-- Written by `./run bench`; do not edit. Printed by: ";
/// Programs whose versions are recorded if a figure mentions them.
const PROGRAMS: [&str; 3] = ["redis-server", "memcached", "sockperf"];

/// File that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct Error {
    /// Path of the file.
    path: PathBuf,
    /// Cause.
    error: io::Error,
}

/// Returns the root of the source tree that this program was built from.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of a workspace").to_owned()
}

/// Directory of fragments and plots, below the root.
const DIRECTORY: &str = "docs/src/figures";

fn file<T>(path: &Path, done: io::Result<T>) -> Result<T, Error> {
    done.map_err(|error| Error { path: path.to_owned(), error })
}

/// Writes the fragment `name` below `root` with the output `printed` of `command`, measured on `machine`, and its plot
/// if it has one.
pub fn write(root: &Path, name: &str, command: &str, printed: &str, machine: &str) -> Result<(), Error> {
    let directory = root.join(DIRECTORY);
    file(&directory, fs::create_dir_all(&directory))?;
    let path = directory.join(name).with_extension("md");
    let fragment = format!("{MARK}{command} -->\n\n{}\n\n*{machine}*\n", printed.trim());
    file(&path, fs::write(&path, &fragment))?;
    draw(&path, name, &fragment)
}

/// Draws the plot of the fragment `name` at `path`, if it has one.
fn draw(path: &Path, name: &str, fragment: &str) -> Result<(), Error> {
    let Some(svg) = plots::plot(name, fragment) else { return Ok(()) };
    let path = path.with_extension("svg");
    file(&path, fs::write(&path, svg))
}

/// Returns the paths, names and contents of all fragments below `root`.
fn fragments(root: &Path) -> Result<Vec<(PathBuf, String, String)>, Error> {
    let directory = root.join(DIRECTORY);
    let mut fragments = Vec::new();
    for entry in file(&directory, fs::read_dir(&directory))? {
        let path = file(&directory, entry)?.path();
        if path.extension().is_some_and(|end| end == "md") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = file(&path, fs::read_to_string(&path))?;
            fragments.push((path, name, text));
        }
    }
    Ok(fragments)
}

/// Draws the plots of all fragments below `root`.
pub fn redraw(root: &Path) -> Result<(), Error> {
    fragments(root)?.iter().try_for_each(|(path, name, text)| draw(path, name, text))
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
    fn plots_are_drawn_from_the_fragments() {
        let mut plots = 0;
        for (path, name, text) in fragments(&root()).unwrap() {
            let path = path.with_extension("svg");
            let drawn = plots::plot(&name, &text);
            plots += usize::from(drawn.is_some());
            let published = path.exists().then(|| read(&path));
            assert!(drawn == published, "{} is out of date: target/release/figures --redraw", path.display());
        }
        assert!(plots >= 4, "{plots} plots");
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
        let fragments = fragments(&root).unwrap();
        for (path, name, text) in &fragments {
            for (used, shown) in [
                (true, format!("{{{{#include figures/{name}.md}}}}")),
                (path.with_extension("svg").exists(), format!("](figures/{name}.svg)")),
            ] {
                assert!(!used || pages.iter().any(|page| page.contains(&shown)), "no page has {shown}");
            }
            assert!(text.starts_with(MARK), "{} does not name the command that wrote it", path.display());
        }
        for shown in pages.iter().flat_map(|page| page.split("{{#include figures/").skip(1)) {
            let name = shown.split(".md}}").next().unwrap();
            assert!(
                fragments.iter().any(|(_, fragment, _)| fragment == name),
                "figures/{name}.md is used, but does not exist"
            );
        }
    }

    #[test]
    fn written_figure_has_a_fragment_and_a_plot() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(DIRECTORY).join("goodput.md");
        let table = "| loss % | sender to receiver | median Mbit/s |\n|--|--|--|\n| 1 | Linux to Linux | 5.80 |";
        write(directory.path(), "goodput", "goodput --rounds 1", &format!("{table}\n\n"), "a machine").unwrap();
        assert_eq!(read(&path), format!("{MARK}goodput --rounds 1 -->\n\n{table}\n\n*a machine*\n"));
        let drawn = read(&path.with_extension("svg"));
        assert!(drawn.contains(">a machine<") && drawn.contains("Linux to Linux"));
        fs::remove_file(path.with_extension("svg")).unwrap();
        redraw(directory.path()).unwrap();
        assert_eq!(read(&path.with_extension("svg")), drawn);
        write(directory.path(), "other", "kv store", "42", "a machine").unwrap();
        assert!(!path.with_file_name("other.svg").exists(), "a figure without a plot");
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
