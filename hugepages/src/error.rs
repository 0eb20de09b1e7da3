//! What can go wrong, and what to do about it.

use crate::PageSize;
use std::io;
use std::path::{Path, PathBuf};

/// Why hugepages could not be read, reserved or released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel was built without hugepages, or `/sys` is not mounted.
    #[error("this kernel has no hugepages: {} is missing; boot one with CONFIG_HUGETLBFS, or mount /sys", .0.display())]
    Unsupported(PathBuf),
    /// The kernel offers other sizes.
    #[error("this kernel has no pages of {wanted}: it has {}", list(offered))]
    UnknownSize {
        /// What was asked for.
        wanted: PageSize,
        /// What there is.
        offered: Vec<PageSize>,
    },
    /// There is no such NUMA node.
    #[error("there is no NUMA node {wanted}: this host has {}", list(nodes))]
    UnknownNode {
        /// What was asked for.
        wanted: u32,
        /// What there is.
        nodes: Vec<u32>,
    },
    /// More pages than can be counted.
    #[error("{0} pages are more than the kernel can count: ask for fewer")]
    TooMany(u64),
    /// More than the host could spare.
    #[error("{pages} pages of {size} are more than the memory that is available: ask for at most {most}")]
    NotEnoughMemory {
        /// Their size.
        size: PageSize,
        /// How many were asked for.
        pages: u64,
        /// How many would fit.
        most: u64,
    },
    /// Not root.
    #[error("{} may be written by root only: run this with sudo", .0.display())]
    NotPermitted(PathBuf),
    /// As in a container.
    #[error("{} is read-only here: run this on the host, not inside a container", .0.display())]
    ReadOnly(PathBuf),
    /// The kernel reserves such pages at boot only.
    #[error(
        "the kernel reserves pages of {size} at boot only: boot with hugepagesz={} hugepages={pages}", size.short()
    )]
    BootOnly {
        /// Their size.
        size: PageSize,
        /// How many were wanted in all.
        pages: u64,
    },
    /// The kernel gave fewer than asked for. What it gave stays reserved.
    #[error(
        "the kernel gave {got} of {requested} pages of {size}: no more memory was free in one piece; \
         {}boot with hugepagesz={} hugepages={total}",
        if *.compacted { "" } else { "try again with --compact, or " }, size.short()
    )]
    Partial {
        /// Their size.
        size: PageSize,
        /// Asked for.
        requested: u64,
        /// Given.
        got: u64,
        /// What the pool would hold, had all been given.
        total: u64,
        /// Caches were already dropped and memory compacted.
        compacted: bool,
    },
    /// A file of the kernel could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the kernel does not hold what the kernel writes there.
    #[error("{} holds '{content}' where a number was expected", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it holds.
        content: String,
    },
}

impl Error {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    }

    /// What failing to write a file of `/sys` or `/proc` means.
    pub(crate) fn write(path: &Path, source: io::Error) -> Error {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Error::NotPermitted(path),
            io::ErrorKind::ReadOnlyFilesystem => Error::ReadOnly(path),
            _ => Error::Io { path, source },
        }
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        return "none".to_owned();
    }
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}
