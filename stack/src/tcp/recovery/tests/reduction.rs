//! Transmission while the window shrinks (RFC 9937), and ECE.

use std::cell::RefCell;
use std::rc::Rc;

use super::super::{Acknowledgement, CongestionSignal, Phase};
use super::network::{MS, MSS, ack_at};
use super::*;

#[test]
fn recovery_ends_at_ssthresh() {
    // RFC 9937 §7: with few losses, the data in flight at the end of recovery is ssthresh.
    for lost in [&[3u32][..], &[3, 7, 11]] {
        let mut network = Network::new(Options { window: 40 * MSS, ..Options::default() });
        network.cc.threshold = 1;
        network.drop_packets(&lost.iter().map(|number| (number * MSS, 0)).collect::<Vec<_>>());
        let last = Rc::new(RefCell::new((0, 0)));
        let seen = last.clone();
        network.observe = Box::new(move |flight, cc| {
            if flight.phase() == Phase::Recovery {
                *seen.borrow_mut() = (flight.in_flight(), cc.threshold);
            }
        });
        network.transfer(300 * MSS);
        let (in_flight, threshold) = *last.borrow();
        assert_eq!(threshold, 20 * MSS);
        assert!(in_flight.abs_diff(threshold) <= MSS, "{lost:?}: {in_flight}");
        assert_eq!(network.cc.recovered, 1);
    }
}

#[test]
fn recovery_sends_at_most_the_delivered_data_plus_one_segment_per_ack() {
    // RFC 9937 §7, for every loss pattern: PRR-CRB, and PRR-SSRB for acknowledgements that show progress.
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut network = Network::new(Options { window: 40 * MSS, ..Options::default() });
        network.cc.threshold = 1;
        let share = random.u8(5..60);
        let mut fates = random.fork();
        network.fate = Box::new(
            move |packet, _| if packet.nth == 0 && fates.u8(..100) < share { Fate::Drop } else { Fate::Deliver },
        );
        let mut allowed = i64::from(MSS);
        let mut counted = (0, 0);
        network.unsent = 60 * MSS;
        let mut in_recovery = false;
        for _ in 0..2000 {
            if network.flight.is_empty() && network.unsent == 0 {
                break;
            }
            network.pause(MS / 20);
            for (_, outcome) in &network.outcomes[counted.0..] {
                if outcome.recovery_began {
                    (in_recovery, allowed) = (true, i64::from(MSS));
                }
                if outcome.recovery_ended {
                    in_recovery = false;
                }
                let progress = if outcome.acknowledged > 0 && outcome.lost == 0 { MSS } else { 0 };
                allowed += i64::from(outcome.delivered + progress);
            }
            counted.0 = network.outcomes.len();
            if network.log.len() > counted.1 {
                let sent: u32 = network.log[counted.1..].iter().map(|(_, packet)| packet.len).sum();
                counted.1 = network.log.len();
                allowed -= i64::from(sent);
                let recovering = in_recovery && network.flight.phase() == Phase::Recovery;
                // A lone segment with nothing else in flight is the exception.
                if recovering && network.flight.in_flight() > MSS {
                    assert!(allowed >= 0, "seed {seed}: {allowed}");
                }
            }
        }
    }
}

fn echo(network: &mut Network, segments: u32, ece: bool) -> super::super::Outcome {
    network.process(&Acknowledgement {
        ece,
        unsent: true,
        ..ack_at(network.flight.una() + segments * MSS, &[], network.now)
    })
}

#[test]
fn ece_reduces_the_window_once_per_round_trip() {
    // RFC 3168 §6.1.2, RFC 9937 §4.
    let mut network = Network::new(Options { window: 20 * MSS, ..Options::default() });
    network.cc.threshold = 1;
    for _ in 0..20 {
        network.flight.sent(MSS, network.now, 20 * MSS);
    }
    network.now += MS * 20;
    let outcome = echo(&mut network, 1, true);
    assert!(outcome.reduced && !outcome.recovery_began);
    assert_eq!((network.flight.phase(), network.cc.threshold), (Phase::Reducing, 10 * MSS));
    let mut sent = 0;
    for _ in 0..19 {
        while network.flight.allowance(network.cc.window) >= MSS {
            network.flight.sent(MSS, network.now, network.cc.window);
            sent += 1;
        }
        let outcome = echo(&mut network, 1, true);
        assert!(!outcome.reduced);
        network.flight.check();
    }
    // Half of the acknowledged data. The round trip ends when data sent in it is acknowledged: only then can the
    // receiver have seen CWR.
    assert!((9..=11).contains(&sent), "{sent}");
    assert_eq!(network.flight.phase(), Phase::Reducing);
    assert!(!echo(&mut network, 1, false).reduced);
    assert_eq!(network.cc.reductions, [(CongestionSignal::EcnEcho, 20 * MSS)]);
    assert_eq!((network.flight.phase(), network.cc.recovered), (Phase::Open, 1));
    // The next ECE applies to the next window.
    assert!(echo(&mut network, 1, true).reduced);
}

#[test]
fn loss_in_the_round_trip_of_ece_does_not_reduce_again() {
    let mut network = Network::new(Options { window: 20 * MSS, ..Options::default() });
    network.cc.threshold = 1;
    for _ in 0..20 {
        network.flight.sent(MSS, network.now, 20 * MSS);
    }
    network.now += MS * 20;
    echo(&mut network, 1, true);
    let una = network.flight.una();
    let outcome =
        network.process(&Acknowledgement { unsent: true, ..ack_at(una, &[(una + MSS, una + 5 * MSS)], network.now) });
    assert!(outcome.recovery_began && !outcome.reduced);
    assert_eq!(network.cc.reductions.len(), 1);
}

#[test]
fn exact_ecn_reports_every_mark() {
    // RFC 8257 §3.3.
    let mut network = Network::new(Options::default());
    network.flight.config.exact_ecn = true;
    for _ in 0..6 {
        network.flight.sent(MSS, network.now, 30 * MSS);
    }
    network.now += MS * 20;
    let reduced: Vec<_> = [(1, false), (2, true), (1, true), (2, false)]
        .into_iter()
        .map(|(segments, ece)| echo(&mut network, segments, ece).reduced)
        .collect();
    // CWR once per window.
    assert_eq!(reduced, [false, true, false, false]);
    let delivered: Vec<_> = network.cc.deliveries.iter().map(|delivered| (delivered.bytes, delivered.marked)).collect();
    assert_eq!(delivered, [(1000, 0), (2000, 2000), (1000, 1000), (2000, 0)]);
    assert_eq!((network.cc.reductions.len(), network.flight.phase()), (0, Phase::Open));
}

#[test]
fn window_grows_only_if_it_limits_the_sender() {
    // RFC 9438 §5.8.
    let mut network = Network::new(Options::default());
    for _ in 0..10 {
        network.transfer(5 * MSS);
    }
    assert!(network.cc.deliveries.is_empty());
    network.transfer(100 * MSS);
    assert!(network.cc.deliveries.iter().all(|delivery| delivery.window_limited));
    assert!(network.cc.window > 60 * MSS);
}

#[test]
fn reduction_by_ece_is_not_undone() {
    // RFC 3168 §6.1.2: the ECN mark stands, even if the retransmitted segment was only late.
    for echo_first in [true, false] {
        let mut network = Network::new(Options { window: 20 * MSS, ..Options::default() });
        network.cc.threshold = 1;
        network.send_segments(20);
        network.now += MS * 20;
        network.acknowledge_segments(1, &[], echo_first);
        assert!(network.acknowledge_segments(1, &[(2, 6)], true).recovery_began);
        assert_eq!(network.retransmit_segments(), [1]);
        network.now += MS;
        network.acknowledge_segments(20, &[], false);
        network.send_segments(5);
        network.now += MS * 20;
        assert_eq!(network.acknowledge_segments(20, &[(1, 2)], false).undone, None);
        assert_eq!(network.cc.reductions.len(), 1);
    }
}

#[test]
fn first_ece_reduces_the_window_of_a_new_flight() {
    // RFC 3168 §6.1.2: even on an acknowledgement of nothing new.
    let mut network = Network::new(Options::default());
    network.send_segments(3);
    network.now += MS * 20;
    let outcome = network.acknowledge_segments(0, &[], true);
    assert!(outcome.reduced && network.flight.phase() == Phase::Reducing);
    assert_eq!(network.cc.reductions.len(), 1);
}
