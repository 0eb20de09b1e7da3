//! Peers without SACK: NewReno.

use super::super::Acknowledgement;
use super::network::{MS, MSS, ack_at};
use super::*;

fn options() -> Options {
    Options { sack: false, window: 20 * MSS, ..Options::default() }
}

#[test]
fn single_loss_is_recovered_without_timeout() {
    // RFC 5681 §3.2.
    let mut network = Network::new(options());
    network.cc.threshold = 1;
    network.drop_packets(&[(3 * MSS, 0)]);
    network.transfer(100 * MSS);
    assert_eq!((network.retransmissions(), network.timeouts()), (vec![3 * MSS], 0));
    assert_eq!(network.cc.reductions.len(), 1);
    // RFC 5681 §3.1: half of the data in flight, without limited transmit.
    assert_eq!(network.cc.reductions[0].1 / MSS, 20);
}

#[test]
fn partial_acknowledgements_recover_one_loss_each() {
    // RFC 6582 §3.2 step 3.
    let mut network = Network::new(options());
    network.drop_packets(&[(3 * MSS, 0), (6 * MSS, 0), (9 * MSS, 0)]);
    network.transfer(100 * MSS);
    assert_eq!((network.retransmissions(), network.timeouts()), (vec![3 * MSS, 6 * MSS, 9 * MSS], 0));
    assert_eq!((network.cc.reductions.len(), network.recoveries()), (1, 1));
}

#[test]
fn first_two_duplicates_send_new_data() {
    // RFC 3042 §2.
    let mut network = Network::new(options());
    network.drop_packets(&[(0, 0)]);
    network.transfer(40 * MSS);
    let order: Vec<_> = network.log[20..23].iter().map(|(_, packet)| packet.offset / MSS).collect();
    assert_eq!(order, [20, 21, 0]);
}

#[test]
fn one_lost_segment_of_a_burst_is_retransmitted_alone() {
    // The record of 64 KB is split at the first segment.
    let mut network = Network::new(Options { burst: 20 * MSS, ..options() });
    network.drop_packets(&[(3 * MSS, 0), (11 * MSS, 0)]);
    network.transfer(100 * MSS);
    assert_eq!((network.retransmissions(), network.timeouts()), (vec![3 * MSS, 11 * MSS], 0));
}

#[test]
fn duplicates_of_a_recovery_start_no_second_recovery() {
    // RFC 6582 §3.2 step 2: after a timeout all data is retransmitted although only the first segment was missing.
    let mut network = Network::new(options());
    network.drop_packets(&[(0, 0), (0, 1)]);
    network.transfer(20 * MSS);
    let timeouts = network.timeouts();
    assert_eq!(timeouts, 1);
    network.transfer(200 * MSS);
    assert_eq!((network.timeouts(), network.recoveries()), (timeouts, 1));
}

#[test]
fn lost_retransmission_waits_for_the_timer() {
    // RFC 6582 §4: nothing else can reveal it.
    let mut network = Network::new(options());
    network.drop_packets(&[(3 * MSS, 0), (3 * MSS, 1)]);
    network.transfer(100 * MSS);
    assert_eq!(network.timeouts(), 1);
}

#[test]
fn extraneous_duplicates_do_not_inflate_beyond_the_flight() {
    // RFC 9937 §6.2, for receivers that send more duplicates than they received segments.
    let mut network = Network::new(options());
    let (flight, cc) = (&mut network.flight, &mut network.cc);
    let una = flight.una();
    for _ in 0..20 {
        flight.sent(MSS, network.now, 20 * MSS);
    }
    let now = network.now + MS * 20;
    let mut sent = 0;
    for _ in 0..500 {
        let acknowledgement = Acknowledgement { unsent: true, ..ack_at(una, &[], now) };
        flight.acknowledge(&acknowledgement, &mut network.rtt, &mut network.path, cc, &network.options.limits);
        while flight.allowance(cc.window) >= MSS {
            match flight.retransmission(MSS) {
                Some((seq, len)) => flight.retransmitted(seq, len, now, 0),
                None => flight.sent(MSS, now, cc.window),
            }
            sent += 1;
        }
        flight.check();
    }
    // Two by limited transmit, and at most the data that was in flight.
    assert!(sent <= 2 + 20 + 1, "{sent}");
}

#[test]
fn duplicates_after_a_recovery_count_only_beyond_it() {
    // RFC 6582 §3.2 step 2.
    let mut network = Network::new(options());
    network.send_segments(8);
    network.now += MS * 20;
    for _ in 0..3 {
        network.acknowledge_segments(0, &[], false);
    }
    assert_eq!(network.retransmit_segments(), [0]);
    network.now += MS * 20;
    assert!(network.acknowledge_segments(8, &[], false).recovery_ended);
    network.send_segments(8);
    for _ in 0..4 {
        assert!(!network.acknowledge_segments(8, &[], false).recovery_began);
    }
    network.now += MS * 20;
    network.acknowledge_segments(9, &[], false);
    network.acknowledge_segments(10, &[], false);
    let began: Vec<_> = (0..4).map(|_| network.acknowledge_segments(10, &[], false).recovery_began).collect();
    assert_eq!(began, [false, false, true, false]);
}

#[test]
fn first_partial_ack_alone_restarts_the_timer() {
    // RFC 6582 §3.2 step 3.
    let mut network = Network::new(options());
    network.send_segments(12);
    network.now += MS * 20;
    for _ in 0..8 {
        network.acknowledge_segments(0, &[], false);
    }
    network.retransmit_segments();
    let mut deadlines = Vec::new();
    for ack in [3, 6, 9] {
        network.now += MS * 20;
        assert_eq!(network.acknowledge_segments(ack, &[], false).lost, MSS);
        assert_eq!(network.retransmit_segments(), [ack]);
        deadlines.push(network.flight.deadline(&network.rtt, &network.path, &network.options.limits).unwrap());
    }
    assert_eq!((deadlines[1], deadlines[2]), (deadlines[0], deadlines[0]));
    assert_eq!(deadlines[0].since(network.now), MS * 160 + network.rtt.rto(MS * 200) - MS * 200);
}

#[test]
fn partial_ack_deflates_by_data_beyond_the_first_segment() {
    // RFC 6582 §3.2 step 3: data counted by duplicates has left the network already.
    let mut network = Network::new(options());
    network.send_segments(12);
    network.now += MS * 20;
    for _ in 0..8 {
        network.acknowledge_segments(0, &[], false);
    }
    assert_eq!(network.retransmit_segments(), [0]);
    assert_eq!(network.flight.in_flight(), (12 - 8) * MSS);
    network.now += MS * 20;
    assert_eq!(network.acknowledge_segments(3, &[], false).lost, MSS);
    // One of nine segments is lost, and six were counted.
    assert_eq!(network.flight.in_flight(), (9 - 1 - 6) * MSS);
}
