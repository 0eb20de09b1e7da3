//! Hugepages that this process can allocate.

use super::region::HUGEPAGE;
use std::fmt;

/// Reason that hugepages cannot be used, with the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoHugepages {
    /// Free hugepage memory of the host in MB.
    pub free_mb: u64,
    /// Required hugepage memory in MB.
    pub needed_mb: u64,
    /// Hugepage memory in MB that the remedy provides.
    pub wanted_mb: u64,
}

impl fmt::Display for NoHugepages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoHugepages { free_mb, needed_mb, wanted_mb } = self;
        if free_mb < needed_mb {
            write!(
                f,
                "{free_mb} MB of hugepages are free and {needed_mb} MB are needed: run '{}' as root",
                Self::reserve_command(*wanted_mb)
            )
        } else {
            write!(
                f,
                "{needed_mb} MB of hugepages cannot be allocated, although {free_mb} MB are free: if the cgroup of this \
                 process has a lower hugetlb limit, raise it to {wanted_mb} MB (in Kubernetes: hugepages-2Mi)"
            )
        }
    }
}

impl NoHugepages {
    /// Returns the command that reserves pages until `mb` MB are free.
    pub(crate) fn reserve_command(mb: u64) -> String {
        format!("linerate hugepages reserve --memory {mb}M --top-up")
    }

    /// Returns the reason that `bytes` could not be allocated in pages of 2 MB.
    pub(super) fn for_region(bytes: usize) -> Self {
        let free = free_pools().into_iter().find(|(size, _)| *size == HUGEPAGE).map_or(0, |(size, pages)| size * pages);
        let needed_mb = (bytes as u64).div_ceil(1 << 20);
        NoHugepages { free_mb: (free >> 20) as u64, needed_mb, wanted_mb: needed_mb }
    }
}

/// Returns the reason that `needed_mb` MB could not be allocated in pages of any size.
#[cfg(feature = "dpdk")]
pub(crate) fn reason(needed_mb: u64, wanted_mb: u64) -> NoHugepages {
    let free_mb = free_pools().iter().map(|(size, pages)| (size * pages) as u64).sum::<u64>() >> 20;
    NoHugepages { free_mb, needed_mb, wanted_mb: wanted_mb.max(needed_mb) }
}

/// Checks that `needed_mb` MB of hugepages can be allocated, by allocating them for a moment. The number of free pages
/// does not suffice: the kernel applies the hugetlb limit of a cgroup when a page is touched.
#[cfg(feature = "dpdk")]
pub(crate) fn check(needed_mb: u64, wanted_mb: u64) -> Result<(), NoHugepages> {
    let error = reason(needed_mb, wanted_mb);
    if error.free_mb < needed_mb {
        return Err(error);
    }
    let mut missing = (needed_mb << 20) as usize;
    let mut held = Vec::new();
    for (size, pages) in free_pools() {
        let bytes = missing.div_ceil(size).min(pages) * size;
        if bytes > 0
            && let Ok(region) = super::Region::hugepages(bytes, size)
        {
            held.push(region);
            missing = missing.saturating_sub(bytes);
        }
    }
    if missing == 0 { Ok(()) } else { Err(error) }
}

/// Returns the size in bytes of each kind of hugepage, smallest first, and the number of its free pages that are not
/// committed to a mapping.
fn free_pools() -> Vec<(usize, usize)> {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return Vec::new() };
    let pools = sizes.flatten().filter_map(|size| {
        let read = |name| std::fs::read_to_string(size.path().join(name)).ok()?.trim().parse::<usize>().ok();
        let name = size.file_name();
        let kb: usize = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        Some((kb << 10, read("free_hugepages")?.saturating_sub(read("resv_hugepages")?)))
    });
    let mut pools: Vec<_> = pools.collect();
    pools.sort_unstable();
    pools
}
