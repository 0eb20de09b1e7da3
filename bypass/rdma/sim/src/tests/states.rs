//! The states of a queue pair, and what may be posted in which.

use super::*;
use QueuePairState as State;

/// Brings a new end's queue pair to a state.
fn end_in(state: State) -> (Fabric, End, End) {
    let setup = Setup::default();
    let (fabric, a, b) = apart(&setup);
    let steps = [State::Reset, State::Init, State::ReadyToReceive, State::ReadyToSend];
    let count = steps.iter().position(|&step| step == state).unwrap_or(1);
    let transitions = [End::init(), a.to_receive(&b, 1), a.to_send(1, 7)];
    transitions[..count].iter().for_each(|&transition| a.modify(transition).unwrap());
    if state == State::Error {
        a.modify(Transition::Error).unwrap();
    }
    assert_eq!(a.state(), state);
    (fabric, a, b)
}

const STATES: [State; 5] = [State::Reset, State::Init, State::ReadyToReceive, State::ReadyToSend, State::Error];

#[test]
fn only_the_legal_transitions_are_possible() {
    for from in STATES {
        for to in STATES {
            let (_fabric, a, b) = end_in(from);
            let transition = match to {
                State::Reset => Transition::Reset,
                State::Init => End::init(),
                State::ReadyToReceive => a.to_receive(&b, 1),
                State::ReadyToSend => a.to_send(1, 7),
                _ => Transition::Error,
            };
            let is_legal = match to {
                State::Reset => true,
                State::Init => matches!(from, State::Reset | State::Init),
                State::ReadyToReceive => from == State::Init,
                State::ReadyToSend => from == State::ReadyToReceive,
                _ => from != State::Reset,
            };
            let result = a.modify(transition);
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
fn what_a_transition_asks_for_is_within_limits() {
    let (_fabric, a, b) = end_in(State::Init);
    let Transition::ReadyToReceive { mtu, pair, first_packet, not_ready_timer, path, .. } = a.to_receive(&b, 1) else {
        panic!()
    };
    let with = |mtu, reads_answered, path| {
        a.modify(Transition::ReadyToReceive { mtu, pair, first_packet, reads_answered, not_ready_timer, path })
    };
    assert_eq!(number(with(mtu, 17, path)), libc::EINVAL);
    assert_eq!(number(with(Mtu::Mtu4096, 1, path)), libc::EINVAL);
    assert_eq!(number(with(mtu, 1, Path { source: 4, ..path })), libc::EINVAL);
    with(mtu, 16, path).unwrap();
    assert_eq!(number(a.modify(a.to_send(17, 7))), libc::EINVAL);
    a.modify(a.to_send(16, 7)).unwrap();
}

#[test]
fn buffers_can_be_posted_from_init_on() {
    for state in STATES {
        let (_fabric, a, _b) = end_in(state);
        let posted = call!(a.model.post_receive(a.pair, &[ReceiveRequest { id: 1, segments: &[] }]));
        match state {
            State::Reset => assert_eq!(refused(posted), (0, libc::EINVAL)),
            _ => posted.unwrap(),
        }
    }
}

#[test]
fn requests_can_be_posted_when_ready_to_send_and_after_an_error() {
    for state in STATES {
        let (_fabric, a, _b) = end_in(state);
        let request = SendRequest { id: 1, segments: &[], operation: Operation::Send, flags: SIGNALLED };
        match state {
            State::ReadyToSend | State::Error => a.post(&[request]).unwrap(),
            _ => assert_eq!(refused(a.post(&[request])), (0, libc::EINVAL)),
        }
    }
}

#[test]
fn buffers_posted_in_init_are_used_later() {
    let setup = Setup::default();
    let (fabric, a, b) = apart(&setup);
    b.modify(End::init()).unwrap();
    b.receive(7, 100, 10);
    a.modify(End::init()).unwrap();
    a.modify(a.to_receive(&b, 1)).unwrap();
    a.modify(a.to_send(1, 7)).unwrap();
    b.modify(b.to_receive(&a, 1)).unwrap();
    a.send(1, b"hello");
    fabric.run();
    assert_eq!(b.ends(), [(7, Status::Success)]);
    assert_eq!(b.events(), [AsyncEvent::Established(b.pair)], "it was not ready to send yet");
    assert_eq!(b.memory.get(100, 5), b"hello");
}

#[test]
fn an_error_flushes_what_is_posted_and_what_will_be() {
    let (fabric, a, _b) = connected(&Setup::default());
    a.receive(1, 0, 1);
    a.receive(2, 0, 1);
    a.request(3, Operation::Send, &[], SILENT);
    a.request(4, Operation::Send, &[], SIGNALLED);
    a.modify(Transition::Error).unwrap();
    fabric.run();
    let flushed = |ids: &[u64]| ids.iter().map(|&id| (id, Status::Flushed)).collect::<Vec<_>>();
    let mut ends = a.ends();
    ends.sort_by_key(|&(id, _)| id);
    assert_eq!(ends, flushed(&[1, 2, 3, 4]));
    a.request(5, Operation::Send, &[], SILENT);
    fabric.run();
    assert_eq!(a.ends(), flushed(&[5]));
    a.receive(6, 0, 1);
    fabric.run();
    assert_eq!(a.ends(), flushed(&[6]));
    assert_eq!(a.events(), [], "it was asked for");
}

#[test]
fn a_reset_forgets_what_is_posted_and_its_completions() {
    let (fabric, a, b) = connected(&Setup::default());
    b.receive(1, 0, 1);
    a.send(1, b"x");
    fabric.run();
    a.receive(2, 0, 1);
    a.send(2, b"x");
    a.modify(Transition::Reset).unwrap();
    fabric.run();
    assert_eq!(a.ends(), []);
    assert_eq!(b.ends(), [(1, Status::Success)]);
    join_again(&a, &b);
    b.receive(3, 0, 1);
    for id in 0..8 {
        a.request(id, Operation::Send, &[], SILENT);
    }
    let more = SendRequest { id: 8, segments: &[], operation: Operation::Send, flags: SILENT };
    assert_eq!(refused(a.post(&[more])), (0, libc::ENOMEM), "all places, and no more");
}

fn join_again(a: &End, b: &End) {
    b.modify(Transition::Reset).unwrap();
    join(a, b, &Setup::default());
}

#[test]
fn drivers_may_leave_completions_of_what_is_destroyed() {
    for keeps in [false, true] {
        let mut setup = Setup::default();
        setup.devices[0].keeps_completions = keeps;
        let (fabric, a, b) = connected(&setup);
        b.receive(1, 0, 1);
        a.send(1, b"x");
        fabric.run();
        call!(a.model.destroy_pair(a.pair)).unwrap();
        assert_eq!(a.ends().len(), usize::from(keeps));
    }
}

#[test]
fn queue_pairs_that_disagree_about_their_first_packets_do_not_hear_each_other() {
    let setup = Setup::default();
    let (fabric, a, b) = apart(&setup);
    for (end, peer) in [(&a, &b), (&b, &a)] {
        end.modify(End::init()).unwrap();
        end.modify(end.to_receive(peer, 1)).unwrap();
    }
    b.receive(1, 0, 1);
    let Transition::ReadyToSend { timeout, retries, not_ready_retries, reads_asked, .. } = a.to_send(1, 7) else {
        panic!()
    };
    a.modify(Transition::ReadyToSend { first_packet: 5, timeout, retries, not_ready_retries, reads_asked }).unwrap();
    a.send(1, b"x");
    fabric.run();
    assert_eq!(a.ends(), [(1, Status::RetryExceeded)]);
    assert_eq!(b.ends(), []);
}
