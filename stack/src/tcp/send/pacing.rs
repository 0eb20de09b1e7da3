//! Pacing: the congestion window is spread over the round trip.
//!
//! Congestion control sets the rate ([`CongestionControl::pacing_rate`]). Data leaves in bursts of a few segments, or
//! of the amount that the rate yields in a few ticks of the timer wheel, whichever is more. Shorter intervals are below
//! the timer resolution, so that only the window limits them.

use crate::tcp::clock::wheel::TICK_SHIFT;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Connection;
use crate::tcp::tcb::Flags;
use crate::tcp::tcb::conn_buffers::Pace;
use linerate_bypass::Packet;
use linerate_service::time::{Duration, Instant};

const MIN_BURST_SEGMENTS: u32 = 4;
/// Duration of a burst at the pacing rate, in nanoseconds: four ticks, so that a delay of one tick is small in
/// relation.
const BURST_TIME: u64 = 4 << TICK_SHIFT;

/// Returns the duration of `bytes` at `rate` bytes per second; zero at `u64::MAX`.
fn time_of(bytes: u32, rate: u64) -> Duration {
    Duration::from_nanos(u64::from(bytes) * 1_000_000_000 / rate)
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Returns the bytes that may be sent now; zero before the next burst. `first`: this is the first call of the turn.
    #[inline(never)]
    pub(crate) fn paced_burst(&mut self, first: bool, now: Instant) -> u32 {
        let rate = self.pacing_rate();
        let burst = u32::try_from(rate.saturating_mul(BURST_TIME) / 1_000_000_000).unwrap_or(u32::MAX);
        let burst = burst.max(MIN_BURST_SEGMENTS * u32::from(self.tcb.mss));
        // Without an RTT measurement the rate is unlimited, and everything is sent.
        let time = time_of(burst, rate).max(Duration::from_nanos(1));
        if first {
            self.catch_up(time, now);
        }
        if self.is_due(time, now) { burst } else { 0 }
    }

    /// Moves the schedule after `bytes` were sent.
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

    /// Releases a burst of duration `burst` if its time has come. Unused time accumulates up to one burst. A burst that
    /// is late may be followed by as much data as the delay covers, up to another burst.
    fn catch_up(&mut self, burst: Duration, now: Instant) {
        let Some(buffers) = self.shared.buffers.of_mut(self.tcb) else { return };
        let pace = &mut buffers.pace;
        if self.tcb.outstanding() == 0 {
            // Without data in flight there is no round trip to spread it over.
            *pace = Pace { full: now, waits: false };
        } else if pace.full <= now {
            let late = if pace.waits { burst } else { Duration::ZERO };
            *pace = Pace { full: pace.full.max(now - late), waits: false };
        }
    }

    /// Returns whether data may be sent now. Otherwise arms the timer for the next burst.
    fn is_due(&mut self, burst: Duration, now: Instant) -> bool {
        let Some(buffers) = self.shared.buffers.of_mut(self.tcb) else { return true };
        let pace = &mut buffers.pace;
        pace.waits |= pace.full >= now + burst;
        if !pace.waits || self.tcb.flags.has_any(Flags::TLP | Flags::WINDOW_PROBE) {
            return true;
        }
        let full = pace.full;
        if self.tcb.unsent > 0 {
            // The window counts as the limit while pacing delays data.
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
