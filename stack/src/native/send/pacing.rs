//! Pacing: what the window has room for leaves over the round trip, and not all at once.
//!
//! How fast is up to congestion control ([`CongestionControl::pacing_rate`]). What leaves at a time is a burst of a few
//! segments, or as much as the rate makes in a few ticks of the wheel, whichever is more: below that no timer can spread
//! anything, and the window alone holds back.

use crate::congestion::CongestionControl;
use crate::native::connection::Connection;
use crate::native::tcb::Flags;
use crate::tcp::wheel::TICK_SHIFT;
use linerate_bypass::Packet;
use linerate_bypass::time::{Duration, Instant};

/// Segments in a burst at least.
const MIN_BURST_SEGMENTS: u32 = 4;
/// What the rate makes in so many nanoseconds is a burst: four ticks, so that one that comes a tick late is not late by much.
const BURST_TIME: u64 = 4 << TICK_SHIFT;

/// Where a connection is in its schedule.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Pace {
    /// When a whole burst may go: later by what was sent meanwhile.
    full: Instant,
    /// Nothing goes until then.
    waits: bool,
}

impl Pace {
    /// When a burst goes that waits for its time.
    pub fn waits_until(&self) -> Option<Instant> {
        self.waits.then_some(self.full)
    }
}

/// How long `bytes` take at `rate` bytes per second; at `u64::MAX`, no time.
fn time_of(bytes: u32, rate: u64) -> Duration {
    Duration::from_nanos(u64::from(bytes) * 1_000_000_000 / rate)
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// How many bytes may go now, `first` in this turn; zero if it is not time for any yet.
    #[inline(never)]
    pub(crate) fn paced_burst(&mut self, first: bool, now: Instant) -> u32 {
        let rate = self.pacing_rate();
        let burst = u32::try_from(rate.saturating_mul(BURST_TIME) / 1_000_000_000).unwrap_or(u32::MAX);
        let burst = burst.max(MIN_BURST_SEGMENTS * u32::from(self.tcb.mss));
        // At no rate, while no round trip has been measured, it takes no time: everything goes.
        let time = time_of(burst, rate).max(Duration::from_nanos(1));
        if first {
            self.catch_up(time, now);
        }
        if self.is_due(time, now) { burst } else { 0 }
    }

    /// So many bytes have gone.
    #[inline(never)]
    pub(crate) fn note_paced(&mut self, bytes: u32) {
        let time = time_of(bytes, self.pacing_rate());
        if let Some(buffers) = self.shared.buffers.of_mut(self.tcb) {
            buffers.pace.full += time;
        }
    }

    fn pacing_rate(&self) -> u64 {
        self.cold.control.pacing_rate(self.tcb.rtt.smoothed()).max(1)
    }

    /// Lets a burst go, which takes `burst` at the rate, if its time has come: none saves up more than one, except that one
    /// which comes late goes with what should have gone since, up to as much again.
    fn catch_up(&mut self, burst: Duration, now: Instant) {
        let Some(buffers) = self.shared.buffers.of_mut(self.tcb) else { return };
        let pace = &mut buffers.pace;
        if self.tcb.outstanding() == 0 {
            // There is no round trip to spread it over.
            *pace = Pace { full: now, waits: false };
        } else if pace.full <= now {
            let late = if pace.waits { burst } else { Duration::ZERO };
            *pace = Pace { full: pace.full.max(now - late), waits: false };
        }
    }

    /// Whether something may go now; if not, it does when the time for a burst has come.
    fn is_due(&mut self, burst: Duration, now: Instant) -> bool {
        let Some(buffers) = self.shared.buffers.of_mut(self.tcb) else { return true };
        let pace = &mut buffers.pace;
        pace.waits |= pace.full >= now + burst;
        if !pace.waits || self.tcb.flags.has_any(Flags::TLP | Flags::WINDOW_PROBE) {
            return true;
        }
        let full = pace.full;
        if self.tcb.unsent > 0 {
            // It is for the window's sake that it waits.
            buffers.flight.mark_window_limited();
        }
        self.arm_by(full);
        false
    }

    /// Sends the burst whose time has come.
    pub(crate) fn expire_pace(&mut self, now: Instant) {
        let next = self.shared.buffers.of(self.tcb).and_then(|buffers| buffers.pace.waits_until());
        match next {
            Some(next) if next > now => self.arm_by(next),
            Some(_) => self.schedule_tx(),
            None => {}
        }
    }
}
