//! Waits of a load until a local port may be reused.
//!
//! A connection that the load has closed is in TIME-WAIT here, and its port is taken until the peer can tell the next
//! connection from it: for some milliseconds with timestamps, for a minute without. While no port is free, one
//! connection at a time is attempted, and the time between attempts doubles, since a transport may search all ports in
//! each of them.

use linerate_bypass::time::{Duration, Instant};

/// Time before the first attempt.
const FIRST_DELAY: Duration = Duration::from_millis(1);
/// Longest time between two attempts.
const LONGEST_DELAY: Duration = Duration::from_millis(64);
/// Time after which an attempt that has not been refused has a port: the peer may be long in answering.
const ATTEMPT_TIME: Duration = Duration::from_millis(10);
/// Longest wait: TIME-WAIT lasts 60 s, in the stack as in Linux.
const LIMIT: Duration = Duration::from_secs(75);

/// Waits for a port, in numbers.
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
    /// Place of the connection that is being attempted.
    attempt: Option<usize>,
}

impl PortWait {
    /// Wait that begins at `now`.
    pub fn begin(now: Instant) -> Self {
        PortWait { since: now, next: now + FIRST_DELAY, delay: FIRST_DELAY, attempt: None }
    }

    /// Returns when the wait began.
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

    /// Notes that the connection of `index` is attempted at `now`.
    pub fn attempted(&mut self, index: usize, now: Instant) {
        (self.attempt, self.next) = (Some(index), now + ATTEMPT_TIME);
    }

    /// Returns whether the connection of `index` is the one that is being attempted.
    pub fn is_attempt(&self, index: usize) -> bool {
        self.attempt == Some(index)
    }

    /// Notes that there was no port for the connection of `index`, and returns whether that was the attempt.
    pub fn refused(&mut self, index: usize, now: Instant) -> bool {
        let is_attempt = self.is_attempt(index);
        if is_attempt {
            self.delay = (self.delay * 2).min(LONGEST_DELAY);
            (self.attempt, self.next) = (None, now + self.delay);
        }
        is_attempt
    }
}
