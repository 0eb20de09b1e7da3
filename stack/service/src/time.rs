//! Points in time, and the clock.
//!
//! Code above the ports takes the time as an argument and never reads a clock, so engines, timers and the memory NIC
//! are deterministic. A worker reads its clock once per turn; a simulation passes virtual time.

use std::ops::{Add, AddAssign, Sub};
pub use std::time::Duration;

/// Point in time: nanoseconds since an origin, such as the start of a clock or of a simulation.
///
/// Arithmetic saturates, 584 years after the origin.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Instant = Instant(0);

    /// Creates the point `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
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

/// Monotonic clock of this machine.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// Creates a clock whose origin is now.
    pub fn start() -> Self {
        Clock { origin: std::time::Instant::now() }
    }

    /// Returns the current time, through the vDSO without a system call.
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
