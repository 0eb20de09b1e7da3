//! Spurious and genuine timeouts.

use super::super::{Duration, Evidence, Expired, Seq, Undone};
use super::network::{MS, MSS, ack_at};
use super::*;

/// Creates a connection whose path holds all packets for `pause` once the transfer has begun.
fn stalled(options: Options, pause: Duration) -> Network {
    let mut network = Network::new(options);
    network.cc.threshold = 1;
    network.transfer(100 * MSS);
    let (start, end) = (network.now, network.now + pause);
    network.fate = Box::new(move |_, now| if now >= start && now < end { Fate::Hold(end) } else { Fate::Deliver });
    network
}

#[test]
fn spurious_timeout_is_detected_by_timestamps() {
    // RFC 3522 §3.2: by the first acknowledgement.
    let mut network = stalled(Options { timestamps: true, ..Options::default() }, MS * 600);
    let window = network.cc.window;
    network.transfer(300 * MSS);
    assert!(network.timeouts() >= 1);
    assert_eq!(network.undone().first(), Some(&Undone { by_timeout: true, evidence: Evidence::Timestamp }));
    assert!(network.cc.window >= window, "{} {window}", network.cc.window);
    // RFC 4015 §3.2: transmission continues with new data; only the probe and the timeouts caused retransmissions.
    assert!(network.retransmissions().len() <= network.timeouts() + network.probes());
    assert_eq!(network.path.backoff(), 0);
}

#[test]
fn spurious_timeout_is_detected_without_timestamps() {
    // RFC 5682 §3.1.
    let options = Options { duplicate_reports: false, ..Options::default() };
    let mut network = stalled(options, MS * 600);
    let window = network.cc.window;
    network.transfer(300 * MSS);
    assert!(network.timeouts() >= 1);
    assert_eq!(network.undone().first(), Some(&Undone { by_timeout: true, evidence: Evidence::ForwardRto }));
    assert!(network.cc.window >= window, "{} {window}", network.cc.window);
    assert!(network.retransmissions().len() <= network.timeouts() + network.probes());
}

#[test]
fn spurious_timeout_is_detected_without_sack() {
    // RFC 5682 §2.1.
    let mut network = stalled(Options { sack: false, ..Options::default() }, MS * 600);
    let window = network.cc.window;
    network.transfer(300 * MSS);
    assert!(network.timeouts() >= 1);
    assert_eq!(network.undone().first(), Some(&Undone { by_timeout: true, evidence: Evidence::ForwardRto }));
    assert!(network.cc.window >= window);
    assert!(network.retransmissions().len() <= network.timeouts());
}

#[test]
fn spurious_timeout_at_the_end_of_data_is_detected_by_dsack() {
    // RFC 2883 §4: F-RTO has no new data to send, so that everything is retransmitted and reported.
    let mut network = stalled(Options::default(), MS * 600);
    network.transfer(10 * MSS);
    network.pause(MS * 500);
    let undone = Undone { by_timeout: true, evidence: Evidence::Duplicates };
    assert_eq!((network.timeouts() >= 1, network.undone()), (true, vec![undone]));
    assert!(network.flight.is_settled());
}

#[test]
fn genuine_timeout_is_not_undone() {
    for timestamps in [false, true] {
        for sack in [false, true] {
            let mut network = Network::new(Options { timestamps, sack, ..Options::default() });
            // Everything sent in a third of a second is lost.
            network.transfer(100 * MSS);
            let (start, end) = (network.now, network.now + MS * 333);
            network.fate = Box::new(move |_, now| if now >= start && now < end { Fate::Drop } else { Fate::Deliver });
            network.transfer(300 * MSS);
            network.pause(MS * 500);
            assert_eq!((network.timeouts() >= 1, network.undone()), (true, vec![]), "{timestamps} {sack}");
            assert_eq!(network.cc.timeouts.len(), 1);
        }
    }
}

#[test]
fn timeout_retransmits_lost_data_only() {
    // RFC 6675 §5.1: the scoreboard is kept. The first segment is lost three times; nothing can reveal the third loss.
    let mut network = Network::new(Options { window: 10 * MSS, ..Options::default() });
    network.drop_packets(&[(0, 0), (0, 1), (0, 2), (5 * MSS, 0)]);
    network.transfer(10 * MSS);
    assert_eq!(network.timeouts(), 1);
    assert_eq!(network.retransmissions(), [0, 5 * MSS, 0, 0]);
}

#[test]
fn reneging_receiver_gets_data_again() {
    // RFC 2018 §8.
    let mut network = Network::new(Options::default());
    let (flight, rtt, path, cc) = (&mut network.flight, &mut network.rtt, &mut network.path, &mut network.cc);
    let limits = &network.options.limits;
    let first = flight.una();
    for _ in 0..5 {
        flight.sent(MSS, network.now, 30 * MSS);
    }
    let acknowledge = |ack: u32, sack: &[(u32, u32)]| -> (Seq, Vec<(Seq, Seq)>) {
        (first + ack * MSS, sack.iter().map(|&(start, end)| (first + start * MSS, first + end * MSS)).collect())
    };
    let mut now = network.now + MS * 20;
    for (ack, sack) in [acknowledge(1, &[(2, 5)]), acknowledge(2, &[])] {
        let acknowledgement = ack_at(ack, &sack, now);
        flight.acknowledge(&acknowledgement, rtt, path, cc, limits);
        if let Some((seq, len)) = flight.retransmission(MSS) {
            flight.retransmitted(seq, len, now, 0);
        }
        now += MS * 20;
    }
    // The receiver reported the data at SND.UNA, and does not acknowledge it now.
    assert_eq!((flight.una(), flight.in_flight()), (first + 2 * MSS, 0));
    let now = flight.deadline(rtt, path, limits).unwrap();
    let expired = flight.expire(now, false, rtt, path, cc, limits);
    assert_eq!(expired, Expired::Timeout { lost: 3 * MSS, reneged: true });
    assert_eq!(flight.retransmission(9 * MSS), Some((first + 2 * MSS, 3 * MSS)));
    flight.check();
}

#[test]
fn ack_of_new_data_does_not_show_a_spurious_timeout() {
    // RFC 5682 §3.1 step 3a: the first segment was lost, the others arrived, and all acknowledgements except the two
    // below were lost.
    let mut network = Network::new(Options::default());
    network.send_segments(5);
    network.expire();
    network.now += MS;
    assert!(matches!(network.expire(), Expired::Timeout { .. }));
    assert_eq!(network.retransmit_segments(), [0]);
    network.now += MS * 20;
    network.acknowledge_segments(1, &[], false);
    network.send_segments(2);
    network.now += MS * 20;
    assert_eq!(network.acknowledge_segments(7, &[], false).undone, None);
    assert_eq!(network.cc.undone, 0);
}

#[test]
fn sack_of_original_data_shows_a_spurious_timeout() {
    // RFC 5682 §3.1 step 3b: SND.UNA need not advance.
    let mut network = Network::new(Options::default());
    network.send_segments(5);
    assert!(matches!(network.expire(), Expired::Probe(_)));
    assert!(matches!(network.expire(), Expired::Timeout { .. }));
    assert_eq!(network.retransmit_segments(), [0]);
    network.now += MS * 20;
    assert_eq!(network.acknowledge_segments(1, &[], false).undone, None);
    network.send_segments(1);
    // Nothing new: neither step 3a nor step 3b applies.
    let outcome = network.acknowledge_segments(1, &[(2, 3)], false);
    assert!(!outcome.duplicate);
    assert_eq!(outcome.undone, Some(Undone { by_timeout: true, evidence: Evidence::ForwardRto }));
}

#[test]
fn dsack_after_further_data_is_not_evidence() {
    // RFC 3708 §3: within a round trip after the recovery a report concerns its retransmissions.
    for (beyond, is_undone) in [(0, true), (1, false)] {
        let mut network = Network::new(Options::default());
        network.send_segments(8);
        network.now += MS * 20;
        assert!(network.acknowledge_segments(0, &[(1, 8)], false).recovery_began);
        assert_eq!(network.retransmit_segments(), [0]);
        network.send_segments(4);
        network.now += MS * 20;
        assert!(network.acknowledge_segments(12, &[], false).recovery_ended);
        network.send_segments(4);
        network.now += MS;
        network.acknowledge_segments(12 + beyond, &[], false);
        let outcome = network.acknowledge_segments(12 + beyond, &[(0, 1)], false);
        assert_eq!(outcome.undone.is_some(), is_undone, "{beyond} segments beyond");
    }
}
