//! Path MTU discovery: RFC 1191, RFC 8201, RFC 5927 §7, and black holes, RFC 4821.

use super::harness::*;

/// Destination unreachable, fragmentation needed.
const UNREACHABLE: u8 = 3;
const TOO_BIG: u8 = 4;
/// ICMPv6 packet too big.
const TOO_BIG6: u8 = 2;

/// A connection with ten segments of 1460 bytes in flight, the first of which is returned.
fn full_size(peer: Peer) -> (Script, Got) {
    let mut s = Script::accepted(peer.mss(1460).rtt(ms(20)));
    s.write(14_600);
    let first = s.expect(data(1, 1460));
    for n in 1..10 {
        s.expect(data(1 + 1460 * n, 1460));
    }
    s.pass(ms(10));
    (s, first)
}

/// The longest IP packet of `sent`.
fn longest(sent: &[Got]) -> usize {
    sent.iter().map(|got| got.raw.ip_len).max().unwrap_or(0)
}

#[test]
fn segments_forbid_fragmentation() {
    // RFC 1191 §3.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_hello(syn(0));
    assert!(s.expect(syn_ack(0, 1)).raw.dont_fragment);
    s.inject(ack(1, 1));
    s.expect_opened();
    s.write(1000);
    assert!(s.expect(data(1, 1000)).raw.dont_fragment);
    s.inject(ack(1, 1001));
}

#[test]
fn a_smaller_mtu_of_the_path_is_taken_and_what_did_not_fit_comes_again() {
    // RFC 1191 §6.4: at once, and not as a sign of congestion.
    native_only!();
    let (mut s, first) = full_size(peer().sack());
    s.inject_icmp(UNREACHABLE, TOO_BIG, 1000, &first);
    let again = s.drain();
    assert_eq!(again.first().map(|got| got.seq), Some(1));
    assert!(longest(&again) <= 1000, "{} bytes", longest(&again));
    let mut receiver = Receiver::new(1, ms(20), true);
    for got in &again {
        let seg = receiver.take_data(got.seq, got.len);
        s.inject(seg);
    }
    let sent = receiver.play(&mut s, 14_601, secs(5), |got| got.raw.ip_len > 1000);
    assert!(longest(&sent) <= 1000);
    s.write(5000);
    let sent = s.drain();
    assert_eq!(longest(&sent), 1000, "from now on");
}

#[test]
fn timestamps_count_against_the_mtu_of_the_path() {
    // RFC 1191 §3.1; RFC 9293 §3.7.1.
    native_only!();
    let mut s = Script::accepted(peer().timestamps().mss(1460).rtt(ms(20)));
    s.write(14_480);
    let first = s.expect(data(1, 1448));
    s.drain();
    s.inject_icmp(UNREACHABLE, TOO_BIG, 1000, &first);
    let again = s.drain();
    assert_eq!(longest(&again), 1000);
    assert_eq!(again[0].len, 1000 - 52);
}

#[test]
fn over_ipv6_a_smaller_mtu_of_the_path_is_taken() {
    // RFC 8201 §4, §5.2.
    native_only!();
    let mut s = Script::accepted(peer().ipv6().sack().mss(1440).rtt(ms(20)));
    s.write(14_400);
    let first = s.expect(data(1, 1440));
    s.drain();
    s.inject_icmp(TOO_BIG6, 0, 1300, &first);
    let again = s.drain();
    assert_eq!(again.first().map(|got| got.seq), Some(1));
    assert_eq!(longest(&again), 1300);
}

#[test]
fn over_ipv6_the_mtu_does_not_fall_below_1280() {
    // RFC 8201 §4: a node must not reduce its estimate below the IPv6 minimum link MTU.
    let mut s = Script::accepted(peer().ipv6().sack().mss(1440).rtt(ms(20)));
    s.write(14_400);
    let first = s.expect(data(1, 1440));
    s.drain();
    s.inject_icmp(TOO_BIG6, 0, 600, &first);
    let sent = s.drain_for(secs(2));
    assert!(longest(&sent) >= 1280, "{} bytes", longest(&sent));
}

#[test]
fn an_mtu_for_a_segment_that_is_not_in_flight_is_ignored() {
    // RFC 5927 §4.1, §7.2: the quoted sequence number must be of unacknowledged data.
    native_only!();
    let (mut s, first) = full_size(peer());
    s.inject(ack(1, 14_601));
    // Everything has been acknowledged, so nothing can be too big.
    s.inject_icmp(UNREACHABLE, TOO_BIG, 1000, &first);
    for wrong in [0x10, 0x80] {
        let mut packet = first.raw.packet.clone();
        packet[24] ^= wrong;
        s.inject_icmp_quoting(UNREACHABLE, TOO_BIG, 1000, &packet);
    }
    s.expect_nothing();
    s.write(1460);
    s.expect(data(14_601, 1460));
}

#[test]
fn an_mtu_for_another_connection_is_ignored() {
    // RFC 5927 §4.1: the quoted packet is that of no connection.
    native_only!();
    let (mut s, first) = full_size(peer());
    let mut packet = first.raw.packet.clone();
    // The peer's port, at byte 22.
    packet[22] ^= 1;
    s.inject_icmp_quoting(UNREACHABLE, TOO_BIG, 1000, &packet);
    s.expect_nothing();
    s.inject(ack(1, 14_601));
    s.write(1460);
    s.expect(data(14_601, 1460));
}

#[test]
fn an_mtu_as_large_as_before_is_ignored() {
    // RFC 1191 §3, RFC 5927 §7.2: such an error can only be forged.
    native_only!();
    let (mut s, first) = full_size(peer());
    for mtu in [1500, 1501, 9000, 65535] {
        s.inject_icmp(UNREACHABLE, TOO_BIG, mtu, &first);
    }
    s.expect_nothing();
    s.inject(ack(1, 14_601));
    s.write(1460);
    s.expect(data(14_601, 1460));
}

#[test]
fn an_mtu_absurdly_small_is_not_taken_at_its_word() {
    // RFC 1191 §3: never below 68; RFC 5927 §7: the smaller, the more an attacker gains.
    native_only!();
    for mtu in [0, 1, 40, 67, 68, 100] {
        let (mut s, first) = full_size(peer());
        s.inject_icmp(UNREACHABLE, TOO_BIG, mtu, &first);
        let sent = s.drain_for(secs(2));
        assert!(!sent.is_empty() && longest(&sent) >= usize::from(MIN_PMTU), "{} bytes for {mtu}", longest(&sent));
    }
}

#[test]
fn a_path_that_swallows_large_packets_in_silence_is_found_out() {
    // RFC 4821 §5, RFC 2923 §2.1: nothing full-size gets through, and no error comes back.
    native_only!();
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
fn path_of_the_least_mtu_that_swallows_larger_packets_is_found_out() {
    // RFC 4821 §7.7: smaller segments once more time-outs have gone by.
    native_only!();
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
fn second_time_out_in_a_row_cuts_segments() {
    // RFC 4821 §7.2, §7.7: the first may be a loss of another kind.
    native_only!();
    let (mut s, _) = full_size(peer());
    s.expect_within(secs(1), data(1, 1460));
    s.expect_within(secs(1), data(1, 1024));
}

#[test]
fn losses_of_another_kind_do_not_shrink_segments() {
    // RFC 4821 §7.5: a short loss says nothing about the path's MTU.
    native_only!();
    let (mut s, _) = full_size(peer().sack());
    s.pass(ms(10));
    s.inject(ack(1, 1).sack(&[(1461, 14_601)]));
    s.expect(data(1, 1460));
    s.expect_within(secs(1), data(1, 1460));
    s.pass(ms(20));
    s.inject(ack(1, 14_601));
    s.write(1460);
    s.expect(data(14_601, 1460));
}

#[test]
fn a_probe_of_the_tail_goes_in_segments_as_long_as_the_path_takes_now() {
    // RFC 8985 §7.3; RFC 1191 §6.
    native_only!();
    let mut s = Script::accepted(peer().mss(1460).sack());
    // Bytes of the service's own: for others the worker keeps packets by.
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
