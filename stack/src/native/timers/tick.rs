//! Time in the timing wheel's ticks, in 32 bits: what a control block can afford.

use crate::tcp::wheel::TICK_SHIFT;
use linerate_bypass::time::{Duration, Instant};

/// A moment in ticks of 65.5 µs that wraps after 78 hours, or none. Two of them are compared by their distance, so they must
/// not lie more than 39 hours apart: all deadlines of a connection are nearer than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tick(u32);

impl Tick {
    /// No moment.
    pub const NONE: Tick = Tick(0);
    /// How long a tick is.
    pub const LENGTH: Duration = Duration::from_nanos(1 << TICK_SHIFT);
    /// The furthest ahead that a moment may lie.
    pub const REACH: Duration = Duration::from_secs(38 * 3600);

    /// The first tick that does not begin before `at`, so that nothing happens early.
    #[inline]
    pub fn at_or_after(at: Instant) -> Tick {
        let up = (1 << TICK_SHIFT) - 1;
        Tick(((at.as_nanos().saturating_add(up) >> TICK_SHIFT) as u32).max(1))
    }

    /// The tick that `at` lies in.
    #[inline]
    pub fn of(at: Instant) -> Tick {
        Tick(((at.as_nanos() >> TICK_SHIFT) as u32).max(1))
    }

    #[inline]
    pub fn is_some(self) -> bool {
        self != Tick::NONE
    }

    /// Whether this is a moment and has come at `now`.
    #[inline]
    pub fn is_due(self, now: Tick) -> bool {
        self.is_some() && now.0.wrapping_sub(self.0) as i32 >= 0
    }

    /// Whether this moment comes before `other`; none comes after all.
    #[inline]
    pub fn before(self, other: Tick) -> bool {
        self.is_some() && (!other.is_some() || (self.0.wrapping_sub(other.0) as i32) < 0)
    }

    /// Ticks from `earlier` to this, neither of them none.
    pub fn since(self, earlier: Tick) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// The earlier of the two; none comes after all.
    #[inline]
    pub fn earlier(self, other: Tick) -> Tick {
        if self.before(other) { self } else { other }
    }

    /// The moment near `now` that this stands for.
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
    fn a_deadline_is_never_early_and_survives_the_wrap() {
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
