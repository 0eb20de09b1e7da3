//! Counts and faults of datagrams, and devices without them.

use super::super::{DatagramCounts, DatagramFaults, Mode};
use super::datagrams::{INIT, SEND, address, ah_attr, ready, send, to};
use super::*;

#[test]
fn datagrams_are_counted_by_result() {
    let (fabric, a, b) = ready(&Setup::default());
    let (address_b, qp) = (address(&a, &b), b.number);
    let Operation::Datagram { key, .. } = to(address_b, &b) else { panic!() };
    let elsewhere = AhAttr { gid: [9; 16], ..ah_attr(&a, &b) };
    let nowhere = call!(a.sim.create_ah(a.pd, &elsewhere)).unwrap();
    let mut other = End::new(&fabric, "model2", DeviceConfig::roce([10, 0, 0, 3].into()), &Setup::default());
    other.another(&Setup::default());
    other.modify_qp(End::init()).unwrap();
    other.modify_qp(other.to_receive(&b, 1)).unwrap();
    other.receive(1, 0, 100);
    let none = DatagramCounts { sent: 1, ..DatagramCounts::default() };
    let unknown = DatagramCounts { unknown: 1, ..none };
    let cases = [
        (0, to(address_b, &b), DatagramCounts { no_buffer: 1, ..none }),
        (44, to(address_b, &b), DatagramCounts { short_buffer: 1, ..none }),
        (45, to(address_b, &b), DatagramCounts { received: 1, ..none }),
        (200, Operation::Datagram { address: address_b, qp, key: key + 1 }, DatagramCounts { wrong_key: 1, ..none }),
        (200, Operation::Datagram { address: address_b, qp: 0xf_ffff, key }, unknown),
        (200, Operation::Datagram { address: nowhere, qp, key }, unknown),
        (200, to(address(&a, &other), &other), unknown),
    ];
    for (room, operation, expected) in cases {
        b.modify_qp(Transition::Reset).unwrap();
        [INIT, Transition::RtrUd, SEND].into_iter().for_each(|to| b.modify_qp(to).unwrap());
        if room > 0 {
            b.receive(5, 100, room);
        }
        let before = fabric.datagram_counts();
        send(&a, 1, operation, b"hello");
        fabric.run();
        let after = fabric.datagram_counts();
        let counted = DatagramCounts {
            sent: after.sent - before.sent,
            received: after.received - before.received,
            no_buffer: after.no_buffer - before.no_buffer,
            short_buffer: after.short_buffer - before.short_buffer,
            wrong_key: after.wrong_key - before.wrong_key,
            unknown: after.unknown - before.unknown,
            too_long: after.too_long - before.too_long,
            lost: after.lost - before.lost,
        };
        assert_eq!(counted, expected, "{operation:?}");
        a.ends();
    }
    a.request(1, to(address_b, &b), &[a.sge(0, 1000), a.sge(1000, 25)], SIGNALLED);
    fabric.run();
    assert_eq!(fabric.datagram_counts().too_long, 1);
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
    setup.fabric.mode = Mode::Auto;
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
