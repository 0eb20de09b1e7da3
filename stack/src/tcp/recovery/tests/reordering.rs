//! Reordering.

use super::super::{Duration, Expired};
use super::network::{MS, MSS};
use super::*;

/// Delays one segment in every 100 so that the next 20 overtake it.
fn reordering(options: Options) -> Network {
    let mut network = Network::new(Options { window: 60 * MSS, ..options });
    let late = network.options.spacing * 20 + network.options.spacing / 2;
    network.fate = Box::new(move |packet, _| match packet {
        Packet { offset, nth: 0, .. } if offset / MSS % 100 == 37 => Fate::Late(late),
        _ => Fate::Deliver,
    });
    // A constant window makes the segments a steady stream.
    network.cc.threshold = 1;
    network
}

#[test]
fn known_reordering_causes_no_retransmission() {
    // RFC 8985 §6.2 steps 3 and 4.
    for (timestamps, duplicate_reports) in [(false, true), (true, true), (true, false)] {
        let mut network = reordering(Options { timestamps, duplicate_reports, ..Options::default() });
        network.transfer(300 * MSS);
        assert!(network.path.reordering_seen(), "timestamps {timestamps}");
        let learning = network.retransmissions().len();
        assert!((1..=2).contains(&learning), "{learning}");
        network.transfer(2000 * MSS);
        assert_eq!(network.retransmissions().len(), learning, "timestamps {timestamps}");
        assert_eq!(network.timeouts(), 0);
    }
}

#[test]
fn unnecessary_fast_retransmission_is_undone() {
    // RFC 3522 with timestamps, RFC 2883 §4 with the duplicate report.
    for timestamps in [false, true] {
        let mut network = reordering(Options { timestamps, ..Options::default() });
        network.transfer(300 * MSS);
        let evidence = if timestamps { Evidence::Timestamp } else { Evidence::Duplicates };
        assert_eq!(network.undone().first(), Some(&Undone { by_timeout: false, evidence }));
        assert!(network.cc.window >= 60 * MSS, "{}", network.cc.window);
        assert_eq!(network.cc.undone as usize, network.cc.reductions.len());
    }
}

#[test]
fn overtaken_block_is_detected_as_reordering() {
    // Twenty segments arrive after forty that were sent later. The segments not yet retransmitted reveal it.
    let mut network = Network::new(Options { window: 80 * MSS, ..Options::default() });
    network.cc.threshold = 1;
    network.fate = Box::new(|packet, _| match packet {
        Packet { offset, nth: 0, .. } if (40..60).contains(&(offset / MSS % 400)) => Fate::Late(MS * 4),
        _ => Fate::Deliver,
    });
    network.transfer(400 * MSS);
    assert!(network.path.reordering_seen());
    let learning = network.retransmissions().len();
    network.transfer(2000 * MSS);
    assert_eq!((network.retransmissions().len(), network.timeouts()), (learning, 0));
}

#[test]
fn dsack_widens_the_reordering_window() {
    // RFC 8985 §6.2 step 4: (N + 1) · min_RTT / 4 after N round trips with reports. Here 9 ms are needed, and the
    // initial window is 5 ms.
    let mut network = Network::new(Options { window: 150 * MSS, ..Options::default() });
    network.cc.threshold = 1;
    network.fate = Box::new(|packet, _| match packet {
        Packet { offset, nth: 0, .. } if offset / MSS % 150 == 37 => Fate::Late(MS * 9),
        _ => Fate::Deliver,
    });
    assert_eq!(network.path.reordering_window(20_000_000), 5_000_000);
    network.transfer(1500 * MSS);
    assert_eq!(network.path.reordering_window(u64::MAX) / 1_000_000, 10);
    let learning = network.retransmissions().len();
    assert!(learning <= 5, "{learning}");
    network.transfer(3000 * MSS);
    assert_eq!((network.retransmissions().len(), network.timeouts()), (learning, 0));
}

#[test]
fn reordering_timer_detects_a_loss() {
    // RFC 8985 §6.2 step 5, the reordering timer: the last but one segment of a flight is lost.
    let mut network = Network::new(Options::default());
    network.path.saw_reordering();
    network.drop_packets(&[(8 * MSS, 0)]);
    network.transfer(10 * MSS);
    assert_eq!((network.timeouts(), network.probes()), (0, 0));
    let lost = |expired: &Expired| matches!(expired, Expired::Reordering { lost: 1000, recovery_began: true });
    assert_eq!(network.expired.iter().filter(|(_, expired)| lost(expired)).count(), 1);
    let (at, _) = network.log.last().copied().unwrap();
    let patience = at.since(network.log[0].0);
    assert!((25 * MS..28 * MS).contains(&patience), "{patience:?}");
}

#[test]
fn late_segment_within_the_window_is_not_lost() {
    // RFC 8985 §9.1 example 3: fewer than three reports, and the rest arrives within a quarter of the round trip.
    let mut network = Network::new(Options::default());
    network.fate = Box::new(|packet, _| match packet {
        Packet { offset: 7000, nth: 0, .. } => Fate::Late(MS * 4),
        _ => Fate::Deliver,
    });
    network.transfer(10 * MSS);
    assert_eq!(network.retransmissions(), []);
    assert!(network.path.reordering_seen());
}

#[test]
fn loss_with_reordering_waits_for_the_window_only() {
    let mut network = reordering(Options::default());
    network.transfer(500 * MSS);
    let before = network.log.len();
    network.drop_packets(&[(510 * MSS, 0)]);
    network.transfer(200 * MSS);
    let sent = network.log.iter().find(|(_, packet)| packet.offset == 510 * MSS).copied().unwrap().0;
    let again = network.log[before..].iter().find(|(_, packet)| packet.nth > 0).copied().unwrap();
    assert_eq!(again.1.offset, 510 * MSS);
    let waited = again.0.since(sent);
    assert!(waited < Duration::from_millis(40), "{waited:?}");
    assert_eq!(network.timeouts(), 0);
}

use super::super::{Evidence, Undone};

#[test]
fn reordering_timer_detects_a_lost_retransmission() {
    let mut network = Network::new(Options::default());
    network.path.saw_reordering();
    let first = network.flight.una();
    network.send_segments(10);
    network.now += MS * 20;
    assert_eq!(network.acknowledge_segments(0, &[(1, 4), (5, 10)], false).lost, 0);
    assert_eq!(network.expire(), Expired::Reordering { lost: 2 * MSS, recovery_began: true });
    network.flight.retransmitted(first, MSS, network.now, 0);
    network.flight.retransmitted(first + 4 * MSS, MSS, network.now, 0);
    let sent = network.now;
    network.now += MS * 20;
    assert_eq!(network.acknowledge_segments(0, &[(1, 10)], false).lost, 0);
    assert_eq!(network.expire(), Expired::Reordering { lost: MSS, recovery_began: false });
    let waited = network.now.since(sent);
    assert!((24 * MS..26 * MS).contains(&waited), "{waited:?}");
    assert_eq!(network.retransmit_segments(), [0]);
}
