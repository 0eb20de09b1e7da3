//! Timers of inactive connections: keepalive (RFC 9293 §3.8.4), FIN-WAIT-2 timeout and idle timeout.
//!
//! The fast paths record nothing for these timers. An expired timer determines the time of the last activity: from the
//! time at which the buffers were detached, or by comparing sequence numbers with the values at its last check.

use crate::tcp::clock::tick::Tick;
use crate::tcp::clock::timestamps::timestamp_clock;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Connection;
use crate::tcp::connection::settings::within_reach;
use crate::tcp::tcb::cold::EndReason;
use crate::tcp::tcb::{Flags, State};
use linerate_bypass::Packet;
use linerate_service::Keepalive;
use linerate_service::time::{Duration, Instant};

/// Checks within one idle timeout of a connection with buffers, for which the time of the last activity is not
/// recorded.
const CHECKS_PER_TIMEOUT: u64 = 4;

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Arms the inactivity timers of a connection that was just established.
    #[inline(never)]
    pub(crate) fn start_inactivity_timers(&mut self, now: Instant) {
        self.arm_keepalive(now);
        if let Some(timeout) = self.shared.settings.idle_timeout {
            self.arm_by(now + timeout);
        }
    }

    /// Restarts keepalive after a segment that moved no data, such as the response to a probe.
    #[inline(never)]
    pub(crate) fn restart_keepalive(&mut self, now: Instant) {
        let tcb = &*self.tcb;
        let settled = self.shared.buffers.of(tcb).is_none_or(|buffers| buffers.flight.is_settled());
        if tcb.state.is_synchronized() && settled && !self.has_fin_timeout() {
            self.arm_keepalive(now);
        }
    }

    /// Returns whether the FIN-WAIT-2 timeout is in effect, which replaces keepalive.
    pub(crate) fn has_fin_timeout(&self) -> bool {
        self.tcb.state == State::FinWait2 && self.shared.settings.fin_timeout.is_some()
    }

    /// Arms the timer of keepalive or FIN-WAIT-2 when nothing is in flight.
    pub(crate) fn arm_keepalive(&mut self, now: Instant) {
        let settings = &self.shared.settings;
        let wait = match self.tcb.state {
            // The peer has finished, and need not respond.
            State::TimeWait => return,
            State::FinWait2 if settings.fin_timeout.is_some() => settings.fin_timeout,
            _ => self.shared.keepalive(self.slot).map(|Keepalive { idle, .. }| idle),
        };
        let Some(wait) = wait else { return };
        let tcb = &mut *self.tcb;
        if tcb.outstanding() == 0 && !tcb.flags.has(Flags::PERSIST) {
            tcb.attempts = 0;
            tcb.retransmit_at = Tick::at_or_after(now + wait);
            self.arm();
        }
    }

    /// Sets the keepalive of this connection.
    pub(crate) fn set_keepalive(&mut self, keepalive: Option<Keepalive>, now: Instant) {
        self.shared.timers.overrides.entry(self.slot).or_default().keepalive = Some(keepalive.map(within_reach));
        self.restart_keepalive(now);
    }

    /// Sends a keepalive probe, unless data has moved since the timer was armed.
    pub(crate) fn keepalive_expired(&mut self, now: Instant) {
        let Some(Keepalive { idle, interval, probes }) = self.shared.keepalive(self.slot) else { return };
        let due = self.last_activity(now) + idle + interval * u32::from(self.tcb.attempts);
        let tcb = &mut *self.tcb;
        if due > now {
            tcb.attempts = 0;
            tcb.retransmit_at = Tick::at_or_after(due);
            return;
        }
        if tcb.attempts >= probes {
            return self.end(EndReason::TimedOut);
        }
        tcb.attempts += 1;
        tcb.flags |= Flags::KEEPALIVE;
        tcb.retransmit_at = Tick::at_or_after(now + interval);
        self.schedule_tx();
    }

    /// Processes the expired FIN-WAIT-2 timeout. While received data is unread, the peer may be waiting for the window.
    pub(crate) fn expire_fin_wait_2(&mut self, now: Instant) {
        if self.tcb.received > 0 {
            return self.arm_keepalive(now);
        }
        self.shared.counters.fin_timeouts += 1;
        self.end_with_reset(EndReason::TimedOut);
    }

    /// Ends the connection if it was idle for too long, and otherwise arms the timer for the next check.
    pub(crate) fn expire_idle(&mut self, now: Instant) {
        let Some(timeout) = self.shared.settings.idle_timeout else { return };
        if !self.tcb.state.is_synchronized() || self.tcb.state == State::TimeWait {
            return;
        }
        let due = self.last_activity(now) + timeout;
        if due <= now {
            self.shared.counters.idle_timeouts += 1;
            return self.end_with_reset(EndReason::IdleTimeout);
        }
        let next_check = Duration::from_nanos((timeout.as_nanos() as u64 / CHECKS_PER_TIMEOUT).max(1));
        self.arm_by(if self.tcb.has_buffers() { due.min(now + next_check) } else { due });
    }

    /// Returns the latest possible time of the last progress: data received in order, sent or acknowledged. A peer that
    /// only provokes acknowledgements makes none.
    pub(crate) fn last_activity(&mut self, now: Instant) -> Instant {
        let tcb = &*self.tcb;
        let buffers = self.shared.buffers.of_mut(tcb).filter(|buffers| buffers.has_progressed(tcb));
        let Some(buffers) = buffers else {
            let idle = timestamp_clock(now).wrapping_sub(self.cold.idle_since);
            return now - Duration::from_millis(idle.into());
        };
        let numbers = tcb.numbers();
        if buffers.seen.0 != numbers {
            buffers.seen = (numbers, now);
        }
        buffers.seen.1
    }
}
