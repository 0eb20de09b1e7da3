//! Peers that do not acknowledge selectively: NewReno.

use super::network::{MS, MSS};
use super::*;

fn options() -> Options {
    Options { sack: false, window: 20 * MSS, ..Options::default() }
}

#[test]
fn a_single_loss_is_recovered_without_a_time_out() {
    // RFC 5681 §3.2.
    let mut network = Network::new(options());
    network.cc.threshold = 1;
    network.drop_packets(&[(3 * MSS, 0)]);
    network.transfer(100 * MSS);
    assert_eq!((network.retransmissions(), network.time_outs()), (vec![3 * MSS], 0));
    assert_eq!(network.cc.reductions.len(), 1);
    // RFC 5681 §3.1: half of what was in flight, limited transmit not counted.
    assert_eq!(network.cc.reductions[0].1 / MSS, 20);
}

#[test]
fn partial_acknowledgements_recover_one_loss_each() {
    // RFC 6582 §3.2 step 3.
    let mut network = Network::new(options());
    network.drop_packets(&[(3 * MSS, 0), (6 * MSS, 0), (9 * MSS, 0)]);
    network.transfer(100 * MSS);
    assert_eq!((network.retransmissions(), network.time_outs()), (vec![3 * MSS, 6 * MSS, 9 * MSS], 0));
    assert_eq!((network.cc.reductions.len(), network.recoveries()), (1, 1));
}

#[test]
fn the_first_two_duplicates_send_new_data() {
    // RFC 3042 §2.
    let mut network = Network::new(options());
    network.drop_packets(&[(0, 0)]);
    network.transfer(40 * MSS);
    let order: Vec<_> = network.log[20..23].iter().map(|(_, packet)| packet.offset / MSS).collect();
    assert_eq!(order, [20, 21, 0]);
}

#[test]
fn a_burst_loses_one_segment_and_sends_one_again() {
    // The record of 64 KB is cut at the first segment.
    let mut network = Network::new(Options { burst: 20 * MSS, ..options() });
    network.drop_packets(&[(3 * MSS, 0), (11 * MSS, 0)]);
    network.transfer(100 * MSS);
    assert_eq!((network.retransmissions(), network.time_outs()), (vec![3 * MSS, 11 * MSS], 0));
}

#[test]
fn duplicates_of_the_recovery_do_not_begin_another() {
    // RFC 6582 §3.2 step 2: after a time-out everything is sent again though only the first was missing.
    let mut network = Network::new(options());
    network.drop_packets(&[(0, 0), (0, 1)]);
    network.transfer(20 * MSS);
    let time_outs = network.time_outs();
    assert_eq!(time_outs, 1);
    network.transfer(200 * MSS);
    assert_eq!((network.time_outs(), network.recoveries()), (time_outs, 1));
}

#[test]
fn a_lost_retransmission_waits_for_the_timer() {
    // RFC 6582 §4: nothing else can find it.
    let mut network = Network::new(options());
    network.drop_packets(&[(3 * MSS, 0), (3 * MSS, 1)]);
    network.transfer(100 * MSS);
    assert_eq!(network.time_outs(), 1);
}

#[test]
fn extraneous_duplicates_inflate_nothing_beyond_the_flight() {
    // RFC 9937 §6.2, against receivers that send more duplicates than they got segments.
    let mut network = Network::new(options());
    let (flight, cc) = (&mut network.flight, &mut network.cc);
    let una = flight.una();
    for _ in 0..20 {
        flight.sent(MSS, network.now, 20 * MSS);
    }
    let now = network.now + MS * 20;
    let mut sent = 0;
    for _ in 0..500 {
        let acknowledgement = super::super::Acknowledgement {
            ack: una,
            sack: &[],
            echoed_timestamp: None,
            ece: false,
            duplicate_candidate: true,
            pure: true,
            unsent: true,
            now,
        };
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
    // Two by limited transmit, and no more than was in flight.
    assert!(sent <= 2 + 20 + 1, "{sent}");
}

#[test]
fn after_a_recovery_duplicates_count_only_when_something_beyond_it_was_acknowledged() {
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
fn only_the_first_partial_acknowledgement_restarts_the_timer() {
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
fn partial_acknowledgement_deflates_by_what_lay_beyond_the_first_segment() {
    // RFC 6582 §3.2 step 3: what duplicates had been counted for has left the network already.
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
    // Of nine segments one is lost, and six were counted.
    assert_eq!(network.flight.in_flight(), (9 - 1 - 6) * MSS);
}
