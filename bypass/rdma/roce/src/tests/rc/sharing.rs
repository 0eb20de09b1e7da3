//! Shared receive queues.

use crate::tests::*;

pub fn setup(buffers: u32) -> Setup {
    Setup { srq: Some(SrqInitAttr { buffers, sges: 1 }), ..Setup::default() }
}

#[test]
fn qps_take_shared_buffers_in_order() {
    let setup = setup(8);
    let (fabric, mut a, mut b) = connected(&setup);
    let first = (a.qp, a.number, b.number);
    a.another(&setup);
    b.another(&setup);
    join(&a, &b, &setup);
    (0..3).for_each(|id| b.receive(id, id as usize * 8, 8));
    assert_eq!(refused(call!(b.sim.post_recv(b.qp, &[RecvWr { id: 9, sges: &[] }]))).1, libc::EINVAL);
    a.send(1, b"second");
    fabric.run();
    let request = SendWr { id: 2, sges: &[a.sge(0, 6)], operation: Operation::Send, flags: SIGNALLED };
    call!(a.sim.post_send(first.0, &[request])).unwrap();
    fabric.run();
    let received: Vec<_> = b.poll().iter().map(|completion| (completion.id, completion.qp)).collect();
    assert_eq!(received, [(0, b.number), (1, first.2)]);
    assert_eq!(b.memory.get(8, 6), b"second");
}

#[test]
fn broken_qp_reports_last_wqe() {
    let (fabric, a, b) = connected(&setup(8));
    (0..2).for_each(|id| b.receive(id, 0, 8));
    a.send(1, b"x");
    fabric.run();
    b.modify_qp(Transition::Error).unwrap();
    fabric.run();
    assert_eq!(b.events(), [AsyncEvent::LastWqeReached(b.qp)]);
    assert_eq!(b.ends(), [(0, WcStatus::Success)], "unused buffers stay in the shared receive queue");
    call!(b.sim.destroy_qp(b.qp)).unwrap();
}
