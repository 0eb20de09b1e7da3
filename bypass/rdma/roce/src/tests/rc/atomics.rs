//! Atomic operations and their access checks.

use crate::tests::*;
use linerate_rdma_provider::WcOpcode;

/// Offsets of the number and of the returned old value.
const NUMBER: usize = 1024;
pub const WAS: usize = 64;

pub fn add(b: &End, add: u64) -> Operation {
    Operation::FetchAdd { address: b.address(NUMBER), rkey: b.keys.remote, add }
}

fn swap(b: &End, expect: u64, swap: u64) -> Operation {
    Operation::CompareSwap { address: b.address(NUMBER), rkey: b.keys.remote, expect, swap }
}

fn set(end: &End, number: u64) {
    end.memory.put(NUMBER, &number.to_ne_bytes());
}

fn get(end: &End, at: usize) -> u64 {
    u64::from_ne_bytes(end.memory.get(at, 8).try_into().unwrap())
}

/// Executes one operation and returns its completion.
fn status(fabric: &Fabric, a: &End, operation: Operation, sges: &[Sge]) -> (WcStatus, WcOpcode) {
    a.request(1, operation, sges, SIGNALLED);
    fabric.run();
    let ends = a.poll();
    assert_eq!((ends.len(), ends[0].id), (1, 1));
    (ends[0].status, ends[0].opcode)
}

#[test]
fn number_is_changed_and_old_value_returned() {
    let (fabric, a, b) = connected(&Setup::default());
    let was = [a.sge(WAS, 8)];
    set(&b, u64::MAX - 1);
    assert_eq!(status(&fabric, &a, add(&b, 5), &was), (WcStatus::Success, WcOpcode::FetchAdd));
    assert_eq!((get(&a, WAS), get(&b, NUMBER)), (u64::MAX - 1, 3), "it wraps");
    assert_eq!(status(&fabric, &a, swap(&b, 4, 9), &was), (WcStatus::Success, WcOpcode::CompareSwap));
    assert_eq!((get(&a, WAS), get(&b, NUMBER)), (3, 3), "unexpected value");
    assert_eq!(status(&fabric, &a, swap(&b, 3, 9), &was), (WcStatus::Success, WcOpcode::CompareSwap));
    assert_eq!((get(&a, WAS), get(&b, NUMBER)), (3, 9));
    // Scattered result.
    let parts = [a.sge(WAS, 3), a.sge(WAS + 16, 5)];
    set(&b, 0x0102_0304_0506_0708);
    assert_eq!(status(&fabric, &a, add(&b, 0), &parts).0, WcStatus::Success);
    let whole = [a.memory.get(WAS, 3), a.memory.get(WAS + 16, 5)].concat();
    assert_eq!(whole, 0x0102_0304_0506_0708_u64.to_ne_bytes());
}

#[test]
fn operations_of_two_peers_are_atomic() {
    for seed in 0..20 {
        let mut setup = Setup::default();
        setup.fabric.seed = seed;
        let (fabric, mut a, mut b) = connected(&setup);
        let first = a.qp;
        a.another(&setup);
        b.another(&setup);
        join(&a, &b, &setup);
        for (at, qp) in [first, a.qp].into_iter().enumerate() {
            for round in 0..4 {
                let sges = [a.sge(WAS + (at * 4 + round) * 8, 8)];
                let request = SendWr { id: 1, sges: &sges, operation: add(&b, 3), flags: SIGNALLED };
                call!(a.sim.post_send(qp, &[request])).unwrap();
            }
        }
        fabric.run();
        assert_eq!(a.ends(), [(1, WcStatus::Success); 8]);
        assert_eq!(get(&b, NUMBER), 24);
        let mut seen: Vec<_> = (0..8).map(|at| get(&a, WAS + at * 8)).collect();
        assert!(seen[..4].is_sorted() && seen[4..].is_sorted(), "in order of posting: {seen:?}");
        seen.sort_unstable();
        assert_eq!(seen, [0, 3, 6, 9, 12, 15, 18, 21]);
    }
}

/// Executes an operation that the peer denies, which breaks both ends.
#[track_caller]
pub fn denied(fabric: &Fabric, a: &End, b: &End, operation: Operation, expected: WcStatus) {
    let before = b.memory.get(0, 8192);
    assert_eq!(status(fabric, a, operation, &[a.sge(WAS, 8)]).0, expected);
    assert_eq!((a.state(), b.state()), (QpState::Error, QpState::Error));
    let event = match expected {
        WcStatus::RemoteAccess => AsyncEvent::QpAccessError(b.qp),
        _ => AsyncEvent::QpRequestError(b.qp),
    };
    assert_eq!((a.events(), b.events()), (vec![], vec![event]));
    assert_eq!(b.memory.get(0, 8192), before);
}

#[test]
fn region_must_permit_atomics() {
    for which in 0..2 {
        let operation = |address, rkey| match which {
            0 => Operation::FetchAdd { address, rkey, add: 1 },
            _ => Operation::CompareSwap { address, rkey, expect: 0, swap: 1 },
        };
        for at in [-8, 8185, 8192, i64::MIN] {
            let (fabric, a, b) = connected(&Setup::default());
            let address = b.address(0).wrapping_add_signed(at);
            denied(&fabric, &a, &b, operation(address, b.keys.remote), WcStatus::RemoteAccess);
        }
        let (fabric, a, b) = connected(&Setup::default());
        denied(&fabric, &a, &b, operation(b.address(NUMBER), b.keys.remote ^ 1), WcStatus::RemoteAccess);
        // Read and write access does not include atomics.
        let (fabric, a, b) = connected(&Setup::default());
        let access = Access { remote_atomic: false, ..ALL };
        let keys = call!(b.sim.reg_mr(b.pd, b.memory.start(), 8192, access)).unwrap().1;
        denied(&fabric, &a, &b, operation(b.address(NUMBER), keys.remote), WcStatus::RemoteAccess);
        for at in [1, 4, 7] {
            let (fabric, a, b) = connected(&Setup::default());
            let crooked = operation(b.address(NUMBER + at), b.keys.remote);
            denied(&fabric, &a, &b, crooked, WcStatus::RemoteInvalidRequest);
        }
    }
}

#[test]
fn atomic_access_does_not_include_read_or_write() {
    for which in 0..2 {
        let (fabric, a, b) = connected(&Setup::default());
        let access = Access { remote_atomic: true, ..LOCAL };
        let keys = call!(b.sim.reg_mr(b.pd, b.memory.start(), 8192, access)).unwrap().1;
        let (address, rkey) = (b.address(NUMBER), keys.remote);
        let counts = Operation::FetchAdd { address, rkey, add: 1 };
        assert_eq!(status(&fabric, &a, counts, &[a.sge(WAS, 8)]).0, WcStatus::Success);
        let operation = [Operation::Read { address, rkey }, Operation::Write { address, rkey }][which];
        denied(&fabric, &a, &b, operation, WcStatus::RemoteAccess);
    }
    // Remote access requires local write access.
    let (_fabric, a, _b) = connected(&Setup::default());
    let access = Access { remote_atomic: true, ..Access::default() };
    assert_eq!(number(call!(a.sim.reg_mr(a.pd, a.memory.start(), 8, access))), libc::EINVAL);
}

#[test]
fn qp_without_atomic_access_rejects_request_as_invalid() {
    for (reads, access) in [(4, Access { remote_atomic: false, ..ALL }), (0, ALL)] {
        let (fabric, a, b) = connected(&Setup::default());
        b.modify_qp(Transition::Reset).unwrap();
        b.modify_qp(Transition::Init { port: 1, partition: 0, access }).unwrap();
        b.modify_qp(b.to_receive(&a, reads)).unwrap();
        assert_eq!(status(&fabric, &a, add(&b, 1), &[a.sge(WAS, 8)]).0, WcStatus::RemoteInvalidRequest);
        assert_eq!(get(&b, NUMBER), 0);
    }
    // An initiator depth of zero fails locally.
    let setup = Setup { reads: 0, ..Setup::default() };
    let (fabric, a, b) = connected(&setup);
    assert_eq!(status(&fabric, &a, add(&b, 1), &[a.sge(WAS, 8)]).0, WcStatus::LocalQp);
    assert_eq!((get(&b, NUMBER), b.state()), (0, QpState::Rts));
}

#[test]
fn excess_outstanding_atomics_are_invalid() {
    let (fabric, a, b) = apart(&Setup::default());
    for (end, peer, answered) in [(&a, &b, 4), (&b, &a, 2)] {
        end.modify_qp(End::init()).unwrap();
        end.modify_qp(end.to_receive(peer, answered)).unwrap();
        end.modify_qp(end.to_send(4, 0)).unwrap();
    }
    let mut most = 0;
    for round in 0..8 {
        a.request(round, add(&b, 1), &[a.sge(WAS, 8)], SIGNALLED);
    }
    while fabric.step() {
        most = most.max(get(&b, NUMBER));
    }
    let ends = a.ends();
    let done = ends.iter().filter(|(_, status)| *status == WcStatus::Success).count();
    // The number outstanding at once depends on the seed; the responder accepts two at most.
    assert!(done == 8 || ends[done].1 == WcStatus::RemoteInvalidRequest, "{ends:?}");
    assert_eq!(most, done as u64);
}

#[test]
fn response_has_eight_bytes() {
    for len in [0, 4, 7, 9, 16] {
        let (fabric, a, b) = connected(&Setup::default());
        assert_eq!(status(&fabric, &a, add(&b, 1), &[a.sge(WAS, len)]).0, WcStatus::LocalLength);
        assert_eq!((get(&b, NUMBER), b.state()), (0, QpState::Rts));
    }
    let (fabric, a, b) = connected(&Setup::default());
    let nowhere = Sge { lkey: 0, ..a.sge(WAS, 8) };
    assert_eq!(status(&fabric, &a, add(&b, 1), &[nowhere]).0, WcStatus::LocalProtection);
    assert_eq!(get(&b, NUMBER), 0);
}

#[test]
fn executed_operation_is_neither_repeated_nor_undone() {
    for seed in 0..20 {
        let mut setup = Setup::default();
        setup.fabric.seed = seed;
        let (fabric, a, b) = connected(&setup);
        a.request(1, add(&b, 1), &[a.sge(WAS, 8)], SIGNALLED);
        a.request(2, add(&b, 1), &[a.sge(WAS + 8, 8)], SIGNALLED);
        let (address, rkey) = (b.address(0), b.keys.remote ^ 1);
        a.request(3, Operation::Write { address, rkey }, &[a.sge(0, 8)], SIGNALLED);
        fabric.run();
        assert_eq!(a.ends(), [(1, WcStatus::Success), (2, WcStatus::Success), (3, WcStatus::RemoteAccess)]);
        assert_eq!((get(&a, WAS), get(&a, WAS + 8), get(&b, NUMBER)), (0, 1, 2));
    }
}
