//! When the requests of an open loop are due: one after another at equal distances, whether or not answers come.

use linerate_bypass::time::Instant;

/// The requests of one worker.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    from: Instant,
    nanos: f64,
    /// How many have been taken.
    taken: u64,
}

impl Pace {
    /// `rate` of them a second, the first at `from`.
    pub fn new(from: Instant, rate: f64) -> Self {
        Pace { from, nanos: 1e9 / rate, taken: 0 }
    }

    /// When the next one is due.
    #[inline]
    pub fn next(&self) -> Instant {
        // Counted from the beginning, so that what is rounded off does not add up.
        Instant::from_nanos(self.from.as_nanos() + (self.taken as f64 * self.nanos) as u64)
    }

    /// How many are due by `now` and have not been taken.
    pub fn due(&self, now: Instant) -> u64 {
        let next = self.next();
        if now < next { 0 } else { ((now.as_nanos() - next.as_nanos()) as f64 / self.nanos) as u64 + 1 }
    }

    /// Takes the next one: when it was due.
    pub fn take(&mut self) -> Instant {
        let due = self.next();
        self.taken += 1;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::time::Duration;

    #[test]
    fn requests_are_due_at_equal_distances_however_late_they_are_taken() {
        let from = Instant::from_nanos(5_000_000_000);
        let mut pace = Pace::new(from, 3.0);
        assert_eq!((pace.due(from - Duration::from_nanos(1)), pace.due(from)), (0, 1));
        assert_eq!(pace.due(from + Duration::from_millis(700)), 3);
        assert_eq!(pace.take(), from);
        assert_eq!(pace.due(from), 0);
        assert_eq!(pace.due(from + Duration::from_secs(100)), 300);
        for _ in 1..300 {
            pace.take();
        }
        assert_eq!(pace.next(), from + Duration::from_secs(100), "nothing adds up");
    }
}
