//! Persist timer: probes of a zero window (RFC 9293 §3.8.6.1).

use crate::tcp::clock::tick::Tick;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Connection;
use crate::tcp::tcb::Flags;
use crate::tcp::tcb::cold::EndReason;
use linerate_bypass::Packet;
use linerate_service::time::{Duration, Instant};

/// Maximum interval of zero-window probes (RFC 9293 §3.8.6.1 leaves it to the implementation).
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Longest time for which TCP_CORK withholds data (tcp(7)).
const MAX_CORKED: Duration = Duration::from_millis(200);

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Sends a zero-window probe, or probes a window too small to be used (RFC 9293 §3.8.6.1, §3.8.6.2.1).
    pub(super) fn probe_window(&mut self, now: Instant) {
        let tcb = &mut *self.tcb;
        // RFC 9293 §3.8.6.1, MUST-37: the connection stays open as long as the peer responds.
        if let Some(buffers) = self.shared.buffers.of_mut(tcb) {
            if buffers.stalled == Instant::ZERO {
                buffers.stalled = now;
            } else if now.since(buffers.stalled) >= self.shared.user_timeout(self.slot) {
                return self.end(EndReason::TimedOut);
            }
        }
        tcb.flags |= Flags::WINDOW_PROBE;
        tcb.attempts = tcb.attempts.saturating_add(1);
        self.arm_persist(now);
        self.schedule_tx();
    }

    /// Withholds segments that are not full, until the persist timer expires, or sends them.
    pub(crate) fn set_corked(&mut self, corked: bool) {
        let tcb = &mut *self.tcb;
        if corked {
            tcb.flags |= Flags::CORKED;
        } else if tcb.flags.take(Flags::CORKED) {
            if tcb.flags.take(Flags::PERSIST) && tcb.outstanding() == 0 {
                tcb.retransmit_at = Tick::NONE;
            }
            self.schedule_tx();
        }
    }

    /// Arms the timer for the next zero-window probe, or for the end of a wait for more data. The interval of probes
    /// doubles each time.
    pub(crate) fn arm_persist(&mut self, now: Instant) {
        let tcb = &mut *self.tcb;
        tcb.flags |= Flags::PERSIST;
        let rto = tcb.rtt.rto(self.shared.settings.rto_floor);
        let first = if tcb.flags.has(Flags::CORKED) { MAX_CORKED } else { rto };
        let wait = first.saturating_mul(1 << tcb.attempts.min(10)).min(MAX_PROBE_INTERVAL);
        tcb.retransmit_at = Tick::at_or_after(now + wait);
        self.arm();
    }
}
