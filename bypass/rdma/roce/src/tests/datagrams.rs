//! UD queue pairs.

use super::*;
use linerate_rdma_provider::{GRH_LEN, WcOpcode};

pub const KEY: u32 = 0x1234;

/// Returns two ends with UD queue pairs in `Reset` instead of RC ones.
fn ends(setup: &Setup) -> (Fabric, End, End) {
    let (fabric, mut a, mut b) = apart(setup);
    for end in [&mut a, &mut b] {
        let config = QpInitAttr { send_cq: end.cq, recv_cq: end.cq, srq: end.srq, cap: setup.cap };
        call!(end.sim.destroy_qp(end.qp)).unwrap();
        (end.qp, end.number, _) = call!(end.sim.create_ud_qp(end.pd, &config)).unwrap();
    }
    (fabric, a, b)
}

pub const INIT: Transition = Transition::InitUd { port: 1, partition: 0, key: KEY };
pub const SEND: Transition = Transition::RtsUd { psn: 7 };

/// Like [`ends`], in RTS.
pub fn ready(setup: &Setup) -> (Fabric, End, End) {
    let (fabric, a, b) = ends(setup);
    for end in [&a, &b] {
        [INIT, Transition::RtrUd, SEND].into_iter().for_each(|to| end.modify_qp(to).unwrap());
    }
    (fabric, a, b)
}

/// Returns the address vector between the ends' RoCE version 2 addresses.
pub fn ah_attr(from: &End, to: &End) -> AhAttr {
    let gid = |end: &End| *end.sim.gids(1).unwrap().iter().rfind(|gid| gid.kind == GidKind::RoceV2).unwrap();
    AhAttr::to(gid(to).raw, 0, &gid(from))
}

pub fn address(from: &End, to: &End) -> Handle {
    call!(from.sim.create_ah(from.pd, &ah_attr(from, to))).unwrap()
}

pub fn to(address: Handle, peer: &End) -> Operation {
    Operation::Datagram { address, qp: peer.number, key: KEY }
}

/// Sends bytes of the start of the memory.
pub fn send(end: &End, id: u64, operation: Operation, bytes: &[u8]) {
    end.memory.put(0, bytes);
    end.request(id, operation, &[end.sge(0, bytes.len())], SIGNALLED);
}

#[test]
fn datagram_follows_grh_and_names_sender() {
    let (fabric, a, b) = ready(&Setup::default());
    b.receive(5, 100, 200);
    send(&a, 1, to(address(&a, &b), &b), b"hello");
    fabric.run();
    let sent = a.poll()[0];
    assert_eq!((sent.id, sent.status, sent.opcode), (1, WcStatus::Success, WcOpcode::Send));
    let received = b.poll()[0];
    assert_eq!((received.id, received.status, received.opcode), (5, WcStatus::Success, WcOpcode::Receive));
    assert_eq!((received.len, received.qp), (45, b.number));
    assert_eq!(received.source, a.number);
    let buffer = b.memory.get(100, 46);
    assert_eq!(buffer[GRH_LEN..], *b"hello\0");
}

#[test]
fn ud_qp_has_its_own_transitions() {
    let (_fabric, a, b) = ends(&Setup::default());
    for connected in [End::init(), a.to_receive(&b, 1), a.to_send(1, 7), Transition::RtrUd, SEND] {
        assert_eq!(number(a.modify_qp(connected)), libc::EINVAL, "{connected:?}");
    }
    a.modify_qp(INIT).unwrap();
    a.modify_qp(INIT).unwrap();
    assert_eq!(number(a.modify_qp(SEND)), libc::EINVAL);
    a.modify_qp(Transition::RtrUd).unwrap();
    assert_eq!(number(a.modify_qp(Transition::RtsUd { psn: 1 << 24 })), libc::EINVAL);
    assert_eq!((number(a.modify_qp(INIT)), a.state()), (libc::EINVAL, QpState::Rtr));
    a.modify_qp(SEND).unwrap();
    assert_eq!(a.state(), QpState::Rts);
    a.modify_qp(Transition::Error).unwrap();
    a.modify_qp(Transition::Reset).unwrap();
    let elsewhere = Transition::InitUd { port: 2, partition: 0, key: KEY };
    assert_eq!(number(a.modify_qp(elsewhere)), libc::EINVAL);
    let (_fabric, connected, _) = apart(&Setup::default());
    assert_eq!(number(connected.modify_qp(INIT)), libc::EINVAL);
}

#[test]
fn ud_qps_send_datagrams_only() {
    let (_fabric, a, b) = ready(&Setup::default());
    let datagram = to(address(&a, &b), &b);
    let post = |end: &End, operation| end.post(&[SendWr { id: 1, sges: &[], operation, flags: SIGNALLED }]);
    let write = Operation::Write { address: 0, rkey: 0 };
    for operation in [Operation::Send, write, Operation::InvalidateLocal(1)] {
        assert_eq!(refused(post(&a, operation)), (0, libc::EINVAL), "{operation:?}");
    }
    post(&a, datagram).unwrap();
    a.modify_qp(Transition::Reset).unwrap();
    assert_eq!(refused(post(&a, datagram)), (0, libc::EINVAL), "not in RTS");

    let (_fabric, a, b) = connected(&Setup::default());
    assert_eq!(refused(post(&a, to(address(&a, &b), &b))), (0, libc::EINVAL));
    assert_eq!(refused(post(&a, to(a.pd, &b))), (0, libc::EINVAL));
}

#[test]
fn datagram_with_wrong_key_number_or_port_is_dropped() {
    let (fabric, a, b) = ready(&Setup::default());
    b.receive(5, 100, 200);
    let address_b = address(&a, &b);
    let qp = b.number;
    let elsewhere = AhAttr { gid: Ipv4Addr::new(10, 0, 0, 9).to_ipv6_mapped().octets(), ..ah_attr(&a, &b) };
    let nowhere = call!(a.sim.create_ah(a.pd, &elsewhere)).unwrap();
    send(&a, 1, Operation::Datagram { address: address_b, qp, key: KEY + 1 }, b"x");
    send(&a, 2, Operation::Datagram { address: address_b, qp: 0xf_ffff, key: KEY }, b"x");
    send(&a, 3, Operation::Datagram { address: nowhere, qp, key: KEY }, b"x");
    fabric.run();
    assert_eq!(a.ends(), [(1, WcStatus::Success), (2, WcStatus::Success), (3, WcStatus::Success)]);
    assert_eq!((b.ends(), b.state()), (vec![], QpState::Rts));
    send(&a, 4, Operation::Datagram { address: address_b, qp, key: 1 << 31 }, b"x");
    fabric.run();
    assert_eq!(b.ends(), [(5, WcStatus::Success)], "the sender's own key");
}

#[test]
fn rc_qp_receives_no_datagrams() {
    let (fabric, a, b) = ready(&Setup::default());
    let mut other = End::new(&fabric, "model2", DeviceConfig::roce([10, 0, 0, 3].into()), &Setup::default());
    other.another(&Setup::default());
    other.modify_qp(End::init()).unwrap();
    other.modify_qp(other.to_receive(&b, 1)).unwrap();
    other.receive(1, 0, 100);
    send(&a, 1, to(address(&a, &other), &other), b"x");
    fabric.run();
    assert_eq!(other.ends(), []);
}

#[test]
fn datagram_above_mtu_is_not_sent_without_error() {
    let (fabric, a, b) = ready(&Setup::default());
    (5..7).for_each(|id| b.receive(id, 2000, 2000));
    let operation = to(address(&a, &b), &b);
    a.request(1, operation, &[a.sge(0, 1000), a.sge(1000, 25)], SIGNALLED);
    a.request(2, operation, &[a.sge(0, 1000), a.sge(1000, 24)], SIGNALLED);
    fabric.run();
    assert_eq!(a.ends(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(b.poll().iter().map(|received| (received.id, received.len)).collect::<Vec<_>>(), [(5, 1064)]);
}

#[test]
fn datagram_without_fitting_buffer_is_dropped() {
    let (fabric, a, b) = ready(&Setup::default());
    let operation = to(address(&a, &b), &b);
    send(&a, 1, operation, b"early");
    fabric.run();
    b.receive(5, 100, 44);
    b.receive(6, 200, 45);
    send(&a, 2, operation, b"hello");
    send(&a, 3, operation, b"four");
    fabric.run();
    assert_eq!(a.ends(), [(1, WcStatus::Success), (2, WcStatus::Success), (3, WcStatus::Success)]);
    assert_eq!(b.ends(), [(5, WcStatus::Success)], "the short buffer is used for a fitting datagram");
    assert_eq!(b.memory.get(140, 4), b"four");
    assert_eq!(fabric.not_ready(), 0, "not reported");
}

#[test]
fn srq_loses_buffer_that_is_too_short() {
    let setup = Setup { srq: Some(SrqInitAttr { buffers: 4, sges: 1 }), ..Setup::default() };
    let (fabric, a, b) = ready(&setup);
    b.receive(5, 100, 44);
    b.receive(6, 200, 45);
    let operation = to(address(&a, &b), &b);
    send(&a, 1, operation, b"hello");
    send(&a, 2, operation, b"again");
    fabric.run();
    assert_eq!(b.ends(), [(5, WcStatus::RemoteInvalidRequest), (6, WcStatus::Success)]);
    assert_eq!(b.state(), QpState::Rts);
}

#[test]
fn protection_error_breaks_own_qp_only() {
    let (fabric, a, b) = ready(&Setup::default());
    let operation = to(address(&a, &b), &b);
    b.receive(5, 100, 200);
    a.request(1, operation, &[Sge { lkey: 0, ..a.sge(0, 4) }], SIGNALLED);
    a.request(2, operation, &[a.sge(0, 4)], SIGNALLED);
    fabric.run();
    assert_eq!(a.ends(), [(1, WcStatus::LocalProtection), (2, WcStatus::Flushed)]);
    assert_eq!((a.state(), b.state(), b.ends()), (QpState::Error, QpState::Rts, vec![]));

    let sges = [Sge { lkey: 0, ..b.sge(0, 100) }];
    call!(b.sim.post_recv(b.qp, &[RecvWr { id: 6, sges: &sges }])).unwrap();
    a.modify_qp(Transition::Reset).unwrap();
    [INIT, Transition::RtrUd, SEND].into_iter().for_each(|to| a.modify_qp(to).unwrap());
    send(&a, 3, operation, b"x");
    send(&a, 4, operation, b"x");
    fabric.run();
    assert_eq!(b.ends(), [(5, WcStatus::Success), (6, WcStatus::LocalProtection)]);
    assert_eq!(b.state(), QpState::Error);
}

#[test]
fn ah_of_another_pd_breaks_qp() {
    let (fabric, a, b) = ready(&Setup::default());
    let pd = a.sim.alloc_pd().unwrap();
    let address = call!(a.sim.create_ah(pd, &ah_attr(&a, &b))).unwrap();
    send(&a, 1, to(address, &b), b"x");
    fabric.run();
    assert_eq!((a.ends(), a.state()), (vec![(1, WcStatus::LocalQp)], QpState::Error));
}
