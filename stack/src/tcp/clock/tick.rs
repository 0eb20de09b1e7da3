//! Time in ticks of the timer wheel, in the 32 bits that a control block has room for.

use crate::tcp::clock::wheel::TICK_SHIFT;
use linerate_service::time::{Duration, Instant};

/// Time in ticks of 65.5 µs, which wraps after 78 hours, or no time. Comparison requires a distance of less than 39
/// hours; the deadlines of a connection are closer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tick(u32);

impl Tick {
    pub const NONE: Tick = Tick(0);
    pub const LENGTH: Duration = Duration::from_nanos(1 << TICK_SHIFT);
    /// Maximum distance of a deadline.
    pub const REACH: Duration = Duration::from_secs(38 * 3600);

    /// Returns the first tick that does not begin before `at`, so that no timer expires early.
    #[inline]
    pub fn at_or_after(at: Instant) -> Tick {
        let up = (1 << TICK_SHIFT) - 1;
        Tick(((at.as_nanos().saturating_add(up) >> TICK_SHIFT) as u32).max(1))
    }

    /// Returns the tick that contains `at`.
    #[inline]
    pub fn of(at: Instant) -> Tick {
        Tick(((at.as_nanos() >> TICK_SHIFT) as u32).max(1))
    }

    #[inline]
    pub fn is_some(self) -> bool {
        self != Tick::NONE
    }

    /// Returns whether this is a time that has come at `now`.
    #[inline]
    pub fn is_due(self, now: Tick) -> bool {
        self.is_some() && now.0.wrapping_sub(self.0) as i32 >= 0
    }

    /// Returns whether this time is before `other`. `NONE` is after all times.
    #[inline]
    pub fn before(self, other: Tick) -> bool {
        self.is_some() && (!other.is_some() || (self.0.wrapping_sub(other.0) as i32) < 0)
    }

    /// Returns the ticks from `earlier` to `self`. Neither is `NONE`.
    pub fn since(self, earlier: Tick) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns the earlier of two times. `NONE` is after all times.
    #[inline]
    pub fn earlier(self, other: Tick) -> Tick {
        if self.before(other) { self } else { other }
    }

    /// Returns the time near `now` that this tick represents.
    pub fn instant(self, now: Instant) -> Instant {
        let tick = now.as_nanos() >> TICK_SHIFT;
        let distance = i64::from(self.0.wrapping_sub(tick as u32) as i32);
        Instant::from_nanos(tick.saturating_add_signed(distance) << TICK_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_is_never_early_and_survives_the_wrap() {
        for start in [1, (1u64 << 48) - 3_000_000, u64::from(u32::MAX) << TICK_SHIFT] {
            let now = Instant::from_nanos(start);
            let at = now + Duration::from_millis(200);
            let tick = Tick::at_or_after(at);
            assert!(!tick.is_due(Tick::of(now)) && !tick.is_due(Tick::of(at - Duration::from_micros(66))));
            assert!(tick.is_due(Tick::of(at + Duration::from_micros(66))));
            assert!(tick.instant(now) >= at && tick.instant(now) < at + Duration::from_micros(132));
            assert!(Tick::of(now).before(tick) && tick.before(Tick::NONE) && !Tick::NONE.before(tick));
            assert!(Tick::of(now).earlier(tick) == Tick::of(now) && Tick::NONE.earlier(tick) == tick);
        }
    }
}
