//! Request-response mode, for connections on which requests and responses alternate.
//!
//! At any time such a connection has at most one packet unread and one packet unacknowledged, and its state fits into
//! one cache line. Promotion replaces the [`ConnBuffers`](crate::tcp::tcb::conn_buffers::ConnBuffers) of a connection
//! by an `RrState` (`tcb/rr_state.rs`). Its next segment has to pass a few comparisons, and its response needs only
//! headers: either the request is sent back, or the service consumes it and writes a response of its own.
//!
//! Any other event demotes the connection to the general path: a segment that is no request, a timer, or another
//! operation. Code of the general path calls [`demote`](crate::tcp::connection::Connection::demote) first.

use crate::config::fast_paths::FastPath;
use crate::engine::SegmentMeta;
use crate::ip::egress::Egress;
use crate::tcp::NativeEngine;
use crate::tcp::clock::tick::Tick;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::settings::Settings;
use crate::tcp::connection::{Connection, Shared};
use crate::tcp::fast_path::established::{prepend_headers, update_snd_window};
use crate::tcp::recovery::{Path, RttEstimator};
use crate::tcp::tcb::rr_state::{LocalTurn, RrState, Turn};
use crate::tcp::tcb::{Flags, Tcb};
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::wire::tcp::field;
use crate::wire::tcp::header::Control;
use linerate_bypass::{Nic, Packet};
use linerate_service::Bytes;
use linerate_service::time::Instant;

/// One RTT sample in this many is reported to the path estimator.
const PATH_SAMPLE_INTERVAL: u32 = 16;

struct PeerSegment {
    /// Lengths of the headers and of the payload.
    header: usize,
    len: u32,
    window: u16,
    /// TSval; TS.Recent without timestamps.
    timestamp: u32,
}

impl<P> LocalTurn<P> {
    /// Creates the turn that answers `packet`.
    #[inline(always)]
    fn new(packet: P) -> Self {
        LocalTurn { request: Some(packet), response: None, reserved: 0 }
    }
}

impl<P: Packet> RrState<P> {
    /// Parses `packet` if it is the next request of the connection of `tcb`, with a TCP header of `N` bytes: the next
    /// data in order, which acknowledges everything sent.
    #[inline(always)]
    fn match_segment<const N: usize>(&self, tcb: &Tcb, meta: &SegmentMeta, packet: &P) -> Option<PeerSegment> {
        // First, because much of the tuple is still in registers.
        if tcb.tuple != meta.tuple {
            return None;
        }
        let data = packet.data();
        let (header, payload) = data.get(meta.tcp_offset..)?.split_first_chunk::<N>()?;
        let len = payload.len() as u32;
        let fixed = header.first_chunk::<20>()?;
        let flags_and_window = field(fixed, 12);
        // Header length and control bits: ACK, and optionally PSH (RFC 9293 §3.1).
        if flags_and_window >> 16 & !0x0008 != (N as u32) << 10 | 0x0010
            || field(fixed, 4) != tcb.rcv_nxt.0
            || field(fixed, 8) != tcb.nxt.0
            || len.wrapping_sub(1) >= tcb.rcv_window()
            || packet.len() != data.len()
            || matches!(self.turn, Turn::Local(_))
        {
            return None;
        }
        let mut timestamp = tcb.ts_recent;
        if N == 32 {
            timestamp = tcb.paws_ok(header.last_chunk()?)?;
        }
        Some(PeerSegment { header: meta.tcp_offset + N, len, window: flags_and_window as u16, timestamp })
    }
}

#[inline(never)]
fn report_rtt(rtt: &mut RttEstimator, path: &mut Path, settings: &Settings, sample: u64, now: Instant) {
    path.measured_nanos(sample, now);
    path.update_consults_path(rtt, &settings.limits);
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Processes a segment if the connection is in request-response mode and the segment is its next request. Otherwise
    /// demotes the connection and returns the packet.
    #[inline(always)]
    pub(crate) fn rr_receive(&mut self, meta: &SegmentMeta, packet: P, now: Instant) -> Option<P> {
        if !self.tcb.in_rr_mode() {
            return Some(packet);
        }
        if self.tcb.flags.has(Flags::TIMESTAMPS) {
            self.rr_receive_as::<32>(meta, packet, now)
        } else {
            self.reborrow().rr_receive_without_timestamps(*meta, packet, now)
        }
    }

    /// Processes a segment like [`rr_receive`](Self::rr_receive), without timestamps.
    #[inline(never)]
    fn rr_receive_without_timestamps(mut self, meta: SegmentMeta, packet: P, now: Instant) -> Option<P> {
        self.rr_receive_as::<20>(&meta, packet, now)
    }

    /// Processes a segment like [`rr_receive`](Self::rr_receive), in request-response mode and with a TCP header of `N`
    /// bytes.
    #[inline(always)]
    fn rr_receive_as<const N: usize>(&mut self, meta: &SegmentMeta, mut packet: P, now: Instant) -> Option<P> {
        let tcb = &mut *self.tcb;
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return Some(packet) };
        let segment = rr.match_segment::<N>(tcb, meta, &packet);
        let Some(segment) = segment.filter(|segment| packet.adjust(segment.header)) else {
            self.demote();
            return Some(packet);
        };
        let PeerSegment { len, window, timestamp, .. } = segment;
        // All previous data was acknowledged, so the segment continues the last acknowledgement sent (RFC 7323 §4.3).
        tcb.ts_recent = timestamp;
        if window != rr.window {
            rr.window = window;
            update_snd_window(tcb, &mut self.cold, window);
        }
        tcb.una = tcb.nxt;
        tcb.retransmit_at = Tick::NONE;
        tcb.rcv_nxt += len;
        tcb.received = len;
        rr.peer_turns = rr.peer_turns.wrapping_add(1);
        let is_path_sample = rr.peer_turns % PATH_SAMPLE_INTERVAL == 0;
        let sample = now.as_nanos().saturating_sub(rr.sent_at.as_nanos());
        tcb.rtt.sample_nanos(sample, 0);
        // The acknowledged response is released, and the request takes its place.
        if let Turn::Peer(sent) = std::mem::replace(&mut rr.turn, Turn::Local(LocalTurn::new(packet))) {
            drop(sent);
        }
        self.shared.rr.local_turns += 1;
        self.shared.rr.readable.push(self.shared.id(self.slot, tcb));
        if is_path_sample {
            report_rtt(&mut tcb.rtt, &mut self.cold.path, &self.shared.settings, sample, now);
        }
        None
    }

    /// Promotes the connection to request-response mode if its last segment is the only data in flight and nothing else
    /// is pending.
    #[inline(never)]
    pub(crate) fn promote(self, now: Instant) {
        let tcb = self.tcb;
        let Some(buffers) = self.shared.buffers.of_mut(tcb) else { return };
        if tcb.received > 0
            || tcb.unsent > 0
            || tcb.flags & (Flags::OPEN | Flags::WANTS_ROOM) != Flags::OPEN
            || !self.shared.settings.fast_paths.has(FastPath::RequestResponse)
            || self.shared.settings.pacing
            || !tcb.rtt.has_sample()
            || self.cold.path.backoff() > 0
        {
            return;
        }
        let Some(sent) = buffers.queue.take_lone() else { return };
        self.shared.buffers.detach(tcb);
        tcb.flags.clear(Flags::CONSUMED);
        self.shared.rr.attach(tcb, sent, now);
        self.shared.mbufs_held.queued -= 1;
    }

    /// Returns whether the timer expired early: the connection is in request-response mode, and no deadline has passed.
    /// The timer is armed again.
    #[inline]
    pub(crate) fn rr_timer_is_early(&mut self, now: Instant) -> bool {
        let (slot, tcb) = (self.slot, &mut *self.tcb);
        // Service timers and linger deadlines need the general path.
        let others = !self.shared.timers.service.is_empty() || !self.shared.timers.linger.is_empty();
        if !tcb.in_rr_mode() || others || tcb.retransmit_at.is_due(Tick::of(now)) {
            return false;
        }
        tcb.wheel_at = Tick::NONE;
        self.shared.arm_for(slot, tcb, tcb.retransmit_at);
        if let Some(timeout) = self.shared.settings.idle_timeout {
            // A connection that becomes idle leaves request-response mode, which records the time.
            self.shared.arm_for(slot, tcb, Tick::at_or_after(now + timeout));
        }
        true
    }

    #[inline(always)]
    fn is_local_turn(&self) -> bool {
        self.shared.rr.of(self.tcb).is_some_and(|rr| matches!(rr.turn, Turn::Local(_)))
    }

    /// Demotes the connection from request-response mode to the general path, which uses its queues.
    #[inline(always)]
    pub(crate) fn demote(&mut self) -> Connection<'_, P, C> {
        if self.tcb.in_rr_mode() {
            self.shared.demote(self.slot, self.tcb);
            // Request-response mode does not record the time of its last turn.
            self.cold.idle_since = self.shared.clock.timestamp_ms;
        }
        self.reborrow()
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Ends the local turns: sends the responses written by services, or lets them wait for room in the transmit queue,
    /// and demotes connections without a response.
    #[inline]
    pub(crate) fn rr_flush<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        if self.shared.rr.local_turns > 0 {
            self.rr_send_response_or_demote(egress, now);
        }
        self.shared.rr.readable.clear();
        self.shared.rr.readable_reported = false;
    }

    #[inline(never)]
    fn rr_send_response_or_demote<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        let mut readable = std::mem::take(&mut self.shared.rr.readable);
        for conn in readable.drain(..) {
            let slot = conn.slot() as u32;
            let Some(mut connection) = self.connection(slot) else { continue };
            if connection.rr_send_response::<true, N>(egress, now).is_some() || !connection.is_local_turn() {
                continue;
            }
            if connection.rr_awaits_room(egress) {
                self.shared.tx_backlog.push(slot);
            } else {
                connection.demote();
            }
        }
        self.shared.rr.readable = readable;
    }
}

impl<P: Packet> Shared<P> {
    /// Demotes the connection in `slot` from request-response mode: its data moves to queues.
    #[cold]
    #[inline(never)]
    fn demote(&mut self, slot: u32, tcb: &mut Tcb) {
        let Some((turn, sent_at)) = self.rr.detach(tcb) else { return };
        let buffers = self.buffers.attach(tcb);
        // The connection was not idle.
        buffers.needs_restart = false;
        match turn {
            Turn::Local(LocalTurn { request, response, reserved }) => {
                // The request is the only unacknowledged data.
                tcb.wl1 = tcb.rcv_acked;
                let len = tcb.rcv_nxt - tcb.rcv_acked;
                // A segment merged by LRO counts as two, which triggers an immediate ACK.
                tcb.segs_unacked = 1 + u8::from(len > u32::from(tcb.mss));
                let mut flags = Flags::TX_PENDING;
                if let Some(packet) = request {
                    buffers.received.push_back(packet);
                }
                match response {
                    Some(packet) if tcb.unsent + reserved > 0 => {
                        buffers.queue.push_packet(tcb.nxt, packet);
                        buffers.reserved = reserved;
                    }
                    Some(_) => self.mbufs_held.unqueue(1),
                    None => {}
                }
                // A request that was not reported becomes an event of the general path.
                if self.rr.cancel_readable(slot) {
                    flags |= Flags::READABLE | Flags::NOTIFY;
                }
                if tcb.mark_active(flags) {
                    self.active.push(slot);
                }
            }
            Turn::Peer(sent) => {
                tcb.wl1 = tcb.rcv_nxt;
                buffers.flight.resume_lone(sent.len() as u32, sent_at, tcb.cwnd);
                buffers.queue.push_lone(tcb.una, sent);
                self.mbufs_held.queued += 1;
            }
        }
    }
}

impl Tcb {
    /// Returns whether a response of `len` bytes can be sent as one segment.
    #[inline(always)]
    fn fits_one_segment(&self, len: u32) -> bool {
        let mss = u32::from(self.mss);
        // With room for another segment the congestion window is not the limit (RFC 9438 §5.8), so congestion control
        // need not be notified.
        len <= mss && len + mss <= self.cwnd && len <= self.snd_wnd
    }
}

/// Updates `link`, the Ethernet header of epoch `at`, to the current epoch. Returns `None` if the address of the next
/// hop is unknown.
#[inline(always)]
fn refresh_link<N: Nic>(
    (link, at): (&mut [u8; ETHERNET_HEADER], &mut u32),
    tcb: &Tcb,
    egress: &mut Egress<N>,
    now: Instant,
) -> Option<()> {
    if *at != egress.link_epoch() {
        *link = *egress.link_header(tcb.tuple.remote_v6().to_bits(), now)?;
        *at = egress.link_epoch();
    }
    Some(())
}

impl<P> Shared<P> {
    /// Updates the state after a response of `len` bytes was sent on the connection in `slot`.
    #[inline(always)]
    fn note_response_sent(&mut self, slot: u32, tcb: &mut Tcb, len: u32) {
        self.rr.local_turns -= 1;
        tcb.nxt += len;
        tcb.rcv_acked = tcb.rcv_nxt;
        tcb.retransmit_at = self.clock.earliest_rto[usize::from(tcb.rtt.consults_path())];
        self.arm_for(slot, tcb, tcb.retransmit_at);
    }
}

impl<'a, P: Packet, C: CongestionControl> Connection<'a, P, C> {
    /// Sends the response: with `HAS_RESPONSE`, the data written by the service, if the request was consumed; otherwise
    /// the request itself. Returns the length, or `None` without effect.
    #[inline(always)]
    pub(crate) fn rr_send_response<const HAS_RESPONSE: bool, N: Nic<Packet = P>>(
        &mut self,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Option<usize> {
        let is_low = self.shared.is_low();
        let tcb = &mut *self.tcb;
        let rr = self.shared.rr.of_mut(tcb)?;
        let Turn::Local(turn) = &mut rr.turn else { return None };
        let (own, other, len) = match HAS_RESPONSE {
            true => (&mut turn.response, &turn.request, tcb.unsent),
            false => (&mut turn.request, &turn.response, tcb.received),
        };
        let packet = own.as_mut()?;
        debug_assert_eq!(now, self.shared.clock.now);
        let settings = &self.shared.settings;
        if other.is_some()
            || HAS_RESPONSE && (turn.reserved > 0 || len == 0)
            || !settings.headers_in_place
            || !tcb.fits_one_segment(len)
            || !egress.has_data_room()
        {
            return None;
        }
        refresh_link((&mut rr.link, &mut rr.link_epoch), tcb, egress, now)?;
        let window = tcb.offer_full_window(is_low)?;
        let (link, timestamp_ms) = (&rr.link, self.shared.clock.timestamp_ms);
        let kept = prepend_headers(packet, tcb, len, Control::PSH, window, link, settings.offload, timestamp_ms)?;
        let frame = own.take()?;
        // Nothing is left to drop: the local turn had one packet.
        std::mem::forget(std::mem::replace(&mut rr.turn, Turn::Peer(kept)));
        rr.sent_at = now;
        egress.send_frame(frame);
        if HAS_RESPONSE {
            self.shared.mbufs_held.queued -= 1;
            tcb.unsent = 0;
        } else {
            tcb.received = 0;
        }
        self.shared.note_response_sent(self.slot, tcb, len);
        Some(len as usize)
    }

    /// Replaces the request by a response of `len` bytes from `write`, and sends it. The request must be of
    /// `request_len` bytes and unread. Otherwise returns `write`, and the request is unchanged.
    #[inline(always)]
    pub(crate) fn rr_respond<N: Nic<Packet = P>, W: FnOnce(&mut [u8])>(
        &mut self,
        (request_len, len): (usize, usize),
        write: W,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Result<(), W> {
        let is_low = self.shared.is_low();
        let tcb = &mut *self.tcb;
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return Err(write) };
        let Turn::Local(turn) = &mut rr.turn else { return Err(write) };
        let (Some(packet), None) = (&mut turn.request, &turn.response) else { return Err(write) };
        debug_assert_eq!(now, self.shared.clock.now);
        let settings = &self.shared.settings;
        let size = u32::try_from(len).unwrap_or(u32::MAX);
        if request_len < tcb.received as usize
            || len == 0
            || !settings.headers_in_place
            || !tcb.fits_one_segment(size)
            || !egress.has_data_room()
            || refresh_link((&mut rr.link, &mut rr.link_epoch), tcb, egress, now).is_none()
        {
            return Err(write);
        }
        let Some(window) = tcb.offer_full_window(is_low) else { return Err(write) };
        let Some(payload) = packet.rewrite(len) else { return Err(write) };
        // From here on the request is consumed.
        tcb.received = 0;
        write(payload);
        let (link, timestamp_ms) = (&rr.link, self.shared.clock.timestamp_ms);
        let Some(kept) = prepend_headers(packet, tcb, size, Control::PSH, window, link, settings.offload, timestamp_ms)
        else {
            // The flush sends it.
            turn.response = turn.request.take();
            self.shared.mbufs_held.queued += 1;
            tcb.unsent = size;
            return Ok(());
        };
        let frame = turn.request.take();
        // Nothing is left to drop: the local turn had one packet.
        std::mem::forget(std::mem::replace(&mut rr.turn, Turn::Peer(kept)));
        rr.sent_at = now;
        if let Some(frame) = frame {
            egress.send_frame(frame);
        }
        self.shared.note_response_sent(self.slot, tcb, size);
        Ok(())
    }

    /// Makes the request the response while the transmit queue has no room: [`rr_awaits_room`](Self::rr_awaits_room) is
    /// true afterwards. Returns the length, or `None` without effect.
    pub(crate) fn rr_echo_later<N: Nic<Packet = P>>(&mut self, egress: &Egress<N>) -> Option<usize> {
        let tcb = &mut *self.tcb;
        let Turn::Local(turn) = &mut self.shared.rr.of_mut(tcb)?.turn else { return None };
        if egress.has_data_room() || turn.response.is_some() {
            return None;
        }
        turn.response = Some(turn.request.take()?);
        self.shared.mbufs_held.queued += 1;
        tcb.unsent = std::mem::take(&mut tcb.received);
        Some(tcb.unsent as usize)
    }

    /// Returns whether the response is complete and waits for room in the transmit queue.
    #[inline]
    pub(crate) fn rr_awaits_room<N: Nic<Packet = P>>(&self, egress: &Egress<N>) -> bool {
        let Some(Turn::Local(turn)) = self.shared.rr.of(self.tcb).map(|rr| &rr.turn) else { return false };
        !egress.has_data_room() && turn.request.is_none() && turn.reserved == 0 && self.tcb.unsent > 0
    }

    /// Drops the first `n` bytes of the request. Returns whether the connection is in request-response mode.
    #[inline(always)]
    pub(crate) fn rr_consume(&mut self, n: usize) -> bool {
        let tcb = &mut *self.tcb;
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return false };
        let Turn::Local(turn) = &mut rr.turn else { return true };
        if n >= tcb.received as usize {
            let Some(mut packet) = turn.request.take() else { return true };
            tcb.received = 0;
            // The consumed packet is in the cache; the response may be written into it.
            if turn.response.is_none() && packet.trim(packet.len()) {
                turn.response = Some(packet);
                self.shared.mbufs_held.queued += 1;
            } else {
                self.shared.mbufs_held.all -= 1;
            }
        } else if let Some(packet) = &mut turn.request
            && packet.adjust(n)
        {
            tcb.received -= n as u32;
        }
        true
    }

    /// Takes the request if it has at most `max` bytes; the inner option is `None` if there is no request. Returns
    /// `None` if the general path has to take received bytes.
    #[inline(always)]
    pub(crate) fn rr_take(&mut self, max: usize) -> Option<Option<Bytes>> {
        let tcb = &mut *self.tcb;
        let Turn::Local(turn) = &mut self.shared.rr.of_mut(tcb)?.turn else { return Some(None) };
        let Some(packet) = turn.request.take_if(|packet| packet.len() <= max) else {
            return turn.request.is_none().then_some(None);
        };
        tcb.received = 0;
        self.shared.mbufs_held.all -= 1;
        let len = packet.len();
        Some(Some(packet.into_bytes(0..len)))
    }

    /// Reserves up to `max` bytes at the end of the response. Returns the number reserved: zero outside the local turn,
    /// or if the response does not fit into one segment or packet.
    #[inline(always)]
    pub(crate) fn rr_reserve<N: Nic<Packet = P>>(&mut self, max: usize, egress: &mut Egress<N>) -> usize {
        let tcb = &mut *self.tcb;
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return 0 };
        let Turn::Local(turn) = &mut rr.turn else { return 0 };
        let n = max.min(usize::from(tcb.mss).saturating_sub(tcb.unsent as usize));
        if n == 0 || turn.reserved > 0 {
            return 0;
        }
        if let Some(packet) = &mut turn.response {
            if packet.append(n).is_none() {
                return 0;
            }
        } else {
            // Under memory pressure the response becomes the send queue of a demoted connection at the end of the turn.
            let Some(mut packet) = egress.allocate_for_payload() else { return 0 };
            if packet.append(n).is_none() {
                return 0;
            }
            turn.response = Some(packet);
            self.shared.mbufs_held.queue(1);
        }
        turn.reserved = n as u32;
        n
    }

    /// Returns the last `n` bytes of the response.
    #[inline(always)]
    pub(crate) fn rr_reserved_mut(self, n: usize) -> Option<&'a mut [u8]> {
        let Turn::Local(turn) = &mut self.shared.rr.of_mut(self.tcb)?.turn else { return None };
        let data = turn.response.as_mut()?.data_mut()?;
        let at = data.len().checked_sub(n)?;
        data.get_mut(at..)
    }

    /// Commits the first `n` reserved bytes of the response. Returns whether a response exists.
    ///
    /// # Panics
    ///
    /// If `n` exceeds the number of reserved bytes.
    #[inline(always)]
    pub(crate) fn rr_commit(&mut self, n: usize) -> bool {
        let tcb = &mut *self.tcb;
        let Some(rr) = self.shared.rr.of_mut(tcb) else { return false };
        let Turn::Local(turn) = &mut rr.turn else { return false };
        let Some(packet) = &mut turn.response else { return false };
        let reserved = std::mem::take(&mut turn.reserved) as usize;
        assert!(n <= reserved, "{n} bytes committed of {reserved} reserved");
        if n < reserved {
            // The response is in a single mbuf segment.
            let _ = packet.trim(reserved - n);
        }
        tcb.unsent += n as u32;
        true
    }
}
