//! Memory regions, mapped or provided by the caller.

use super::hugepages::NoHugepages;
use std::fmt;
use std::io;
use std::ptr::NonNull;

/// Size of an arena's hugepages. Explicit, because the system's default may be 1 GB.
pub(super) const HUGEPAGE: usize = 2 << 20;

/// Kind of pages of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Hugepages of 2 MB, all populated.
    Hugepages,
    /// Ordinary pages, populated on first access.
    Pages,
    /// Memory provided to [`Arena::from_region`](super::Arena::from_region).
    Region,
}

/// Memory region, released on drop.
pub(crate) struct Region {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) backing: Backing,
    /// Release function of memory that is not from `mmap`.
    release: Option<Box<dyn FnOnce() + Send>>,
}

impl Region {
    /// Maps `len` bytes for `purpose`. With `hugepages`, uses hugepages if enough can be allocated.
    pub(crate) fn new(len: usize, hugepages: bool, purpose: &str) -> io::Result<Region> {
        match hugepages.then(|| Region::hugepages(len, HUGEPAGE)) {
            Some(Ok(region)) => Ok(region),
            Some(Err(_)) => {
                tracing::warn!("no hugepages for {purpose}, using ordinary pages: {}", NoHugepages::for_region(len));
                Region::pages(len)
            }
            None => Region::pages(len),
        }
    }

    /// Maps `len` bytes in hugepages of `size` bytes, and allocates all of the pages.
    pub(super) fn hugepages(len: usize, size: usize) -> io::Result<Region> {
        let len = len.checked_next_multiple_of(size).ok_or(io::ErrorKind::OutOfMemory)?;
        let size_flag = (size.ilog2() as libc::c_int) << libc::MAP_HUGE_SHIFT;
        let start = map(len, libc::MAP_HUGETLB | size_flag | libc::MAP_POPULATE)?;
        let region = Region { start, len, backing: Backing::Hugepages, release: None };
        // MAP_POPULATE reports no failure, as under a hugetlb limit of the cgroup, and a page that is missing raises
        // SIGBUS on access.
        match advise(start, len, libc::MADV_POPULATE_WRITE) {
            // The kernel is older than Linux 5.14.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(region),
            populated => populated.map(|()| region),
        }
    }

    fn pages(len: usize) -> io::Result<Region> {
        let start = map(len, 0)?;
        // Optional: the kernel may reject the advice.
        let _ = advise(start, len, libc::MADV_HUGEPAGE);
        Ok(Region { start, len, backing: Backing::Pages, release: None })
    }

    /// Takes over memory that `release` frees.
    pub(super) fn external(start: NonNull<u8>, len: usize, release: Box<dyn FnOnce() + Send>) -> Region {
        Region { start, len, backing: Backing::Region, release: Some(release) }
    }
}

fn map(len: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous mapping at an address chosen by the kernel affects no existing memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
    // After a fork, a page that a device accesses must stay with this process and not become a copy.
    let _ = advise(start, len, libc::MADV_DONTFORK);
    Ok(start)
}

/// Advises the kernel on a mapping of [`map`]. Miri has no `madvise`.
fn advise(start: NonNull<u8>, len: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: the mapping exists and is `len` bytes long. The advice leaves its contents unchanged.
    if cfg!(miri) || unsafe { libc::madvise(start.as_ptr().cast(), len, advice) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.release.take() {
            Some(release) => release(),
            // SAFETY: mapped with this length by `map`, and not used afterwards.
            None => unsafe {
                libc::munmap(self.start.as_ptr().cast(), self.len);
            },
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backing::Hugepages => "2 MB hugepages",
            Backing::Pages => "ordinary pages",
            Backing::Region => "caller-provided memory",
        })
    }
}
