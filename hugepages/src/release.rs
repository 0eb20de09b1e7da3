//! Release of free pages.

use crate::host::write_number;
use crate::{Error, HeldFile, Host, PageSize, Process};
use serde::Serialize;
use std::path::Path;

/// Number of pages to release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// This number of pages.
    Pages(u64),
    /// All free pages that [`Host::reserve`] has reserved since boot.
    All,
}

/// Result of a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Released {
    /// Page size; bytes in JSON.
    pub page_size: PageSize,
    /// NUMA node; absent for all.
    pub node: Option<u32>,
    /// Requested pages; absent for all.
    pub requested: Option<u64>,
    /// Released pages.
    pub released: u64,
    /// Pages that remain in the pool, on this node or on all.
    pub reserved: u64,
    /// Pages of all nodes that are used or committed, and therefore stay.
    pub in_use: u64,
    /// Processes that have pages of this pool mapped, or might have: see [`Process::pages`].
    pub processes: Vec<Process>,
    /// Files on hugetlbfs that hold pages of this size, on any node.
    pub files: Vec<HeldFile>,
}

impl Host {
    /// Releases free pages of a pool, except those committed to a mapping.
    ///
    /// At most the free pages are requested: the kernel would convert used pages to surplus pages, which leave the pool
    /// one by one as they become free.
    ///
    /// # Errors
    /// [`Error::UnknownSize`], [`Error::UnknownNode`]; [`Error::NotPermitted`] without root.
    pub fn release(&self, size: PageSize, node: Option<u32>, amount: Amount) -> Result<Released, Error> {
        self.release_by(size, node, amount, &mut write_number)
    }

    fn release_by(
        &self,
        size: PageSize,
        node: Option<u32>,
        amount: Amount,
        write: &mut dyn FnMut(&Path, u64) -> Result<(), Error>,
    ) -> Result<Released, Error> {
        let nodes: Vec<u32> = self.pool(size)?.nodes.iter().map(|pool| pool.node).collect();
        let mut release = |node, pages| -> Result<Released, Error> {
            let released = self.release_pages(size, node, pages, write)?;
            let mut unrecorded = released.released;
            for key in [node, None].into_iter().chain(nodes.iter().copied().map(Some)) {
                let recorded = self.recorded(size, key)?;
                let rest = recorded.saturating_sub(unrecorded);
                unrecorded -= recorded - rest;
                self.set_recorded(size, key, rest);
            }
            Ok(released)
        };
        let Amount::Pages(pages) = amount else {
            let mut count = 0;
            if node.is_none() {
                // The kernel would take pages of any node for those that were reserved on one.
                for node in nodes.iter().copied().map(Some) {
                    count += release(node, self.recorded(size, node)?)?.released;
                }
            }
            let released = release(node, self.recorded(size, node)?)?;
            return Ok(Released { released: released.released + count, ..released });
        };
        Ok(Released { requested: Some(pages), ..release(node, pages)? })
    }

    fn release_pages(
        &self,
        size: PageSize,
        node: Option<u32>,
        pages: u64,
        write: &mut dyn FnMut(&Path, u64) -> Result<(), Error>,
    ) -> Result<Released, Error> {
        let pool = self.pool(size)?;
        let before = pool.persistent(node)?;
        // Pages are not committed per node: any free page may be committed.
        let free = match node {
            None => pool.available(),
            Some(node) => pool.node(node)?.free.min(pool.available()),
        };
        let releasable = free.min(before).min(pages);
        if releasable > 0 {
            let control = self.pool_control(size, node);
            write(&control, before - releasable)?;
            // Pages taken between the read and the write have become surplus: add them to the pool again.
            let taken = self.pool(size)?.surplus.saturating_sub(pool.surplus);
            if taken > 0 {
                write(&control, before - releasable + taken.min(releasable))?;
            }
        }
        let after = self.pool(size)?;
        let reserved = match node {
            None => after.reserved,
            Some(node) => after.node(node)?.reserved,
        };
        let (processes, files) = if after.in_use > 0 { self.holders(size, node)? } else { Default::default() };
        let released = before.saturating_sub(after.persistent(node)?);
        let in_use = after.in_use;
        Ok(Released { page_size: size, node, requested: None, released, reserved, in_use, processes, files })
    }

    /// Returns the users of a pool's pages.
    fn holders(&self, size: PageSize, node: Option<u32>) -> Result<(Vec<Process>, Vec<HeldFile>), Error> {
        let mut processes = self.processes()?;
        processes.retain(|process| process.pages_of(size, node) != Some(0));
        let mounts = self.mounts()?.into_iter().filter(|mount| mount.page_size == Some(size));
        Ok((processes, mounts.flat_map(|mount| mount.files).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reservation;
    use crate::pools::tests::Fake;
    use std::io;

    /// Emulates the kernel's `set_max_huge_pages`: free pages leave the pool first, others become surplus.
    fn kernel(fake: &Fake) -> impl FnMut(&Path, u64) -> Result<(), Error> {
        move |_, count| {
            let pool = fake.host().pool(PageSize::MB_2).unwrap();
            let persistent = pool.reserved - pool.surplus;
            let freed = persistent.saturating_sub(count.max(pool.in_use));
            let (reserved, free) = (pool.reserved - freed, pool.free - freed);
            fake.pool(PageSize::MB_2, [reserved, free, pool.committed, reserved.saturating_sub(count)]);
            Ok(())
        }
    }

    fn release(fake: &Fake, amount: Amount) -> Released {
        fake.host().release_by(PageSize::MB_2, None, amount, &mut kernel(fake)).unwrap()
    }

    #[test]
    fn release_removes_the_requested_pages() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [10, 8, 0, 0]);
        let released = release(&fake, Amount::Pages(3));
        assert_eq!((released.requested, released.released, released.reserved), (Some(3), 3, 7));
    }

    #[test]
    fn used_and_committed_pages_stay_and_none_becomes_surplus() {
        for amount in [Amount::All, Amount::Pages(10), Amount::Pages(u64::MAX)] {
            let fake = Fake::new();
            fake.pool(PageSize::MB_2, [10, 6, 2, 0]);
            fake.host().set_recorded(PageSize::MB_2, None, 10);
            let released = release(&fake, amount);
            assert_eq!((released.released, released.reserved, released.in_use), (4, 6, 6), "{amount:?}");
            let pool = fake.host().pool(PageSize::MB_2).unwrap();
            assert_eq!((pool.free, pool.committed, pool.surplus), (2, 2, 0));
        }
    }

    #[test]
    fn release_of_all_leaves_the_pages_of_others() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [10, 10, 0, 0]);
        assert_eq!(release(&fake, Amount::All).released, 0);
        let more = Reservation { size: PageSize::MB_2, pages: 5, node: None, compact: false };
        assert_eq!(fake.host().reserve(&more).unwrap().got, 5);
        // The fabricated kernel has no free pages yet.
        fake.pool(PageSize::MB_2, [15, 15, 0, 0]);
        assert_eq!(release(&fake, Amount::Pages(2)).reserved, 13);
        let released = release(&fake, Amount::All);
        assert_eq!((released.requested, released.released, released.reserved), (None, 3, 10));
        assert_eq!(release(&fake, Amount::All).released, 0);
    }

    #[test]
    fn release_of_all_takes_pages_from_the_nodes_of_their_reservations() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [20, 20, 0, 0]);
        fake.node(0, PageSize::MB_2, [10, 10, 0]);
        fake.node(1, PageSize::MB_2, [10, 10, 0]);
        fake.host().set_recorded(PageSize::MB_2, Some(1), 4);
        fake.host().set_recorded(PageSize::MB_2, None, 3);
        let mut requested = Vec::new();
        let released = fake.host().release_by(PageSize::MB_2, None, Amount::All, &mut |path, count| {
            requested.push((path.to_owned(), count));
            Ok(())
        });
        assert_eq!(released.unwrap().node, None);
        let control = |node| fake.host().pool_control(PageSize::MB_2, node);
        assert_eq!(requested, [(control(Some(1)), 6), (control(None), 17)]);
    }

    #[test]
    fn pages_released_by_number_are_not_released_again_with_all() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [20, 20, 0, 0]);
        fake.node(0, PageSize::MB_2, [20, 20, 0]);
        fake.host().set_recorded(PageSize::MB_2, Some(0), 4);
        fake.host().set_recorded(PageSize::MB_2, None, 3);
        assert_eq!(release(&fake, Amount::Pages(6)).reserved, 14);
        let recorded = |node| fake.host().recorded(PageSize::MB_2, node).unwrap();
        assert_eq!((recorded(None), recorded(Some(0))), (0, 1));
    }

    #[test]
    fn used_surplus_pages_are_unchanged() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [5, 0, 0, 3]);
        let mut writes = 0;
        let released = fake.host().release_by(PageSize::MB_2, None, Amount::Pages(u64::MAX), &mut |_, _| {
            writes += 1;
            Ok(())
        });
        assert_eq!((released.unwrap().released, writes), (0, 0));
    }

    #[test]
    fn page_taken_during_release_stays_in_the_pool() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [10, 6, 0, 0]);
        let mut first = true;
        let mut kernel = kernel(&fake);
        let released = fake.host().release_by(PageSize::MB_2, None, Amount::Pages(u64::MAX), &mut |path, count| {
            if std::mem::take(&mut first) {
                fake.pool(PageSize::MB_2, [10, 4, 0, 0]);
            }
            kernel(path, count)
        });
        let released = released.unwrap();
        assert_eq!((released.released, released.reserved, released.in_use), (4, 6, 6));
        assert_eq!(fake.host().pool(PageSize::MB_2).unwrap().surplus, 0);
    }

    #[test]
    fn node_releases_only_its_own_uncommitted_free_pages() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [20, 12, 9, 0]);
        fake.node(0, PageSize::MB_2, [10, 2, 0]);
        fake.node(1, PageSize::MB_2, [10, 10, 0]);
        let mut requested = Vec::new();
        for node in [0, 1] {
            let released =
                fake.host().release_by(PageSize::MB_2, Some(node), Amount::Pages(u64::MAX), &mut |path, count| {
                    requested.push((path.to_owned(), count));
                    Ok(())
                });
            assert_eq!(released.unwrap().node, Some(node));
        }
        let control = |node| fake.host().pool_control(PageSize::MB_2, Some(node));
        assert_eq!(requested, [(control(0), 8), (control(1), 7)]);
    }

    #[test]
    fn users_of_remaining_pages_are_reported() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [4, 1, 0, 0]);
        let process = |pid: u32, maps: Option<&str>| {
            fake.write(&format!("proc/{pid}/comm"), "app\n");
            fake.write(&format!("proc/{pid}/status"), "HugetlbPages:\t 2048 kB\n");
            maps.inspect(|maps| fake.write(&format!("proc/{pid}/numa_maps"), maps));
        };
        process(7, Some("7f00 default huge anon=1 N0=1 kernelpagesize_kB=2048\n"));
        process(8, Some("7f00 default huge anon=1 N0=1 kernelpagesize_kB=1048576\n"));
        process(9, None);
        let released = release(&fake, Amount::Pages(u64::MAX));
        assert_eq!(released.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [7, 9]);
    }

    #[test]
    fn release_without_permission_has_no_effect_and_reports_the_remedy() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [4, 4, 0, 0]);
        let result = fake.host().release_by(PageSize::MB_2, None, Amount::Pages(u64::MAX), &mut |path, _| {
            Err(Error::write(path, io::ErrorKind::PermissionDenied.into()))
        });
        assert!(result.unwrap_err().to_string().contains("run this with sudo"));
    }
}
