//! What is made from [`Results`]: a page, the same as Markdown, a table for the terminal, and two runs side by side.
//!
//! ```text
//!  Results ── stats ── words ──┐
//!                └──── charts ─┴─ pages (a Doc) ── html | markdown | terminal
//! ```

mod chart;
mod diff;
mod doc;
#[cfg(test)]
mod fixture;
mod html;
mod markdown;
mod names;
mod pages;
mod read;
mod stats;
mod tables;
mod terminal;
mod view;
mod words;

use super::results::Results;
use std::path::{Path, PathBuf};

pub use read::{ReportError, read};

/// Writes `results.json`, `report.html` and `report.md` into `dir`, which is made if it is not there. Returns their
/// paths, in this order. Each file is replaced whole or not at all, so it may be called after every row.
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
pub fn html(results: &Results) -> String {
    html::page(&format!("Linerate, side by side: {}", results.began), &pages::full(results))
}

/// The page as Markdown, without its plots.
pub fn markdown(results: &Results) -> String {
    markdown::page(&pages::full(results))
}

/// What was found, for a terminal: a table for each application and setting, and words. No end of line at its end.
pub fn terminal(results: &Results) -> String {
    terminal::page(&pages::brief(results))
}

/// Two runs side by side, for a terminal: what differs between them first, then each row that both have.
pub fn diff(a: &Results, b: &Results) -> String {
    terminal::page(&diff::blocks(a, b))
}

/// The same as Markdown.
pub fn diff_markdown(a: &Results, b: &Results) -> String {
    markdown::page(&diff::blocks(a, b))
}

#[cfg(test)]
mod tests;
