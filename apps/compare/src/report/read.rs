//! Reading and writing what a comparison leaves behind.

use crate::results::{FORMAT, Results};
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};

/// Why there is no report. One line that names the file and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// Results cannot be read.
    #[error("{}: {error}: name the results.json that linerate compare wrote", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What was wrong.
        error: io::Error,
    },
    /// The file ends too soon.
    #[error("{}: it ends in the middle: copy it again, or compare again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// The results have another format.
    #[error("{}: its format is {format}, and this program reads {FORMAT}: use the linerate that wrote it, or compare again", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The number of its format.
        format: u64,
    },
    /// The file is something else.
    #[error("{}: these are no results of linerate compare ({why}): name the results.json that it wrote", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is not as it should be.
        why: String,
    },
    /// A report cannot be written.
    #[error("{}: {error}: choose a directory that can be written, with --out", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// What was wrong.
        error: io::Error,
    },
}

/// What every format has.
#[derive(Deserialize)]
struct Head {
    format: u64,
}

/// The results in a file.
pub fn read(path: &Path) -> Result<Results, ReportError> {
    let bytes = std::fs::read(path).map_err(|error| ReportError::Read { path: path.to_owned(), error })?;
    let wrong = |error: serde_json::Error| match error.is_eof() {
        true => ReportError::Truncated { path: path.to_owned() },
        false => ReportError::Foreign { path: path.to_owned(), why: one_line(&error) },
    };
    let Head { format } = serde_json::from_slice(&bytes).map_err(wrong)?;
    if format != u64::from(FORMAT) {
        return Err(ReportError::Format { path: path.to_owned(), format });
    }
    serde_json::from_slice(&bytes).map_err(wrong)
}

/// Names in a foreign file may have anything in them, ends of lines too.
fn one_line(error: &serde_json::Error) -> String {
    error.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Writes a file whole or not at all: an interrupted comparison leaves what was there before.
pub(super) fn write(path: &Path, contents: &str) -> Result<(), ReportError> {
    let wrong = |error| ReportError::Write { path: path.to_owned(), error };
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    std::fs::write(&beside, contents).and_then(|()| std::fs::rename(&beside, path)).map_err(wrong)
}
