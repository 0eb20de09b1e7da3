//! The retransmission time-out (RFC 6298), the tail loss probe before it (RFC 8985 §7), and what is spurious about them
//! (RFC 5682, RFC 4015). Where only the time-out is of interest the peer has no SACK, without which there is no probe.

use super::harness::*;

const RTT: Duration = ms(100);
/// The distance of the peer where a probe is to come well before the time-out.
const NEAR: Duration = ms(20);
/// Bytes where there are several time-outs in a row: after those, full segments may be cut, in case they are what the path
/// swallows.
const SMALL: Rel = 100;

/// A connection to a peer at a distance of [`RTT`] that has just been sent `segments` segments, of which at most the initial
/// window has gone out.
fn in_flight(peer: Peer, segments: Rel) -> Script {
    let mut s = Script::accepted(peer.rtt(RTT));
    s.write(segments * SEG);
    s.expect_flight(1, segments.min(INITIAL_WINDOW));
    s
}

#[test]
fn unanswered_data_is_sent_again_ever_more_rarely() {
    // RFC 6298 §2.2, §5.4 to §5.6.
    native_only!();
    let mut s = Script::accepted(peer().rtt(RTT));
    s.write(SMALL);
    s.expect(data(1, SMALL));
    for back_off in [1, 2, 4, 8, 16] {
        s.expect_after(back_off * rto_after(RTT), data(1, SMALL));
    }
    s.inject(ack(1, 1 + SMALL));
    s.expect_nothing_for(secs(60));
}

#[test]
fn the_handshake_measures_the_round_trip_however_soon_it_would_have_been_given_up() {
    // RFC 6298 §2.2.
    native_only!();
    let mut s = Script::listen(peer().rtt(RTT), |config| config.half_open_timeout = ms(300));
    s.pass(secs(5));
    s.shake_hands();
    s.write(SMALL);
    s.expect(data(1, SMALL));
    s.expect_after(rto_after(RTT), data(1, SMALL));
}

#[test]
fn a_time_out_brings_back_the_first_segment_alone() {
    // RFC 6298 §5.4; RFC 5681 §3.1: the window is one segment, and slow start begins.
    native_only!();
    let mut s = in_flight(peer(), 10);
    s.expect_after(rto_after(RTT), data(1, 1000));
    s.expect_nothing_for(RTT);
    s.inject(ack(1, 1001));
    s.expect_flight(1001, 2);
    s.expect_nothing_for(RTT);
    s.inject(ack(1, 2001));
    s.inject(ack(1, 3001));
    s.expect_flight(3001, 4);
    s.expect_nothing();
}

#[test]
fn an_acknowledgement_of_new_data_starts_the_timer_again() {
    // RFC 6298 §5.3. The second measurement of 200 ms makes SRTT 112.5 ms and RTTVAR 62.5 ms (§2.3).
    native_only!();
    let mut s = in_flight(peer(), 3);
    s.expect_nothing_for(2 * RTT);
    s.inject(ack(1, 1001));
    s.expect_after(Duration::from_micros(362_500), data(1001, 1000));
}

#[test]
fn when_all_is_acknowledged_the_timer_stops() {
    // RFC 6298 §5.2.
    let mut s = in_flight(peer(), 2);
    s.pass(RTT);
    s.inject(ack(1, 2001));
    s.expect_nothing_for(secs(120));
}

#[test]
fn a_retransmission_is_no_measure_of_the_round_trip() {
    // RFC 6298 §3 (Karn): the acknowledgement may be of either; taken for the second it would be of 1 ms.
    native_only!();
    let mut s = in_flight(peer(), 1);
    s.expect_after(rto_after(RTT), data(1, 1000));
    s.pass(ms(1));
    s.inject(ack(1, 1001));
    s.write(1000);
    s.expect(data(1001, 1000));
    s.expect_nothing_for(rto_after(RTT) - ms(10));
}

#[test]
fn with_timestamps_the_acknowledgement_of_a_retransmission_is_a_measure() {
    // RFC 7323 §4.1: TSecr says which was acknowledged; RFC 6298 §5: a measurement ends the back-off.
    native_only!();
    let mut s = in_flight(peer().timestamps(), 1);
    s.expect_after(rto_after(RTT), data(1, 1000));
    let again = s.expect_after(2 * rto_after(RTT), data(1, 1000));
    s.pass(ms(50));
    s.inject(ack(1, 1001).timestamp(PEER_CLOCK + 3000, again.tsval()));
    s.write(1000);
    s.expect(data(1001, 1000));
    s.expect_between(RTO_FLOOR - ms(4), ms(500), data(1001, 1000));
}

#[test]
fn the_time_out_of_a_near_peer_has_a_floor() {
    // RFC 6298 §2.4, with a lower bound than there.
    native_only!();
    let mut s = Script::accepted(peer());
    s.write(SMALL);
    s.expect(data(1, SMALL));
    for back_off in [1, 2, 4] {
        s.expect_after(back_off * RTO_FLOOR, data(1, SMALL));
    }
}

#[test]
fn the_floor_can_be_set() {
    // RFC 6298 §2.4: a choice of the configuration, for a network whose peers are known.
    native_only!();
    let mut s = Script::accepted_with(peer().rtt(ms(1)), |config| settings::rto_floor(config, ms(5)));
    s.write(1000);
    s.expect(data(1, 1000));
    s.expect_between(ms(4), ms(20), data(1, 1000));
}

#[test]
fn the_floor_sinks_when_the_peer_has_shown_how_long_it_delays_acknowledgements() {
    // RFC 6298 §2.4: the floor stands for what is not known of the peer.
    native_only!();
    let mut s = Script::accepted(peer().rtt(ms(1)));
    for n in 0..100 {
        s.write(1000);
        s.expect(data(1 + n * SEG, 1000));
        s.pass(ms(1));
        s.inject(ack(1, 1001 + n * SEG));
    }
    s.write(1000);
    s.expect(data(100_001, 1000));
    s.expect_between(LEARNT_RTO_FLOOR - ms(1), RTO_FLOOR - ms(10), data(100_001, 1000));
}

#[test]
fn the_time_out_has_a_ceiling() {
    // RFC 6298 §2.5: at least 60 s; §5.5.
    let mut s = Script::accepted_with(peer().rtt(RTT), |config| settings::user_timeout(config, secs(3600)));
    s.write(SMALL);
    s.expect(data(1, SMALL));
    let mut waits = Vec::new();
    for _ in 0..14 {
        let before = s.now();
        s.expect_within(RTO_CEILING + secs(1), data(1, SMALL));
        waits.push(s.now().since(before));
    }
    assert!(waits.last() >= Some(&secs(60)), "{waits:?}");
}

#[test]
fn data_unacknowledged_for_the_user_timeout_ends_the_connection() {
    // RFC 9293 §3.8.3 (R2), §3.10.8.
    native_only!();
    let mut s = Script::accepted_with(peer().rtt(RTT), |config| settings::user_timeout(config, secs(10)));
    s.write(SMALL);
    s.pass(secs(10) - ms(100));
    assert!(s.drain().len() >= 5);
    s.expect_no_event();
    // It may be noticed at the retransmission that follows.
    s.pass(secs(10));
    s.drain();
    s.expect_closed(CloseReason::TimedOut);
    s.expect_nothing_for(secs(300));
    s.inject(ack(1, 1));
    s.expect(rst(1));
    s.expect_all_packets_back();
}

#[test]
fn the_user_timeout_counts_from_the_last_progress() {
    // RFC 9293 §3.8.3: of the same segment.
    let mut s = Script::accepted_with(peer().rtt(RTT), |config| settings::user_timeout(config, secs(10)));
    for n in 0..6 {
        s.write(SMALL);
        s.expect(data(1 + n * SMALL, SMALL));
        s.drain_for(secs(7));
        s.inject(ack(1, 1 + (n + 1) * SMALL));
    }
    s.expect_no_event();
}

#[test]
fn an_idle_connection_does_not_time_out() {
    // RFC 9293 §3.8.3: only what is sent and not acknowledged counts.
    native_only!();
    let mut s = Script::accepted_with(peer(), |config| settings::user_timeout(config, secs(10)));
    s.expect_nothing_for(secs(7200));
    s.expect_alive(1, 1);
}

/// A connection to a peer with SACK at a distance of [`NEAR`] that has just been sent `segments` segments, of which at most
/// the initial window has gone out. The time-out is far behind the probe.
fn near(segments: Rel) -> Script {
    let mut s = Script::accepted(peer().sack().rtt(NEAR));
    s.write(segments * SEG);
    s.expect_flight(1, segments.min(INITIAL_WINDOW));
    s
}

/// The probe: RFC 8985 §7.2 has it after 2·SRTT; after SRTT + 4·RTTVAR while the round trip is not yet known to be steady
/// is as good.
#[track_caller]
fn expect_tail_probe(s: &mut Script, probe: Seg) {
    s.expect_between(2 * NEAR - ms(1), 3 * NEAR + tolerance(NEAR), probe);
}

#[test]
fn a_lost_tail_is_probed_for_after_two_round_trips() {
    // RFC 8985 §7.2, §7.3: the last segment is sent again, and its SACK brings back the rest.
    native_only!();
    let mut s = near(4);
    s.expect_nothing_for(NEAR);
    s.inject(ack(1, 2001));
    expect_tail_probe(&mut s, data(3001, 1000));
    s.expect_nothing_for(NEAR + ms(5));
    s.inject(ack(1, 2001).sack(&[(3001, 4001)]));
    s.expect(data(2001, 1000));
    s.pass(NEAR);
    s.inject(ack(1, 4001));
    s.expect_nothing_for(secs(10));
}

#[test]
fn a_probe_carries_new_data_where_there_is_some() {
    // RFC 8985 §7.3: beyond the congestion window, within the peer's.
    native_only!();
    let mut s = near(20);
    expect_tail_probe(&mut s, data(10_001, 1000));
}

#[test]
fn a_probe_does_not_go_beyond_the_window_of_the_peer() {
    // RFC 8985 §7.3: if the receive window does not allow new data, the last segment is sent again.
    native_only!();
    let mut s = Script::accepted(peer().sack().rtt(NEAR).window(5000));
    s.write(10_000);
    s.expect_flight(1, 5);
    expect_tail_probe(&mut s, data(4001, 1000));
}

#[test]
fn a_probe_does_not_split_a_segment_to_fit_the_window_of_the_peer() {
    // RFC 8985 §7.3: new data only if the window has room for the segment. RFC 9293 §3.8.6.2.1: no part of one.
    native_only!();
    let mut s = Script::accepted(peer().sack().rtt(NEAR).window(4500));
    s.write(6000);
    s.expect_flight(1, 4);
    expect_tail_probe(&mut s, data(3001, 1000));
    // The window's opening finds no probe that is still owed.
    s.inject(ack(1, 1).window(5000));
    s.expect(data(4001, 1000));
    s.expect_nothing();
}

#[test]
fn a_probe_is_not_held_back_by_nagle() {
    // RFC 8985 §7.3: what has not been sent goes as the probe, however short it is.
    native_only!();
    let mut s = Script::accepted_with(peer().sack().rtt(NEAR), settings::nagle);
    s.write(5100);
    s.expect_flight(1, 5);
    s.expect_nothing();
    expect_tail_probe(&mut s, data(5001, 100));
    s.write(10_000);
    s.expect_flight(5101, 4);
    s.expect_nothing();
}

#[test]
fn a_probe_that_is_not_answered_is_followed_by_the_time_out() {
    // RFC 8985 §7.3: one probe, then the timer for the time-out is armed again; a probe backs nothing off.
    native_only!();
    let mut s = near(5);
    expect_tail_probe(&mut s, data(4001, 1000));
    // The floor may be of the whole time-out or of its margin over the round trip.
    let rto = rto_after(NEAR);
    s.expect_between(rto - 3 * NEAR - tolerance(rto), rto + NEAR + tolerance(rto), data(1, 1000));
    s.expect_between(2 * rto - tolerance(2 * rto), 2 * (rto + NEAR) + tolerance(2 * rto), data(1, 1000));
}

#[test]
fn the_probe_of_a_lone_segment_allows_for_a_delayed_acknowledgement() {
    // RFC 8985 §7.2: TLP.max_ack_delay on top, up to the time-out.
    native_only!();
    let mut s = near(1);
    let longest = rto_after(NEAR) + NEAR;
    s.expect_between(3 * NEAR, longest + tolerance(longest), data(1, 1000));
}

#[test]
fn a_probe_that_was_needless_changes_nothing() {
    // RFC 8985 §7.4.2: a D-SACK for the probe says that nothing was lost.
    native_only!();
    let mut s = near(10);
    expect_tail_probe(&mut s, data(9001, 1000));
    s.inject(ack(1, 10_001));
    s.pass(ms(1));
    s.inject(ack(1, 10_001).sack(&[(9001, 10_001)]));
    s.write(20_000);
    let flight = s.drain().len() as Rel;
    assert!(flight >= INITIAL_WINDOW, "{flight} segments");
}

#[test]
fn a_loss_that_the_probe_repaired_shrinks_the_window() {
    // RFC 8985 §7.4.2: the probe is acknowledged without a D-SACK, so the original was lost.
    native_only!();
    let mut s = near(10);
    expect_tail_probe(&mut s, data(9001, 1000));
    s.pass(NEAR);
    s.inject(ack(1, 10_001));
    s.write(30_000);
    assert!(s.drain().len() >= 5);
    // The acknowledgement beyond the probe settles it, if the patience for a D-SACK has not before. Slow start would let
    // two segments out.
    s.pass(NEAR);
    s.inject(ack(1, 11_001));
    assert!(s.drain().len() <= 1);
}

/// A time-out of the first of ten segments, which had arrived: what is sent for the acknowledgements that were late. There
/// is more to send.
fn spurious(peer: Peer) -> (Script, Option<u32>) {
    let mut s = Script::accepted(peer.rtt(RTT));
    s.write(30_000);
    let original = s.expect(data(1, 1000)).raw.options.timestamp.map(|(value, _)| value);
    s.expect_flight(1001, 9);
    // A probe may come before the time-out: with new data.
    s.pass(ms(750));
    let sent = s.drain();
    assert_eq!(transmissions(&sent, 1), 1, "the time-out brings back the first segment");
    (s, original)
}

#[test]
fn a_spurious_time_out_is_recognized_by_its_timestamp() {
    // RFC 3522 §3.2: TSecr is that of the original; RFC 4015 §3: the window comes back.
    native_only!();
    let (mut s, original) = spurious(peer().timestamps());
    let original = original.expect("timestamps");
    for n in 1..=10 {
        s.inject(ack(1, 1 + n * SEG).timestamp(PEER_CLOCK + 900, original));
    }
    let sent = s.drain();
    assert!(sent.iter().all(|got| got.seq >= 10_001), "nothing more is sent again");
    assert!(sent.len() >= 9, "{} new segments: the window is what it was", sent.len());
}

#[test]
fn a_spurious_time_out_is_recognized_by_what_is_acknowledged() {
    // RFC 5682 §3.1 (F-RTO with SACK): acknowledgements of what was not sent again.
    native_only!();
    let (mut s, _) = spurious(peer().sack());
    for n in 1..=10 {
        s.inject(ack(1, 1 + n * SEG));
    }
    let sent = s.drain();
    assert!(sent.iter().all(|got| got.seq >= 10_001), "nothing more is sent again");
    assert!(sent.len() >= 9, "{} new segments: the window is what it was", sent.len());
}

#[test]
fn a_time_out_that_was_needed_is_not_taken_for_spurious() {
    // RFC 5682 §3.1 step 3, (a): duplicate acknowledgements of what F-RTO sent anew.
    native_only!();
    let mut s = Script::accepted(peer().sack().rtt(RTT));
    s.write(30_000);
    s.expect_flight(1, 10);
    let mut receiver = Receiver::new(1, RTT, true);
    // Everything sent in the first 250 ms is lost.
    let lost_until = s.now() + ms(250);
    let sent = receiver.play(&mut s, 30_001, secs(10), |got| got.at < lost_until);
    for n in 0..10 {
        assert_eq!(transmissions(&sent, 1 + n * SEG), 1, "segment {n}");
    }
}

#[test]
fn after_a_lost_syn_the_time_out_of_data_begins_at_three_seconds() {
    // RFC 6298 §5.7; §5.5 doubles it.
    native_only!();
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    s.expect_after(INITIAL_RTO, syn(0));
    s.inject_hello(syn_ack(0, 1));
    s.expect(ack(1, 1));
    s.expect_opened();
    s.write(1000);
    s.expect(data(1, 1000));
    s.expect_after(secs(3), data(1, 1000));
    s.expect_after(secs(6), data(1, 1000));
}
