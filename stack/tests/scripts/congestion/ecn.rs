//! Explicit congestion notification: RFC 3168, and DCTCP's use of it, RFC 8257.

use super::harness::*;

const RTT: Duration = ms(100);

/// A connection with ECN.
fn with_ecn() -> Script {
    Script::accepted_with(peer().ecn(), settings::ecn)
}

#[test]
fn a_syn_asks_for_ecn_and_its_answer_grants_it() {
    // RFC 3168 §6.1.1: ECE and CWR in the SYN; neither it nor a pure acknowledgement is ECN-capable (§6.1.4).
    native_only!();
    let mut s = Script::connecting(peer().ecn(), settings::ecn);
    s.expect(syn(0).flags(SYN | ECE | CWR).ecn(NOT_ECT));
    s.inject_hello(syn_ack(0, 1));
    s.expect(ack(1, 1).ecn(NOT_ECT));
    s.expect_opened();
    s.write(1000);
    s.expect(data(1, 1000).ecn(ECT0));
}

#[test]
fn a_syn_that_asks_for_ecn_is_granted_it() {
    // RFC 3168 §6.1.1: ECE without CWR in the SYN-ACK.
    native_only!();
    let mut s = Script::listen(peer().ecn(), settings::ecn);
    s.inject_hello(syn(0));
    s.expect(syn_ack(0, 1).flags(SYN | ACK | ECE).ecn(NOT_ECT));
    s.inject(ack(1, 1));
    s.expect_opened();
    s.write(1000);
    s.expect(data(1, 1000).ecn(ECT0));
}

#[test]
fn a_syn_with_one_of_the_two_flags_asks_for_nothing() {
    // RFC 3168 §6.1.1: an ECN-setup SYN has both.
    for flag in [ECE, CWR] {
        let mut s = Script::listen(peer(), settings::ecn);
        s.inject_hello(syn(0).with(flag));
        s.expect(syn_ack(0, 1));
        s.inject(ack(1, 1));
        s.expect_opened();
        s.write(1000);
        s.expect(data(1, 1000).ecn(NOT_ECT));
    }
}

#[test]
fn an_answer_that_reflects_both_flags_grants_nothing() {
    // RFC 3168 §6.1.1: a peer that only reflects the reserved bits.
    native_only!();
    let mut s = Script::connecting(peer(), settings::ecn);
    s.expect(syn(0).ece().cwr());
    s.inject_hello(syn_ack(0, 1).ece().cwr());
    s.expect(ack(1, 1));
    s.expect_opened();
    s.write(1000);
    s.expect(data(1, 1000).ecn(NOT_ECT));
}

#[test]
fn an_answer_without_the_flag_grants_nothing() {
    // RFC 3168 §6.1.1.
    native_only!();
    let mut s = Script::connecting(peer(), settings::ecn);
    s.expect(syn(0).ece().cwr());
    s.inject_hello(syn_ack(0, 1));
    s.expect(ack(1, 1));
    s.expect_opened();
    s.write(1000);
    s.expect(data(1, 1000).ecn(NOT_ECT));
}

#[test]
fn a_mark_on_a_connection_without_ecn_means_nothing() {
    // RFC 3168 §6.1.1: only once negotiated.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 1000).ecn(CE));
    s.expect_within(DELAYED_ACK, ack(1, 1001));
    s.write(1000);
    s.expect(data(1, 1000).ecn(NOT_ECT));
    s.inject(ack(1001, 1001).ece());
    s.write(1000);
    s.expect(data(1001, 1000).ecn(NOT_ECT));
}

#[test]
fn pure_acknowledgements_are_not_ecn_capable() {
    // RFC 3168 §6.1.4.
    native_only!();
    let mut s = with_ecn();
    s.inject(data(1, 1000).ecn(ECT0));
    s.expect_within(DELAYED_ACK, ack(1, 1001).ecn(NOT_ECT));
    s.inject(data(2001, 1000).ecn(ECT0));
    s.expect(ack(1, 1001).ecn(NOT_ECT));
}

#[test]
fn retransmissions_are_not_ecn_capable() {
    // RFC 3168 §6.1.5.
    native_only!();
    let mut s = with_ecn();
    s.write(2000);
    s.expect(data(1, 1000).ecn(ECT0));
    s.expect(data(1001, 1000).ecn(ECT0));
    s.expect_within(secs(1), data(1, 1000).any_ecn().ecn(NOT_ECT));
    s.inject(ack(1, 2001));
    s.write(1000);
    s.expect(data(2001, 1000).any_ecn().ecn(ECT0));
}

#[test]
fn window_probes_are_not_ecn_capable() {
    // RFC 3168 §6.1.6.
    native_only!();
    let mut s = with_ecn();
    s.inject(ack(1, 1).window(0));
    s.write(1000);
    let probe = s.expect_probe_between(Duration::ZERO, secs(2), 1);
    assert_eq!(probe.raw.ecn, NOT_ECT);
}

#[test]
fn a_mark_is_echoed_until_the_sender_says_that_it_has_slowed_down() {
    // RFC 3168 §6.1.3.
    native_only!();
    let mut s = with_ecn();
    s.inject(data(1, 1000).ecn(CE));
    s.expect_within(DELAYED_ACK, ack(1, 1001).ece());
    s.inject(data(1001, 1000).ecn(ECT0));
    s.expect_within(DELAYED_ACK, ack(1, 2001).ece());
    s.inject(data(2001, 1000).ecn(ECT1));
    s.expect_within(DELAYED_ACK, ack(1, 3001).ece());
    s.inject(data(3001, 1000).ecn(ECT0).cwr());
    s.expect_within(DELAYED_ACK, ack(1, 4001));
    s.inject(data(4001, 1000).ecn(ECT0));
    s.expect_within(DELAYED_ACK, ack(1, 5001));
}

#[test]
fn a_mark_on_the_segment_that_ends_an_echo_begins_another() {
    // RFC 3168 §6.1.3.
    native_only!();
    let mut s = with_ecn();
    s.inject(data(1, 1000).ecn(CE));
    s.expect_within(DELAYED_ACK, ack(1, 1001).ece());
    s.inject(data(1001, 1000).ecn(CE).cwr());
    s.expect_within(DELAYED_ACK, ack(1, 2001).ece());
}

#[test]
fn an_echo_rides_on_data_too() {
    // RFC 3168 §6.1.3: in every acknowledgement, also on data.
    native_only!();
    let mut s = with_ecn();
    s.answer(100);
    s.inject(data(1, 1000).ecn(CE));
    s.expect(data(1, 100).ack(1001).ece().ecn(ECT0));
}

#[test]
fn an_echo_halves_the_window_once_and_is_confirmed_once() {
    // RFC 3168 §6.1.2: as for a loss, once per window; CWR on the first new segment.
    native_only!();
    let mut s = Script::accepted_with(peer().ecn().rtt(RTT), |config| {
        settings::ecn(config);
        settings::newreno(config);
    });
    s.write(60_000);
    s.expect_flight(1, INITIAL_WINDOW);
    s.expect_nothing_for(RTT);
    let mut sent = Vec::new();
    for n in 1..=10 {
        s.inject(ack(1, 1 + n * SEG).ece());
        sent.extend(s.drain());
    }
    // All ten were sent before the reduction, so the echoes of them ask for one.
    assert!((4..=6).contains(&sent.len()), "{} segments in flight", sent.len());
    assert!(sent[0].has(CWR), "CWR on the first new segment");
    assert!(sent[1..].iter().all(|got| !got.has(CWR)), "and on no other");
    // These were sent after it.
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
    assert_eq!(confirmed, 1, "a second reduction, confirmed");
}

#[test]
fn an_echo_and_a_loss_in_one_window_are_one_reduction() {
    // RFC 3168 §6.1.2.
    native_only!();
    let mut s = Script::accepted_with(peer().ecn().sack().rtt(RTT), |config| {
        settings::ecn(config);
        settings::newreno(config);
    });
    s.write(10_000);
    s.expect_flight(1, INITIAL_WINDOW);
    s.expect_nothing_for(RTT);
    s.inject(ack(1, 1001).ece());
    s.inject(ack(1, 1001).sack(&[(2001, 10_001)]).ece());
    s.expect(data(1001, 1000).any_ecn());
    s.pass(RTT);
    s.inject(ack(1, 10_001));
    s.write(30_000);
    let flight = s.drain().len();
    assert!((4..=6).contains(&flight), "{flight} segments");
}

#[test]
fn dctcp_echoes_exactly_what_was_marked() {
    // RFC 8257 §3.2: a change of the mark is acknowledged at once, with the old state.
    native_only!();
    let mut s = Script::accepted_with(peer().ecn(), settings::dctcp);
    s.inject(data(1, 1000).ecn(ECT0));
    s.expect_nothing();
    s.inject(data(1001, 1000).ecn(CE));
    s.expect(ack(1, 1001));
    s.expect_within(DELAYED_ACK, ack(1, 2001).ece());
    s.inject(data(2001, 1000).ecn(CE));
    s.expect_nothing();
    s.inject(data(3001, 1000).ecn(CE));
    s.expect(ack(1, 4001).ece());
    s.inject(data(4001, 1000).ecn(CE));
    s.expect_nothing();
    s.inject(data(5001, 1000).ecn(ECT0));
    s.expect(ack(1, 5001).ece());
    s.expect_within(DELAYED_ACK, ack(1, 6001));
    // CWR ends nothing: the marks alone count.
    s.inject(data(6001, 1000).ecn(CE).cwr());
    s.expect_within(DELAYED_ACK, ack(1, 7001).ece());
}

#[test]
fn dctcp_begins_with_the_reaction_to_a_window_all_marked() {
    // RFC 8257 §3.3: alpha is 1 until it has been measured, so the first reduction is by half.
    native_only!();
    let mut s = Script::accepted_with(peer().ecn().rtt(RTT), settings::dctcp);
    s.write(60_000);
    s.expect_flight(1, INITIAL_WINDOW);
    s.expect_nothing_for(RTT);
    let mut sent = 0;
    for n in 1..=10 {
        s.inject(ack(1, 1 + n * SEG).ece());
        sent += s.drain().len();
    }
    assert!((4..=6).contains(&sent), "{sent} segments in flight");
}

#[test]
fn dctcp_reacts_little_to_few_marks() {
    // RFC 8257 §3.3: the window shrinks by alpha/2, and alpha is the fraction marked, averaged.
    native_only!();
    let mut s = Script::accepted_with(peer().ecn().rtt(ms(1)), settings::dctcp);
    // A long time without a mark: alpha is near zero.
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
    s.write(60 * SEG);
    let before = s.drain().len() as Rel;
    s.pass(ms(1));
    s.inject(ack(1, acknowledged + SEG).ece());
    for n in 2..=before {
        s.inject(ack(1, acknowledged + n * SEG));
    }
    let after = s.drain().len() as Rel;
    assert!(after * 10 >= before * 9, "from {before} segments to {after} of {flight}");
}

#[test]
fn cwr_is_sent_though_the_first_segment_found_no_packet() {
    // RFC 3168 §6.1.2: CWR on the first new data packet that is sent after the reduction, not on one that was to be.
    native_only!();
    let mut s = with_ecn();
    s.send(20 * SEG);
    s.expect_flight(1, INITIAL_WINDOW);
    let packets = s.take_packets();
    s.inject(ack(1, 1 + INITIAL_WINDOW * SEG).ece());
    s.expect_nothing();
    drop(packets);
    s.expect_within(ms(1), data(10_001, 1000).cwr().ecn(ECT0));
    s.expect(data(11_001, 1000).ecn(ECT0));
}
