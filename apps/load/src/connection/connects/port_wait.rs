//! Waits of a load until a local port may be reused.
//!
//! A connection closed by the load is in TIME-WAIT at this end. Its port stays in use until the peer can distinguish
//! the next connection from it: for some milliseconds with timestamps, for a minute without. While no port is free, the
//! load attempts one connection at a time and doubles the time between attempts, because a transport may search all
//! ports in each attempt.

use linerate_service::time::{Duration, Instant};

/// Time before the first attempt.
const FIRST_DELAY: Duration = Duration::from_millis(1);
/// Longest time between two attempts.
const LONGEST_DELAY: Duration = Duration::from_millis(64);
/// Time after which an attempt that was not refused is assumed to have a port: the peer may take longer to answer.
const ATTEMPT_TIME: Duration = Duration::from_millis(10);
/// Longest wait: TIME-WAIT lasts 60 s, in the stack as in Linux.
const LIMIT: Duration = Duration::from_secs(75);

/// Number and duration of waits for a port.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PortWaits {
    /// Connections that waited.
    pub connections: u64,
    /// Time during which connections waited.
    pub time: Duration,
}

/// Next action of a worker that waits for a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Attempt nothing yet.
    Rest,
    /// Attempt one connection.
    Attempt,
    /// Open connections as before: the attempt has found a port.
    End,
    /// Count the connections that wait as failed: no port has become free for longer than TIME-WAIT lasts.
    GiveUp,
}

/// Wait of one worker for a port.
#[derive(Debug)]
pub(super) struct PortWait {
    since: Instant,
    /// Time of the next step.
    next: Instant,
    delay: Duration,
    /// Slot of the connection that is being attempted.
    attempt: Option<usize>,
}

impl PortWait {
    /// Creates a wait that begins at `now`.
    pub fn begin(now: Instant) -> Self {
        PortWait { since: now, next: now + FIRST_DELAY, delay: FIRST_DELAY, attempt: None }
    }

    /// Returns the begin time of the wait.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Returns the action that is due at `now`.
    pub fn step(&self, now: Instant) -> Step {
        match self.attempt {
            _ if now < self.next => Step::Rest,
            Some(_) => Step::End,
            None if now.since(self.since) >= LIMIT => Step::GiveUp,
            None => Step::Attempt,
        }
    }

    /// Records that the connection of slot `index` is attempted at `now`.
    pub fn attempted(&mut self, index: usize, now: Instant) {
        (self.attempt, self.next) = (Some(index), now + ATTEMPT_TIME);
    }

    /// Returns whether the connection of slot `index` is being attempted.
    pub fn is_attempt(&self, index: usize) -> bool {
        self.attempt == Some(index)
    }

    /// Records that no port was free for the connection of slot `index`. Returns whether it was being attempted.
    pub fn refused(&mut self, index: usize, now: Instant) -> bool {
        let is_attempt = self.is_attempt(index);
        if is_attempt {
            self.delay = (self.delay * 2).min(LONGEST_DELAY);
            (self.attempt, self.next) = (None, now + self.delay);
        }
        is_attempt
    }
}
