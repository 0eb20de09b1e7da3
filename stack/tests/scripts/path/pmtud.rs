//! Path MTU discovery: RFC 1191, RFC 8201, RFC 5927 §7, and black holes, RFC 4821.

use crate::harness::*;

/// Type "destination unreachable", code "fragmentation needed".
const UNREACHABLE: u8 = 3;
const TOO_BIG: u8 = 4;
/// ICMPv6 type "packet too big".
const TOO_BIG6: u8 = 2;

/// Returns a connection with ten segments of 1460 bytes in flight, and the first of them.
fn full_size(peer: Peer) -> (Script, Got) {
    let mut s = Script::accepted(peer.mss(1460).rtt(ms(20)));
    let first = s.write(14_600).expect(data(1, 1460));
    for n in 1..10 {
        s.expect(data(1 + 1460 * n, 1460));
    }
    s.pass(ms(10));
    (s, first)
}

/// Returns the length of the longest IP packet of `sent`.
fn longest(sent: &[Got]) -> usize {
    sent.iter().map(|got| got.raw.ip_len).max().unwrap_or(0)
}

#[test]
fn segments_set_dont_fragment() {
    // RFC 1191 §3.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_syn(syn(0));
    assert!(s.expect(syn_ack(0, 1)).raw.dont_fragment);
    s.inject(ack(1, 1)).expect_opened();
    s.write(1000);
    assert!(s.expect(data(1, 1000)).raw.dont_fragment);
    s.inject(ack(1, 1001));
}

#[test]
fn smaller_path_mtu_is_used_and_data_retransmitted() {
    // RFC 1191 §6.4: immediately, and not as a sign of congestion.
    let (mut s, first) = full_size(peer().sack());
    s.inject_icmp(UNREACHABLE, TOO_BIG, 1000, &first);
    let again = s.drain();
    assert_eq!(again.first().map(|got| got.seq), Some(1));
    assert!(longest(&again) <= 1000, "{} bytes", longest(&again));
    let mut receiver = Receiver::new(1, ms(20), true);
    for got in &again {
        let seg = receiver.receive(got.seq, got.len);
        s.inject(seg);
    }
    let sent = receiver.play(&mut s, 14_601, secs(5), |got| got.raw.ip_len > 1000);
    assert!(longest(&sent) <= 1000);
    let sent = s.write(5000).drain();
    assert_eq!(longest(&sent), 1000, "after the retransmission");
}

#[test]
fn timestamps_count_towards_path_mtu() {
    // RFC 1191 §3.1; RFC 9293 §3.7.1.
    let mut s = Script::accepted(peer().timestamps().mss(1460).rtt(ms(20)));
    let first = s.write(14_480).expect(data(1, 1448));
    s.drain();
    s.inject_icmp(UNREACHABLE, TOO_BIG, 1000, &first);
    let again = s.drain();
    assert_eq!(longest(&again), 1000);
    assert_eq!(again[0].len, 1000 - 52);
}

#[test]
fn smaller_path_mtu_over_ipv6_is_used() {
    // RFC 8201 §4, §5.2.
    let mut s = Script::accepted(peer().ipv6().sack().mss(1440).rtt(ms(20)));
    let first = s.write(14_400).expect(data(1, 1440));
    s.drain();
    s.inject_icmp(TOO_BIG6, 0, 1300, &first);
    let again = s.drain();
    assert_eq!(again.first().map(|got| got.seq), Some(1));
    assert_eq!(longest(&again), 1300);
}

#[test]
fn path_mtu_over_ipv6_is_at_least_1280() {
    // RFC 8201 §4: a node must not reduce its estimate below the IPv6 minimum link MTU.
    let mut s = Script::accepted(peer().ipv6().sack().mss(1440).rtt(ms(20)));
    let first = s.write(14_400).expect(data(1, 1440));
    s.drain();
    s.inject_icmp(TOO_BIG6, 0, 600, &first);
    let sent = s.drain_for(secs(2));
    assert!(longest(&sent) >= 1280, "{} bytes", longest(&sent));
}

#[test]
fn mtu_of_segment_not_in_flight_is_ignored() {
    // RFC 5927 §4.1, §7.2: the quoted sequence number must be of unacknowledged data.
    let (mut s, first) = full_size(peer());
    s.inject(ack(1, 14_601));
    // All data has been acknowledged, so no segment can be too big.
    s.inject_icmp(UNREACHABLE, TOO_BIG, 1000, &first);
    for wrong in [0x10, 0x80] {
        let mut packet = first.raw.packet.clone();
        packet[24] ^= wrong;
        s.inject_icmp_quoting(UNREACHABLE, TOO_BIG, 1000, &packet);
    }
    s.expect_nothing();
    s.write(1460).expect(data(14_601, 1460));
}

#[test]
fn mtu_of_other_connection_is_ignored() {
    // RFC 5927 §4.1: the quoted packet belongs to no connection.
    let (mut s, first) = full_size(peer());
    let mut packet = first.raw.packet.clone();
    // Byte 22 is in the peer's port.
    packet[22] ^= 1;
    s.inject_icmp_quoting(UNREACHABLE, TOO_BIG, 1000, &packet);
    s.expect_nothing();
    s.inject(ack(1, 14_601));
    s.write(1460).expect(data(14_601, 1460));
}

#[test]
fn mtu_not_below_current_is_ignored() {
    // RFC 1191 §3, RFC 5927 §7.2: such an error is forged.
    let (mut s, first) = full_size(peer());
    for mtu in [1500, 1501, 9000, 65535] {
        s.inject_icmp(UNREACHABLE, TOO_BIG, mtu, &first);
    }
    s.expect_nothing();
    s.inject(ack(1, 14_601));
    s.write(1460).expect(data(14_601, 1460));
}

#[test]
fn tiny_mtu_is_raised() {
    // RFC 1191 §3: at least 68; RFC 5927 §7: a smaller MTU gives an attacker more.
    for mtu in [0, 1, 40, 67, 68, 100] {
        let (mut s, first) = full_size(peer());
        s.inject_icmp(UNREACHABLE, TOO_BIG, mtu, &first);
        let sent = s.drain_for(secs(2));
        assert!(!sent.is_empty() && longest(&sent) >= usize::from(MIN_PMTU), "{} bytes for {mtu}", longest(&sent));
    }
}

#[test]
fn black_hole_is_detected() {
    // RFC 4821 §5, RFC 2923 §2.1: full-size packets are dropped without an ICMP error.
    let mut s = Script::accepted_with(peer().sack().mss(1460).rtt(ms(20)), |config| {
        settings::user_timeout(config, secs(120));
    });
    s.write(30_000);
    let mut receiver = Receiver::new(1, ms(20), true);
    let sent = receiver.play(&mut s, 30_001, secs(60), |got| got.raw.ip_len > 1200);
    let last = &sent[sent.len() - 5..];
    assert!(longest(last) <= 1200);
}

#[test]
fn black_hole_above_minimum_mtu_is_detected() {
    // RFC 4821 §7.7: segments shrink further after more timeouts.
    let peer = peer().sack().mss(1440).rtt(ms(20));
    for (peer, mtu) in [(peer.clone(), MIN_PMTU.into()), (peer.ipv6(), 1280)] {
        let mut s = Script::accepted_with(peer, |config| settings::user_timeout(config, secs(300)));
        s.write(30_000);
        let mut receiver = Receiver::new(1, ms(20), true);
        let sent = receiver.play(&mut s, 30_001, secs(200), |got| got.raw.ip_len > mtu);
        assert!(longest(&sent[sent.len() - 5..]) <= mtu);
    }
}

#[test]
fn second_consecutive_timeout_shrinks_segments() {
    // RFC 4821 §7.2, §7.7: the first may be another kind of loss.
    let (mut s, _) = full_size(peer());
    s.expect_within(secs(1), data(1, 1460));
    s.expect_within(secs(1), data(1, 1024));
}

#[test]
fn ordinary_losses_do_not_shrink_segments() {
    // RFC 4821 §7.5: a short loss does not indicate the path MTU.
    let (mut s, _) = full_size(peer().sack());
    s.pass(ms(10));
    s.inject(ack(1, 1).sack(&[(1461, 14_601)])).expect(data(1, 1460));
    s.expect_within(secs(1), data(1, 1460));
    s.pass(ms(20));
    s.inject(ack(1, 14_601));
    s.write(1460).expect(data(14_601, 1460));
}

#[test]
fn tail_loss_probe_uses_current_path_mtu() {
    // RFC 8985 §7.3; RFC 1191 §6.
    let mut s = Script::accepted(peer().mss(1460).sack());
    // Owned bytes of the service: for other data the worker reserves packets.
    s.send(2800);
    let sent = s.expect(data(1, 1460));
    s.expect(data(1461, 1340));
    let packets = s.take_packets();
    s.pass(ms(150));
    s.inject_icmp(UNREACHABLE, TOO_BIG, 600, &sent);
    drop(packets);
    let again = s.drain_for(ms(1));
    assert!(again.iter().any(|got| got.len > 0), "{again:?}");
    assert!(again.iter().all(|got| got.len <= 560), "{again:?}");
}
