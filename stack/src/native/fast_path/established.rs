//! The fast path: header prediction (Jacobson, "4BSD TCP Header Prediction", 1990) and what answers it.
//!
//! Nearly every segment of a connection that asks and answers is the next in order, has nothing out of the ordinary, and
//! acknowledges the one segment that is in flight; and nearly everything sent is one packet as the service left it. Here a
//! few comparisons find that out, and nothing is done until it is certain. The steps are those of
//! [`input`](crate::native::receive::input) and [`output`](crate::native::send::output), which do everything else.

use crate::congestion::CongestionControl;
use crate::demux::demux_fast::field;
use crate::egress::{ETHERNET, Egress};
use crate::engine::Head;
use crate::fast_paths::FastPath;
use crate::native::connection::Pinned;
use crate::native::recovery::{Answer, Flight};
use crate::native::segment::header::{Control, Ecn, Header, Offload};
use crate::native::segment::options::Timestamp;
use crate::native::segment::seq::Seq;
use crate::native::send::output::deadline;
use crate::native::settings::Settings;
use crate::native::tcb::cold::Cold;
use crate::native::tcb::conn_buffers::{Buffers, CROWDED};
use crate::native::tcb::{Block, Flags, State};
use crate::native::timers::tick::Tick;
use crate::native::{NativeEngine, SEGMENTS_PER_TURN};
use linerate_bypass::time::Instant;
use linerate_bypass::{Bytes, Nic, Packet};

/// The length of the header and the flags of a segment that is nothing but an acknowledgement and perhaps data, as they are
/// in bytes 12 and 13 of the TCP header (RFC 9293 §3.1): without options, and with a timestamp.
const PLAIN: u32 = 0x5010;
const WITH_TIMESTAMP: u32 = 0x8010;
/// The flag that makes no difference.
const PUSH: u32 = 0x0008;

/// What makes an arrival more than its data and what they acknowledge.
const UNUSUAL_TO_TAKE: Flags = Flags::ECN.or(Flags::PERSIST);

/// What makes sending more than putting headers in front of a packet.
const UNUSUAL_TO_SEND: Flags = Flags::FIN_QUEUED
    .or(Flags::RESET)
    .or(Flags::PROBE)
    .or(Flags::WINDOW_PROBE)
    .or(Flags::KEEPALIVE)
    .or(Flags::PERSIST)
    .or(Flags::DUPLICATE)
    .or(Flags::ECN);

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Takes in a segment of the connection in `slot` if it is as expected; otherwise gives it back, to be taken in as if nothing
    /// had been done.
    #[inline]
    pub(crate) fn take_predicted(&mut self, slot: u32, head: &Head, mut packet: P, now: Instant) -> Option<P> {
        if !self.shared.settings.fast_paths.has(FastPath::HeaderPrediction) {
            return Some(packet);
        }
        let Some(block) = self.blocks.get_mut(slot as usize) else { return Some(packet) };
        let data = packet.data();
        let Some((_, tcp)) = data.split_at_checked(head.tcp) else { return Some(packet) };
        let Some(fixed) = tcp.first_chunk::<20>() else { return Some(packet) };
        let expected = if block.flags.has(Flags::TIMESTAMPS) { WITH_TIMESTAMP } else { PLAIN };
        let flags_and_window = field(fixed, 12);
        if block.tuple != head.tuple
            || !block.flags.has(Flags::IN_TABLE)
            || block.flags.has_any(UNUSUAL_TO_TAKE)
            || block.state != State::Established
            || flags_and_window >> 16 & !PUSH != expected
            || Seq(field(fixed, 4)) != block.rcv_nxt
        {
            return Some(packet);
        }
        let header = (expected >> 12) as usize * 4;
        let Some(len) = tcp.len().checked_sub(header) else { return Some(packet) };
        let len = len as u32;
        let ack = Seq(field(fixed, 8));
        let acknowledged = ack - block.una;
        // What neither brings nor acknowledges anything, or what was acknowledged before, may be a duplicate.
        if len > block.rcv_window()
            || acknowledged > block.outstanding()
            || len == 0 && acknowledged == 0
            || packet.len() != data.len()
            || self.shared.is_low()
        {
            return Some(packet);
        }
        if let Some(buffers) = self.shared.buffers.of(block)
            && (!buffers.flight.is_clean() || !buffers.reassembly.is_empty() || buffers.received.len() >= CROWDED)
        {
            return Some(packet);
        }
        if expected == WITH_TIMESTAMP {
            let options = tcp[20..].first_chunk();
            let Some(timestamp) = options.and_then(|options| block.newer(options)) else { return Some(packet) };
            // RFC 7323 §4.3: only what continues the last acknowledgement sent, so that a delayed one echoes the first. This
            // holds whoever takes the segment in.
            if block.rcv_acked == block.rcv_nxt {
                block.ts_recent = timestamp;
            }
        }
        if !packet.adjust(head.tcp + header) {
            return Some(packet);
        }

        // From here on it is certain.
        let buffers = self.shared.buffers.attach(block);
        block.wl1 = block.rcv_nxt;
        take_window(slot, block, &mut self.cold, flags_and_window as u16);
        let mut notable = None;
        if acknowledged != 0 {
            if len == 0 || block.unsent > 0 || !buffers.queue.is_lone() || !buffers.flight.is_answered_by(ack) {
                return self.take_with_others(slot, ack, packet, len, now);
            }
            notable = acknowledge_lone(block, buffers, &mut self.shared.pinned, ack, now);
        }
        buffers.turned = acknowledged != 0;
        hold(block, buffers, packet, len);
        self.shared.pinned.all += 1;
        if block.list(Flags::READABLE | Flags::TOUCHED | Flags::DIRTY) {
            self.shared.active.push(slot);
        }
        if let Some(answer) = notable {
            self.report(slot, ack, acknowledged, answer, now);
        }
        None
    }

    /// Takes in a predicted segment of the connection in `slot`, with `len` bytes or none, that acknowledges what more is in
    /// flight than one segment, or queued.
    #[inline(never)]
    fn take_with_others(&mut self, slot: u32, ack: Seq, packet: P, len: u32, now: Instant) -> Option<P> {
        let mut news =
            if self.acknowledge_in_order(slot, ack, len == 0, now) { Flags::DIRTY } else { Flags::default() };
        let block = self.blocks.get_mut(slot as usize)?;
        if block.flags.has(Flags::WANTS_ROOM) {
            news |= Flags::TOUCHED;
        }
        if len > 0 {
            let buffers = self.shared.buffers.attach(block);
            hold(block, buffers, packet, len);
            self.shared.pinned.all += 1;
            news |= Flags::READABLE | Flags::TOUCHED | Flags::DIRTY;
        }
        if news != Flags::default() && block.list(news) {
            self.shared.active.push(slot);
        }
        None
    }

    /// New data is acknowledged, up to `ack`, on a connection on which nothing was ever missing. Returns whether there may
    /// be something to send for it.
    #[inline(never)]
    fn acknowledge_in_order(&mut self, slot: u32, ack: Seq, pure: bool, now: Instant) -> bool {
        let Some(block) = self.blocks.get_mut(slot as usize) else { return false };
        let Some(buffers) = self.shared.buffers.of_mut(block) else { return false };
        let packets = buffers.queue.acknowledge(ack);
        self.shared.pinned.unqueue(packets);
        let acknowledged = ack - block.una;
        block.una = ack;
        // What is left is due no sooner than it was.
        if ack == block.nxt {
            block.retransmit_at = Tick::NONE;
        }
        let answer = buffers.flight.answered(ack, pure, now, &mut block.rtt);
        let sends = block.unsent > 0 || buffers.queue.is_empty();
        if answer.notable {
            self.report(slot, ack, acknowledged, answer, now);
        }
        sends
    }

    /// Tells the path and congestion control of the connection in `slot` of an acknowledgement in order.
    #[inline(never)]
    pub(crate) fn report(&mut self, slot: u32, ack: Seq, acknowledged: u32, answer: Answer, now: Instant) {
        let Some(block) = self.blocks.get_mut(slot as usize) else { return };
        let Some(buffers) = self.shared.buffers.of_mut(block) else { return };
        let Some(cold) = self.cold.get_mut(slot as usize) else { return };
        let (rtt, path, control) = (&mut block.rtt, &mut cold.path, &mut cold.control);
        let limits = &self.shared.settings.limits;
        buffers.flight.report(ack, acknowledged, answer.sample, answer.lone, now, rtt, path, control, limits);
        block.cwnd = control.window();
    }

    /// Sends the only packet received on the connection in `slot` back on it, if it is as simple as that. Returns how many
    /// bytes that were; `None` when nothing has changed.
    #[inline(never)]
    pub(crate) fn echo_lone<N: Nic<Packet = P>>(
        &mut self,
        slot: u32,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Option<usize> {
        if !self.shared.settings.fast_paths.has(FastPath::EchoLone) {
            return None;
        }
        let is_low = self.shared.is_low();
        let block = self.blocks.get_mut(slot as usize)?;
        let buffers = self.shared.buffers.of_mut(block)?;
        let len = block.received;
        let settings = &self.shared.settings;
        if !is_ordinary(block, buffers, settings)
            || len.wrapping_sub(1) >= u32::from(block.mss)
            || block.unsent > 0
            || block.una != block.nxt
            || len > block.snd_wnd.min(block.cwnd)
            || !buffers.queue.is_empty()
            || egress.room() == 0
        {
            return None;
        }
        let packet = buffers.received.only_mut()?;
        let link = egress.link_header(block.tuple.remote_v6().to_bits(), now)?;
        let window = block.offer_all(is_low)?;
        let kept = dress(packet, block, len, Control::PSH, window, link, settings.offload, self.shared.milliseconds)?;
        let packet = buffers.received.take_only()?;
        buffers.queue.push_lone(block.nxt, kept);
        self.shared.pinned.queued += 1;
        block.received = 0;
        // What was to be acknowledged has been.
        block.flags.clear(Flags::DIRTY | Flags::CONSUMED);
        egress.send_frame(packet);
        set_out(block, &mut buffers.flight, len, &self.shared.soonest, now);
        block.was_acknowledged();
        let has_turned = std::mem::take(&mut buffers.turned);
        self.shared.arm_for(slot, block, block.retransmit_at);
        // Most connections that have answered twice take turns from there on.
        if has_turned {
            self.begin_turns(slot, now);
        }
        Some(len as usize)
    }

    /// Sends what the connection in `slot` has to send if that is whole packets, each a segment, and nothing else is the
    /// matter. Returns whether it was all that.
    #[inline(always)]
    pub(crate) fn send_whole<N: Nic<Packet = P>>(&mut self, slot: u32, egress: &mut Egress<N>, now: Instant) -> bool {
        if !self.shared.settings.fast_paths.has(FastPath::SendWhole) {
            return false;
        }
        let is_low = self.shared.is_low();
        let Some(block) = self.blocks.get(slot as usize) else { return false };
        if block.unsent > 0 && self.shared.buffers.of(block).is_some_and(|buffers| buffers.idle) {
            self.connection(slot).restart(now);
        }
        let Some(block) = self.blocks.get_mut(slot as usize) else { return false };
        let Some(buffers) = self.shared.buffers.of_mut(block) else { return false };
        let settings = &self.shared.settings;
        let mss = u32::from(block.mss);
        if block.unsent == 0
            || block.unsent > mss && settings.tso.is_some()
            || block.received > 0
            || settings.nagle && (block.unsent > mss || block.una != block.nxt)
            || settings.pacing
            || !is_ordinary(block, buffers, settings)
        {
            return false;
        }
        let Some(window) = block.offer_all(is_low) else { return false };
        let most = block.snd_wnd.min(block.cwnd);
        let was_idle = block.una == block.nxt;
        let mut sent = 0;
        for _ in 0..SEGMENTS_PER_TURN {
            if egress.room() == 0 {
                break;
            }
            let Some((len, packet)) = buffers.queue.next_packet(block.nxt) else { break };
            // A short one goes only as the last.
            if len > mss || len < mss && len != block.unsent || block.outstanding() + len > most {
                break;
            }
            let Some(link) = egress.link_header(block.tuple.remote_v6().to_bits(), now) else { break };
            let push = if len == block.unsent { Control::PSH } else { Control::ACK };
            let Some(kept) = dress(packet, block, len, push, window, link, settings.offload, self.shared.milliseconds)
            else {
                break;
            };
            let Some(packet) = buffers.queue.packet_sent(kept) else { break };
            egress.send_frame(packet);
            block.unsent -= len;
            sent += 1;
            if sent == 1 && was_idle {
                set_out(block, &mut buffers.flight, len, &self.shared.soonest, now);
            } else {
                buffers.flight.sent(len, now, block.cwnd);
                block.nxt += len;
            }
            if block.unsent == 0 {
                break;
            }
        }
        let has_turned = std::mem::take(&mut buffers.turned);
        if sent > 0 {
            block.flags.clear(Flags::CONSUMED);
            block.was_acknowledged();
            if (sent > 1 || !was_idle)
                && let Some(cold) = self.cold.get(slot as usize)
            {
                block.retransmit_at = deadline(buffers, block, cold, &settings.limits);
            }
        }
        self.shared.arm_for(slot, block, block.retransmit_at);
        let is_done = block.unsent == 0;
        if has_turned && is_done && sent == 1 && was_idle {
            self.begin_turns(slot, now);
        }
        is_done
    }
}

/// The peer offers the window that `field` says, on the connection in `slot`.
#[inline(always)]
pub(crate) fn take_window<C: CongestionControl>(slot: u32, block: &mut Block, cold: &mut [Cold<C>], field: u16) {
    let window = u32::from(field) << block.snd_scale();
    if window != block.snd_wnd {
        block.snd_wnd = window;
        if let Some(cold) = cold.get_mut(slot as usize) {
            cold.offered(window, block.snd_scale());
        }
    }
}

/// `ack` acknowledges the one segment that is in flight, and nothing is queued behind it. Returns what is to be
/// [reported](NativeEngine::report) of that.
#[inline(always)]
pub(crate) fn acknowledge_lone<P: Packet>(
    block: &mut Block,
    buffers: &mut Buffers<P>,
    pinned: &mut Pinned,
    ack: Seq,
    now: Instant,
) -> Option<Answer> {
    let packets = buffers.queue.acknowledge_lone();
    pinned.unqueue(packets);
    block.una = ack;
    block.retransmit_at = Tick::NONE;
    let answer = buffers.flight.answered(ack, false, now, &mut block.rtt);
    answer.notable.then_some(answer)
}

/// Puts the `len` bytes of `packet`, the next in order, into the receive queue.
#[inline(always)]
fn hold<P: Packet>(block: &mut Block, buffers: &mut Buffers<P>, packet: P, len: u32) {
    buffers.received.push_back(packet);
    block.rcv_nxt += len;
    block.received += len;
    // One that the port has put together of several wants an answer as they do.
    block.unanswered = block.unanswered.saturating_add(1 + u8::from(len > u32::from(block.mss)));
}

/// The only `len` bytes in flight have gone out.
#[inline(always)]
pub(crate) fn set_out(block: &mut Block, flight: &mut Flight, len: u32, soonest: &[Tick; 2], now: Instant) {
    flight.sent_lone(len, now, block.cwnd);
    block.nxt += len;
    block.retransmit_at = soonest[usize::from(block.rtt.consults_path())];
}

/// Whether what can be sent needs no more than headers in front of it, with nothing else to be said.
#[inline(always)]
fn is_ordinary<P: Packet>(block: &Block, buffers: &Buffers<P>, settings: &Settings) -> bool {
    block.state == State::Established
        && !block.flags.has_any(UNUSUAL_TO_SEND)
        && settings.only_headers
        && !buffers.idle
        && buffers.reserved == 0
        && buffers.reassembly.is_empty()
        && buffers.flight.is_clean()
}

/// Puts the headers in front of the `len` bytes of `packet`, the next of the stream, and returns those, to be kept until they
/// are acknowledged; `push` is a flag beside ACK. `None` if that cannot be; nothing has changed then.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "what a header is made of")]
pub(crate) fn dress<P: Packet>(
    packet: &mut P,
    block: &Block,
    len: u32,
    push: Control,
    window: u16,
    link: &[u8; ETHERNET],
    offload: Offload,
    milliseconds: u32,
) -> Option<Bytes> {
    let header = Header {
        tuple: &block.tuple,
        seq: block.nxt,
        ack: block.rcv_nxt,
        control: Control::ACK.and(push),
        window,
        timestamp: None,
        options: &[],
        ecn: Ecn::NotCapable,
        payload: len as usize,
        tso: None,
    };
    let timestamp = Timestamp { value: milliseconds.wrapping_add(block.ts_offset), echo: block.ts_recent };
    // What the compiler knows makes this a few stores of whole words.
    let offload = Offload { tcp: true, ..offload };
    match (block.tuple.is_ipv4(), block.flags.has(Flags::TIMESTAMPS)) {
        (true, true) => dress_as::<P, true, true, { ETHERNET + 52 }>(packet, header, timestamp, link, offload),
        (true, false) => dress_as::<P, true, false, { ETHERNET + 40 }>(packet, header, timestamp, link, offload),
        (false, true) => dress_as::<P, false, true, { ETHERNET + 72 }>(packet, header, timestamp, link, offload),
        (false, false) => dress_as::<P, false, false, { ETHERNET + 60 }>(packet, header, timestamp, link, offload),
    }
}

/// [`dress`], with `N` bytes of headers.
#[inline(always)]
fn dress_as<P: Packet, const IPV4: bool, const TIMESTAMP: bool, const N: usize>(
    packet: &mut P,
    header: Header,
    timestamp: Timestamp,
    link: &[u8; ETHERNET],
    offload: Offload,
) -> Option<Bytes> {
    let header = Header { timestamp: if TIMESTAMP { Some(timestamp) } else { None }, ..header };
    header.write_frame::<IPV4, N>(packet.prepend(N)?.first_chunk_mut()?, link, offload);
    let Some(kept) = packet.retain(N) else {
        let _ = packet.adjust(N);
        return None;
    };
    if let Some(offload) = header.offload_of(IPV4, offload) {
        packet.set_tx_offload(offload);
    }
    Some(kept)
}
