//! End of connections and identifiers.

use super::*;

const DISCONNECTED: (CmEventKind, i32) = (CmEventKind::Disconnected, 0);
const EXIT: (CmEventKind, i32) = (CmEventKind::TimeWaitExit, 0);

#[test]
fn disconnect_ends_both_ends_once_confirmed() {
    for end in [0, 1] {
        let mut rig = Rig::new();
        let ids = rig.connect();
        rig.disconnect(end, ids[end]);
        rig.disconnect(end, ids[end]);
        assert_eq!((rig.events(1 - end), rig.events(end)), (vec![DISCONNECTED], vec![]));
        assert_eq!(errno_of(rig.ends[end].cm.transition(ids[end], QpState::Rts, &options())), libc::EINVAL);
        rig.disconnect(1 - end, ids[1 - end]);
        assert_eq!(rig.events(end), [DISCONNECTED]);
        rig.run(Duration::from_secs(1));
        assert_eq!((rig.events(1 - end), rig.events(end)), (vec![EXIT], vec![EXIT]));
        rig.disconnect(end, ids[end]);
        rig.destroy(end, ids[end]);
        assert_eq!(errno_of(rig.ends[end].cm.disconnect(ids[end], rig.now)), libc::EINVAL);
    }
}

#[test]
fn simultaneous_disconnect_ends_both_ends_once() {
    let mut rig = Rig::new();
    let ids = rig.connect();
    for end in [0, 1] {
        rig.disconnect(end, ids[end]);
    }
    rig.run(Duration::from_secs(100));
    for end in [0, 1] {
        assert_eq!(rig.events(end), [DISCONNECTED, EXIT]);
        assert!(rig.sent(end).ends_with(&[attribute::DREQ, attribute::DREP]));
    }
}

#[test]
fn unconfirmed_disconnect_times_out() {
    let mut rig = Rig::new();
    let [active, _] = rig.connect();
    rig.lose.insert(attribute::DREQ, usize::MAX);
    rig.disconnect(0, active);
    rig.run(Duration::from_secs(25));
    assert_eq!(rig.events(0), []);
    rig.run(Duration::from_secs(1));
    assert_eq!(rig.events(0), [(CmEventKind::Disconnected, -libc::ETIMEDOUT), EXIT]);
}

#[test]
fn disconnect_before_confirmation_ends_the_connection() {
    let mut rig = Rig::new();
    let listener = rig.listen(1, 80, 8);
    let active = rig.request(80, 17);
    assert_eq!(errno_of(rig.ends[0].cm.disconnect(active, rig.now)), libc::EINVAL);
    let passive = rig.event(1, CmEventKind::Request { listener }).id;
    rig.ends[1].cm.accept(passive, &parameters(18, b""), rig.now).unwrap();
    rig.event(0, CmEventKind::Response);
    rig.disconnect(1, passive);
    assert_eq!(rig.events(0), [DISCONNECTED]);
    assert_eq!(errno_of(rig.ends[0].cm.establish(active)), libc::EINVAL);
}

/// Progress of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Step {
    Resolved,
    Requested,
    Taken,
    Accepted,
    Response,
    Established,
    Disconnecting,
    Over,
}

/// Returns the identifiers of a connection that has progressed to `step`. End 0 is active and disconnects.
fn progress(rig: &mut Rig, step: Step) -> [Option<Handle>; 2] {
    let listener = rig.listen(1, 80, 8);
    let active = rig.resolve(80);
    let mut passive = None;
    let lost = if step == Step::Accepted { usize::MAX } else { 0 };
    rig.lose.insert(attribute::REP, lost);
    if step >= Step::Requested {
        rig.ends[0].cm.connect(active, &parameters(17, b""), rig.now).unwrap();
    }
    if step >= Step::Taken {
        passive = Some(rig.event(1, CmEventKind::Request { listener }).id);
    }
    if let Some(passive) = passive.filter(|_| step >= Step::Accepted) {
        rig.ends[1].cm.accept(passive, &parameters(18, b""), rig.now).unwrap();
        rig.settle();
    }
    if step >= Step::Established {
        rig.ends[0].cm.establish(active).unwrap();
        rig.settle();
    }
    if step >= Step::Disconnecting {
        rig.disconnect(0, active);
        rig.settle();
    }
    if let Some(passive) = passive.filter(|_| step >= Step::Over) {
        rig.disconnect(1, passive);
        rig.settle();
    }
    rig.ends.iter_mut().for_each(|end| end.events.clear());
    [Some(active), passive]
}

#[test]
fn destroyed_identifier_notifies_the_peer_in_every_state() {
    use CmEventKind::{Disconnected, Rejected};
    // Events of the passive and of the active end, when the identifier of the other one is destroyed.
    type Outcome = Option<(CmEventKind, i32)>;
    let cases: [(Step, Outcome, Outcome); 8] = [
        (Step::Resolved, None, None),
        (Step::Requested, Some((Rejected, 4)), None),
        (Step::Taken, Some((Rejected, 4)), Some((Rejected, 28))),
        (Step::Accepted, Some((Rejected, 4)), None),
        (Step::Response, Some((Rejected, 28)), Some((Rejected, 28))),
        (Step::Established, Some((Disconnected, 0)), Some((Disconnected, 0))),
        (Step::Disconnecting, None, Some((Disconnected, 0))),
        (Step::Over, None, None),
    ];
    for (step, of_passive, of_active) in cases {
        for (end, expected) in [(0, of_passive), (1, of_active)] {
            let mut rig = Rig::new();
            let ids = progress(&mut rig, step);
            let Some(id) = ids[end] else { continue };
            rig.destroy(end, id);
            let mut events = rig.events(1 - end);
            events.retain(|(kind, _)| !matches!(kind, CmEventKind::Request { .. }));
            assert_eq!(events, expected.into_iter().collect::<Vec<_>>(), "{step:?}, {end}");
            if let Some(id) = ids[1 - end] {
                rig.destroy(1 - end, id);
            }
            rig.run(Duration::from_secs(100));
            assert_eq!((rig.events(0), rig.events(1)), (vec![], vec![]));
            for end in &rig.ends {
                assert_eq!((end.cm.connections.len(), end.cm.connections.half_open()), (0, 0), "{step:?}");
                assert_eq!((end.cm.connections.lingering(), end.cm.next_deadline()), (0, None), "{step:?}");
            }
        }
    }
}

#[test]
fn lingering_connection_repeats_its_end() {
    let mut rig = Rig::new();
    let [active, passive] = rig.connect();
    rig.lose.insert(attribute::DREQ, 3);
    rig.destroy(0, active);
    rig.run(Duration::from_secs(1));
    assert_eq!((rig.events(1), rig.ends[0].cm.connections.lingering()), (vec![DISCONNECTED], 1));
    rig.destroy(1, passive);
    rig.settle();
    assert_eq!((rig.ends[0].cm.connections.len(), rig.ends[0].cm.next_deadline()), (0, None));
}

#[test]
fn destroyed_listener_rejects_untaken_requests() {
    let mut rig = Rig::new();
    let listener = rig.listen(1, 80, 8);
    rig.request(80, 17);
    let req = rig.intercept(0).unwrap();
    rig.inject(1, &req.0);
    rig.destroy(1, listener);
    assert_eq!((rig.events(0), rig.events(1)), (vec![(CmEventKind::Rejected, 28)], vec![]));
    let channel = rig.ends[1].channel;
    rig.ends[1].cm.destroy_event_channel(channel).unwrap();
}

#[test]
fn request_with_queue_pair_of_a_connection_ends_that_connection() {
    let cases = [
        (Step::Taken, (CmEventKind::Rejected, 10)),
        (Step::Accepted, (CmEventKind::Rejected, 10)),
        (Step::Established, DISCONNECTED),
    ];
    for (step, expected) in cases {
        let mut rig = Rig::new();
        let [active, _] = progress(&mut rig, step);
        // The peer has restarted: it forgot its connection, and uses the queue pair again.
        let Phase::Connecting(comm) = rig.ends[0].cm.ids.get(active.unwrap()).unwrap().phase else {
            panic!("no phase")
        };
        rig.ends[0].cm.connections.remove(comm);
        rig.request(80, 17);
        assert_eq!((rig.events(0), rig.events(1)), (vec![(CmEventKind::Rejected, 10)], vec![expected]), "{step:?}");
        rig.request(80, 17);
        rig.settle();
        assert_eq!(rig.ends[1].events.len(), 1);
    }
}

#[test]
fn messages_of_forgotten_connections_are_answered() {
    let mut rig = Rig::new();
    rig.inject(1, &Mad::dreq(5, 6, 7, 8).0);
    assert_eq!(rig.intercept(1), Some(Mad::new(attribute::DREP, 5, 7, 6)));
    rig.inject(1, &Mad::new(attribute::REP, 5, 6, 7).0);
    let rej = rig.intercept(1).unwrap();
    assert_eq!((rej.attribute(), rej.sender(), rej.receiver()), (attribute::REJ, 7, 6));
    assert_eq!((rej.about(), rej.rej_fields().0), (About::Rep, reason::INVALID_COMM_ID));
    for attribute in [attribute::RTU, attribute::DREP, attribute::MRA, attribute::REJ] {
        rig.inject(1, &Mad::new(attribute, 5, 6, 7).0);
        assert_eq!(rig.intercept(1), None);
    }
    assert_eq!(rig.ends[1].cm.counters().ignored, 4);
}
