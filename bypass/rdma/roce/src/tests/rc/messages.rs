//! Messages and their buffers.

use crate::tests::*;
use linerate_rdma_provider::WcOpcode;

#[test]
fn message_is_scattered_into_next_buffer() {
    let (fabric, a, b) = connected(&Setup::default());
    let sges = [b.sge(100, 2), b.sge(0, 0), b.sge(200, 10)];
    call!(b.sim.post_recv(b.qp, &[RecvWr { id: 5, sges: &sges }])).unwrap();
    a.memory.put(0, b"hello");
    a.memory.put(50, b"world");
    a.request(1, Operation::Send, &[a.sge(0, 5), a.sge(50, 5)], SIGNALLED);
    fabric.run();
    let received = b.poll()[0];
    assert_eq!((received.id, received.len, received.immediate), (5, 10, None));
    assert_eq!((b.memory.get(100, 3), b.memory.get(200, 9)), (b"he\0".to_vec(), b"lloworld\0".to_vec()));
    assert_eq!(a.ends(), [(1, WcStatus::Success)]);
}

#[test]
fn empty_message_uses_buffer() {
    let (fabric, a, b) = connected(&Setup::default());
    call!(b.sim.post_recv(b.qp, &[RecvWr { id: 5, sges: &[] }])).unwrap();
    a.request(1, Operation::Send, &[], SIGNALLED);
    fabric.run();
    assert_eq!((b.poll()[0].len, a.ends()), (0, vec![(1, WcStatus::Success)]));
}

#[test]
fn message_longer_than_buffer_breaks_both_ends() {
    let (fabric, a, b) = connected(&Setup::default());
    b.receive(5, 100, 4);
    b.receive(6, 200, 4);
    a.send(1, b"hello");
    a.send(2, b"again");
    fabric.run();
    assert_eq!(b.ends(), [(5, WcStatus::LocalLength), (6, WcStatus::Flushed)]);
    assert_eq!(a.ends(), [(1, WcStatus::RemoteInvalidRequest), (2, WcStatus::Flushed)]);
    assert_eq!((a.state(), b.state()), (QpState::Error, QpState::Error));
    assert_eq!(b.memory.get(104, 1), [0]);
}

#[test]
fn rnr_is_retried_as_agreed() {
    let setup = Setup { rnr_retries: 2, ..Setup::default() };
    let (fabric, a, b) = connected(&setup);
    a.send(1, b"hello");
    a.send(2, b"again");
    fabric.run();
    assert_eq!(a.ends(), [(1, WcStatus::RnrRetryExceeded), (2, WcStatus::Flushed)]);
    assert_eq!(fabric.not_ready(), 3, "one attempt and two retries");
    assert_eq!(b.state(), QpState::Rts, "the receiver is not affected");
}

/// Lets events occur until `count` messages have found no buffer.
fn until_not_ready(fabric: &Fabric, count: u64) {
    while fabric.not_ready() < count {
        assert!(fabric.step());
    }
}

#[test]
fn rnr_retries_may_be_unlimited() {
    let setup = Setup { rnr_retries: 7, ..Setup::default() };
    let (fabric, a, b) = connected(&setup);
    a.send(1, b"hello");
    fabric.run();
    assert_eq!(a.ends(), []);
    assert!(fabric.not_ready() > 0);
    b.receive(5, 100, 10);
    fabric.run();
    assert_eq!(a.ends(), [(1, WcStatus::Success)]);
    assert_eq!(b.ends(), [(5, WcStatus::Success)]);
}

#[test]
fn late_buffer_is_used_at_next_retry() {
    let (fabric, a, b) = connected(&Setup::default());
    a.send(1, b"hello");
    until_not_ready(&fabric, 1);
    b.receive(5, 100, 10);
    fabric.run();
    assert_eq!((a.ends(), fabric.not_ready()), (vec![(1, WcStatus::Success)], 1));
}

#[test]
fn rnr_retries_are_counted_per_message() {
    let (fabric, a, b) = connected(&Setup::default());
    for id in 0..4 {
        a.send(id, b"hello");
        until_not_ready(&fabric, id + 1);
        b.receive(id, 100, 10);
        fabric.run();
        assert_eq!(a.ends(), [(id, WcStatus::Success)]);
        b.poll();
    }
    assert_eq!(fabric.not_ready(), 4);
}

#[test]
fn only_write_with_immediate_uses_buffer() {
    let (fabric, a, b) = connected(&Setup::default());
    let (address, rkey) = (b.address(512), b.keys.remote);
    a.memory.put(0, b"hello");
    a.request(1, Operation::Write { address, rkey }, &[a.sge(0, 5)], SIGNALLED);
    fabric.run();
    assert_eq!((b.memory.get(512, 5), b.ends()), (b"hello".to_vec(), vec![]));
    b.receive(5, 100, 1);
    let operation = Operation::WriteImmediate { address: address + 10, rkey, immediate: 9 };
    a.request(2, operation, &[a.sge(0, 5)], SIGNALLED);
    fabric.run();
    let received = b.poll()[0];
    assert_eq!((received.opcode, received.id, received.len), (WcOpcode::ReceiveWrite, 5, 5));
    assert_eq!((received.immediate, b.memory.get(522, 5)), (Some(9), b"hello".to_vec()));
    assert_eq!(b.memory.get(100, 1), [0], "the buffer is not written");
    a.request(3, operation, &[a.sge(0, 5)], SIGNALLED);
    fabric.run();
    assert_eq!(a.ends()[2], (3, WcStatus::RnrRetryExceeded));
}

#[test]
fn packets_above_peer_mtu_are_invalid() {
    let mut setup = Setup::default();
    setup.devices[0].mtu = Mtu::Mtu4096;
    let (fabric, a, b) = apart(&setup);
    for (end, peer) in [(&a, &b), (&b, &a)] {
        end.modify_qp(End::init()).unwrap();
        let Transition::Rtr { qp, psn, responder_resources, min_rnr_timer, path, .. } = end.to_receive(peer, 1) else {
            panic!()
        };
        let mtu = end.sim.port(1).unwrap().mtu;
        let transition = Transition::Rtr { mtu, qp, psn, responder_resources, min_rnr_timer, path };
        end.modify_qp(transition).unwrap();
        end.modify_qp(end.to_send(1, 7)).unwrap();
    }
    (0..2).for_each(|id| b.receive(id, 0, 2000));
    a.request(1, Operation::Send, &[a.sge(0, 1024)], SIGNALLED);
    a.request(2, Operation::Send, &[a.sge(0, 1025)], SIGNALLED);
    fabric.run();
    assert_eq!(a.ends(), [(1, WcStatus::Success), (2, WcStatus::RemoteInvalidRequest)]);
    assert_eq!(b.events(), [AsyncEvent::QpRequestError(b.qp)]);
}
