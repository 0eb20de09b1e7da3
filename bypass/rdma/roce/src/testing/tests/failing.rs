//! Fault injection.

use super::*;
use crate::tests::connecting::{Party, both_connected, parties, server};
use crate::tests::datagrams::{INIT, SEND, address, ready, send, to};
use linerate_rdma_provider::{CmEventKind, PortState};

#[test]
fn injected_request_failure_occurs() {
    for (status, breaks_peer) in [(WcStatus::RetryExceeded, false), (WcStatus::RemoteOperation, true)] {
        let (fabric, a, b) = connected(&Setup::default());
        (0..4).for_each(|id| b.receive(id, 0, 1));
        fabric.fail_request(a.number, 2, status);
        (0..4).for_each(|id| a.send(id, b"x"));
        fabric.run();
        let expected = [WcStatus::Success, WcStatus::Success, status, WcStatus::Flushed];
        assert_eq!(a.ends().iter().map(|&(_, status)| status).collect::<Vec<_>>(), expected);
        assert_eq!(b.state() == QpState::Error, breaks_peer);
    }
}

#[test]
fn injected_call_failure_occurs() {
    let (fabric, a, _b) = connected(&Setup::default());
    fabric.fail_call(&a.sim, Call::AllocDomain, 1, libc::EAGAIN);
    a.sim.alloc_pd().unwrap();
    assert_eq!(number(a.sim.alloc_pd()), libc::EAGAIN);
    a.sim.alloc_pd().unwrap();
    fabric.fail_call(&a.sim, Call::PostSend, 0, libc::EIO);
    let request = SendWr { id: 1, sges: &[], operation: Operation::Send, flags: SIGNALLED };
    assert_eq!(refused(a.post(&[request])), (0, libc::EIO));
    a.post(&[request]).unwrap();
}

#[test]
fn short_port_outage_delays_and_long_one_fails() {
    let (fabric, a, b) = connected(&Setup::default());
    b.receive(1, 0, 1);
    fabric.take_down(&b.sim, 1);
    assert_eq!(b.events(), [AsyncEvent::PortError(1)]);
    assert_eq!(b.sim.port(1).unwrap().state, PortState::Down);
    a.send(1, b"x");
    // The time-out is 67 ms.
    fabric.pass(Duration::from_millis(200));
    assert_eq!(a.ends(), []);
    fabric.take_up(&b.sim, 1);
    assert_eq!(b.events(), [AsyncEvent::PortActive(1)]);
    fabric.run();
    assert_eq!(a.ends(), [(1, WcStatus::Success)]);

    fabric.take_down(&a.sim, 1);
    a.send(2, b"x");
    a.send(3, b"x");
    fabric.run();
    assert_eq!(a.ends(), [(2, WcStatus::RetryExceeded), (3, WcStatus::Flushed)]);
    assert_eq!(b.state(), QpState::Rts);
}

#[test]
fn unresponsive_peer_is_unreachable() {
    for is_gone in [false, true] {
        let (fabric, a, b) = parties(&Setup::default());
        b.listen(7471);
        let id = a.resolved(&fabric, server());
        match is_gone {
            true => fabric.vanish(&b.end.sim, false),
            false => fabric.take_down(&b.end.sim, 1),
        }
        call!(a.end.sim.cm_connect(id, &a.parameters(b""))).unwrap();
        fabric.pass(Duration::from_secs(30));
        assert_eq!(a.kinds(), [CmEventKind::Unreachable]);
    }
}

#[test]
fn disconnect_is_reported_when_port_is_up_again() {
    let (fabric, a, b) = parties(&Setup::default());
    let (own, _) = both_connected(&fabric, &a, &b);
    fabric.take_down(&b.end.sim, 1);
    call!(a.end.sim.cm_disconnect(own)).unwrap();
    fabric.run();
    assert_eq!((a.kinds(), b.kinds()), (vec![], vec![]));
    fabric.take_up(&b.end.sim, 1);
    fabric.pass(Duration::from_secs(2));
    assert_eq!(b.kinds(), [CmEventKind::Disconnected]);
}

#[test]
fn injected_qp_failure_is_reported() {
    let (fabric, a, b) = connected(&Setup::default());
    a.receive(1, 0, 1);
    b.receive(2, 0, 1);
    fabric.pair_fatal(a.number);
    fabric.run();
    assert_eq!((a.events(), a.ends()), (vec![AsyncEvent::QpFatal(a.qp)], vec![(1, WcStatus::Flushed)]));
    b.send(3, b"x");
    fabric.run();
    assert_eq!(b.ends()[0], (3, WcStatus::RetryExceeded));
    call!(a.sim.destroy_qp(a.qp)).unwrap();
}

#[test]
fn events_of_destroyed_objects_are_discarded() {
    let (fabric, a, _b) = connected(&Setup::default());
    fabric.pair_fatal(a.number);
    assert!(readable(a.sim.async_fd()));
    call!(a.sim.destroy_qp(a.qp)).unwrap();
    assert!(!readable(a.sim.async_fd()));
    assert_eq!(a.event(), None);
}

#[test]
fn failed_device_flushes_and_can_be_closed() {
    let (fabric, a, b) = parties(&Setup::default());
    let (own, _) = both_connected(&fabric, &a, &b);
    a.end.receive(1, 0, 1);
    fabric.fatal(&a.end.sim);
    fabric.run();
    assert_eq!(a.end.events(), [AsyncEvent::DeviceFatal]);
    assert_eq!(a.end.ends(), [(1, WcStatus::Flushed)]);
    assert_eq!(a.kinds(), [CmEventKind::Removed]);
    assert_eq!(number(a.end.sim.alloc_pd()), libc::EIO);
    assert_eq!(number(call!(a.end.sim.cm_create_id(a.channel))), libc::EIO);
    let request = SendWr { id: 1, sges: &[], operation: Operation::Send, flags: SIGNALLED };
    assert_eq!(refused(a.end.post(&[request])), (0, libc::EIO));
    call!(a.end.sim.cm_destroy_id(own)).unwrap();
    call!(a.end.sim.cm_destroy_event_channel(a.channel)).unwrap();
    call!(a.end.sim.destroy_qp(a.end.qp)).unwrap();
    call!(a.end.sim.destroy_cq(a.end.cq)).unwrap();
    call!(a.end.sim.destroy_comp_channel(a.end.channel)).unwrap();
    call!(a.end.sim.dereg_mr(a.end.mr)).unwrap();
    call!(a.end.sim.dealloc_pd(a.end.pd)).unwrap();
    assert_eq!(fabric.live_of(&a.end.sim), Live::default());
    b.end.send(3, b"x");
    fabric.run();
    assert_eq!(b.end.ends(), [(3, WcStatus::RetryExceeded)]);
}

#[test]
fn killed_peer_leaves_no_objects_and_is_detected() {
    for is_announced in [false, true] {
        let (fabric, a, b) = parties(&Setup::default());
        both_connected(&fabric, &a, &b);
        b.end.receive(1, 0, 1);
        a.end.send(1, b"x");
        fabric.run();
        fabric.vanish(&b.end.sim, is_announced);
        fabric.run();
        assert_eq!(fabric.live_of(&b.end.sim), Live::default());
        let expected: &[_] = if is_announced { &[CmEventKind::Disconnected] } else { &[] };
        assert_eq!(a.kinds(), expected);
        a.end.send(2, b"x");
        fabric.run();
        assert_eq!(a.end.ends().pop(), Some((2, WcStatus::RetryExceeded)));
        assert_eq!(number(b.end.sim.alloc_pd()), libc::EIO);
        call!(b.end.sim.destroy_qp(b.end.qp)).unwrap();
    }
}

#[test]
fn server_can_return_to_its_address() {
    let setup = Setup::default();
    let (fabric, a, b) = parties(&setup);
    b.listen(7471);
    fabric.vanish(&b.end.sim, true);
    let again = Party::new(End::new(&fabric, "model1", setup.devices[1].clone(), &setup));
    both_connected(&fabric, &a, &again);
}

#[test]
fn old_address_is_not_answered() {
    let (fabric, a, b) = parties(&Setup::default());
    both_connected(&fabric, &a, &b);
    fabric.change_address(&b.end.sim, 1, "10.0.0.77".parse().unwrap());
    fabric.run();
    assert_eq!((b.end.events(), b.kinds()), (vec![AsyncEvent::GidChange(1)], vec![CmEventKind::AddressChanged]));
    let ips: Vec<_> = b.end.sim.gids(1).unwrap().iter().map(|gid| gid.ip().to_string()).collect();
    assert_eq!(&ips[2..], ["10.0.0.77", "10.0.0.77"]);
    a.end.send(1, b"x");
    fabric.run();
    assert_eq!(a.end.ends(), [(1, WcStatus::RetryExceeded)]);
}

#[test]
fn auto_mode_performs_events_between_threads() {
    let mut setup = Setup { rnr_retries: 7, ..Setup::default() };
    setup.fabric.mode = Mode::Auto;
    let (_fabric, a, b) = connected(&setup);
    b.receive(0, 0, 8);
    let wait = |end: &End| {
        loop {
            let mut poll = libc::pollfd { fd: end.channel_fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one structure is passed.
            assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 10_000) }, 1, "no event");
            assert!(call!(end.sim.get_cq_event(end.channel)).unwrap());
            call!(end.sim.req_notify_cq(end.cq)).unwrap();
            let completions = end.poll();
            if !completions.is_empty() {
                return completions;
            }
        }
    };
    call!(b.sim.req_notify_cq(b.cq)).unwrap();
    call!(a.sim.req_notify_cq(a.cq)).unwrap();
    std::thread::scope(|scope| {
        // Each thread has its own end.
        let b = Shared(&b);
        scope.spawn(move || {
            let b = b.get();
            let mut received = 0;
            while received < 100 {
                for completion in wait(b) {
                    assert_eq!(completion.status, WcStatus::Success);
                    received += 1;
                    b.receive(received, 0, 8);
                }
            }
        });
        for id in 0..100 {
            a.send(id, b"message");
            assert_eq!(wait(&a)[0].status, WcStatus::Success);
        }
    });
}

/// Passes an end to a thread.
#[derive(Clone, Copy)]
struct Shared<'a>(&'a End);

// SAFETY: the other thread does not use the end meanwhile.
unsafe impl Send for Shared<'_> {}

impl<'a> Shared<'a> {
    fn get(self) -> &'a End {
        self.0
    }
}

#[test]
fn injected_failure_of_datagram_occurs() {
    let (fabric, a, b) = ready(&Setup::default());
    fabric.fail_request(a.number, 1, WcStatus::LocalQp);
    let operation = to(address(&a, &b), &b);
    (0..3).for_each(|id| send(&a, id, operation, b"x"));
    fabric.run();
    assert_eq!(a.ends(), [(0, WcStatus::Success), (1, WcStatus::LocalQp), (2, WcStatus::Flushed)]);
}

/// Returns the first bytes that `b` received of 200 datagrams, with faults.
fn received(seed: u64, faults: Faults) -> Vec<u8> {
    let mut setup = Setup::default();
    (setup.fabric.seed, setup.fabric.faults) = (seed, faults);
    let (fabric, a, b) = ready(&setup);
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
    assert_eq!(fabric.lost(), 200 - order.len() as u64);
    order
}

#[test]
fn datagrams_are_lost_and_reordered() {
    let all: Vec<u8> = (0..200).collect();
    assert_eq!(received(1, Faults::default()), all);
    let lost = received(1, Faults { lost: 30, ..Faults::default() });
    assert!((100..180).contains(&lost.len()) && lost.is_sorted(), "{lost:?}");
    let late = received(1, Faults { late: 50, ..Faults::default() });
    assert!(!late.is_sorted());
    let mut sorted = late.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, all);
    let both = Faults { lost: 30, late: 50, twice: 0 };
    assert_eq!(received(5, both), received(5, both), "reproducible by seed");
    assert_ne!(received(5, both), received(6, both));
}

#[test]
fn down_port_drops_datagrams() {
    for end in 0..2 {
        let (fabric, a, b) = ready(&Setup::default());
        b.receive(5, 100, 100);
        fabric.take_down(&[&a, &b][end].sim, 1);
        let operation = to(address(&a, &b), &b);
        send(&a, 1, operation, b"x");
        fabric.run();
        assert_eq!((a.ends(), b.ends()), (vec![(1, WcStatus::Success)], vec![]));
    }
}

#[test]
fn calls_deliver_datagrams_in_auto_mode() {
    let mut setup = Setup::default();
    setup.fabric.mode = Mode::Auto;
    let (_fabric, a, b) = ready(&setup);
    b.receive(5, 100, 100);
    send(&a, 1, to(address(&a, &b), &b), b"x");
    assert_eq!(b.ends(), [(5, WcStatus::Success)]);
}
