use super::*;
use crate::congestion::testing::{MSS, Sender};
use crate::congestion::{CongestionControl, Cubic, NewReno};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The state by itself, driven round by round.
struct Rounds {
    hystart: HyStart,
    /// SND.UNA, which wraps soon.
    acknowledged: u32,
    /// Where the round ends.
    end: u32,
}

impl Rounds {
    /// After a first round of the delay `rtt`.
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

    /// A sample in the round.
    fn sample(&mut self, rtt: Duration) {
        assert!(!self.deliver(1, Some(rtt), self.end));
    }

    /// The rest of the round, without a sample. Whether slow start ended.
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
fn the_eighth_sample_of_a_round_decides_and_no_earlier_one_rfc9406_4_2() {
    let mut rounds = Rounds::after(millis(50));
    for _ in 0..7 {
        rounds.sample(millis(100));
    }
    assert!(!rounds.is_conservative());
    rounds.sample(millis(100));
    assert!(rounds.is_conservative());

    // Seven in each of two rounds are not eight.
    let mut rounds = Rounds::after(millis(50));
    rounds.round(&[millis(100); 7]);
    rounds.round(&[millis(100); 7]);
    assert!(!rounds.is_conservative());
}

#[test]
fn the_least_sample_of_a_round_counts_rfc9406_4_2() {
    let mut rounds = Rounds::after(millis(50));
    rounds.sample(millis(51));
    rounds.round(&[millis(200); 20]);
    assert!(!rounds.is_conservative());
    // And is what the next round is compared with.
    rounds.round(&[millis(56); 8]);
    assert!(!rounds.is_conservative());
    rounds.round(&[millis(64); 8]);
    assert!(rounds.is_conservative());
}

#[test]
fn an_increase_by_an_eighth_counts_but_not_below_4_ms_and_always_from_16_ms_rfc9406_4_2() {
    for (rtt, least) in [(0, 4), (8, 4), (80, 10), (400, 16), (3000, 16)] {
        for (more, conservative) in [(millis(least) - Duration::from_micros(200), false), (millis(least), true)] {
            let mut rounds = Rounds::after(millis(rtt));
            rounds.round(&[millis(rtt) + more; 8]);
            assert_eq!(rounds.is_conservative(), conservative, "{rtt} ms and {more:?}");
        }
    }
}

#[test]
fn slow_start_ends_after_five_rounds_the_one_in_which_it_slowed_included_rfc9406_4_2() {
    let mut rounds = Rounds::after(millis(50));
    for n in 1..=5 {
        assert_eq!(rounds.round(&[millis(60); 8]), n == 5);
    }
}

#[test]
fn a_delay_below_the_one_that_slowed_it_resumes_slow_start_and_the_rounds_are_counted_anew_rfc9406_4_2() {
    let mut rounds = Rounds::after(millis(50));
    for _ in 0..4 {
        assert!(!rounds.round(&[millis(60); 8]));
    }
    // Too few to say so.
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
fn slow_start_that_resumes_and_slows_in_one_round_has_five_rounds_again() {
    let mut rounds = Rounds::after(millis(50));
    for _ in 0..3 {
        rounds.round(&[millis(60); 8]);
    }
    // Too few to resume, but what the next round is compared with.
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
fn a_round_without_samples_says_nothing() {
    let mut rounds = Rounds::after(millis(50));
    rounds.end();
    rounds.round(&[millis(100); 8]);
    assert!(!rounds.is_conservative());
    rounds.round(&[millis(150); 8]);
    assert!(rounds.is_conservative());
}

#[test]
fn delays_of_many_seconds_are_all_the_same() {
    let mut rounds = Rounds::after(Duration::from_secs(5));
    rounds.round(&[Duration::MAX; 8]);
    assert!(!rounds.is_conservative());
}

#[test]
fn the_window_doubles_while_the_delay_does_not_grow_rfc9406_4_2() {
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
fn the_window_grows_at_a_quarter_of_the_speed_before_slow_start_ends_rfc9406_4_2() {
    fn check<C: CongestionControl>() {
        let mut sender = Sender::<C>::new(millis(80));
        sender.segments_per_ack = 1;
        sender.rounds(4);
        sender.rtt = millis(90);
        // The round in which it was noticed.
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
fn the_delay_of_what_the_application_limits_does_not_end_slow_start() {
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
fn after_a_pause_the_delay_is_compared_with_none_before_it() {
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
fn only_the_first_slow_start_is_watched_rfc9406_4_3() {
    let mut sender = Sender::<NewReno>::new(millis(50));
    sender.start_to(400 * MSS);
    sender.time_out();
    sender.rounds(5);
    sender.rtt = millis(100);
    sender.rounds(2);
    assert_eq!(sender.window(), 128 * MSS);
}

#[test]
fn slow_start_is_watched_again_when_the_first_congestion_was_spurious() {
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
