//! Style of the source tree: length of files and comment lines, and first lines of doc comments.

use std::fs;
use std::path::{Path, PathBuf};

/// Maximum length of a source file, in lines.
const FILE_LINES: usize = 600;

/// Maximum width of a comment line, in characters: the width of the formatter, which does not wrap comments.
const WIDTH: usize = 120;

/// Words with which the first line of a doc comment does not begin: pronouns and clauses in place of a noun.
const FORBIDDEN: [&str; 22] = [
    "All that",
    "All those",
    "Everybody",
    "Everything",
    "He",
    "How",
    "It",
    "Nobody",
    "None",
    "Nothing",
    "Of",
    "She",
    "That",
    "These",
    "They",
    "Those",
    "What",
    "Where",
    "Whether",
    "Which",
    "Who",
    "Why",
];

/// Returns the root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("docs is a directory of the repository")
}

/// Adds the Rust files below `directory` to `files`.
fn find_sources(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type().unwrap().is_dir() {
            if !name.starts_with('.') && name != "target" {
                find_sources(&path, files);
            }
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
}

/// Returns the problems that `check` finds in the text of each Rust file, with their places.
fn problems(check: impl Fn(&str) -> Vec<(usize, String)>) -> String {
    let mut files = Vec::new();
    find_sources(root(), &mut files);
    assert!(files.len() > 500, "{} Rust files below {}", files.len(), root().display());
    files.sort();
    let mut all = String::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (line, problem) in check(&text) {
            all += &format!("{}:{line}: {problem}\n", file.strip_prefix(root()).unwrap().display());
        }
    }
    all
}

/// Returns the forbidden word with which `text` begins, if it does.
fn forbidden_start(text: &str) -> Option<&'static str> {
    FORBIDDEN.into_iter().find(|word| {
        text.strip_prefix(word)
            .is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
    })
}

/// Returns the first lines of doc comments that begin with a forbidden word.
fn wrong_first_lines(text: &str) -> Vec<(usize, String)> {
    let mut follows = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if !follows && let Some(word) = doc.and_then(|doc| forbidden_start(doc.trim_start())) {
            found.push((number, format!("a doc comment begins with `{word}`")));
        }
        follows = doc.is_some();
    }
    found
}

/// Returns comment lines that are too long. Tables and links cannot be wrapped.
fn long_comments(text: &str) -> Vec<(usize, String)> {
    let is_long = |line: &str| {
        let line = line.trim_start();
        line.starts_with("//") && !line.contains("| ") && !line.contains("://") && !line.contains("{\"")
    };
    let lines = (1..).zip(text.lines()).filter(|(_, line)| line.chars().count() > WIDTH && is_long(line));
    lines.map(|(number, line)| (number, format!("a comment of {} columns", line.chars().count()))).collect()
}

#[test]
fn first_lines_of_doc_comments_name_their_subject() {
    assert_eq!(problems(wrong_first_lines), "");
}

#[test]
fn comments_are_within_the_width_of_the_formatter() {
    assert_eq!(problems(long_comments), "");
}

#[test]
fn source_files_are_short() {
    let check = |text: &str| match text.lines().count() {
        n if n > FILE_LINES => vec![(n, format!("the file has more than {FILE_LINES} lines"))],
        _ => Vec::new(),
    };
    assert_eq!(problems(check), "");
}

#[test]
fn forbidden_words_are_found_as_words() {
    assert_eq!(
        wrong_first_lines("/// What a page has.\n/// It goes on.\nfn f() {}"),
        [(1, "a doc comment begins with `What`".to_owned())]
    );
    assert_eq!(wrong_first_lines("//! Where links lead.").len(), 1);
    assert_eq!(wrong_first_lines("/// Offset of the payload.\n/// Iterator.\n/// `It` is code."), []);
}
