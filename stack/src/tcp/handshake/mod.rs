//! Connection establishment (RFC 9293 §3.5, §3.10.7.1 to §3.10.7.3).

mod connect;
mod cookies;
mod listen;

pub(crate) use listen::empty_carrier;

use crate::tcp::clock::tick::Tick;
use crate::tcp::clock::timestamps::timestamp_clock;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::settings::{SYN_TIMEOUT, Settings};
use crate::tcp::connection::{Connection, Shared};
use crate::tcp::tables::per_source_limits::SynVerdict;
use crate::tcp::tcb::{Flags, State, Tcb};
use crate::wire::tcp::header::Control;
use crate::wire::tcp::options::Options;
use crate::wire::tcp::received::TcpHeader;
use crate::wire::tuple::Tuple;
use linerate_bypass::Packet;
use linerate_service::time::Instant;

/// Returns the segment size of a peer that sends no MSS option (RFC 9293 §3.7.1).
const fn default_mss(ipv4: bool) -> u16 {
    if ipv4 { 536 } else { 1220 }
}

/// Connection parameters from a peer's SYN or SYN cookie.
pub(crate) struct SynParams {
    mss: u16,
    window_scale: Option<u8>,
    sack: bool,
    timestamp: Option<u32>,
    ecn: bool,
}

impl SynParams {
    /// Returns the parameters of a SYN with `options`. `ecn`: both ends negotiate ECN.
    #[inline(always)]
    pub fn of(options: &Options, ipv4: bool, ecn: bool) -> Self {
        SynParams {
            mss: options.mss.unwrap_or(default_mss(ipv4)),
            window_scale: options.window_scale,
            sack: options.sack_permitted,
            timestamp: options.timestamp.map(|timestamp| timestamp.value),
            ecn,
        }
    }
}

impl<P: Packet> Shared<P> {
    /// Returns the decision of the source limits for a SYN on `tuple`.
    #[inline(always)]
    pub(crate) fn check_syn(&self, tuple: &Tuple) -> SynVerdict {
        self.listener.per_source.as_ref().map_or(SynVerdict::Accept, |sources| sources.check_syn(tuple))
    }

    /// Returns whether the source of `tuple` has reached its connection limit.
    #[inline(always)]
    pub(crate) fn source_is_full(&self, tuple: &Tuple) -> bool {
        self.listener.per_source.as_ref().is_some_and(|sources| sources.is_full(tuple))
    }

    /// Returns the initial control block of a connection on `tuple`.
    #[inline(always)]
    pub(crate) fn new_tcb(&mut self, tuple: &Tuple, now: Instant) -> Tcb {
        let (isn, ts_offset) = self.secrets.isn_and_offset(tuple, now);
        Tcb { una: isn, nxt: isn + 1, ts_offset, ..Tcb::vacant(*tuple) }
    }
}

impl Tcb {
    /// Updates the state after a SYN was sent, or just before.
    #[inline(always)]
    pub(crate) fn note_syn_sent(&mut self, settings: &Settings, now: Instant) {
        if self.retransmit_at.is_some() {
            // A SYN-ACK in response to a segment does not restart the timer; otherwise a peer could keep a half-open
            // connection for any time. An acknowledgement of it yields no RTT sample (Karn).
            self.attempts = self.attempts.max(2);
            return;
        }
        let mut wait = settings.first_syn_timeout;
        if self.attempts > 0 {
            // After n transmissions, 2ⁿ - 1 seconds have passed.
            let left = settings.half_open_timeout.saturating_sub(SYN_TIMEOUT * ((1 << self.attempts.min(7)) - 1));
            wait = (SYN_TIMEOUT * (1 << self.attempts.min(6))).min(left);
        }
        self.attempts = self.attempts.saturating_add(1);
        self.retransmit_at = Tick::at_or_after(now + wait);
    }

    /// Reverts [`note_syn_sent`](Self::note_syn_sent) after the first SYN could not be sent, and schedules it again.
    #[cold]
    fn note_syn_unsent(&mut self) {
        self.attempts = 0;
        self.retransmit_at = Tick::NONE;
        self.flags |= Flags::ACK_NOW;
    }

    /// Applies the parameters of the peer's SYN.
    #[inline(always)]
    fn apply_syn_params(&mut self, seg: &TcpHeader, params: &SynParams, settings: &Settings) {
        self.rcv_nxt = seg.seq + 1;
        self.rcv_acked = self.rcv_nxt;
        // The window of the local SYN is not scaled.
        self.rcv_edge = self.rcv_nxt + settings.rx_initial.min(65_535);
        // The window of a SYN is never scaled (RFC 7323 §2.2).
        self.snd_wnd = seg.window.into();
        self.wl1 = seg.seq;
        self.wscale = match params.window_scale {
            Some(scale) => settings.rx_scale << 4 | scale,
            None => 0,
        };
        if let Some(value) = params.timestamp {
            self.flags |= Flags::TIMESTAMPS;
            self.ts_recent = value;
        }
        if params.sack {
            self.flags |= Flags::SACK;
        }
        if params.ecn {
            self.flags |= Flags::ECN;
        }
        // RFC 6691: the sender of a segment deducts the options, not the MSS option itself. The minimum prevents an
        // implausible MSS from causing a header per byte.
        let options = if params.timestamp.is_some() { 12 } else { 0 };
        self.mss = params.mss.max(64).min(settings.mss(self.tuple.is_ipv4())) - options;
        self.set_full_window(settings.rx_initial);
    }
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Sets the segment size of congestion control, which is in its initial state.
    #[inline(always)]
    fn size_control(&mut self) {
        if self.tcb.mss != self.shared.common_mss {
            self.cold.control.set_mss(self.tcb.mss.into());
        }
        self.tcb.cwnd = self.cold.control.window();
    }

    /// Enters ESTABLISHED. `seg` acknowledges the local SYN.
    #[inline(always)]
    pub(crate) fn establish(&mut self, seg: &TcpHeader, now: Instant) {
        let tcb = &mut *self.tcb;
        if tcb.state == State::SynReceived && !tcb.flags.has(Flags::ACTIVE_OPEN) {
            self.shared.listener.half_open -= 1;
            if let Some(sources) = &mut self.shared.listener.per_source {
                sources.establish(&tcb.tuple);
            }
            // Removes the record of the previous connection in TIME-WAIT.
            if self.shared.time_wait.len() > 0 {
                self.shared.time_wait.remove(&tcb.tuple);
            }
        }
        let tcb = &mut *self.tcb;
        if tcb.attempts == 1 && tcb.retransmit_at.is_some() {
            // Karn: a retransmitted SYN yields no RTT sample. The timer was rounded up to a tick, as timers derived
            // from the mean will be. For the minimum, the earliest possible time of transmission is used: the next
            // sample corrects a minimum that is too long, but none corrects a minimum that is too short.
            let sent = tcb.retransmit_at.instant(now) - self.shared.settings.first_syn_timeout;
            let round_trip = now.as_nanos().saturating_sub(sent.as_nanos());
            tcb.rtt.sample_nanos(round_trip, 0);
            self.cold.path.measured_nanos(round_trip + Tick::LENGTH.as_nanos() as u64, now);
        } else if tcb.attempts > 1 {
            let cold = &mut *self.cold;
            cold.control.handshake_lost();
            cold.path.syn_was_lost();
            cold.path.update_consults_path(&mut tcb.rtt, &self.shared.settings.limits);
            tcb.cwnd = cold.control.window();
        }
        let tcb = &mut *self.tcb;
        tcb.state = State::Established;
        tcb.una = seg.ack;
        tcb.attempts = 0;
        tcb.retransmit_at = Tick::NONE;
        let scale = if seg.control.has(Control::SYN) { 0 } else { tcb.snd_scale() };
        tcb.snd_wnd = u32::from(seg.window) << scale;
        tcb.wl1 = seg.seq;
        tcb.flags |= Flags::NEWLY_OPEN;
        self.cold.offered(tcb.snd_wnd, tcb.snd_scale());
        self.cold.idle_since = timestamp_clock(now);
        if self.shared.settings.has_inactivity_timers {
            self.start_inactivity_timers(now);
        }
        self.notify();
    }
}
