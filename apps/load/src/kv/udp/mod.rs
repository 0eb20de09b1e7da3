//! Load of a key-value server over UDP: datagrams in memcached's protocol, which may be lost.

use super::protocol::{Op, Protocol, Reply, Request, Wrong, shown};
use super::stream::first_byte_sent;
use super::{KvLoad, name};
use crate::datagram::{ANSWER_TIMEOUT, EXPIRY_INTERVAL, FIRST_ANSWER_TIMEOUT, RETRY_DELAY, SEND_BATCH};
use crate::{Keyspace, Traffic};
use linerate_bypass::BufferPool;
use linerate_kv::memcached::udp::{Frame, HEADER};
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, ConnId, Datagram, Origin, Service, Stop, Transport};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum length of a request datagram: an MTU of 1500 minus the headers of IPv6 and UDP.
const REQUEST: usize = 1500 - 40 - 8;
/// Largest value whose SET fits into one request datagram.
pub const LONGEST: u32 = (REQUEST - HEADER - AROUND) as u32;
/// Bytes of a SET in addition to the value: `set key:000000000000 0 0 1400\r\n`, and the end of the value's line.
const AROUND: usize = 31 + 2;
/// Maximum number of datagrams of an answer: a value of [`LONGEST`] bytes with its lines.
const CHUNKS: usize = 2;
/// Minimum number of outstanding requests while filling, small enough for a kernel socket's buffer.
const FILLING: usize = 256;

/// Parameters of a load over UDP in addition to its [`Keyspace`].
#[derive(Debug, Clone, Copy)]
pub struct UdpPlan {
    /// The server.
    pub remote: SocketAddr,
    pub local: IpAddr,
    /// First local port; the number of ports is that of the plan's connections.
    pub first: u16,
    /// Duration of uncounted requests before measuring.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub duration: Duration,
}

/// Datagrams lost, corrupt, late or foreign.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DatagramErrors {
    /// Requests not answered within 100 ms while measuring.
    pub lost: u64,
    /// Requests answered with wrong bytes.
    pub corrupt: u64,
    /// Answers after the timeout, and duplicates.
    pub late: u64,
    /// Datagrams that are no answers to this load.
    pub foreign: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// One request is outstanding until the first answer.
    Probing,
    /// Keys are being set.
    Filling,
    /// Requests do not count yet.
    WarmingUp {
        until: Instant,
    },
    Measuring {
        from: Instant,
        until: Instant,
    },
    Ended,
}

/// Slot of an outstanding request.
#[derive(Debug, Default)]
struct Slot {
    /// The request and its send time.
    pending: Option<(Request, Instant)>,
    /// Current or last request ID: the slot's index within its port, plus a multiple of the slots per port for each
    /// use.
    id: u16,
    /// Received datagrams of an answer that consists of several.
    chunks: [Option<Bytes>; CHUNKS],
}

/// Load over UDP, in a closed or an open loop. Each connection is a local port, from which its share of the requests is
/// sent. An answer is valid only with its request's addresses reversed and its request ID.
///
/// Times are measured as by a [`KvLoad`]; a request's time ends with the datagram that completes the answer. A lost SET
/// of filling is repeated. Whether a lost SET was executed is unknown, as with a lost connection.
pub struct UdpKvLoad {
    load: KvLoad,
    plan: UdpPlan,
    phase: Phase,
    /// Slots. The slots of a port are consecutive.
    slots: Vec<Slot>,
    /// Slots per port, a power of two.
    of_port: usize,
    /// Slots per port that are used after filling.
    depth: usize,
    /// Free slots, the one free for longest first, so that request IDs are not reused soon.
    free: VecDeque<u32>,
    /// Request drawn but not yet accepted by the transport.
    unsent: Option<Request>,
    reply: Reply,
    memory: BufferPool,
    last_expiry: Instant,
    /// Time of the last answer, or of the load's beginning.
    last_answer: Option<Instant>,
    answered: bool,
    stalled: bool,
    datagram_errors: DatagramErrors,
    measured: Duration,
    interrupted: Stop,
    over: Arc<AtomicBool>,
}

impl UdpKvLoad {
    /// Creates a load of `space`, which uses memcached's protocol and values up to [`LONGEST`]. `interrupted` ends the
    /// load; the load sets `over` at its end.
    pub fn new(space: Arc<Keyspace>, plan: UdpPlan, (interrupted, over): (Stop, Arc<AtomicBool>)) -> UdpKvLoad {
        let (ports, depth) = (space.plan.connections.max(1), space.plan.depth.max(1));
        let of_port = depth.max(FILLING.div_ceil(ports)).next_power_of_two();
        let mut load = KvLoad::new(space);
        if load.is_prepared() {
            // No filling is required.
            load.filling = None;
        }
        let uses = (1 << 16) / of_port;
        let slot =
            |at: usize| Slot { id: (at % of_port + of_port * fastrand::usize(..uses)) as u16, ..Slot::default() };
        let slots: Vec<Slot> = (0..ports * of_port).map(slot).collect();
        // A sent buffer is copied, or held by the port for a moment.
        let memory = BufferPool::new(REQUEST, slots.len().min(1024), 2 * slots.len() + 1024);
        UdpKvLoad {
            load,
            plan,
            phase: Phase::Probing,
            slots,
            of_port,
            depth,
            free: VecDeque::from([0]),
            unsent: None,
            reply: Reply::new(),
            memory,
            last_expiry: Instant::ZERO,
            last_answer: None,
            answered: false,
            stalled: false,
            datagram_errors: DatagramErrors::default(),
            measured: Duration::ZERO,
            interrupted,
            over,
        }
    }

    /// Returns the requests and answers.
    pub fn load(&self) -> &KvLoad {
        &self.load
    }

    /// Returns the counters of invalid and lost datagrams.
    pub fn datagram_errors(&self) -> DatagramErrors {
        self.datagram_errors
    }

    pub fn measured(&self) -> Duration {
        self.measured
    }

    /// Returns whether there was any answer.
    pub fn has_been_answered(&self) -> bool {
        self.answered
    }

    /// Returns whether answers ceased during filling.
    pub fn has_stalled(&self) -> bool {
        self.stalled
    }

    fn port_of(&self, slot: u32) -> u16 {
        self.plan.first.wrapping_add((slot as usize / self.of_port) as u16)
    }

    /// Returns the slot of the request `id` from local `port`, if the port is the load's.
    fn slot_of(&self, port: u16, id: u16) -> Option<usize> {
        let first = usize::from(port.wrapping_sub(self.plan.first)) * self.of_port;
        let slot = first + usize::from(id) % self.of_port;
        (slot < self.slots.len()).then_some(slot)
    }

    /// Makes the unused slots available; `of_port` per port.
    fn free_all(&mut self, of_port: usize) {
        let all = (0..self.slots.len()).filter(|slot| self.slots[*slot].pending.is_none());
        // Interleave the ports.
        let mut free: Vec<u32> = all.filter(|slot| slot % self.of_port < of_port).map(|slot| slot as u32).collect();
        free.sort_by_key(|slot| *slot as usize % self.of_port);
        self.free = free.into();
    }

    /// Performs the work due at `now`; returns whether the load continues.
    fn turn(&mut self, now: Instant) -> bool {
        let silent = now.since(*self.last_answer.get_or_insert(now)) >= FIRST_ANSWER_TIMEOUT;
        match self.phase {
            Phase::Probing | Phase::Filling if silent => {
                self.stalled = true;
                self.stop(now);
            }
            Phase::Filling if self.load.has_given_up() => self.stop(now),
            Phase::Filling if self.load.is_prepared() => {
                self.load.begin(now, 1, 1);
                self.free_all(self.depth);
                self.phase = Phase::WarmingUp { until: now + self.plan.warm_up };
                tracing::info!("{}", if self.plan.warm_up.is_zero() { "measuring" } else { "warming up" });
            }
            Phase::WarmingUp { until } if now >= until => {
                self.datagram_errors.lost = 0;
                self.load.measure(now);
                self.phase = Phase::Measuring { from: now, until: now + self.plan.duration };
            }
            Phase::Measuring { until, .. } if now >= until => self.stop(now),
            _ => {}
        }
        if now.since(self.last_expiry) >= EXPIRY_INTERVAL {
            self.expire(now);
        }
        self.phase != Phase::Ended
    }

    fn stop(&mut self, now: Instant) {
        if let Phase::Measuring { from, until } = self.phase {
            let end = now.min(until);
            self.measured = end.since(from);
            self.load.end(end);
            let sent = self.slots.iter().filter_map(|slot| Some(slot.pending?.0));
            for request in sent.chain(self.unsent.take()) {
                self.load.request_unanswered(request, end);
            }
        }
        self.phase = Phase::Ended;
    }

    #[cold]
    fn expire(&mut self, now: Instant) {
        self.last_expiry = now;
        for slot in 0..self.slots.len() {
            if let Some((request, sent)) = self.slots[slot].pending
                && now.since(sent) >= ANSWER_TIMEOUT
            {
                self.free_slot(slot);
                self.datagram_errors.lost += 1;
                if let (Some(filling), Op::Set(_)) = (&mut self.load.filling, request.op) {
                    filling.lost([request.number]);
                }
            }
        }
    }

    /// Frees the slot of a request.
    fn free_slot(&mut self, slot: usize) {
        let Slot { pending, id, chunks } = &mut self.slots[slot];
        *pending = None;
        *chunks = Default::default();
        // The next request gets another ID.
        *id = id.wrapping_add(self.of_port as u16);
        if slot % self.of_port < self.depth || self.load.filling.is_some() {
            self.free.push_back(slot as u32);
        }
    }

    /// Returns the next request, if one is due.
    fn draw(&mut self, now: Instant) -> Option<Request> {
        if let Some(request) = self.unsent.take() {
            return Some(request);
        }
        if let Some(filling) = &mut self.load.filling {
            let number = filling.next(&self.load.space)?;
            let set = self.load.issue(number, 0);
            return Some(Request { at: now, number, op: Op::Set(set) });
        }
        let at = match &mut self.load.pace {
            None => now,
            Some(pace) if pace.next() <= now => pace.take(),
            Some(_) => return None,
        };
        Some(self.load.draw(at))
    }

    /// Sends as much as possible; returns whether the transport accepted all of it.
    fn send(&mut self, net: &mut impl Transport) -> bool {
        let now = net.now();
        for _ in 0..SEND_BATCH {
            let Some(slot) = self.free.front().copied().filter(|_| self.phase != Phase::Ended) else { return true };
            let Some(mut request) = self.draw(now) else { return true };
            let Some(mut block) = self.memory.take() else {
                self.unsent = Some(request);
                return false;
            };
            let (at, values) = (slot as usize, &self.load.space.values);
            block[..HEADER].copy_from_slice(&Frame::request(self.slots[at].id).bytes());
            let size = request.size(Protocol::Memcached, values).0.min(REQUEST - HEADER);
            let size = HEADER + request.fill(Protocol::Memcached, values, 0, &mut block[HEADER..HEADER + size]);
            let local = SocketAddr::new(self.plan.local, self.port_of(slot));
            let datagram = Datagram { local, remote: self.plan.remote, payload: block.freeze(size) };
            if net.send_datagram(datagram).is_err() {
                self.unsent = Some(request);
                return false;
            }
            first_byte_sent(&mut request, &mut self.load.pace, now);
            self.free.pop_front();
            self.slots[at].pending = Some((request, now));
        }
        false
    }

    /// Processes a datagram; returns whether it completed an answer.
    fn take(&mut self, datagram: &Datagram, now: Instant) -> bool {
        let Datagram { local, remote, payload } = datagram;
        let frame = Frame::read(payload).filter(|_| *remote == self.plan.remote);
        let slot = frame.and_then(|(frame, _)| self.slot_of(local.port(), frame.id));
        let (Some((frame, body)), Some(slot)) = (frame, slot) else {
            self.datagram_errors.foreign += 1;
            return false;
        };
        let Slot { pending: Some((request, _)), id, chunks } = &mut self.slots[slot] else {
            self.datagram_errors.late += 1;
            return false;
        };
        if *id != frame.id {
            self.datagram_errors.late += 1;
            return false;
        }
        let (request, sequence) = (*request, usize::from(frame.sequence));
        let mut whole = Ok(body);
        let mut both = [Bytes::new(), Bytes::new()];
        match frame.total {
            1 if sequence == 0 => {}
            2 if sequence < CHUNKS => {
                chunks[sequence] = Some(payload.slice(HEADER..));
                let [Some(first), Some(second)] = chunks else { return false };
                both = [first.clone(), second.clone()];
                whole = Ok(&both[0]);
            }
            total => whole = Err(format!("the reply is datagram {sequence} of {total}")),
        }
        let taken = whole.and_then(|first| self.read(&request, [first, &both[1]], now));
        if let Err(wrong) = taken {
            self.load.note(|| format!("{}: {wrong}", name(&request)));
            self.datagram_errors.corrupt += 1;
            self.reply = Reply::new();
            if let Some(filling) = &mut self.load.filling {
                // Do not repeat the SET: its answer would be wrong again.
                filling.answered();
            }
        }
        self.free_slot(slot);
        true
    }

    /// Parses the answer to `request` in `parts`, and counts it.
    fn read(&mut self, request: &Request, parts: [&[u8]; CHUNKS], now: Instant) -> Result<(), Wrong> {
        let UdpKvLoad { load, reply, phase, .. } = self;
        let [first, second] = parts;
        let mut last = first;
        if !second.is_empty() {
            let (n, answer) = reply.take(first, Protocol::Memcached, request, load.space.expected())?;
            if n < first.len() || answer.is_some() {
                return Err(format!("the reply ends before {}", shown(second)));
            }
            last = second;
        }
        match reply.take(last, Protocol::Memcached, request, load.space.expected())? {
            (n, Some(answer)) if n == last.len() => {
                load.count(request, answer, now, matches!(phase, Phase::Measuring { .. }));
                Ok(())
            }
            _ => Err(format!("the reply is {}", shown(last))),
        }
    }
}

impl Service for UdpKvLoad {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.abort(conn);
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        let now = net.now();
        if self.interrupted.is_stopped() {
            self.stop(now);
        }
        if !self.turn(now) {
            self.over.store(true, Ordering::Relaxed);
            return None;
        }
        let rest = if self.send(net) { EXPIRY_INTERVAL } else { RETRY_DELAY };
        let due = self.load.due().map(|due| if due > now { due.since(now) } else { RETRY_DELAY });
        Some(due.map_or(rest, |due| due.min(rest)))
    }

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        let now = net.now();
        if !self.take(&datagram, now) {
            return;
        }
        self.last_answer = Some(now);
        self.answered = true;
        if self.phase == Phase::Probing {
            self.phase = Phase::Filling;
            self.free_all(if self.load.filling.is_some() { self.of_port } else { self.depth });
        }
        self.send(net);
    }
}

#[cfg(test)]
mod tests;
