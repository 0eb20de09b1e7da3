//! What is different over iWARP.

use super::connecting::{Party, parties, server};
use super::*;
use crate::calls::{CmEventKind, TransportKind};

fn setup() -> Setup {
    let mut setup = Setup::default();
    for device in &mut setup.devices {
        *device = DeviceConfig::iwarp(device.address);
    }
    setup
}

/// The identifiers of two parties whose queue pairs the connection has made ready.
fn connected(fabric: &Fabric, a: &Party, b: &Party) -> (Handle, Handle) {
    b.listen(7471);
    let ours = a.resolved(fabric, server());
    a.modify_by(ours, QueuePairState::Init).unwrap();
    call!(a.end.model.cm_connect(ours, &a.parameters(b"please"))).unwrap();
    fabric.run();
    let request = b.only();
    assert_eq!(request.private.bytes(), b"please", "not filled with zeros");
    b.modify_by(request.id, QueuePairState::Init).unwrap();
    call!(b.end.model.cm_accept(request.id, &b.parameters(b"welcome"))).unwrap();
    fabric.run();
    let established = a.only();
    assert_eq!((established.kind, established.private.bytes()), (CmEventKind::Established, &b"welcome"[..]));
    assert_eq!(b.only().kind, CmEventKind::Established);
    for (party, id) in [(a, ours), (b, request.id)] {
        assert_eq!(party.end.state(), QueuePairState::ReadyToSend);
        party.modify_by(id, QueuePairState::ReadyToSend).unwrap();
    }
    (ours, request.id)
}

#[test]
fn a_connection_makes_its_queue_pairs_ready() {
    let (fabric, a, b) = parties(&setup());
    connected(&fabric, &a, &b);
    b.end.receive(1, 0, 8);
    a.end.receive(2, 0, 8);
    a.end.send(3, b"first");
    fabric.run();
    b.end.send(4, b"then");
    fabric.run();
    assert_eq!(a.end.ends(), [(3, Status::Success), (2, Status::Success)]);
    assert_eq!(b.end.ends(), [(1, Status::Success), (4, Status::Success)]);
}

#[test]
fn a_queue_pair_that_is_not_in_init_cannot_be_connected() {
    let (fabric, a, b) = parties(&setup());
    b.listen(7471);
    let id = a.resolved(&fabric, server());
    assert_eq!(number(call!(a.end.model.cm_connect(id, &a.parameters(b"")))), libc::EINVAL);
}

#[test]
fn who_asked_for_the_connection_sends_first() {
    let (fabric, a, b) = parties(&setup());
    connected(&fabric, &a, &b);
    a.end.receive(1, 0, 8);
    b.end.send(2, b"x");
    fabric.run();
    assert_eq!(b.end.events(), [AsyncEvent::PairFatal(b.end.pair)]);
    assert_eq!(b.end.ends(), [(2, Status::Flushed)]);
    assert_eq!(a.kinds(), [CmEventKind::Disconnected, CmEventKind::TimeWaitExit]);
}

#[test]
fn a_connection_ends_with_its_queue_pair_and_the_other_way_round() {
    for by_pair in [false, true] {
        let (fabric, a, b) = parties(&setup());
        let (ours, _) = connected(&fabric, &a, &b);
        b.end.receive(1, 0, 8);
        match by_pair {
            true => a.end.modify(Transition::Error).unwrap(),
            false => call!(a.end.model.cm_disconnect(ours)).unwrap(),
        }
        fabric.run();
        assert_eq!(a.kinds(), [CmEventKind::Disconnected, CmEventKind::TimeWaitExit]);
        assert_eq!(b.kinds(), [CmEventKind::Disconnected, CmEventKind::TimeWaitExit]);
        assert_eq!((a.end.state(), b.end.state()), (QueuePairState::Error, QueuePairState::Error));
        assert_eq!(b.end.ends(), [(1, Status::Flushed)]);
    }
}

#[test]
fn there_is_no_immediate_no_window_and_one_segment_of_a_read() {
    let (fabric, a, b) = parties(&setup());
    connected(&fabric, &a, &b);
    assert_eq!(a.end.model.limits().unwrap().transport, TransportKind::Iwarp);
    assert_eq!(number(call!(a.end.model.alloc_window(a.end.domain))), libc::EOPNOTSUPP);
    let segments = [a.end.segment(0, 1); 2];
    for operation in [
        Operation::SendImmediate(1),
        Operation::WriteImmediate { address: 0, remote_key: 0, immediate: 1 },
        Operation::Read { address: 0, remote_key: 0 },
    ] {
        let request = SendRequest { id: 1, segments: &segments, operation, flags: SIGNALLED };
        assert_eq!(refused(a.end.post(&[request])), (0, libc::EINVAL));
    }
}

#[test]
fn what_a_read_fills_must_be_open_to_writes_of_peers() {
    for (access, status) in [(LOCAL, Status::LocalProtection), (ALL, Status::Success)] {
        let (fabric, a, b) = parties(&setup());
        connected(&fabric, &a, &b);
        let keys = call!(a.end.model.register(a.end.domain, a.end.memory.start(), 8192, access)).unwrap().1;
        let segment = Segment { local_key: keys.local, ..a.end.segment(0, 8) };
        let operation = Operation::Read { address: b.end.address(0), remote_key: b.end.keys.remote };
        a.end.request(1, operation, &[segment], SIGNALLED);
        fabric.run();
        assert_eq!(a.end.ends(), [(1, status)]);
    }
}

#[test]
fn a_message_without_a_buffer_ends_the_connection() {
    let (fabric, a, b) = parties(&setup());
    connected(&fabric, &a, &b);
    a.end.send(1, b"x");
    fabric.run();
    assert_ne!(a.end.ends()[0].1, Status::Success);
    assert_eq!(b.end.state(), QueuePairState::Error);
    assert_eq!(b.kinds(), [CmEventKind::Disconnected, CmEventKind::TimeWaitExit]);
}
