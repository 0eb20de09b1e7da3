//! Peers that send anything.

use super::*;

#[test]
fn malformed_and_unsupported_messages_are_counted() {
    let mut rig = Rig::new();
    let valid = Mad::new(0x19, 1, 2, 3).0;
    rig.inject(0, &[]);
    rig.inject(0, &valid[..255]);
    rig.inject(0, &[&valid[..], &[0]].concat());
    for offset in 0..4 {
        let mut wrong = valid;
        wrong[offset] ^= 1;
        rig.inject(0, &wrong);
    }
    for attribute in [0x01, 0x17, 0x18, 0x19, 0x1a, 0x1b] {
        rig.inject(0, &Mad::new(attribute, 1, 2, 3).0);
    }
    let expected = Counters { malformed: 7, unsupported: 6, ..Counters::default() };
    assert_eq!((rig.ends[0].cm.counters(), rig.intercept(0)), (expected, None));
}

/// Returns requests of different peers, by changed communication ID, queue pair and GUID.
fn requests(rig: &mut Rig, count: u32) -> Vec<Mad> {
    rig.request(80, 17);
    let req = rig.intercept(0).unwrap();
    let mut all = vec![req; count as usize];
    for (mad, number) in all.iter_mut().zip(1u32..) {
        mad.0[24..28].copy_from_slice(&number.to_be_bytes());
        mad.0[56..60].copy_from_slice(&(number << 8).to_be_bytes());
    }
    all
}

#[test]
fn half_open_requests_are_limited() {
    let mut rig = Rig::new();
    let listener = rig.listen(1, 80, u32::MAX);
    let all = requests(&mut rig, 5000);
    for mad in &all {
        rig.inject(1, &mad.0);
    }
    let open = MAX_HALF_OPEN;
    assert_eq!((rig.ends[1].cm.connections.half_open(), rig.ends[1].cm.ids.len()), (open, open + 1));
    assert_eq!(rig.ends[1].cm.counters().over_limit, 5000 - open as u64);
    rig.destroy(1, listener);
    let Cm { connections, ids, .. } = &rig.ends[1].cm;
    assert_eq!((connections.len(), connections.half_open(), ids.len()), (MAX_LINGERING, 0, 0), "for duplicates");
    rig.run(Duration::from_secs(1));
    assert_eq!(rig.ends[1].cm.connections.len(), 0);
}

#[test]
fn pending_replies_are_limited() {
    let mut rig = Rig::new();
    let all = requests(&mut rig, 5000);
    for mad in &all {
        rig.inject(1, &mad.0);
    }
    assert_eq!((rig.ends[1].cm.outgoing.len(), rig.ends[1].cm.counters().unsent), (1024, 5000 - 1024));
    // A port without room keeps them.
    rig.ends[1].cm.transmit(&mut |_, _, _| false);
    assert_eq!(rig.ends[1].cm.outgoing.len(), 1024);
    // There is room for messages of connections.
    let End { cm, channel, .. } = &mut rig.ends[1];
    let id = cm.create_id(*channel).unwrap();
    cm.resolve_addr(id, "10.0.0.1:80".parse().unwrap(), 1000).unwrap();
    cm.resolve_route(id, 1000).unwrap();
    cm.connect(id, &parameters(1, b""), rig.now).unwrap();
    assert_eq!(cm.outgoing.len(), 1025);
}

#[test]
fn lingering_connections_are_limited() {
    let mut rig = Rig::new();
    rig.listen(1, 80, u32::MAX);
    let all = requests(&mut rig, 2000);
    for (mad, number) in all.iter().zip(1u32..) {
        rig.inject(1, &mad.0);
        rig.settle();
        let id = rig.ends[1].events.remove(0).id;
        rig.ends[1].cm.accept(id, &parameters(number, b""), rig.now).unwrap();
        let rep = rig.intercept(1).unwrap();
        rig.inject(1, &Mad::new(attribute::RTU, 0, number, rep.sender()).0);
        rig.settle();
        rig.ends[1].events.clear();
        rig.destroy(1, id);
        while rig.intercept(1).is_some() {}
    }
    assert_eq!((rig.ends[1].cm.connections.lingering(), rig.ends[1].cm.connections.len()), (1024, 1024));
    rig.run(Duration::from_secs(30));
    assert_eq!((rig.ends[1].cm.connections.lingering(), rig.ends[1].cm.connections.len()), (0, 0));
}

#[test]
fn other_hosts_cannot_interfere() {
    let mut rig = Rig::new();
    let [active, passive] = rig.connect();
    rig.disconnect(0, active);
    let dreq = rig.intercept(0).unwrap();
    let (local, other) = (rig.ends[1].address, "10.0.0.9".parse().unwrap());
    rig.ends[1].cm.receive(rig.now, local, other, &dreq.0);
    // Nor does a wrong queue pair number.
    let mut wrong = dreq.clone();
    wrong.0[24 + 10] ^= 1;
    rig.inject(1, &wrong.0);
    assert_eq!(rig.events(1), []);
    rig.inject(1, &dreq.0);
    assert_eq!(rig.event(1, CmEventKind::Disconnected).id, passive);
}

/// Performs a random call at an end. Calls in the wrong state fail.
fn act(rig: &mut Rig, random: &mut fastrand::Rng) {
    let now = rig.now;
    let end = random.usize(..2);
    let remote = SocketAddr::new(rig.ends[1 - end].address, 80);
    let End { cm, channel, .. } = &mut rig.ends[end];
    let ids: Vec<Handle> = cm.ids.iter().map(|(id, _)| id).collect();
    if ids.len() < 8 {
        let id = cm.create_id(*channel).unwrap();
        if random.u8(..4) == 0 {
            _ = cm.listen(id, SocketAddr::new("0.0.0.0".parse().unwrap(), 80), 2);
        } else {
            _ = cm.resolve_addr(id, remote, 1000);
            _ = cm.resolve_route(id, 1000);
        }
    }
    let Some(id) = random.choice(ids) else { return };
    let given = parameters(random.u32(1..20), b"data");
    _ = match random.u8(..12) {
        0..4 => cm.connect(id, &given, now),
        4..6 => cm.accept(id, &given, now),
        6..8 => cm.establish(id),
        8 => cm.reject(id, b"no", now),
        9 => cm.disconnect(id, now),
        10 => cm.destroy_id(id, now),
        _ => cm.transition(id, QpState::Rtr, &options()).map(drop),
    };
}

#[test]
fn random_and_mutated_messages_do_no_harm() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut rig = Rig::new();
        let mut seen: Vec<(usize, Mad)> = Vec::new();
        for _ in 0..2000 {
            act(&mut rig, &mut random);
            for end in [0, 1] {
                let Some(mut mad) = rig.intercept(end) else { continue };
                if seen.len() < 200 {
                    seen.push((1 - end, mad.clone()));
                }
                for _ in 0..random.usize(..3) {
                    mad.0[random.usize(24..200)] = random.u8(..);
                }
                if random.u8(..8) > 0 {
                    rig.inject(1 - end, &mad.0);
                }
            }
            if let Some(&(end, ref mad)) = random.choice(&seen) {
                let mut mad = mad.clone();
                // Another message type, with the same communication IDs.
                if random.bool() {
                    mad.0[17] = random.u8(0x10..0x18);
                }
                let length = if random.u8(..16) == 0 { random.usize(..MAD_LEN) } else { MAD_LEN };
                rig.inject(end, &mad.0[..length]);
            }
            let mut noise = [0; MAD_LEN];
            random.fill(&mut noise);
            rig.inject(random.usize(..2), &noise);
            rig.now += Duration::from_millis(random.u64(..200));
            for end in &mut rig.ends {
                end.cm.expire(rig.now);
                if random.bool() {
                    while end.cm.get_event(end.channel).unwrap().is_some() {}
                }
                assert!(end.cm.connections.len() <= end.cm.ids.len() + end.cm.connections.lingering());
            }
        }
        // All ends: no connection stays.
        for end in &mut rig.ends {
            let ids: Vec<Handle> = end.cm.ids.iter().map(|(id, _)| id).collect();
            ids.into_iter().for_each(|id| _ = end.cm.destroy_id(id, rig.now));
        }
        rig.run(Duration::from_secs(100));
        for end in &rig.ends {
            let Cm { connections, ids, outgoing, listeners, .. } = &end.cm;
            assert_eq!((connections.len(), connections.half_open(), connections.lingering()), (0, 0, 0));
            assert_eq!((ids.len(), outgoing.len(), listeners.len()), (0, 0, 0));
            assert!(connections.is_unreferenced());
        }
    }
}
