//! Explicit congestion notification: RFC 3168, and DCTCP, RFC 8257.

use super::RTT;
use crate::harness::*;

fn with_ecn() -> Script {
    Script::accepted_with(peer().ecn(), settings::ecn)
}

#[test]
fn syn_requests_ecn_and_syn_ack_grants_it() {
    // RFC 3168 §6.1.1: ECE and CWR in the SYN. Neither the SYN nor a pure ACK is ECN-capable (§6.1.4).
    let mut s = Script::connecting(peer().ecn(), settings::ecn);
    s.expect(syn(0).flags(SYN | ECE | CWR).ecn(NOT_ECT));
    s.inject_syn(syn_ack(0, 1)).expect(ack(1, 1).ecn(NOT_ECT));
    s.expect_opened();
    s.write(1000).expect(data(1, 1000).ecn(ECT0));
}

#[test]
fn ecn_setup_syn_is_granted() {
    // RFC 3168 §6.1.1: ECE without CWR in the SYN-ACK.
    let mut s = Script::listen(peer().ecn(), settings::ecn);
    s.inject_syn(syn(0)).expect(syn_ack(0, 1).flags(SYN | ACK | ECE).ecn(NOT_ECT));
    s.inject(ack(1, 1)).expect_opened();
    s.write(1000).expect(data(1, 1000).ecn(ECT0));
}

#[test]
fn syn_with_only_ece_or_cwr_does_not_request_ecn() {
    // RFC 3168 §6.1.1: an ECN-setup SYN has both flags.
    for flag in [ECE, CWR] {
        let mut s = Script::listen(peer(), settings::ecn);
        s.inject_syn(syn(0).with(flag)).expect(syn_ack(0, 1));
        s.inject(ack(1, 1)).expect_opened();
        s.write(1000).expect(data(1, 1000).ecn(NOT_ECT));
    }
}

#[test]
fn syn_ack_without_ece_or_with_cwr_does_not_grant_ecn() {
    // RFC 3168 §6.1.1: with both flags the peer reflects the reserved bits.
    for answer in [syn_ack(0, 1), syn_ack(0, 1).ece().cwr()] {
        let mut s = Script::connecting(peer(), settings::ecn);
        s.expect(syn(0).ece().cwr());
        s.inject_syn(answer).expect(ack(1, 1));
        s.expect_opened();
        s.write(1000).expect(data(1, 1000).ecn(NOT_ECT));
    }
}

#[test]
fn ce_mark_without_ecn_is_ignored() {
    // RFC 3168 §6.1.1: only after negotiation.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 1000).ecn(CE)).expect_within(DELAYED_ACK, ack(1, 1001));
    s.write(1000).expect(data(1, 1000).ecn(NOT_ECT));
    s.inject(ack(1001, 1001).ece());
    s.write(1000).expect(data(1001, 1000).ecn(NOT_ECT));
}

#[test]
fn pure_acks_are_not_ecn_capable() {
    // RFC 3168 §6.1.4.
    let mut s = with_ecn();
    s.inject(data(1, 1000).ecn(ECT0)).expect_within(DELAYED_ACK, ack(1, 1001).ecn(NOT_ECT));
    s.inject(data(2001, 1000).ecn(ECT0)).expect(ack(1, 1001).ecn(NOT_ECT));
}

#[test]
fn retransmissions_are_not_ecn_capable() {
    // RFC 3168 §6.1.5.
    let mut s = with_ecn();
    s.write(2000).expect(data(1, 1000).ecn(ECT0));
    s.expect(data(1001, 1000).ecn(ECT0));
    s.expect_within(secs(1), data(1, 1000).any_ecn().ecn(NOT_ECT));
    s.inject(ack(1, 2001));
    s.write(1000).expect(data(2001, 1000).any_ecn().ecn(ECT0));
}

#[test]
fn window_probes_are_not_ecn_capable() {
    // RFC 3168 §6.1.6.
    let mut s = with_ecn();
    s.inject(ack(1, 1).window(0));
    let probe = s.write(1000).expect_probe_between(Duration::ZERO, secs(2), 1);
    assert_eq!(probe.raw.ecn, NOT_ECT);
}

#[test]
fn ce_mark_is_echoed_until_cwr() {
    // RFC 3168 §6.1.3.
    let mut s = with_ecn();
    s.inject(data(1, 1000).ecn(CE)).expect_within(DELAYED_ACK, ack(1, 1001).ece());
    s.inject(data(1001, 1000).ecn(ECT0)).expect_within(DELAYED_ACK, ack(1, 2001).ece());
    s.inject(data(2001, 1000).ecn(ECT1)).expect_within(DELAYED_ACK, ack(1, 3001).ece());
    s.inject(data(3001, 1000).ecn(ECT0).cwr()).expect_within(DELAYED_ACK, ack(1, 4001));
    s.inject(data(4001, 1000).ecn(ECT0)).expect_within(DELAYED_ACK, ack(1, 5001));
}

#[test]
fn ce_mark_on_segment_with_cwr_restarts_echo() {
    // RFC 3168 §6.1.3.
    let mut s = with_ecn();
    s.inject(data(1, 1000).ecn(CE)).expect_within(DELAYED_ACK, ack(1, 1001).ece());
    s.inject(data(1001, 1000).ecn(CE).cwr()).expect_within(DELAYED_ACK, ack(1, 2001).ece());
}

#[test]
fn ece_is_set_on_data_segments() {
    // RFC 3168 §6.1.3: in every acknowledgement, data segments included.
    let mut s = with_ecn();
    s.write_on_readable(100);
    s.inject(data(1, 1000).ecn(CE)).expect(data(1, 100).ack(1001).ece().ecn(ECT0));
}

#[test]
fn ece_halves_cwnd_once_per_window() {
    // RFC 3168 §6.1.2: as for a loss, once per window, with CWR on the first new segment.
    let mut s = Script::accepted_with(peer().ecn().rtt(RTT), |config| {
        settings::ecn(config);
        settings::newreno(config);
    });
    s.write(60_000).expect_flight(1, INITIAL_WINDOW);
    s.expect_nothing_for(RTT);
    let mut sent = Vec::new();
    for n in 1..=10 {
        s.inject(ack(1, 1 + n * SEG).ece());
        sent.extend(s.drain());
    }
    // All ten were sent before the reduction, so their echoes cause one reduction.
    assert!((4..=6).contains(&sent.len()), "{} segments in flight", sent.len());
    assert!(sent[0].has(CWR), "CWR on the first new segment");
    assert!(sent[1..].iter().all(|got| !got.has(CWR)), "CWR on no other segment");
    // Segments sent after the reduction.
    s.pass(RTT);
    let mut edge = sent.last().map_or(0, Got::end);
    let mut confirmed = 0;
    for n in 11..=20 {
        let next = ack(1, edge.min(1 + n * SEG));
        s.inject(if n <= 12 { next.ece() } else { next });
        for got in s.drain() {
            edge = got.end();
            confirmed += usize::from(got.has(CWR));
        }
    }
    assert_eq!(confirmed, 1, "one CWR for the second reduction");
}

#[test]
fn ece_and_loss_in_one_window_cause_one_reduction() {
    // RFC 3168 §6.1.2.
    let mut s = Script::accepted_with(peer().ecn().sack().rtt(RTT), |config| {
        settings::ecn(config);
        settings::newreno(config);
    });
    s.write(10_000).expect_flight(1, INITIAL_WINDOW);
    s.expect_nothing_for(RTT);
    s.inject(ack(1, 1001).ece());
    s.inject(ack(1, 1001).sack(&[(2001, 10_001)]).ece()).expect(data(1001, 1000).any_ecn());
    s.pass(RTT);
    s.inject(ack(1, 10_001));
    let flight = s.write(30_000).drain().len();
    assert!((4..=6).contains(&flight), "{flight} segments");
}

#[test]
fn dctcp_echoes_exactly_the_marks() {
    // RFC 8257 §3.2: a change of the mark is acknowledged immediately, with the old state.
    let mut s = Script::accepted_with(peer().ecn(), settings::dctcp);
    s.inject(data(1, 1000).ecn(ECT0)).expect_nothing();
    s.inject(data(1001, 1000).ecn(CE)).expect(ack(1, 1001));
    s.expect_within(DELAYED_ACK, ack(1, 2001).ece());
    s.inject(data(2001, 1000).ecn(CE)).expect_nothing();
    s.inject(data(3001, 1000).ecn(CE)).expect(ack(1, 4001).ece());
    s.inject(data(4001, 1000).ecn(CE)).expect_nothing();
    s.inject(data(5001, 1000).ecn(ECT0)).expect(ack(1, 5001).ece());
    s.expect_within(DELAYED_ACK, ack(1, 6001));
    // CWR ends no echo: only the marks count.
    s.inject(data(6001, 1000).ecn(CE).cwr()).expect_within(DELAYED_ACK, ack(1, 7001).ece());
}

#[test]
fn dctcp_initial_reduction_is_by_half() {
    // RFC 8257 §3.3: alpha is 1 until measured.
    let mut s = Script::accepted_with(peer().ecn().rtt(RTT), settings::dctcp);
    s.write(60_000).expect_flight(1, INITIAL_WINDOW);
    s.expect_nothing_for(RTT);
    let mut sent = 0;
    for n in 1..=10 {
        s.inject(ack(1, 1 + n * SEG).ece());
        sent += s.drain().len();
    }
    assert!((4..=6).contains(&sent), "{sent} segments in flight");
}

#[test]
fn dctcp_reduces_little_for_few_marks() {
    // RFC 8257 §3.3: the window shrinks by alpha/2, where alpha is the average fraction of marks.
    let mut s = Script::accepted_with(peer().ecn().rtt(ms(1)), settings::dctcp);
    // Many round trips without a mark bring alpha close to zero.
    let mut acknowledged = 1;
    let mut flight = 0;
    for round in 0..100 {
        s.write(10 * SEG);
        flight = s.drain().len() as Rel;
        assert!(flight == 10, "{flight} in round {round}");
        s.pass(ms(1));
        s.ack_each(acknowledged, acknowledged + flight * SEG);
        acknowledged += flight * SEG;
    }
    let before = s.write(60 * SEG).drain().len() as Rel;
    s.pass(ms(1));
    s.inject(ack(1, acknowledged + SEG).ece());
    for n in 2..=before {
        s.inject(ack(1, acknowledged + n * SEG));
    }
    let after = s.drain().len() as Rel;
    assert!(after * 10 >= before * 9, "from {before} segments to {after} of {flight}");
}

#[test]
fn cwr_is_sent_after_packet_shortage() {
    // RFC 3168 §6.1.2: CWR on the first new data packet sent after the reduction, not on one that could not be sent.
    let mut s = with_ecn();
    s.send(20 * SEG);
    s.expect_flight(1, INITIAL_WINDOW);
    let packets = s.take_packets();
    s.inject(ack(1, 1 + INITIAL_WINDOW * SEG).ece()).expect_nothing();
    drop(packets);
    s.expect_within(ms(1), data(10_001, 1000).cwr().ecn(ECT0));
    s.expect(data(11_001, 1000).ecn(ECT0));
}
