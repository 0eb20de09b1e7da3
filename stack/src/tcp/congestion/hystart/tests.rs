use super::*;
use crate::tcp::congestion::testing::{MSS, Sender};
use crate::tcp::congestion::{CongestionControl, Cubic, NewReno};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// HyStart++ state driven round by round.
struct Rounds {
    hystart: HyStart,
    /// SND.UNA, which wraps soon.
    acknowledged: u32,
    end: u32,
}

impl Rounds {
    /// Creates the state after a first round with the delay `rtt`.
    fn after(rtt: Duration) -> Self {
        let acknowledged = u32::MAX - 150;
        let mut rounds = Rounds { hystart: HyStart::new(), acknowledged, end: acknowledged.wrapping_add(100) };
        rounds.deliver(1, None, rounds.end);
        assert!(!rounds.round(&[rtt; 8]));
        rounds
    }

    fn deliver(&mut self, bytes: u32, rtt: Option<Duration>, next: u32) -> bool {
        self.acknowledged = self.acknowledged.wrapping_add(bytes);
        let (acknowledged, smoothed_rtt) = (self.acknowledged, Duration::ZERO);
        self.hystart.delivered(&Delivery { bytes, rtt, next, acknowledged, smoothed_rtt, ..Delivery::default() })
    }

    fn sample(&mut self, rtt: Duration) {
        assert!(!self.deliver(1, Some(rtt), self.end));
    }

    /// Ends the round without a sample. Returns whether slow start ended.
    fn end(&mut self) -> bool {
        let rest = self.end.wrapping_sub(self.acknowledged);
        self.end = self.end.wrapping_add(100);
        self.deliver(rest, None, self.end)
    }

    fn round(&mut self, samples: &[Duration]) -> bool {
        for &rtt in samples {
            self.sample(rtt);
        }
        self.end()
    }

    fn is_conservative(&self) -> bool {
        self.hystart.divisor() == CSS_GROWTH_DIVISOR
    }
}

#[test]
fn eighth_sample_of_a_round_decides_rfc9406_4_2() {
    let mut rounds = Rounds::after(millis(50));
    for _ in 0..7 {
        rounds.sample(millis(100));
    }
    assert!(!rounds.is_conservative());
    rounds.sample(millis(100));
    assert!(rounds.is_conservative());

    // Seven samples in each of two rounds do not count as eight.
    let mut rounds = Rounds::after(millis(50));
    rounds.round(&[millis(100); 7]);
    rounds.round(&[millis(100); 7]);
    assert!(!rounds.is_conservative());
}

#[test]
fn minimum_sample_of_a_round_counts_rfc9406_4_2() {
    let mut rounds = Rounds::after(millis(50));
    rounds.sample(millis(51));
    rounds.round(&[millis(200); 20]);
    assert!(!rounds.is_conservative());
    // The next round is compared with it.
    rounds.round(&[millis(56); 8]);
    assert!(!rounds.is_conservative());
    rounds.round(&[millis(64); 8]);
    assert!(rounds.is_conservative());
}

#[test]
fn threshold_is_an_eighth_between_4_and_16_ms_rfc9406_4_2() {
    for (rtt, least) in [(0, 4), (8, 4), (80, 10), (400, 16), (3000, 16)] {
        for (more, conservative) in [(millis(least) - Duration::from_micros(200), false), (millis(least), true)] {
            let mut rounds = Rounds::after(millis(rtt));
            rounds.round(&[millis(rtt) + more; 8]);
            assert_eq!(rounds.is_conservative(), conservative, "{rtt} ms and {more:?}");
        }
    }
}

#[test]
fn slow_start_ends_after_five_conservative_rounds_rfc9406_4_2() {
    let mut rounds = Rounds::after(millis(50));
    for n in 1..=5 {
        assert_eq!(rounds.round(&[millis(60); 8]), n == 5);
    }
}

#[test]
fn lower_delay_resumes_slow_start_and_resets_the_round_count_rfc9406_4_2() {
    let mut rounds = Rounds::after(millis(50));
    for _ in 0..4 {
        assert!(!rounds.round(&[millis(60); 8]));
    }
    // Too few samples.
    for _ in 0..7 {
        rounds.sample(millis(59));
    }
    assert!(rounds.is_conservative());
    rounds.sample(millis(59));
    assert!(!rounds.is_conservative());
    assert!(!rounds.end());
    for n in 1..=5 {
        assert_eq!(rounds.round(&[millis(70); 8]), n == 5);
    }
}

#[test]
fn slow_start_resumed_and_slowed_in_one_round_gets_five_rounds() {
    let mut rounds = Rounds::after(millis(50));
    for _ in 0..3 {
        rounds.round(&[millis(60); 8]);
    }
    // Too few samples to resume, but the next round is compared with them.
    rounds.round(&[millis(40); 3]);
    for _ in 0..7 {
        rounds.sample(millis(60));
    }
    rounds.sample(millis(59));
    assert!(!rounds.is_conservative());
    rounds.sample(millis(59));
    assert!(rounds.is_conservative());
    assert!(!rounds.end());
}

#[test]
fn round_without_samples_is_ignored() {
    let mut rounds = Rounds::after(millis(50));
    rounds.end();
    rounds.round(&[millis(100); 8]);
    assert!(!rounds.is_conservative());
    rounds.round(&[millis(150); 8]);
    assert!(rounds.is_conservative());
}

#[test]
fn delays_of_many_seconds_are_equal() {
    let mut rounds = Rounds::after(Duration::from_secs(5));
    rounds.round(&[Duration::MAX; 8]);
    assert!(!rounds.is_conservative());
}

#[test]
fn window_doubles_while_the_delay_is_stable_rfc9406_4_2() {
    fn check<C: CongestionControl>() {
        let mut sender = Sender::<C>::new(millis(100));
        for round in 0..10 {
            // Jitter below the threshold.
            sender.rtt = millis(100 + round % 3 * 5);
            sender.round();
        }
        assert_eq!((sender.window(), sender.threshold()), ((10 * MSS) << 10, u32::MAX));
    }
    check::<NewReno>();
    check::<Cubic>();
}

#[test]
fn window_grows_at_quarter_speed_in_conservative_slow_start_rfc9406_4_2() {
    fn check<C: CongestionControl>() {
        let mut sender = Sender::<C>::new(millis(80));
        sender.segments_per_ack = 1;
        sender.rounds(4);
        sender.rtt = millis(90);
        // Round of the detection.
        sender.rounds(2);
        let mut rounds = 0;
        while sender.threshold() == u32::MAX {
            let window = sender.window();
            sender.round();
            let grown = sender.window() - window;
            assert!(grown <= window / 4 + MSS, "{grown} of {window}");
            assert!(grown > window / 5 || sender.threshold() < u32::MAX, "{grown} of {window}");
            rounds += 1;
        }
        assert!((3..=5).contains(&rounds), "{rounds}");
        let window = sender.window();
        sender.round();
        assert!(sender.window() <= window + 2 * MSS, "congestion avoidance");
    }
    check::<NewReno>();
    check::<Cubic>();
}

#[test]
fn application_limited_delay_does_not_end_slow_start() {
    fn check<C: CongestionControl>() {
        let mut sender = Sender::<C>::new(millis(50));
        sender.segments_per_ack = 1;
        sender.rounds(3);
        sender.window_limited = false;
        sender.rtt = millis(100);
        sender.rounds(20);
        sender.window_limited = true;
        sender.rtt = millis(50);
        let window = sender.window();
        sender.round();
        assert_eq!((sender.window(), sender.threshold()), (2 * window, u32::MAX));
    }
    check::<NewReno>();
    check::<Cubic>();
}

#[test]
fn delay_after_a_pause_is_not_compared_with_earlier_delay() {
    fn check<C: CongestionControl>() {
        let mut sender = Sender::<C>::new(millis(50));
        sender.rounds(5);
        let rto = millis(200);
        sender.control.idle(rto * 2, rto);
        sender.rtt = millis(100);
        sender.rounds(5);
        assert_eq!((sender.window(), sender.threshold()), (320 * MSS, u32::MAX));
    }
    check::<NewReno>();
    check::<Cubic>();
}

#[test]
fn hystart_applies_to_the_initial_slow_start_only_rfc9406_4_3() {
    let mut sender = Sender::<NewReno>::new(millis(50));
    sender.start_to(400 * MSS);
    sender.time_out();
    sender.rounds(5);
    sender.rtt = millis(100);
    sender.rounds(2);
    assert_eq!(sender.window(), 128 * MSS);
}

#[test]
fn hystart_applies_again_after_a_spurious_first_congestion() {
    fn check<C: CongestionControl>() {
        let mut sender = Sender::<C>::new(millis(50));
        sender.start_to(100 * MSS);
        sender.lose();
        sender.round();
        sender.control.undo();
        sender.rounds(3);
        sender.rtt = millis(100);
        sender.rounds(7);
        assert!(sender.threshold() < u32::MAX);
    }
    check::<NewReno>();
    check::<Cubic>();
}
