//! Reports of [`Results`]: an HTML page, Markdown, a table for the terminal, and a comparison of two runs.
//!
//! ```text
//!  Results ── stats ── words ──┐
//!                └── charts ───┤
//!                  verdict ────┴─ pages ── format: html | markdown | terminal
//! ```

mod chart;
mod diff;
mod doc;
#[cfg(test)]
mod fixture;
mod format;
mod names;
mod pages;
mod ranking;
mod stats;
mod tables;
mod verdict;
mod view;
mod words;

use super::plot;
use super::results::{FORMAT, Results};
use chart::Plot;
use format::{html, markdown, terminal};
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};
use view::View;

/// Title of reports.
const TITLE: &str = "Linerate, side by side";
/// File of the verdict's plot, in the directory of the reports.
const HEADLINE: &str = "headline.svg";

/// Reason why a report cannot be made: one line with the file and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The results cannot be read.
    #[error("{}: {error}: name the results.json that linerate compare wrote", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// System error.
        error: io::Error,
    },
    /// The file is truncated.
    #[error("{}: the file is truncated: copy it again, or compare again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// The results have another format version.
    #[error("{}: format {format}, but this program reads format {FORMAT}: use the linerate that wrote it, or compare again", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format version.
        format: u64,
    },
    /// The file does not contain results.
    #[error("{}: not results of linerate compare ({reason}): name the results.json that it wrote", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Parser error.
        reason: String,
    },
    /// The report cannot be written.
    #[error("{}: {error}: choose a directory that can be written, with --out", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// System error.
        error: io::Error,
    },
}

/// Part common to all format versions.
#[derive(Deserialize)]
struct Head {
    format: u64,
}

/// Reads results from a file.
pub fn read(path: &Path) -> Result<Results, ReportError> {
    let bytes = std::fs::read(path).map_err(|error| ReportError::Read { path: path.to_owned(), error })?;
    let wrong = |error: serde_json::Error| match error.is_eof() {
        true => ReportError::Truncated { path: path.to_owned() },
        false => ReportError::Foreign { path: path.to_owned(), reason: one_line(&error) },
    };
    let Head { format } = serde_json::from_slice(&bytes).map_err(wrong)?;
    if format != u64::from(FORMAT) {
        return Err(ReportError::Format { path: path.to_owned(), format });
    }
    serde_json::from_slice(&bytes).map_err(wrong)
}

/// Formats an error in one line: names in a foreign file may contain line ends.
fn one_line(error: &serde_json::Error) -> String {
    error.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

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
        replace(&path, &contents)?;
        paths.push(path);
    }
    Ok(paths)
}

/// Replaces a file atomically: an interrupted comparison or a full disk leaves the previous contents.
fn replace(path: &Path, contents: &str) -> Result<(), ReportError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, contents).and_then(|()| std::fs::rename(&new, path)).map_err(|error| {
        let _ = std::fs::remove_file(&new);
        ReportError::Write { path: path.to_owned(), error }
    })
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
