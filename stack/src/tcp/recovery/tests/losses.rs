//! Losses with SACK.

use std::cell::Cell;
use std::rc::Rc;

use super::super::{Duration, Expired, Limits};
use super::network::{MS, MSS};
use super::*;

fn segments(numbers: &[u32]) -> Vec<(u32, u32)> {
    numbers.iter().map(|number| (number * MSS, 0)).collect()
}

#[test]
fn no_loss_causes_no_retransmission() {
    for delay in [None, Some(40 * MS)] {
        let mut network = Network::new(Options { delay, ..Options::default() });
        network.transfer(500 * MSS);
        assert_eq!((network.retransmissions(), network.timeouts()), (vec![], 0));
        assert_eq!(network.cc.reductions, []);
    }
}

#[test]
fn losses_in_a_window_are_recovered_without_timeout() {
    // RFC 8985 §6, RFC 6675 §5: each lost segment is retransmitted once, and the window is reduced once.
    for lost in
        [&[3u32][..], &[3, 7], &[3, 4, 20], &[1, 3, 5, 7, 9, 11, 13, 15, 17, 19], &[5, 6, 7, 8, 9, 10, 11, 12, 13, 14]]
    {
        for timestamps in [false, true] {
            let mut network = Network::new(Options { timestamps, ..Options::default() });
            network.drop_packets(&segments(lost));
            let start = network.now;
            network.transfer(200 * MSS);
            let mut retransmitted = network.retransmissions();
            retransmitted.sort_unstable();
            assert_eq!(retransmitted, lost.iter().map(|number| number * MSS).collect::<Vec<_>>(), "{lost:?}");
            assert_eq!((network.timeouts(), network.probes(), network.cc.reductions.len()), (0, 0, 1), "{lost:?}");
            assert!(network.now.since(start) < 600 * MS, "{lost:?} took {:?}", network.now.since(start));
        }
    }
}

#[test]
fn first_loss_is_detected_within_a_round_trip() {
    // RFC 8985 §6.2 step 4: no delay on a path without reordering.
    let mut network = Network::new(Options::default());
    network.drop_packets(&segments(&[0]));
    network.transfer(30 * MSS);
    let (at, _) = network.log.iter().find(|(_, packet)| packet.nth == 1).copied().unwrap();
    let start = network.log[0].0;
    assert!(at.since(start) < 21 * MS, "{:?}", at.since(start));
}

#[test]
fn lost_tail_is_recovered_by_one_probe() {
    // RFC 8985 §7: the probe repairs the last segment, or its acknowledgement reveals the others (§7.4.1).
    for lost in [&[9u32][..], &[8, 9], &[5, 6, 7, 8, 9], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]] {
        let mut network = Network::new(Options::default());
        network.drop_packets(&segments(lost));
        let start = network.now;
        network.transfer(10 * MSS);
        assert_eq!((network.timeouts(), network.probes()), (0, 1), "{lost:?}");
        assert_eq!(network.retransmissions().len(), lost.len(), "{lost:?}");
        // A lone segment may be waiting for a delayed acknowledgement.
        let limit = if lost.len() == 1 { 290 * MS } else { 170 * MS };
        assert!(network.now.since(start) < limit, "{lost:?} took {:?}", network.now.since(start));
    }
}

#[test]
fn probe_sends_new_data_if_available() {
    // RFC 8985 §7.3: the window has no room for new data, but a probe may be sent.
    let mut network = Network::new(Options { window: 10 * MSS, ..Options::default() });
    network.drop_packets(&segments(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
    network.transfer(20 * MSS);
    assert_eq!((network.timeouts(), network.probes()), (0, 1));
    assert_eq!(network.expired[0].1, Expired::Probe(None));
    assert_eq!(network.log[10].1.offset, 10 * MSS);
}

#[test]
fn loss_repaired_by_probe_reduces_the_window() {
    // RFC 8985 §7.4.2: more was acknowledged, and no duplicate was reported.
    let mut network = Network::new(Options::default());
    network.drop_packets(&segments(&[9]));
    network.transfer(10 * MSS);
    assert!(network.cc.reductions.is_empty() && !network.flight.is_settled());
    network.transfer(5 * MSS);
    assert_eq!(network.cc.reductions.len(), 1);
    assert!(network.outcomes.iter().any(|(_, outcome)| outcome.probe_repaired && outcome.reduced));
    assert!(network.flight.is_settled());

    // If nothing more is sent, the wait ends.
    let mut network = Network::new(Options::default());
    network.drop_packets(&segments(&[9]));
    network.transfer(10 * MSS);
    network.pause(500 * MS);
    assert_eq!(network.expired.last().map(|&(_, expired)| expired), Some(Expired::Settled { reduced: true }));
    assert_eq!(network.cc.reductions.len(), 1);
    assert!(network.flight.is_settled());
}

#[test]
fn unnecessary_probe_does_not_reduce_the_window() {
    // RFC 8985 §7.4.2 cases 1 and 2: the last acknowledgement is late.
    for duplicate_reports in [true, false] {
        let mut network = Network::new(Options { duplicate_reports, ..Options::default() });
        let mut first = true;
        network.ack_fate =
            Box::new(
                move |ack, _| {
                    if *ack == 10 * MSS && std::mem::take(&mut first) { Fate::Late(240 * MS) } else { Fate::Deliver }
                },
            );
        network.transfer(10 * MSS);
        network.pause(500 * MS);
        assert_eq!((network.probes(), network.timeouts()), (1, 0));
        assert!(network.cc.reductions.is_empty() && network.flight.is_settled());
        // The reordering window is unchanged; the learnt acknowledgement delay of the peer increases.
        assert_eq!(network.path.reordering_window(20_000_000), 5_000_000);
        assert!(network.path.acknowledgement_delay().0 > 200 * MS);
    }
}

#[test]
fn lone_lost_segment_is_probed_after_the_ack_delay() {
    // RFC 8985 §7.2.
    for (limits, expected) in [(Limits::default(), 221 * MS), (Limits::datacenter(), 26 * MS)] {
        let mut network = Network::new(Options { limits, ..Options::default() });
        network.drop_packets(&segments(&[0]));
        network.transfer(MSS);
        assert_eq!((network.probes(), network.timeouts()), (1, 0));
        let after = network.log[1].0.since(network.log[0].0);
        assert!(after > expected - MS * 2 && after < expected + MS * 2, "{after:?}");
    }
}

#[test]
fn lost_retransmission_is_detected_without_timeout() {
    // RFC 8985 §6.2 step 5: a segment sent after it was delivered.
    for times in 1..=3 {
        let mut network = Network::new(Options::default());
        network.drop_packets(&(0..=times).map(|nth| (3 * MSS, nth)).collect::<Vec<_>>());
        network.transfer(200 * MSS);
        assert_eq!(network.timeouts(), 0, "{times}");
        assert_eq!(network.retransmissions(), vec![3 * MSS; times as usize + 1]);
        let again: u32 = network.outcomes.iter().map(|(_, outcome)| outcome.lost_again).sum();
        assert_eq!(again, times * MSS);
    }
}

#[test]
fn lost_retransmissions_among_losses_are_detected_without_timeout() {
    let mut network = Network::new(Options::default());
    network.drop_packets(&[(MSS, 0), (3 * MSS, 0), (5 * MSS, 0), (7 * MSS, 0), (3 * MSS, 1), (7 * MSS, 1)]);
    network.transfer(200 * MSS);
    assert_eq!(network.timeouts(), 0);
    assert_eq!(network.retransmissions().len(), 6);
}

#[test]
fn lost_segments_of_a_burst_are_retransmitted_alone() {
    // Reports split the record of up to 64 KB.
    for burst in [7 * MSS, 60 * MSS] {
        let mut network = Network::new(Options { burst, window: 200 * MSS, ..Options::default() });
        network.drop_packets(&segments(&[3, 4, 30, 64, 65, 66, 110]));
        network.transfer(1000 * MSS);
        let mut retransmitted = network.retransmissions();
        retransmitted.sort_unstable();
        assert_eq!(retransmitted, [3, 4, 30, 64, 65, 66, 110].map(|number| number * MSS));
        assert_eq!((network.timeouts(), network.cc.reductions.len()), (0, 1));
    }
}

#[test]
fn losses_in_two_windows_reduce_the_window_twice() {
    // RFC 5681 §4.3.
    let mut network = Network::new(Options::default());
    network.drop_packets(&segments(&[3, 60]));
    network.transfer(200 * MSS);
    assert_eq!((network.timeouts(), network.cc.reductions.len()), (0, 2));
}

#[test]
fn lost_acks_cause_no_retransmission() {
    let mut network = Network::new(Options::default());
    network.drop_packets(&segments(&[10, 12, 14]));
    let mut count = 0;
    network.ack_fate = Box::new(move |_, _| {
        count += 1;
        if count % 3 == 0 { Fate::Drop } else { Fate::Deliver }
    });
    network.transfer(500 * MSS);
    assert_eq!(network.timeouts(), 0);
    assert_eq!(network.retransmissions().len(), 3);
}

#[test]
fn transfer_completes_on_a_lossy_link() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let options = Options {
            timestamps: random.bool(),
            sack: random.u8(..4) > 0,
            burst: [1, 3, 64][random.usize(..3)] * MSS,
            delay: random.bool().then_some(40 * MS),
            ..Options::default()
        };
        let mut network = Network::new(options);
        let (mut data, mut acks) = (random.fork(), random.fork());
        network.fate = Box::new(move |_, _| match data.u8(..100) {
            0..15 => Fate::Drop,
            15..20 => Fate::Late(Duration::from_micros(data.u64(..8_000))),
            _ => Fate::Deliver,
        });
        network.ack_fate = Box::new(move |_, _| if acks.u8(..100) < 10 { Fate::Drop } else { Fate::Deliver });
        network.transfer(300 * MSS);
    }
}

#[test]
fn random_losses_are_repaired_by_one_retransmission_each() {
    // The loss patterns of the goodput benchmark: no delivered segment is retransmitted, and the timer rarely expires.
    for (per_mille, timestamps) in [(1, false), (10, false), (10, true), (50, false), (50, true)] {
        let (mut lost, mut timeouts, mut undone) = (0, 0, 0);
        for seed in 0..5 {
            let mut network = Network::new(Options { timestamps, spacing: MS / 100, ..Options::default() });
            let mut random = fastrand::Rng::with_seed(seed);
            let dropped = Rc::new(Cell::new(0));
            let count = dropped.clone();
            network.fate = Box::new(move |_, _| {
                if random.u32(..1000) >= per_mille {
                    return Fate::Deliver;
                }
                count.set(count.get() + 1);
                Fate::Drop
            });
            network.transfer(2000 * MSS);
            assert_eq!(network.retransmissions().len(), dropped.get());
            lost += dropped.get();
            timeouts += network.timeouts();
            undone += network.undone().len();
        }
        assert!(timeouts * 100 <= lost, "{per_mille} of 1000: {timeouts} timeouts for {lost} losses");
        assert_eq!(undone, 0);
    }
}

#[test]
fn segments_of_a_burst_are_ordered_by_sequence_number() {
    // RFC 8985 §6.2: "breaks timestamp ties by using the TCP sequence space"; one record, one time.
    let mut network = Network::new(Options::default());
    network.flight.sent(10 * MSS, network.now, 30 * MSS);
    network.now += MS * 20;
    let outcome = network.acknowledge_segments(0, &[(3, 7)], false);
    assert_eq!((outcome.lost, network.flight.in_flight()), (3 * MSS, 3 * MSS));
}

#[test]
fn transmissions_at_the_same_time_keep_their_order() {
    // New data is sent, and then a retransmission at the same time: delivery of the new data does not indicate that the
    // retransmission was lost.
    let mut network = Network::new(Options::default());
    network.send_segments(10);
    network.now += MS * 20;
    assert_eq!(network.acknowledge_segments(0, &[(1, 4)], false).lost, MSS);
    network.send_segments(1);
    assert_eq!(network.retransmit_segments(), [0]);
    network.now += MS * 20;
    let outcome = network.acknowledge_segments(0, &[(1, 11)], false);
    assert_eq!((outcome.delivered, outcome.lost), (7 * MSS, 0));
    // Data sent after the retransmission reveals its loss.
    network.send_segments(1);
    network.now += MS * 20;
    assert_eq!(network.acknowledge_segments(0, &[(1, 12)], false).lost_again, MSS);
}

#[test]
fn recovery_cancels_its_probe() {
    // RFC 8985 §7.1: the probe is not considered to have repaired a later loss.
    let mut network = Network::new(Options::default());
    network.drop_packets(&segments(&[8, 9]));
    network.transfer(10 * MSS);
    network.transfer(5 * MSS);
    assert_eq!((network.probes(), network.cc.reductions.len()), (1, 1));
}

#[test]
fn data_and_fin_within_mss_are_one_segment() {
    let mut network = Network::new(Options::default());
    let una = network.flight.una();
    network.flight.sent(MSS + 1, network.now, 30 * MSS);
    assert_eq!(network.expire(), Expired::Probe(Some((una, MSS + 1))));
}
