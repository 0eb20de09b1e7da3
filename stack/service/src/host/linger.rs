//! Bounds of a lingering close (RFC 9112 §9.6).
//!
//! A server that closes a socket with unread input causes a reset, which can destroy the last reply before the client
//! has read it. [`Transport::lingering_close`](crate::Transport::lingering_close) therefore discards input until the
//! peer closes, too. The bounds keep a peer that sends without end, or that never closes, from occupying a worker or a
//! connection.

use crate::time::{Duration, Instant};

/// Maximum number of received bytes that a lingering close discards before it resets the connection.
pub const LINGER_BYTES: usize = 1 << 20;
/// Time after which a lingering close resets the connection if the peer has acknowledged everything and not closed.
pub const LINGER_TIME: Duration = Duration::from_secs(5);
/// Time after which a lingering close resets the connection, even if the peer has not acknowledged everything.
pub const LINGER_LIMIT: Duration = Duration::from_secs(30);

/// State of one lingering close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linger {
    /// Bytes that may still be discarded.
    left: usize,
    /// End of [`LINGER_LIMIT`].
    until: Instant,
}

impl Linger {
    /// Starts a lingering close at `now`. The first deadline is [`LINGER_TIME`] later.
    pub fn new(now: Instant) -> Self {
        Linger { left: LINGER_BYTES, until: now + LINGER_LIMIT }
    }

    /// Counts `n` discarded bytes. Returns whether they are within [`LINGER_BYTES`].
    #[must_use]
    pub fn discard(&mut self, n: usize) -> bool {
        let is_within = n <= self.left;
        self.left = self.left.saturating_sub(n);
        is_within
    }

    /// Returns the time to the next deadline after one that expires at `now`, or `None` if the connection is to be
    /// reset. `is_delivered` states that the peer has acknowledged everything that was sent.
    #[must_use]
    pub fn extend(&self, now: Instant, is_delivered: bool) -> Option<Duration> {
        let left = self.until.since(now);
        (!is_delivered && left > Duration::ZERO).then(|| left.min(LINGER_TIME))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discard_is_within_the_bound_up_to_its_last_byte() {
        let mut linger = Linger::new(Instant::ZERO);
        assert!(linger.discard(LINGER_BYTES - 1) && linger.discard(1) && linger.discard(0));
        assert!(!linger.discard(1));
    }

    #[test]
    fn extend_ends_when_everything_is_delivered_or_at_the_limit() {
        let linger = Linger::new(Instant::ZERO);
        let at = |time: Duration| Instant::ZERO + time;
        assert_eq!(linger.extend(at(LINGER_TIME), true), None);
        assert_eq!(linger.extend(at(LINGER_TIME), false), Some(LINGER_TIME));
        let late = LINGER_LIMIT - Duration::from_secs(1);
        assert_eq!(linger.extend(at(late), false), Some(Duration::from_secs(1)));
        assert_eq!(linger.extend(at(LINGER_LIMIT), false), None);
    }
}
