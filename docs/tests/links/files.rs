//! Files of the book, and targets of links.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Returns the files below `directory` with the extension `ending`, relative to it.
pub fn files(directory: &Path, ending: &str) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|it| it == ending) {
                found.insert(path.strip_prefix(directory).unwrap().to_owned());
            }
        }
    }
    found
}

/// Returns `path` without `.` and `..`, or `None` if it leaves its root.
pub fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            Component::ParentDir if plain.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain)
}

/// Returns the problem with the form of an external link, if there is one.
pub fn outside(link: &str) -> Option<Result<(), String>> {
    let (scheme, rest) = link.split_once(':').filter(|(scheme, _)| !scheme.contains(['/', '#', '.']))?;
    let host = rest.strip_prefix("//").and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
    let is_host = host.contains('.') && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b));
    let is_sound = scheme == "https" && is_host && !link.contains(|c: char| c.is_whitespace() || c == '"');
    Some(if is_sound { Ok(()) } else { Err(format!("{link} is not of the form https://host/path")) })
}
