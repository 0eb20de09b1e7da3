//! Differences of iWARP.

use super::*;
use crate::tests::connecting::{Party, parties, server};
use linerate_rdma_provider::{CmEventKind, TransportKind};

fn setup() -> Setup {
    let mut setup = Setup::default();
    for device in &mut setup.devices {
        *device = DeviceConfig::iwarp(device.address);
    }
    setup
}

/// Connects two parties, whose queue pairs the connection moves to RTS.
fn connected(fabric: &Fabric, a: &Party, b: &Party) -> (Handle, Handle) {
    b.listen(7471);
    let own = a.resolved(fabric, server());
    a.modify_qp_by_cm(own, QpState::Init).unwrap();
    call!(a.end.sim.cm_connect(own, &a.parameters(b"please"))).unwrap();
    fabric.run();
    let request = b.only();
    b.modify_qp_by_cm(request.id, QpState::Init).unwrap();
    call!(b.end.sim.cm_accept(request.id, &b.parameters(b"welcome"))).unwrap();
    fabric.run();
    let established = a.only();
    assert_eq!((established.kind, &established.private_data.bytes()[..7]), (CmEventKind::Established, &b"welcome"[..]));
    fabric.run();
    assert_eq!(b.only().kind, CmEventKind::Established);
    for (party, id) in [(a, own), (b, request.id)] {
        assert_eq!(party.end.state(), QpState::Rts);
        party.modify_qp_by_cm(id, QpState::Rts).unwrap();
    }
    (own, request.id)
}

#[test]
fn connection_moves_qps_to_rts() {
    let (fabric, a, b) = parties(&setup());
    connected(&fabric, &a, &b);
    b.end.receive(1, 0, 8);
    a.end.receive(2, 0, 8);
    a.end.send(3, b"first");
    fabric.run();
    b.end.send(4, b"then");
    fabric.run();
    assert_eq!(a.end.ends(), [(3, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(b.end.ends(), [(1, WcStatus::Success), (4, WcStatus::Success)]);
}

#[test]
fn qp_must_be_in_init_to_connect() {
    let (fabric, a, b) = parties(&setup());
    b.listen(7471);
    let id = a.resolved(&fabric, server());
    assert_eq!(number(call!(a.end.sim.cm_connect(id, &a.parameters(b"")))), libc::EINVAL);
}

#[test]
fn initiator_sends_first() {
    let (fabric, a, b) = parties(&setup());
    connected(&fabric, &a, &b);
    a.end.receive(1, 0, 8);
    b.end.send(2, b"x");
    fabric.run();
    assert_eq!(b.end.events(), [AsyncEvent::QpFatal(b.end.qp)]);
    assert_eq!(b.end.ends(), [(2, WcStatus::Flushed)]);
    assert_eq!(a.kinds(), [CmEventKind::Disconnected]);
}

#[test]
fn connection_and_qp_end_together() {
    for by_pair in [false, true] {
        let (fabric, a, b) = parties(&setup());
        let (own, _) = connected(&fabric, &a, &b);
        b.end.receive(1, 0, 8);
        match by_pair {
            true => a.end.modify_qp(Transition::Error).unwrap(),
            false => call!(a.end.sim.cm_disconnect(own)).unwrap(),
        }
        fabric.run();
        assert_eq!(b.kinds(), [CmEventKind::Disconnected]);
        fabric.run();
        assert_eq!(a.kinds(), [CmEventKind::Disconnected, CmEventKind::TimeWaitExit]);
        assert_eq!((a.end.state(), b.end.state()), (QpState::Error, QpState::Error));
        assert_eq!(b.end.ends(), [(1, WcStatus::Flushed)]);
    }
}

#[test]
fn iwarp_has_no_immediate_no_windows_and_single_sge_reads() {
    let (fabric, a, b) = parties(&setup());
    connected(&fabric, &a, &b);
    assert_eq!(a.end.sim.limits().unwrap().transport, TransportKind::Iwarp);
    assert_eq!(number(call!(a.end.sim.alloc_mw(a.end.pd))), libc::EOPNOTSUPP);
    let sges = [a.end.sge(0, 1); 2];
    for operation in [
        Operation::WriteImmediate { address: 0, rkey: 0, immediate: 1 },
        Operation::SendImmediate(1),
        Operation::Read { address: 0, rkey: 0 },
    ] {
        let request = SendWr { id: 1, sges: &sges, operation, flags: SIGNALLED };
        assert_eq!(refused(a.end.post(&[request])), (0, libc::EINVAL));
    }
}

#[test]
fn read_destination_needs_remote_write_access() {
    for (access, status) in [(LOCAL, WcStatus::LocalProtection), (ALL, WcStatus::Success)] {
        let (fabric, a, b) = parties(&setup());
        connected(&fabric, &a, &b);
        let keys = call!(a.end.sim.reg_mr(a.end.pd, a.end.memory.start(), 8192, access)).unwrap().1;
        let sge = Sge { lkey: keys.local, ..a.end.sge(0, 8) };
        let operation = Operation::Read { address: b.end.address(0), rkey: b.end.keys.remote };
        a.end.request(1, operation, &[sge], SIGNALLED);
        fabric.run();
        assert_eq!(a.end.ends(), [(1, status)]);
    }
}

#[test]
fn message_without_buffer_ends_connection() {
    let (fabric, a, b) = parties(&setup());
    connected(&fabric, &a, &b);
    a.end.send(1, b"x");
    fabric.run();
    assert_ne!(a.end.ends()[0].1, WcStatus::Success);
    assert_eq!(b.kinds(), [CmEventKind::Disconnected]);
    assert_eq!(b.end.state(), QpState::Error);
}
