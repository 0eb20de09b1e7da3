//! Queue pair states, and posting in each state.

use crate::tests::*;
use QpState as State;

/// Moves a new end's queue pair to a state.
fn end_in(state: State) -> (Fabric, End, End) {
    let setup = Setup::default();
    let (fabric, a, b) = apart(&setup);
    let steps = [State::Reset, State::Init, State::Rtr, State::Rts];
    let count = steps.iter().position(|&step| step == state).unwrap_or(1);
    let transitions = [End::init(), a.to_receive(&b, 1), a.to_send(1, 7)];
    transitions[..count].iter().for_each(|&transition| a.modify_qp(transition).unwrap());
    if state == State::Error {
        a.modify_qp(Transition::Error).unwrap();
    }
    assert_eq!(a.state(), state);
    (fabric, a, b)
}

const STATES: [State; 5] = [State::Reset, State::Init, State::Rtr, State::Rts, State::Error];

#[test]
fn only_legal_transitions_succeed() {
    for from in STATES {
        for to in STATES {
            let (_fabric, a, b) = end_in(from);
            let transition = match to {
                State::Reset => Transition::Reset,
                State::Init => End::init(),
                State::Rtr => a.to_receive(&b, 1),
                State::Rts => a.to_send(1, 7),
                _ => Transition::Error,
            };
            let is_legal = match to {
                State::Reset => true,
                State::Init => matches!(from, State::Reset | State::Init),
                State::Rtr => from == State::Init,
                State::Rts => from == State::Rtr,
                _ => from != State::Reset,
            };
            let result = a.modify_qp(transition);
            if is_legal {
                result.unwrap();
                assert_eq!(a.state(), to);
            } else {
                assert_eq!(number(result), libc::EINVAL, "from {from:?} to {to:?}");
                assert_eq!(a.state(), from);
            }
        }
    }
}

#[test]
fn transition_attributes_are_checked() {
    let (_fabric, a, b) = end_in(State::Init);
    let Transition::Rtr { mtu, qp, psn, min_rnr_timer, path, .. } = a.to_receive(&b, 1) else { panic!() };
    let with = |mtu, responder_resources, path| {
        a.modify_qp(Transition::Rtr { mtu, qp, psn, responder_resources, min_rnr_timer, path })
    };
    assert_eq!(number(with(mtu, 17, path)), libc::EINVAL);
    assert_eq!(number(with(Mtu::Mtu4096, 1, path)), libc::EINVAL);
    assert_eq!(number(with(mtu, 1, AhAttr { source: 4, ..path })), libc::EINVAL);
    with(mtu, 16, path).unwrap();
    assert_eq!(number(a.modify_qp(a.to_send(17, 7))), libc::EINVAL);
    a.modify_qp(a.to_send(16, 7)).unwrap();
}

#[test]
fn buffers_can_be_posted_from_init_on() {
    for state in STATES {
        let (_fabric, a, _b) = end_in(state);
        let posted = call!(a.sim.post_recv(a.qp, &[RecvWr { id: 1, sges: &[] }]));
        match state {
            State::Reset => assert_eq!(refused(posted), (0, libc::EINVAL)),
            _ => posted.unwrap(),
        }
    }
}

#[test]
fn requests_can_be_posted_in_rts_and_error() {
    for state in STATES {
        let (_fabric, a, _b) = end_in(state);
        let request = SendWr { id: 1, sges: &[], operation: Operation::Send, flags: SIGNALLED };
        match state {
            State::Rts | State::Error => a.post(&[request]).unwrap(),
            _ => assert_eq!(refused(a.post(&[request])), (0, libc::EINVAL)),
        }
    }
}

#[test]
fn buffers_posted_in_init_are_used_later() {
    let setup = Setup::default();
    let (fabric, a, b) = apart(&setup);
    b.modify_qp(End::init()).unwrap();
    b.receive(7, 100, 10);
    a.modify_qp(End::init()).unwrap();
    a.modify_qp(a.to_receive(&b, 1)).unwrap();
    a.modify_qp(a.to_send(1, 7)).unwrap();
    b.modify_qp(b.to_receive(&a, 1)).unwrap();
    a.send(1, b"hello");
    fabric.run();
    assert_eq!(b.ends(), [(7, WcStatus::Success)]);
    assert_eq!(b.events(), [AsyncEvent::CommEstablished(b.qp)], "not yet in RTS");
    assert_eq!(b.memory.get(100, 5), b"hello");
}

#[test]
fn error_state_flushes_requests() {
    let (fabric, a, _b) = connected(&Setup::default());
    a.receive(1, 0, 1);
    a.receive(2, 0, 1);
    a.request(3, Operation::Send, &[], SILENT);
    a.request(4, Operation::Send, &[], SIGNALLED);
    a.modify_qp(Transition::Error).unwrap();
    fabric.run();
    let flushed = |ids: &[u64]| ids.iter().map(|&id| (id, WcStatus::Flushed)).collect::<Vec<_>>();
    let mut ends = a.ends();
    ends.sort_by_key(|&(id, _)| id);
    assert_eq!(ends, flushed(&[1, 2, 3, 4]));
    a.request(5, Operation::Send, &[], SILENT);
    fabric.run();
    assert_eq!(a.ends(), flushed(&[5]));
    a.receive(6, 0, 1);
    fabric.run();
    assert_eq!(a.ends(), flushed(&[6]));
    assert_eq!(a.events(), [], "requested by the program");
}

#[test]
fn reset_discards_requests_and_completions() {
    let (fabric, a, b) = connected(&Setup::default());
    b.receive(1, 0, 1);
    a.send(1, b"x");
    fabric.run();
    a.receive(2, 0, 1);
    a.send(2, b"x");
    a.modify_qp(Transition::Reset).unwrap();
    fabric.run();
    assert_eq!(a.ends(), []);
    assert_eq!(b.ends(), [(1, WcStatus::Success)]);
    join_again(&a, &b);
    b.receive(3, 0, 1);
    for id in 0..8 {
        a.request(id, Operation::Send, &[], SILENT);
    }
    let more = SendWr { id: 8, sges: &[], operation: Operation::Send, flags: SILENT };
    assert_eq!(refused(a.post(&[more])), (0, libc::ENOMEM), "all slots, and no more");
}

fn join_again(a: &End, b: &End) {
    b.modify_qp(Transition::Reset).unwrap();
    join(a, b, &Setup::default());
}

#[test]
fn mismatched_psns_are_ignored() {
    let setup = Setup::default();
    let (fabric, a, b) = apart(&setup);
    for (end, peer) in [(&a, &b), (&b, &a)] {
        end.modify_qp(End::init()).unwrap();
        end.modify_qp(end.to_receive(peer, 1)).unwrap();
    }
    b.receive(1, 0, 1);
    let Transition::Rts { timeout, retries, rnr_retries, initiator_depth, .. } = a.to_send(1, 7) else { panic!() };
    a.modify_qp(Transition::Rts { psn: 5, timeout, retries, rnr_retries, initiator_depth }).unwrap();
    a.send(1, b"x");
    fabric.run();
    assert_eq!(a.ends(), [(1, WcStatus::RetryExceeded)]);
    assert_eq!(b.ends(), []);
}
