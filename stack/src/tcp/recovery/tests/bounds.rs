//! Bounds on memory and processing time.

use super::super::{Acknowledgement, Expired, Flight, FlightConfig, Phase, Seq};
use super::network::{FIRST, MS, MSS, ack_at};
use super::*;

fn flight_of(records: u32, burst: u32) -> (Network, u32) {
    let mut network = Network::new(Options::default());
    for _ in 0..records {
        network.flight.sent(burst * MSS, network.now, u32::MAX);
    }
    network.now += MS * 20;
    (network, records * burst)
}

fn acknowledge(network: &mut Network, ack: u32, sack: &[(u32, u32)]) {
    let sack: Vec<_> = sack.iter().map(|&(start, end)| (FIRST + start * MSS, FIRST + end * MSS)).collect();
    network.process(&ack_at(FIRST + ack * MSS, &sack, network.now));
}

#[test]
fn growing_sack_block_splits_no_records() {
    // One record before the hole, one for the hole, one acknowledged, and the rest of the burst.
    let (mut network, segments) = flight_of(10, 60);
    for end in 6..=segments {
        acknowledge(&mut network, 3, &[(5, end)]);
        assert!(network.flight.records() <= 10 + 3, "{} at {end}", network.flight.records());
    }
    network.flight.check();
}

#[test]
fn records_never_outnumber_segments() {
    // Worst reports of a peer: every other segment, with blocks that end within segments.
    let (mut network, segments) = flight_of(10, 60);
    for at in (1..segments - 4).step_by(2) {
        let una = network.flight.una();
        let sack = [(una + at * MSS + 13, una + (at + 2) * MSS + 700)];
        network.process(&ack_at(una, &sack, network.now));
        assert!(network.flight.records() <= segments as usize);
    }
    network.flight.check();
}

#[test]
fn cost_of_sack_is_independent_of_records() {
    // Each report covers all arrived segments. A scan of all of them per report would take minutes.
    let (mut network, segments) = flight_of(100_000, 1);
    for at in 1..segments {
        if at % 100 != 0 {
            let group = at - at % 100;
            let before = group.saturating_sub(100);
            acknowledge(&mut network, 0, &[(group + 1, at + 1), (before + 1, before + 100)]);
        }
    }
    network.flight.check();
    assert_eq!(network.flight.scoreboard.sacked() / MSS, 99_000);
    acknowledge(&mut network, segments, &[]);
    assert!(network.flight.is_empty());
}

#[test]
fn sacked_ranges_are_bounded() {
    // Ranges beyond the limit are not recorded; their data counts as in flight.
    let (mut network, segments) = flight_of(40_000, 1);
    for at in (1..segments).rev().step_by(2) {
        acknowledge(&mut network, 0, &[(at, at + 1)]);
    }
    network.flight.check();
    assert_eq!(network.flight.scoreboard.sacked() / MSS, 4096);
    // Refused data can be recorded later, next to a recorded range.
    acknowledge(&mut network, 0, &[(2, segments)]);
    assert_eq!(network.flight.scoreboard.sacked() / MSS, segments - 2);
    network.flight.check();
}

#[test]
fn stored_sequence_numbers_survive_the_wrap() {
    // Three gigabytes in order, then a loss or ECE: no stored sequence number may appear to be ahead.
    let config = FlightConfig { mss: 60_000, sack: true, exact_ecn: false };
    let mut network = Network::new(Options::default());
    network.flight = Flight::new(FIRST, config);
    let (mut sent, mut acknowledged) = (Seq(0), 0u64);
    while acknowledged < 3 << 30 {
        network.flight.sent(60_000, network.now, 1 << 30);
        network.flight.sent(60_000, network.now, 1 << 30);
        network.now += MS;
        sent += 120_000;
        network.process(&Acknowledgement { duplicate_candidate: false, ..ack_at(FIRST + sent.0, &[], network.now) });
        acknowledged += 120_000;
        assert!(network.cc.deliveries.is_empty());
    }
    assert!(!network.path.reordering_seen());
    network.flight.sent(60_000, network.now, 1 << 30);
    let outcome = network.process(&Acknowledgement { ece: true, ..ack_at(network.flight.next(), &[], network.now) });
    assert!(outcome.reduced);
    let una = network.flight.una();
    for _ in 0..5 {
        network.flight.sent(60_000, network.now, 1 << 30);
    }
    network.now += MS;
    let outcome = network.process(&ack_at(una, &[(una + 60_000, una + 300_000)], network.now));
    assert!(outcome.recovery_began && outcome.lost == 60_000 && !network.path.reordering_seen());
}

#[test]
fn reset_flight_equals_a_new_one() {
    let mut network = Network::new(Options { sack: false, ..Options::default() });
    let config = network.flight.config;
    // In the middle of a fast recovery, after a timeout, and after a long flight.
    for trouble in 0..3 {
        network.flight.reset(FIRST, config);
        network.send_segments(if trouble == 2 { 3000 } else { 10 });
        network.now += MS * 20;
        match trouble {
            0 => assert!((0..5).any(|_| network.acknowledge_segments(0, &[], false).recovery_began)),
            1 => assert!(matches!(network.expire(), Expired::Timeout { .. })),
            _ => assert_eq!(network.acknowledge_segments(3000, &[], false).acknowledged, 3000 * MSS),
        }
        network.flight.reset(Seq(77), config);
        network.flight.check();
        let flight = &network.flight;
        assert!(!flight.disturbed && flight.is_settled() && !flight.scoreboard.exceeds_idle_capacity());
        assert_eq!((flight.una(), flight.next(), flight.phase()), (Seq(77), Seq(77), Phase::Open));
        assert_eq!((flight.in_flight(), flight.timeouts(), flight.records()), (0, 0, 0));
        assert_eq!((flight.retransmission(MSS), flight.allowance(5 * MSS)), (None, 5 * MSS));
    }
}

#[test]
fn smaller_mss_splits_data_in_flight() {
    // RFC 1191 §6.5: data that was too large is retransmitted in smaller segments.
    let mut network = Network::new(Options::default());
    let una = network.flight.una();
    network.flight.sent(10 * MSS, network.now, u32::MAX);
    network.flight.set_mss(400);
    let limits = &network.options.limits;
    for _ in 0..2 {
        let at = network.flight.deadline(&network.rtt, &network.path, limits).unwrap();
        network.flight.expire(at, false, &mut network.rtt, &mut network.path, &mut network.cc, limits);
        network.now = at;
    }
    assert_eq!(network.flight.retransmission(1500), Some((una, 400)));
    network.flight.retransmitted(una, 400, network.now, 0);
    network.flight.check();
    assert_eq!(network.flight.records(), 2);
}

#[test]
fn flight_and_record_sizes_are_bounded() {
    assert!(size_of::<Flight>() <= 576, "{}", size_of::<Flight>());
    assert!(size_of::<super::super::scoreboard::TxRecord>() <= 24);
}
