//! Connection establishment (RFC 9293 §3.5, §3.10.7.1 to §3.10.7.3).

mod cookies;
pub(crate) mod isn;

use crate::congestion::CongestionControl;
use crate::drop_stats::DropCause;
use crate::egress::Egress;
use crate::native::NativeEngine;
use crate::native::connection::{Connection, Shared};
use crate::native::receive::input::TcpHeader;
use crate::native::segment::control_segments::Syn;
use crate::native::segment::header::Control;
use crate::native::segment::options::{Options, Timestamp};
use crate::native::segment::seq::Seq;
use crate::native::settings::Settings;
use crate::native::tcb::{Flags, State, Tcb};
use crate::native::time_wait::{self, Action, Reuse};
use crate::native::timers::tick::Tick;
use crate::tcp::per_source_limits::SynVerdict;
use crate::tcp::tuple::Tuple;
use cookies::CookieOptions;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{ConnectError, Nic, Packet};
use std::net::SocketAddr;

/// Time until the first retransmission of a SYN (RFC 6298 §2.1).
pub(crate) const SYN_TIMEOUT: Duration = Duration::from_secs(1);
/// Period after the last SYN cookie in which acknowledgements of cookies are accepted: the lifetime of a cookie.
const COOKIE_LIFETIME: Duration = Duration::from_secs(128);
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

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Processes a segment without a connection. It may open a connection, or belong to one in TIME-WAIT. Otherwise a
    /// RST is sent.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a parsed segment and the transmit path")]
    pub(crate) fn no_connection<N: Nic<Packet = P>>(
        &mut self,
        tuple: &Tuple,
        seg: &TcpHeader,
        hash: u64,
        packet: P,
        tcp: usize,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        if egress.addresses().is_martian_peer(tuple) {
            return egress.count_drop(DropCause::BadSource);
        }
        let control = seg.control;
        let options = Options::parse(&packet.data()[tcp + 20..seg.header]);
        let mut floor = None;
        let segment = || time_wait::Segment {
            seq: seg.seq,
            ack: seg.ack,
            flags: control.0,
            len: seg.len,
            timestamp: options.timestamp,
        };
        let held = self.shared.time_wait.len() > 0;
        match held.then(|| self.shared.time_wait.process(tuple, &segment(), now)).flatten() {
            None => {}
            Some(Action::Ignore) => return,
            Some(Action::Challenge(_)) if !self.shared.time_wait.may_challenge(tuple, now) => return,
            Some(Action::Acknowledge(reply) | Action::Challenge(reply)) => {
                let timestamp = reply.ts_recent.map(|echo| self.shared.timestamp(tuple, echo, now));
                let (seq, ack) = (reply.seq, reply.ack);
                return self.shared.send_stateless(tuple, seq, ack, Control::ACK, reply.window, timestamp, egress, now);
            }
            Some(Action::Reopen { isn_floor }) => floor = Some(isn_floor),
        }
        let flags = control.0 & (Control::SYN.0 | Control::ACK.0 | Control::RST.0 | Control::FIN.0);
        if !self.listens(tuple) {
            return self.shared.reset_for(tuple, seg, egress, now);
        }
        if flags == Control::SYN.0 {
            return self.accept(tuple, seg, hash, &options, floor, empty_carrier(packet), egress, now);
        }
        if flags & !Control::FIN.0 == Control::ACK.0
            && self.shared.cookies_sent.is_some_and(|at| now.since(at) < COOKIE_LIFETIME)
            && let Some(params) = self.check_cookie(tuple, seg, &options, now)
        {
            return self.accept_cookie(tuple, seg, hash, params, packet, egress, now);
        }
        if flags & (Control::ACK.0 | Control::RST.0) == 0 {
            // RFC 9293 §3.10.7.2, fourth. A RST would acknowledge the segment's sequence number, and reset the
            // connection of a SYN with the same number that is in flight.
            return egress.count_drop(DropCause::InvalidFlags);
        }
        self.shared.reset_for(tuple, seg, egress, now);
    }

    #[inline]
    pub(crate) fn listens(&self, tuple: &Tuple) -> bool {
        self.shared.settings.listen.iter().any(|listener| listener.is_for(tuple))
    }

    /// Processes a SYN for a listening address.
    #[expect(clippy::too_many_arguments, reason = "a parsed segment and the transmit path")]
    fn accept<N: Nic<Packet = P>>(
        &mut self,
        tuple: &Tuple,
        seg: &TcpHeader,
        hash: u64,
        options: &Options,
        floor: Option<Seq>,
        carrier: Option<P>,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        // RFC 3168 §6.1.1: both flags request ECN.
        let wants_ecn = seg.control.has(Control::ECE.with(Control::CWR));
        let params = SynParams::of(options, tuple.is_ipv4(), wants_ecn && self.uses_ecn());
        let verdict = self.shared.check_syn(tuple);
        if verdict == SynVerdict::Drop {
            return egress.count_drop(verdict.cause());
        }
        let is_full = self.shared.half_open >= self.shared.settings.half_open;
        if is_full || verdict == SynVerdict::Cookie {
            if floor.is_some() {
                self.shared.time_wait.remove(tuple);
            }
            egress.count_drop(if is_full { DropCause::HalfOpenFull } else { verdict.cause() });
            return self.send_cookie(tuple, seg, &params, egress, now);
        }
        let mut tcb = Tcb { state: State::SynReceived, ..self.shared.begin(tuple, now) };
        if let Some(floor) = floor {
            tcb.una = self.shared.secrets.isn_after(tuple, now, floor);
            tcb.nxt = tcb.una + 1;
        }
        self.answer(tuple, tcb, seg, hash, &params, carrier, egress, now);
    }

    /// Creates the connection of `tcb` and sends the SYN-ACK. `carrier` is an empty packet that may be used for it.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "a parsed segment and the transmit path")]
    pub(crate) fn answer<N: Nic<Packet = P>>(
        &mut self,
        tuple: &Tuple,
        mut tcb: Tcb,
        seg: &TcpHeader,
        hash: u64,
        params: &SynParams,
        carrier: Option<P>,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        tcb.apply_syn_params(seg, params, &self.shared.settings);
        let syn = Syn::of(&tcb, &self.shared.settings, now);
        tcb.note_syn_sent(&self.shared.settings, now);
        let Some(mut connection) = self.insert(hash, tcb) else { return egress.count_drop(DropCause::TooMany) };
        connection.shared.half_open += 1;
        if let Some(sources) = &mut connection.shared.per_source {
            sources.add(tuple, true);
        }
        connection.size_control();
        if connection.shared.send_syn(tuple, &syn, carrier, egress, now) {
            let due = connection.tcb.retransmit_at;
            connection.shared.arm_for(connection.slot, connection.tcb, due);
        } else {
            connection.tcb.note_syn_unsent();
            connection.schedule_tx();
        }
    }

    fn uses_ecn(&self) -> bool {
        self.shared.settings.ecn
    }

    /// Opens a connection.
    pub(crate) fn begin<N: Nic<Packet = P>>(
        &mut self,
        remote: SocketAddr,
        token: u64,
        egress: &Egress<N>,
        now: Instant,
    ) -> Result<(), ConnectError> {
        let unusable = remote.ip().is_unspecified() || remote.ip().is_multicast() || remote.port() == 0;
        if !unusable && !egress.addresses().can_be_remote(remote.ip()) {
            return Err(ConnectError::InvalidAddress);
        }
        if unusable || egress.addresses().next_hop(remote.ip()).is_none() {
            return Err(ConnectError::Unreachable);
        }
        let Shared { table, key, time_wait, ports, .. } = &mut self.shared;
        let tcbs = &self.tcbs;
        let taken = |tuple: &Tuple| {
            table.find(tuple.hash_with(key), |slot| tcbs[slot as usize].tuple == *tuple).is_some()
                || time_wait.check_reuse(tuple, now) == Reuse::TooSoon
        };
        let tuple = ports.choose(egress.addresses(), remote, now, taken).ok_or(ConnectError::NoLocalAddress)?;
        let hash = tuple.hash_with(&self.shared.key);
        let flags = Flags::ACTIVE_OPEN | Flags::ACK_NOW;
        let mut tcb = Tcb { state: State::SynSent, flags, ..self.shared.begin(&tuple, now) };
        if let Reuse::Allowed { isn_floor } = self.shared.time_wait.check_reuse(&tuple, now) {
            self.shared.time_wait.remove(&tuple);
            tcb.una = self.shared.secrets.isn_after(&tuple, now, isn_floor);
            tcb.nxt = tcb.una + 1;
        }
        let mut connection = self.insert(hash, tcb).ok_or(ConnectError::TooMany)?;
        connection.shared.connect_tokens.insert(connection.slot, token);
        connection.schedule_tx();
        Ok(())
    }

    /// Answers a SYN with a SYN cookie, without keeping state (RFC 4987 §3.6).
    #[cold]
    fn send_cookie<N: Nic<Packet = P>>(
        &mut self,
        tuple: &Tuple,
        seg: &TcpHeader,
        params: &SynParams,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        self.shared.cookies_sent = Some(now);
        let isn = cookies::make(&self.shared.secrets, tuple, seg.seq, params.mss, now);
        let mut timestamp = params.timestamp.map(|echo| self.shared.timestamp(tuple, echo, now));
        if let Some(timestamp) = &mut timestamp {
            let options = CookieOptions { window_scale: params.window_scale, sack: params.sack, ecn: params.ecn };
            timestamp.value = cookies::encode_timestamp(timestamp.value, options);
        }
        let answer = Syn {
            seq: isn,
            ack: Some(seg.seq + 1),
            window_scale: params
                .window_scale
                .filter(|_| params.timestamp.is_some())
                .map(|_| self.shared.settings.rx_scale),
            sack: params.sack && params.timestamp.is_some(),
            timestamp,
            ecn: params.ecn && params.timestamp.is_some(),
        };
        self.shared.send_syn(tuple, &answer, None, egress, now);
    }

    /// Returns the parameters from the cookie that `seg` acknowledges, if it is valid.
    fn check_cookie(&self, tuple: &Tuple, seg: &TcpHeader, options: &Options, now: Instant) -> Option<SynParams> {
        let (isn, peer_isn) = (seg.ack - 1, seg.seq - 1);
        let mss = cookies::check(&self.shared.secrets, tuple, isn, peer_isn, now)?;
        let carried = match options.timestamp {
            Some(timestamp) => cookies::decode_timestamp(timestamp.echo, self.shared.secrets.timestamp(now, tuple))?,
            None => CookieOptions::default(),
        };
        Some(SynParams {
            mss,
            window_scale: carried.window_scale,
            sack: carried.sack,
            timestamp: options.timestamp.map(|timestamp| timestamp.value),
            ecn: carried.ecn,
        })
    }

    /// Creates a connection from a SYN cookie.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "a parsed segment and the transmit path")]
    fn accept_cookie<N: Nic<Packet = P>>(
        &mut self,
        tuple: &Tuple,
        seg: &TcpHeader,
        hash: u64,
        params: SynParams,
        packet: P,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        if self.shared.source_is_full(tuple) {
            egress.count_drop(DropCause::TooManyPerSource);
            return self.shared.reset_for(tuple, seg, egress, now);
        }
        let mut tcb = Tcb { state: State::Established, una: seg.ack, nxt: seg.ack, ..self.shared.begin(tuple, now) };
        let syn = TcpHeader { seq: seg.seq - 1, ..*seg };
        tcb.apply_syn_params(&syn, &params, &self.shared.settings);
        let Some(mut connection) = self.insert(hash, tcb) else { return egress.count_drop(DropCause::TooMany) };
        if let Some(sources) = &mut connection.shared.per_source {
            sources.add(tuple, false);
        }
        connection.size_control();
        connection.establish(seg, now);
        connection.process_payload_and_fin(seg, packet, now);
    }
}

/// Removes the contents of `packet`, if it is a single mbuf segment.
#[inline(always)]
pub(crate) fn empty_carrier<P: Packet>(mut packet: P) -> Option<P> {
    let len = packet.data().len();
    (packet.len() == len && packet.adjust(len)).then_some(packet)
}

impl<P: Packet> Shared<P> {
    /// Returns the decision of the source limits for a SYN on `tuple`.
    #[inline(always)]
    pub(crate) fn check_syn(&self, tuple: &Tuple) -> SynVerdict {
        self.per_source.as_ref().map_or(SynVerdict::Accept, |sources| sources.check_syn(tuple))
    }

    /// Returns whether the source of `tuple` has reached its connection limit.
    #[inline(always)]
    pub(crate) fn source_is_full(&self, tuple: &Tuple) -> bool {
        self.per_source.as_ref().is_some_and(|sources| sources.is_full(tuple))
    }

    /// Returns the initial control block of a connection on `tuple`.
    #[inline(always)]
    pub(crate) fn begin(&mut self, tuple: &Tuple, now: Instant) -> Tcb {
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
            self.shared.half_open -= 1;
            if let Some(sources) = &mut self.shared.per_source {
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
            cold.path.advise(&mut tcb.rtt, &self.shared.settings.limits);
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
        self.cold.idle_since = crate::native::milliseconds(now);
        if self.shared.settings.has_inactivity_timers {
            self.start_inactivity_timers(now);
        }
        self.notify();
    }

    /// Returns whether `echo` can be the TSval of a SYN of this connection. Common systems send zero for "no echo".
    fn has_sent_timestamp(&self, echo: u32, now: Instant) -> bool {
        let now = crate::native::milliseconds(now);
        let age = now.wrapping_add(self.tcb.ts_offset).wrapping_sub(echo);
        echo == 0 || age <= now.wrapping_sub(self.cold.idle_since)
    }

    /// Processes a segment in SYN-SENT (RFC 9293 §3.10.7.3).
    pub(crate) fn syn_sent<N: Nic<Packet = P>>(
        &mut self,
        seg: &TcpHeader,
        options: &Options,
        packet: P,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let tcb = &mut *self.tcb;
        let control = seg.control;
        let acknowledges = control.has(Control::ACK);
        if acknowledges && seg.ack != tcb.nxt {
            if !control.has(Control::RST) {
                let tuple = tcb.tuple;
                self.shared.reset_for(&tuple, seg, egress, now);
            }
            return;
        }
        if control.has(Control::RST) {
            if acknowledges {
                self.end(Flags::WAS_RESET);
            }
            return;
        }
        if !control.has(Control::SYN) {
            return;
        }
        if acknowledges
            && let Some(Timestamp { echo, .. }) = options.timestamp
            && !self.has_sent_timestamp(echo, now)
        {
            // The segment is of an earlier connection (RFC 7323 §3.2).
            return egress.count_drop(DropCause::BadEcho);
        }
        let tcb = &mut *self.tcb;
        let asked_for_ecn = self.shared.settings.ecn && tcb.attempts <= 1;
        let ecn = match acknowledges {
            // RFC 3168 §6.1.1: a SYN-ACK carries ECE without CWR. A SYN-ACK with both is a reflection.
            true => control.has(Control::ECE) && !control.has(Control::CWR),
            false => control.has(Control::ECE.with(Control::CWR)),
        };
        let params = SynParams::of(options, tcb.tuple.is_ipv4(), ecn && asked_for_ecn);
        tcb.apply_syn_params(seg, &params, &self.shared.settings);
        self.size_control();
        if acknowledges {
            self.establish(seg, now);
            let tcb = &mut *self.tcb;
            tcb.flags |= Flags::ACK_NOW;
            self.schedule_tx();
            if seg.len > 0 || control.has(Control::FIN) {
                // The data starts after the SYN, which occupies one sequence number.
                let mut rest = *seg;
                rest.seq += 1;
                rest.control.0 &= !Control::SYN.0;
                self.process_payload_and_fin(&rest, packet, now);
            }
        } else {
            // Simultaneous open (RFC 9293 §3.5, figure 8).
            let tcb = &mut *self.tcb;
            tcb.state = State::SynReceived;
            tcb.flags |= Flags::ACK_NOW;
            tcb.attempts = 0;
            self.schedule_tx();
        }
    }
}
