use super::*;
use crate::tcp::congestion::testing::{MSS, Sender};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn segments(bytes: u32) -> f64 {
    f64::from(bytes) / f64::from(MSS)
}

/// Returns W_cubic `t` seconds after a reduction to `cwnd` segments, around `w_max` (RFC 9438 §4.2, figures 1 and 2).
fn w_cubic(t: f64, w_max: f64, cwnd: f64) -> f64 {
    let k = ((w_max - cwnd) / 0.4).cbrt();
    0.4 * (t - k).powi(3) + w_max
}

/// Returns the seconds since `begun`.
fn elapsed(sender: &Sender<Cubic>, begun: Instant) -> f64 {
    sender.now.since(begun).as_secs_f64()
}

#[test]
fn congestion_reduces_the_window_by_three_tenths_rfc9438_4_6() {
    for cause in [CongestionSignal::Loss, CongestionSignal::EcnEcho] {
        let mut sender = Sender::<Cubic>::new(millis(20));
        sender.start_to(1000 * MSS);
        sender.control.congested(cause, 10 * MSS, sender.now);
        assert_eq!(sender.threshold(), 700 * MSS);
        sender.recovered();
        assert_eq!((sender.window(), sender.control.w_max), (700 * MSS, 1000 * MSS));
    }
}

#[test]
fn reduction_leaves_two_segments_rfc9438_4_6() {
    let mut sender = Sender::<Cubic>::new(millis(20));
    for _ in 0..20 {
        sender.lose();
        assert!(sender.window() >= 2 * MSS && sender.threshold() >= 2 * MSS);
    }
    assert_eq!(sender.window(), 2 * MSS);
}

#[test]
fn window_follows_the_curve_through_w_max_and_beyond_rfc9438_4_2() {
    for (rtt, w_max) in [(20, 20_000), (50, 5_000), (100, 1_000), (100, 10_000), (300, 3_000)] {
        let mut sender = Sender::<Cubic>::after_loss_at(w_max * MSS, millis(rtt));
        sender.segments_per_ack = 1 + w_max / 500;
        let (begun, cwnd) = (sender.now, segments(sender.window()));
        let w_max = f64::from(w_max);
        let k = ((w_max - cwnd) / 0.4).cbrt();
        while elapsed(&sender, begun) < 1.5 * k {
            sender.round();
            let exact = w_cubic(elapsed(&sender, begun), w_max, cwnd);
            let error = (segments(sender.window()) - exact).abs() / exact;
            assert!(error < 0.01, "{rtt} ms: {} for {exact} at {}", sender.window(), elapsed(&sender, begun));
        }
        assert!(sender.window() > 1000 * w_max as u32);
    }
}

#[test]
fn curve_does_not_depend_on_acknowledgement_size() {
    let windows = [1, 2, 10, 45].map(|segments_per_ack| {
        let mut sender = Sender::<Cubic>::after_loss_at(1000 * MSS, millis(100));
        sender.segments_per_ack = segments_per_ack;
        sender.rounds(60);
        sender.window()
    });
    let (least, most) = (windows.iter().min().unwrap(), windows.iter().max().unwrap());
    assert!(most - least < most / 100, "{windows:?}");
}

#[test]
fn window_grows_by_at_most_half_per_round_trip_rfc9438_4_2() {
    let mut sender = Sender::<Cubic>::after_loss_at(10 * MSS, Duration::from_secs(20));
    for _ in 0..4 {
        let window = sender.window();
        sender.round();
        // The target moves with the window, so the factor is e^½ for many acknowledgements instead of 3/2.
        assert!(sender.window() <= window * 5 / 3, "{} after {window}", sender.window());
    }
}

#[test]
fn short_path_uses_the_reno_window_rfc9438_4_3() {
    // At 1 ms the curve takes seconds for the additive increase of milliseconds: α = 9/17 of a segment per round trip
    // up to the window of the last congestion, one segment from there.
    let (w_max, rounds) = (100.0, 200);
    let mut sender = Sender::<Cubic>::after_loss_at(100 * MSS, millis(1));
    let mut aimd = segments(sender.window());
    for _ in 0..rounds {
        sender.round();
        aimd += if aimd < w_max { 9.0 / 17.0 } else { 1.0 };
        let error = (segments(sender.window()) - aimd).abs() / aimd;
        assert!(error < 0.01, "{} for {aimd}", sender.window());
    }
    assert!(sender.window() > 200 * MSS);
}

#[test]
fn short_path_has_the_average_of_the_reno_sawtooth_rfc9438_4_3() {
    /// Returns the average segments in flight if every window of 100 segments has one loss.
    fn average<C: CongestionControl>() -> f64 {
        let mut sender = Sender::<C>::after_loss_at(100 * MSS, millis(1));
        let mut sum = 0.0;
        for _ in 0..2000 {
            sender.round();
            sum += segments(sender.window());
            if sender.window() >= 100 * MSS {
                sender.lose();
            }
        }
        sum / 2000.0
    }
    let (cubic, reno) = (average::<Cubic>(), average::<super::super::NewReno>());
    // With equal loss frequency the averages would be equal. Here the peak is equal, and CUBIC reduces less.
    assert!((cubic / reno - 0.85 / 0.75).abs() < 0.02, "{cubic} and {reno}");
}

#[test]
fn fast_convergence_lowers_w_max_after_an_early_loss_rfc9438_4_7() {
    let mut sender = Sender::<Cubic>::after_loss_at(1000 * MSS, millis(100));
    assert_eq!(sender.control.w_max, 1000 * MSS);
    let window = sender.window();
    assert_eq!(window, 700 * MSS);
    sender.lose();
    // (1 + β)/2 of the window at the loss.
    assert_eq!(sender.control.w_max, 595 * MSS);
    // A window above the last W_max is not lowered.
    sender.rounds(120);
    let window = sender.window();
    assert!(window > 595 * MSS);
    sender.lose();
    assert_eq!(sender.control.w_max, window);
}

#[test]
fn curve_begins_flat_at_the_threshold_after_a_timeout_rfc9438_4_8() {
    let mut sender = Sender::<Cubic>::after_loss_at(1000 * MSS, millis(100));
    sender.time_out();
    assert_eq!((sender.window(), sender.threshold()), (MSS, 490 * MSS));
    while sender.window() < 490 * MSS {
        sender.deliver(MSS, |_| {});
    }
    let begun = sender.now;
    while elapsed(&sender, begun) < 15.0 {
        sender.round();
        let t = elapsed(&sender, begun);
        // Reno's estimate with α = 9/17, if it is larger.
        let exact = w_cubic(t, 490.0, 490.0).max(490.0 + t / 0.1 * 9.0 / 17.0);
        let error = (segments(sender.window()) - exact).abs() / exact;
        assert!(error < 0.01, "{} for {exact}", sender.window());
    }
}

#[test]
fn curve_begins_flat_after_slow_start_without_loss_rfc9438_4_10() {
    let mut sender = Sender::<Cubic>::new(millis(100));
    sender.rounds(4);
    sender.rtt = millis(120);
    while sender.threshold() == u32::MAX {
        sender.round();
    }
    let window = sender.threshold();
    assert!(sender.window() - window <= MSS);
    let begun = sender.now;
    sender.rounds(10);
    assert_eq!((sender.control.w_max, sender.control.window.prior()), (window, window));
    // Reno's estimate first, with α = 1 at once, since it has reached cwnd_prior.
    assert!(sender.window().abs_diff(window + 10 * MSS) < MSS, "{} after {window}", sender.window());
    while elapsed(&sender, begun) < 30.0 {
        sender.round();
    }
    let exact = w_cubic(elapsed(&sender, begun), segments(window), segments(window));
    assert!((segments(sender.window()) / exact - 1.0).abs() < 0.01, "{} for {exact}", sender.window());
}

#[test]
fn time_of_an_unused_window_does_not_count_rfc9438_5_8() {
    let mut busy = Sender::<Cubic>::after_loss_at(1000 * MSS, millis(100));
    let mut paused = Sender::<Cubic>::after_loss_at(1000 * MSS, millis(100));
    busy.rounds(20);
    paused.rounds(10);
    // Little to send for a minute, then a minute of silence.
    paused.window_limited = false;
    for _ in 0..60 {
        paused.now += Duration::from_secs(1);
        paused.deliver(MSS, |_| {});
    }
    paused.now += Duration::from_secs(60);
    paused.window_limited = true;
    paused.rounds(10);
    // At most two round trips of the silence count.
    let difference = busy.window().abs_diff(paused.window());
    assert!(difference < busy.window() / 50, "{} and {}", busy.window(), paused.window());
}

#[test]
fn undone_congestion_leaves_the_curve_unchanged_rfc9438_4_9_2() {
    for late in [false, true] {
        let mut undisturbed = Sender::<Cubic>::after_loss_at(1000 * MSS, millis(100));
        let mut sender = Sender::<Cubic>::after_loss_at(1000 * MSS, millis(100));
        undisturbed.rounds(30);
        sender.rounds(30);
        sender.congested();
        if late {
            sender.recovered();
            sender.round();
        }
        sender.control.undo();
        assert_eq!((sender.window(), sender.threshold()), (undisturbed.window(), 700 * MSS));
        assert_eq!(sender.control.w_max, 1000 * MSS);
        assert_eq!(sender.control.window.prior(), 1000 * MSS);
        for _ in 0..60 {
            undisturbed.round();
            sender.round();
            let difference = undisturbed.window().abs_diff(sender.window());
            assert!(difference < undisturbed.window() / 100, "{} and {}", undisturbed.window(), sender.window());
        }
    }
}

#[test]
fn undone_timeout_leaves_the_curve_unchanged_rfc9438_4_9_1() {
    let mut undisturbed = Sender::<Cubic>::after_loss_at(1000 * MSS, millis(100));
    let mut sender = Sender::<Cubic>::after_loss_at(1000 * MSS, millis(100));
    undisturbed.rounds(30);
    sender.rounds(30);
    sender.time_out();
    sender.deliver(MSS, |_| {});
    sender.control.undo();
    assert_eq!(sender.window(), undisturbed.window());
    undisturbed.rounds(60);
    sender.rounds(60);
    assert_eq!(sender.window() / MSS, undisturbed.window() / MSS);
}

#[test]
fn two_congestions_without_growth_leave_no_stage_to_resume() {
    let mut sender = Sender::<Cubic>::after_loss_at(1000 * MSS, millis(100));
    sender.rounds(60);
    sender.lose();
    let window = sender.window();
    sender.lose();
    sender.control.undo();
    assert_eq!(sender.window(), window);
    let Phase::Avoidance(stage) = sender.control.phase else { panic!("congestion avoidance had begun") };
    assert_eq!(stage.state, CubicState::Over);
}

#[test]
fn mss_change_keeps_window_and_curve_position() {
    let mut sender = Sender::<Cubic>::after_loss_at(1000 * MSS, millis(100));
    sender.rounds(10);
    let window = sender.window();
    sender.control.set_mss(500);
    assert_eq!(sender.window(), window);
    let (begun, from) = (sender.now, f64::from(window) / 500.0);
    while elapsed(&sender, begun) < 10.0 {
        sender.round();
    }
    let exact = w_cubic(elapsed(&sender, begun), 2000.0, from);
    assert!((f64::from(sender.window()) / 500.0 / exact - 1.0).abs() < 0.01, "{} for {exact}", sender.window());
}

#[test]
fn equal_calls_have_equal_results() {
    let run = || {
        let mut sender = Sender::<Cubic>::after_loss_at(777 * MSS, millis(33));
        sender.rounds(100);
        sender.window()
    };
    assert_eq!(run(), run());
}
