//! Virtual clock of a simulation.

use linerate_service::time::{Duration, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Clock that moves on request only. Clones show the same time, on all threads.
#[derive(Debug, Default, Clone)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// Creates a clock at [`Instant::ZERO`].
    pub fn new() -> Self {
        VirtualClock::default()
    }

    /// Returns the current time.
    #[inline]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// Advances the clock by `duration`.
    pub fn advance(&self, duration: Duration) {
        self.advance_to(self.now() + duration);
    }

    /// Advances the clock to `then`. Does nothing if that is in the past.
    pub fn advance_to(&self, then: Instant) {
        self.0.fetch_max(then.as_nanos(), Ordering::Relaxed);
    }
}
