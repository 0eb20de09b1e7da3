//! Connections whose ends take turns: a request, its answer, the next request.
//!
//! As long as that is all that happens, what is on its way is at most one packet that the service has not answered and one
//! that the peer has not, and all that is to be known of them fits into one cache line. A connection that has come to this
//! point gives its [`Buffers`](super::buffers::Buffers) back and has an [`Exchange`] instead; its next segment has to pass a
//! few comparisons, and its answer needs no more than headers. Whatever else happens to it, whether a segment that is not its
//! turn, a timer, or an operation other than sending back what was received, comes through
//! [`connection`](NativeEngine::connection), which makes it an ordinary connection again beforehand.

use super::NativeEngine;
use super::block::{Block, Flags, NO_BUFFERS, State};
use super::fast_path::{dress, take_window};
use super::header::Control;
use super::tick::Tick;
use crate::congestion::CongestionControl;
use crate::egress::{ETHERNET, Egress};
use crate::engine::Head;
use crate::shortcut::field;
use linerate_bypass::time::Instant;
use linerate_bypass::{Bytes, ConnId, Nic, Packet};

/// Of a block's place of buffers: that it is the place of an exchange.
const EXCHANGING: u32 = 1 << 31;

/// Of how many round trips one is reported to what is known of the path.
const REPORTED: u32 = 16;

/// Whose turn it is, and what was last said.
enum Turn<P> {
    /// This has been received and is to be answered; everything that was sent has been acknowledged.
    Ours(P),
    /// This has been sent and not acknowledged; everything that was received has been consumed.
    Theirs(Bytes),
}

/// What is on its way between two ends that take turns.
#[repr(align(64))]
pub(super) struct Exchange<P> {
    turn: Turn<P>,
    /// When we last had a turn.
    sent_at: Instant,
    /// Turns that the peer has had.
    turns: u32,
    /// The peer's window when it last had one, as it is on the wire.
    window: u16,
    /// The Ethernet header in front of what we send, and when in [`Egress::link_epoch`] it was right.
    link: [u8; ETHERNET],
    link_epoch: u32,
}

/// All exchanges of a worker.
pub(super) struct Exchanges<P> {
    places: Vec<Exchange<P>>,
    spare: Vec<u32>,
    /// In how many it is our turn.
    ours: usize,
    /// The connections whose turn it has become since the last flush, and whether services have been told.
    news: Vec<ConnId>,
    told: bool,
}

const _: () = assert!(size_of::<Exchange<usize>>() == 64);

impl Block {
    /// Whether the connection has an exchange instead of buffers.
    #[inline(always)]
    pub fn is_exchanging(&self) -> bool {
        self.buffers >= EXCHANGING && self.buffers != NO_BUFFERS
    }
}

impl<P> Exchanges<P> {
    pub fn new() -> Self {
        Exchanges { places: Vec::new(), spare: Vec::new(), ours: 0, news: Vec::new(), told: false }
    }

    /// The exchange of `block`, if it has one.
    #[inline(always)]
    pub fn of(&self, block: &Block) -> Option<&Exchange<P>> {
        // No vector is long enough to have a place that is that of buffers, or none, without the bit.
        self.places.get((block.buffers ^ EXCHANGING) as usize)
    }

    /// The exchange of `block`, if it has one.
    #[inline(always)]
    fn of_mut(&mut self, block: &Block) -> Option<&mut Exchange<P>> {
        self.places.get_mut((block.buffers ^ EXCHANGING) as usize)
    }

    /// Gives `block`, which has no buffers, an exchange in which `sent` has just been sent.
    fn begin(&mut self, block: &mut Block, sent: Bytes, now: Instant) {
        debug_assert!(!block.has_buffers());
        let exchange = Exchange {
            turn: Turn::Theirs(sent),
            sent_at: now,
            turns: 0,
            window: (block.snd_wnd >> block.snd_scale()).min(65_535) as u16,
            link: [0; ETHERNET],
            link_epoch: 0,
        };
        let place = match self.spare.pop() {
            Some(place) => {
                self.places[place as usize] = exchange;
                place
            }
            None => {
                self.places.push(exchange);
                self.places.len() as u32 - 1
            }
        };
        block.buffers = place | EXCHANGING;
    }

    /// Takes the exchange of `block` back. Returns whose turn it was, and when we last had one.
    fn end(&mut self, block: &mut Block) -> Option<(Turn<P>, Instant)> {
        let exchange = self.of_mut(block)?;
        let nothing = Turn::Theirs(Bytes::default());
        let was = (std::mem::replace(&mut exchange.turn, nothing), exchange.sent_at);
        self.ours -= usize::from(matches!(was.0, Turn::Ours(_)));
        self.spare.push(block.buffers ^ EXCHANGING);
        block.buffers = NO_BUFFERS;
        Some(was)
    }

    /// Packets sent and not acknowledged: one in each exchange in which it is the peer's turn.
    pub fn sent(&self) -> usize {
        self.places.len() - self.spare.len() - self.ours
    }

    /// Whether there are turns that services have to be told of, or have not answered.
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Appends the connections to `readable` whose turn it has become.
    pub fn collect(&mut self, readable: &mut Vec<ConnId>) {
        if !self.told {
            readable.extend_from_slice(&self.news);
            self.told = true;
        }
    }

    /// The service of the connection in `slot` is not to be told any more that it is its turn. Returns whether it was to be.
    fn withdraw(&mut self, slot: u32) -> bool {
        let at = if self.told { None } else { self.news.iter().position(|conn| conn.slot() == slot as usize) };
        at.map(|at| self.news.remove(at)).is_some()
    }
}

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

impl<P: Packet> Exchanges<P> {
    /// The first bytes received on the connection of `block`, if it has an exchange.
    pub fn peek(&self, block: &Block) -> Option<&[u8]> {
        match &self.of(block)?.turn {
            Turn::Ours(packet) => Some(packet.data()),
            Turn::Theirs(_) => None,
        }
    }

    /// Checks that the exchange of `block`, if it has one, is what the block says; returns how many bytes were
    /// received.
    ///
    /// # Panics
    ///
    /// If something does not agree.
    pub fn assert_consistent(&self, block: &Block) -> Option<usize> {
        let exchange = self.of(block)?;
        assert!(block.state == State::Established && block.unsent == 0, "takes no turns: {block:?}");
        let (received, sent) = match &exchange.turn {
            Turn::Ours(packet) => (packet.len(), 0),
            Turn::Theirs(bytes) => (0, bytes.len()),
        };
        assert_eq!((received, sent), (block.received as usize, block.outstanding() as usize), "{block:?}");
        Some(received)
    }

    /// Panics unless there are as many as `owned` and those that are spare, and it is our turn in `ours`.
    pub fn assert_owned(&self, owned: usize, ours: usize) {
        assert_eq!(ours, self.ours, "our turns, and what was counted");
        assert_eq!(owned + self.spare.len(), self.places.len(), "exchanges owned or spare");
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Takes in a segment of the connection in `slot` if it is the peer's turn in an exchange: the next data in order, which
    /// acknowledge all that was sent. Otherwise gives it back; if the connection has an exchange, it has none any more.
    #[inline(always)]
    pub(super) fn take_turn(&mut self, slot: u32, head: &Head, packet: P, now: Instant) -> Option<P> {
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
        if let Turn::Theirs(sent) = std::mem::replace(&mut exchange.turn, Turn::Ours(packet)) {
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

    /// Answers the peer's turn of the connection in `slot` with what was received. Returns how many bytes that were; `None`
    /// when nothing has changed.
    #[inline(always)]
    pub(super) fn answer_turn<N: Nic<Packet = P>>(
        &mut self,
        slot: u32,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Option<usize> {
        let is_low = self.shared.is_low();
        let block = self.blocks.get_mut(slot as usize)?;
        let exchange = self.shared.exchanges.of_mut(block)?;
        let Turn::Ours(packet) = &mut exchange.turn else { return None };
        // The segment came in this turn of the worker, or the exchange would have been settled.
        debug_assert_eq!(now, self.shared.now);
        let settings = &self.shared.settings;
        let len = block.received;
        // With room for another segment the congestion window is not what limits it (RFC 9438 §5.8), and need not be told.
        if len > u32::from(block.mss)
            || len + u32::from(block.mss) > block.cwnd
            || len > block.snd_wnd
            || !settings.only_headers
            || egress.room() == 0
        {
            return None;
        }
        if exchange.link_epoch != egress.link_epoch() {
            exchange.link = *egress.link_header(block.tuple.remote_v6().to_bits(), now)?;
            exchange.link_epoch = egress.link_epoch();
        }
        let window = block.offer_all(is_low)?;
        let (link, milliseconds) = (&exchange.link, self.shared.milliseconds);
        let kept = dress(packet, block, len, Control::PSH, window, link, settings.offload, milliseconds)?;
        let Turn::Ours(packet) = std::mem::replace(&mut exchange.turn, Turn::Theirs(kept)) else { return None };
        exchange.sent_at = now;
        egress.send_frame(packet);
        self.shared.exchanges.ours -= 1;
        block.nxt += len;
        block.received = 0;
        block.rcv_acked = block.rcv_nxt;
        block.retransmit_at = self.shared.soonest[usize::from(block.rtt.consults_path())];
        self.shared.arm_for(slot, block, block.retransmit_at);
        Some(len as usize)
    }

    /// What the connection in `slot` has just sent is all that is on its way, and nothing else is the matter: from now on its
    /// ends take turns.
    #[inline(never)]
    pub(super) fn begin_turns(&mut self, slot: u32, now: Instant) {
        let (Some(block), Some(cold)) = (self.blocks.get_mut(slot as usize), self.cold.get(slot as usize)) else {
            return;
        };
        let Some(buffers) = self.shared.buffers.of_mut(block) else { return };
        if block.received > 0
            || block.unsent > 0
            || block.flags & (Flags::OPEN | Flags::WANTS_ROOM) != Flags::OPEN
            || self.shared.settings.keepalive.is_some()
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
    pub(super) fn is_early(&mut self, slot: u32, now: Instant) -> bool {
        let Some(block) = self.blocks.get_mut(slot as usize) else { return false };
        // Services' timers and lingering are not looked at here.
        let others = !self.shared.service_timers.is_empty() || !self.shared.lingering.is_empty();
        if !block.is_exchanging() || others || block.retransmit_at.is_due(Tick::of(now)) {
            return false;
        }
        block.wheel_at = Tick::NONE;
        self.shared.arm_for(slot, block, block.retransmit_at);
        true
    }

    /// Sees to those whose turn it was and whose service has not answered.
    #[inline]
    pub(super) fn end_turns(&mut self) {
        if self.shared.exchanges.ours > 0 {
            self.settle_unanswered();
        }
        self.shared.exchanges.news.clear();
        self.shared.exchanges.told = false;
    }

    #[inline(never)]
    fn settle_unanswered(&mut self) {
        let mut news = std::mem::take(&mut self.shared.exchanges.news);
        for conn in news.drain(..) {
            let Some(block) = self.blocks.get(conn.slot()) else { continue };
            if block.received > 0 && block.is_exchanging() {
                self.settle(conn.slot() as u32);
            }
        }
        self.shared.exchanges.news = news;
    }

    /// Makes the connection in `slot`, which has an exchange, an ordinary one.
    #[cold]
    #[inline(never)]
    pub(super) fn settle(&mut self, slot: u32) {
        let Some(block) = self.blocks.get_mut(slot as usize) else { return };
        let Some((turn, sent_at)) = self.shared.exchanges.end(block) else { return };
        block.wl1 = block.rcv_nxt - block.received;
        let buffers = self.shared.buffers.attach(block);
        // It was not idle, and will take turns again if it goes on as before.
        buffers.idle = false;
        buffers.answered = true;
        match turn {
            Turn::Ours(packet) => {
                // One that the port has put together of several wants an answer as they do.
                block.unanswered = 1 + u8::from(block.received > u32::from(block.mss));
                buffers.received.push_back(packet);
                // It is to be acknowledged, and its service to be told of it, if it has not been.
                let is_news = self.shared.exchanges.withdraw(slot);
                let news = if is_news { Flags::READABLE | Flags::TOUCHED } else { Flags::default() };
                if block.list(news | Flags::DIRTY) {
                    self.shared.active.push(slot);
                }
            }
            Turn::Theirs(sent) => {
                buffers.flight.resume_lone(sent.len() as u32, sent_at, block.cwnd);
                buffers.queue.push_lone(block.una, sent);
                self.shared.pinned.queued += 1;
            }
        }
    }
}
