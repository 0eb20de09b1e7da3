use super::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn ip(n: u32) -> IpAddr {
    IpAddr::from((0x0a00_0000 + n).to_be_bytes())
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

/// Learns a neighbour and returns the packets that waited.
fn learn(table: &mut Neighbors<u32>, ip: IpAddr, mac: MacAddr, new: bool, now: Instant) -> Vec<u32> {
    match table.learn(ip, mac, new, now) {
        Update::Known { parked, .. } => parked,
        _ => Vec::new(),
    }
}

fn poll(table: &mut Neighbors<u32>, now: Instant) -> (Vec<Solicitation>, Vec<(IpAddr, Vec<u32>)>) {
    let (mut solicitations, mut lost) = (Vec::new(), Vec::new());
    table.poll(now, |solicitation| solicitations.push(solicitation), |ip, parked| lost.push((ip, parked)));
    (solicitations, lost)
}

#[test]
fn packets_wait_for_resolution_and_the_oldest_are_dropped() {
    let mut table = Neighbors::new(0);
    assert_eq!(table.look_up(ip(1), at(0)), Lookup::Solicit);
    assert_eq!(table.park(ip(1), 0), None);
    for n in 1..=MAX_PARKED as u32 {
        assert_eq!(table.look_up(ip(1), at(0)), Lookup::Pending);
        assert_eq!(table.park(ip(1), n), (n == MAX_PARKED as u32).then_some(0));
    }
    assert_eq!(learn(&mut table, ip(1), MAC, false, at(0)), (1..=MAX_PARKED as u32).collect::<Vec<_>>());
    assert_eq!(table.look_up(ip(1), at(1)), Lookup::Known(MAC));
}

#[test]
fn waiting_packets_are_bounded_but_one_per_neighbour_may_wait() {
    let mut table = Neighbors::new(0);
    let wait = |table: &mut Neighbors<u32>, neighbor, packet| {
        table.look_up(ip(neighbor), at(0));
        table.park(ip(neighbor), packet)
    };
    for n in 0..MAX_PARKED_IN_ALL as u32 {
        assert_eq!(wait(&mut table, n / MAX_PARKED as u32, n), None);
    }
    assert_eq!(wait(&mut table, 100, 0), None);
    assert_eq!(wait(&mut table, 100, 1), Some(0));
    // Sent and dropped packets free their places.
    assert_eq!(learn(&mut table, ip(0), MAC, false, at(0)).len(), MAX_PARKED);
    assert_eq!(wait(&mut table, 100, 2), None);
    for seconds in 1..=3 {
        poll(&mut table, at(seconds));
    }
    assert_eq!(table.v4.parked, 0);
}

#[test]
fn unanswered_solicitation_is_repeated_and_given_up() {
    let mut table = Neighbors::new(0);
    table.look_up(ip(1), at(0));
    table.park(ip(1), 7);
    assert_eq!(poll(&mut table, at(0)), (vec![], vec![]));
    let solicitation = vec![Solicitation { ip: ip(1), to: None }];
    assert_eq!(poll(&mut table, at(1)), (solicitation.clone(), vec![]));
    assert_eq!(poll(&mut table, at(2)), (solicitation, vec![]));
    assert_eq!(poll(&mut table, at(3)), (vec![], vec![(ip(1), vec![7])]));
    assert_eq!(table.next_deadline(), None);
    assert_eq!(table.look_up(ip(1), at(4)), Lookup::Solicit);
}

#[test]
fn stale_neighbour_is_used_during_confirmation() {
    let mut table = Neighbors::<u32>::new(0);
    learn(&mut table, ip(1), MAC, true, at(0));
    assert_eq!(table.look_up(ip(1), at(29)), Lookup::Known(MAC));
    let solicitation = Solicitation { ip: ip(1), to: Some(MAC) };
    assert_eq!(table.look_up(ip(1), at(30)), Lookup::Confirm(MAC, solicitation));
    assert_eq!(table.look_up(ip(1), at(30)), Lookup::Known(MAC));
    assert_eq!(poll(&mut table, at(31)).0, [solicitation]);
    learn(&mut table, ip(1), MAC, false, at(31));
    assert_eq!(table.look_up(ip(1), at(60)), Lookup::Known(MAC));
}

#[test]
fn advertised_times_apply_to_ipv6() {
    let mut table = Neighbors::<u32>::new(0);
    let six = IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1]);
    for ip in [ip(1), six] {
        learn(&mut table, ip, MAC, true, at(0));
    }
    table.set_times(Some(Duration::from_secs(10)), Some(Duration::from_secs(5)));
    assert_eq!(table.look_up(ip(1), at(12)), Lookup::Known(MAC));
    assert!(matches!(table.look_up(six, at(12)), Lookup::Confirm(..)));
    assert_eq!(table.next_deadline(), Some(at(17)));
    table.set_times(None, None);
    learn(&mut table, six, MAC, true, at(13));
    assert_eq!(table.look_up(six, at(42)), Lookup::Known(MAC));
}

#[test]
fn reconfirmation_is_multicast_and_keeps_addresses_in_use() {
    let other = MacAddr([2, 0, 0, 0, 0, 8]);
    let [first, second] = [1, 2].map(|n| Solicitation { ip: ip(n), to: None });
    let mut table = Neighbors::new(0);
    learn(&mut table, ip(1), MAC, true, at(0));
    learn(&mut table, ip(2), MAC, true, at(0));
    // One of them is under unicast confirmation.
    assert!(matches!(table.look_up(ip(2), at(30)), Lookup::Confirm(MAC, Solicitation { to: Some(MAC), .. })));
    assert_eq!(table.look_up(ip(3), at(30)), Lookup::Solicit);
    table.park(ip(3), 7);
    table.require_confirmation();
    assert_eq!(table.look_up(ip(1), at(30)), Lookup::Confirm(MAC, first));
    assert_eq!(table.look_up(ip(2), at(30)), Lookup::Confirm(MAC, second));
    assert_eq!(table.look_up(ip(1), at(30)), Lookup::Known(MAC));
    assert_eq!(table.look_up(ip(3), at(30)), Lookup::Pending);
    let mut solicitations = poll(&mut table, at(31)).0;
    solicitations.sort_by_key(|solicitation| solicitation.ip);
    assert_eq!(solicitations, [first, second, Solicitation { ip: ip(3), to: None }]);
    learn(&mut table, ip(1), other, false, at(31));
    assert_eq!(table.look_up(ip(1), at(31)), Lookup::Known(other));
    assert_eq!(learn(&mut table, ip(3), MAC, false, at(31)), [7]);
    // A neighbour without a reply is removed.
    (32..=33).for_each(|second| _ = poll(&mut table, at(second)));
    assert_eq!(table.look_up(ip(2), at(34)), Lookup::Solicit);
}

#[test]
fn unsolicited_neighbour_is_learnt_only_if_it_solicits() {
    let mut table = Neighbors::<u32>::new(0);
    learn(&mut table, ip(1), MAC, false, at(0));
    assert_eq!(table.look_up(ip(1), at(0)), Lookup::Solicit);
    learn(&mut table, ip(2), MAC, true, at(0));
    assert_eq!(table.look_up(ip(2), at(0)), Lookup::Known(MAC));
}

/// Returns an IPv6 address on the link.
fn ip6(n: u32) -> IpAddr {
    IpAddr::from([0xfe80, 0, 0, 0, 0, 0, (n >> 16) as u16, n as u16])
}

/// Returns a table full of entries with lookups, the first at `at(0)`, the others at `at(10)`.
fn full() -> Neighbors<u32> {
    let mut table = Neighbors::new(0);
    for n in 0..MAX_NEIGHBORS as u32 {
        let now = at(if n == 0 { 0 } else { 10 });
        if n % 1000 == 0 {
            table.v4.unsolicited = RateLimit::new(UNSOLICITED_BURST);
        }
        learn(&mut table, ip(n), MAC, true, now);
        assert_eq!(table.look_up(ip(n), now), Lookup::Known(MAC));
    }
    table
}

#[test]
fn unsolicited_messages_are_limited_by_rate_and_replace_only_unused_entries() {
    let mut table = Neighbors::<u32>::new(0);
    learn(&mut table, ip(0), MAC, true, at(0));
    assert_eq!(table.look_up(ip(0), at(0)), Lookup::Known(MAC));
    let (mut limited, mut last) = (0, 0);
    for n in 1..100_000 {
        // 2000 messages per second.
        let now = at(0) + Duration::from_micros(500) * n;
        match table.learn(ip(n), MAC, true, now) {
            Update::Created => last = n,
            update => limited += u32::from(update == Update::Limited),
        }
    }
    assert!((47_000..48_000).contains(&limited), "{limited}");
    assert_eq!((table.entries.len(), table.v4.entries, table.v4.unused), (MAX_UNUSED + 1, MAX_UNUSED + 1, MAX_UNUSED));
    assert!(table.v4.oldest.len() < 2 * MAX_UNUSED);
    assert_eq!(table.known(ip(0)), Some(MAC), "a used entry stays");
    assert_eq!((table.known(ip(1)), table.known(ip(last))), (None, Some(MAC)), "the oldest go first");
}

#[test]
fn limits_apply_per_family() {
    let mut table = Neighbors::<u32>::new(0);
    for n in 0..40_000 {
        table.learn(ip6(n), MAC, true, at(0));
    }
    for n in 0..MAX_PENDING as u32 {
        assert_eq!(table.look_up(ip6(1 << 20 | n), at(0)), Lookup::Solicit);
    }
    assert_eq!(table.look_up(ip6(1 << 21), at(0)), Lookup::Refused);
    assert_eq!(table.learn(ip(1), MAC, true, at(0)), Update::Created);
    assert_eq!(table.look_up(ip(2), at(0)), Lookup::Solicit);
}

#[test]
fn used_entry_is_replaced_only_after_scan_and_if_no_connection_needs_it() {
    let mut table = full();
    assert_eq!(table.scan(), Some(0), "starts when the table is nearly full");
    table.mark_in_use(ip(1));
    table.scanned(100, false);
    assert_eq!((table.scan(), table.next_deadline()), (Some(100), Some(Instant::ZERO)));
    assert_eq!(table.look_up(ip(1 << 20), at(11)), Lookup::Refused, "scan not ended");
    table.scanned(200, true);
    assert_eq!(table.scan(), None);
    // Entries used after the scan began may belong to connections that it missed.
    assert_eq!(table.look_up(ip(1 << 20), at(11)), Lookup::Solicit, "entry not used since then is replaced");
    assert_eq!(table.known(ip(0)), None);
    assert_eq!(table.look_up(ip(2 << 20), at(11)), Lookup::Refused, "no other is");
    assert_eq!(table.scan(), Some(0), "another scan starts");
    table.mark_in_use(ip(1));
    assert_eq!(table.look_up(ip(2), at(12)), Lookup::Known(MAC));
    table.scanned(200, true);
    let replaced = (0..500).filter(|n| table.look_up(ip(2 << 20 | n), at(12)) == Lookup::Solicit).count();
    assert_eq!(replaced, 500);
    assert_eq!((table.known(ip(1)), table.known(ip(2))), (Some(MAC), Some(MAC)), "in use, and used since");
    assert_eq!((table.entries.len(), table.v4.entries), (MAX_NEIGHBORS, MAX_NEIGHBORS));
}

#[test]
fn mark_of_earlier_scan_does_not_outlast_it() {
    let mut table = full();
    table.mark_in_use(ip(0));
    table.scanned(1, true);
    assert_eq!(table.look_up(ip(1 << 20), at(11)), Lookup::Refused);
    table.scanned(1, true);
    for n in 0..MAX_NEIGHBORS as u32 - 1 {
        assert_eq!(table.look_up(ip(1 << 20 | n), at(11)), Lookup::Solicit);
        table.learn(ip(1 << 20 | n), MAC, false, at(11));
        if table.known(ip(0)).is_none() {
            return;
        }
    }
    panic!("the least recently used entry is still there");
}

#[test]
fn scans_do_not_follow_each_other_closely() {
    let mut table = full();
    (0..MAX_NEIGHBORS as u32).for_each(|n| table.mark_in_use(ip(n)));
    table.scanned(1, true);
    assert_eq!(table.look_up(ip(1 << 20), at(10)), Lookup::Refused);
    assert_eq!(table.scan(), None, "every entry is in use");
    table.look_up(ip(1 << 20), at(11));
    assert_eq!(table.scan(), Some(0));
}

#[test]
fn gateway_is_learnt_beyond_rate_and_never_replaced() {
    let mut table = Neighbors::<u32>::new(0);
    let gateway = ip(1 << 22);
    // One entry exists before it becomes a gateway, another is a gateway before it is learnt.
    table.learn(ip(0), MAC, true, at(0));
    table.set_gateways(vec![gateway, ip(0)]);
    (1..5000).for_each(|n| _ = table.learn(ip(n), MAC, true, at(0)));
    assert_eq!(table.learn(ip(9999), MAC, true, at(0)), Update::Limited);
    assert_eq!(table.learn(gateway, MAC, true, at(0)), Update::Created);
    (5000..40_000).for_each(|n| _ = table.learn(ip(n), MAC, true, at(n.into())));
    let mut now = 100_000;
    for n in 0..2 * MAX_NEIGHBORS as u32 {
        now += 1;
        table.look_up(ip(1 << 20 | n), at(now));
        table.learn(ip(1 << 20 | n), MAC, false, at(now));
        if table.scan().is_some() {
            table.scanned(1, true);
        }
    }
    assert_eq!(table.entries.len(), MAX_NEIGHBORS);
    assert_eq!((table.known(gateway), table.known(ip(0))), (Some(MAC), Some(MAC)));
}

/// Stations may choose half of an address or more, depending on the configured prefix.
#[test]
fn neighbour_address_cannot_cancel_the_hash_state() {
    use std::collections::HashSet;
    use std::hash::BuildHasher;
    // Public constants that foldhash combines with the upper of two words, for integers and for bytes.
    const PUBLIC: [u64; 2] = [0xc0ac_29b7_c97c_50dd, 0x3f84_d5b5_b547_0917];
    let state = foldhash::fast::FixedState::with_seed(5);
    let hash = |high: u64, low: u64| {
        state.hash_one(Key(std::net::Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)).into()))
    };
    for word in PUBLIC.into_iter().flat_map(|word| [word, word.swap_bytes()]) {
        assert_eq!((0..1000).map(|n| hash(n, word)).collect::<HashSet<_>>().len(), 1000);
        assert_eq!((0..1000).map(|n| hash(word, n)).collect::<HashSet<_>>().len(), 1000);
    }
}

#[test]
fn pending_resolutions_are_bounded() {
    let mut table = Neighbors::<u32>::new(0);
    for n in 0..MAX_PENDING as u32 {
        assert_eq!(table.look_up(ip(n), at(0)), Lookup::Solicit);
    }
    assert_eq!(table.look_up(ip(1 << 20), at(0)), Lookup::Refused);
}
