//! Device attributes, messages, events and completion status.

use crate::rig::{Rig, SIGNALLED, await_that, is_readable};
use linerate_rdma::provider::{
    AhAttr, AsyncEvent, Operation, PortState, Provider, QpState, RecvWr, SendFlags, SendWr, Transition, WcOpcode,
    WcStatus,
};
use std::process::Command;

#[test]
fn device_attributes_are_plausible() {
    let Some(rig) = Rig::open() else { return };
    let limits = rig.native.limits().unwrap();
    eprintln!("{limits:#?}");
    assert!(limits.ports > 0 && limits.qps > 0 && limits.qp_wrs > 0 && limits.sges > 0);
    for port in 1..=limits.ports {
        eprintln!("{:?}\n{:?}", rig.native.port(port).unwrap(), rig.native.gids(port).unwrap());
    }
    assert!(rig.native.port(limits.ports + 1).is_err());
    assert!(rig.native.has_connection_manager());
    // The device may have any name.
    let called = ["rxe", "siw"].into_iter().find(|driver| rig.native.name().starts_with(driver));
    assert!(called.is_none() || rig.native.emulated_by() == called);
    assert_eq!(rig.native.async_event().unwrap(), None);
}

#[test]
fn messages_arrive_in_posted_buffers() {
    let Some(rig) = Rig::open() else { return };
    let [one, other] = rig.qps();
    rig.fill(0..3000, 7);
    rig.receive(other, 10, 8192..12288);
    rig.receive(other, 11, 12288..16384);
    rig.send(one, 1, &[rig.sge(0..1000), rig.sge(1000..3000)], Operation::Send);
    rig.send(one, 2, &[rig.sge(0..5)], Operation::Send);
    let found = rig.completions(4);
    assert!(found.iter().all(|completion| completion.status == WcStatus::Success), "{found:?}");
    assert_eq!(
        found[..2].iter().map(|c| (c.id, c.opcode)).collect::<Vec<_>>(),
        [(1, WcOpcode::Send), (2, WcOpcode::Send)]
    );
    let received: Vec<_> = found[2..].iter().map(|c| (c.id, c.opcode, c.len, c.qp, c.immediate)).collect();
    let opcode = WcOpcode::Receive;
    let expected = [(10, opcode, 3000, other.number, None), (11, opcode, 5, other.number, None)];
    assert_eq!(received, expected);
    assert_eq!(rig.bytes(8192..11193), [vec![7; 3000], vec![0]].concat());
}

/// Inline data is copied at post, from unregistered memory.
#[test]
fn inline_data_is_copied_at_post() {
    let Some(rig) = Rig::open() else { return };
    let [one, other] = rig.qps();
    assert!(one.cap.inline >= 32);
    rig.receive(other, 10, 0..64);
    let mut text = *b"in line";
    let outside = linerate_rdma::provider::Sge { address: text.as_ptr().expose_provenance() as u64, len: 7, lkey: 0 };
    let flags = SendFlags::INLINE.with_signal(true);
    rig.post(one, &[SendWr { id: 1, sges: &[outside], operation: Operation::Send, flags }]).unwrap();
    text.fill(0);
    std::hint::black_box(&text);
    assert!(rig.completions(2).iter().all(|completion| completion.status == WcStatus::Success));
    assert_eq!(rig.bytes(0..8), b"in line\0");
}

/// Only the last request of a list longer than one chunk is signalled.
#[test]
fn list_is_sent_in_order() {
    let Some(rig) = Rig::open() else { return };
    let [one, other] = rig.qps();
    for round in 0..3_usize {
        for index in 0..70 {
            rig.fill(index * 16..index * 16 + 16, (round * 70 + index) as u8);
            rig.receive(other, 100 + index as u64, 4096 + index * 16..4096 + index * 16 + 16);
        }
        let sges: Vec<_> = (0..70).map(|index| [rig.sge(index * 16..index * 16 + 16)]).collect();
        let request = |(id, sges)| {
            let flags = SendFlags::UNSIGNALLED.with_signal(id == 69);
            SendWr { id: id as u64, sges, operation: Operation::Send, flags }
        };
        let requests: Vec<_> = sges.iter().map(|list| &list[..]).enumerate().map(request).collect();
        rig.post(one, &requests).unwrap();
        let found = rig.completions(71);
        assert!(found.iter().all(|completion| completion.status == WcStatus::Success), "{found:?}");
        assert_eq!(rig.bytes(0..1120), rig.bytes(4096..5216));
    }
    rig.post(one, &[]).unwrap();
}

#[test]
fn full_queue_reports_first_rejected_request() {
    let Some(rig) = Rig::open() else { return };
    let [one, _] = rig.qps();
    // The peer has no buffer, so that no request completes.
    let sges = [rig.sge(0..8)];
    let request = SendWr { id: 1, sges: &sges, operation: Operation::Send, flags: SIGNALLED };
    let error = rig.post(one, &[request; 200]).unwrap_err();
    assert!(error.at >= one.cap.sends as usize && error.at < 200, "{error}");
    assert_eq!(error.error.raw_os_error(), Some(libc::ENOMEM), "{error}");
    rig.modify_qp(one, &Transition::Error);
    assert!(rig.completions(error.at).iter().all(|completion| completion.status == WcStatus::Flushed));
}

#[test]
fn posted_requests_are_flushed_in_error_state() {
    let Some(rig) = Rig::open() else { return };
    let [one, _] = rig.qps();
    for id in 0..16 {
        rig.receive(one, id, 0..64);
    }
    rig.modify_qp(one, &Transition::Error);
    let found = rig.completions(16);
    assert!(found.iter().all(|c| c.status == WcStatus::Flushed && c.qp == one.number), "{found:?}");
    // SAFETY: the queue pair is live.
    let attributes = unsafe { rig.native.query_qp(one.handle) }.unwrap();
    assert_eq!(attributes.state, QpState::Error);
    rig.modify_qp(one, &Transition::Reset);
    // SAFETY: as above.
    assert_eq!(unsafe { rig.native.query_qp(one.handle) }.unwrap().state, QpState::Reset);
}

#[test]
fn requested_notification_generates_event() {
    let Some(rig) = Rig::open() else { return };
    let [one, other] = rig.qps();
    let (channel, descriptor) = rig.channel;
    // SAFETY: the channel and the queue are live.
    let event = || unsafe { rig.native.get_cq_event(channel) }.unwrap();
    assert!(!event() && !is_readable(descriptor));
    // SAFETY: as above.
    unsafe { rig.native.req_notify_cq(rig.cq) }.unwrap();
    rig.receive(other, 10, 0..64);
    rig.send(one, 1, &[rig.sge(64..70)], Operation::Send);
    await_that("an event", || is_readable(descriptor).then_some(()));
    assert!(event() && !event());
    rig.completions(2);
}

#[test]
fn srq_is_shared() {
    let Some(rig) = Rig::open() else { return };
    let srq = rig.srq(8);
    let (servers, clients) = ([(); 2].map(|()| rig.qp(Some(srq))), [(); 2].map(|()| rig.qp(None)));
    for (server, client) in servers.into_iter().zip(clients) {
        rig.connect([server, client]);
    }
    let sges: Vec<_> = (0..4).map(|index| [rig.sge(4096 + index * 64..4160 + index * 64)]).collect();
    let buffers = |(id, list)| RecvWr { id: 10 + id as u64, sges: list };
    let buffers: Vec<_> = sges.iter().map(|list| &list[..]).enumerate().map(buffers).collect();
    // SAFETY: the shared receive queue is live; the region outlives it.
    unsafe { rig.native.post_srq_recv(srq, &buffers) }.unwrap();
    rig.fill(0..64, 1);
    for (id, client) in clients.into_iter().enumerate() {
        rig.send(client, id as u64, &[rig.sge(0..64)], Operation::Send);
        let found = rig.completions(2);
        assert!(found.iter().all(|completion| completion.status == WcStatus::Success), "{found:?}");
        assert_eq!((found[1].id, found[1].qp), (10 + id as u64, servers[id].number));
    }
    assert_eq!(rig.bytes(4096..4224), [1; 128]);
}

/// Runs only with `LINERATE_RDMA_LINK`, the network interface of the device, which the test takes down and up.
#[test]
fn port_state_changes_are_reported() {
    let Some(rig) = Rig::open() else { return };
    let Ok(interface) = std::env::var("LINERATE_RDMA_LINK") else {
        eprintln!("skipped: LINERATE_RDMA_LINK names no interface to take down");
        return;
    };
    for (how, state, expected) in
        [("down", PortState::Down, AsyncEvent::PortError(1)), ("up", PortState::Active, AsyncEvent::PortActive(1))]
    {
        let done = Command::new("ip").args(["link", "set", "dev", &interface, how]).status().unwrap();
        assert!(done.success());
        // The device may report GID changes before.
        await_that("the port's event", || (rig.native.async_event().unwrap() == Some(expected)).then_some(()));
        assert_eq!(rig.native.port(1).unwrap().state, state);
    }
}

#[test]
fn ah_of_own_port_is_created() {
    let Some(rig) = Rig::open() else { return };
    // SAFETY: the domain is live, and the address handle is destroyed once.
    let (made, destroyed) = unsafe {
        let made = rig.native.create_ah(rig.pd, &AhAttr::to(rig.gid.raw, 0, &rig.gid)).unwrap();
        (made, rig.native.destroy_ah(made))
    };
    assert!(destroyed.is_ok(), "{made:?}: {destroyed:?}");
    let nowhere = AhAttr { port: 9, ..AhAttr::to(rig.gid.raw, 0, &rig.gid) };
    // SAFETY: the domain is live.
    let refused = unsafe { rig.native.create_ah(rig.pd, &nowhere) };
    assert!(refused.is_err(), "{refused:?}");
}
