//! Send queue: capacity, order, outstanding READs.

use crate::tests::*;
use linerate_rdma_provider::WcOpcode;

pub fn request(id: u64, flags: SendFlags) -> SendWr<'static> {
    SendWr { id, sges: &[], operation: Operation::Send, flags }
}

#[test]
fn full_queue_refuses_first_excess_request() {
    let (_fabric, a, _b) = connected(&Setup::default());
    let requests: Vec<_> = (0..10).map(|id| request(id, SIGNALLED)).collect();
    assert_eq!(refused(a.post(&requests)), (8, libc::ENOMEM));
    assert_eq!(refused(a.post(&requests[8..])), (0, libc::ENOMEM));
    a.post(&[]).unwrap();
    let receives = vec![RecvWr { id: 0, sges: &[] }; 9];
    assert_eq!(refused(call!(a.sim.post_recv(a.qp, &receives))), (8, libc::ENOMEM));
}

#[test]
fn invalid_request_is_refused_at_post() {
    let (_fabric, a, _b) = connected(&Setup::default());
    let inline = SendFlags::INLINE.with_signal(true);
    let read = Operation::Read { address: 0, rkey: 0 };
    let post = |operation, sges: &[Sge], flags| {
        let good = request(0, SIGNALLED);
        refused(a.post(&[good, SendWr { id: 1, sges, operation, flags }]))
    };
    assert_eq!(post(Operation::Send, &[a.sge(0, 1); 4], SIGNALLED), (1, libc::EINVAL), "too many segments");
    assert_eq!(post(Operation::Send, &[a.sge(0, 65)], inline), (1, libc::EINVAL), "too much inline");
    assert_eq!(post(read, &[a.sge(0, 1)], inline), (1, libc::EINVAL), "READ cannot be inline");
    assert_eq!(
        post(Operation::InvalidateLocal(1), &[a.sge(0, 1)], SIGNALLED),
        (1, libc::EINVAL),
        "no elements allowed"
    );
    let sges = [a.sge(0, 1); 4];
    let receive = [RecvWr { id: 0, sges: &sges }];
    assert_eq!(refused(call!(a.sim.post_recv(a.qp, &receive))), (0, libc::EINVAL));
}

#[test]
fn completions_follow_order_of_posting() {
    for seed in 0..20 {
        let mut setup = Setup::default();
        setup.fabric.seed = seed;
        let (fabric, a, b) = connected(&setup);
        (0..3).for_each(|id| b.receive(id, id as usize * 8, 8));
        let (address, rkey) = (b.address(512), b.keys.remote);
        a.request(0, Operation::Read { address, rkey }, &[a.sge(64, 8)], SIGNALLED);
        a.send(1, b"one");
        a.request(2, Operation::Write { address, rkey }, &[a.sge(0, 3)], SIGNALLED);
        a.request(3, Operation::Send, &[a.sge(0, 3)], SIGNALLED);
        a.request(4, Operation::Read { address, rkey }, &[a.sge(72, 8)], SIGNALLED);
        a.request(5, Operation::Send, &[], SIGNALLED);
        fabric.run();
        assert_eq!(a.poll().iter().map(|completion| completion.id).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(b.poll().iter().map(|completion| completion.id).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(a.memory.get(72, 8), b"one\0\0\0\0\0", "a READ sees an earlier WRITE");
    }
}

#[test]
fn outstanding_reads_are_limited() {
    let setup = Setup { reads: 2, ..Setup::default() };
    let (fabric, a, b) = connected(&setup);
    let read = Operation::Read { address: b.address(0), rkey: b.keys.remote };
    (0..8).for_each(|id| a.request(id, read, &[a.sge(64, 6)], SIGNALLED));
    fabric.run();
    assert_eq!(a.ends(), (0..8).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());

    // An initiator that exceeds the responder's limit is refused eventually.
    let mut statuses = Vec::new();
    for seed in 0..20 {
        let mut setup = Setup::default();
        setup.fabric.seed = seed;
        let (fabric, a, b) = apart(&setup);
        for (end, peer) in [(&a, &b), (&b, &a)] {
            end.modify_qp(End::init()).unwrap();
            end.modify_qp(end.to_receive(peer, 1)).unwrap();
            end.modify_qp(end.to_send(4, 7)).unwrap();
        }
        let read = Operation::Read { address: b.address(0), rkey: b.keys.remote };
        (0..4).for_each(|id| a.request(id, read, &[a.sge(64, 6)], SIGNALLED));
        fabric.run();
        statuses.extend(a.poll().iter().map(|completion| completion.status));
        assert!(!statuses.contains(&WcStatus::RetryExceeded), "earlier requests are still answered");
    }
    assert!(statuses.contains(&WcStatus::RemoteInvalidRequest));
}

#[test]
fn reads_fail_with_zero_depth() {
    let setup = Setup { reads: 0, ..Setup::default() };
    let (fabric, a, b) = connected(&setup);
    let read = Operation::Read { address: b.address(0), rkey: b.keys.remote };
    a.request(0, read, &[a.sge(64, 6)], SIGNALLED);
    fabric.run();
    assert_eq!(a.ends(), [(0, WcStatus::LocalQp)]);
}

#[test]
fn inline_data_is_copied_at_post() {
    let (fabric, a, b) = connected(&Setup::default());
    b.receive(0, 0, 16);
    b.receive(1, 16, 16);
    // Unregistered memory is sufficient.
    let bytes = Memory::new(4);
    bytes.put(0, b"soon");
    let sge = Sge { address: bytes.start() as u64, len: 4, lkey: 0 };
    a.request(0, Operation::Send, &[sge], SendFlags::INLINE.with_signal(true));
    a.memory.put(0, b"late");
    a.request(1, Operation::Send, &[a.sge(0, 4)], SIGNALLED);
    bytes.put(0, b"gone");
    a.memory.put(0, b"seen");
    fabric.run();
    assert_eq!(a.ends(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    assert_eq!(b.memory.get(0, 4), b"soon");
    assert_eq!(b.memory.get(16, 4), b"seen");
}

#[test]
fn completions_report_operation() {
    let (fabric, a, b) = connected(&Setup::default());
    b.receive(9, 0, 16);
    let (address, rkey) = (b.address(512), b.keys.remote);
    a.send(1, b"x");
    a.request(2, Operation::Write { address, rkey }, &[a.sge(0, 3)], SIGNALLED);
    a.request(3, Operation::Read { address, rkey }, &[a.sge(0, 3)], SIGNALLED);
    fabric.run();
    let whats: Vec<_> = a.poll().iter().map(|completion| (completion.opcode, completion.qp)).collect();
    assert_eq!(whats, [WcOpcode::Send, WcOpcode::Write, WcOpcode::Read].map(|opcode| (opcode, a.number)));
    let received = b.poll()[0];
    assert_eq!((received.opcode, received.len, received.qp), (WcOpcode::Receive, 1, b.number));
}
