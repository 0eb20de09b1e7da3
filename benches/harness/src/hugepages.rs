//! Hugepages of tests and benches.

use crate::rerun::skip;
use linerate_hugepages::{Amount, Error, Host, PageSize, Reservation};
use std::fs;
use std::io;
use std::path::PathBuf;

/// Hugepage memory that two processes over a shared-memory link need.
const NEEDED: u64 = 512 << 20;

/// Returns whether this machine permits tests that need root and hugepages. Prints the reason if not.
pub fn available() -> bool {
    let free = Host::default().pool(PageSize::MB_2).map_or(0, |pool| pool.available() * PageSize::MB_2.bytes());
    let available = rustix::process::geteuid().is_root() && free >= NEEDED;
    if !available {
        skip(&format!("needs root and {} MB of free hugepages", NEEDED >> 20));
    }
    available
}

/// Control group with a limit of hugepages of 2 MB, which this process has entered. It leaves the group on drop.
#[derive(Debug)]
pub struct Limited {
    group: PathBuf,
    before: PathBuf,
}

impl Limited {
    /// Enters a new group that may use `bytes` of hugepages. Returns `None`, and prints the reason, unless this process
    /// is root and the hugetlb controller belongs to the unified hierarchy.
    pub fn enter(bytes: u64) -> Option<Limited> {
        let entered = Self::try_enter(bytes);
        if let Err(error) = &entered {
            skip(&format!("needs root and the hugetlb controller of cgroup v2 ({error})"));
        }
        entered.ok()
    }

    fn try_enter(bytes: u64) -> io::Result<Limited> {
        let missing = |what: &'static str| io::Error::new(io::ErrorKind::NotFound, what);
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ');
            let path = fields.nth(1)?;
            (fields.next()? == "cgroup2").then(|| PathBuf::from(path))
        });
        let root = root.ok_or_else(|| missing("cgroup2 is not mounted"))?;
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let before = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        fs::write(root.join("cgroup.subtree_control"), "+hugetlb")?;
        let group = root.join(format!("linerate-test-{}", std::process::id()));
        fs::create_dir(&group)?;
        let limited = Limited { before: root.join(before), group };
        fs::write(limited.group.join("hugetlb.2MB.max"), bytes.to_string())?;
        fs::write(limited.group.join("cgroup.procs"), "0")?;
        Ok(limited)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let left = fs::write(self.before.join("cgroup.procs"), "0");
        if let Err(error) = left.and_then(|()| fs::remove_dir(&self.group)) {
            eprintln!("cannot leave {}: {error}", self.group.display());
        }
    }
}

/// Reserved hugepages of 2 MB, released on drop.
#[derive(Debug)]
pub struct Reserved(u64);

impl Reserved {
    /// Reserves pages until `wanted` are free. The kernel may provide fewer.
    pub fn top_up(wanted: u64) -> Result<Reserved, Error> {
        let host = Host::default();
        let missing = wanted.saturating_sub(host.pool(PageSize::MB_2)?.available());
        if missing == 0 {
            return Ok(Reserved(0));
        }
        let reservation = Reservation { size: PageSize::MB_2, pages: missing, node: None, compact: false };
        Ok(Reserved(host.reserve(&reservation)?.complete()?.got))
    }

    /// Returns the number of pages that were reserved.
    pub fn pages(&self) -> u64 {
        self.0
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.0 > 0
            && let Err(error) = Host::default().release(PageSize::MB_2, None, Amount::Pages(self.0))
        {
            eprintln!("cannot release {} hugepages: {error}", self.0);
        }
    }
}
