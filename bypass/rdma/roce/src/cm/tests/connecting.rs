//! Establishment of connections.

use super::super::messages::TIME_WAIT;
use super::*;

#[test]
fn connection_is_established_with_parameters_of_both_ends() {
    for addresses in [V4, V6] {
        let mut rig = Rig::at(addresses, [Mtu::Mtu4096, Mtu::Mtu1024]);
        let listener = rig.listen(1, 80, 8);
        let active = rig.request(80, 17);
        let request = rig.event(1, CmEventKind::Request { listener });
        let passive = request.id;
        assert_eq!((request.qp, request.initiator_depth, request.responder_resources), (17, 4, 3));
        assert_eq!((request.status, request.private_data), (0, padded(b"request")));
        let to_passive = rig.ends[1].cm.addresses(passive).unwrap();
        let (local, remote) = rig.ends[0].cm.addresses(active).unwrap();
        assert_eq!((remote, local), to_passive);
        assert_eq!((remote.port(), rig.ends[1].cm.source(passive).unwrap()), (80, rig.ends[1].address));

        // The passive end is ready to receive before it accepts.
        let rtr = |rig: &Rig, end: usize, id| rig.ends[end].cm.transition(id, QpState::Rtr, &options());
        let rts = |rig: &Rig, end: usize, id| rig.ends[end].cm.transition(id, QpState::Rts, &options());
        let Ok(Transition::Rtr { mtu, qp, psn: first_to_passive, responder_resources, path, min_rnr_timer }) =
            rtr(&rig, 1, passive)
        else {
            panic!("no transition")
        };
        assert_eq!((mtu, qp, responder_resources, min_rnr_timer), (Mtu::Mtu1024, 17, 4, 12));
        assert_eq!((path.gid, path.source, path.port, path.hop_limit), (gid_of(local.ip()), 0, 1, 64));
        let Ok(Transition::Rts { psn: first_from_passive, initiator_depth: 3, .. }) = rts(&rig, 1, passive) else {
            panic!("no transition")
        };
        assert_eq!(errno_of(rtr(&rig, 0, active)), libc::EINVAL);

        let reply = CmConnParam { responder_resources: 1, initiator_depth: 2, ..parameters(18, b"accept") };
        rig.ends[1].cm.accept(passive, &reply, rig.now).unwrap();
        let response = rig.event(0, CmEventKind::Response);
        assert_eq!((response.qp, response.initiator_depth, response.responder_resources), (18, 2, 1));
        assert_eq!((response.id, response.private_data), (active, padded(b"accept")));
        let Ok(Transition::Rtr { qp: 18, psn: first_to_active, responder_resources: 2, .. }) = rtr(&rig, 0, active)
        else {
            panic!("no transition")
        };
        let Ok(Transition::Rts { psn: first_from_active, timeout: 16, initiator_depth: 1, .. }) = rts(&rig, 0, active)
        else {
            panic!("no transition")
        };
        assert_eq!([first_to_active, first_to_passive], [first_from_passive, first_from_active]);

        assert_eq!(rig.events(1), []);
        rig.ends[0].cm.establish(active).unwrap();
        assert_eq!(rig.event(1, CmEventKind::Established).id, passive);
        rig.run(Duration::from_secs(100));
        assert_eq!((rig.events(0), rig.events(1)), (vec![], vec![]));
        assert_eq!(rig.log, [(0, attribute::REQ), (1, attribute::REP), (0, attribute::RTU)]);
    }
}

#[test]
fn init_grants_peer_rights_once_connecting() {
    let mut rig = Rig::new();
    rig.listen(1, 80, 8);
    let id = rig.resolve(80);
    let access = |rig: &Rig| match rig.ends[0].cm.transition(id, QpState::Init, &options()).unwrap() {
        Transition::Init { port: 1, partition: 0, access } => [access.remote_write, access.remote_read],
        other => panic!("{other:?}"),
    };
    assert_eq!(access(&rig), [false, false]);
    let given = CmConnParam { responder_resources: 0, ..parameters(17, b"") };
    rig.ends[0].cm.connect(id, &given, rig.now).unwrap();
    assert_eq!(access(&rig), [true, false]);
}

#[test]
fn connects_and_ends_although_a_message_is_lost_or_repeated() {
    use attribute::*;
    for (lost, duplicates) in [REQ, REP, RTU, DREQ, DREP, 0].into_iter().flat_map(|lost| [(lost, false), (lost, true)])
    {
        let mut rig = Rig::new();
        rig.lose.insert(lost, 1);
        rig.duplicates = duplicates;
        let [active, passive] = rig.connect();
        rig.disconnect(1, passive);
        rig.run(Duration::from_millis(400));
        assert_eq!(rig.events(0), [(CmEventKind::Disconnected, 0)], "{lost:#x}");
        rig.disconnect(0, active);
        rig.run(Duration::from_secs(3));
        let ended = vec![(CmEventKind::Disconnected, 0), (CmEventKind::TimeWaitExit, 0)];
        let exit = vec![(CmEventKind::TimeWaitExit, 0)];
        assert_eq!((rig.events(1), rig.events(0)), (ended, exit), "{lost:#x}");
        assert_eq!(rig.ends.iter().map(|end| end.cm.connections.len()).sum::<usize>(), 0);
        assert_eq!(rig.ends[0].cm.next_deadline(), None);
    }
}

#[test]
fn rejection_has_reason_and_private_data() {
    let mut rig = Rig::new();
    let listener = rig.listen(1, 80, 8);
    rig.request(80, 17);
    let passive = rig.event(1, CmEventKind::Request { listener }).id;
    rig.ends[1].cm.reject(passive, b"no", rig.now).unwrap();
    assert_eq!(errno_of(rig.ends[1].cm.accept(passive, &parameters(18, b""), rig.now)), libc::EINVAL);
    let rejected = rig.event(0, CmEventKind::Rejected);
    assert_eq!((rejected.status, rejected.private_data), (28, padded(b"no")));
    rig.request(81, 19);
    assert_eq!(rig.events(0), [(CmEventKind::Rejected, 8)]);
}

#[test]
fn duplicate_of_rejected_request_is_rejected_again() {
    // By a call, or by destroying the identifier, before or after accepting.
    for step in 0..3 {
        let mut rig = Rig::new();
        let listener = rig.listen(1, 80, 8);
        rig.request(80, 17);
        let req = rig.intercept(0).unwrap();
        rig.inject(1, &req.0);
        let passive = rig.event(1, CmEventKind::Request { listener }).id;
        match step {
            0 => rig.ends[1].cm.reject(passive, b"no", rig.now).unwrap(),
            1 => {}
            _ => rig.ends[1].cm.accept(passive, &parameters(18, b""), rig.now).unwrap(),
        }
        rig.lose.insert(attribute::REJ, 1);
        rig.lose.insert(attribute::REP, 1);
        rig.destroy(1, passive);
        rig.settle();
        rig.inject(1, &req.0);
        rig.run(Duration::from_millis(1));
        assert_eq!((rig.events(0), rig.events(1)), (vec![(CmEventKind::Rejected, 28)], vec![]), "{step}");
        // The queue pair of the peer is free for another request.
        rig.request(80, 17);
        let CmEvent { id, .. } = rig.event(1, CmEventKind::Request { listener });
        rig.destroy(1, id);
        rig.run(TIME_WAIT);
        assert_eq!((rig.ends[1].cm.connections.len(), rig.ends[1].cm.next_deadline()), (0, None), "{step}");
        assert!(rig.ends[1].cm.connections.is_unreferenced());
    }
}

#[test]
fn request_that_cannot_be_accepted_is_rejected() {
    // Offsets of the MAD: offset in the table, and 24.
    let cases: [(usize, u8, i32); 7] = [
        (24 + 8, 1, 8),      // service ID of another agent
        (24 + 13, 7, 8),     // service ID of another port space
        (24 + 43, 0xa3, 9),  // unreliable connection
        (24 + 34, 0, 1),     // no queue pair
        (24 + 50, 0x06, 26), // no path MTU
        (24 + 140, 0x10, 5), // version of the private data header
        (24 + 141, 0x50, 5), // IP version
    ];
    for (offset, value, status) in cases {
        let mut rig = Rig::new();
        rig.listen(1, 80, 8);
        rig.request(80, 17);
        let mut req = rig.intercept(0).unwrap();
        req.0[offset] = value;
        rig.inject(1, &req.0);
        assert_eq!(rig.events(0), [(CmEventKind::Rejected, status)], "{offset}");
        assert_eq!(rig.events(1), []);
    }
}

#[test]
fn silent_peer_is_unreachable() {
    let mut rig = Rig::new();
    let listener = rig.listen(1, 80, 8);
    rig.lose.insert(attribute::REQ, usize::MAX);
    let id = rig.request(80, 17);
    rig.run(Duration::from_secs(25));
    assert_eq!((rig.events(0), rig.sent(0)), (vec![], vec![attribute::REQ; 16]));
    rig.run(Duration::from_secs(1));
    assert_eq!(rig.events(0), [(CmEventKind::Unreachable, -libc::ETIMEDOUT)]);
    rig.destroy(0, id);

    rig.lose.clear();
    rig.lose.insert(attribute::REP, usize::MAX);
    let active = rig.request(80, 17);
    let passive = rig.event(1, CmEventKind::Request { listener }).id;
    rig.ends[1].cm.accept(passive, &parameters(18, b""), rig.now).unwrap();
    rig.run(Duration::from_secs(24));
    assert_eq!((rig.events(0), rig.events(1)), (vec![], vec![]));
    rig.run(Duration::from_secs(2));
    // The request's timeout rejects what the peer has accepted.
    assert_eq!(rig.events(0), [(CmEventKind::Unreachable, -libc::ETIMEDOUT)]);
    assert_eq!(rig.ends[1].cm.connections.len(), 0);
    assert_eq!(rig.events(1).len(), 1);
    rig.destroy(0, active);
}

#[test]
fn slow_program_defers_retransmission() {
    let mut rig = Rig::new();
    rig.listen(1, 80, 8);
    rig.request(80, 17);
    rig.run(Duration::from_secs(60));
    // The second request was answered by a MRA of 69 s.
    assert_eq!((rig.sent(0), rig.sent(1)), (vec![attribute::REQ; 2], vec![attribute::MRA]));
    let passive = rig.ends[1].events.remove(0).id;
    rig.ends[1].cm.accept(passive, &parameters(18, b""), rig.now).unwrap();
    rig.event(0, CmEventKind::Response);
}

#[test]
fn backlog_limits_untaken_requests() {
    let mut rig = Rig::new();
    let listener = rig.listen(1, 80, 2);
    let ids = [100, 101, 102].map(|qp| (rig.resolve(80), qp));
    for (id, qp) in ids {
        rig.ends[0].cm.connect(id, &parameters(qp, b""), rig.now).unwrap();
        let req = rig.intercept(0).unwrap();
        rig.inject(1, &req.0);
    }
    assert_eq!(rig.ends[1].cm.counters().over_limit, 1);
    // The third is repeated, and finds room once events are taken.
    assert_eq!(rig.events(1), [(CmEventKind::Request { listener }, 0); 2]);
    rig.run(Duration::from_millis(150));
    assert_eq!(rig.events(1), [(CmEventKind::Request { listener }, 0)]);
    assert_eq!(rig.events(0), []);
}

#[test]
fn local_address_is_the_one_nearest_to_the_peer() {
    let mut rig = Rig::new();
    let End { cm, channel, .. } = &mut rig.ends[0];
    let addresses = [("10.0.0.1", 8), ("10.1.0.1", 16), ("10.1.2.1", 24), ("fd00::1", 64), ("fd01::1", 64)];
    let addresses = addresses.map(|(address, prefix)| (address.parse().unwrap(), prefix));
    cm.set_addresses(&addresses, Mtu::Mtu1024);
    for (remote, local) in [
        ("10.1.2.9", "10.1.2.1"),
        ("10.1.9.9", "10.1.0.1"),
        ("10.9.9.9", "10.0.0.1"),
        ("10.1.0.1", "10.1.0.1"),
        ("192.0.2.1", "10.0.0.1"),
        ("::ffff:10.1.9.9", "10.1.0.1"),
        ("fd01::9", "fd01::1"),
        ("2001:db8::1", "fd00::1"),
    ] {
        let id = cm.create_id(*channel).unwrap();
        assert!(!cm.is_on_device(id));
        assert_eq!(errno_of(cm.source(id)), libc::EINVAL);
        cm.resolve_addr(id, SocketAddr::new(remote.parse().unwrap(), 80), 1000).unwrap();
        assert_eq!(cm.source(id).unwrap().to_string(), local, "{remote}");
        assert!(cm.is_on_device(id));
    }
    assert_eq!(cm.gid_index("10.1.2.1".parse().unwrap()), 2);
}

#[test]
fn address_of_unknown_family_fails() {
    let mut rig = Rig::new();
    let End { cm, channel, .. } = &mut rig.ends[0];
    let id = cm.create_id(*channel).unwrap();
    cm.resolve_addr(id, "[fd00::2]:80".parse().unwrap(), 1000).unwrap();
    assert_eq!(errno_of(cm.resolve_route(id, 1000)), libc::EINVAL);
    assert_eq!(rig.events(0), [(CmEventKind::AddressFailed, -libc::ENETUNREACH)]);
}

#[test]
fn removed_address_is_an_event_of_its_identifiers() {
    let mut rig = Rig::new();
    let [active, passive] = rig.connect();
    let address = rig.ends[0].address;
    rig.ends[0].cm.set_addresses(&[(address, 8)], Mtu::Mtu512);
    assert_eq!(rig.events(0), []);
    rig.ends[0].cm.set_addresses(&[], Mtu::Mtu512);
    assert_eq!(rig.event(0, CmEventKind::AddressChanged).id, active);
    assert_eq!(errno_of(rig.ends[0].cm.transition(active, QpState::Rtr, &options())), libc::EADDRNOTAVAIL);
    rig.ends[1].cm.set_addresses(&[], Mtu::Mtu512);
    // Also of the listener.
    let ids: Vec<_> = rig.ends[1].cm.ids.iter().map(|(id, _)| id).collect();
    rig.settle();
    assert_eq!(rig.ends[1].events.iter().map(|event| event.id).collect::<Vec<_>>(), ids);
    assert!(ids.contains(&passive));
}

#[test]
fn listeners_do_not_overlap() {
    let mut rig = Rig::new();
    let End { cm, channel, .. } = &mut rig.ends[0];
    let mut listen = |address: &str| {
        let id = cm.create_id(*channel).unwrap();
        cm.listen(id, address.parse().unwrap(), 1).map(|address| (id, address))
    };
    let (first, _) = listen("10.0.0.1:80").unwrap();
    assert_eq!(errno_of(listen("10.0.0.1:80")), libc::EADDRINUSE);
    assert_eq!(errno_of(listen("0.0.0.0:80")), libc::EADDRINUSE);
    assert_eq!(errno_of(listen("[::]:80")), libc::EADDRINUSE);
    assert_eq!(errno_of(listen("10.0.0.9:81")), libc::EADDRNOTAVAIL);
    let (_, chosen) = listen("0.0.0.0:0").unwrap();
    assert!(chosen.port() >= FIRST_DYNAMIC_PORT);
    assert_ne!(listen("0.0.0.0:0").unwrap().1, chosen);
    cm.destroy_id(first, Instant::ZERO).unwrap();
    let id = cm.create_id(*channel).unwrap();
    cm.listen(id, "[::]:80".parse().unwrap(), 1).unwrap();
    assert_eq!(cm.listener("10.0.0.1".parse().unwrap(), 80), Some(id));
    assert_eq!(errno_of(cm.listen(id, "[::]:82".parse().unwrap(), 1)), libc::EINVAL);
    assert_eq!(errno_of(cm.destroy_event_channel(*channel)), libc::EBUSY);
}

#[test]
fn device_connects_to_itself() {
    let mut rig = Rig::new();
    let listener = rig.listen(0, 80, 8);
    rig.ends[1].address = rig.ends[0].address;
    let active = rig.request(80, 17);
    let passive = rig.event(0, CmEventKind::Request { listener }).id;
    rig.ends[0].cm.accept(passive, &parameters(18, b""), rig.now).unwrap();
    rig.event(0, CmEventKind::Response);
    rig.ends[0].cm.establish(active).unwrap();
    rig.event(0, CmEventKind::Established);
    rig.destroy(0, active);
    assert_eq!(rig.event(0, CmEventKind::Disconnected).id, passive);
    rig.destroy(0, passive);
    rig.settle();
    assert_eq!(rig.ends[0].cm.connections.len(), 0);
}
