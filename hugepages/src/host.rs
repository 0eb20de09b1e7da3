//! Where the kernel's files are, and everything they say at once.

use crate::{Error, Mount, Pool, Process};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// The host whose hugepages are meant, as the roots of its `/sys` and `/proc`: the real ones by default, a fabricated
/// tree in tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Usually `/sys`.
    pub sys: PathBuf,
    /// Usually `/proc`.
    pub proc: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Host { sys: "/sys".into(), proc: "/proc".into() }
    }
}

/// All that can be said about the hugepages of a host. The field names are those of `--json` and stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// One per page size that the kernel knows, the smallest first.
    pub pools: Vec<Pool>,
    /// hugetlbfs mounts.
    pub mounts: Vec<Mount>,
    /// Processes that have hugepages mapped, by pid.
    pub processes: Vec<Process>,
}

impl Host {
    /// The pools, mounts and users of hugepages. Processes that end while they are looked at are left out.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without hugepages in the kernel; [`Error::Io`] and [`Error::Malformed`] when a file of
    /// the kernel is not as it should be.
    pub fn status(&self) -> Result<Status, Error> {
        Ok(Status { pools: self.pools()?, mounts: self.mounts()?, processes: self.processes()? })
    }
}

/// The number in a file of the kernel.
pub(crate) fn read_number(path: &Path) -> Result<u64, Error> {
    let content = fs::read_to_string(path).map_err(Error::io(path))?;
    let content = content.trim();
    content.parse().map_err(|_| Error::Malformed { path: path.to_owned(), content: content.to_owned() })
}

/// Writes a number into a file of the kernel.
pub(crate) fn write_number(path: &Path, number: u64) -> Result<(), Error> {
    // Not `fs::write`, which would create what is missing.
    let mut file =
        fs::OpenOptions::new().write(true).truncate(true).open(path).map_err(|source| Error::write(path, source))?;
    std::io::Write::write_all(&mut file, number.to_string().as_bytes()).map_err(|source| Error::write(path, source))
}
