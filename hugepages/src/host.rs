//! Host, as the roots of the kernel's files, and its status.

use crate::{Error, Mount, Pool, Process};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Host, as the roots of its `/sys`, `/proc` and `/run`: the real ones by default, a fabricated tree in tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Root of sysfs, usually `/sys`.
    pub sys: PathBuf,
    /// Root of procfs, usually `/proc`.
    pub proc: PathBuf,
    /// Directory of files that are lost at boot, usually `/run`. It holds the number of pages that were reserved.
    pub run: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Host::below("/".as_ref())
    }
}

/// Status of a host's hugepages. The field names are those of `--json` and must not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Pools by page size, smallest first.
    pub pools: Vec<Pool>,
    /// hugetlbfs mounts.
    pub mounts: Vec<Mount>,
    /// Processes that have hugepages mapped, by pid.
    pub processes: Vec<Process>,
}

impl Host {
    /// Creates a host with all roots below `root`.
    pub fn below(root: &Path) -> Self {
        Host { sys: root.join("sys"), proc: root.join("proc"), run: root.join("run") }
    }

    /// Returns the pools, mounts and users of hugepages. Processes that end meanwhile are omitted.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without hugepages in the kernel; [`Error::Io`] and [`Error::Malformed`] if a file of the
    /// kernel cannot be read or parsed.
    pub fn status(&self) -> Result<Status, Error> {
        Ok(Status { pools: self.pools()?, mounts: self.mounts()?, processes: self.processes()? })
    }
}

/// Reads a number from a file of the kernel.
pub(crate) fn read_number(path: &Path) -> Result<u64, Error> {
    let content = fs::read_to_string(path).map_err(Error::io(path))?;
    let content = content.trim();
    content.parse().map_err(|_| Error::Malformed { path: path.to_owned(), content: content.to_owned() })
}

/// Writes a number to a file of the kernel.
pub(crate) fn write_number(path: &Path, number: u64) -> Result<(), Error> {
    // `fs::write` would create a missing file.
    let mut file =
        fs::OpenOptions::new().write(true).truncate(true).open(path).map_err(|source| Error::write(path, source))?;
    std::io::Write::write_all(&mut file, number.to_string().as_bytes()).map_err(|source| Error::write(path, source))
}
