use super::*;
use crate::tcp::congestion::testing::{MSS, Sender};

const RTT: Duration = Duration::from_micros(100);

fn sender() -> Sender<Dctcp> {
    Sender::new(RTT)
}

/// Returns a sender with a window of 100 segments in congestion avoidance and an estimate of about `alpha`.
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
fn estimate_begins_at_one_and_moves_by_a_sixteenth_per_window_rfc8257_3_3() {
    let mut sender = sender();
    assert_eq!(sender.control.alpha(), 1.0);
    // The first observation ends with the first acknowledgement: DCTCP.WindowEnd starts at SND.UNA.
    sender.round();
    let first = 15.0 / 16.0;
    assert_eq!(sender.control.alpha(), first);
    // The next observation ends with data sent after its start.
    sender.deliver(MSS, |_| {});
    assert_eq!(sender.control.alpha(), first * 15.0 / 16.0);
    sender.round();
    sender.deliver(MSS, |_| {});
    assert_eq!(sender.control.alpha(), first * 15.0 * 15.0 / 256.0);
}

#[test]
fn estimate_converges_to_the_marked_fraction_rfc8257_3_3() {
    for marked in [0, 10, 125, 500, 1000] {
        let mut sender = sender();
        sender.marked = marked;
        sender.rounds(200);
        let fraction = f64::from(marked) / 1000.0;
        assert!((sender.control.alpha() - fraction).abs() < 0.001, "{} for {fraction}", sender.control.alpha());
    }
}

#[test]
fn estimate_continues_without_growth_and_in_recovery() {
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
fn mark_reduces_the_window_by_half_the_estimate_rfc8257_3_3() {
    for alpha in [1.0, 0.5, 0.1, 0.02] {
        let mut sender = settled(alpha);
        sender.deliver(MSS, |delivery| delivery.marked = MSS);
        let expected = f64::from(100 * MSS) * (1.0 - sender.control.alpha() / 2.0);
        assert!((f64::from(sender.window()) - expected).abs() <= 1.0, "{} for {expected}", sender.window());
        assert_eq!(sender.threshold(), sender.window());
    }
}

#[test]
fn mark_ends_slow_start() {
    let mut sender = sender();
    sender.deliver(MSS, |_| {});
    sender.deliver(MSS, |delivery| delivery.marked = MSS);
    let window = sender.window();
    assert!(window < 8 * MSS);
    sender.round();
    assert!(sender.window() <= window + MSS);
}

#[test]
fn marks_of_one_window_cause_one_reduction_rfc8257_3_3() {
    let mut sender = settled(0.5);
    let sent = sender.window();
    sender.deliver(MSS, |delivery| delivery.marked = MSS);
    let reduced = sender.window();
    assert!(reduced < 80 * MSS);
    // Rest of the data sent before the reduction.
    for _ in 1..sent / MSS {
        sender.deliver(MSS, |delivery| delivery.marked = MSS);
    }
    assert_eq!(sender.window(), reduced);
    sender.deliver(MSS, |delivery| delivery.marked = MSS);
    assert!(sender.window() < reduced);
}

#[test]
fn mark_after_sequence_wrap_causes_a_reduction() {
    let mut sender = settled(0.5);
    sender.deliver(MSS, |delivery| delivery.marked = MSS);
    sender.window_limited = false;
    sender.round();
    sender.round();
    // Beyond half of the sequence space the end of the old window looks like a future one.
    for _ in 0..5 {
        sender.deliver(500_000_000, |_| {});
    }
    let window = sender.window();
    sender.deliver(MSS, |delivery| delivery.marked = MSS);
    assert!(sender.window() < window);
}

#[test]
fn window_settles_where_growth_and_marks_balance() {
    // With a marked fraction F in every window, each round trip loses W·F/2 and gains (1 − F) segments.
    let mut sender = sender();
    sender.marked = 100;
    sender.rounds(300);
    let segments = f64::from(sender.window()) / f64::from(MSS);
    assert!((14.0..24.0).contains(&segments), "{segments}");
}

#[test]
fn continuous_marks_leave_two_segments() {
    let mut sender = sender();
    sender.marked = 1000;
    sender.rounds(100);
    assert_eq!(sender.window(), 2 * MSS);
}

#[test]
fn loss_is_handled_as_by_newreno_rfc8257_3_5() {
    let mut sender = settled(0.05);
    sender.lose();
    assert_eq!((sender.window(), sender.threshold()), (50 * MSS, 50 * MSS));
    sender.round();
    assert_eq!(sender.window(), 51 * MSS);
}

#[test]
fn reduction_for_marks_is_not_undone_with_an_earlier_loss() {
    let mut sender = settled(0.5);
    sender.lose();
    sender.deliver(MSS, |delivery| delivery.marked = MSS);
    let window = sender.window();
    sender.control.undo();
    assert_eq!(sender.window(), window);
}

#[test]
fn ecn_and_exact_echo_are_requested_rfc8257_3_2() {
    let control = sender().control;
    assert!(control.wants_ecn() && control.exact_ecn_echo() && control.handles_ecn_echo());
}
