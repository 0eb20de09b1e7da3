//! Time as everything above the ports takes it: an argument, never a call.
//!
//! Engines, timers and the memory NIC are deterministic because nothing in them reads a clock; the worker
//! reads one per turn and passes the value down, and a simulation passes a virtual one.

use std::ops::{Add, AddAssign, Sub};
pub use std::time::Duration;

/// A point in time: nanoseconds since an origin that the process chose (a clock's start, a simulation's zero).
///
/// Arithmetic saturates: 584 years after the origin time stands still, and nothing panics.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin itself.
    pub const ZERO: Instant = Instant(0);

    /// The point `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(duration)))
    }
}

/// The monotonic clock of this machine, as [`Instant`]s since the clock was made.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock whose origin is now.
    pub fn start() -> Self {
        Clock { origin: std::time::Instant::now() }
    }

    /// The present. Reads the clock through the vDSO: no system call.
    #[inline]
    pub fn now(&self) -> Instant {
        Instant(nanos(self.origin.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let end = Instant::from_nanos(u64::MAX);
        assert_eq!(end + Duration::from_secs(1), end);
        assert_eq!(Instant::ZERO - Duration::from_secs(1), Instant::ZERO);
        assert_eq!(Instant::ZERO + Duration::MAX, end);
        assert_eq!(Instant::ZERO.since(end), Duration::ZERO);
    }
}
