//! Reports of [`Results`]: an HTML page, Markdown, a table for the terminal, and a comparison of two runs.
//!
//! ```text
//!  Results ── stats ── words ──┐
//!                └── charts ───┤
//!                  verdict ────┴─ pages ── format: html | markdown | terminal
//! ```

mod chart;
mod diff;
#[cfg(test)]
mod fixture;
mod format;
mod names;
mod pages;
mod ranking;
mod read;
mod stats;
mod tables;
mod verdict;
mod view;
mod words;

use super::plot;
use super::results::Results;
use chart::Plot;
use format::{html, markdown, terminal};
use std::path::{Path, PathBuf};
use view::View;

pub use read::{ReportError, read};

/// Title of reports.
const TITLE: &str = "Linerate, side by side";
/// File of the verdict's plot, in the directory of the reports.
const HEADLINE: &str = "headline.svg";

/// Writes `results.json`, `report.html`, `report.md` and, if anything was measured, `headline.svg` into `dir`, which is
/// created if necessary. Returns their paths in this order. Each file is replaced atomically, so this may be called
/// after every row.
pub fn write(results: &Results, dir: &Path) -> Result<Vec<PathBuf>, ReportError> {
    std::fs::create_dir_all(dir).map_err(|error| ReportError::Write { path: dir.to_owned(), error })?;
    let json = serde_json::to_string_pretty(results).expect("results are made of plain numbers and text");
    let mut paths = Vec::new();
    let files = [("results.json", json + "\n"), ("report.html", html(results)), ("report.md", markdown(results))];
    let headline = headline(results).map(|svg| (HEADLINE, svg));
    for (name, contents) in files.into_iter().chain(headline) {
        let path = dir.join(name);
        read::write(&path, &contents)?;
        paths.push(path);
    }
    Ok(paths)
}

/// Returns the plot of the verdict as a standalone SVG file; `None` if nothing was measured.
pub fn headline(results: &Results) -> Option<String> {
    let Plot { panels, caption, .. } = chart::headline(&View::new(results))?;
    Some(plot::picture(TITLE, &panels, &caption))
}

/// Returns the HTML page: self-contained, without scripts or external resources.
pub fn html(results: &Results) -> String {
    html::page(&format!("{TITLE}: {}", results.began), &pages::full(results))
}

/// Returns the page as Markdown. Its only plot is the plot of the verdict, in a separate file.
pub fn markdown(results: &Results) -> String {
    markdown::page(&pages::full(results))
}

/// Returns the findings for a terminal: a table for each application and setting, text, and at the end the verdict. It
/// does not end with a newline.
pub fn terminal(results: &Results) -> String {
    terminal::page(&pages::brief(results))
}

/// Compares two runs, for a terminal: differences of settings, then each common row.
pub fn diff(a: &Results, b: &Results) -> String {
    terminal::page(&diff::blocks(a, b))
}

/// Compares two runs, as Markdown.
pub fn diff_markdown(a: &Results, b: &Results) -> String {
    markdown::page(&diff::blocks(a, b))
}

#[cfg(test)]
mod tests;
