//! Regions, windows and keys.

use crate::tests::*;

/// Executes a request of `a` and returns its status.
fn status(fabric: &Fabric, a: &End, operation: Operation, sges: &[Sge]) -> WcStatus {
    a.request(1, operation, sges, SIGNALLED);
    fabric.run();
    a.poll().pop().unwrap().status
}

#[test]
fn sges_must_lie_in_regions_of_pd() {
    let other = |a: &End| {
        let pd = a.sim.alloc_pd().unwrap();
        call!(a.sim.reg_mr(pd, a.memory.start(), 8192, ALL)).unwrap().1.local
    };
    type Spoil = fn(Sge, u32) -> Sge;
    let spoils: [Spoil; 5] = [
        |sge, _| Sge { lkey: sge.lkey ^ 1, ..sge },
        |sge, other| Sge { lkey: other, ..sge },
        |sge, _| Sge { address: sge.address - 1, ..sge },
        |sge, _| Sge { address: sge.address + 8190, ..sge },
        |sge, _| Sge { address: u64::MAX - 2, ..sge },
    ];
    for spoil in spoils {
        let (fabric, a, b) = connected(&Setup::default());
        let sge = spoil(a.sge(0, 10), other(&a));
        b.receive(5, 0, 10);
        b.receive(6, 0, 10);
        assert_eq!(status(&fabric, &a, Operation::Send, &[sge]), WcStatus::LocalProtection);
        assert_eq!((a.state(), b.state()), (QpState::Error, QpState::Rts));
        // Receive buffers.
        let (fabric, a, b) = connected(&Setup::default());
        let sge = spoil(b.sge(0, 10), other(&b));
        call!(b.sim.post_recv(b.qp, &[RecvWr { id: 5, sges: &[sge] }])).unwrap();
        b.receive(6, 0, 10);
        assert_eq!(status(&fabric, &a, Operation::Send, &[a.sge(0, 10)]), WcStatus::RemoteOperation);
        assert_eq!(b.ends(), [(5, WcStatus::LocalProtection), (6, WcStatus::Flushed)]);
        // READ destinations.
        let (fabric, a, b) = connected(&Setup::default());
        let sge = spoil(a.sge(0, 10), other(&a));
        let read = Operation::Read { address: b.address(0), rkey: b.keys.remote };
        assert_eq!(status(&fabric, &a, read, &[sge]), WcStatus::LocalProtection);
    }
}

#[test]
fn read_only_region_is_not_written() {
    let (fabric, a, b) = connected(&Setup::default());
    let constant = call!(b.sim.reg_mr(b.pd, b.memory.start(), 8192, Access::default())).unwrap().1;
    let sge = Sge { lkey: constant.local, ..b.sge(0, 10) };
    call!(b.sim.post_recv(b.qp, &[RecvWr { id: 5, sges: &[sge] }])).unwrap();
    assert_eq!(status(&fabric, &a, Operation::Send, &[a.sge(0, 10)]), WcStatus::RemoteOperation);
    assert_eq!(b.ends(), [(5, WcStatus::LocalProtection)]);
    let (fabric, a, b) = connected(&Setup::default());
    let constant = call!(a.sim.reg_mr(a.pd, a.memory.start(), 8192, Access::default())).unwrap().1;
    b.receive(5, 0, 10);
    let sge = Sge { lkey: constant.local, ..a.sge(0, 10) };
    assert_eq!(status(&fabric, &a, Operation::Send, &[sge]), WcStatus::Success, "SEND reads");
    assert_eq!(b.ends(), [(5, WcStatus::Success)]);
}

/// Returns the peer's operations at offset `at` of the memory, by a key.
fn remote(b: &End, at: i64, rkey: u32) -> [Operation; 2] {
    let address = b.address(0).wrapping_add_signed(at);
    [Operation::Write { address, rkey }, Operation::Read { address, rkey }]
}

fn denied(fabric: &Fabric, a: &End, b: &End, operation: Operation) {
    b.receive(5, 0, 10);
    a.receive(6, 0, 10);
    let before = b.memory.get(0, 8192);
    a.request(1, operation, &[a.sge(0, 10)], SIGNALLED);
    a.request(2, Operation::Send, &[], SILENT);
    fabric.run();
    let mut ends = a.ends();
    ends.sort_by_key(|&(id, _)| id);
    assert_eq!(ends, [(1, WcStatus::RemoteAccess), (2, WcStatus::Flushed), (6, WcStatus::Flushed)], "{operation:?}");
    assert_eq!(b.ends(), [(5, WcStatus::Flushed)]);
    assert_eq!((a.state(), b.state()), (QpState::Error, QpState::Error));
    assert_eq!((a.events(), b.events()), (vec![], vec![AsyncEvent::QpAccessError(b.qp)]));
    assert_eq!(b.memory.get(0, 8192), before);
}

#[test]
fn remote_access_is_limited_by_region() {
    let new = || connected(&Setup::default());
    for which in 0..2 {
        for at in [-1, 8183, i64::MAX, i64::MIN] {
            let (fabric, a, b) = new();
            denied(&fabric, &a, &b, remote(&b, at, b.keys.remote)[which]);
        }
        let (fabric, a, b) = new();
        denied(&fabric, &a, &b, remote(&b, 0, b.keys.remote ^ 1)[which]);
        let (fabric, a, b) = new();
        let gone = call!(b.sim.reg_mr(b.pd, b.memory.start(), 8192, ALL)).unwrap();
        call!(b.sim.dereg_mr(gone.0)).unwrap();
        denied(&fabric, &a, &b, remote(&b, 0, gone.1.remote)[which]);
        let (fabric, a, b) = new();
        let private_data = call!(b.sim.reg_mr(b.pd, b.memory.start(), 8192, LOCAL)).unwrap().1;
        denied(&fabric, &a, &b, remote(&b, 0, private_data.remote)[which]);
        let (fabric, a, b) = new();
        let pd = b.sim.alloc_pd().unwrap();
        let foreign = call!(b.sim.reg_mr(pd, b.memory.start(), 8192, ALL)).unwrap().1;
        denied(&fabric, &a, &b, remote(&b, 0, foreign.remote)[which]);
    }
    let (fabric, a, b) = new();
    let readable = Access { remote_read: true, ..LOCAL };
    let keys = call!(b.sim.reg_mr(b.pd, b.memory.start(), 8192, readable)).unwrap().1;
    assert_eq!(status(&fabric, &a, remote(&b, 8182, keys.remote)[1], &[a.sge(0, 10)]), WcStatus::Success);
    denied(&fabric, &a, &b, remote(&b, 0, keys.remote)[0]);
}

#[test]
fn key_is_not_checked_for_zero_bytes() {
    let (fabric, a, b) = connected(&Setup::default());
    for operation in remote(&b, 0, 1) {
        assert_eq!(status(&fabric, &a, operation, &[]), WcStatus::Success);
    }
}

#[test]
fn qp_without_remote_access_rejects_request_as_invalid() {
    for which in 0..2 {
        let setup = Setup::default();
        let (fabric, a, b) = connected(&setup);
        b.modify_qp(Transition::Reset).unwrap();
        b.modify_qp(Transition::Init { port: 1, partition: 0, access: Access::default() }).unwrap();
        b.modify_qp(b.to_receive(&a, 4)).unwrap();
        let operation = remote(&b, 0, b.keys.remote)[which];
        assert_eq!(status(&fabric, &a, operation, &[a.sge(0, 10)]), WcStatus::RemoteInvalidRequest);
        let events = b.events();
        assert!(events.contains(&AsyncEvent::QpRequestError(b.qp)), "{events:?}");
    }
}

/// Binds a window of `b` to 100 bytes at offset 1000 and returns its key.
fn mw(fabric: &Fabric, b: &End, access: Access) -> (Handle, u32) {
    let (mw, key) = call!(b.sim.alloc_mw(b.pd)).unwrap();
    let rkey = (key & !0xff) | (key.wrapping_add(1) & 0xff);
    let (mr, address) = (b.mr, b.address(1000));
    let operation = Operation::Bind { mw, rkey, mr, address, len: 100, access };
    assert_eq!(status(fabric, b, operation, &[]), WcStatus::Success);
    (mw, rkey)
}

const READ: Access = Access {
    local_write: false,
    remote_read: true,
    remote_write: false,
    remote_atomic: false,
    bind: false,
    relaxed: false,
};

#[test]
fn window_opens_bound_range_only() {
    let new = || {
        let (fabric, a, b) = connected(&Setup::default());
        let (_, key) = mw(&fabric, &b, READ);
        (fabric, a, b, key)
    };
    let (fabric, a, b, key) = new();
    b.memory.put(1090, b"0123456789");
    assert_eq!(status(&fabric, &a, remote(&b, 1090, key)[1], &[a.sge(0, 10)]), WcStatus::Success);
    assert_eq!(a.memory.get(0, 10), b"0123456789");
    denied(&fabric, &a, &b, remote(&b, 1091, key)[1]);
    let (fabric, a, b, key) = new();
    denied(&fabric, &a, &b, remote(&b, 1000, key)[0]);
    let (fabric, a, b, key) = new();
    denied(&fabric, &a, &b, remote(&b, 999, key)[1]);
    let (fabric, a, b, key) = new();
    denied(&fabric, &a, &b, remote(&b, 1000, (key & !0xff) | (key.wrapping_sub(1) & 0xff))[1]);
}

#[test]
fn window_is_invalidated_by_request_or_deallocation() {
    let (fabric, a, b) = connected(&Setup::default());
    let (_, key) = mw(&fabric, &b, READ);
    assert_eq!(status(&fabric, &b, Operation::InvalidateLocal(key), &[]), WcStatus::Success);
    denied(&fabric, &a, &b, remote(&b, 1000, key)[1]);

    let (fabric, a, b) = connected(&Setup::default());
    let (mw, key) = mw(&fabric, &b, READ);
    call!(b.sim.dealloc_mw(mw)).unwrap();
    denied(&fabric, &a, &b, remote(&b, 1000, key)[1]);
}

#[test]
fn window_is_invalidated_by_message_of_the_peer() {
    for len in [3, 3000] {
        let (fabric, a, b) = connected(&Setup::default());
        let (_, key) = mw(&fabric, &b, READ);
        b.receive(7, 2000, 3000);
        a.memory.put(4000, b"abc");
        assert_eq!(status(&fabric, &a, Operation::SendInvalidate(key), &[a.sge(4000, len)]), WcStatus::Success);
        let received = b.poll()[0];
        assert_eq!((received.id, received.len, received.immediate), (7, len as u32, None));
        assert_eq!(b.memory.get(2000, 3), b"abc");
        denied(&fabric, &a, &b, remote(&b, 1000, key)[1]);
    }
    let (fabric, a, b) = connected(&Setup::default());
    b.receive(7, 2000, 3000);
    assert_eq!(status(&fabric, &a, Operation::SendInvalidate(b.keys.remote), &[]), WcStatus::RemoteAccess);
}

#[test]
fn invalidated_window_can_be_bound_again() {
    let (fabric, a, b) = connected(&Setup::default());
    let (mw, key) = mw(&fabric, &b, READ);
    assert_eq!(status(&fabric, &b, Operation::InvalidateLocal(key), &[]), WcStatus::Success);
    let rkey = key ^ 0x80;
    let bind = Operation::Bind { mw, rkey, mr: b.mr, address: b.address(0), len: 10, access: READ };
    assert_eq!(status(&fabric, &b, bind, &[]), WcStatus::Success);
    assert_eq!(status(&fabric, &a, remote(&b, 0, rkey)[1], &[a.sge(0, 10)]), WcStatus::Success);
    denied(&fabric, &a, &b, remote(&b, 0, key)[1]);
}

#[test]
fn only_window_keys_can_be_invalidated() {
    let (fabric, _a, b) = connected(&Setup::default());
    assert_eq!(status(&fabric, &b, Operation::InvalidateLocal(b.keys.remote), &[]), WcStatus::LocalQp);
    assert_eq!(b.state(), QpState::Error);
}

#[test]
fn window_is_bound_to_its_qp() {
    let setup = Setup::default();
    let (fabric, mut a, mut b) = connected(&setup);
    let (_, key) = mw(&fabric, &b, READ);
    a.another(&setup);
    b.another(&setup);
    join(&a, &b, &setup);
    assert_eq!(status(&fabric, &b, Operation::InvalidateLocal(key), &[]), WcStatus::LocalQp);
    a.another(&setup);
    b.another(&setup);
    join(&a, &b, &setup);
    denied(&fabric, &a, &b, remote(&b, 1000, key)[1]);
}

#[test]
fn region_with_bound_window_is_busy() {
    let (fabric, _a, b) = connected(&Setup::default());
    let (_, key) = mw(&fabric, &b, READ);
    assert_eq!(number(call!(b.sim.dereg_mr(b.mr))), libc::EBUSY);
    assert_eq!(status(&fabric, &b, Operation::InvalidateLocal(key), &[]), WcStatus::Success);
    call!(b.sim.dereg_mr(b.mr)).unwrap();
}

#[test]
fn qp_with_bound_window_is_busy() {
    let (fabric, _a, b) = connected(&Setup::default());
    let (mw, _) = mw(&fabric, &b, READ);
    assert_eq!(number(call!(b.sim.destroy_qp(b.qp))), libc::EBUSY);
    call!(b.sim.dealloc_mw(mw)).unwrap();
    call!(b.sim.destroy_qp(b.qp)).unwrap();
    call!(b.sim.dereg_mr(b.mr)).unwrap();
}

#[test]
fn failed_bind_breaks_qp() {
    type Spoil = fn(&End, Handle, u32) -> (Handle, u32, u64, u64, Access);
    let spoils: [Spoil; 7] = [
        |b, _, key| (b.mr, key.wrapping_add(0x100), b.address(0), 10, READ),
        |b, _, key| (b.mr, key, b.address(0) - 1, 10, READ),
        |b, _, key| (b.mr, key, b.address(8190), 10, READ),
        |b, _, key| (b.mr, key, b.address(0), 0, READ),
        |b, shut, key| (shut, key, b.address(0), 10, READ),
        |b, _, key| (b.mr, key, u64::MAX - 2, 10, READ),
        |b, _, key| {
            let pd = b.sim.alloc_pd().unwrap();
            let foreign = call!(b.sim.reg_mr(pd, b.memory.start(), 8192, ALL)).unwrap().0;
            (foreign, key, b.address(0), 10, READ)
        },
    ];
    for (case, spoil) in spoils.iter().enumerate() {
        let (fabric, _a, b) = connected(&Setup::default());
        let (mw, key) = call!(b.sim.alloc_mw(b.pd)).unwrap();
        // A region without bind access.
        let shut = call!(b.sim.reg_mr(b.pd, b.memory.start(), 8192, LOCAL)).unwrap().0;
        let (mr, rkey, address, len, access) = spoil(&b, shut, key);
        let operation = Operation::Bind { mw, rkey, mr, address, len, access };
        assert_eq!(status(&fabric, &b, operation, &[]), WcStatus::Bind, "case {case}");
        assert_eq!(b.state(), QpState::Error);
    }
    // A bound window cannot be bound again.
    let (fabric, _a, b) = connected(&Setup::default());
    let (mw, rkey) = mw(&fabric, &b, READ);
    let (mr, address) = (b.mr, b.address(0));
    let operation = Operation::Bind { mw, rkey, mr, address, len: 10, access: READ };
    assert_eq!(status(&fabric, &b, operation, &[]), WcStatus::Bind);
}
