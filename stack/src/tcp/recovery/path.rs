//! Path properties that persist while nothing is in flight.

use linerate_service::time::{Duration, Instant};

use super::Limits;
#[cfg(test)]
use super::rtt::nanos;
use super::rtt::{RttEstimator, TICK};

/// Unit of the minimum RTT in nanoseconds, as a power of two.
const RTT_SHIFT: u32 = 4;
/// Unit of the epoch number in nanoseconds, as a power of two: 4.3 s, so that 16 bits wrap after three days. A
/// connection that is silent for exactly that long keeps its old minimum for another minute.
const EPOCH_SHIFT: u32 = 32;
/// Length of one of the two epochs in which a minimum is taken: about a minute. Together they cover the last one to two
/// minutes.
const EPOCH: u16 = 14;
/// No minimum yet.
const UNKNOWN: u32 = u32::MAX;

/// Initial value of RACK.reo_wnd_persist after a reported duplicate: recoveries until the reordering window shrinks
/// again (RFC 8985 §6.2 step 4).
const PERSISTENCE: u8 = 16;
/// Maximum of RACK.reo_wnd_mult. SRTT limits the window in any case.
const FACTOR_LIMIT: u8 = 64;
/// Maximum number of doublings of the timeout: 64 s from a floor of one millisecond.
const BACKOFF_LIMIT: u8 = 16;

/// Unit of the acknowledgement delay in nanoseconds, as a power of two: the tick of the timer wheel.
const DELAY_SHIFT: u32 = 16;
/// Maximum acknowledgement delay (RFC 1122 §4.2.3.2). Longer delays have other causes.
const DELAY_LIMIT: u64 = 500_000_000;
/// Samples required before the measured acknowledgement delay is used.
///
/// Linux acknowledges up to 16 segments at once ("quick ACKs") before it delays. Twice that number covers both
/// behaviours.
const DELAY_SAMPLES: u16 = 32;
/// Maximum number of doublings of the required samples, one for each spurious timeout.
const DISTRUST_LIMIT: u8 = 5;

const REORDERING_SEEN: u8 = 1;
const DELAY_LEARNT: u8 = 2;
/// Unit of the spurious timeout count, in the upper bits.
const DISTRUST: u8 = 4;

/// Timeout in nanoseconds of data before the first RTT sample, after a retransmitted SYN (RFC 6298 §5.7).
const AFTER_LOST_SYN: u64 = 3_000_000_000;
/// Flag in `backoff`: a SYN was retransmitted.
const SYN_LOST: u8 = 0x80;

/// Rarely used path state of a connection, 20 bytes: minimum RTT, degree of reordering, the peer's acknowledgement
/// delay, and the back-off of the retransmission timer.
///
/// # Acknowledgement delay of the peer
///
/// The retransmission timeout has a floor because a receiver may delay an acknowledgement, by up to 200 ms in common
/// systems (500 ms in theory). Once the delay of a particular peer is known, the floor can follow it.
///
/// The delay is sampled when a **lone segment** (the only one in flight, sent once) is answered by a **pure
/// acknowledgement**. Only then does the receiver's timer alone decide when it is sent. With two segments in flight the
/// receiver must acknowledge at once (RFC 5681 §4.2), and an acknowledgement with data depends on the application. The
/// delay is the RTT less the minimum RTT of the path.
///
/// The maximum of the last 32 to 64 samples is the peer's delay. Fewer samples do not suffice, because receivers start
/// with a number of undelayed acknowledgements. A larger sample raises the maximum at once. The maximum falls only
/// after as many smaller samples.
///
/// The floor is twice that maximum, and at least [`Limits::learnt_floor`]. Until there are enough samples, it is
/// [`Limits::rto_floor`], or twice the measured delay if that is more.
///
/// An unnecessary tail loss probe for a lone segment shows that the peer's delay has increased: sampling restarts, and
/// the default floor applies in the meantime. A spurious timeout (RFC 3522, RFC 5682, or DSACK) shows that the learnt
/// delay was wrong: sampling restarts as well, and from then on requires twice as many samples.
#[derive(Debug, Clone)]
pub(crate) struct Path {
    /// Minimum of the current epoch and of the previous one, in units of 16 ns.
    minimum: u32,
    previous_minimum: u32,
    /// Start of the current epoch.
    epoch: u16,
    /// RACK.reo_wnd_mult.
    window_factor: u8,
    /// RACK.reo_wnd_persist.
    persistence: u8,
    /// Number of doublings of the timeout (RFC 6298 §5.5), and [`SYN_LOST`].
    backoff: u8,
    /// Flags, and the number of spurious timeouts since the connection was opened.
    flags: u8,
    /// Maximum delay among the current and among the previous samples, in ticks.
    delay: u16,
    previous_delay: u16,
    delay_samples: u16,
}

// Stored per connection, of which there may be a million.
const _: () = assert!(size_of::<Path>() <= 20);

impl Default for Path {
    fn default() -> Self {
        Path {
            minimum: UNKNOWN,
            previous_minimum: UNKNOWN,
            epoch: 0,
            window_factor: 1,
            persistence: PERSISTENCE,
            backoff: 0,
            flags: 0,
            delay: 0,
            previous_delay: 0,
            delay_samples: 0,
        }
    }
}

impl Path {
    /// Returns the minimum RTT of the last minutes (RACK.min_RTT, RFC 8985 §6.2 step 1).
    pub(crate) fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt_nanos().map(Duration::from_nanos)
    }

    /// Returns the retransmission timeout with this path and `rtt`, including back-off.
    pub(crate) fn rto(&self, rtt: &RttEstimator, limits: &Limits) -> Duration {
        Duration::from_nanos(effective_rto(rtt, self, limits))
    }

    pub(crate) fn min_rtt_nanos(&self) -> Option<u64> {
        let minimum = self.minimum.min(self.previous_minimum);
        (minimum != UNKNOWN).then(|| u64::from(minimum) << RTT_SHIFT)
    }

    /// Adds an RTT sample at `now`.
    #[cfg(test)]
    pub(crate) fn measured(&mut self, rtt: Duration, now: Instant) {
        self.measured_nanos(nanos(rtt), now);
    }

    pub(crate) fn measured_nanos(&mut self, rtt: u64, now: Instant) {
        let rtt = (rtt >> RTT_SHIFT).clamp(1, u64::from(UNKNOWN) - 1) as u32;
        let epoch = (now.as_nanos() >> EPOCH_SHIFT) as u16;
        if epoch.wrapping_sub(self.epoch) >= EPOCH {
            self.epoch = epoch;
            self.previous_minimum = self.minimum;
            self.minimum = rtt;
        } else {
            self.minimum = self.minimum.min(rtt);
        }
    }

    /// Returns whether the path reorders (RACK.reordering_seen).
    pub(crate) fn reordering_seen(&self) -> bool {
        self.flags & REORDERING_SEEN != 0
    }

    pub(crate) fn saw_reordering(&mut self) {
        self.flags |= REORDERING_SEEN;
    }

    /// Returns RACK.reo_wnd in nanoseconds for a path that reorders (RFC 8985 §6.2 step 4): min(reo_wnd_mult · min_RTT
    /// / 4, SRTT).
    pub(crate) fn reordering_window(&self, smoothed: u64) -> u64 {
        let minimum = self.min_rtt_nanos().unwrap_or(smoothed);
        (minimum.saturating_mul(u64::from(self.window_factor)) / 4).min(smoothed)
    }

    /// Widens the reordering window after a round trip with an unnecessary retransmission.
    pub(crate) fn widen_reordering_window(&mut self) {
        self.window_factor = (self.window_factor + 1).min(FACTOR_LIMIT);
        self.persistence = PERSISTENCE;
    }

    /// Updates the reordering window after a recovery: after sixteen without a duplicate it shrinks.
    pub(crate) fn recovered(&mut self) {
        self.persistence = self.persistence.saturating_sub(1);
        if self.persistence == 0 {
            self.window_factor = 1;
        }
    }

    /// Adds the RTT sample of a lone segment with a pure acknowledgement, in nanoseconds.
    pub(crate) fn sample_ack_delay(&mut self, rtt: u64) {
        let Some(minimum) = self.min_rtt_nanos() else { return };
        let delay = rtt.saturating_sub(minimum);
        if delay > DELAY_LIMIT {
            return;
        }
        self.delay = self.delay.max((delay >> DELAY_SHIFT) as u16);
        self.delay_samples += 1;
        if self.delay_samples >= DELAY_SAMPLES << (self.flags / DISTRUST) {
            self.flags |= DELAY_LEARNT;
            self.previous_delay = std::mem::take(&mut self.delay);
            self.delay_samples = 0;
        }
    }

    /// Raises the acknowledgement delay after a probe elicited the acknowledgement of a lone segment that had arrived,
    /// `rtt` nanoseconds after its transmission: the peer's delay is longer than that.
    pub(crate) fn raise_ack_delay(&mut self, rtt: u64) {
        let delay = rtt.saturating_sub(self.min_rtt_nanos().unwrap_or(0)).min(DELAY_LIMIT);
        self.delay = self.delay.max((delay >> DELAY_SHIFT) as u16);
        self.flags &= !DELAY_LEARNT;
        self.delay_samples = 0;
    }

    /// Discards the learnt acknowledgement delay after a spurious timeout.
    pub(crate) fn discard_learnt_delay(&mut self) {
        self.backoff = 0;
        if self.flags & DELAY_LEARNT != 0 {
            self.flags &= !DELAY_LEARNT;
            self.delay_samples = 0;
            if self.flags / DISTRUST < DISTRUST_LIMIT {
                self.flags += DISTRUST;
            }
        }
    }

    /// Returns the longest recent acknowledgement delay, and whether there are enough samples to use it.
    #[cfg(test)]
    pub(crate) fn acknowledgement_delay(&self) -> (Duration, bool) {
        (Duration::from_nanos(self.delay_nanos()), self.flags & DELAY_LEARNT != 0)
    }

    fn delay_nanos(&self) -> u64 {
        u64::from(self.delay.max(self.previous_delay)) << DELAY_SHIFT
    }

    /// Returns the floor of the retransmission timeout in nanoseconds.
    fn floor(&self, limits: &Limits) -> u64 {
        let floor = if self.flags & DELAY_LEARNT != 0 { limits.learnt_floor } else { limits.rto_floor };
        floor.max(2 * self.delay_nanos())
    }

    /// Records in `rtt` whether the path affects the timeout. To be called after every change of the path.
    pub(crate) fn update_consults_path(&self, rtt: &mut RttEstimator, limits: &Limits) {
        rtt.set_consults_path(self.backoff > 0 || self.floor(limits) != limits.rto_floor);
    }

    /// Doubles the timeout (RFC 6298 §5.5).
    pub(crate) fn back_off(&mut self) {
        if self.backoff & !SYN_LOST < BACKOFF_LIMIT {
            self.backoff += 1;
        }
    }

    /// Records a retransmitted SYN, after which there is no RTT sample.
    pub(crate) fn syn_was_lost(&mut self) {
        self.backoff |= SYN_LOST;
    }

    /// Returns the number of doublings of the timeout.
    pub(crate) fn backoff(&self) -> u8 {
        self.backoff
    }

    /// Ends the back-off after an RTT sample (RFC 6298 §5.7, Karn).
    pub(crate) fn clear_backoff(&mut self) {
        self.backoff = 0;
    }
}

/// Returns the retransmission timeout in nanoseconds, including floor, back-off and maximum (RFC 6298 §2.4, §2.5,
/// §5.5).
#[inline(always)]
pub(crate) fn effective_rto(rtt: &RttEstimator, path: &Path, limits: &Limits) -> u64 {
    let rto = if rtt.consults_path() {
        let unknown = path.backoff & SYN_LOST != 0 && !rtt.has_sample();
        let first = if unknown { AFTER_LOST_SYN } else { rtt.rto_nanos(path.floor(limits)) };
        // The timeout is below 2^37, and the back-off at most 2^16.
        first.min(limits.max_rto) << (path.backoff & !SYN_LOST)
    } else {
        rtt.rto_nanos(limits.rto_floor)
    };
    rto.min(limits.max_rto)
}

/// Returns the assumed maximum delay of the acknowledgement of a lone segment in nanoseconds (TLP.max_ack_delay, RFC
/// 8985 §7.2): the learnt delay and a quarter of it, or the floor of the timeout, which represents the same delay.
pub(crate) fn delay_allowed(rtt: &RttEstimator, path: &Path, limits: &Limits) -> u64 {
    if rtt.consults_path() && path.flags & DELAY_LEARNT != 0 {
        let delay = path.delay_nanos();
        return delay + delay / 4 + TICK.as_nanos() as u64;
    }
    limits.rto_floor
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MS_NANOS: u64 = 1_000_000;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn measured_path(rtt: Duration) -> (Path, RttEstimator) {
        let (mut path, mut estimator) = (Path::default(), RttEstimator::default());
        for _ in 0..100 {
            estimator.sample(rtt);
        }
        path.measured(rtt, at(1));
        (path, estimator)
    }

    #[test]
    fn min_rtt_forgets_an_old_path() {
        // RFC 8985 §6.2 step 1: windowed, "that can adapt when migrating to significantly longer paths".
        let mut path = Path::default();
        assert_eq!(path.min_rtt(), None);
        path.measured(10 * MS, at(0));
        path.measured(12 * MS, at(5));
        assert_eq!(path.min_rtt(), Some(10 * MS));
        // A sample of one minute ago still counts.
        path.measured(50 * MS, at(61));
        assert_eq!(path.min_rtt(), Some(10 * MS));
        // A sample of two minutes ago does not count.
        for second in 62..130 {
            path.measured(50 * MS, at(second));
        }
        assert_eq!(path.min_rtt(), Some(50 * MS));
    }

    #[test]
    fn reordering_window_grows_by_a_quarter_of_min_rtt_up_to_srtt() {
        // RFC 8985 §6.2 step 4.
        let mut path = Path::default();
        path.measured(20 * MS, at(0));
        assert_eq!(path.reordering_window(30 * MS_NANOS), 5 * MS_NANOS);
        path.widen_reordering_window();
        assert_eq!(path.reordering_window(30 * MS_NANOS), 10 * MS_NANOS);
        for _ in 0..300 {
            path.widen_reordering_window();
        }
        assert_eq!(path.reordering_window(30 * MS_NANOS), 30 * MS_NANOS);
        for _ in 0..15 {
            path.recovered();
        }
        assert_eq!(path.reordering_window(30 * MS_NANOS), 30 * MS_NANOS);
        path.recovered();
        assert_eq!(path.reordering_window(30 * MS_NANOS), 5 * MS_NANOS);
    }

    #[test]
    fn peer_without_ack_delay_gets_the_learnt_floor() {
        let limits = Limits::default();
        let (mut path, mut rtt) = measured_path(MS);
        for _ in 0..31 {
            path.sample_ack_delay(MS_NANOS + 20_000);
        }
        path.update_consults_path(&mut rtt, &limits);
        assert!(!rtt.consults_path());
        assert!(effective_rto(&rtt, &path, &limits) > 200 * MS_NANOS);
        path.sample_ack_delay(MS_NANOS);
        path.update_consults_path(&mut rtt, &limits);
        let rto = effective_rto(&rtt, &path, &limits);
        assert!((6 * MS_NANOS..7 * MS_NANOS).contains(&rto), "{rto}");
    }

    #[test]
    fn floor_is_twice_the_ack_delay() {
        let limits = Limits::default();
        let (mut path, mut rtt) = measured_path(MS);
        for i in 0..32 {
            path.sample_ack_delay(if i < 16 { MS_NANOS } else { 41 * MS_NANOS });
        }
        path.update_consults_path(&mut rtt, &limits);
        let rto = effective_rto(&rtt, &path, &limits);
        assert!((80 * MS_NANOS..82 * MS_NANOS).contains(&rto), "{rto}");
        // A longer delay counts at once.
        path.sample_ack_delay(101 * MS_NANOS);
        assert!(effective_rto(&rtt, &path, &limits) > 200 * MS_NANOS);
        // The longer delay is forgotten after enough samples without it. A delay beyond the permitted maximum is
        // ignored.
        for _ in 0..64 {
            path.sample_ack_delay(41 * MS_NANOS);
        }
        path.sample_ack_delay(5_000 * MS_NANOS);
        assert!(effective_rto(&rtt, &path, &limits) < 82 * MS_NANOS);
    }

    #[test]
    fn spurious_timeout_discards_delay_and_doubles_samples() {
        let limits = Limits::default();
        let (mut path, mut rtt) = measured_path(MS);
        for _ in 0..32 {
            path.sample_ack_delay(MS_NANOS);
        }
        path.back_off();
        path.update_consults_path(&mut rtt, &limits);
        assert!(effective_rto(&rtt, &path, &limits) >= 12 * MS_NANOS);
        path.discard_learnt_delay();
        path.update_consults_path(&mut rtt, &limits);
        assert_eq!(path.acknowledgement_delay(), (Duration::ZERO, false));
        assert!(effective_rto(&rtt, &path, &limits) > 200 * MS_NANOS);
        for _ in 0..63 {
            path.sample_ack_delay(MS_NANOS);
        }
        assert!(!path.acknowledgement_delay().1);
        path.sample_ack_delay(MS_NANOS);
        assert!(path.acknowledgement_delay().1);
        // At most five doublings. Other path properties are unaffected.
        for _ in 0..10 {
            for _ in 0..1024 {
                path.sample_ack_delay(MS_NANOS);
            }
            assert!(path.acknowledgement_delay().1 && !path.reordering_seen());
            path.discard_learnt_delay();
        }
    }

    #[test]
    fn rto_doubles_up_to_the_maximum() {
        // RFC 6298 §5.5, §2.5.
        let limits = Limits::default();
        let (mut path, mut rtt) = measured_path(100 * MS);
        let base = effective_rto(&rtt, &path, &limits);
        for doubled in 1..60u32 {
            path.back_off();
            path.update_consults_path(&mut rtt, &limits);
            let expected = base.checked_shl(doubled).unwrap_or(u64::MAX).min(60_000 * MS_NANOS);
            if doubled < 12 {
                assert_eq!(effective_rto(&rtt, &path, &limits), expected);
            }
        }
        assert_eq!(effective_rto(&rtt, &path, &limits), 60_000 * MS_NANOS);
    }
}
