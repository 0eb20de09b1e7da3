//! Window behaviour of RFC 5681, tested on NewReno, or on all algorithms where it is common.

use super::*;
use crate::tcp::congestion::testing::{MSS, Sender};
use crate::tcp::congestion::{Cubic, Dctcp, MAX_WINDOW, initial_window};

const RTT: Duration = Duration::from_millis(20);

/// Runs `check` with every algorithm.
macro_rules! for_each_control {
    ($check:ident) => {{
        $check::<NewReno>();
        $check::<Cubic>();
        $check::<Dctcp>();
    }};
}

fn sender() -> Sender<NewReno> {
    Sender::new(RTT)
}

#[test]
fn initial_window_is_ten_segments_or_fewer_large_ones_rfc6928_2() {
    for (mss, window) in [(536, 5360), (1000, 10_000), (1448, 14_480), (4000, 14_600), (8948, 17_896)] {
        assert_eq!(initial_window(mss), window);
        assert_eq!(NewReno::new(&Config::default(), mss).window(), window);
    }
}

#[test]
fn lost_handshake_leaves_one_segment_rfc5681_3_1() {
    fn check<C: CongestionControl>() {
        let mut sender = Sender::<C>::new(RTT);
        sender.control.handshake_lost();
        assert_eq!((sender.window(), sender.threshold()), (MSS, u32::MAX));
        sender.round();
        assert_eq!(sender.window(), 2 * MSS);
    }
    for_each_control!(check);
}

#[test]
fn slow_start_doubles_the_window_per_round_trip_rfc5681_3_1() {
    fn check<C: CongestionControl>() {
        let mut sender = Sender::<C>::new(RTT);
        sender.rounds(3);
        assert_eq!((sender.window(), sender.threshold()), (80 * MSS, u32::MAX));
    }
    for_each_control!(check);
}

#[test]
fn slow_start_counts_eight_segments_per_acknowledgement_unless_paced_rfc9406_4_3() {
    for (paced, grown) in [(false, 8), (true, 10)] {
        let mut sender = sender();
        sender.paced = paced;
        sender.deliver(10 * MSS, |_| {});
        assert_eq!(sender.window(), (10 + grown) * MSS);
    }
}

#[test]
fn slow_start_ends_at_the_threshold_rfc5681_3_1() {
    let mut sender = Sender::<NewReno>::after_loss_at(50 * MSS, RTT);
    sender.time_out();
    let threshold = sender.threshold();
    assert_eq!(threshold, 12_500);
    sender.rounds(3);
    assert_eq!(sender.window(), 8 * MSS);
    sender.round();
    assert_eq!(sender.window(), threshold);
    sender.round();
    assert_eq!(sender.window(), threshold + MSS);
}

#[test]
fn congestion_avoidance_adds_a_segment_per_round_trip_rfc5681_3_1() {
    for segments_per_ack in [1, 2, 7, 100] {
        let mut sender = Sender::<NewReno>::after_loss_at(100 * MSS, RTT);
        sender.segments_per_ack = segments_per_ack;
        sender.rounds(10);
        assert_eq!(sender.window(), 60 * MSS, "{segments_per_ack}");
    }
}

#[test]
fn bytes_beyond_a_window_count_for_the_next_rfc3465_2_1() {
    let mut sender = Sender::<NewReno>::after_loss_at(100 * MSS, RTT);
    for _ in 0..100 {
        sender.deliver(7 * MSS, |_| {});
    }
    // 50 + 51 + … + 61 = 666 segments.
    assert_eq!(sender.window(), 62 * MSS);
}

#[test]
fn loss_halves_the_flight_but_leaves_two_segments_rfc5681_3_1() {
    for (in_flight, threshold) in [(40, 20), (10, 5), (3, 2), (0, 2)] {
        let mut sender = sender();
        sender.start_to(40 * MSS);
        sender.control.congested(CongestionSignal::Loss, in_flight * MSS, sender.now);
        assert_eq!(sender.threshold(), threshold * MSS);
        sender.recovered();
        assert_eq!(sender.window(), threshold * MSS);
    }
}

#[test]
fn limited_transmit_does_not_count_as_flight_rfc5681_3_2() {
    let mut sender = sender();
    sender.control.congested(CongestionSignal::Loss, 12 * MSS, sender.now);
    assert_eq!(sender.threshold(), 5 * MSS);
}

#[test]
fn window_is_reduced_at_the_end_of_recovery_and_does_not_grow_in_it() {
    fn check<C: CongestionControl>(threshold: u32) {
        let mut sender = Sender::<C>::new(RTT);
        sender.start_to(40 * MSS);
        sender.congested();
        sender.round();
        assert_eq!((sender.window(), sender.threshold()), (40 * MSS, threshold));
        sender.recovered();
        assert_eq!((sender.window(), sender.threshold()), (threshold, threshold));
        sender.recovered();
        assert_eq!(sender.window(), threshold);
    }
    check::<NewReno>(20 * MSS);
    check::<Cubic>(28 * MSS);
    check::<Dctcp>(20 * MSS);
}

#[test]
fn one_window_of_data_causes_one_reduction_rfc3168_6_1_2() {
    fn check<C: CongestionControl>() {
        let mut sender = Sender::<C>::new(RTT);
        sender.control.congested(CongestionSignal::EcnEcho, 10 * MSS, sender.now);
        let threshold = sender.threshold();
        sender.control.congested(CongestionSignal::Loss, 5 * MSS, sender.now);
        assert_eq!(sender.threshold(), threshold);
        sender.recovered();
        sender.congested();
        assert!(sender.threshold() < threshold);
        // Undo reverts both as a single reduction.
        sender.control.congested(CongestionSignal::Loss, 5 * MSS, sender.now);
        sender.control.undo();
        assert_eq!((sender.window(), sender.threshold()), (threshold, threshold));
    }
    for_each_control!(check);
}

#[test]
fn timeout_leaves_one_segment_and_a_second_keeps_the_threshold_rfc5681_3_1() {
    fn check<C: CongestionControl>(threshold: u32) {
        let mut sender = Sender::<C>::new(RTT);
        sender.start_to(40 * MSS);
        sender.time_out();
        assert_eq!((sender.window(), sender.threshold()), (MSS, threshold));
        sender.time_out();
        sender.control.timed_out(0, sender.now);
        assert_eq!((sender.window(), sender.threshold()), (MSS, threshold));
        sender.round();
        assert_eq!(sender.window(), 2 * MSS);
        sender.time_out();
        assert_eq!((sender.window(), sender.threshold()), (MSS, 2 * MSS));
    }
    check::<NewReno>(20 * MSS);
    check::<Cubic>(28 * MSS);
    check::<Dctcp>(20 * MSS);
}

#[test]
fn timeout_in_recovery_ends_it_without_a_second_reduction() {
    fn check<C: CongestionControl>(threshold: u32) {
        let mut sender = Sender::<C>::new(RTT);
        sender.start_to(40 * MSS);
        sender.congested();
        sender.time_out();
        assert_eq!((sender.window(), sender.threshold()), (MSS, threshold));
        sender.recovered();
        assert_eq!(sender.window(), MSS);
        // Only the timeout was spurious.
        sender.control.undo();
        assert_eq!((sender.window(), sender.threshold()), (threshold, threshold));
    }
    check::<NewReno>(20 * MSS);
    check::<Cubic>(28 * MSS);
    check::<Dctcp>(20 * MSS);
}

#[test]
fn timeout_in_recovery_lowers_the_threshold_for_a_smaller_flight_rfc5681_3_1() {
    let mut sender = sender();
    sender.start_to(40 * MSS);
    sender.congested();
    sender.control.timed_out(10 * MSS, sender.now);
    assert_eq!(sender.threshold(), 5 * MSS);

    // A reduction never raises the threshold.
    let mut sender = self::sender();
    sender.start_to(40 * MSS);
    sender.control.congested(CongestionSignal::Loss, 10 * MSS, sender.now);
    sender.control.timed_out(40 * MSS, sender.now);
    assert_eq!(sender.threshold(), 5 * MSS);
}

#[test]
fn spurious_reduction_can_be_undone_at_any_time_rfc4015_3() {
    fn check<C: CongestionControl>() {
        let reductions: [fn(&mut Sender<C>); 5] = [
            |sender| sender.congested(),
            |sender| sender.lose(),
            |sender| sender.time_out(),
            |sender| {
                sender.time_out();
                sender.time_out();
                sender.round();
            },
            |sender| {
                sender.lose();
                sender.round();
            },
        ];
        for reduce in reductions {
            let mut sender = Sender::<C>::new(RTT);
            sender.start_to(40 * MSS);
            reduce(&mut sender);
            sender.control.undo();
            assert_eq!((sender.window(), sender.threshold()), (40 * MSS, u32::MAX));
            sender.control.undo();
            sender.recovered();
            assert_eq!((sender.window(), sender.threshold()), (40 * MSS, u32::MAX));
            sender.round();
            assert_eq!(sender.window(), 80 * MSS);
        }
    }
    for_each_control!(check);
}

#[test]
fn reduction_is_undone_once() {
    fn check<C: CongestionControl>() {
        let mut sender = Sender::<C>::new(RTT);
        sender.start_to(40 * MSS);
        sender.lose();
        sender.control.undo();
        sender.control.idle(Duration::from_secs(2), Duration::from_secs(1));
        sender.control.undo();
        assert_eq!(sender.window(), 10 * MSS);
    }
    for_each_control!(check);
}

#[test]
fn undo_never_shrinks_the_window_rfc9438_4_9_2() {
    fn check<C: CongestionControl>() {
        let mut sender = Sender::<C>::after_loss_at(10 * MSS, RTT);
        sender.rounds(40);
        let (window, threshold) = (sender.window(), sender.threshold());
        assert!(window > 10 * MSS);
        sender.control.undo();
        assert_eq!((sender.window(), sender.threshold()), (window, threshold));
    }
    for_each_control!(check);
}

#[test]
fn pause_longer_than_the_rto_restarts_with_the_initial_window_rfc5681_4_1() {
    fn check<C: CongestionControl>() {
        let rto = Duration::from_millis(200);
        let mut sender = Sender::<C>::new(RTT);
        sender.start_to(100 * MSS);
        sender.control.idle(rto, rto);
        assert_eq!(sender.window(), 100 * MSS);
        sender.control.idle(rto + Duration::from_nanos(1), rto);
        assert_eq!((sender.window(), sender.threshold()), (10 * MSS, u32::MAX));

        let mut sender = Sender::<C>::after_loss_at(12 * MSS, RTT);
        let window = sender.window();
        sender.control.idle(Duration::from_secs(10), rto);
        assert_eq!(sender.window(), window);
    }
    for_each_control!(check);
}

#[test]
fn unused_window_does_not_grow_rfc7661_4_2() {
    fn check<C: CongestionControl>() {
        for mut sender in [Sender::<C>::new(RTT), Sender::after_loss_at(100 * MSS, RTT)] {
            let window = sender.window();
            sender.window_limited = false;
            sender.rounds(50);
            assert_eq!(sender.window(), window);
        }
    }
    for_each_control!(check);
}

#[test]
fn marked_bytes_do_not_grow_the_window_rfc3168_6_1_2() {
    fn check<C: CongestionControl>() {
        for mut sender in [Sender::<C>::new(RTT), Sender::after_loss_at(100 * MSS, RTT)] {
            let window = sender.window();
            sender.marked = 1000;
            sender.rounds(50);
            assert!(sender.window() <= window);
        }
    }
    for_each_control!(check);
}

#[test]
fn mss_change_affects_only_an_unused_window() {
    let mut sender = sender();
    sender.control.set_mss(1448);
    assert_eq!(sender.window(), 14_480);
    sender.deliver(1448, |_| {});
    sender.control.set_mss(536);
    assert_eq!((sender.window(), sender.threshold()), (14_480 + 1448, u32::MAX));
    sender.time_out();
    assert_eq!(sender.window(), 536);
    sender.control.set_mss(9000);
    assert_eq!((sender.window(), sender.threshold()), (9000, 18_000));
    sender.control.undo();
    assert_eq!(sender.window(), 18_000);

    let mut sender = Sender::<NewReno>::after_loss_at(20 * MSS, RTT);
    assert_eq!(sender.window(), initial_window(MSS));
    sender.control.set_mss(1448);
    assert_eq!(sender.window(), 10 * MSS);
}

#[test]
fn window_is_at_most_a_gigabyte() {
    fn check<C: CongestionControl>() {
        let mut sender = Sender::<C>::new(RTT);
        sender.paced = true;
        for _ in 0..30 {
            sender.deliver(u32::MAX / 2, |_| {});
        }
        assert_eq!(sender.window(), MAX_WINDOW);
        sender.control.undo();
        assert_eq!(sender.window(), MAX_WINDOW);
    }
    for_each_control!(check);
}

#[test]
fn pacing_rate_is_twice_the_window_in_slow_start_and_a_fifth_above_it_later() {
    let mut sender = sender();
    let second = Duration::from_secs(1);
    assert_eq!(sender.control.pacing_rate(second), 20_000);
    assert_eq!(sender.control.pacing_rate(second / 1000), 20_000_000);
    sender.lose();
    assert_eq!(sender.control.pacing_rate(second), 6000);
    assert_eq!(sender.control.pacing_rate(Duration::ZERO), u64::MAX);
    assert_eq!(sender.control.pacing_rate(Duration::MAX), 0);
}
