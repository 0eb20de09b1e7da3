//! The time of a simulation.

use crate::time::{Duration, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock that stands still until it is told to move. Clones show the same time, on all threads.
#[derive(Debug, Default, Clone)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// A clock at [`Instant::ZERO`].
    pub fn new() -> Self {
        VirtualClock::default()
    }

    /// The present.
    #[inline]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// Lets `duration` pass.
    pub fn advance(&self, duration: Duration) {
        self.advance_to(self.now() + duration);
    }

    /// Lets time pass until `then`; nothing happens when that is past already.
    pub fn advance_to(&self, then: Instant) {
        self.0.fetch_max(then.as_nanos(), Ordering::Relaxed);
    }
}
