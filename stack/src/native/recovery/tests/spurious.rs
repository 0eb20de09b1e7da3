//! Time-outs that were not needed, and those that were.

use super::super::{Duration, Evidence, Expired, Seq, Undone};
use super::network::{MS, MSS};
use super::*;

/// A connection whose path holds everything back for `pause`, once the transfer has begun.
fn stalled(options: Options, pause: Duration) -> Network {
    let mut network = Network::new(options);
    network.cc.threshold = 1;
    network.transfer(100 * MSS);
    let (start, end) = (network.now, network.now + pause);
    network.fate = Box::new(move |_, now| if now >= start && now < end { Fate::Hold(end) } else { Fate::Deliver });
    network
}

#[test]
fn a_spurious_time_out_is_recognised_by_timestamps() {
    // RFC 3522 §3.2: the first acknowledgement says so.
    let mut network = stalled(Options { timestamps: true, ..Options::default() }, MS * 600);
    let window = network.cc.window;
    network.transfer(300 * MSS);
    assert!(network.time_outs() >= 1);
    assert_eq!(network.undone().first(), Some(&Undone { time_out: true, evidence: Evidence::Timestamp }));
    assert!(network.cc.window >= window, "{} {window}", network.cc.window);
    // RFC 4015 §3.2: it goes on with new data; only probe and time-outs were retransmitted.
    assert!(network.retransmissions().len() <= network.time_outs() + network.probes());
    assert_eq!(network.path.backoff(), 0);
}

#[test]
fn a_spurious_time_out_is_recognised_without_timestamps() {
    // RFC 5682 §3.1.
    let options = Options { duplicate_reports: false, ..Options::default() };
    let mut network = stalled(options, MS * 600);
    let window = network.cc.window;
    network.transfer(300 * MSS);
    assert!(network.time_outs() >= 1);
    assert_eq!(network.undone().first(), Some(&Undone { time_out: true, evidence: Evidence::ForwardRto }));
    assert!(network.cc.window >= window, "{} {window}", network.cc.window);
    assert!(network.retransmissions().len() <= network.time_outs() + network.probes());
}

#[test]
fn a_spurious_time_out_is_recognised_without_sack() {
    // RFC 5682 §2.1.
    let mut network = stalled(Options { sack: false, ..Options::default() }, MS * 600);
    let window = network.cc.window;
    network.transfer(300 * MSS);
    assert!(network.time_outs() >= 1);
    assert_eq!(network.undone().first(), Some(&Undone { time_out: true, evidence: Evidence::ForwardRto }));
    assert!(network.cc.window >= window);
    assert!(network.retransmissions().len() <= network.time_outs());
}

#[test]
fn a_spurious_time_out_at_the_end_of_the_data_is_recognised_by_the_duplicates() {
    // RFC 2883 §4: there is no new data that F-RTO could send, so everything goes out again and is reported.
    let mut network = stalled(Options::default(), MS * 600);
    network.transfer(10 * MSS);
    network.pause(MS * 500);
    let undone = Undone { time_out: true, evidence: Evidence::Duplicates };
    assert_eq!((network.time_outs() >= 1, network.undone()), (true, vec![undone]));
    assert!(network.flight.is_settled());
}

#[test]
fn a_time_out_that_was_needed_is_not_taken_back() {
    for timestamps in [false, true] {
        for sack in [false, true] {
            let mut network = Network::new(Options { timestamps, sack, ..Options::default() });
            // Everything sent in a third of a second is lost.
            network.transfer(100 * MSS);
            let (start, end) = (network.now, network.now + MS * 333);
            network.fate = Box::new(move |_, now| if now >= start && now < end { Fate::Drop } else { Fate::Deliver });
            network.transfer(300 * MSS);
            network.pause(MS * 500);
            assert_eq!((network.time_outs() >= 1, network.undone()), (true, vec![]), "{timestamps} {sack}");
            assert_eq!(network.cc.time_outs.len(), 1);
        }
    }
}

#[test]
fn a_time_out_in_slow_start_sends_what_is_lost_and_not_what_arrived() {
    // RFC 6675 §5.1: the scoreboard is kept. The first segment is lost thrice, which nothing can reveal the third time.
    let mut network = Network::new(Options { window: 10 * MSS, ..Options::default() });
    network.drop_packets(&[(0, 0), (0, 1), (0, 2), (5 * MSS, 0)]);
    network.transfer(10 * MSS);
    assert_eq!(network.time_outs(), 1);
    assert_eq!(network.retransmissions(), [0, 5 * MSS, 0, 0]);
}

#[test]
fn a_receiver_that_discards_what_it_acknowledged_selectively_gets_it_again() {
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
        let acknowledgement = super::super::Acknowledgement {
            ack,
            sack: &sack,
            echoed_timestamp: None,
            ece: false,
            duplicate_candidate: true,
            pure: true,
            unsent: false,
            now,
        };
        flight.acknowledge(&acknowledgement, rtt, path, cc, limits);
        if let Some((seq, len)) = flight.retransmission(MSS) {
            flight.retransmitted(seq, len, now, 0);
        }
        now += MS * 20;
    }
    // It said it had what begins at SND.UNA, and then does not acknowledge it.
    assert_eq!((flight.una(), flight.in_flight()), (first + 2 * MSS, 0));
    let now = flight.deadline(rtt, path, limits).unwrap();
    let expired = flight.expire(now, false, rtt, path, cc, limits);
    assert_eq!(expired, Expired::TimeOut { lost: 3 * MSS, reneged: true });
    assert_eq!(flight.retransmission(9 * MSS), Some((first + 2 * MSS, 3 * MSS)));
    flight.check();
}

#[test]
fn acknowledging_new_data_too_says_nothing_of_the_time_out() {
    // RFC 5682 §3.1 step 3a: the first segment was lost, all others arrived, and every acknowledgement but these was lost.
    let mut network = Network::new(Options::default());
    network.send_segments(5);
    network.expire();
    network.now += MS;
    assert!(matches!(network.expire(), Expired::TimeOut { .. }));
    assert_eq!(network.retransmit_segments(), [0]);
    network.now += MS * 20;
    network.acknowledge_segments(1, &[], false);
    network.send_segments(2);
    network.now += MS * 20;
    assert_eq!(network.acknowledge_segments(7, &[], false).undone, None);
    assert_eq!(network.cc.undone, 0);
}

#[test]
fn original_acknowledged_selectively_after_a_time_out_shows_that_it_was_spurious() {
    // RFC 5682 §3.1 step 3b: SND.UNA need not advance.
    let mut network = Network::new(Options::default());
    network.send_segments(5);
    assert!(matches!(network.expire(), Expired::Probe(_)));
    assert!(matches!(network.expire(), Expired::TimeOut { .. }));
    assert_eq!(network.retransmit_segments(), [0]);
    network.now += MS * 20;
    assert_eq!(network.acknowledge_segments(1, &[], false).undone, None);
    network.send_segments(1);
    // Nothing new (step 3a does not apply, nor does 3b).
    let outcome = network.acknowledge_segments(1, &[(2, 3)], false);
    assert!(!outcome.duplicate);
    assert_eq!(outcome.undone, Some(Undone { time_out: true, evidence: Evidence::ForwardRto }));
}

#[test]
fn duplicates_reported_once_more_was_acknowledged_take_nothing_back() {
    // RFC 3708 §3: for a round trip after the recovery a report is of its retransmissions.
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
