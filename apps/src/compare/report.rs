//! What is made from [`Results`]: a page, the same as Markdown, a table for the terminal, and two runs side by side.
//!
//! ```text
//!  Results ── stats ── words ──┐
//!                └──── charts ─┴─ pages (a Doc) ── html | markdown | terminal
//! ```

mod read;

use super::results::Results;
use std::path::{Path, PathBuf};

pub use read::{ReportError, read};

/// Writes `results.json`, `report.html` and `report.md` into `dir`, which is made if it is not there. Returns their paths, in this
/// order. Each file is replaced whole or not at all, so it may be called after every row.
pub fn write(results: &Results, dir: &Path) -> Result<Vec<PathBuf>, ReportError> {
    std::fs::create_dir_all(dir).map_err(|error| ReportError::Write { path: dir.to_owned(), error })?;
    let json = serde_json::to_string_pretty(results).expect("results are made of plain numbers and text");
    let mut paths = Vec::new();
    for (name, contents) in
        [("results.json", json + "\n"), ("report.html", html(results)), ("report.md", markdown(results))]
    {
        let path = dir.join(name);
        read::write(&path, &contents)?;
        paths.push(path);
    }
    Ok(paths)
}

/// The page: whole in itself, with no script, and nothing to fetch.
pub fn html(_results: &Results) -> String {
    String::new()
}

/// The page as Markdown, without its plots.
pub fn markdown(_results: &Results) -> String {
    String::new()
}

/// What was found, for a terminal: words and a table for each application and setting.
pub fn terminal(_results: &Results) -> String {
    String::new()
}

/// Two runs side by side, for a terminal: what differs between them first, then each row that both have.
pub fn diff(_a: &Results, _b: &Results) -> String {
    String::new()
}

/// The same as Markdown.
pub fn diff_markdown(_a: &Results, _b: &Results) -> String {
    String::new()
}
