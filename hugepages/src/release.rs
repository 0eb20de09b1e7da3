//! Giving pages back, without touching those in use.

use crate::host::write_number;
use crate::{Error, HeldFile, Host, PageSize, Process};
use serde::Serialize;
use std::path::Path;

/// How many pages to give back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// So many.
    Pages(u64),
    /// All that nobody uses.
    All,
}

/// What came of a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Released {
    /// The size of the pages; bytes in JSON.
    pub page_size: PageSize,
    /// The node; absent for all.
    pub node: Option<u32>,
    /// Pages that were to go; absent for all.
    pub requested: Option<u64>,
    /// Pages that went.
    pub released: u64,
    /// Pages that the pool still holds, on this node or on all.
    pub reserved: u64,
    /// Of all nodes' pages, those in use or promised: they stay.
    pub in_use: u64,
    /// Processes that have pages of this pool mapped, or might have: see [`Process::pages`].
    pub processes: Vec<Process>,
    /// Files on hugetlbfs that hold pages of this size, on whatever node.
    pub files: Vec<HeldFile>,
}

impl Host {
    /// Takes pages out of a pool, but none that is in use, nor one that a mapping has been promised.
    ///
    /// The kernel by itself would turn pages in use into surplus ones, which it then takes away one by one as they
    /// are freed; so no more than what is free is ever asked for.
    ///
    /// # Errors
    /// [`Error::UnknownSize`], [`Error::UnknownNode`]; [`Error::NotPermitted`] for all but root.
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
        let pool = self.pool(size)?;
        let before = pool.persistent(node)?;
        // Promises are not made per node: any free page may have to keep one.
        let free = match node {
            None => pool.available(),
            Some(node) => pool.node(node)?.free.min(pool.available()),
        };
        let requested = match amount {
            Amount::Pages(pages) => Some(pages),
            Amount::All => None,
        };
        let releasable = free.min(before).min(requested.unwrap_or(u64::MAX));
        if releasable > 0 {
            let control = self.pool_control(size, node);
            write(&control, before - releasable)?;
            // Pages that were taken between the look and the write have become surplus: take them back in.
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
        Ok(Released { page_size: size, node, requested, released, reserved, in_use: after.in_use, processes, files })
    }

    /// Who has pages of a pool.
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
    use crate::pools::tests::Fake;
    use std::io;

    /// A pool that answers a write as the kernel's `set_max_huge_pages` does: free pages go first, the rest becomes
    /// surplus.
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
    fn as_many_pages_go_as_were_asked_for() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [10, 8, 0, 0]);
        let released = release(&fake, Amount::Pages(3));
        assert_eq!((released.requested, released.released, released.reserved), (Some(3), 3, 7));
    }

    #[test]
    fn pages_in_use_and_promised_pages_stay_and_none_becomes_surplus() {
        for amount in [Amount::All, Amount::Pages(10), Amount::Pages(u64::MAX)] {
            let fake = Fake::new();
            fake.pool(PageSize::MB_2, [10, 6, 2, 0]);
            let released = release(&fake, amount);
            assert_eq!((released.released, released.reserved, released.in_use), (4, 6, 6), "{amount:?}");
            let pool = fake.host().pool(PageSize::MB_2).unwrap();
            assert_eq!((pool.free, pool.committed, pool.surplus), (2, 2, 0));
        }
    }

    #[test]
    fn surplus_pages_in_use_are_left_as_they_are() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [5, 0, 0, 3]);
        let mut writes = 0;
        let released = fake.host().release_by(PageSize::MB_2, None, Amount::All, &mut |_, _| {
            writes += 1;
            Ok(())
        });
        assert_eq!((released.unwrap().released, writes), (0, 0));
    }

    #[test]
    fn a_page_that_is_taken_meanwhile_is_kept_in_the_pool() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [10, 6, 0, 0]);
        let mut first = true;
        let mut kernel = kernel(&fake);
        let released = fake.host().release_by(PageSize::MB_2, None, Amount::All, &mut |path, count| {
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
    fn a_node_gives_only_its_own_free_pages_and_none_that_may_be_promised() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [20, 12, 9, 0]);
        fake.node(0, PageSize::MB_2, [10, 2, 0]);
        fake.node(1, PageSize::MB_2, [10, 10, 0]);
        let mut asked = Vec::new();
        for node in [0, 1] {
            let released = fake.host().release_by(PageSize::MB_2, Some(node), Amount::All, &mut |path, count| {
                asked.push((path.to_owned(), count));
                Ok(())
            });
            assert_eq!(released.unwrap().node, Some(node));
        }
        let control = |node| fake.host().pool_control(PageSize::MB_2, Some(node));
        assert_eq!(asked, [(control(0), 8), (control(1), 7)]);
    }

    #[test]
    fn who_holds_what_stays_is_told() {
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
        let released = release(&fake, Amount::All);
        assert_eq!(released.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [7, 9]);
    }

    #[test]
    fn without_permission_nothing_changes_and_the_remedy_is_told() {
        let fake = Fake::new();
        fake.pool(PageSize::MB_2, [4, 4, 0, 0]);
        let result = fake.host().release_by(PageSize::MB_2, None, Amount::All, &mut |path, _| {
            Err(Error::write(path, io::ErrorKind::PermissionDenied.into()))
        });
        assert!(result.unwrap_err().to_string().contains("run this with sudo"));
    }
}
