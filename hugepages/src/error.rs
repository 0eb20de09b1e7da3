//! Errors, with remedies.

use crate::PageSize;
use std::io;
use std::path::{Path, PathBuf};

/// Error of reading, reserving or releasing hugepages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum Error {
    #[error("this kernel has no hugepages: {} is missing; boot one with CONFIG_HUGETLBFS, or mount /sys", .0.display())]
    Unsupported(PathBuf),
    #[error("this kernel has no pages of {wanted}: it has {}", list(offered))]
    UnknownSize { wanted: PageSize, offered: Vec<PageSize> },
    #[error("there is no NUMA node {wanted}: {}", existing(nodes))]
    UnknownNode { wanted: u32, nodes: Vec<u32> },
    #[error("{0} pages are more than the kernel can count: request fewer")]
    TooMany(u64),
    #[error("{pages} pages of {size} exceed the available memory: request at most {most}")]
    NotEnoughMemory { size: PageSize, pages: u64, most: u64 },
    #[error("{} may be written by root only: run this with sudo", .0.display())]
    NotPermitted(PathBuf),
    #[error("{} is read-only here: run this on the host, not inside a container", .0.display())]
    ReadOnly(PathBuf),
    #[error(
        "the kernel reserves pages of {size} at boot only: boot with hugepagesz={} hugepages={pages}", size.short()
    )]
    BootOnly { size: PageSize, pages: u64 },
    #[error(
        "the kernel gave {got} of {requested} pages of {size}: no more contiguous memory was free; \
         {}boot with hugepagesz={} hugepages={total}",
        if *.compacted { "" } else { "try again with --compact, or " }, size.short()
    )]
    Partial { size: PageSize, requested: u64, got: u64, total: u64, compacted: bool },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} holds '{content}' where a number was expected", path.display())]
    Malformed { path: PathBuf, content: String },
}

impl Error {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    }

    /// Converts an error of writing a file of `/sys` or `/proc`.
    pub(crate) fn write(path: &Path, source: io::Error) -> Error {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Error::NotPermitted(path),
            io::ErrorKind::ReadOnlyFilesystem => Error::ReadOnly(path),
            _ => Error::Io { path, source },
        }
    }
}

/// Lists the nodes of the host, as the remedy for a node that does not exist.
fn existing(nodes: &[u32]) -> String {
    match nodes {
        [] => "this host has no NUMA nodes: leave --node out".to_owned(),
        [one] => format!("node {one} is the only one of this host"),
        several => format!("this host has the nodes {}", list(several)),
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        return "none".to_owned();
    }
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}
