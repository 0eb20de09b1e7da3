use super::*;
use crate::congestion::testing::{MSS, Sender};

const RTT: Duration = Duration::from_micros(100);

fn sender() -> Sender<Dctcp> {
    Sender::new(RTT)
}

/// One with a window of 100 segments in congestion avoidance, and an estimate of about `alpha`.
fn settled(alpha: f64) -> Sender<Dctcp> {
    let mut sender = Sender::<Dctcp>::after_loss_at(200 * MSS, RTT);
    sender.window_limited = false;
    while sender.control.alpha() > alpha {
        sender.round();
    }
    sender.window_limited = true;
    assert_eq!(sender.window(), 100 * MSS);
    sender
}

#[test]
fn the_estimate_begins_at_one_and_moves_by_a_sixteenth_per_window_rfc8257_3_3() {
    let mut sender = sender();
    assert_eq!(sender.control.alpha(), 1.0);
    // The first observation ends with the first acknowledgement: DCTCP.WindowEnd begins at SND.UNA.
    sender.round();
    let first = 15.0 / 16.0;
    assert_eq!(sender.control.alpha(), first);
    // The next one ends with what is sent after its beginning.
    sender.deliver(MSS, |_| {});
    assert_eq!(sender.control.alpha(), first * 15.0 / 16.0);
    sender.round();
    sender.deliver(MSS, |_| {});
    assert_eq!(sender.control.alpha(), first * 15.0 * 15.0 / 256.0);
}

#[test]
fn the_estimate_converges_to_the_fraction_that_is_marked_rfc8257_3_3() {
    for marked in [0, 10, 125, 500, 1000] {
        let mut sender = sender();
        sender.marked = marked;
        sender.rounds(200);
        let fraction = f64::from(marked) / 1000.0;
        assert!((sender.control.alpha() - fraction).abs() < 0.001, "{} for {fraction}", sender.control.alpha());
    }
}

#[test]
fn the_estimate_goes_on_without_growth_and_in_recovery() {
    let mut sender = sender();
    sender.window_limited = false;
    sender.rounds(20);
    let before = sender.control.alpha();
    assert!(before < 0.5);
    sender.congested();
    sender.rounds(20);
    assert!(sender.control.alpha() < before / 2.0);
}

#[test]
fn a_mark_takes_half_the_estimate_off_the_window_rfc8257_3_3() {
    for alpha in [1.0, 0.5, 0.1, 0.02] {
        let mut sender = settled(alpha);
        sender.deliver(MSS, |delivery| delivery.marked = MSS);
        let expected = f64::from(100 * MSS) * (1.0 - sender.control.alpha() / 2.0);
        assert!((f64::from(sender.window()) - expected).abs() <= 1.0, "{} for {expected}", sender.window());
        assert_eq!(sender.threshold(), sender.window());
    }
}

#[test]
fn a_mark_ends_slow_start() {
    let mut sender = sender();
    sender.deliver(MSS, |_| {});
    sender.deliver(MSS, |delivery| delivery.marked = MSS);
    let window = sender.window();
    assert!(window < 8 * MSS);
    sender.round();
    assert!(sender.window() <= window + MSS);
}

#[test]
fn marks_of_one_window_are_answered_once_rfc8257_3_3() {
    let mut sender = settled(0.5);
    let sent = sender.window();
    sender.deliver(MSS, |delivery| delivery.marked = MSS);
    let reduced = sender.window();
    assert!(reduced < 80 * MSS);
    // The rest of what was sent before the reduction.
    for _ in 1..sent / MSS {
        sender.deliver(MSS, |delivery| delivery.marked = MSS);
    }
    assert_eq!(sender.window(), reduced);
    sender.deliver(MSS, |delivery| delivery.marked = MSS);
    assert!(sender.window() < reduced);
}

#[test]
fn a_mark_long_after_another_is_answered_though_sequence_numbers_have_wrapped() {
    let mut sender = settled(0.5);
    sender.deliver(MSS, |delivery| delivery.marked = MSS);
    sender.window_limited = false;
    sender.round();
    sender.round();
    // Past half of the sequence space, where the answered window would look like one to come.
    for _ in 0..5 {
        sender.deliver(500_000_000, |_| {});
    }
    let window = sender.window();
    sender.deliver(MSS, |delivery| delivery.marked = MSS);
    assert!(sender.window() < window);
}

#[test]
fn the_window_settles_where_growth_and_marks_are_even() {
    // With a fraction F marked in every window, W·F/2 is lost and (1 − F) segments are gained per round trip.
    let mut sender = sender();
    sender.marked = 100;
    sender.rounds(300);
    let segments = f64::from(sender.window()) / f64::from(MSS);
    assert!((14.0..24.0).contains(&segments), "{segments}");
}

#[test]
fn under_marks_alone_two_segments_are_left() {
    let mut sender = sender();
    sender.marked = 1000;
    sender.rounds(100);
    assert_eq!(sender.window(), 2 * MSS);
}

#[test]
fn a_loss_is_answered_as_by_newreno_whatever_the_estimate_rfc8257_3_5() {
    let mut sender = settled(0.05);
    sender.lose();
    assert_eq!((sender.window(), sender.threshold()), (50 * MSS, 50 * MSS));
    sender.round();
    assert_eq!(sender.window(), 51 * MSS);
}

#[test]
fn an_answer_to_marks_is_not_taken_back_with_an_earlier_loss() {
    let mut sender = settled(0.5);
    sender.lose();
    sender.deliver(MSS, |delivery| delivery.marked = MSS);
    let window = sender.window();
    sender.control.undo();
    assert_eq!(sender.window(), window);
}

#[test]
fn it_asks_for_ecn_and_for_the_exact_echo_rfc8257_3_2() {
    let control = sender().control;
    assert!(control.wants_ecn() && control.exact_ecn_echo() && control.handles_ecn_echo());
}
