//! Completion queues, channels and overruns.

use super::*;

fn one_message(fabric: &Fabric, a: &End, b: &End) {
    b.receive(1, 0, 1);
    a.request(1, Operation::Send, &[], SILENT);
    fabric.run();
}

fn take(end: &End) -> bool {
    call!(end.sim.get_cq_event(end.channel)).unwrap()
}

#[test]
fn one_event_per_notification_request() {
    let (fabric, a, b) = connected(&Setup::default());
    one_message(&fabric, &a, &b);
    assert!(!readable(b.channel_fd), "not requested");
    call!(b.sim.req_notify_cq(b.cq)).unwrap();
    assert!(!readable(b.channel_fd), "the completion precedes the request");
    one_message(&fabric, &a, &b);
    one_message(&fabric, &a, &b);
    assert!(readable(b.channel_fd));
    assert!(take(&b));
    assert!(!readable(b.channel_fd) && !take(&b), "one event for both");
    one_message(&fabric, &a, &b);
    assert!(!readable(b.channel_fd), "until requested again");
    call!(b.sim.req_notify_cq(b.cq)).unwrap();
    call!(b.sim.req_notify_cq(b.cq)).unwrap();
    one_message(&fabric, &a, &b);
    assert!(take(&b) && !take(&b), "two requests generate one event");
}

#[test]
fn channel_reports_each_queue() {
    let setup = Setup::default();
    let (fabric, a, b) = connected(&setup);
    let second = call!(b.sim.create_cq(4, Some(b.channel), 0)).unwrap();
    let config = QpInitAttr { send_cq: second, recv_cq: b.cq, srq: None, cap: setup.cap };
    call!(b.sim.destroy_qp(b.qp)).unwrap();
    let (qp, number, _) = call!(b.sim.create_qp(b.pd, &config)).unwrap();
    let b = End { qp, number, ..b };
    a.modify_qp(Transition::Reset).unwrap();
    join(&a, &b, &setup);
    call!(b.sim.req_notify_cq(b.cq)).unwrap();
    call!(b.sim.req_notify_cq(second)).unwrap();
    a.receive(1, 0, 1);
    b.receive(1, 0, 1);
    a.request(2, Operation::Send, &[], SIGNALLED);
    b.request(2, Operation::Send, &[], SIGNALLED);
    fabric.run();
    assert!(take(&b) && take(&b) && !take(&b));
    call!(b.sim.req_notify_cq(second)).unwrap();
    a.receive(1, 0, 1);
    b.request(2, Operation::Send, &[], SIGNALLED);
    fabric.run();
    call!(b.sim.destroy_qp(b.qp)).unwrap();
    assert!(readable(b.channel_fd));
    call!(b.sim.destroy_cq(second)).unwrap();
    assert!(!readable(b.channel_fd) && !take(&b), "events are destroyed with their queue");
}

#[test]
fn poll_fills_spare_capacity_without_allocation() {
    let (fabric, a, b) = connected(&Setup::default());
    (0..3).for_each(|_| one_message(&fabric, &a, &b));
    let mut into = Vec::with_capacity(2);
    assert_eq!(call!(b.sim.poll_cq(b.cq, &mut into)).unwrap(), 2);
    assert_eq!(call!(b.sim.poll_cq(b.cq, &mut into)).unwrap(), 0);
    assert_eq!((into.len(), into.capacity()), (2, 2));
    assert_eq!(b.poll().len(), 1);
}

#[test]
fn overrun_breaks_qps_of_queue() {
    let setup = Setup { completions: 2, ..Setup::default() };
    let (fabric, a, b) = connected(&setup);
    (0..2).for_each(|_| one_message(&fabric, &a, &b));
    assert_eq!((b.events(), b.state()), (vec![], QpState::Rts));
    one_message(&fabric, &a, &b);
    assert_eq!(b.events(), [AsyncEvent::CqError(b.cq), AsyncEvent::QpFatal(b.qp)]);
    assert_eq!((b.state(), a.state()), (QpState::Error, QpState::Error));
    assert_eq!(b.poll().len(), 2);
}
