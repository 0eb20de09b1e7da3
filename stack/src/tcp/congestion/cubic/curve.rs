//! CUBIC's window curve and its Reno estimate, in integers: equal windows on every machine (RFC 9438 §4.2, §4.3).

use linerate_service::time::{Duration, Instant};

/// Duration in units of 2⁻²⁰ s, just below a microsecond: powers of it need only shifts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticks(i32);

impl Ticks {
    pub const ZERO: Ticks = Ticks(0);

    /// Bits after the binary point.
    const SHIFT: u32 = 20;

    /// Returns the whole ticks of `nanos` nanoseconds, less than a second.
    fn of_second(nanos: u64) -> u64 {
        (nanos << Ticks::SHIFT) / 1_000_000_000
    }

    fn saturating(ticks: u64) -> Self {
        Ticks(i32::try_from(ticks).unwrap_or(i32::MAX))
    }

    pub fn from_duration(duration: Duration) -> Self {
        let seconds = duration.as_secs().min(1 << 20) << Ticks::SHIFT;
        Ticks::saturating(seconds + Ticks::of_second(duration.subsec_nanos().into()))
    }

    pub fn plus(self, other: Ticks) -> Ticks {
        Ticks(self.0.saturating_add(other.0))
    }
}

/// Point in time in ticks modulo 2³², for durations of at most an hour. Points are rounded and durations are exact, so
/// rounding errors do not accumulate over many short durations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp(u32);

impl Stamp {
    pub fn new(now: Instant) -> Self {
        let (seconds, nanos) = (now.as_nanos() / 1_000_000_000, now.as_nanos() % 1_000_000_000);
        // Truncation to the low half is intended.
        Stamp(((seconds << Ticks::SHIFT) | Ticks::of_second(nanos)) as u32)
    }

    /// Returns the time from `earlier` to this.
    pub fn since(self, earlier: Stamp) -> Ticks {
        Ticks::saturating(self.0.wrapping_sub(earlier.0).into())
    }
}

/// Returns W_cubic − W_max in bytes at `position` = t − K: C·(t − K)³ with C = 0.4 segments/s³ (RFC 9438 §4.2, figure
/// 1).
pub(super) fn height(position: Ticks, mss: u32) -> i64 {
    let ticks = u64::from(position.0.unsigned_abs());
    // Fixed point: the cube has 3·SHIFT fraction bits, of which SHIFT are kept. C in bytes/s³ has SHIFT fraction bits,
    // too. The product has 2·SHIFT, and is below 2⁵³ · 2³⁵.
    let cubed = (u128::from(ticks * ticks) * u128::from(ticks)) >> (2 * Ticks::SHIFT);
    let c = ((u64::from(mss) * 2) << Ticks::SHIFT) / 5;
    let height = (cubed * u128::from(c)) >> (2 * Ticks::SHIFT);
    let height = i64::try_from(height).unwrap_or(i64::MAX);
    if position.0 < 0 { -height } else { height }
}

/// Returns the inverse of [`height`]: the position at which the curve is `height` bytes above W_max. For cwnd − W_max
/// it is −K (RFC 9438 §4.2, figure 2).
pub(super) fn position(height: i64, mss: u32) -> Ticks {
    // At most 2³¹ bytes, so that the cube with 3·SHIFT fraction bits stays below 2⁹⁶.
    let bytes = u128::from(height.unsigned_abs().min(1 << 31));
    let cubed = ((bytes * 5) << (3 * Ticks::SHIFT - 1)) / u128::from(mss.max(1));
    let ticks = i32::try_from(cube_root(cubed)).unwrap_or(i32::MAX);
    Ticks(if height < 0 { -ticks } else { ticks })
}

/// Returns the integer cube root of `n`, at most 2⁹⁶. It is computed bit by bit, since it is needed only once per loss.
fn cube_root(n: u128) -> u32 {
    (0..u32::BITS).rev().fold(0, |root, bit| {
        let candidate = root | 1 << bit;
        let wide = u128::from(candidate);
        if wide * wide * wide <= n { candidate } else { root }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(seconds: f64) -> Ticks {
        Ticks((seconds * f64::from(1 << Ticks::SHIFT)) as i32)
    }

    #[test]
    fn curve_follows_rfc_9438_4_2() {
        for mss in [536, 1448, 8948] {
            for t in [-60.0, -4.2, -1.0, -0.05, 0.0, 0.01, 0.7, 3.3, 100.0, 1000.0] {
                let exact = 0.4 * f64::from(mss) * f64::powi(t, 3);
                let computed = height(seconds(t), mss) as f64;
                assert!((computed - exact).abs() <= 1.0 + exact.abs() * 1e-5, "{mss} {t}: {computed} for {exact}");
            }
        }
    }

    #[test]
    fn k_follows_rfc_9438_4_2() {
        for (segments, mss) in [(30, 1448), (3, 536), (100_000, 1448), (1000, 8948)] {
            let exact = (f64::from(segments) / 0.4).cbrt();
            let k = position(-i64::from(segments * mss), mss as u32);
            assert!((f64::from(-k.0) / f64::from(1 << Ticks::SHIFT) - exact).abs() < 1e-5, "{segments}: {k:?}");
        }
        assert_eq!(position(0, 1448), Ticks::ZERO);
    }

    #[test]
    fn second_has_two_to_the_twentieth_ticks() {
        assert_eq!(Ticks::from_duration(Duration::from_secs(3)), Ticks(3 << 20));
        assert_eq!(Ticks::from_duration(Duration::from_millis(500)), Ticks(1 << 19));
        assert_eq!(Ticks::from_duration(Duration::from_nanos(1_999_999_999)), Ticks((2 << 20) - 1));
        assert_eq!(Ticks::from_duration(Duration::MAX), Ticks(i32::MAX));
    }

    #[test]
    fn short_durations_add_up_exactly_across_wraps() {
        let start = Instant::from_nanos(4_095_900_000_123);
        let (mut now, mut sum) = (start, Ticks::ZERO);
        for _ in 0..1_000_000 {
            let next = now + Duration::from_nanos(1_234);
            sum = sum.plus(Stamp::new(next).since(Stamp::new(now)));
            now = next;
        }
        let exact = 1.234 * f64::from(1 << Ticks::SHIFT);
        assert!((f64::from(sum.0) - exact).abs() <= 1.0, "{sum:?} for {exact}");
    }

    proptest! {
        #[test]
        fn height_is_recovered_from_its_position(height in -(1i64 << 30)..1 << 30, mss in 1..65_536u32) {
            let again = super::height(position(height, mss), mss);
            prop_assert!((again - height).abs() <= 2 + height.abs() / 1000 + i64::from(mss) / 1000, "{}", again);
        }

        #[test]
        fn nothing_overflows(position: i32, height: i64, mss: u32) {
            super::height(Ticks(position), mss & 0xffff);
            super::position(height, mss);
        }

        #[test]
        fn cube_root_is_the_greatest_with_a_cube_not_above_the_operand(n in 0..1u128 << 94) {
            let root = u128::from(cube_root(n));
            prop_assert!(root.pow(3) <= n && (root + 1).pow(3) > n);
        }
    }
}
