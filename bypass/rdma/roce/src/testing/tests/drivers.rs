//! Differences between devices and drivers.

use super::*;
use crate::tests::connecting::{parties, server};
use crate::tests::objects::destroyed;
use crate::tests::rc::atomics::{WAS, add, denied};
use crate::tests::rc::requests::request;
use crate::tests::rc::sharing::setup;
use linerate_rdma_provider::{AtomicCap, CmEventKind};

#[test]
fn held_buffer_is_flushed_before_last_wqe_or_lost() {
    for waits in [false, true] {
        let mut setup = setup(2);
        setup.devices[1].holds_shared = true;
        let (fabric, _a, b) = connected(&setup);
        (0..2).for_each(|id| b.receive(id, 0, 8));
        b.modify_qp(Transition::Error).unwrap();
        let srq = b.srq.unwrap();
        if waits {
            fabric.run();
            assert_eq!(b.events(), [AsyncEvent::LastWqeReached(b.qp)]);
            assert_eq!(b.ends(), [(0, WcStatus::Flushed)]);
        }
        call!(b.sim.destroy_qp(b.qp)).unwrap();
        fabric.run();
        assert_eq!((b.ends(), b.events()), (vec![], vec![]));
        // The slot of the buffer is free in either case.
        call!(b.sim.post_srq_recv(srq, &[RecvWr { id: 2, sges: &[] }])).unwrap();
        assert_eq!(fabric.srq_wrs(&b.sim), 2);
    }
}

#[test]
fn driver_may_keep_completions_of_destroyed_qp() {
    for keeps in [false, true] {
        let mut setup = Setup::default();
        setup.devices[0].keeps_completions = keeps;
        let (fabric, a, b) = connected(&setup);
        b.receive(1, 0, 1);
        a.send(1, b"x");
        fabric.run();
        call!(a.sim.destroy_qp(a.qp)).unwrap();
        assert_eq!(a.ends().len(), usize::from(keeps));
    }
}

#[test]
fn device_without_atomics_rejects_them() {
    let mut setup = Setup::default();
    setup.devices[1].limits.atomics = AtomicCap::None;
    let (fabric, a, b) = connected(&setup);
    let sges = [b.sge(WAS, 8)];
    let request = SendWr { id: 1, sges: &sges, operation: add(&a, 1), flags: SIGNALLED };
    assert_eq!(refused(b.post(&[request])), (0, libc::EINVAL));
    let inline = SendFlags::INLINE.with_signal(true);
    let request = SendWr { id: 1, sges: &sges, operation: add(&b, 1), flags: inline };
    assert_eq!(refused(a.post(&[request])), (0, libc::EINVAL));
    denied(&fabric, &a, &b, add(&b, 1), WcStatus::RemoteInvalidRequest);
}

#[test]
fn buffer_occupies_slot_until_polled() {
    let (fabric, a, b) = connected(&Setup::default());
    (0..8).for_each(|id| b.receive(id, 0, 1));
    a.send(0, b"x");
    fabric.run();
    let more = [RecvWr { id: 8, sges: &[] }; 2];
    assert_eq!(refused(call!(b.sim.post_recv(b.qp, &more))), (0, libc::ENOMEM));
    b.poll();
    assert_eq!(refused(call!(b.sim.post_recv(b.qp, &more))), (1, libc::ENOMEM));
}

#[test]
fn request_occupies_slot_until_polled() {
    let (fabric, a, b) = connected(&Setup::default());
    (0..8).for_each(|id| b.receive(id, 0, 1));
    a.post(&[request(0, SIGNALLED); 8]).unwrap();
    fabric.run();
    assert_eq!(refused(a.post(&[request(8, SIGNALLED)])), (0, libc::ENOMEM), "completed but not polled");
    let mut one = Vec::with_capacity(1);
    call!(a.sim.poll_cq(a.cq, &mut one)).unwrap();
    assert_eq!(refused(a.post(&[request(8, SIGNALLED); 2])), (1, libc::ENOMEM));
}

#[test]
fn unsignalled_requests_occupy_slots_until_later_poll() {
    let (fabric, a, b) = connected(&Setup::default());
    (0..8).for_each(|id| b.receive(id, 0, 1));
    a.post(&[request(0, SILENT); 8]).unwrap();
    fabric.run();
    assert_eq!(b.poll().len(), 8);
    assert_eq!(a.poll(), [], "no slot is ever freed");
    assert_eq!(refused(a.post(&[request(0, SIGNALLED)])), (0, libc::ENOMEM));

    let (fabric, a, b) = connected(&Setup::default());
    (0..8).for_each(|id| b.receive(id, 0, 1));
    a.post(&[request(0, SILENT); 7]).unwrap();
    a.post(&[request(7, SIGNALLED)]).unwrap();
    fabric.run();
    assert_eq!(a.ends(), [(7, WcStatus::Success)]);
    a.post(&[request(8, SIGNALLED); 8]).unwrap();
}

#[test]
fn srq_capacity_is_enforced() {
    let (fabric, a, b) = connected(&setup(2));
    (0..2).for_each(|id| b.receive(id, 0, 8));
    let srq = b.srq.unwrap();
    let more = [RecvWr { id: 9, sges: &[] }; 2];
    assert_eq!(refused(call!(b.sim.post_srq_recv(srq, &more))), (0, libc::ENOMEM));
    a.send(1, b"x");
    fabric.run();
    assert_eq!(refused(call!(b.sim.post_srq_recv(srq, &more))), (0, libc::ENOMEM), "before it is polled");
    b.poll();
    let sges = [b.sge(0, 1); 2];
    let long = RecvWr { id: 9, sges: &sges };
    assert_eq!(refused(call!(b.sim.post_srq_recv(srq, &[long]))), (0, libc::EINVAL));
    assert_eq!(refused(call!(b.sim.post_srq_recv(srq, &more))), (1, libc::ENOMEM));
}

#[test]
fn each_end_is_ordered_but_both_are_not() {
    let order = |seed| {
        let mut setup = Setup::default();
        setup.fabric.seed = seed;
        let (fabric, a, b) = connected(&setup);
        (0..2).for_each(|id| a.receive(id, 0, 1));
        (0..2).for_each(|id| b.receive(id, 0, 1));
        for id in 10..12 {
            a.request(id, Operation::Send, &[], SIGNALLED);
            b.request(id, Operation::Send, &[], SIGNALLED);
        }
        fabric.run();
        (a.ends(), b.ends())
    };
    assert_eq!(order(3), order(3), "reproducible by seed");
    let orders: std::collections::BTreeSet<_> = (0..50).map(|seed| format!("{:?}", order(seed))).collect();
    assert!(orders.len() > 4, "{}", orders.len());
}

/// Returns the data of a READ that is followed by a SEND.
fn read_then_send(seed: u64) -> Vec<u8> {
    let mut setup = Setup::default();
    setup.fabric.seed = seed;
    let (fabric, a, b) = connected(&setup);
    b.memory.put(512, b"before");
    // The first message is acknowledged with credits, so that the second one does not wait for them.
    (0..2).for_each(|id| b.receive(id, 0, 8));
    a.request(2, Operation::Send, &[], SIGNALLED);
    fabric.run();
    b.poll();
    let read = Operation::Read { address: b.address(512), rkey: b.keys.remote };
    a.request(0, read, &[a.sge(64, 6)], SIGNALLED);
    a.request(1, Operation::Send, &[], SIGNALLED);
    loop {
        // The peer overwrites its memory after receiving the message.
        if !b.poll().is_empty() {
            b.memory.put(512, b"after!");
        }
        if !fabric.step() {
            return a.memory.get(64, 6);
        }
    }
}

#[test]
fn read_is_not_ordered_before_later_requests() {
    assert!((0..40).any(|seed| read_then_send(seed) == b"after!"));
    assert!((0..40).any(|seed| read_then_send(seed) == b"before"));
}

#[test]
fn untaken_requests_are_rejected_with_listener() {
    let (fabric, a, b) = parties(&Setup::default());
    let (listener, _) = b.listen(7471);
    let id = a.resolved(&fabric, server());
    call!(a.end.sim.cm_connect(id, &a.parameters(b""))).unwrap();
    fabric.run();
    assert_eq!(fabric.live_of(&b.end.sim).cm_ids, 2);
    assert_eq!(number(call!(b.end.sim.cm_destroy_event_channel(b.channel))), libc::EBUSY);
    call!(b.end.sim.cm_destroy_id(listener)).unwrap();
    fabric.run();
    assert_eq!((fabric.live_of(&b.end.sim).cm_ids, b.event()), (0, None));
    assert_eq!(a.kinds(), [CmEventKind::Rejected]);
    call!(b.end.sim.cm_destroy_event_channel(b.channel)).unwrap();
}

#[test]
fn destroyed_objects_are_not_live() {
    let (fabric, a, b) = destroyed();
    assert_eq!(fabric.live_of(&a.sim), Live::default());
    let live = fabric.live();
    assert_eq!((live.qps, live.cqs, live.channels, live.srq, live.pds, live.mrs), (1, 1, 1, 1, 1, 1));
    drop(b);
}

#[test]
fn thread_domains_and_their_queue_pairs_are_counted() {
    let (fabric, a, _b) = connected(&Setup::default());
    let td = a.sim.alloc_td().unwrap();
    let parent = call!(a.sim.alloc_parent_domain(a.pd, td)).unwrap();
    let attr = QpInitAttr { send_cq: a.cq, recv_cq: a.cq, srq: None, cap: Setup::default().cap };
    let (qp, ..) = call!(a.sim.create_qp(parent, &attr)).unwrap();
    assert_eq!(fabric.threads(&a.sim), (1, 1));
    call!(a.sim.destroy_qp(qp)).unwrap();
    call!(a.sim.dealloc_pd(parent)).unwrap();
    call!(a.sim.dealloc_td(td)).unwrap();
    assert_eq!(fabric.live_of(&a.sim).tds, 0);
}

#[test]
fn inline_data_is_limited() {
    let (_fabric, a, _b) = connected(&Setup::default());
    let cap = QpCap { inline: 257, ..Setup::default().cap };
    let attr = QpInitAttr { send_cq: a.cq, recv_cq: a.cq, srq: None, cap };
    assert_eq!(number(call!(a.sim.create_qp(a.pd, &attr))), libc::EINVAL);
}

#[test]
fn thread_domain_is_refused_by_a_driver_without_them() {
    let mut setup = Setup::default();
    setup.devices[0].thread_domains = false;
    let (_fabric, a, _b) = connected(&setup);
    assert_eq!(number(a.sim.alloc_td()), libc::EOPNOTSUPP);
}

#[test]
#[should_panic(expected = "used after it was destroyed")]
fn use_of_destroyed_handle_panics() {
    let (_fabric, a, _b) = connected(&Setup::default());
    call!(a.sim.destroy_qp(a.qp)).unwrap();
    let _ = call!(a.sim.query_qp(a.qp));
}
