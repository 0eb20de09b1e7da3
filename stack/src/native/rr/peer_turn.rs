//! Turns are taken, and connections begin and cease to take them.

use super::{Exchange, Ours, Turn};
use crate::congestion::CongestionControl;
use crate::demux::demux_fast::field;
use crate::egress::Egress;
use crate::engine::Head;
use crate::fast_paths::FastPath;
use crate::native::NativeEngine;
use crate::native::fast_path::established::take_window;
use crate::native::tcb::{Block, Flags};
use crate::native::timers::tick::Tick;
use linerate_bypass::time::Instant;
use linerate_bypass::{Nic, Packet};

/// Of how many round trips one is reported to what is known of the path.
const REPORTED: u32 = 16;

/// A segment that is the peer's turn.
struct Arrival {
    /// The length of its headers and of its payload.
    header: usize,
    len: u32,
    /// The window field.
    window: u16,
    /// TSval; without timestamps what it was.
    timestamp: u32,
}

impl<P> Ours<P> {
    /// `packet` has been received.
    #[inline(always)]
    fn new(packet: P) -> Self {
        Ours { received: Some(packet), written: None, reserved: 0 }
    }
}

impl<P: Packet> Exchange<P> {
    /// What `packet` is, of the connection of `block` and with a TCP header of `N` bytes, if it is the peer's turn: the next
    /// data in order, which acknowledge all that was sent, and nothing else.
    #[inline(always)]
    fn next<const N: usize>(&self, block: &Block, head: &Head, packet: &P) -> Option<Arrival> {
        // First, so that the tuple, of which much is in registers, is done with.
        if block.tuple != head.tuple {
            return None;
        }
        let data = packet.data();
        let (header, payload) = data.get(head.tcp..)?.split_first_chunk::<N>()?;
        let len = payload.len() as u32;
        let fixed = header.first_chunk::<20>()?;
        let flags_and_window = field(fixed, 12);
        // The length of the header, and the flags: an acknowledgement, and perhaps PSH (RFC 9293 §3.1).
        if flags_and_window >> 16 & !0x0008 != (N as u32) << 10 | 0x0010
            || field(fixed, 4) != block.rcv_nxt.0
            || field(fixed, 8) != block.nxt.0
            || len.wrapping_sub(1) >= block.rcv_window()
            || packet.len() != data.len()
            || matches!(self.turn, Turn::Ours(_))
        {
            return None;
        }
        let mut timestamp = block.ts_recent;
        if N == 32 {
            timestamp = block.newer(header.last_chunk()?)?;
        }
        Some(Arrival { header: head.tcp + N, len, window: flags_and_window as u16, timestamp })
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Takes in a segment of the connection in `slot` if it is the peer's turn in an exchange: the next data in order, which
    /// acknowledge all that was sent. Otherwise gives it back; if the connection has an exchange, it has none any more.
    #[inline(always)]
    pub(crate) fn take_turn(&mut self, slot: u32, head: &Head, packet: P, now: Instant) -> Option<P> {
        let Some(block) = self.blocks.get(slot as usize) else { return Some(packet) };
        if !block.is_exchanging() {
            return Some(packet);
        }
        if block.flags.has(Flags::TIMESTAMPS) {
            self.take_turn_as::<32>(slot, head, packet, now)
        } else {
            self.take_bare_turn(slot, head, packet, now)
        }
    }

    /// [`take_turn`](Self::take_turn) without timestamps.
    #[inline(never)]
    fn take_bare_turn(&mut self, slot: u32, head: &Head, packet: P, now: Instant) -> Option<P> {
        self.take_turn_as::<20>(slot, head, packet, now)
    }

    /// [`take_turn`](Self::take_turn) on a connection that has an exchange, with a TCP header of `N` bytes.
    #[inline(always)]
    fn take_turn_as<const N: usize>(&mut self, slot: u32, head: &Head, mut packet: P, now: Instant) -> Option<P> {
        let Some(block) = self.blocks.get_mut(slot as usize) else { return Some(packet) };
        let Some(exchange) = self.shared.exchanges.of_mut(block) else { return Some(packet) };
        let arrival = exchange.next::<N>(block, head, &packet);
        let Some(arrival) = arrival.filter(|arrival| packet.adjust(arrival.header)) else {
            self.settle(slot);
            return Some(packet);
        };
        let Arrival { len, window, timestamp, .. } = arrival;
        // All before it has been acknowledged, so that it continues the last acknowledgement sent (RFC 7323 §4.3).
        block.ts_recent = timestamp;
        if window != exchange.window {
            exchange.window = window;
            take_window(slot, block, &mut self.cold, window);
        }
        block.una = block.nxt;
        block.retransmit_at = Tick::NONE;
        block.rcv_nxt += len;
        block.received = len;
        exchange.turns = exchange.turns.wrapping_add(1);
        let is_reported = exchange.turns % REPORTED == 0;
        let sample = now.as_nanos().saturating_sub(exchange.sent_at.as_nanos());
        block.rtt.sample_nanos(sample, 0);
        // What was sent is let go of, and what has come is held instead.
        if let Turn::Theirs(sent) = std::mem::replace(&mut exchange.turn, Turn::Ours(Ours::new(packet))) {
            drop(sent);
        }
        self.shared.exchanges.ours += 1;
        self.shared.exchanges.news.push(self.shared.id(slot, block));
        if is_reported {
            self.report_turn(slot, sample, now);
        }
        None
    }

    /// Takes in what a round trip of the connection in `slot` says of the path.
    #[inline(never)]
    fn report_turn(&mut self, slot: u32, sample: u64, now: Instant) {
        let (Some(block), Some(cold)) = (self.blocks.get_mut(slot as usize), self.cold.get_mut(slot as usize)) else {
            return;
        };
        cold.path.measured_nanos(sample, now);
        cold.path.advise(&mut block.rtt, &self.shared.settings.limits);
    }

    /// What the connection in `slot` has just sent is all that is on its way, and nothing else is the matter: from now on its
    /// ends take turns.
    #[inline(never)]
    pub(crate) fn begin_turns(&mut self, slot: u32, now: Instant) {
        let (Some(block), Some(cold)) = (self.blocks.get_mut(slot as usize), self.cold.get(slot as usize)) else {
            return;
        };
        let Some(buffers) = self.shared.buffers.of_mut(block) else { return };
        if block.received > 0
            || block.unsent > 0
            || block.flags & (Flags::OPEN | Flags::WANTS_ROOM) != Flags::OPEN
            || !self.shared.settings.fast_paths.has(FastPath::RequestResponse)
            || self.shared.settings.pacing
            || !block.rtt.has_sample()
            || cold.path.backoff() > 0
        {
            return;
        }
        let Some(sent) = buffers.queue.take_lone() else { return };
        self.shared.buffers.detach(block);
        block.flags.clear(Flags::CONSUMED);
        self.shared.exchanges.begin(block, sent, now);
        self.shared.pinned.queued -= 1;
    }

    /// The wheel's entry of the connection in `slot` has come up. Returns whether that was all: the connection has an exchange in
    /// which nothing is due, and the wheel another entry for it.
    #[inline]
    pub(crate) fn is_early(&mut self, slot: u32, now: Instant) -> bool {
        let Some(block) = self.blocks.get_mut(slot as usize) else { return false };
        // Services' timers and lingering are not looked at here.
        let others = !self.shared.service_timers.is_empty() || !self.shared.lingering.is_empty();
        if !block.is_exchanging() || others || block.retransmit_at.is_due(Tick::of(now)) {
            return false;
        }
        block.wheel_at = Tick::NONE;
        self.shared.arm_for(slot, block, block.retransmit_at);
        if let Some(timeout) = self.shared.settings.idle_timeout {
            // A connection that comes to rest before leaves its exchange, and notes when.
            self.shared.arm_for(slot, block, Tick::at_or_after(now + timeout));
        }
        true
    }

    /// Answers those whose turn it was and whose service has written an answer, and sees to those whose service has not
    /// answered.
    #[inline]
    pub(crate) fn end_turns<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        if self.shared.exchanges.ours > 0 {
            self.answer_or_settle(egress, now);
        }
        self.shared.exchanges.news.clear();
        self.shared.exchanges.told = false;
    }

    #[inline(never)]
    fn answer_or_settle<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        let mut news = std::mem::take(&mut self.shared.exchanges.news);
        for conn in news.drain(..) {
            let slot = conn.slot() as u32;
            if self.answer_turn::<true, N>(slot, egress, now).is_none() && self.is_ours(slot) {
                self.settle(slot);
            }
        }
        self.shared.exchanges.news = news;
    }

    /// Whether the connection in `slot` has an exchange in which it is our turn.
    #[inline(always)]
    fn is_ours(&self, slot: u32) -> bool {
        let block = self.blocks.get(slot as usize);
        let exchange = block.and_then(|block| self.shared.exchanges.of(block));
        exchange.is_some_and(|exchange| matches!(exchange.turn, Turn::Ours(_)))
    }

    /// Makes the connection in `slot`, which has an exchange, an ordinary one.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle(&mut self, slot: u32) {
        let Some(block) = self.blocks.get_mut(slot as usize) else { return };
        let Some((turn, sent_at)) = self.shared.exchanges.end(block) else { return };
        let buffers = self.shared.buffers.attach(block);
        // It was not idle.
        buffers.idle = false;
        match turn {
            Turn::Ours(Ours { received, written, reserved }) => {
                // It is all that has not been acknowledged.
                block.wl1 = block.rcv_acked;
                let len = block.rcv_nxt - block.rcv_acked;
                // One that the port has put together of several wants an answer as they do.
                block.unanswered = 1 + u8::from(len > u32::from(block.mss));
                let mut news = Flags::DIRTY;
                if let Some(packet) = received {
                    buffers.received.push_back(packet);
                }
                match written {
                    Some(packet) if block.unsent + reserved > 0 => {
                        buffers.queue.push_packet(block.nxt, packet);
                        buffers.reserved = reserved;
                    }
                    Some(_) => self.shared.pinned.unqueue(1),
                    None => {}
                }
                // Its service is to be told of it, if it has not been.
                if self.shared.exchanges.withdraw(slot) {
                    news |= Flags::READABLE | Flags::TOUCHED;
                }
                if block.list(news) {
                    self.shared.active.push(slot);
                }
            }
            Turn::Theirs(sent) => {
                block.wl1 = block.rcv_nxt;
                buffers.flight.resume_lone(sent.len() as u32, sent_at, block.cwnd);
                buffers.queue.push_lone(block.una, sent);
                self.shared.pinned.queued += 1;
            }
        }
    }
}
