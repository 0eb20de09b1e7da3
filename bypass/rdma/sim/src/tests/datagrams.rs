//! UD queue pairs.

use super::super::{DatagramCounts, DatagramFaults};
use super::*;
use linerate_rdma_provider::{GRH_LEN, WcOpcode};

const KEY: u32 = 0x1234;

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

const INIT: Transition = Transition::InitUd { port: 1, partition: 0, key: KEY };
const SEND: Transition = Transition::RtsUd { psn: 7 };

/// Like [`ends`], in RTS.
fn ready(setup: &Setup) -> (Fabric, End, End) {
    let (fabric, a, b) = ends(setup);
    for end in [&a, &b] {
        [INIT, Transition::RtrUd, SEND].into_iter().for_each(|to| end.modify_qp(to).unwrap());
    }
    (fabric, a, b)
}

/// Returns the address vector between the ends' RoCE version 2 addresses.
fn ah_attr(from: &End, to: &End) -> AhAttr {
    let gid = |end: &End| *end.sim.gids(1).unwrap().iter().rfind(|gid| gid.kind == GidKind::RoceV2).unwrap();
    AhAttr::to(gid(to).raw, 0, &gid(from))
}

fn address(from: &End, to: &End) -> Handle {
    call!(from.sim.create_ah(from.pd, &ah_attr(from, to))).unwrap()
}

fn to(address: Handle, peer: &End) -> Operation {
    Operation::Datagram { address, qp: peer.number, key: KEY }
}

/// Sends bytes of the start of the memory.
fn send(end: &End, id: u64, operation: Operation, bytes: &[u8]) {
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
    let expected = DatagramCounts { sent: 1, received: 1, ..DatagramCounts::default() };
    assert_eq!(fabric.datagram_counts(), expected);
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
    let elsewhere = AhAttr { gid: [9; 16], ..ah_attr(&a, &b) };
    let nowhere = call!(a.sim.create_ah(a.pd, &elsewhere)).unwrap();
    send(&a, 1, Operation::Datagram { address: address_b, qp, key: KEY + 1 }, b"x");
    send(&a, 2, Operation::Datagram { address: address_b, qp: 0xf_ffff, key: KEY }, b"x");
    send(&a, 3, Operation::Datagram { address: nowhere, qp, key: KEY }, b"x");
    fabric.run();
    assert_eq!(a.ends(), [(1, WcStatus::Success), (2, WcStatus::Success), (3, WcStatus::Success)]);
    assert_eq!((b.ends(), b.state()), (vec![], QpState::Rts));
    let expected = DatagramCounts { sent: 3, wrong_key: 1, unknown: 2, ..DatagramCounts::default() };
    assert_eq!(fabric.datagram_counts(), expected);
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
    assert_eq!((other.ends(), fabric.datagram_counts().unknown), (vec![], 1));
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
    assert_eq!(fabric.datagram_counts().too_long, 1);
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
    let counts = fabric.datagram_counts();
    assert_eq!((counts.no_buffer, counts.short_buffer, counts.received), (1, 1, 1));
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

#[test]
fn injected_request_failure_occurs() {
    let (fabric, a, b) = ready(&Setup::default());
    fabric.fail_request(a.number, 1, WcStatus::LocalQp);
    let operation = to(address(&a, &b), &b);
    (0..3).for_each(|id| send(&a, id, operation, b"x"));
    fabric.run();
    assert_eq!(a.ends(), [(0, WcStatus::Success), (1, WcStatus::LocalQp), (2, WcStatus::Flushed)]);
}

/// Returns the first bytes that `b` received of 200 datagrams, with faults.
fn received(seed: u64, faults: DatagramFaults) -> Vec<u8> {
    let mut setup = Setup::default();
    setup.fabric.seed = seed;
    let (fabric, a, b) = ready(&setup);
    fabric.set_datagram_faults(faults);
    let operation = to(address(&a, &b), &b);
    let mut order = Vec::new();
    for round in 0..50 {
        (0..4).for_each(|id| b.receive(id, 1000 + 100 * id as usize, 100));
        for index in 0..4 {
            a.memory.put(index * 8, &[(round * 4 + index) as u8]);
            a.request(index as u64, operation, &[a.sge(index * 8, 1)], SIGNALLED);
        }
        fabric.run();
        assert_eq!(a.ends().len(), 4);
        let found = b.ends().into_iter().map(|(id, _)| b.memory.get(1040 + 100 * id as usize, 1)[0]);
        order.extend(found);
        b.modify_qp(Transition::Reset).unwrap();
        [INIT, Transition::RtrUd, SEND].into_iter().for_each(|to| b.modify_qp(to).unwrap());
    }
    assert_eq!(fabric.datagram_counts().received, order.len() as u64);
    assert_eq!(fabric.datagram_counts().lost, 200 - order.len() as u64);
    order
}

#[test]
fn datagrams_are_lost_and_reordered_but_not_duplicated() {
    let all: Vec<u8> = (0..200).collect();
    assert_eq!(received(1, DatagramFaults::default()), all);
    let lost = received(1, DatagramFaults { lost_percent: 30, ..DatagramFaults::default() });
    assert!((100..180).contains(&lost.len()) && lost.is_sorted(), "{lost:?}");
    let late = received(1, DatagramFaults { delay_steps: 20, ..DatagramFaults::default() });
    assert!(!late.is_sorted());
    let mut sorted = late.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, all);
    let both = DatagramFaults { lost_percent: 30, delay_steps: 20 };
    assert_eq!(received(5, both), received(5, both), "reproducible by seed");
    assert_ne!(received(5, both), received(6, both));
}

#[test]
fn down_port_drops_datagrams() {
    for end in 0..2 {
        let (fabric, a, b) = ready(&Setup::default());
        b.receive(5, 100, 100);
        fabric.port_down(&[&a, &b][end].sim);
        let operation = to(address(&a, &b), &b);
        send(&a, 1, operation, b"x");
        fabric.run();
        assert_eq!((a.ends(), b.ends()), (vec![(1, WcStatus::Success)], vec![]));
        assert_eq!(fabric.datagram_counts().lost, 1);
    }
}

#[test]
fn calls_deliver_datagrams_in_auto_mode() {
    let mut setup = Setup::default();
    setup.fabric.mode = super::super::Mode::Auto;
    let (fabric, a, b) = ready(&setup);
    b.receive(5, 100, 100);
    let operation = to(address(&a, &b), &b);
    send(&a, 1, operation, b"x");
    assert_eq!(b.ends(), [(5, WcStatus::Success)]);
    fabric.set_datagram_faults(DatagramFaults { delay_steps: 50, ..DatagramFaults::default() });
    b.receive(6, 100, 100);
    send(&a, 2, operation, b"x");
    let provider = (0..60).take_while(|_| b.ends().is_empty()).count();
    assert!((1..60).contains(&provider), "{provider}");
}

#[test]
fn iwarp_has_no_ud_qps() {
    let mut setup = Setup::default();
    setup.devices[0] = DeviceConfig::iwarp([10, 0, 0, 1].into());
    let (_fabric, a, _b) = apart(&setup);
    let config = QpInitAttr { send_cq: a.cq, recv_cq: a.cq, srq: None, cap: setup.cap };
    assert_eq!(number(call!(a.sim.create_ud_qp(a.pd, &config))), libc::EOPNOTSUPP);
}
