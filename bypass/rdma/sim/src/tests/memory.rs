//! Regions, windows, and what keys open.

use super::*;

/// Has `a` execute a request, and returns its status.
fn status(fabric: &Fabric, a: &End, operation: Operation, segments: &[Segment]) -> Status {
    a.request(1, operation, segments, SIGNALLED);
    fabric.run();
    a.poll().pop().unwrap().status
}

#[test]
fn segments_lie_in_regions_of_the_domain() {
    let other = |a: &End| {
        let domain = a.model.alloc_domain().unwrap();
        call!(a.model.register(domain, a.memory.start(), 8192, ALL)).unwrap().1.local
    };
    type Spoil = fn(Segment, u32) -> Segment;
    let spoils: [Spoil; 5] = [
        |segment, _| Segment { local_key: segment.local_key ^ 1, ..segment },
        |segment, other| Segment { local_key: other, ..segment },
        |segment, _| Segment { address: segment.address - 1, ..segment },
        |segment, _| Segment { address: segment.address + 8190, ..segment },
        |segment, _| Segment { address: u64::MAX - 2, ..segment },
    ];
    for spoil in spoils {
        let (fabric, a, b) = connected(&Setup::default());
        let segment = spoil(a.segment(0, 10), other(&a));
        b.receive(5, 0, 10);
        b.receive(6, 0, 10);
        assert_eq!(status(&fabric, &a, Operation::Send, &[segment]), Status::LocalProtection);
        assert_eq!((a.state(), b.state()), (QueuePairState::Error, QueuePairState::ReadyToSend));
        // The same where a message is received.
        let (fabric, a, b) = connected(&Setup::default());
        let segment = spoil(b.segment(0, 10), other(&b));
        call!(b.model.post_receive(b.pair, &[ReceiveRequest { id: 5, segments: &[segment] }])).unwrap();
        b.receive(6, 0, 10);
        assert_eq!(status(&fabric, &a, Operation::Send, &[a.segment(0, 10)]), Status::RemoteOperation);
        assert_eq!(b.ends(), [(5, Status::LocalProtection), (6, Status::Flushed)]);
        // And where a READ's bytes go.
        let (fabric, a, b) = connected(&Setup::default());
        let segment = spoil(a.segment(0, 10), other(&a));
        let read = Operation::Read { address: b.address(0), remote_key: b.keys.remote };
        assert_eq!(status(&fabric, &a, read, &[segment]), Status::LocalProtection);
    }
}

#[test]
fn what_only_may_be_read_is_not_written() {
    let (fabric, a, b) = connected(&Setup::default());
    let constant = call!(b.model.register(b.domain, b.memory.start(), 8192, Access::default())).unwrap().1;
    let segment = Segment { local_key: constant.local, ..b.segment(0, 10) };
    call!(b.model.post_receive(b.pair, &[ReceiveRequest { id: 5, segments: &[segment] }])).unwrap();
    assert_eq!(status(&fabric, &a, Operation::Send, &[a.segment(0, 10)]), Status::RemoteOperation);
    assert_eq!(b.ends(), [(5, Status::LocalProtection)]);
    let (fabric, a, b) = connected(&Setup::default());
    let constant = call!(a.model.register(a.domain, a.memory.start(), 8192, Access::default())).unwrap().1;
    b.receive(5, 0, 10);
    let segment = Segment { local_key: constant.local, ..a.segment(0, 10) };
    assert_eq!(status(&fabric, &a, Operation::Send, &[segment]), Status::Success, "sending reads it");
    assert_eq!(b.ends(), [(5, Status::Success)]);
}

/// The operations of the peer's on `len` bytes at `at` of our memory, by a key.
fn remote(b: &End, at: i64, remote_key: u32) -> [Operation; 2] {
    let address = b.address(0).wrapping_add_signed(at);
    [Operation::Write { address, remote_key }, Operation::Read { address, remote_key }]
}

fn denied(fabric: &Fabric, a: &End, b: &End, operation: Operation) {
    b.receive(5, 0, 10);
    a.receive(6, 0, 10);
    let before = b.memory.get(0, 8192);
    a.request(1, operation, &[a.segment(0, 10)], SIGNALLED);
    a.request(2, Operation::Send, &[], SILENT);
    fabric.run();
    let mut ends = a.ends();
    ends.sort_by_key(|&(id, _)| id);
    assert_eq!(ends, [(1, Status::RemoteAccess), (2, Status::Flushed), (6, Status::Flushed)], "{operation:?}");
    assert_eq!(b.ends(), [(5, Status::Flushed)]);
    assert_eq!((a.state(), b.state()), (QueuePairState::Error, QueuePairState::Error));
    assert_eq!((a.events(), b.events()), (vec![], vec![AsyncEvent::PairAccess(b.pair)]));
    assert_eq!(b.memory.get(0, 8192), before);
}

#[test]
fn peers_get_no_further_than_a_region_permits() {
    let new = || connected(&Setup::default());
    for which in 0..2 {
        for at in [-1, 8183, i64::MAX, i64::MIN] {
            let (fabric, a, b) = new();
            denied(&fabric, &a, &b, remote(&b, at, b.keys.remote)[which]);
        }
        let (fabric, a, b) = new();
        denied(&fabric, &a, &b, remote(&b, 0, b.keys.remote ^ 1)[which]);
        let (fabric, a, b) = new();
        let gone = call!(b.model.register(b.domain, b.memory.start(), 8192, ALL)).unwrap();
        call!(b.model.deregister(gone.0)).unwrap();
        denied(&fabric, &a, &b, remote(&b, 0, gone.1.remote)[which]);
        let (fabric, a, b) = new();
        let private = call!(b.model.register(b.domain, b.memory.start(), 8192, LOCAL)).unwrap().1;
        denied(&fabric, &a, &b, remote(&b, 0, private.remote)[which]);
        let (fabric, a, b) = new();
        let domain = b.model.alloc_domain().unwrap();
        let foreign = call!(b.model.register(domain, b.memory.start(), 8192, ALL)).unwrap().1;
        denied(&fabric, &a, &b, remote(&b, 0, foreign.remote)[which]);
    }
    let (fabric, a, b) = new();
    let readable = Access { remote_read: true, ..LOCAL };
    let keys = call!(b.model.register(b.domain, b.memory.start(), 8192, readable)).unwrap().1;
    assert_eq!(status(&fabric, &a, remote(&b, 8182, keys.remote)[1], &[a.segment(0, 10)]), Status::Success);
    denied(&fabric, &a, &b, remote(&b, 0, keys.remote)[0]);
}

#[test]
fn the_key_of_no_bytes_does_not_matter() {
    let (fabric, a, b) = connected(&Setup::default());
    for operation in remote(&b, 0, 1) {
        assert_eq!(status(&fabric, &a, operation, &[]), Status::Success);
    }
}

#[test]
fn a_queue_pair_that_permits_nothing_takes_such_requests_for_invalid() {
    for which in 0..2 {
        let setup = Setup::default();
        let (fabric, a, b) = connected(&setup);
        b.modify(Transition::Reset).unwrap();
        b.modify(Transition::Init { port: 1, partition: 0, access: Access::default() }).unwrap();
        b.modify(b.to_receive(&a, 4)).unwrap();
        let operation = remote(&b, 0, b.keys.remote)[which];
        assert_eq!(status(&fabric, &a, operation, &[a.segment(0, 10)]), Status::RemoteInvalidRequest);
        let events = b.events();
        assert!(events.contains(&AsyncEvent::PairRequest(b.pair)), "{events:?}");
    }
}

/// A window that `b` opens on 100 bytes of its region at 1 000, with its key.
fn window(fabric: &Fabric, b: &End, access: Access) -> (Handle, u32) {
    let (window, key) = call!(b.model.alloc_window(b.domain)).unwrap();
    let remote_key = (key & !0xff) | (key.wrapping_add(1) & 0xff);
    let (region, address) = (b.region, b.address(1000));
    let operation = Operation::Bind { window, remote_key, region, address, len: 100, access };
    assert_eq!(status(fabric, b, operation, &[]), Status::Success);
    (window, remote_key)
}

const READ: Access =
    Access { local_write: false, remote_read: true, remote_write: false, remote_atomic: false, bind: false };

#[test]
fn a_window_opens_what_it_was_bound_to() {
    let new = || {
        let (fabric, a, b) = connected(&Setup::default());
        let (_, key) = window(&fabric, &b, READ);
        (fabric, a, b, key)
    };
    let (fabric, a, b, key) = new();
    b.memory.put(1090, b"0123456789");
    assert_eq!(status(&fabric, &a, remote(&b, 1090, key)[1], &[a.segment(0, 10)]), Status::Success);
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
fn a_window_is_shut_by_its_owner_by_the_peer_and_with_it() {
    let (fabric, a, b) = connected(&Setup::default());
    let (_, key) = window(&fabric, &b, READ);
    assert_eq!(status(&fabric, &b, Operation::InvalidateLocal(key), &[]), Status::Success);
    denied(&fabric, &a, &b, remote(&b, 1000, key)[1]);

    let (fabric, a, b) = connected(&Setup::default());
    let (_, key) = window(&fabric, &b, READ);
    b.receive(5, 0, 10);
    assert_eq!(status(&fabric, &a, Operation::SendInvalidate(key), &[a.segment(0, 3)]), Status::Success);
    let received = b.poll()[0];
    assert_eq!((received.invalidated, received.len), (Some(key), 3));
    denied(&fabric, &a, &b, remote(&b, 1000, key)[1]);

    let (fabric, a, b) = connected(&Setup::default());
    let (window, key) = window(&fabric, &b, READ);
    call!(b.model.dealloc_window(window)).unwrap();
    denied(&fabric, &a, &b, remote(&b, 1000, key)[1]);
}

#[test]
fn a_window_that_was_shut_can_be_bound_again() {
    let (fabric, a, b) = connected(&Setup::default());
    let (window, key) = window(&fabric, &b, READ);
    assert_eq!(status(&fabric, &b, Operation::InvalidateLocal(key), &[]), Status::Success);
    let remote_key = key ^ 0x80;
    let bind = Operation::Bind { window, remote_key, region: b.region, address: b.address(0), len: 10, access: READ };
    assert_eq!(status(&fabric, &b, bind, &[]), Status::Success);
    assert_eq!(status(&fabric, &a, remote(&b, 0, remote_key)[1], &[a.segment(0, 10)]), Status::Success);
    denied(&fabric, &a, &b, remote(&b, 0, key)[1]);
}

#[test]
fn a_key_that_is_no_windows_cannot_be_made_invalid() {
    let (fabric, _a, b) = connected(&Setup::default());
    assert_eq!(status(&fabric, &b, Operation::InvalidateLocal(b.keys.remote), &[]), Status::LocalQueuePair);
    assert_eq!(b.state(), QueuePairState::Error);
    let (fabric, a, b) = connected(&Setup::default());
    b.receive(5, 0, 10);
    let operation = Operation::SendInvalidate(b.keys.remote);
    assert_eq!(status(&fabric, &a, operation, &[]), Status::RemoteAccess);
    assert_eq!(b.ends(), [(5, Status::LocalAccess)]);
}

#[test]
fn a_window_is_for_the_queue_pair_it_was_bound_on() {
    let setup = Setup::default();
    let (fabric, mut a, mut b) = connected(&setup);
    let (_, key) = window(&fabric, &b, READ);
    a.another(&setup);
    b.another(&setup);
    join(&a, &b, &setup);
    assert_eq!(status(&fabric, &b, Operation::InvalidateLocal(key), &[]), Status::LocalQueuePair);
    a.another(&setup);
    b.another(&setup);
    join(&a, &b, &setup);
    denied(&fabric, &a, &b, remote(&b, 1000, key)[1]);
}

#[test]
fn a_region_with_a_window_on_it_is_busy() {
    let (fabric, _a, b) = connected(&Setup::default());
    let (_, key) = window(&fabric, &b, READ);
    assert_eq!(number(call!(b.model.deregister(b.region))), libc::EBUSY);
    assert_eq!(status(&fabric, &b, Operation::InvalidateLocal(key), &[]), Status::Success);
    call!(b.model.deregister(b.region)).unwrap();
}

#[test]
fn a_queue_pair_with_a_window_on_it_is_busy() {
    let (fabric, _a, b) = connected(&Setup::default());
    let (window, _) = window(&fabric, &b, READ);
    assert_eq!(number(call!(b.model.destroy_pair(b.pair))), libc::EBUSY);
    call!(b.model.dealloc_window(window)).unwrap();
    call!(b.model.destroy_pair(b.pair)).unwrap();
    call!(b.model.deregister(b.region)).unwrap();
}

#[test]
fn what_cannot_be_bound_fails_the_queue_pair() {
    type Spoil = fn(&End, Handle, u32) -> (Handle, u32, u64, u64, Access);
    let spoils: [Spoil; 7] = [
        |b, _, key| (b.region, key.wrapping_add(0x100), b.address(0), 10, READ),
        |b, _, key| (b.region, key, b.address(0) - 1, 10, READ),
        |b, _, key| (b.region, key, b.address(8190), 10, READ),
        |b, _, key| (b.region, key, b.address(0), 0, READ),
        |b, shut, key| (shut, key, b.address(0), 10, READ),
        |b, _, key| (b.region, key, u64::MAX - 2, 10, READ),
        |b, _, key| {
            let domain = b.model.alloc_domain().unwrap();
            let foreign = call!(b.model.register(domain, b.memory.start(), 8192, ALL)).unwrap().0;
            (foreign, key, b.address(0), 10, READ)
        },
    ];
    for (case, spoil) in spoils.iter().enumerate() {
        let (fabric, _a, b) = connected(&Setup::default());
        let (window, key) = call!(b.model.alloc_window(b.domain)).unwrap();
        // One that windows may not be bound to.
        let shut = call!(b.model.register(b.domain, b.memory.start(), 8192, LOCAL)).unwrap().0;
        let (region, remote_key, address, len, access) = spoil(&b, shut, key);
        let operation = Operation::Bind { window, remote_key, region, address, len, access };
        assert_eq!(status(&fabric, &b, operation, &[]), Status::Bind, "case {case}");
        assert_eq!(b.state(), QueuePairState::Error);
    }
    // A window that is bound is not bound again.
    let (fabric, _a, b) = connected(&Setup::default());
    let (window, remote_key) = window(&fabric, &b, READ);
    let (region, address) = (b.region, b.address(0));
    let operation = Operation::Bind { window, remote_key, region, address, len: 10, access: READ };
    assert_eq!(status(&fabric, &b, operation, &[]), Status::Bind);
}
