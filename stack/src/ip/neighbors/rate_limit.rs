//! Token bucket for messages that any station on the link can send.

use linerate_service::time::{Duration, Instant};

/// Messages per second.
const RATE: u64 = 1024;
/// Time in which one token is added.
const INTERVAL: Duration = Duration::from_nanos(1_000_000_000 / RATE);

/// Token bucket that starts full and gains [`RATE`] tokens per second.
#[derive(Debug, Clone, Copy)]
pub(super) struct RateLimit {
    burst: u32,
    /// Time at which the bucket is full. An empty bucket is full after `burst` intervals.
    full_at: Instant,
}

impl RateLimit {
    /// Creates a bucket of `burst` tokens: the messages that pass at once after a quiet period.
    pub const fn new(burst: u32) -> Self {
        RateLimit { burst, full_at: Instant::ZERO }
    }

    /// Takes a token. Returns whether there was one.
    pub fn allows(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now);
        if full_at.since(now) > INTERVAL * (self.burst - 1) {
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
        let mut limit = RateLimit::new(100);
        let mut passed = |at| (0..5000).filter(|_| limit.allows(at)).count();
        let start = Instant::ZERO + Duration::from_secs(7);
        assert_eq!(passed(start), 100);
        assert_eq!(passed(start), 0);
        assert_eq!(passed(start + 10 * INTERVAL), 10);
        assert_eq!(passed(start + Duration::from_secs(60)), 100);
    }
}
