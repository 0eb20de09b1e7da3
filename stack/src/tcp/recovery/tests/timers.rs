//! Retransmission timer.

use super::super::{Duration, Expired, Instant, Limits, Outcome};
use super::network::{MS, MSS, ack_at};
use super::*;

/// Expires the timer `times` times without an acknowledgement. Returns the times and results.
fn let_expire(network: &mut Network, times: usize) -> Vec<(Instant, Expired)> {
    (0..times)
        .map(|_| {
            let limits = &network.options.limits;
            let at = network.flight.deadline(&network.rtt, &network.path, limits).unwrap();
            let (rtt, path) = (&mut network.rtt, &mut network.path);
            assert_eq!(network.flight.expire(at - MS, false, rtt, path, &mut network.cc, limits), Expired::Nothing);
            let expired = network.flight.expire(at, false, rtt, path, &mut network.cc, limits);
            network.now = at;
            let range = match expired {
                Expired::Probe(range) => range,
                Expired::Timeout { .. } => network.flight.retransmission(MSS),
                _ => None,
            };
            if let Some((seq, len)) = range {
                network.flight.retransmitted(seq, len, at, 0);
            }
            network.flight.check();
            (at, expired)
        })
        .collect()
}

fn answer(network: &mut Network, segments: u32) -> Outcome {
    network.now += MS * 20;
    network.process(&ack_at(network.flight.una() + segments * MSS, &[], network.now))
}

#[test]
fn timer_backs_off_and_gives_up() {
    // RFC 6298 §5.5; RFC 9293 §3.8.3.
    let limits = Limits::default().with_max_retransmissions(9);
    let mut network = Network::new(Options { limits, ..Options::default() });
    let start = network.now;
    network.flight.sent(MSS, start, 30 * MSS);
    network.flight.sent(MSS, start, 30 * MSS);
    let expired = let_expire(&mut network, 11);
    assert!(matches!(expired[0].1, Expired::Probe(Some(_))));
    let mut base = expired[0].0;
    for (doubled, (at, expired)) in expired[1..].iter().enumerate() {
        let expected = (Duration::from_micros(220_005) * (1 << doubled)).min(Duration::from_secs(60));
        let waited = at.since(base);
        assert!(waited.abs_diff(expected) < expected / 100, "{doubled}: {waited:?}");
        base = *at;
        match expired {
            Expired::Timeout { reneged, .. } => assert!(doubled < 9 && !reneged),
            Expired::GiveUp => assert_eq!(doubled, 9),
            other => panic!("{other:?}"),
        }
    }
    // RFC 5681 §3.1: the threshold is not halved again for the same segment.
    assert_eq!(network.cc.timeouts.len(), 1);
}

#[test]
fn back_off_lasts_until_data_sent_once_is_acknowledged() {
    // RFC 6298 §5.7 and §3 (Karn).
    let mut network = Network::new(Options { sack: false, ..Options::default() });
    for _ in 0..2 {
        network.flight.sent(MSS, network.now, 30 * MSS);
    }
    let_expire(&mut network, 2);
    assert_eq!(network.path.backoff(), 2);
    let smoothed = network.rtt.smoothed();
    assert_eq!(answer(&mut network, 1).rtt(), None);
    assert_eq!((network.path.backoff(), network.rtt.smoothed()), (2, smoothed));
    assert!(answer(&mut network, 1).rtt().is_some());
    assert_eq!(network.path.backoff(), 0);
}

#[test]
fn back_off_outlives_the_flight() {
    let mut network = Network::new(Options { sack: false, ..Options::default() });
    network.flight.sent(MSS, network.now, 30 * MSS);
    let_expire(&mut network, 1);
    answer(&mut network, 1);
    assert!(network.flight.is_empty());
    let (una, config) = (network.flight.una(), network.flight.config);
    network.flight.reset(una, config);
    network.flight.sent(MSS, network.now, 30 * MSS);
    let deadline = network.flight.deadline(&network.rtt, &network.path, &network.options.limits).unwrap();
    assert!(deadline.since(network.now) > 430 * MS);
    answer(&mut network, 1);
    assert_eq!(network.path.backoff(), 0);
}

#[test]
fn only_acks_of_new_data_restart_the_timer() {
    // RFC 6298 §5.3.
    let mut network = Network::new(Options { sack: false, ..Options::default() });
    for _ in 0..5 {
        network.flight.sent(MSS, network.now, 30 * MSS);
    }
    let deadline = |network: &Network| network.flight.deadline(&network.rtt, &network.path, &network.options.limits);
    let before = deadline(&network).unwrap();
    answer(&mut network, 0);
    assert_eq!(deadline(&network), Some(before));
    answer(&mut network, 1);
    assert!(deadline(&network).unwrap() > before);
    answer(&mut network, 4);
    // RFC 6298 §5.2.
    assert_eq!(deadline(&network), None);
}

#[test]
fn initial_rto_is_one_second() {
    // RFC 6298 §2.1; no probe without an RTT sample (RFC 8985 §7.3).
    let mut network = Network::new(Options::default());
    network.rtt = super::super::RttEstimator::default();
    network.path = super::super::Path::default();
    network.flight.sent(MSS, network.now, 30 * MSS);
    let start = network.now;
    let expired = let_expire(&mut network, 1);
    assert_eq!(expired[0].0.since(start), Duration::from_secs(1));
    assert!(matches!(expired[0].1, Expired::Timeout { lost: 1000, .. }));
}

#[test]
fn known_ack_delay_shortens_the_rto() {
    // Forty lone segments with an acknowledgement delay of 2 ms lead to a floor of 5 ms; a delay of 40 ms leads to 80
    // ms.
    for (delay, expected) in [(MS * 2, 5), (MS * 40, 80)] {
        let mut network = Network::new(Options { delay: Some(delay), rtt: MS, ..Options::default() });
        for _ in 0..40 {
            network.transfer(MSS);
        }
        let floor = network.rtt.rto(Duration::ZERO);
        for _ in 0..100 {
            network.rtt.sample(MS);
        }
        network.flight.sent(MSS, network.now, 30 * MSS);
        network.flight.sent(MSS, network.now, 30 * MSS);
        let start = network.now;
        let expired = let_expire(&mut network, 2);
        assert!(matches!((expired[0].1, expired[1].1), (Expired::Probe(_), Expired::Timeout { .. })));
        let waited = expired[1].0.since(expired[0].0);
        assert!(waited > MS * expected && waited < MS * (expected + 3), "{waited:?} {floor:?}");
        assert!(expired[0].0.since(start) < MS * 5);
    }
}

#[test]
fn spurious_timeout_restores_the_floor() {
    let options = Options { delay: Some(MS * 2), rtt: MS, timestamps: true, ..Options::default() };
    let mut network = Network::new(options);
    for _ in 0..40 {
        network.transfer(MSS);
    }
    assert!(network.path.acknowledgement_delay().1);
    network.fate = Box::new(|packet, _| if packet.nth == 0 { Fate::Late(MS * 100) } else { Fate::Deliver });
    network.ack_fate = Box::new(|_, _| Fate::Late(MS * 100));
    network.transfer(MSS);
    network.pause(MS * 500);
    assert!(network.timeouts() >= 1);
    assert_eq!((network.undone().len(), network.path.acknowledgement_delay().1), (1, false));
}

#[test]
fn peer_that_begins_to_delay_is_probed_once() {
    let mut network = Network::new(Options { rtt: MS, ..Options::default() });
    for _ in 0..40 {
        network.transfer(MSS);
    }
    network.options.delay = Some(MS * 150);
    for _ in 0..30 {
        network.transfer(MSS);
        network.pause(MS * 500);
    }
    assert_eq!(network.timeouts(), 0);
    assert_eq!(network.probes(), 1);
    assert!(network.cc.reductions.is_empty());
    // The delay was learnt in the meantime.
    assert!(network.path.acknowledgement_delay().0.abs_diff(MS * 150) < MS);
}

#[test]
fn ack_of_retransmission_yields_no_rtt_sample() {
    // RFC 6298 §3 (Karn), although part of the acknowledged data was sent once.
    let mut network = Network::new(Options { sack: false, ..Options::default() });
    network.send_segments(2);
    let_expire(&mut network, 1);
    let smoothed = network.rtt.smoothed();
    assert_eq!(answer(&mut network, 2).rtt(), None);
    assert_eq!(network.rtt.smoothed(), smoothed);
}

#[test]
fn retransmission_after_timeout_ignores_the_window() {
    // RFC 6298 §5.4: recently sent data is not lost (RFC 8985 §6.3), and fills the window of one segment.
    let mut network = Network::new(Options::default());
    network.send_segments(2);
    assert!(matches!(network.expire(), Expired::Probe(_)));
    let deadline = network.flight.deadline(&network.rtt, &network.path, &network.options.limits).unwrap();
    network.now = deadline - MS;
    network.send_segments(3);
    assert_eq!(network.expire(), Expired::Timeout { lost: 2 * MSS, reneged: false });
    assert_eq!((network.flight.in_flight(), network.cc.window), (3 * MSS, MSS));
    assert_eq!(network.flight.allowance(MSS), MSS);
    assert_eq!(network.retransmit_segments(), [0]);
    assert_eq!(network.flight.allowance(MSS), 0);
}

#[test]
fn reordering_timer_precedes_rto_at_the_same_time() {
    // RFC 8985 §6.2 step 5: fast recovery repairs the loss.
    let mut network = Network::new(Options::default());
    network.send_segments(3);
    network.now += MS * 20;
    network.acknowledge_segments(0, &[(1, 2)], false);
    let reordering = network.flight.rack.deadline().unwrap();
    let rto = network.path.rto(&network.rtt, &network.options.limits);
    network.flight.rto_base = Instant::from_nanos(reordering.as_nanos() - rto.as_nanos() as u64);
    assert_eq!(network.expire(), Expired::Reordering { lost: MSS, recovery_began: true });
    assert_eq!(network.now, reordering);
}

#[test]
fn first_timeout_after_mss_reduction_reduces_the_window() {
    // RFC 5681 §3.1: no timeout occurred before, although all data is retransmitted (RFC 1191 §6.4).
    let mut network = Network::new(Options::default());
    network.send_segments(4);
    network.flight.mss_exceeded(MSS as u16);
    assert_eq!(network.retransmit_segments(), [0, 1, 2, 3]);
    assert!(matches!(network.expire(), Expired::Timeout { .. }));
    assert_eq!((network.cc.timeouts.len(), network.cc.window), (1, MSS));
}

#[test]
fn first_timeout_keeps_selective_acknowledgements() {
    // RFC 2018 §8 requires the sender to forget them, which would retransmit all data.
    let mut network = Network::new(Options::default());
    network.send_segments(4);
    network.now += MS * 20;
    assert!(network.acknowledge_segments(0, &[(1, 4)], false).recovery_began);
    assert_eq!(network.retransmit_segments(), [0]);
    assert_eq!(network.expire(), Expired::Timeout { lost: MSS, reneged: false });
    assert_eq!(network.retransmit_segments(), [0]);
    // The same segment times out again.
    assert_eq!(network.expire(), Expired::Timeout { lost: 4 * MSS, reneged: true });
}

#[test]
fn probe_timeout_covers_four_rttvar() {
    // RFC 8985 §7.2, with the margin of RFC 6298 §2.3.
    let mut network = Network::new(Options::default());
    for n in 0..40 {
        network.rtt.sample(if n % 2 == 0 { MS * 10 } else { MS * 60 });
    }
    let (smoothed, variation) = (network.rtt.smoothed(), network.rtt.variation());
    assert!(4 * variation > smoothed + MS * 10);
    network.send_segments(2);
    let start = network.now;
    assert!(matches!(network.expire(), Expired::Probe(_)));
    let waited = network.now.since(start);
    assert!(waited.abs_diff(smoothed + 4 * variation) <= MS, "{waited:?} {smoothed:?} {variation:?}");
}
