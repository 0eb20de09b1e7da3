//! Tests with the running kernel. They release the pages that they reserve. Without root only the rejection is tested.
#![forbid(unsafe_code)]

use linerate_hugepages::{Amount, Error, Host, PageSize, Released, Reservation};
use memmap2::{MmapMut, MmapOptions};
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lock of the pools, which belong to the whole machine.
fn alone() -> MutexGuard<'static, ()> {
    static POOLS: Mutex<()> = Mutex::new(());
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reservation(size: PageSize, pages: u64) -> Reservation {
    Reservation { size, pages, node: None, compact: false }
}

/// Returns whether pages can be reserved on this machine; otherwise reports the reason for skipping the test.
fn may_reserve(size: PageSize) -> bool {
    let refused = match Host::default().reserve(&reservation(size, 0)) {
        Ok(_) => return true,
        Err(error @ (Error::NotPermitted(_) | Error::ReadOnly(_) | Error::Unsupported(_))) => error,
        Err(error @ (Error::UnknownSize { .. } | Error::BootOnly { .. })) => error,
        Err(error) => panic!("{error}"),
    };
    eprintln!("not tested: {refused}");
    false
}

/// Maps and touches pages.
fn hold(size: PageSize, pages: u64) -> MmapMut {
    let length = usize::try_from(size.bytes() * pages).unwrap();
    let bits = u8::try_from(size.bytes().trailing_zeros()).unwrap();
    let mut memory = MmapOptions::new().len(length).huge(Some(bits)).map_anon().unwrap();
    memory.chunks_mut(usize::try_from(size.bytes()).unwrap()).for_each(|page| page[0] = 1);
    memory
}

/// Pages reserved by a test, released on drop.
struct Given {
    size: PageSize,
    node: Option<u32>,
    pages: u64,
}

impl Given {
    fn give_back(mut self) -> Released {
        let pages = std::mem::take(&mut self.pages);
        Host::default().release(self.size, self.node, Amount::Pages(pages)).unwrap()
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if self.pages > 0
            && let Err(error) = Host::default().release(self.size, self.node, Amount::Pages(self.pages))
        {
            eprintln!("{} pages of {} stay reserved: {error}", self.pages, self.size);
        }
    }
}

fn mine(size: PageSize) -> Option<u64> {
    let processes = Host::default().processes().unwrap();
    processes.iter().find(|process| process.pid == std::process::id()).and_then(|mine| mine.pages_of(size, None))
}

#[test]
fn pages_are_reserved_used_listed_and_released() {
    let _alone = alone();
    if !may_reserve(PageSize::MB_2) {
        return;
    }
    let host = Host::default();
    let before = host.pool(PageSize::MB_2).unwrap().reserved;
    let reserved = host.reserve(&reservation(PageSize::MB_2, 4)).unwrap();
    let given = Given { size: PageSize::MB_2, node: None, pages: reserved.got };
    assert_eq!(reserved.reserved, before + reserved.got);
    if reserved.got >= 2 {
        let held = hold(PageSize::MB_2, 2);
        assert_eq!(mine(PageSize::MB_2), Some(2));
        let process = host.processes().unwrap().into_iter().find(|process| process.pid == std::process::id()).unwrap();
        assert_eq!(process.command, fs::read_to_string("/proc/self/comm").unwrap().trim_end());
        drop(held);
        assert_eq!(mine(PageSize::MB_2), None);
    }
    let released = given.give_back();
    assert_eq!((released.released, released.reserved), (reserved.got, before));
}

#[test]
fn pages_of_one_node_are_reserved_and_released() {
    let _alone = alone();
    let host = Host::default();
    let Some(node) = host.pool(PageSize::MB_2).ok().and_then(|pool| pool.nodes.first().map(|node| node.node)) else {
        return;
    };
    if !may_reserve(PageSize::MB_2) {
        return;
    }
    let before = host.pool(PageSize::MB_2).unwrap().node(node).unwrap().reserved;
    let reserved = host.reserve(&Reservation { node: Some(node), ..reservation(PageSize::MB_2, 3) }).unwrap();
    let given = Given { size: PageSize::MB_2, node: Some(node), pages: reserved.got };
    assert_eq!(reserved.reserved, before + reserved.got);
    let released = given.give_back();
    assert_eq!((released.released, released.reserved), (reserved.got, before));
}

/// An empty pool of 1 GB pages has no other user, so all of it can be released.
#[test]
fn used_page_survives_the_release_of_all() {
    let _alone = alone();
    let host = Host::default();
    if !may_reserve(PageSize::GB_1) || host.pool(PageSize::GB_1).unwrap().reserved > 0 {
        return;
    }
    if let Err(partial) = host.reserve(&reservation(PageSize::GB_1, 1)).unwrap().complete() {
        assert!(partial.to_string().contains("boot with hugepagesz=1G hugepages=1"), "{partial}");
        return;
    }
    let given = Given { size: PageSize::GB_1, node: None, pages: 1 };
    let held = hold(PageSize::GB_1, 1);
    let refused = host.release(PageSize::GB_1, None, Amount::Pages(1)).unwrap();
    assert_eq!((refused.released, refused.reserved, refused.in_use), (0, 1, 1));
    assert_eq!(refused.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [std::process::id()]);
    assert_eq!(held[0], 1);
    drop(held);
    let released = given.give_back();
    assert_eq!((released.released, released.reserved), (1, 0));
    assert_eq!(host.pool(PageSize::GB_1).unwrap().surplus, 0);
}

#[test]
fn status_of_this_host_is_readable_without_root() {
    let host = Host::default();
    match host.status() {
        Ok(status) => assert!(status.pools.iter().all(|pool| pool.in_use <= pool.reserved)),
        Err(error) => assert!(matches!(error, Error::Unsupported(_)), "{error}"),
    }
}
