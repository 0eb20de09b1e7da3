//! RTT estimator and retransmission timeout (RFC 6298).

use linerate_service::time::Duration;

/// Clock granularity of retransmission timers, "G" of RFC 6298 §2: one tick of the timer wheel.
pub(crate) const TICK: Duration = Duration::from_nanos(1 << 16);
/// Timeout before the first RTT sample (RFC 6298 §2.1).
pub(crate) const INITIAL_RTO: Duration = Duration::from_secs(1);

/// Unit of the estimator in nanoseconds, as a power of two: 16 ns, so that 32 bits reach 68 s.
const UNIT_SHIFT: u32 = 4;
/// Bit of `variation` that holds a flag.
const CONSULT_PATH: u32 = 1 << 31;
/// Maximum of both means: 34 s.
const LIMIT: u32 = CONSULT_PATH - 1;

/// Returns a duration in nanoseconds, limited to about 146 years.
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX >> 2)
}

/// SRTT and RTTVAR in eight bytes, part of the frequently used state of a connection.
///
/// One bit records whether [`Path`](super::Path) affects the timeout (by back-off or a learnt floor), so that arming a
/// timer usually does not access that rarely used state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RttEstimator {
    /// SRTT in units of 16 ns; zero before the first sample.
    smoothed: u32,
    /// RTTVAR in units of 16 ns, and `CONSULT_PATH`.
    variation: u32,
}

impl RttEstimator {
    #[inline]
    pub(crate) fn has_sample(&self) -> bool {
        self.smoothed != 0
    }

    /// Returns SRTT; zero before the first sample.
    #[inline]
    pub(crate) fn smoothed(&self) -> Duration {
        Duration::from_nanos(self.smoothed_nanos())
    }

    /// Returns SRTT in nanoseconds.
    #[inline]
    pub(crate) fn smoothed_nanos(&self) -> u64 {
        u64::from(self.smoothed) << UNIT_SHIFT
    }

    /// Returns whether `rtt`, in nanoseconds, is shorter than SRTT by more than an eighth, or the first sample.
    #[inline]
    pub(crate) fn is_much_longer_than(&self, rtt: u64) -> bool {
        let smoothed = self.smoothed_nanos();
        rtt < smoothed - smoothed / 8 || smoothed == 0
    }

    /// Returns RTTVAR.
    pub(crate) fn variation(&self) -> Duration {
        Duration::from_nanos(self.variation_nanos())
    }

    #[inline]
    pub(crate) fn variation_nanos(&self) -> u64 {
        u64::from(self.variation & LIMIT) << UNIT_SHIFT
    }

    /// Adds a sample, at most one per round trip.
    #[cfg(test)]
    pub(crate) fn sample(&mut self, rtt: Duration) {
        self.sample_nanos(nanos(rtt), 0);
    }

    /// Adds one of about 2^`spread_shift` samples of a round trip.
    ///
    /// RFC 6298 §2.3 assumes one sample per round trip. With a sample per acknowledgement the gains are divided by the
    /// number of samples, so that the means cover as many round trips as before (RFC 7323 appendix G).
    #[inline(always)]
    pub(crate) fn sample_nanos(&mut self, rtt: u64, spread_shift: u32) {
        // No value exceeds LIMIT, so that all differences fit into 32 bits with their sign.
        let rtt = (rtt >> UNIT_SHIFT).clamp(1, u64::from(LIMIT)) as i32;
        let consult = self.variation & CONSULT_PATH;
        if self.smoothed == 0 {
            // RFC 6298 §2.2.
            self.smoothed = rtt as u32;
            self.variation = (rtt / 2) as u32 | consult;
            return;
        }
        // RFC 6298 §2.3: RTTVAR first, with the old SRTT. Both gains are at most one, so neither mean leaves its range,
        // and SRTT does not become zero. Rounding down reduces each by less than 2^`spread_shift` · 128 ns.
        let smoothed = self.smoothed as i32;
        let variation = (self.variation & LIMIT) as i32;
        let error = rtt - smoothed;
        self.variation = (variation + ((error.abs() - variation) >> (2 + spread_shift))) as u32 | consult;
        self.smoothed = (smoothed + (error >> (3 + spread_shift))) as u32;
    }

    /// Returns [`rto`](Self::rto) in nanoseconds, for a floor in nanoseconds.
    #[inline(always)]
    pub(crate) fn rto_nanos(&self, floor: u64) -> u64 {
        if !self.has_sample() {
            return INITIAL_RTO.as_nanos() as u64;
        }
        self.smoothed_nanos() + (4 * self.variation_nanos()).max(TICK.as_nanos() as u64).max(floor)
    }

    /// Returns the retransmission timeout without back-off: SRTT + max(G, 4·RTTVAR, `floor`), or [`INITIAL_RTO`] before
    /// the first sample.
    ///
    /// RFC 6298 §2.4 specifies max(`floor`, SRTT + …). Here the floor represents the acknowledgement delay of the
    /// receiver, which is added to the RTT: by the RFC's formula an RTT just below the floor would leave no room for
    /// it.
    #[inline]
    pub(crate) fn rto(&self, floor: Duration) -> Duration {
        Duration::from_nanos(self.rto_nanos(nanos(floor)))
    }

    /// Returns whether [`Path`](super::Path) affects the timeout.
    #[inline]
    pub(crate) fn consults_path(&self) -> bool {
        self.variation & CONSULT_PATH != 0
    }

    /// Records whether [`Path`](super::Path) affects the timeout.
    #[inline]
    pub(crate) fn set_consults_path(&mut self, consult: bool) {
        self.variation = self.variation & LIMIT | if consult { CONSULT_PATH } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn estimator_fits_into_eight_bytes() {
        assert_eq!(size_of::<RttEstimator>(), 8);
    }

    #[test]
    fn first_sample_sets_both_means() {
        // RFC 6298 §2.2.
        let mut rtt = RttEstimator::default();
        assert_eq!((rtt.has_sample(), rtt.rto(200 * MS)), (false, INITIAL_RTO));
        rtt.sample(100 * MS);
        assert_eq!((rtt.smoothed(), rtt.variation()), (100 * MS, 50 * MS));
        assert_eq!(rtt.rto(5 * MS), 300 * MS);
    }

    #[test]
    fn later_samples_move_the_means_by_an_eighth_and_a_quarter() {
        // RFC 6298 §2.3.
        let mut rtt = RttEstimator::default();
        rtt.sample(100 * MS);
        rtt.sample(180 * MS);
        assert_eq!((rtt.smoothed(), rtt.variation()), (110 * MS, Duration::from_micros(57_500)));
    }

    #[test]
    fn rto_floor_is_added_to_srtt() {
        let mut rtt = RttEstimator::default();
        for _ in 0..200 {
            rtt.sample(190 * MS);
        }
        let rto = rtt.rto(200 * MS);
        assert!(rto >= 389 * MS && rto <= 391 * MS, "{rto:?}");
        // RFC 6298 §2.3: a variation of zero counts as G.
        let rto = rtt.rto(Duration::ZERO);
        assert!(rto > 189 * MS + TICK && rto < 191 * MS, "{rto:?}");
    }

    #[test]
    fn many_samples_of_one_round_trip_weigh_as_one() {
        // RFC 7323 appendix G.
        let (mut one, mut many) = (RttEstimator::default(), RttEstimator::default());
        one.sample(100 * MS);
        many.sample(100 * MS);
        one.sample(140 * MS);
        for _ in 0..8 {
            many.sample_nanos(140_000_000, 3);
        }
        let difference = one.smoothed().abs_diff(many.smoothed());
        assert!(difference < MS, "{difference:?}");
    }

    #[test]
    fn extreme_samples_stay_within_the_range() {
        let mut rtt = RttEstimator::default();
        rtt.sample(Duration::MAX);
        rtt.sample(Duration::ZERO);
        rtt.set_consults_path(true);
        rtt.sample(Duration::MAX);
        assert!(rtt.consults_path() && rtt.smoothed() <= Duration::from_secs(35));
        rtt.set_consults_path(false);
        assert!(!rtt.consults_path());
    }

    #[test]
    fn nanoseconds_do_not_overflow_in_a_sum_of_four() {
        assert_eq!(nanos(Duration::MAX), u64::MAX >> 2);
        assert_eq!(nanos(Duration::from_secs(100)), 100_000_000_000);
    }
}
