//! Atomic operations, and what keeps peers from them.

use crate::rig::{Pair, Rig};
use linerate_rdma::calls::{Access, Calls, Completed, Handle, Keys, Operation, Status};
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers that are open to atomic operations alone, until this is dropped.
struct Numbers<'a> {
    rig: &'a Rig,
    numbers: Box<[AtomicU64; 4]>,
    region: Handle,
    keys: Keys,
}

impl<'a> Numbers<'a> {
    fn new(rig: &'a Rig) -> Option<Self> {
        if !rig.native.limits().unwrap().atomics.any() {
            eprintln!("skipped: {} does no atomic operations", rig.native.name());
            return None;
        }
        let numbers: Box<[AtomicU64; 4]> = Box::default();
        let access = Access { local_write: true, remote_atomic: true, ..Access::default() };
        let start = numbers.as_ptr().cast::<u8>().cast_mut();
        // SAFETY: the domain is live, and so are the numbers until the region is gone, which are accessed by atomic operations alone.
        let (region, keys) = unsafe { rig.native.register(rig.domain, start, 32, access) }.unwrap();
        Some(Numbers { rig, numbers, region, keys })
    }

    fn address(&self, at: usize) -> u64 {
        self.numbers.as_ptr().expose_provenance() as u64 + at as u64
    }

    fn add(&self, at: usize, add: u64) -> Operation {
        Operation::FetchAdd { address: self.address(at), remote_key: self.keys.remote, add }
    }

    fn get(&self, at: usize) -> u64 {
        self.numbers[at].load(Ordering::Relaxed)
    }
}

impl Drop for Numbers<'_> {
    fn drop(&mut self) {
        // SAFETY: it is live, and what named it has been completed.
        unsafe { self.rig.native.deregister(self.region) }.unwrap();
    }
}

fn was(rig: &Rig, pair: Pair, operation: Operation) -> (Status, Completed, u64) {
    rig.send(pair, 1, &[rig.segment(64..72)], operation);
    let found = rig.completions(1);
    let bytes = rig.bytes(64..72);
    (found[0].status, found[0].what, u64::from_ne_bytes(bytes.try_into().unwrap()))
}

#[test]
fn numbers_of_the_peer_are_added_to_and_swapped() {
    let Some(rig) = Rig::open() else { return };
    let Some(numbers) = Numbers::new(&rig) else { return };
    let [one, other] = rig.pairs();
    assert_eq!(was(&rig, one, numbers.add(8, u64::MAX)), (Status::Success, Completed::FetchAdd, 0));
    assert_eq!(was(&rig, other, numbers.add(8, 6)), (Status::Success, Completed::FetchAdd, u64::MAX));
    assert_eq!([0, 1, 2, 3].map(|at| numbers.get(at)), [0, 5, 0, 0]);
    let swap = |expect| {
        let (address, remote_key) = (numbers.address(8), numbers.keys.remote);
        Operation::CompareSwap { address, remote_key, expect, swap: 77 }
    };
    assert_eq!(was(&rig, one, swap(4)), (Status::Success, Completed::CompareSwap, 5));
    assert_eq!(numbers.get(1), 5);
    assert_eq!(was(&rig, one, swap(5)), (Status::Success, Completed::CompareSwap, 5));
    assert_eq!(numbers.get(1), 77);
}

#[test]
fn sums_are_exact_from_two_queue_pairs_at_once() {
    let Some(rig) = Rig::open() else { return };
    let Some(numbers) = Numbers::new(&rig) else { return };
    let pairs = rig.pairs();
    for id in 0..50 {
        pairs.iter().for_each(|pair| rig.send(*pair, id, &[rig.segment(64..72)], numbers.add(0, 3)));
    }
    assert!(rig.completions(100).iter().all(|completion| completion.status == Status::Success));
    assert_eq!(numbers.get(0), 300);
}

#[test]
fn numbers_are_neither_read_nor_written_and_what_is_read_and_written_is_no_number() {
    let Some(rig) = Rig::open() else { return };
    let Some(numbers) = Numbers::new(&rig) else { return };
    let (address, remote_key) = (numbers.address(0), numbers.keys.remote);
    let exposed = Operation::FetchAdd { address: rig.address(64), remote_key: rig.keys.remote, add: 1 };
    let behind = Operation::FetchAdd { address: numbers.address(32), remote_key, add: 1 };
    let guessed = Operation::FetchAdd { address, remote_key: remote_key ^ 1, add: 1 };
    let read = Operation::Read { address, remote_key };
    let write = Operation::Write { address, remote_key };
    for denied in [read, write, exposed, behind, guessed] {
        let [one, _] = rig.pairs();
        assert_eq!(was(&rig, one, denied).0, Status::RemoteAccess, "{denied:?}");
        assert_eq!([0, 1, 2, 3].map(|at| numbers.get(at)), [0; 4]);
    }
}
