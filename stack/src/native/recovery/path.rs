//! What is known of the path and the peer while nothing is in flight.

use linerate_bypass::time::{Duration, Instant};

use super::Limits;
#[cfg(test)]
use super::rtt::nanos;
use super::rtt::{RttEstimator, TICK};

/// Nanoseconds per unit of the minimum round-trip time, as a power of two.
const RTT_SHIFT: u32 = 4;
/// Nanoseconds per unit of the epochs in which the minimum is taken, as a power of two: 4.3 s, so that 16 bits wrap after
/// three days. A connection that was silent for just so long keeps its old minimum for another minute.
const EPOCH_SHIFT: u32 = 32;
/// How long one of the two minima is gathered: about a minute. Their minimum covers the last one to two minutes.
const EPOCH: u16 = 14;
/// No minimum yet.
const UNKNOWN: u32 = u32::MAX;

/// RACK.reo_wnd_persist after a duplicate was reported: recoveries until the window shrinks again (RFC 8985 §6.2 step 4).
const PERSISTENCE: u8 = 16;
/// The largest RACK.reo_wnd_mult; the window is limited to SRTT anyway.
const FACTOR_LIMIT: u8 = 64;
/// The most that the time-out is doubled: 64 s from any floor of a millisecond.
const BACKOFF_LIMIT: u8 = 16;

/// Nanoseconds per unit of the acknowledgement delay, as a power of two: the timer's tick.
const DELAY_SHIFT: u32 = 16;
/// No receiver may delay an acknowledgement longer (RFC 1122 §4.2.3.2): what took longer was something else.
const DELAY_LIMIT: u64 = 500_000_000;
/// How many acknowledgements must have been measured before what they say of the peer's delay is believed.
///
/// Linux acknowledges up to 16 segments at once ("quick ACKs") before it begins to delay; twice that has seen both.
const DELAY_SAMPLES: u16 = 32;
/// The number doubles with each spurious time-out, at most this often.
const DISTRUST_LIMIT: u8 = 5;

const REORDERING_SEEN: u8 = 1;
const DELAY_LEARNT: u8 = 2;
/// One spurious time-out, in the bits above.
const DISTRUST: u8 = 4;

/// The time-out of data before any round trip was measured, when a SYN had to be sent again, in nanoseconds (RFC 6298 §5.7).
const AFTER_LOST_SYN: u64 = 3_000_000_000;
/// Beside the number of doublings: a SYN had to be sent again.
const SYN_LOST: u8 = 0x80;

/// Per connection, cold, 20 bytes: the minimum round-trip time, how much the path reorders, how long the peer holds
/// acknowledgements back, and the back-off of the retransmission timer.
///
/// # The peer's acknowledgement delay
///
/// The floor of the retransmission time-out exists because a receiver may hold an acknowledgement back, by up to 200 ms
/// in common systems (and 500 ms in theory). Once it is known how long *this* peer does, the floor can follow it.
///
/// What can be measured: a **lone segment** (the only thing in flight, sent once) answered by a **pure acknowledgement**.
/// Only then nothing but the receiver's timer decides when it is sent: with two segments in flight the receiver must
/// acknowledge at once (RFC 5681 §4.2), and an acknowledgement that carries data came when the application answered. The
/// delay is what the round trip took beyond the minimum of the path.
///
/// What can be concluded: the maximum of the last 32 to 64 such measurements is the peer's delay. Fewer do not
/// suffice, since receivers begin with a number of acknowledgements that they do not delay. A single larger measurement
/// raises the maximum at once; it falls only when as many measurements have passed without one.
///
/// The floor is then twice that maximum, and no less than [`Limits::learnt_floor`]. Until then it is
/// [`Limits::rto_floor`], or twice what has been measured if that is more.
///
/// A tail loss probe for a lone segment that proves needless shows that the peer has begun to delay for longer: measuring
/// begins anew, and until it is done the ordinary floor holds. A time-out that proves spurious (RFC 3522, RFC 5682, or by
/// D-SACK) shows that the conclusion was wrong: the same, and twice as many measurements are needed from then on.
#[derive(Debug, Clone)]
pub(crate) struct Path {
    /// The minimum of the present epoch and of the one before, in units of 16 ns.
    minimum: u32,
    previous_minimum: u32,
    /// When the present epoch began.
    epoch: u16,
    /// RACK.reo_wnd_mult.
    window_factor: u8,
    /// RACK.reo_wnd_persist.
    persistence: u8,
    /// How often the time-out has been doubled (RFC 6298 §5.5), and [`SYN_LOST`].
    backoff: u8,
    /// What has been seen, and the number of spurious time-outs since the connection began.
    flags: u8,
    /// The longest delay of the measurements being gathered, and of those gathered before, in ticks.
    delay: u16,
    previous_delay: u16,
    /// Measurements gathered.
    delay_samples: u16,
}

// Each of a million connections has one.
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
    /// The smallest round-trip time of the last minutes (RACK.min_RTT, RFC 8985 §6.2 step 1).
    pub(crate) fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt_nanos().map(Duration::from_nanos)
    }

    /// The retransmission time-out of a connection with this path and this `rtt`, back-off included.
    pub(crate) fn time_out(&self, rtt: &RttEstimator, limits: &Limits) -> Duration {
        Duration::from_nanos(time_out(rtt, self, limits))
    }

    pub(crate) fn min_rtt_nanos(&self) -> Option<u64> {
        let minimum = self.minimum.min(self.previous_minimum);
        (minimum != UNKNOWN).then(|| u64::from(minimum) << RTT_SHIFT)
    }

    /// Takes in a round trip measured at `now`: the handshake's, for instance. Flights do it themselves.
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

    /// Whether the path has been seen to reorder (RACK.reordering_seen).
    pub(crate) fn reordering_seen(&self) -> bool {
        self.flags & REORDERING_SEEN != 0
    }

    /// The path has reordered.
    pub(crate) fn saw_reordering(&mut self) {
        self.flags |= REORDERING_SEEN;
    }

    /// RACK.reo_wnd once the exceptions for paths that do not reorder are out of the way, in nanoseconds
    /// (RFC 8985 §6.2 step 4): min(reo_wnd_mult · min_RTT / 4, SRTT).
    pub(crate) fn reordering_window(&self, smoothed: u64) -> u64 {
        let minimum = self.min_rtt_nanos().unwrap_or(smoothed);
        (minimum.saturating_mul(u64::from(self.window_factor)) / 4).min(smoothed)
    }

    /// A round in which a retransmission proved unnecessary: the reordering window was too small.
    pub(crate) fn widen_reordering_window(&mut self) {
        self.window_factor = (self.window_factor + 1).min(FACTOR_LIMIT);
        self.persistence = PERSISTENCE;
    }

    /// A fast or time-out recovery is over: after sixteen without a duplicate the reordering window shrinks again.
    pub(crate) fn recovered(&mut self) {
        self.persistence = self.persistence.saturating_sub(1);
        if self.persistence == 0 {
            self.window_factor = 1;
        }
    }

    /// Takes in how long a lone segment waited for its pure acknowledgement, in nanoseconds.
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

    /// A lone segment's acknowledgement came only when a probe asked for it, `rtt` nanoseconds after the segment, which had
    /// arrived: the peer holds acknowledgements back for longer than that.
    pub(crate) fn raise_ack_delay(&mut self, rtt: u64) {
        let delay = rtt.saturating_sub(self.min_rtt_nanos().unwrap_or(0)).min(DELAY_LIMIT);
        self.delay = self.delay.max((delay >> DELAY_SHIFT) as u16);
        self.flags &= !DELAY_LEARNT;
        self.delay_samples = 0;
    }

    /// A time-out was spurious: what was learnt of the peer's acknowledgement delay was wrong.
    pub(crate) fn time_out_was_spurious(&mut self) {
        self.backoff = 0;
        if self.flags & DELAY_LEARNT != 0 {
            self.flags &= !DELAY_LEARNT;
            self.delay_samples = 0;
            if self.flags / DISTRUST < DISTRUST_LIMIT {
                self.flags += DISTRUST;
            }
        }
    }

    /// The longest acknowledgement delay measured lately, and whether there are enough measurements to rely on it.
    #[cfg(test)]
    pub(crate) fn acknowledgement_delay(&self) -> (Duration, bool) {
        (Duration::from_nanos(self.delay_nanos()), self.flags & DELAY_LEARNT != 0)
    }

    fn delay_nanos(&self) -> u64 {
        u64::from(self.delay.max(self.previous_delay)) << DELAY_SHIFT
    }

    /// The floor of the retransmission time-out, in nanoseconds.
    fn floor(&self, limits: &Limits) -> u64 {
        let floor = if self.flags & DELAY_LEARNT != 0 { limits.learnt_floor } else { limits.rto_floor };
        floor.max(2 * self.delay_nanos())
    }

    /// Notes in `rtt` whether this has anything to add to the time-out: to be called whenever that may have changed.
    pub(crate) fn advise(&self, rtt: &mut RttEstimator, limits: &Limits) {
        rtt.set_consults_path(self.backoff > 0 || self.floor(limits) != limits.rto_floor);
    }

    /// The time-out is doubled (RFC 6298 §5.5).
    pub(crate) fn back_off(&mut self) {
        if self.backoff & !SYN_LOST < BACKOFF_LIMIT {
            self.backoff += 1;
        }
    }

    /// A SYN had to be sent again, so that no round trip could be measured.
    pub(crate) fn syn_was_lost(&mut self) {
        self.backoff |= SYN_LOST;
    }

    /// How often the time-out has been doubled.
    pub(crate) fn backoff(&self) -> u8 {
        self.backoff
    }

    /// A round trip was measured since the time-out: no doubling any more (RFC 6298 §5.7, Karn).
    pub(crate) fn clear_backoff(&mut self) {
        self.backoff = 0;
    }
}

/// The retransmission time-out in nanoseconds: floor, back-off and ceiling included (RFC 6298 §2.4, §2.5, §5.5).
#[inline(always)]
pub(crate) fn time_out(rtt: &RttEstimator, path: &Path, limits: &Limits) -> u64 {
    let rto = if rtt.consults_path() {
        let unknown = path.backoff & SYN_LOST != 0 && !rtt.has_sample();
        let first = if unknown { AFTER_LOST_SYN } else { rtt.rto_nanos(path.floor(limits)) };
        // It is below 2^37, the back-off at most 2^16.
        first.min(limits.max_rto) << (path.backoff & !SYN_LOST)
    } else {
        rtt.rto_nanos(limits.rto_floor)
    };
    rto.min(limits.max_rto)
}

/// How long a peer may hold back the acknowledgement of a lone segment, in nanoseconds (TLP.max_ack_delay,
/// RFC 8985 §7.2): what was learnt and a quarter of it, or the floor of the time-out, which stands for the same.
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
    fn the_minimum_forgets_a_path_that_is_gone() {
        // RFC 8985 §6.2 step 1: windowed, "that can adapt when migrating to significantly longer paths".
        let mut path = Path::default();
        assert_eq!(path.min_rtt(), None);
        path.measured(10 * MS, at(0));
        path.measured(12 * MS, at(5));
        assert_eq!(path.min_rtt(), Some(10 * MS));
        // What was measured a minute ago still counts, ...
        path.measured(50 * MS, at(61));
        assert_eq!(path.min_rtt(), Some(10 * MS));
        // ... what was measured two minutes ago does not.
        for second in 62..130 {
            path.measured(50 * MS, at(second));
        }
        assert_eq!(path.min_rtt(), Some(50 * MS));
    }

    #[test]
    fn the_reordering_window_grows_by_a_quarter_of_the_minimum_and_never_beyond_the_smoothed_round_trip() {
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
    fn a_peer_that_never_delays_gets_the_low_floor_after_enough_samples() {
        let limits = Limits::default();
        let (mut path, mut rtt) = measured_path(MS);
        for _ in 0..31 {
            path.sample_ack_delay(MS_NANOS + 20_000);
        }
        path.advise(&mut rtt, &limits);
        assert!(!rtt.consults_path());
        assert!(time_out(&rtt, &path, &limits) > 200 * MS_NANOS);
        path.sample_ack_delay(MS_NANOS);
        path.advise(&mut rtt, &limits);
        let rto = time_out(&rtt, &path, &limits);
        assert!((6 * MS_NANOS..7 * MS_NANOS).contains(&rto), "{rto}");
    }

    #[test]
    fn a_delaying_peer_gets_twice_its_delay() {
        let limits = Limits::default();
        let (mut path, mut rtt) = measured_path(MS);
        for i in 0..32 {
            path.sample_ack_delay(if i < 16 { MS_NANOS } else { 41 * MS_NANOS });
        }
        path.advise(&mut rtt, &limits);
        let rto = time_out(&rtt, &path, &limits);
        assert!((80 * MS_NANOS..82 * MS_NANOS).contains(&rto), "{rto}");
        // A longer delay counts at once, ...
        path.sample_ack_delay(101 * MS_NANOS);
        assert!(time_out(&rtt, &path, &limits) > 200 * MS_NANOS);
        // ... and is forgotten when enough samples have passed without it; what no receiver may do is no delay.
        for _ in 0..64 {
            path.sample_ack_delay(41 * MS_NANOS);
        }
        path.sample_ack_delay(5_000 * MS_NANOS);
        assert!(time_out(&rtt, &path, &limits) < 82 * MS_NANOS);
    }

    #[test]
    fn a_spurious_time_out_unlearns_the_delay_and_doubles_the_samples_needed() {
        let limits = Limits::default();
        let (mut path, mut rtt) = measured_path(MS);
        for _ in 0..32 {
            path.sample_ack_delay(MS_NANOS);
        }
        path.back_off();
        path.advise(&mut rtt, &limits);
        assert!(time_out(&rtt, &path, &limits) >= 12 * MS_NANOS);
        path.time_out_was_spurious();
        path.advise(&mut rtt, &limits);
        assert_eq!(path.acknowledgement_delay(), (Duration::ZERO, false));
        assert!(time_out(&rtt, &path, &limits) > 200 * MS_NANOS);
        for _ in 0..63 {
            path.sample_ack_delay(MS_NANOS);
        }
        assert!(!path.acknowledgement_delay().1);
        path.sample_ack_delay(MS_NANOS);
        assert!(path.acknowledgement_delay().1);
        // Five times at most; what else is known of the path is not touched.
        for _ in 0..10 {
            for _ in 0..1024 {
                path.sample_ack_delay(MS_NANOS);
            }
            assert!(path.acknowledgement_delay().1 && !path.reordering_seen());
            path.time_out_was_spurious();
        }
    }

    #[test]
    fn the_time_out_doubles_up_to_the_ceiling() {
        // RFC 6298 §5.5, §2.5.
        let limits = Limits::default();
        let (mut path, mut rtt) = measured_path(100 * MS);
        let base = time_out(&rtt, &path, &limits);
        for doubled in 1..60u32 {
            path.back_off();
            path.advise(&mut rtt, &limits);
            let expected = base.checked_shl(doubled).unwrap_or(u64::MAX).min(60_000 * MS_NANOS);
            if doubled < 12 {
                assert_eq!(time_out(&rtt, &path, &limits), expected);
            }
        }
        assert_eq!(time_out(&rtt, &path, &limits), 60_000 * MS_NANOS);
    }
}
