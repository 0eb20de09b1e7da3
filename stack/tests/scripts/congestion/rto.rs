//! Retransmission timeout (RFC 6298), tail loss probe (RFC 8985 §7), and spurious timeouts (RFC 5682, RFC 4015).
//! Scripts of the timeout alone use a peer without SACK, to which no probe is sent.

use super::{RTT, in_flight};
use crate::harness::*;

/// RTT at which a probe precedes the timeout clearly.
const NEAR: Duration = ms(20);
/// Bytes per write in scripts with consecutive timeouts, which may divide full segments in case the path drops large
/// packets.
const SMALL: Rel = 100;

#[test]
fn unacknowledged_data_is_retransmitted_with_backoff() {
    // RFC 6298 §2.2, §5.4 to §5.6.
    let mut s = Script::accepted(peer().rtt(RTT));
    s.write(SMALL).expect(data(1, SMALL));
    for back_off in [1, 2, 4, 8, 16] {
        s.expect_after(back_off * rto_after(RTT), data(1, SMALL));
    }
    s.inject(ack(1, 1 + SMALL)).expect_nothing_for(secs(60));
}

#[test]
fn rtt_sample_of_handshake_is_taken_with_short_connect_timeout() {
    // RFC 6298 §2.2.
    let mut s = Script::listen(peer().rtt(RTT), |config| config.half_open_timeout = ms(300));
    s.pass(secs(5));
    s.handshake();
    s.write(SMALL).expect(data(1, SMALL));
    s.expect_after(rto_after(RTT), data(1, SMALL));
}

#[test]
fn timeout_retransmits_first_segment_only() {
    // RFC 6298 §5.4; RFC 5681 §3.1: cwnd is one segment, and slow start begins.
    let mut s = in_flight(peer(), 10);
    s.expect_after(rto_after(RTT), data(1, 1000));
    s.expect_nothing_for(RTT);
    s.inject(ack(1, 1001)).expect_flight(1001, 2);
    s.expect_nothing_for(RTT);
    s.inject(ack(1, 2001));
    s.inject(ack(1, 3001)).expect_flight(3001, 4);
    s.expect_nothing();
}

#[test]
fn ack_of_new_data_restarts_timer() {
    // RFC 6298 §5.3. The second sample of 200 ms gives SRTT 112.5 ms and RTTVAR 62.5 ms (§2.3).
    let mut s = in_flight(peer(), 3);
    s.expect_nothing_for(2 * RTT);
    s.inject(ack(1, 1001)).expect_after(Duration::from_micros(362_500), data(1001, 1000));
}

#[test]
fn timer_stops_when_all_data_is_acknowledged() {
    // RFC 6298 §5.2.
    let mut s = in_flight(peer(), 2);
    s.pass(RTT);
    s.inject(ack(1, 2001)).expect_nothing_for(secs(120));
}

#[test]
fn retransmitted_segment_gives_no_rtt_sample() {
    // RFC 6298 §3 (Karn): the ACK is ambiguous; attributed to the retransmission it would give 1 ms.
    let mut s = in_flight(peer(), 1);
    s.expect_after(rto_after(RTT), data(1, 1000));
    s.pass(ms(1));
    s.inject(ack(1, 1001));
    s.write(1000).expect(data(1001, 1000));
    s.expect_nothing_for(rto_after(RTT) - ms(10));
}

#[test]
fn timestamps_give_rtt_sample_of_retransmission() {
    // RFC 7323 §4.1: TSecr identifies the acknowledged transmission; RFC 6298 §5: a sample ends the backoff.
    let mut s = in_flight(peer().timestamps(), 1);
    s.expect_after(rto_after(RTT), data(1, 1000));
    let again = s.expect_after(2 * rto_after(RTT), data(1, 1000));
    s.pass(ms(50));
    s.inject(ack(1, 1001).timestamp(PEER_CLOCK + 3000, again.tsval()));
    s.write(1000).expect(data(1001, 1000));
    s.expect_between(RTO_FLOOR - ms(4), ms(500), data(1001, 1000));
}

#[test]
fn rto_of_nearby_peer_has_floor() {
    // RFC 6298 §2.4, with a lower bound than recommended there.
    let mut s = Script::accepted(peer());
    s.write(SMALL).expect(data(1, SMALL));
    for back_off in [1, 2, 4] {
        s.expect_after(back_off * RTO_FLOOR, data(1, SMALL));
    }
}

#[test]
fn rto_floor_is_configurable() {
    // RFC 6298 §2.4: for a network with known peers.
    let mut s = Script::accepted_with(peer().rtt(ms(1)), |config| settings::rto_floor(config, ms(5)));
    s.write(1000).expect(data(1, 1000));
    s.expect_between(ms(4), ms(20), data(1, 1000));
}

#[test]
fn rto_floor_drops_once_delayed_ack_time_is_known() {
    // RFC 6298 §2.4: the floor covers unknown behaviour of the peer.
    let mut s = Script::accepted(peer().rtt(ms(1)));
    for n in 0..100 {
        s.write(1000).expect(data(1 + n * SEG, 1000));
        s.pass(ms(1));
        s.inject(ack(1, 1001 + n * SEG));
    }
    s.write(1000).expect(data(100_001, 1000));
    s.expect_between(LEARNT_RTO_FLOOR - ms(1), RTO_FLOOR - ms(10), data(100_001, 1000));
}

#[test]
fn rto_has_ceiling() {
    // RFC 6298 §2.5: at least 60 s; §5.5.
    let mut s = Script::accepted_with(peer().rtt(RTT), |config| settings::user_timeout(config, secs(3600)));
    s.write(SMALL).expect(data(1, SMALL));
    let mut waits = Vec::new();
    for _ in 0..14 {
        let before = s.now();
        s.expect_within(RTO_CEILING + secs(1), data(1, SMALL));
        waits.push(s.now().since(before));
    }
    assert!(waits.last() >= Some(&secs(60)), "{waits:?}");
}

#[test]
fn user_timeout_closes_connection_with_unacknowledged_data() {
    // RFC 9293 §3.8.3 (R2), §3.10.8.
    let mut s = Script::accepted_with(peer().rtt(RTT), |config| settings::user_timeout(config, secs(10)));
    s.write(SMALL);
    s.pass(secs(10) - ms(100));
    assert!(s.drain().len() >= 5);
    s.expect_no_event();
    // The timeout may take effect at the next retransmission.
    s.drain_for(secs(10));
    s.expect_closed(CloseReason::TimedOut);
    s.expect_nothing_for(secs(300));
    s.inject(ack(1, 1)).expect(rst(1));
    s.expect_no_packets_held();
}

#[test]
fn user_timeout_counts_from_last_progress() {
    // RFC 9293 §3.8.3: of the same segment.
    let mut s = Script::accepted_with(peer().rtt(RTT), |config| settings::user_timeout(config, secs(10)));
    for n in 0..6 {
        s.write(SMALL).expect(data(1 + n * SMALL, SMALL));
        s.drain_for(secs(7));
        s.inject(ack(1, 1 + (n + 1) * SMALL));
    }
    s.expect_no_event();
}

#[test]
fn idle_connection_does_not_time_out() {
    // RFC 9293 §3.8.3: only unacknowledged data counts.
    let mut s = Script::accepted_with(peer(), |config| settings::user_timeout(config, secs(10)));
    s.expect_nothing_for(secs(7200));
    s.expect_alive(1, 1);
}

/// Returns a connection with SACK and an RTT of [`NEAR`] whose service has written `segments` segments. At most the
/// initial window is in flight. The timeout is long after the probe.
fn near(segments: Rel) -> Script {
    let mut s = Script::accepted(peer().sack().rtt(NEAR));
    s.write(segments * SEG).expect_flight(1, segments.min(INITIAL_WINDOW));
    s
}

/// Expects the tail loss probe. RFC 8985 §7.2 sends it after 2·SRTT. SRTT + 4·RTTVAR is equally valid until the RTT is
/// known to be steady.
#[track_caller]
fn expect_tail_probe(s: &mut Script, probe: Seg) {
    s.expect_between(2 * NEAR - ms(1), 3 * NEAR + tolerance(NEAR), probe);
}

#[test]
fn tail_loss_probe_recovers_lost_tail() {
    // RFC 8985 §7.2, §7.3: after two round trips the last segment is retransmitted, and its SACK triggers the others.
    let mut s = near(4);
    s.expect_nothing_for(NEAR);
    s.inject(ack(1, 2001));
    expect_tail_probe(&mut s, data(3001, 1000));
    s.expect_nothing_for(NEAR + ms(5));
    s.inject(ack(1, 2001).sack(&[(3001, 4001)])).expect(data(2001, 1000));
    s.pass(NEAR);
    s.inject(ack(1, 4001)).expect_nothing_for(secs(10));
}

#[test]
fn tail_loss_probe_carries_new_data() {
    // RFC 8985 §7.3: beyond cwnd, within the peer's window.
    let mut s = near(20);
    expect_tail_probe(&mut s, data(10_001, 1000));
}

#[test]
fn tail_loss_probe_stays_within_receive_window() {
    // RFC 8985 §7.3: if the receive window does not allow new data, the last segment is retransmitted.
    let mut s = Script::accepted(peer().sack().rtt(NEAR).window(5000));
    s.write(10_000).expect_flight(1, 5);
    expect_tail_probe(&mut s, data(4001, 1000));
}

#[test]
fn tail_loss_probe_does_not_split_segment() {
    // RFC 8985 §7.3: new data only if the window has space for the segment. RFC 9293 §3.8.6.2.1: not for a part.
    let mut s = Script::accepted(peer().sack().rtt(NEAR).window(4500));
    s.write(6000).expect_flight(1, 4);
    expect_tail_probe(&mut s, data(3001, 1000));
    // When the window opens, no probe is pending.
    s.inject(ack(1, 1).window(5000)).expect(data(4001, 1000));
    s.expect_nothing();
}

#[test]
fn tail_loss_probe_overrides_nagle() {
    // RFC 8985 §7.3: unsent data is sent as the probe, of any length.
    let mut s = Script::accepted_with(peer().sack().rtt(NEAR), settings::nagle);
    s.write(5100).expect_flight(1, 5);
    s.expect_nothing();
    expect_tail_probe(&mut s, data(5001, 100));
    s.write(10_000).expect_flight(5101, 4);
    s.expect_nothing();
}

#[test]
fn unanswered_tail_loss_probe_is_followed_by_timeout() {
    // RFC 8985 §7.3: one probe, then the retransmission timer is rearmed without backoff.
    let mut s = near(5);
    expect_tail_probe(&mut s, data(4001, 1000));
    // The floor may apply to the whole timeout or to its margin over the RTT.
    let rto = rto_after(NEAR);
    s.expect_between(rto - 3 * NEAR - tolerance(rto), rto + NEAR + tolerance(rto), data(1, 1000));
    s.expect_between(2 * rto - tolerance(2 * rto), 2 * (rto + NEAR) + tolerance(2 * rto), data(1, 1000));
}

#[test]
fn tail_loss_probe_of_single_segment_allows_for_delayed_ack() {
    // RFC 8985 §7.2: plus TLP.max_ack_delay, up to the timeout.
    let mut s = near(1);
    let longest = rto_after(NEAR) + NEAR;
    s.expect_between(3 * NEAR, longest + tolerance(longest), data(1, 1000));
}

#[test]
fn spurious_tail_loss_probe_keeps_cwnd() {
    // RFC 8985 §7.4.2: a D-SACK for the probe shows that nothing was lost.
    let mut s = near(10);
    expect_tail_probe(&mut s, data(9001, 1000));
    s.inject(ack(1, 10_001));
    s.pass(ms(1));
    s.inject(ack(1, 10_001).sack(&[(9001, 10_001)]));
    let flight = s.write(20_000).drain().len() as Rel;
    assert!(flight >= INITIAL_WINDOW, "{flight} segments");
}

#[test]
fn loss_repaired_by_tail_loss_probe_reduces_cwnd() {
    // RFC 8985 §7.4.2: the probe is acknowledged without a D-SACK, so the original was lost.
    let mut s = near(10);
    expect_tail_probe(&mut s, data(9001, 1000));
    s.pass(NEAR);
    s.inject(ack(1, 10_001));
    s.write(30_000);
    assert!(s.drain().len() >= 5);
    // The ACK beyond the probe decides, unless the wait for a D-SACK has ended before. Slow start would send two
    // segments.
    s.pass(NEAR);
    s.inject(ack(1, 11_001));
    assert!(s.drain().len() <= 1);
}

/// Causes a spurious timeout of the first of ten segments and returns the script before the late acknowledgements, with
/// more data to send.
fn spurious(peer: Peer) -> (Script, Option<u32>) {
    let mut s = Script::accepted(peer.rtt(RTT));
    let original = s.write(30_000).expect(data(1, 1000)).raw.options.timestamp.map(|(value, _)| value);
    s.expect_flight(1001, 9);
    // A probe with new data may precede the timeout.
    let sent = s.drain_for(ms(750));
    assert_eq!(transmissions(&sent, 1), 1, "the timeout retransmits the first segment");
    (s, original)
}

#[test]
fn spurious_timeout_is_detected_by_timestamp() {
    // RFC 3522 §3.2: TSecr is that of the original; RFC 4015 §3: cwnd is restored.
    let (mut s, original) = spurious(peer().timestamps());
    let original = original.expect("timestamps");
    for n in 1..=10 {
        s.inject(ack(1, 1 + n * SEG).timestamp(PEER_CLOCK + 900, original));
    }
    let sent = s.drain();
    assert!(sent.iter().all(|got| got.seq >= 10_001), "no further retransmission");
    assert!(sent.len() >= 9, "{} new segments: cwnd is restored", sent.len());
}

#[test]
fn spurious_timeout_is_detected_by_acknowledged_data() {
    // RFC 5682 §3.1 (F-RTO with SACK): ACKs of data that was not retransmitted.
    let (mut s, _) = spurious(peer().sack());
    for n in 1..=10 {
        s.inject(ack(1, 1 + n * SEG));
    }
    let sent = s.drain();
    assert!(sent.iter().all(|got| got.seq >= 10_001), "no further retransmission");
    assert!(sent.len() >= 9, "{} new segments: cwnd is restored", sent.len());
}

#[test]
fn genuine_timeout_is_not_taken_for_spurious() {
    // RFC 5682 §3.1 step 3 (a): duplicate ACKs of the new data sent by F-RTO.
    let mut s = Script::accepted(peer().sack().rtt(RTT));
    s.write(30_000).expect_flight(1, 10);
    let mut receiver = Receiver::new(1, RTT, true);
    // All segments of the first 250 ms are lost.
    let lost_until = s.now() + ms(250);
    let sent = receiver.play(&mut s, 30_001, secs(10), |got| got.at < lost_until);
    for n in 0..10 {
        assert_eq!(transmissions(&sent, 1 + n * SEG), 1, "segment {n}");
    }
}

#[test]
fn rto_after_lost_syn_is_three_seconds() {
    // RFC 6298 §5.7; §5.5 doubles it.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    s.expect_after(INITIAL_RTO, syn(0));
    s.inject_syn(syn_ack(0, 1)).expect(ack(1, 1));
    s.expect_opened();
    s.write(1000).expect(data(1, 1000));
    s.expect_after(secs(3), data(1, 1000));
    s.expect_after(secs(6), data(1, 1000));
}
