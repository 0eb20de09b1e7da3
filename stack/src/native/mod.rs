//! The native engine: TCP for packets that stay where the port put them.
//!
//! A connection is a control block of two cache lines in a slab, found through a hash table keyed by its 4-tuple; what it
//! needs seldom lies apart, and queues are attached only while bytes are on their way. Received payload stays in its packet
//! until the service has consumed it; what is sent stays where the service put it until it is acknowledged, with headers in
//! front of it where it lies.
//!
//! A segment goes through [`input`] (what it means), and what it asks for is sent by [`output`] once per burst.

mod block;
mod buffers;
mod cold;
mod cookies;
mod flow_table;
mod handshake;
mod header;
mod input;
pub(crate) mod inspect;
mod isn;
mod operations;
pub(crate) mod options;
mod output;
mod reassembly;
mod recovery;
mod send_queue;
mod seq;
mod settings;
mod tick;
mod time_wait;
mod timers;
mod window;

use crate::config::Config;
use crate::congestion::{Builtin, CongestionControl};
use crate::egress::Egress;
use crate::engine::{Engine, Event, Segment};
use crate::ports::Ports;
use crate::tuple::{HashKey, Tuple};
use crate::wheel::Wheel;
use block::{Block, Flags, State};
use buffers::Pool;
use cold::Cold;
use flow_table::FlowTable;
use hashbrown::HashMap;
use isn::Secrets;
use linerate_bypass::time::Instant;
use linerate_bypass::{Bytes, CloseReason, ConnId, ConnectError, Nic, Origin, Packet, Summary, prefetch_whole};
use settings::Settings;
use std::net::{IpAddr, SocketAddr};
use time_wait::TimeWait;

/// Segments that one connection sends before the next gets its turn.
const SEGMENTS_PER_TURN: usize = 32;

/// Connections in TIME-WAIT at most; beyond, the oldest ends early.
const MAX_TIME_WAIT: usize = 1 << 18;
/// Challenges to segments of connections in TIME-WAIT in a second at most (RFC 5961 §7).
const MAX_CHALLENGES: u32 = 1000;

/// The native engine of one worker, for packets `P`, with congestion control by `C`.
pub struct NativeEngine<P, C = Builtin> {
    worker: usize,
    settings: Settings,
    config: Config,
    blocks: Vec<Block>,
    cold: Vec<Cold<C>>,
    /// Slots that are free, the one used last first: its cache lines may still be there.
    free: Vec<u32>,
    buffers: Pool<P>,
    table: FlowTable,
    key: HashKey,
    time_wait: TimeWait,
    secrets: Secrets,
    ports: Ports,
    /// A timer for each connection: the token is its slot.
    wheel: Wheel,
    /// The timers that services ask for.
    service_timers: Wheel,
    fired: Vec<u32>,
    /// The tokens of connect calls that are under way.
    connecting: HashMap<u32, u64, foldhash::fast::FixedState>,
    half_open: usize,
    /// When cookies were last sent: answers to them are believed for a while.
    cookies_sent: Option<Instant>,
    /// Packets of the port that queues hold.
    pinned: usize,
    /// Challenges sent from TIME-WAIT in the second that began at the time noted.
    challenges: (Instant, u32),
    /// The slots of a burst's connections.
    burst: Vec<Option<u32>>,
    touched: Vec<u32>,
    dirty: Vec<u32>,
    /// Room for the list that is being gone through.
    sending: Vec<u32>,
    /// Events that no connection holds.
    pending: Vec<Event>,
    /// Connections whose service found no packet to write to.
    starved: Vec<u32>,
    /// The time of the turn.
    now: Instant,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    accepted: u64,
    connected: u64,
    failed: u64,
    finished: u64,
    broken: u64,
    /// Payload bytes copied.
    copied: u64,
    /// Segments for which a receive queue had no place.
    pruned: u64,
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Lets the connection in `slot` be looked at in the next `collect`.
    #[inline]
    fn touch(&mut self, slot: u32) {
        let block = &mut self.blocks[slot as usize];
        if !block.flags.has(Flags::TOUCHED) {
            block.flags |= Flags::TOUCHED;
            self.touched.push(slot);
        }
    }

    /// Lets the connection in `slot` send in the next `flush`.
    #[inline]
    fn dirty(&mut self, slot: u32) {
        let block = &mut self.blocks[slot as usize];
        if !block.flags.has(Flags::DIRTY) {
            block.flags |= Flags::DIRTY;
            self.dirty.push(slot);
        }
    }

    /// The name of the connection in `slot`.
    fn id(&self, slot: u32) -> ConnId {
        ConnId::new(self.worker, slot as usize, self.blocks[slot as usize].generation)
    }

    /// The slot of the connection that `conn` names, if it is still there.
    #[inline]
    fn find(&self, conn: ConnId) -> Option<u32> {
        let block = self.blocks.get(conn.slot())?;
        let there = block.generation == conn.generation() && conn.worker() == self.worker;
        (there && block.flags.has(Flags::OPEN)).then_some(conn.slot() as u32)
    }

    /// The slot of the connection `tuple`.
    #[inline]
    fn look_up(&self, hash: u64, tuple: &Tuple) -> Option<u32> {
        let blocks = &self.blocks;
        self.table.find(hash, |slot| blocks[slot as usize].tuple == *tuple)
    }

    /// Connections that exist, whatever their state.
    fn len(&self) -> usize {
        self.blocks.len() - self.free.len()
    }

    /// A slot for a new connection, with its tuple in the table.
    fn insert(&mut self, tuple: Tuple) -> Option<u32> {
        if self.len() >= self.settings.connections {
            return None;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.blocks.push(Block::vacant(tuple));
                self.cold.push(Cold::new(&self.config));
                self.blocks.len() as u32 - 1
            }
        };
        if self.table.insert(tuple.hash_with(&self.key), slot).is_err() {
            self.free.push(slot);
            return None;
        }
        let block = &mut self.blocks[slot as usize];
        let Block { generation, wheel_at, flags, .. } = *block;
        *block = Block { generation, wheel_at, ..Block::vacant(tuple) };
        block.flags = flags & (Flags::TOUCHED | Flags::DIRTY) | Flags::IN_TABLE;
        block.ts_offset = self.secrets.timestamp_offset(&tuple);
        if self.settings.nagle {
            block.flags |= Flags::NAGLE;
        }
        self.cold[slot as usize] = Cold::new(&self.config);
        Some(slot)
    }

    /// Takes the tuple of the connection in `slot` out of the table: segments on it are no longer for this connection.
    fn forget_tuple(&mut self, slot: u32) {
        let block = &mut self.blocks[slot as usize];
        if block.flags.take(Flags::IN_TABLE) {
            self.table.remove(block.tuple.hash_with(&self.key), slot);
        }
    }

    /// Gives the slot up.
    fn remove(&mut self, slot: u32) {
        self.forget_tuple(slot);
        self.service_timers.disarm(slot);
        let block = &mut self.blocks[slot as usize];
        if block.state == State::SynReceived && !block.flags.has(Flags::ACTIVE) {
            self.half_open -= 1;
        }
        self.pinned -= self.buffers.detach(block);
        block.state = State::Closed;
        block.generation = block.generation.wrapping_add(1);
        // In the lists of those with news or something to send it is passed over.
        block.flags = block.flags & (Flags::TOUCHED | Flags::DIRTY) | Flags::VACANT;
        self.connecting.remove(&slot);
        self.free.push(slot);
    }

    /// The connection in `slot` is over: nothing more comes of it, and the service is to be told why by the flags.
    fn end(&mut self, slot: u32, why: Flags) {
        self.forget_tuple(slot);
        let block = &mut self.blocks[slot as usize];
        if block.state == State::SynReceived && !block.flags.has(Flags::ACTIVE) {
            self.half_open -= 1;
        }
        block.state = State::Closed;
        block.flags |= why;
        block.unsent = 0;
        block.received = 0;
        block.retransmit_at = tick::Tick::NONE;
        block.ack_at = tick::Tick::NONE;
        self.pinned -= self.buffers.detach(block);
        self.touch(slot);
    }

    /// Appends what has happened to the connection in `slot` to `events`.
    fn look(&mut self, slot: u32, events: &mut Vec<Event>) {
        let conn = self.id(slot);
        let block = &mut self.blocks[slot as usize];
        block.flags.clear(Flags::TOUCHED);
        if block.flags.has_any(Flags::GONE | Flags::VACANT) {
            return;
        }
        if !block.flags.has(Flags::OPEN) {
            if block.flags.take(Flags::NEWLY_OPEN) {
                block.flags |= Flags::OPEN;
                let token = self.connecting.remove(&slot);
                if token.is_some() {
                    self.counts.connected += 1;
                } else {
                    self.counts.accepted += 1;
                }
                events.push(Event::Opened(conn, token.map_or(Origin::Accepted, Origin::Connected)));
            } else if block.state == State::Closed {
                // The service never knew it, unless it asked for it.
                let error = if block.flags.has(Flags::WAS_RESET) {
                    ConnectError::Refused
                } else if block.flags.has(Flags::UNREACHABLE) {
                    ConnectError::Unreachable
                } else {
                    ConnectError::TimedOut
                };
                if let Some(token) = self.connecting.remove(&slot) {
                    self.counts.failed += 1;
                    events.push(Event::Failed(token, error));
                }
                self.remove(slot);
                return;
            } else {
                return;
            }
        }
        let block = &mut self.blocks[slot as usize];
        if block.flags.take(Flags::READABLE) && block.received > 0 {
            events.push(Event::Readable(conn));
        }
        if block.flags.has(Flags::WANTS_ROOM) && self.has_enough_room(slot) {
            self.blocks[slot as usize].flags.clear(Flags::WANTS_ROOM);
            events.push(Event::Writable(conn));
        }
        let block = &mut self.blocks[slot as usize];
        if block.state.peer_finished() && block.received == 0 && !block.flags.has(Flags::END_TOLD) {
            block.flags |= Flags::END_TOLD;
            events.push(Event::PeerClosed(conn));
        }
        let over = match block.state {
            // Our last acknowledgement goes out first.
            State::TimeWait => block.flags.has(Flags::END_TOLD) && !block.flags.has(Flags::ACK_NOW),
            // A reset goes out first.
            State::Closed => !block.flags.has(Flags::RESET),
            _ => false,
        };
        if over {
            block.flags |= Flags::GONE;
            let why = if block.flags.has(Flags::WAS_RESET) {
                CloseReason::Reset
            } else if block.flags.has(Flags::WAS_ABORTED) {
                CloseReason::Aborted
            } else if block.flags.has_any(Flags::TIMED_OUT | Flags::UNREACHABLE) {
                CloseReason::TimedOut
            } else {
                CloseReason::Finished
            };
            events.push(Event::Closed(conn, why));
        }
    }

    /// Slots of all connections.
    fn slots(&self) -> Vec<u32> {
        let used = |slot: &u32| !self.blocks[*slot as usize].flags.has(Flags::VACANT);
        (0..self.blocks.len() as u32).filter(used).collect()
    }
}

/// Milliseconds of the clock that timestamps go by (RFC 7323 §5.4).
#[inline]
fn milliseconds(now: Instant) -> u32 {
    isn::timestamp_clock(now)
}

impl<N: Nic, C: CongestionControl> Engine<N> for NativeEngine<N::Packet, C> {
    fn new(config: &Config, worker: usize, workers: usize, egress: &mut Egress<N>, now: Instant) -> Self {
        let mut random = fastrand::Rng::with_seed(config.seed ^ (worker as u64) << 32);
        let settings = Settings::new(config, egress);
        let secrets = Secrets::from_seed(random.u64(..));
        NativeEngine {
            worker,
            blocks: Vec::with_capacity(settings.connections),
            cold: Vec::with_capacity(settings.connections),
            free: Vec::new(),
            buffers: Pool::new(),
            table: FlowTable::with_capacity(settings.connections),
            key: secrets.table_key(),
            time_wait: TimeWait::new(MAX_TIME_WAIT, secrets.table_key()),
            secrets,
            ports: Ports::new(worker, workers, random.u64(..)),
            wheel: Wheel::new(now),
            service_timers: Wheel::new(now),
            fired: Vec::new(),
            connecting: HashMap::with_hasher(foldhash::fast::FixedState::with_seed(random.u64(..))),
            half_open: 0,
            cookies_sent: None,
            pinned: 0,
            challenges: (now, 0),
            burst: Vec::new(),
            touched: Vec::new(),
            dirty: Vec::new(),
            sending: Vec::new(),
            pending: Vec::new(),
            starved: Vec::new(),
            now,
            counts: Counts::default(),
            settings,
            config: config.clone(),
        }
    }

    fn segments(&mut self, burst: &mut Vec<Segment<N::Packet>>, egress: &mut Egress<N>, now: Instant) {
        // What the segments will touch is far from the core when there are many connections; it comes faster together than
        // one after the other.
        let mut slots = std::mem::take(&mut self.burst);
        slots.clear();
        if burst.len() > 1 {
            burst.iter().for_each(|segment| self.table.prefetch(segment.tuple.hash_with(&self.key)));
            for segment in burst.iter() {
                let slot = self.table.candidate(segment.tuple.hash_with(&self.key));
                if let Some(block) = slot.and_then(|slot| self.blocks.get(slot as usize)) {
                    prefetch_whole(block);
                }
                slots.push(slot);
            }
            for slot in slots.drain(..).flatten() {
                if let Some(buffers) = self.blocks.get(slot as usize).and_then(|block| self.buffers.of(block)) {
                    prefetch_whole(buffers);
                }
            }
        }
        self.burst = slots;
        for segment in burst.drain(..) {
            self.segment(segment, egress, now);
        }
    }

    fn unreachable(&mut self, tuple: Tuple, sequence: u32) {
        let Some(slot) = self.look_up(tuple.hash_with(&self.key), &tuple) else { return };
        let block = &self.blocks[slot as usize];
        // RFC 5927 §4.1: only what quotes the SYN that is in flight counts, and only before the connection exists.
        if block.state == State::SynSent && block.una.0 == sequence {
            self.end(slot, Flags::UNREACHABLE);
        }
    }

    fn neighbor_lost(&mut self, ip: IpAddr) {
        let connecting: Vec<u32> = self.connecting.keys().copied().collect();
        for slot in connecting {
            let block = &self.blocks[slot as usize];
            if block.state == State::SynSent && block.tuple.remote().ip() == ip {
                self.end(slot, Flags::UNREACHABLE);
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        self.now = now;
        for slot in std::mem::take(&mut self.starved) {
            self.touch(slot);
        }
        self.expire_timers(now);
    }

    fn collect(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.pending);
        let mut touched = std::mem::take(&mut self.touched);
        for slot in touched.drain(..) {
            self.look(slot, events);
        }
        touched.append(&mut self.touched);
        self.touched = touched;
    }

    fn release(&mut self, conn: ConnId, now: Instant) {
        let _ = now;
        let Some(slot) = self.find(conn) else { return };
        let broken = Flags::WAS_RESET | Flags::WAS_ABORTED | Flags::TIMED_OUT | Flags::UNREACHABLE;
        if self.blocks[slot as usize].flags.has_any(broken) {
            self.counts.broken += 1;
        } else {
            self.counts.finished += 1;
        }
        self.remove(slot);
    }

    fn flush(&mut self, egress: &mut Egress<N>, now: Instant) {
        // Those that are not done are collected anew.
        let mut dirty = std::mem::replace(&mut self.dirty, std::mem::take(&mut self.sending));
        for slot in dirty.drain(..) {
            self.blocks[slot as usize].flags.clear(Flags::DIRTY);
            if self.send_all(slot, egress, now) {
                self.dirty(slot);
            }
        }
        self.sending = dirty;
    }

    fn next_deadline(&self) -> Option<Instant> {
        if !self.dirty.is_empty() || !self.touched.is_empty() || !self.pending.is_empty() {
            return Some(Instant::ZERO);
        }
        let deadlines = [self.wheel.next_expiry(), self.service_timers.next_expiry(), self.time_wait.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    fn connections(&self) -> usize {
        self.len()
    }

    fn close_all(&mut self) {
        for slot in self.slots() {
            self.close_slot(slot);
        }
    }

    fn abort_all(&mut self) {
        for slot in self.slots() {
            self.abort_slot(slot);
        }
    }

    fn summarize(&self, summary: &mut Summary) {
        summary.accepted += self.counts.accepted;
        summary.connected += self.counts.connected;
        summary.failed += self.counts.failed;
        summary.finished += self.counts.finished;
        summary.broken += self.counts.broken;
        summary.copied_bytes += self.counts.copied;
        summary.drop_for("receive queue full", self.counts.pruned);
        summary.drop_for("TIME-WAIT ended early", self.time_wait.ended_early());
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.find(conn).map(|slot| self.blocks[slot as usize].tuple.local())
    }

    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.find(conn).map(|slot| self.blocks[slot as usize].tuple.remote())
    }

    fn received(&self, conn: ConnId) -> usize {
        self.find(conn).map_or(0, |slot| self.blocks[slot as usize].received as usize)
    }

    fn peek(&mut self, conn: ConnId) -> &[u8] {
        self.first_received(conn)
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        self.drop_received(conn, n);
    }

    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes> {
        self.take_received(conn, max)
    }

    fn room(&mut self, conn: ConnId) -> usize {
        self.room_to_send(conn)
    }

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Bytes> {
        self.send_bytes(conn, bytes)
    }

    fn reserve(&mut self, conn: ConnId, max: usize, egress: &mut Egress<N>) -> Option<&mut [u8]> {
        self.reserve_place(conn, max, egress)
    }

    fn commit(&mut self, conn: ConnId, n: usize) {
        self.commit_place(conn, n);
    }

    fn forward(&mut self, from: ConnId, to: ConnId) -> usize {
        self.forward_received(from, to)
    }

    fn close(&mut self, conn: ConnId) {
        if let Some(slot) = self.find(conn) {
            self.close_slot(slot);
        }
    }

    fn abort(&mut self, conn: ConnId) {
        if let Some(slot) = self.find(conn) {
            self.abort_slot(slot);
        }
    }

    fn set_timer(&mut self, conn: ConnId, at: Option<Instant>) {
        if let Some(slot) = self.find(conn) {
            match at {
                Some(at) => self.service_timers.arm(slot, at),
                None => self.service_timers.disarm(slot),
            }
        }
    }

    fn connect(&mut self, remote: SocketAddr, token: u64, egress: &mut Egress<N>, now: Instant) {
        if let Err(error) = self.begin(remote, token, egress, now) {
            self.counts.failed += 1;
            self.pending.push(Event::Failed(token, error));
        }
    }
}
