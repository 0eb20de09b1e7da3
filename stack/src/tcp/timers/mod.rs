//! Connection timers: retransmission, probes, delayed acknowledgements and timeouts.

mod keepalive;
mod persist;

use crate::tcp::NativeEngine;
use crate::tcp::clock::tick::Tick;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Connection;
use crate::tcp::connection::settings::SYN_TIMEOUT;
use crate::tcp::recovery::Expired;
use crate::tcp::send::output::deadline;
use crate::tcp::tcb::cold::EndReason;
use crate::tcp::tcb::{Flags, State};
use linerate_bypass::Packet;
use linerate_service::time::{Duration, Instant};

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Processes the timers that are due at `now`.
    pub(crate) fn expire_timers(&mut self, now: Instant) {
        let mut expired = std::mem::take(&mut self.expired);
        self.shared.timers.wheel.expire(now, &mut expired);
        for slot in expired.drain(..) {
            let Some(mut connection) = self.connection(slot) else { continue };
            if !connection.rr_timer_is_early(now) {
                connection.demote().expire(now);
            }
        }
        self.expired = expired;
        self.shared.time_wait.expire(now);
    }
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    fn expire(&mut self, now: Instant) {
        let tcb = &mut *self.tcb;
        tcb.wheel_at = Tick::NONE;
        self.expire_service_timer(now);
        self.expire_linger(now);
        self.expire_idle(now);
        let tcb = &mut *self.tcb;
        if tcb.flags.has(Flags::VACANT) || tcb.state == State::Closed {
            return;
        }
        let tick = Tick::of(now);
        if tcb.ack_at.is_due(tick) {
            tcb.ack_at = Tick::NONE;
            tcb.flags |= Flags::ACK_NOW;
            self.schedule_tx();
        }
        let tcb = &mut *self.tcb;
        if tcb.retransmit_at.is_due(tick) {
            tcb.retransmit_at = Tick::NONE;
            match tcb.state {
                State::SynSent | State::SynReceived => self.syn_timed_out(),
                _ if tcb.outstanding() == 0 && tcb.flags.has(Flags::PERSIST) => self.probe_window(now),
                _ if self.shared.buffers.of(tcb).is_some_and(|buffers| !buffers.flight.is_settled()) => {
                    self.retransmit(now);
                }
                State::FinWait2 if self.shared.settings.fin_timeout.is_some() => self.expire_fin_wait_2(now),
                _ => self.keepalive_expired(now),
            }
        }
        if self.shared.settings.pacing {
            self.expire_pace(now);
        }
        self.arm();
    }

    /// Arms the timer wheel for the next deadline of the connection.
    #[inline]
    pub(crate) fn arm(&mut self) {
        self.arm_for(self.tcb.retransmit_at.earlier(self.tcb.ack_at));
    }

    /// Makes the timer wheel entry expire at `due` at the latest.
    #[inline]
    fn arm_for(&mut self, due: Tick) {
        self.shared.arm_for(self.slot, self.tcb, due);
    }

    /// Sets or cancels the timer of the service.
    pub(crate) fn set_service_timer(&mut self, at: Option<Instant>) {
        let Some(at) = at else {
            self.shared.timers.service.remove(&self.slot);
            return;
        };
        self.shared.timers.service.insert(self.slot, at);
        self.arm_by(at);
    }

    /// Limits the time for delivery of queued data.
    pub(crate) fn linger_for(&mut self, time: Duration) {
        let until = self.shared.clock.now + time;
        self.shared.timers.linger.insert(self.slot, until);
        self.arm_by(until);
    }

    fn expire_linger(&mut self, now: Instant) {
        if self.shared.timers.linger.is_empty() {
            return;
        }
        let Some(&until) = self.shared.timers.linger.get(&self.slot) else { return };
        let delivers = matches!(self.tcb.state, State::FinWait1 | State::Closing | State::LastAck);
        if delivers && until > now {
            return self.arm_by(until);
        }
        self.shared.timers.linger.remove(&self.slot);
        if delivers {
            self.abort();
        }
    }

    /// Makes the timer wheel entry expire at `at`. A time beyond the range of a tick expires earlier, and is checked
    /// then.
    pub(crate) fn arm_by(&mut self, at: Instant) {
        self.arm_for(Tick::at_or_after(at.min(self.shared.clock.now + Tick::REACH)));
    }

    fn expire_service_timer(&mut self, now: Instant) {
        if self.shared.timers.service.is_empty() {
            return;
        }
        let Some(&at) = self.shared.timers.service.get(&self.slot) else { return };
        if at > now {
            return self.arm_by(at);
        }
        self.shared.timers.service.remove(&self.slot);
        if self.tcb.flags.has(Flags::OPEN) && !self.tcb.flags.has(Flags::CLOSE_REPORTED) {
            let conn = self.shared.id(self.slot, self.tcb);
            self.shared.events.timers.push(conn);
        }
    }

    /// Processes an expired SYN timer.
    fn syn_timed_out(&mut self) {
        let tcb = &mut *self.tcb;
        let waited = SYN_TIMEOUT * ((1 << tcb.attempts.min(7)) - 1);
        if waited >= self.shared.settings.half_open_timeout {
            return self.end(EndReason::TimedOut);
        }
        tcb.flags |= Flags::ACK_NOW;
        self.schedule_tx();
    }

    /// Processes an expired retransmission timer with data in flight.
    fn retransmit(&mut self, now: Instant) {
        let user_timeout = self.shared.user_timeout(self.slot);
        let tcb = &mut *self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        let cold = &mut *self.cold;
        let limits = &self.shared.settings.limits;
        // A segment that exceeds the peer's window is not sent in part (RFC 9293 §3.8.6.2.1).
        let unsent = tcb.unsent > 0 && tcb.window_left() >= tcb.unsent.min(tcb.mss.into());
        let mut timeouts = 0;
        let expired = buffers.flight.expire(now, unsent, &mut tcb.rtt, &mut cold.path, &mut cold.control, limits);
        tcb.cwnd = cold.control.window();
        match expired {
            Expired::Nothing
            | Expired::Reordering { recovery_began: false, .. }
            | Expired::Settled { reduced: false } => {}
            Expired::Reordering { .. } | Expired::Settled { .. } => tcb.flags |= Flags::CWR,
            Expired::Probe(range) => {
                tcb.flags |= Flags::TLP;
                buffers.probe = range;
            }
            Expired::Timeout { .. } => {
                tcb.flags |= Flags::CWR;
                // An answered zero-window probe has reset the time.
                if buffers.flight.timeouts() == 1 || buffers.stalled == Instant::ZERO {
                    buffers.stalled = now;
                } else if now.since(buffers.stalled) >= user_timeout {
                    return self.end(EndReason::TimedOut);
                }
                timeouts = buffers.flight.timeouts();
            }
            Expired::GiveUp => return self.end(EndReason::TimedOut),
        }
        tcb.retransmit_at = deadline(buffers, tcb, cold, limits);
        if timeouts > 0 {
            self.detect_black_hole(timeouts);
        }
        self.schedule_tx();
    }

    /// Arms the timers after everything that can be sent was sent: a zero window is probed, and empty buffers are
    /// detached.
    pub(crate) fn after_output(&mut self, now: Instant) {
        let tcb = &mut *self.tcb;
        if tcb.outstanding() > 0 || !tcb.state.is_synchronized() {
            return;
        }
        if tcb.unsent > 0 {
            // Without a timer, the data sent by a probe was acknowledged, and the window is as small as before.
            if !tcb.flags.has(Flags::PERSIST) || !tcb.retransmit_at.is_some() {
                tcb.attempts = 0;
                if let Some(buffers) = self.shared.buffers.of_mut(tcb) {
                    buffers.stalled = Instant::ZERO;
                }
                self.arm_persist(now);
            }
            return;
        }
        let Some(buffers) = self.shared.buffers.of(tcb) else { return };
        if buffers.is_idle() {
            let has_progressed = buffers.has_progressed(tcb);
            self.detach();
            // A segment without progress defers keepalive, but not the FIN-WAIT-2 timeout.
            if has_progressed || !self.has_fin_timeout() {
                self.tcb.retransmit_at = Tick::NONE;
                self.arm_keepalive(now);
            }
        } else if buffers.flight.is_settled() && !tcb.retransmit_at.is_some() {
            // Received data waits for its service or for a gap to be filled. The peer may have failed nevertheless.
            self.arm_keepalive(now);
        }
    }
}
