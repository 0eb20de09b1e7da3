//! A token bucket for messages that any station on the link can send at will.

use linerate_bypass::time::{Duration, Instant};

/// Messages that pass at once after a quiet time: as many hosts may look for a server that was started again.
const BURST: u32 = 1024;
/// The time for which one message takes its place, so that the rate is 1024 per second.
const INTERVAL: Duration = Duration::from_nanos(1_000_000_000 / BURST as u64);

/// Token bucket of [`BURST`] tokens, one of which is added every [`INTERVAL`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RateLimit {
    /// When the bucket will be full again. An empty bucket is full after `BURST` intervals.
    full_at: Instant,
}

impl RateLimit {
    /// Takes a token; returns false if there is none.
    pub fn allows(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now);
        if full_at.since(now) > INTERVAL * (BURST - 1) {
            return false;
        }
        self.full_at = full_at + INTERVAL;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_allows_a_burst_and_then_its_rate() {
        let mut limit = RateLimit::default();
        let mut passed = |at| (0..5000).filter(|_| limit.allows(at)).count();
        let start = Instant::ZERO + Duration::from_secs(7);
        assert_eq!(passed(start), BURST as usize);
        assert_eq!(passed(start), 0);
        assert_eq!(passed(start + 10 * INTERVAL), 10);
        assert_eq!(passed(start + Duration::from_secs(60)), BURST as usize);
    }
}
