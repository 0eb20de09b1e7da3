//! Messages that the troubleshooting page quotes: each occurs in the sources, where `…` stands for formatted values.
//! The page has every drop cause.

use std::fs;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns the lines of all sources except tests, with string literals of several lines joined.
fn source() -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = vec![Path::new(ROOT).to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.')
                    && !["target", "tests", "docs", "benches", "lab", "fuzz"].contains(&name.as_str())
                {
                    left.push(path);
                }
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).unwrap();
                let mut joined = String::new();
                for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
                    match line.strip_suffix('\\') {
                        Some(part) => joined.push_str(if joined.is_empty() { part } else { part.trim_start() }),
                        None if joined.is_empty() => lines.push(line.to_owned()),
                        None => lines.push(std::mem::take(&mut joined) + line.trim_start()),
                    }
                }
            }
        }
    }
    lines
}

/// Returns whether `line` contains `parts` in this order.
fn has(line: &str, parts: &[&str]) -> bool {
    let mut rest = line;
    parts.iter().all(|part| rest.find(part).map(|at| rest = &rest[at + part.len()..]).is_some())
}

/// Returns quoted texts outside of code.
fn quoted(page: &str) -> Vec<&str> {
    let prose = page.lines().filter(|line| !line.starts_with("    "));
    prose.flat_map(|line| line.split('"').skip(1).step_by(2)).collect()
}

#[test]
fn quoted_messages_occur_in_the_sources() {
    let page = fs::read_to_string(format!("{ROOT}/docs/src/troubleshooting.md")).unwrap();
    let source = source();
    let messages = quoted(&page);
    assert!(messages.len() > 70, "{} messages", messages.len());
    let unknown = messages.iter().filter(|message| {
        let parts: Vec<&str> = message.split('…').map(str::trim).filter(|part| !part.is_empty()).collect();
        !source.iter().any(|line| has(line, &parts))
    });
    let unknown: Vec<_> = unknown.collect();
    assert!(unknown.is_empty(), "no source contains {unknown:#?}");
}

#[test]
fn drop_causes_are_on_the_page() {
    let page = fs::read_to_string(format!("{ROOT}/docs/src/troubleshooting.md")).unwrap();
    let causes = fs::read_to_string(format!("{ROOT}/stack/src/wire/drop_stats.rs")).unwrap();
    let causes: Vec<&str> = causes.lines().filter_map(|line| line.split_once(" = \"")?.1.strip_suffix("\",")).collect();
    assert!(causes.len() > 15, "{causes:?}");
    let messages = quoted(&page);
    let missing: Vec<_> = causes.iter().filter(|cause| !messages.contains(cause)).collect();
    assert!(missing.is_empty(), "the page does not quote {missing:#?}");
}
