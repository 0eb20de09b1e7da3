//! Hugepages of tests and benches.

use crate::rerun::skip;
use linerate_hugepages::{Amount, Error, Host, PageSize, Reservation};

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
