//! Rate of a queue pair after congestion notifications: DCQCN (Zhu et al., "Congestion Control for Large-Scale RDMA
//! Deployments", SIGCOMM 2015, section 3), with the parameters of the paper.

use linerate_service::time::{Duration, Instant};

/// Rate of an unlimited queue pair in bits per second. More than that of the link delays the first reaction by a few
/// notifications.
const LINE_RATE: f64 = 100e9;
/// Gain of the estimate of congestion, g.
const GAIN: f64 = 1.0 / 256.0;
/// Time between notifications for a queue pair, N, and least time between reductions.
pub(crate) const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);
/// Time without a notification after which the estimate of congestion decreases, K, or the rate increases, T.
const TIMER: Duration = Duration::from_micros(55);
/// Bytes after which the rate increases, B.
const BYTE_COUNTER: u64 = 10_000_000;
/// Increases by one of the two counters that return to the rate before the reduction, F.
const FAST_RECOVERY: u32 = 5;
/// Additive and hyper increase of the target rate, R_AI and ten times that.
const ADDITIVE: f64 = 40e6;
const HYPER: f64 = 400e6;
/// Least rate, at which a packet is sent every millisecond.
const MIN_RATE: f64 = 10e6;
/// Time for which packets that were due may be sent late, at once: a worker takes turns.
const LATE: Duration = Duration::from_micros(20);

/// Limit of a queue pair's rate.
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// Current rate R_C and target rate R_T, in bits per second.
    current: f64,
    target: f64,
    /// Estimate of congestion α, as of `estimated`.
    alpha: f64,
    estimated: Instant,
    /// Time of the last reduction.
    reduced: Option<Instant>,
    /// Increases since by time and by bytes, the time of the last one, and bytes sent since.
    by_time: u32,
    by_bytes: u32,
    increased: Instant,
    bytes: u64,
    /// Time at which the next packet is due.
    due: Instant,
}

impl RateLimit {
    /// Returns the line rate.
    pub fn new(now: Instant) -> Self {
        RateLimit {
            current: LINE_RATE,
            target: LINE_RATE,
            alpha: 1.0,
            estimated: now,
            reduced: None,
            by_time: 0,
            by_bytes: 0,
            increased: now,
            bytes: 0,
            due: now,
        }
    }

    /// Reduces the rate after a notification.
    pub fn reduce(&mut self, now: Instant) {
        if self.reduced.is_some_and(|reduced| now < reduced + NOTIFICATION_INTERVAL) {
            return;
        }
        self.pass(now);
        self.reduced = Some(now);
        self.target = self.current;
        self.current = (self.current * (1.0 - self.alpha / 2.0)).max(MIN_RATE);
        self.alpha = (1.0 - GAIN) * self.alpha + GAIN;
        (self.estimated, self.increased) = (now, now);
        (self.by_time, self.by_bytes, self.bytes) = (0, 0, 0);
    }

    /// Increases the rate as time has passed.
    pub fn pass(&mut self, now: Instant) {
        while self.estimated + TIMER <= now && self.alpha > f64::EPSILON {
            self.alpha *= 1.0 - GAIN;
            self.estimated += TIMER;
        }
        while self.increased + TIMER <= now && !self.is_over() {
            self.increased += TIMER;
            self.increase();
            self.by_time += 1;
        }
    }

    fn increase(&mut self) {
        let (least, most) = (self.by_time.min(self.by_bytes), self.by_time.max(self.by_bytes));
        if least > FAST_RECOVERY {
            self.target += HYPER;
        } else if most >= FAST_RECOVERY {
            self.target += ADDITIVE;
        }
        self.target = self.target.min(LINE_RATE);
        self.current = (self.target + self.current) / 2.0;
    }

    /// Returns whether the rate has returned to the line rate.
    pub fn is_over(&self) -> bool {
        self.current > LINE_RATE * 0.999
    }

    /// Returns the time at which the next packet is due.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Records packets with `bytes` bytes.
    pub fn sent(&mut self, bytes: usize, now: Instant) {
        let nanos = bytes as f64 * 8e9 / self.current;
        self.due = self.due.max(now - LATE) + Duration::from_nanos(nanos as u64);
        self.bytes += bytes as u64;
        if self.bytes >= BYTE_COUNTER {
            self.bytes -= BYTE_COUNTER;
            self.increase();
            self.by_bytes += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(1000 * micros)
    }

    fn gigabits(limit: &RateLimit) -> f64 {
        (limit.current / 1e6).round() / 1e3
    }

    #[test]
    fn notification_reduces_the_rate_once_per_interval() {
        let mut limit = RateLimit::new(at(0));
        for (micros, rate) in [(10, 50.0), (30, 50.0), (59, 50.0), (60, 25.0), (110, 12.5)] {
            limit.reduce(at(micros));
            assert_eq!(gigabits(&limit), rate, "after {micros} µs");
        }
    }

    #[test]
    fn reduction_follows_the_estimate_of_congestion() {
        let mut limit = RateLimit::new(at(0));
        limit.reduce(at(0));
        // The estimate decreases 4000 times.
        (limit.current, limit.increased) = (10e9, at(220_000));
        limit.reduce(at(220_000));
        assert!(limit.current > 9.999e9, "{}", limit.current);
        assert!((limit.alpha - GAIN).abs() < 1e-6, "{}", limit.alpha);
    }

    #[test]
    fn rate_recovers_and_then_grows() {
        let mut limit = RateLimit::new(at(0));
        (limit.current, limit.target) = (20e9, 20e9);
        limit.reduce(at(0));
        let rate = |limit: &mut RateLimit, timers: u64| {
            limit.pass(at(55 * timers));
            gigabits(limit)
        };
        // Half of the way to the rate before with each timer, then beyond it.
        let rates: Vec<_> = (0..6).map(|timers| rate(&mut limit, timers)).collect();
        assert_eq!(rates, [10.0, 15.0, 17.5, 18.75, 19.375, 19.688]);
        assert_eq!(rate(&mut limit, 105), 23.96, "the rate follows 100 additive increases of its target");
    }

    #[test]
    fn bytes_and_time_lead_to_hyper_increase() {
        let mut limit = RateLimit::new(at(0));
        (limit.current, limit.target) = (20e9, 20e9);
        limit.reduce(at(0));
        for _ in 0..6 {
            limit.sent(BYTE_COUNTER as usize, at(0));
        }
        assert_eq!(gigabits(&limit), 19.864, "an additive increase after five of recovery");
        limit.pass(at(55 * 7));
        assert_eq!(limit.target, 20e9 + 7.0 * ADDITIVE + HYPER);
    }

    #[test]
    fn limit_ends_at_the_line_rate() {
        let mut limit = RateLimit::new(at(0));
        limit.reduce(at(0));
        assert!(!limit.is_over());
        limit.pass(at(3_600_000_000));
        assert!(limit.is_over());
    }

    #[test]
    fn rate_has_a_minimum() {
        let mut limit = RateLimit::new(at(0));
        (0..1000).for_each(|nth| limit.reduce(at(50 * nth)));
        assert_eq!(limit.current, MIN_RATE);
    }

    #[test]
    fn packets_are_due_at_the_rate() {
        let mut limit = RateLimit::new(at(0));
        (limit.current, limit.reduced) = (8e9, Some(at(0)));
        limit.sent(1000, at(0));
        limit.sent(1000, at(0));
        assert_eq!(limit.due(), at(2));
        limit.sent(1000, at(12));
        assert_eq!(limit.due(), at(3), "late packets follow at once");
        limit.sent(1000, at(1000));
        assert_eq!(limit.due(), at(981), "but not all of them");
    }
}
