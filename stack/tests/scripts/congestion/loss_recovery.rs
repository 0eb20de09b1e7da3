//! Loss recovery before a timeout: RACK and SACK (RFC 8985), duplicate ACKs (RFC 5681, RFC 6582), limited transmit (RFC
//! 3042), proportional rate reduction (RFC 9937).

use super::{RTT, in_flight_for_rtt};
use crate::harness::*;

/// As [`in_flight_for_rtt`], with twice the initial window in flight from the returned sequence number.
fn twenty_in_flight(configure: impl FnOnce(&mut linerate_stack::Config), more: Rel) -> (Script, Rel) {
    let mut s = Script::accepted_with(peer().sack().rtt(RTT), configure);
    s.write((30 + more) * SEG).expect_flight(1, INITIAL_WINDOW);
    s.expect_nothing_for(RTT);
    s.ack_each(1, 10_001);
    s.expect_flight(10_001, 20);
    s.expect_nothing_for(RTT);
    (s, 10_001)
}

#[test]
fn third_sacked_segment_triggers_retransmission() {
    // RFC 8985 §6.2 step 4: without reordering, the reordering window is zero once DupThresh segments are SACKed.
    let mut s = in_flight_for_rtt(peer().sack(), 10);
    s.inject(ack(1, 1).sack(&[(1001, 2001)])).expect_nothing();
    s.inject(ack(1, 1).sack(&[(1001, 3001)])).expect_nothing();
    s.inject(ack(1, 1).sack(&[(1001, 4001)])).expect(data(1, 1000));
    s.inject(ack(1, 10_001)).expect_nothing_for(secs(10));
}

#[test]
fn rack_retransmits_after_quarter_rtt() {
    // RFC 8985 §6.2 steps 4 and 5: below DupThresh the reordering window is min_RTT/4.
    let mut s = in_flight_for_rtt(peer().sack(), 2);
    s.inject(ack(1, 1).sack(&[(1001, 2001)])).expect_after(RTT / 4, data(1, 1000));
    s.inject(ack(1, 2001)).expect_nothing_for(secs(10));
}

#[test]
fn third_duplicate_ack_triggers_retransmission() {
    // RFC 5681 §3.2.
    let mut s = in_flight_for_rtt(peer(), 10);
    s.inject_times(2, ack(1, 1)).expect_nothing();
    s.inject(ack(1, 1)).expect(data(1, 1000));
    s.inject(ack(1, 10_001)).expect_nothing_for(secs(10));
}

#[test]
fn non_duplicate_acks_trigger_no_retransmission() {
    // RFC 5681 §2: a duplicate ACK has no data, no SYN or FIN, and the same window.
    let mut s = in_flight_for_rtt(peer(), 10);
    for n in 0..5 {
        s.inject(data(1 + 10 * n, 10).ack(1));
        s.inject(ack(1 + 10 * (n + 1), 1).window(60_000 + n as u16));
    }
    s.pass(DELAYED_ACK);
    assert!(s.drain().iter().all(|got| got.len == 0), "no retransmission");
}

#[test]
fn partial_ack_without_sack_retransmits_next_segment() {
    // RFC 6582 §3.2 step 3.
    let mut s = in_flight_for_rtt(peer(), 10);
    s.inject_times(3, ack(1, 1)).expect(data(1, 1000));
    s.inject_times(5, ack(1, 1)).expect_nothing();
    s.pass(RTT);
    s.inject(ack(1, 4001)).expect(data(4001, 1000));
    s.pass(RTT);
    s.inject(ack(1, 10_001)).expect_nothing_for(secs(10));
}

#[test]
fn limited_transmit_sends_on_first_two_duplicate_acks() {
    // RFC 3042 §2.
    let mut s = in_flight_for_rtt(peer(), 20);
    s.inject(ack(1, 1)).expect(data(10_001, 1000));
    s.inject(ack(1, 1)).expect(data(11_001, 1000));
    s.inject(ack(1, 1)).expect(data(1, 1000));
}

#[test]
fn limited_transmit_sends_on_first_two_sacked_segments() {
    // RFC 3042 §2 with RFC 6675: SACKed segments are no longer in flight.
    let mut s = in_flight_for_rtt(peer().sack(), 20);
    s.inject(ack(1, 1).sack(&[(1001, 2001)])).expect(data(10_001, 1000));
    s.inject(ack(1, 1).sack(&[(1001, 3001)])).expect(data(11_001, 1000));
    s.inject(ack(1, 1).sack(&[(1001, 4001)])).expect(data(1, 1000));
}

/// Loses the segments `lost` of twenty and returns the segments sent until all have arrived.
fn lose(lost: &[Rel], limit: Duration) -> Vec<Got> {
    let (mut s, first) = twenty_in_flight(|_| {}, 20);
    let end = s.flow().peer_end;
    let mut receiver = Receiver::new(first, RTT, true);
    receiver.seq = end;
    // The script has already expected the twenty segments, so `play` does not receive them: their arrivals are
    // acknowledged here.
    for n in (0..20).filter(|n| !lost.contains(n)) {
        let seg = receiver.receive(first + n * SEG, SEG);
        s.inject(seg);
        s.pass(Duration::from_micros(100));
    }
    receiver.play(&mut s, 1 + 50 * SEG, limit, |_| false)
}

#[test]
fn two_losses_recover_without_timeout() {
    // RFC 8985 §6.2 step 5; RFC 6675.
    let sent = lose(&[0, 5], 6 * RTT);
    let again: Vec<Rel> = retransmissions_below(&sent, 30_001);
    assert_eq!(again, [10_001, 15_001]);
}

#[test]
fn three_losses_recover_without_timeout() {
    // RFC 8985 §6.2 step 5; RFC 6675.
    let sent = lose(&[1, 2, 9], 6 * RTT);
    assert_eq!(retransmissions_below(&sent, 30_001), [11_001, 12_001, 19_001]);
}

#[test]
fn ten_losses_recover_without_timeout() {
    // RFC 8985 §6.2 step 5; RFC 9937 keeps retransmissions flowing.
    let lost: Vec<Rel> = (0..10).map(|n| 2 * n).collect();
    let sent = lose(&lost, 8 * RTT);
    let want: Vec<Rel> = lost.iter().map(|n| 10_001 + n * SEG).collect();
    assert_eq!(retransmissions_below(&sent, 30_001), want);
}

#[test]
fn ten_consecutive_losses_recover_without_timeout() {
    // RFC 8985 §6.2 step 5; RFC 9937.
    let lost: Vec<Rel> = (0..10).collect();
    let sent = lose(&lost, 8 * RTT);
    let want: Vec<Rel> = lost.iter().map(|n| 10_001 + n * SEG).collect();
    assert_eq!(retransmissions_below(&sent, 30_001), want);
}

/// Returns the sorted sequence numbers of the segments of `sent` below `end`, all of which are retransmissions.
fn retransmissions_below(sent: &[Got], end: Rel) -> Vec<Rel> {
    let mut again: Vec<Rel> = sent.iter().filter(|got| got.len > 0 && got.seq < end).map(|got| got.seq).collect();
    again.sort_unstable();
    again
}

#[test]
fn lost_retransmission_recovers_without_timeout() {
    // RFC 8985 §3.3, §6.2 step 5: a segment sent after the retransmission has been delivered.
    let mut s = in_flight_for_rtt(peer().sack(), 40);
    let mut sent = Vec::new();
    for n in 1..10 {
        s.inject(ack(1, 1).sack(&[(1001, 1001 + n * SEG)]));
        s.pass(ms(1));
        sent.extend(s.drain());
    }
    assert_eq!(transmissions(&sent, 1), 1);
    let again = sent.iter().position(|got| got.seq == 1).unwrap_or(0);
    let end = sent[again + 1..].iter().map(Got::end).max().expect("new segments after the retransmission");
    s.expect_nothing_for(RTT - ms(10));
    s.pass(ms(10));
    let sent = s.inject(ack(1, 1).sack(&[(1001, end)])).drain_for(ms(30));
    assert_eq!(transmissions(&sent, 1), 1, "the lost retransmission is repeated once");
}

#[test]
fn slight_reordering_triggers_no_retransmission() {
    // RFC 8985 §6.2 steps 4 and 5: fewer than DupThresh segments, for less than the reordering window.
    let mut s = in_flight_for_rtt(peer().sack(), 10);
    s.inject(ack(1, 1).sack(&[(1001, 2001)]));
    s.inject(ack(1, 1).sack(&[(1001, 3001)])).expect_nothing_for(RTT / 4 - ms(5));
    s.inject(ack(1, 3001)).expect_nothing_for(ms(20));
    s.inject(ack(1, 10_001)).expect_nothing_for(secs(10));
}

#[test]
fn observed_reordering_disables_dup_thresh() {
    // RFC 8985 §6.2 steps 3 and 4: after reordering only the reordering window counts.
    let mut s = in_flight_for_rtt(peer().sack(), 32);
    s.inject(ack(1, 1).sack(&[(1001, 2001)]));
    s.inject(ack(1, 2001));
    s.ack_each(2001, 10_001);
    let sent = s.drain();
    assert!(retransmissions(&sent).is_empty() && sent.len() >= 19);
    s.drain_for(RTT);
    for n in 1..19 {
        s.inject(ack(1, 10_001).sack(&[(11_001, 11_001 + n * SEG)]));
        s.pass(ms(1));
        assert_eq!(transmissions(&s.drain(), 10_001), 0, "after {n} segments");
    }
    let sent = s.inject(ack(1, 29_001)).drain_for(ms(50));
    assert!(sent.iter().all(|got| got.seq >= 29_001));
}

#[test]
fn dsack_widens_reordering_window() {
    // RFC 8985 §6.2 step 4: RACK.reo_wnd_mult grows with every round in which a D-SACK arrives.
    let mut s = in_flight_for_rtt(peer().sack(), 10);
    // Reordering: segment 1 arrives after segment 2.
    s.inject(ack(1, 1).sack(&[(1001, 2001)]));
    s.inject(ack(1, 2001));
    s.inject(ack(1, 10_001)).expect_nothing();
    // A segment is late by more than a quarter of a round trip: a spurious retransmission.
    s.write(5000).expect_flight(10_001, 5);
    s.expect_nothing_for(RTT);
    s.inject(ack(1, 10_001).sack(&[(11_001, 15_001)])).expect_after(RTT / 4, data(10_001, 1000));
    s.inject(ack(1, 15_001));
    s.pass(RTT);
    s.inject(ack(1, 15_001).sack(&[(10_001, 11_001)])).expect_nothing();
    // The next segment may be as late.
    let sent = s.write(5000).drain();
    assert!(sent.len() >= 4 && sent[0].seq == 15_001);
    s.pass(RTT);
    let sent = s.inject(ack(1, 15_001).sack(&[(16_001, 16_001 + 3 * SEG)])).drain_for(RTT / 4 + ms(10));
    assert_eq!(transmissions(&sent, 15_001), 0);
}

#[test]
fn prr_sends_in_proportion_to_delivery() {
    // RFC 9937 §6.2: with NewReno one segment per two delivered, evenly spaced, the first immediately.
    let (mut s, first) = twenty_in_flight(settings::newreno, 40);
    let mut sent = Vec::new();
    for n in 1..20 {
        let now = s.inject(ack(1, first).sack(&[(first + SEG, first + SEG + n * SEG)])).drain();
        if n == 3 {
            assert!(now.iter().any(|got| got.seq == first), "the retransmission comes first");
        }
        assert!(now.len() <= 2, "{} segments for one delivered segment", now.len());
        if n >= 3 {
            sent.extend(now);
        }
        s.pass(ms(1));
    }
    // 17 acknowledgements during recovery, at a ratio of one half.
    assert!((7..=11).contains(&sent.len()), "{} segments during recovery", sent.len());
}

#[test]
fn cwnd_after_recovery_is_ssthresh() {
    // RFC 9937 §6.2. RFC 5681 §3.1: half; RFC 9438 §4.6: 0.7.
    type Configure = fn(&mut linerate_stack::Config);
    for (configure, want) in [(settings::newreno as Configure, 10), ((|_| {}) as Configure, 14)] {
        let (mut s, first) = twenty_in_flight(configure, 0);
        for n in 1..20 {
            s.inject(ack(1, first).sack(&[(first + SEG, first + SEG + n * SEG)]));
            s.pass(ms(1));
        }
        assert_eq!(transmissions(&s.drain(), first), 1);
        s.pass(RTT - ms(20));
        s.inject(ack(1, 30_001));
        let flight = s.write(60 * SEG).drain().len() as Rel;
        assert!((want - 1..=want + 1).contains(&flight), "{flight} segments in flight, not {want}");
    }
}

#[test]
fn invalid_sack_blocks_are_ignored() {
    // RFC 2018 §8, RFC 6675 §2: beyond SND.NXT, below SND.UNA, reversed, or empty.
    let mut s = in_flight_for_rtt(peer().sack(), 10);
    for block in [(20_001, 21_001), (5001, 3001), (-5000, -4000), (3001, 3001), (9001, 12_001), (1, 1 << 31)] {
        s.inject(ack(1, 1).sack(&[block])).expect_nothing();
    }
    s.expect_nothing_for(ms(50));
    s.inject(ack(1, 10_001)).expect_nothing_for(secs(10));
}

#[test]
fn reneged_data_is_retransmitted() {
    // RFC 2018 §8: data is kept until acknowledged cumulatively.
    let mut s = in_flight_for_rtt(peer().sack(), 10);
    s.inject(ack(1, 1).sack(&[(1001, 10_001)])).expect(data(1, 1000));
    s.pass(RTT);
    s.inject(ack(1, 1001));
    let mut receiver = Receiver::new(1001, RTT, true);
    receiver.play(&mut s, 10_001, secs(20), |_| false);
}

#[test]
fn sacked_data_is_not_retransmitted_after_timeout() {
    // RFC 6675 §5.1; RFC 8985 §6.3: the retransmission is lost too, and no segment follows it.
    let mut s = in_flight_for_rtt(peer().sack(), 10);
    s.inject(ack(1, 1).sack(&[(1001, 10_001)])).expect(data(1, 1000));
    s.expect_within(secs(1), data(1, 1000));
    s.expect_nothing_for(ms(100));
    s.inject(ack(1, 10_001)).expect_nothing_for(secs(10));
}

#[test]
fn acks_without_data_in_flight_are_not_duplicates() {
    // RFC 5681 §2: a duplicate ACK arrives while data is outstanding.
    for recovered in [false, true] {
        let mut s = Script::accepted(peer().rtt(ms(20)));
        s.write(5 * SEG).expect_flight(1, 5);
        s.pass(ms(20));
        if recovered {
            s.inject_times(3, ack(1, 1)).expect(data(1, SEG));
            s.pass(ms(20));
        }
        let end = 1 + 5 * SEG;
        s.inject(ack(1, end));
        s.inject_times(5, ack(1, end));
        // The acknowledgement ends a possible recovery episode.
        s.write(SEG).expect(data(end, SEG));
        s.pass(ms(20));
        let end = end + SEG;
        s.inject(ack(1, end));
        s.inject_times(5, ack(1, end));
        s.write(3 * SEG).expect_flight(end, 3);
        s.inject_times(2, ack(1, end)).expect_nothing();
        s.inject(ack(1, end)).expect(data(end, SEG));
    }
}
