//! Files of a comparison.

use crate::results::{FORMAT, Results};
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};

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

/// Writes a file atomically: an interrupted comparison or a full disk leaves the previous contents.
pub(super) fn write(path: &Path, contents: &str) -> Result<(), ReportError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    std::fs::write(&new, contents).and_then(|()| std::fs::rename(&new, path)).map_err(|error| {
        let _ = std::fs::remove_file(&new);
        ReportError::Write { path: path.to_owned(), error }
    })
}
