//! LISTEN (RFC 9293 §3.10.7.2): SYNs, SYN cookies, and segments without a connection.

use crate::ip::egress::Egress;
use crate::tcp::NativeEngine;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::handshake::SynParams;
use crate::tcp::handshake::cookies::{self, CookieOptions};
use crate::tcp::send::control_segments::Syn;
use crate::tcp::tables::per_source_limits::SynVerdict;
use crate::tcp::tables::time_wait::{self, Action};
use crate::tcp::tcb::{State, Tcb};
use crate::wire::drop_stats::DropCause;
use crate::wire::tcp::header::Control;
use crate::wire::tcp::options::Options;
use crate::wire::tcp::received::TcpHeader;
use crate::wire::tcp::seq::Seq;
use crate::wire::tuple::Tuple;
use linerate_bypass::{Nic, Packet};
use linerate_service::time::{Duration, Instant};

/// Period after the last SYN cookie in which acknowledgements of cookies are accepted: the lifetime of a cookie.
const COOKIE_LIFETIME: Duration = Duration::from_secs(128);

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
            return self.process_syn(tuple, seg, hash, &options, floor, empty_carrier(packet), egress, now);
        }
        if flags & !Control::FIN.0 == Control::ACK.0
            && self.shared.listener.cookies_sent.is_some_and(|at| now.since(at) < COOKIE_LIFETIME)
            && let Some(params) = self.check_cookie(tuple, seg, &options, now)
        {
            return self.accept_cookie(tuple, seg, hash, params, packet, egress, now);
        }
        if flags & (Control::ACK.0 | Control::RST.0) == 0 {
            // RFC 9293 §3.10.7.2, fourth. A RST would acknowledge the segment's sequence number, and so abort the
            // connection attempt of a SYN in flight with the same number.
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
    fn process_syn<N: Nic<Packet = P>>(
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
        let params = SynParams::of(options, tuple.is_ipv4(), wants_ecn && self.shared.settings.ecn);
        let verdict = self.shared.check_syn(tuple);
        if verdict == SynVerdict::Drop {
            return egress.count_drop(verdict.cause());
        }
        let is_full = self.shared.listener.half_open >= self.shared.settings.half_open;
        if is_full || verdict == SynVerdict::Cookie {
            if floor.is_some() {
                self.shared.time_wait.remove(tuple);
            }
            egress.count_drop(if is_full { DropCause::HalfOpenFull } else { verdict.cause() });
            return self.send_cookie(tuple, seg, &params, egress, now);
        }
        let mut tcb = Tcb { state: State::SynReceived, ..self.shared.new_tcb(tuple, now) };
        if let Some(floor) = floor {
            tcb.una = self.shared.secrets.isn_after(tuple, now, floor);
            tcb.nxt = tcb.una + 1;
        }
        self.create_half_open(tuple, tcb, seg, hash, &params, carrier, egress, now);
    }

    /// Creates the connection of `tcb` and sends the SYN-ACK. `carrier` is an empty packet that may be used for it.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "a parsed segment and the transmit path")]
    pub(crate) fn create_half_open<N: Nic<Packet = P>>(
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
        connection.shared.listener.half_open += 1;
        if let Some(sources) = &mut connection.shared.listener.per_source {
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
        self.shared.listener.cookies_sent = Some(now);
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
        let mut tcb = Tcb { state: State::Established, una: seg.ack, nxt: seg.ack, ..self.shared.new_tcb(tuple, now) };
        let syn = TcpHeader { seq: seg.seq - 1, ..*seg };
        tcb.apply_syn_params(&syn, &params, &self.shared.settings);
        let Some(mut connection) = self.insert(hash, tcb) else { return egress.count_drop(DropCause::TooMany) };
        if let Some(sources) = &mut connection.shared.listener.per_source {
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
