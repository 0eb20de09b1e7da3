//! Shared receive queues.

use super::*;

fn setup(buffers: u32) -> Setup {
    Setup { shared: Some(SharedConfig { buffers, segments: 1 }), ..Setup::default() }
}

#[test]
fn queue_pairs_take_buffers_from_a_shared_queue_in_its_order() {
    let setup = setup(8);
    let (fabric, mut a, mut b) = connected(&setup);
    let first = (a.pair, a.number, b.number);
    a.another(&setup);
    b.another(&setup);
    join(&a, &b, &setup);
    (0..3).for_each(|id| b.receive(id, id as usize * 8, 8));
    assert_eq!(
        refused(call!(b.model.post_receive(b.pair, &[ReceiveRequest { id: 9, segments: &[] }]))).1,
        libc::EINVAL
    );
    a.send(1, b"second");
    fabric.run();
    let request = SendRequest { id: 2, segments: &[a.segment(0, 6)], operation: Operation::Send, flags: SIGNALLED };
    call!(a.model.post_send(first.0, &[request])).unwrap();
    fabric.run();
    let received: Vec<_> = b.poll().iter().map(|completion| (completion.id, completion.pair)).collect();
    assert_eq!(received, [(0, b.number), (1, first.2)]);
    assert_eq!(b.memory.get(8, 6), b"second");
}

#[test]
fn a_shared_queue_has_no_more_room_than_it_has() {
    let (fabric, a, b) = connected(&setup(2));
    (0..2).for_each(|id| b.receive(id, 0, 8));
    let shared = b.shared.unwrap();
    let more = [ReceiveRequest { id: 9, segments: &[] }; 2];
    assert_eq!(refused(call!(b.model.post_shared(shared, &more))), (0, libc::ENOMEM));
    a.send(1, b"x");
    fabric.run();
    assert_eq!(refused(call!(b.model.post_shared(shared, &more))), (0, libc::ENOMEM), "before it is polled");
    b.poll();
    assert_eq!(refused(call!(b.model.post_shared(shared, &more))), (1, libc::ENOMEM));
    let segments = [b.segment(0, 1); 2];
    let long = ReceiveRequest { id: 9, segments: &segments };
    assert_eq!(refused(call!(b.model.post_shared(shared, &[long]))), (0, libc::EINVAL));
}

#[test]
fn a_limit_is_told_once_when_fewer_buffers_are_left() {
    let (fabric, a, b) = connected(&setup(8));
    let shared = b.shared.unwrap();
    assert_eq!(number(call!(b.model.limit_shared(shared, 9))), libc::EINVAL);
    (0..4).for_each(|id| b.receive(id, 0, 8));
    call!(b.model.limit_shared(shared, 3)).unwrap();
    a.send(1, b"x");
    fabric.run();
    assert_eq!(b.events(), [], "three are left");
    a.send(2, b"x");
    fabric.run();
    assert!(readable(b.model.async_fd()));
    assert_eq!(b.events(), [AsyncEvent::SharedLimit(shared)]);
    assert!(!readable(b.model.async_fd()));
    a.send(3, b"x");
    fabric.run();
    assert_eq!(b.events(), [], "once");
}

#[test]
fn a_broken_queue_pair_says_when_it_takes_no_more_buffers() {
    let (fabric, a, b) = connected(&setup(8));
    (0..2).for_each(|id| b.receive(id, 0, 8));
    a.send(1, b"x");
    fabric.run();
    b.modify(Transition::Error).unwrap();
    fabric.run();
    assert_eq!(b.events(), [AsyncEvent::LastBuffer(b.pair)]);
    assert_eq!(b.ends(), [(0, Status::Success)], "what it did not use stays in the shared queue");
    call!(b.model.destroy_pair(b.pair)).unwrap();
}

#[test]
fn a_buffer_in_the_hands_of_a_queue_pair_comes_back_flushed_before_its_last_or_goes_with_it() {
    for waits in [false, true] {
        let mut setup = setup(2);
        setup.devices[1].holds_shared = true;
        let (fabric, _a, b) = connected(&setup);
        (0..2).for_each(|id| b.receive(id, 0, 8));
        b.modify(Transition::Error).unwrap();
        let shared = b.shared.unwrap();
        if waits {
            fabric.run();
            assert_eq!(b.events(), [AsyncEvent::LastBuffer(b.pair)]);
            assert_eq!(b.ends(), [(0, Status::Flushed)]);
        }
        call!(b.model.destroy_pair(b.pair)).unwrap();
        fabric.run();
        assert_eq!((b.ends(), b.events()), (vec![], vec![]));
        // There is room for another in its place, either way.
        call!(b.model.post_shared(shared, &[ReceiveRequest { id: 2, segments: &[] }])).unwrap();
        assert_eq!(fabric.shared_buffers(&b.model), 2);
    }
}
