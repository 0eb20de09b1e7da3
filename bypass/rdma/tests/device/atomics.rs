//! Atomic operations and their access checks.

use crate::rig::{Pair, Rig};
use linerate_rdma::provider::{Access, Handle, Keys, Operation, Provider, WcOpcode, WcStatus};
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers open to atomic operations only, until dropped.
struct Numbers<'a> {
    rig: &'a Rig,
    numbers: Box<[AtomicU64; 4]>,
    mr: Handle,
    keys: Keys,
}

impl<'a> Numbers<'a> {
    fn new(rig: &'a Rig) -> Option<Self> {
        if !rig.native.limits().unwrap().atomics.any() {
            eprintln!("skipped: {} supports no atomic operations", rig.native.name());
            return None;
        }
        let numbers: Box<[AtomicU64; 4]> = Box::default();
        let access = Access { local_write: true, remote_atomic: true, ..Access::default() };
        let start = numbers.as_ptr().cast::<u8>().cast_mut();
        // SAFETY: the domain is live. The numbers outlive the region and are accessed by atomic operations only.
        let (mr, keys) = unsafe { rig.native.reg_mr(rig.pd, start, 32, access) }.unwrap();
        Some(Numbers { rig, numbers, mr, keys })
    }

    fn address(&self, at: usize) -> u64 {
        self.numbers.as_ptr().expose_provenance() as u64 + at as u64
    }

    fn add(&self, at: usize, add: u64) -> Operation {
        Operation::FetchAdd { address: self.address(at), rkey: self.keys.remote, add }
    }

    fn get(&self, at: usize) -> u64 {
        self.numbers[at].load(Ordering::Relaxed)
    }
}

impl Drop for Numbers<'_> {
    fn drop(&mut self) {
        // SAFETY: the region is live, and all requests that named it have completed.
        unsafe { self.rig.native.dereg_mr(self.mr) }.unwrap();
    }
}

fn was(rig: &Rig, qp: Pair, operation: Operation) -> (WcStatus, WcOpcode, u64) {
    rig.send(qp, 1, &[rig.sge(64..72)], operation);
    let found = rig.completions(1);
    let bytes = rig.bytes(64..72);
    (found[0].status, found[0].opcode, u64::from_ne_bytes(bytes.try_into().unwrap()))
}

#[test]
fn remote_numbers_are_added_to_and_swapped() {
    let Some(rig) = Rig::open() else { return };
    let Some(numbers) = Numbers::new(&rig) else { return };
    let [one, other] = rig.qps();
    assert_eq!(was(&rig, one, numbers.add(8, u64::MAX)), (WcStatus::Success, WcOpcode::FetchAdd, 0));
    assert_eq!(was(&rig, other, numbers.add(8, 6)), (WcStatus::Success, WcOpcode::FetchAdd, u64::MAX));
    assert_eq!([0, 1, 2, 3].map(|at| numbers.get(at)), [0, 5, 0, 0]);
    let swap = |expect| {
        let (address, rkey) = (numbers.address(8), numbers.keys.remote);
        Operation::CompareSwap { address, rkey, expect, swap: 77 }
    };
    assert_eq!(was(&rig, one, swap(4)), (WcStatus::Success, WcOpcode::CompareSwap, 5));
    assert_eq!(numbers.get(1), 5);
    assert_eq!(was(&rig, one, swap(5)), (WcStatus::Success, WcOpcode::CompareSwap, 5));
    assert_eq!(numbers.get(1), 77);
}

#[test]
fn concurrent_sums_are_exact() {
    let Some(rig) = Rig::open() else { return };
    let Some(numbers) = Numbers::new(&rig) else { return };
    let qps = rig.qps();
    for id in 0..50 {
        qps.iter().for_each(|qp| rig.send(*qp, id, &[rig.sge(64..72)], numbers.add(0, 3)));
    }
    assert!(rig.completions(100).iter().all(|completion| completion.status == WcStatus::Success));
    assert_eq!(numbers.get(0), 300);
}

#[test]
fn atomic_access_excludes_read_and_write_and_vice_versa() {
    let Some(rig) = Rig::open() else { return };
    let Some(numbers) = Numbers::new(&rig) else { return };
    let (address, rkey) = (numbers.address(0), numbers.keys.remote);
    let exposed = Operation::FetchAdd { address: rig.address(64), rkey: rig.keys.remote, add: 1 };
    let beyond = Operation::FetchAdd { address: numbers.address(32), rkey, add: 1 };
    let guessed = Operation::FetchAdd { address, rkey: rkey ^ 1, add: 1 };
    let read = Operation::Read { address, rkey };
    let write = Operation::Write { address, rkey };
    for denied in [read, write, exposed, beyond, guessed] {
        let [one, _] = rig.qps();
        assert_eq!(was(&rig, one, denied).0, WcStatus::RemoteAccess, "{denied:?}");
        assert_eq!([0, 1, 2, 3].map(|at| numbers.get(at)), [0; 4]);
    }
}
