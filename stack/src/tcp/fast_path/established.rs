//! Fast path of established connections: header prediction (Jacobson, "4BSD TCP Header Prediction", 1990), and
//! transmission of whole packets.
//!
//! Nearly every segment of a request-response connection is the next in order, has no unusual option or flag, and
//! acknowledges the only segment in flight. Nearly every transmission is one packet as the service left it. A few
//! comparisons recognise these cases, and state changes only after all of them.
//! `receive/process_segment.rs` and [`output`](crate::tcp::send::output) handle everything else in the
//! same steps.

use crate::config::fast_paths::FastPath;
use crate::engine::SegmentMeta;
use crate::ip::egress::Egress;
use crate::tcp::SEGMENTS_PER_TURN;
use crate::tcp::buffers::mbufs_held::MbufsHeld;
use crate::tcp::clock::tick::Tick;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::settings::Settings;
use crate::tcp::connection::{Cold, Connection};
use crate::tcp::recovery::{AckReport, Flight};
use crate::tcp::send::output::deadline;
use crate::tcp::tcb::conn_buffers::{CROWDED, ConnBuffers};
use crate::tcp::tcb::{Flags, State, Tcb};
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::wire::tcp::field;
use crate::wire::tcp::header::{Control, Ecn, Offload, TxHeader, complete_checksum};
use crate::wire::tcp::options::Timestamp;
use crate::wire::tcp::seq::Seq;
use linerate_bypass::{Nic, Packet};
use linerate_service::Bytes;
use linerate_service::time::Instant;

/// Header length and control bits of a plain ACK, as in bytes 12 and 13 of the TCP header (RFC 9293 §3.1): without
/// options, and with a timestamp.
const PLAIN: u32 = 0x5010;
const WITH_TIMESTAMP: u32 = 0x8010;
/// PSH, which is ignored.
const PUSH: u32 = 0x0008;

/// Flags that disable header prediction.
const RX_SLOW_FLAGS: Flags = Flags::ECN.or(Flags::PERSIST);

/// Flags that disable transmission with headers only.
const TX_SLOW_FLAGS: Flags = Flags::FIN_QUEUED
    .or(Flags::RESET)
    .or(Flags::TLP)
    .or(Flags::WINDOW_PROBE)
    .or(Flags::KEEPALIVE)
    .or(Flags::PERSIST)
    .or(Flags::CORKED)
    .or(Flags::DSACK)
    .or(Flags::ECN);

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Processes a segment if header prediction accepts it. Otherwise returns the packet, without effect except on
    /// TS.Recent.
    #[inline]
    pub(crate) fn header_predict(mut self, meta: &SegmentMeta, mut packet: P, now: Instant) -> Option<P> {
        if !self.shared.settings.fast_paths.has(FastPath::HeaderPrediction) {
            return Some(packet);
        }
        let tcb = &mut *self.tcb;
        let data = packet.data();
        let Some((_, tcp)) = data.split_at_checked(meta.tcp_offset) else { return Some(packet) };
        let Some(fixed) = tcp.first_chunk::<20>() else { return Some(packet) };
        let expected = if tcb.flags.has(Flags::TIMESTAMPS) { WITH_TIMESTAMP } else { PLAIN };
        let flags_and_window = field(fixed, 12);
        if tcb.tuple != meta.tuple
            || !tcb.flags.has(Flags::IN_TABLE)
            || tcb.flags.has_any(RX_SLOW_FLAGS)
            || tcb.state != State::Established
            || flags_and_window >> 16 & !PUSH != expected
            || Seq(field(fixed, 4)) != tcb.rcv_nxt
        {
            return Some(packet);
        }
        let header = (expected >> 12) as usize * 4;
        let Some(len) = tcp.len().checked_sub(header) else { return Some(packet) };
        let len = len as u32;
        let ack = Seq(field(fixed, 8));
        let acknowledged = ack - tcb.una;
        // A segment without data that acknowledges nothing new, or an old acknowledgement, may be a duplicate.
        if len > tcb.rcv_window()
            || acknowledged > tcb.outstanding()
            || len == 0 && acknowledged == 0
            || packet.len() != data.len()
            || self.shared.is_low()
        {
            return Some(packet);
        }
        if let Some(buffers) = self.shared.buffers.of(tcb)
            && (!buffers.flight.is_clean() || !buffers.reassembly.is_empty() || buffers.received.len() >= CROWDED)
        {
            return Some(packet);
        }
        if expected == WITH_TIMESTAMP {
            let options = tcp[20..].first_chunk();
            let Some(timestamp) = options.and_then(|options| tcb.paws_ok(options)) else { return Some(packet) };
            // RFC 7323 §4.3: only a segment that continues the last acknowledgement sent updates TS.Recent, so that a
            // delayed ACK echoes the first timestamp. The update is valid on the general path as well.
            if tcb.rcv_acked == tcb.rcv_nxt {
                tcb.ts_recent = timestamp;
            }
        }
        if !packet.adjust(meta.tcp_offset + header) {
            return Some(packet);
        }

        // From here on the segment is accepted.
        let buffers = self.shared.buffers.attach(tcb);
        tcb.wl1 = tcb.rcv_nxt;
        update_snd_window(tcb, &mut self.cold, flags_and_window as u16);
        let mut ack_report = None;
        if acknowledged != 0 {
            if len == 0 || tcb.unsent > 0 || !buffers.queue.is_lone() || !buffers.flight.is_lone_acked_by(ack) {
                return self.predict_general_ack(ack, packet, len, now);
            }
            ack_report = ack_lone_segment(tcb, buffers, &mut self.shared.mbufs_held, ack, now);
        }
        buffers.acked_lone = acknowledged != 0;
        queue_in_order(tcb, buffers, packet, len);
        self.shared.mbufs_held.all += 1;
        if tcb.mark_active(Flags::READABLE | Flags::NOTIFY | Flags::TX_PENDING) {
            self.shared.active.push(self.slot);
        }
        if let Some(report) = ack_report {
            self.report_ack(ack, acknowledged, report, now);
        }
        None
    }

    /// Processes a predicted segment with `len` bytes of payload, while other data is in flight or queued.
    #[inline(never)]
    fn predict_general_ack(mut self, ack: Seq, packet: P, len: u32, now: Instant) -> Option<P> {
        let mut flags =
            if self.reborrow().acknowledge_in_order(ack, len == 0, now) { Flags::TX_PENDING } else { Flags::default() };
        let tcb = &mut *self.tcb;
        if tcb.flags.has(Flags::WANTS_ROOM) {
            flags |= Flags::NOTIFY;
        }
        if len > 0 {
            let buffers = self.shared.buffers.attach(tcb);
            queue_in_order(tcb, buffers, packet, len);
            self.shared.mbufs_held.all += 1;
            flags |= Flags::READABLE | Flags::NOTIFY | Flags::TX_PENDING;
        }
        if flags != Flags::default() && tcb.mark_active(flags) {
            self.shared.active.push(self.slot);
        }
        None
    }

    /// Processes an acknowledgement of new data up to `ack` on a connection without losses. Returns whether there may
    /// be something to send.
    #[inline(never)]
    fn acknowledge_in_order(self, ack: Seq, pure: bool, now: Instant) -> bool {
        let tcb = &mut *self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return false };
        let released = buffers.queue.acknowledge(ack);
        self.shared.mbufs_held.release(released);
        let acknowledged = ack - tcb.una;
        tcb.una = ack;
        // The deadline of the remaining data does not move closer.
        if ack == tcb.nxt {
            tcb.retransmit_at = Tick::NONE;
        }
        let report = buffers.flight.acknowledge_clean(ack, pure, now, &mut tcb.rtt);
        let sends = tcb.unsent > 0 || buffers.queue.is_empty();
        if report.notable {
            self.report_ack(ack, acknowledged, report, now);
        }
        sends
    }

    /// Reports an acknowledgement in order to the path estimator and to congestion control.
    #[inline(never)]
    pub(crate) fn report_ack(mut self, ack: Seq, acknowledged: u32, report: AckReport, now: Instant) {
        let (tcb, cold) = (self.tcb, &mut *self.cold);
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        let (rtt, path, control) = (&mut tcb.rtt, &mut cold.path, &mut cold.control);
        let limits = &self.shared.settings.limits;
        buffers.flight.report(ack, acknowledged, report.sample, report.lone, now, rtt, path, control, limits);
        tcb.cwnd = control.window();
    }

    /// Sends the only packet received back as an echo. Returns its length, or `None` without effect if the packet or
    /// the state is unusual.
    #[inline(never)]
    pub(crate) fn echo_lone<N: Nic<Packet = P>>(self, egress: &mut Egress<N>, now: Instant) -> Option<usize> {
        if !self.shared.settings.fast_paths.has(FastPath::EchoLone) {
            return None;
        }
        let is_low = self.shared.is_low();
        let tcb = &mut *self.tcb;
        let buffers = self.shared.buffers.of_mut(tcb)?;
        let len = tcb.received;
        let settings = &self.shared.settings;
        if !needs_headers_only(tcb, buffers, settings)
            || len.wrapping_sub(1) >= u32::from(tcb.mss)
            || tcb.unsent > 0
            || tcb.una != tcb.nxt
            || len > tcb.snd_wnd.min(tcb.cwnd)
            || !buffers.queue.is_empty()
            || !egress.has_data_room()
        {
            return None;
        }
        let packet = buffers.received.only_mut()?;
        let link = egress.link_header(tcb.tuple.remote_v6().to_bits(), now)?;
        let window = tcb.offer_full_window(is_low)?;
        let kept = prepend_headers(
            packet,
            tcb,
            len,
            Control::PSH,
            window,
            link,
            settings.offload,
            self.shared.clock.timestamp_ms,
        )?;
        let packet = buffers.received.take_only()?;
        buffers.queue.push_lone(tcb.nxt, kept);
        self.shared.mbufs_held.queued += 1;
        tcb.received = 0;
        // The echo acknowledges everything received.
        tcb.flags.clear(Flags::TX_PENDING | Flags::CONSUMED);
        egress.send_frame(packet);
        note_lone_sent(tcb, &mut buffers.flight, len, &self.shared.clock.earliest_rto, now);
        tcb.note_ack_sent();
        let acked_lone = std::mem::take(&mut buffers.acked_lone);
        self.shared.arm_for(self.slot, tcb, tcb.retransmit_at);
        // Most connections with two such exchanges continue in this way.
        if acked_lone {
            self.promote(now);
        }
        Some(len as usize)
    }

    /// Sends the queued data if it consists of whole packets, one per segment, and nothing else is pending. Returns
    /// whether everything was sent.
    #[inline(always)]
    pub(crate) fn send_whole_packets<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) -> bool {
        if !self.shared.settings.fast_paths.has(FastPath::SendWhole) {
            return false;
        }
        let is_low = self.shared.is_low();
        if self.tcb.unsent > 0 && self.shared.buffers.of(self.tcb).is_some_and(|buffers| buffers.needs_restart) {
            self.reborrow().restart_after_idle(now);
        }
        let tcb = &mut *self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return false };
        let settings = &self.shared.settings;
        let mss = u32::from(tcb.mss);
        if tcb.unsent == 0
            || tcb.unsent > mss && settings.tso.is_some()
            || tcb.received > 0
            || settings.nagle && (tcb.unsent > mss || tcb.una != tcb.nxt)
            || settings.pacing
            || !needs_headers_only(tcb, buffers, settings)
        {
            return false;
        }
        let Some(window) = tcb.offer_full_window(is_low) else { return false };
        let most = tcb.snd_wnd.min(tcb.cwnd);
        let was_idle = tcb.una == tcb.nxt;
        let mut sent = 0;
        for _ in 0..SEGMENTS_PER_TURN {
            if !egress.has_data_room() {
                break;
            }
            let Some((len, packet)) = buffers.queue.next_packet(tcb.nxt) else { break };
            // A short segment is sent only as the last one.
            if len > mss || len < mss && len != tcb.unsent || tcb.outstanding() + len > most {
                break;
            }
            let Some(link) = egress.link_header(tcb.tuple.remote_v6().to_bits(), now) else { break };
            let push = if len == tcb.unsent { Control::PSH } else { Control::ACK };
            let Some(kept) =
                prepend_headers(packet, tcb, len, push, window, link, settings.offload, self.shared.clock.timestamp_ms)
            else {
                break;
            };
            let Some(packet) = buffers.queue.packet_sent(kept) else { break };
            egress.send_frame(packet);
            tcb.unsent -= len;
            sent += 1;
            if sent == 1 && was_idle {
                note_lone_sent(tcb, &mut buffers.flight, len, &self.shared.clock.earliest_rto, now);
            } else {
                buffers.flight.sent(len, now, tcb.cwnd);
                tcb.nxt += len;
            }
            if tcb.unsent == 0 {
                break;
            }
        }
        let acked_lone = std::mem::take(&mut buffers.acked_lone);
        if sent > 0 {
            tcb.flags.clear(Flags::CONSUMED);
            tcb.note_ack_sent();
            if sent > 1 || !was_idle {
                tcb.retransmit_at = deadline(buffers, tcb, &self.cold, &settings.limits);
            }
        }
        self.shared.arm_for(self.slot, tcb, tcb.retransmit_at);
        let is_done = tcb.unsent == 0;
        if acked_lone && is_done && sent == 1 && was_idle {
            self.reborrow().promote(now);
        }
        is_done
    }
}

/// Updates SND.WND from the window field `field`.
#[inline(always)]
pub(crate) fn update_snd_window<C: CongestionControl>(tcb: &mut Tcb, cold: &mut Cold<'_, C>, field: u16) {
    let window = u32::from(field) << tcb.snd_scale();
    if window != tcb.snd_wnd {
        tcb.snd_wnd = window;
        cold.offered(window, tcb.snd_scale());
    }
}

/// Processes an acknowledgement of the only segment in flight, with nothing queued after it. Returns the measurement
/// if it has to be [reported](Connection::report_ack).
#[inline(always)]
pub(crate) fn ack_lone_segment<P: Packet>(
    tcb: &mut Tcb,
    buffers: &mut ConnBuffers<P>,
    mbufs_held: &mut MbufsHeld,
    ack: Seq,
    now: Instant,
) -> Option<AckReport> {
    let released = buffers.queue.acknowledge_lone();
    mbufs_held.release(released);
    tcb.una = ack;
    tcb.retransmit_at = Tick::NONE;
    let report = buffers.flight.acknowledge_clean(ack, false, now, &mut tcb.rtt);
    report.notable.then_some(report)
}

/// Appends `packet`, the next `len` bytes in order, to the receive queue.
#[inline(always)]
fn queue_in_order<P: Packet>(tcb: &mut Tcb, buffers: &mut ConnBuffers<P>, packet: P, len: u32) {
    buffers.received.push_back(packet);
    tcb.rcv_nxt += len;
    tcb.received += len;
    // A segment merged by LRO counts as two, which triggers an immediate ACK.
    tcb.segs_unacked = tcb.segs_unacked.saturating_add(1 + u8::from(len > u32::from(tcb.mss)));
}

/// Updates the state after the only segment in flight, of `len` bytes, was sent.
#[inline(always)]
pub(crate) fn note_lone_sent(tcb: &mut Tcb, flight: &mut Flight, len: u32, earliest_rto: &[Tick; 2], now: Instant) {
    flight.sent_lone(len, now, tcb.cwnd);
    tcb.nxt += len;
    tcb.retransmit_at = earliest_rto[usize::from(tcb.rtt.consults_path())];
}

/// Returns whether a segment needs only headers in front of the payload, and nothing else is pending.
#[inline(always)]
fn needs_headers_only<P: Packet>(tcb: &Tcb, buffers: &ConnBuffers<P>, settings: &Settings) -> bool {
    tcb.state == State::Established
        && !tcb.flags.has_any(TX_SLOW_FLAGS)
        && settings.headers_in_place
        && !buffers.needs_restart
        && buffers.reserved == 0
        && buffers.reassembly.is_empty()
        && buffers.flight.is_clean()
}

/// Writes the headers in front of the `len` bytes of `packet`, the next of the stream. Returns the payload, to be kept
/// until it is acknowledged. `push` is added to ACK. Returns `None`, without effect, if the packet cannot be shared, or
/// if it is a chain whose checksum the port does not compute.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "fields of the header")]
pub(crate) fn prepend_headers<P: Packet>(
    packet: &mut P,
    tcb: &Tcb,
    len: u32,
    push: Control,
    window: u16,
    link: &[u8; ETHERNET_HEADER],
    offload: Offload,
    timestamp_ms: u32,
) -> Option<Bytes> {
    let header = TxHeader {
        tuple: &tcb.tuple,
        seq: tcb.nxt,
        ack: tcb.rcv_nxt,
        control: Control::ACK.with(push),
        window,
        timestamp: None,
        options: &[],
        ecn: Ecn::NotCapable,
        payload: len as usize,
        tso: None,
    };
    let timestamp = Timestamp { value: timestamp_ms.wrapping_add(tcb.ts_offset), echo: tcb.ts_recent };
    let has_timestamps = tcb.flags.has(Flags::TIMESTAMPS);
    if offload.tcp {
        prepend_headers_for::<P, true>(packet, header, timestamp, has_timestamps, link, offload)
    } else if packet.data().len() == packet.len() {
        prepend_headers_for::<P, false>(packet, header, timestamp, has_timestamps, link, offload)
    } else {
        None
    }
}

/// Implements [`prepend_headers`] with `TCP` as the offload of TCP checksums.
#[inline(always)]
fn prepend_headers_for<P: Packet, const TCP: bool>(
    packet: &mut P,
    header: TxHeader,
    timestamp: Timestamp,
    has_timestamps: bool,
    link: &[u8; ETHERNET_HEADER],
    offload: Offload,
) -> Option<Bytes> {
    // The constants let the compiler reduce the header to a few stores of whole words.
    let offload = Offload { tcp: TCP, ..offload };
    match (header.tuple.is_ipv4(), has_timestamps) {
        (true, true) => {
            prepend_headers_as::<P, true, true, { ETHERNET_HEADER + 52 }>(packet, header, timestamp, link, offload)
        }
        (true, false) => {
            prepend_headers_as::<P, true, false, { ETHERNET_HEADER + 40 }>(packet, header, timestamp, link, offload)
        }
        (false, true) => {
            prepend_headers_as::<P, false, true, { ETHERNET_HEADER + 72 }>(packet, header, timestamp, link, offload)
        }
        (false, false) => {
            prepend_headers_as::<P, false, false, { ETHERNET_HEADER + 60 }>(packet, header, timestamp, link, offload)
        }
    }
}

/// Implements [`prepend_headers`] with `N` bytes of headers.
#[inline(always)]
fn prepend_headers_as<P: Packet, const IPV4: bool, const TIMESTAMP: bool, const N: usize>(
    packet: &mut P,
    header: TxHeader,
    timestamp: Timestamp,
    link: &[u8; ETHERNET_HEADER],
    offload: Offload,
) -> Option<Bytes> {
    let header = TxHeader { timestamp: if TIMESTAMP { Some(timestamp) } else { None }, ..header };
    header.write_frame::<IPV4, N>(packet.prepend(N)?.first_chunk_mut()?, link, offload);
    let is_complete = offload.tcp || complete_checksum(packet.data_mut(), ETHERNET_HEADER + if IPV4 { 20 } else { 40 });
    let Some(kept) = packet.retain(N).filter(|_| is_complete) else {
        let _ = packet.adjust(N);
        return None;
    };
    if let Some(offload) = header.offload_for(IPV4, offload) {
        packet.set_tx_offload(offload);
    }
    Some(kept)
}
