//! The load of a key-value server over UDP: requests of memcached's protocol in datagrams, which are answered or lost.

use super::reply::{Reply, Wrong, shown};
use super::request::{Protocol, Request, What};
use super::stream::begun;
use super::{KvLoad, name};
use crate::flight::{AGAIN, AT_ONCE, LOOK, LOST_AFTER, NO_ANSWER};
use crate::{Keyspace, Traffic};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{BufferPool, Bytes, ConnId, Datagram, Origin, Service, Transport};
use linerate_kv::memcached::udp::{Frame, HEADER};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a request's datagram at most: those of a frame of 1500, behind the headers of IPv6 and UDP.
const REQUEST: usize = 1500 - 40 - 8;
/// Bytes of a value at most, so that its SET is one such datagram.
pub const LONGEST: u32 = (REQUEST - HEADER - AROUND) as u32;
/// Bytes of a SET beside the value: `set key:000000000000 0 0 1400\r\n`, and the end of the value's line.
const AROUND: usize = 31 + 2;
/// Datagrams of an answer at most: a value of that length, with its lines.
const PIECES: usize = 2;
/// Requests on the way while keys are set, at least: few enough for a kernel socket's buffer.
const FILLING: usize = 256;

/// What a load over UDP is to do, beside what its [`Keyspace`] says.
#[derive(Debug, Clone, Copy)]
pub struct UdpPlan {
    /// The server.
    pub remote: SocketAddr,
    /// Our address.
    pub local: IpAddr,
    /// The first of our ports, of which there are as many as the keyspace's plan has connections.
    pub first: u16,
    /// How long requests are sent before they count.
    pub warm_up: Duration,
    /// How long they count.
    pub duration: Duration,
}

/// What became of datagrams that brought no answer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Astray {
    /// Requests that were not answered in 100 ms, while measuring.
    pub lost: u64,
    /// Requests that were answered with other bytes than they had to be.
    pub corrupt: u64,
    /// Answers that came after their request had been given up, or more than once.
    pub late: u64,
    /// Datagrams that were no answers.
    pub strange: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Until something has been answered, there is one request on its way.
    Calling,
    /// Keys are set.
    Filling,
    /// Nothing counts yet.
    WarmingUp {
        until: Instant,
    },
    Measuring {
        from: Instant,
        until: Instant,
    },
    Over,
}

/// A request that may be on its way.
#[derive(Debug, Default)]
struct Place {
    /// What is asked, and when it was sent.
    asked: Option<(Request, Instant)>,
    /// What the request is called, or was: the number of the place among those of its port, and how often it has been used.
    id: u16,
    /// What has come of an answer of several datagrams.
    pieces: [Option<Bytes>; PIECES],
}

/// A load over UDP, closed or open. Each connection is a port of ours that its share of the requests is sent from; an answer counts only
/// if it comes from where the request went to, to where it came from, and has its name.
///
/// Times are as those of a [`KvLoad`]; one ends with the datagram that completes the answer. A SET that fills a key is sent again
/// if it is lost. What a lost SET did is not known, as with a connection that was lost.
pub struct UdpKvLoad {
    load: KvLoad,
    plan: UdpPlan,
    phase: Phase,
    /// Those of a port follow each other.
    places: Vec<Place>,
    /// How many of them a port has: a power of two; and how many of these are used when no keys are set.
    of_port: usize,
    depth: usize,
    /// Places without a request; who has been free for longest goes first, so that names are not used again soon.
    free: VecDeque<u32>,
    /// Drawn, and not taken by the transport yet.
    unsent: Option<Request>,
    reply: Reply,
    memory: BufferPool,
    looked: Instant,
    /// When something was answered last, or the load began.
    heard: Option<Instant>,
    answered: bool,
    stalled: bool,
    astray: Astray,
    measured: Duration,
    interrupted: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

impl UdpKvLoad {
    /// A load of `space`, which is of memcached's protocol and of values up to [`LONGEST`]. `interrupted` ends it; `over` is set in the
    /// end.
    pub fn new(
        space: Arc<Keyspace>,
        plan: UdpPlan,
        (interrupted, over): (Arc<AtomicBool>, Arc<AtomicBool>),
    ) -> UdpKvLoad {
        let (ports, depth) = (space.plan.connections.max(1), space.plan.depth.max(1));
        let of_port = depth.max(FILLING.div_ceil(ports)).next_power_of_two();
        let mut load = KvLoad::new(space);
        if load.is_prepared() {
            // There is nothing to be set.
            load.filling = None;
        }
        let uses = (1 << 16) / of_port;
        let place =
            |at: usize| Place { id: (at % of_port + of_port * fastrand::usize(..uses)) as u16, ..Place::default() };
        let places: Vec<Place> = (0..ports * of_port).map(place).collect();
        // Those that are sent have been copied, or are in the port's hands for a moment.
        let memory = BufferPool::new(REQUEST, places.len().min(1024), 2 * places.len() + 1024);
        UdpKvLoad {
            load,
            plan,
            phase: Phase::Calling,
            places,
            of_port,
            depth,
            free: VecDeque::from([0]),
            unsent: None,
            reply: Reply::new(),
            memory,
            looked: Instant::ZERO,
            heard: None,
            answered: false,
            stalled: false,
            astray: Astray::default(),
            measured: Duration::ZERO,
            interrupted,
            over,
        }
    }

    /// What was asked and answered.
    pub fn load(&self) -> &KvLoad {
        &self.load
    }

    /// What was not.
    pub fn astray(&self) -> Astray {
        self.astray
    }

    /// How long was measured.
    pub fn measured(&self) -> Duration {
        self.measured
    }

    /// Whether anything was ever answered.
    pub fn has_been_answered(&self) -> bool {
        self.answered
    }

    /// Whether nothing more was answered while keys were set.
    pub fn has_stalled(&self) -> bool {
        self.stalled
    }

    fn port_of(&self, place: u32) -> u16 {
        self.plan.first.wrapping_add((place as usize / self.of_port) as u16)
    }

    /// The place of the request `id` from our `port`, if there is such a port.
    fn place_of(&self, port: u16, id: u16) -> Option<usize> {
        let first = usize::from(port.wrapping_sub(self.plan.first)) * self.of_port;
        let place = first + usize::from(id) % self.of_port;
        (place < self.places.len()).then_some(place)
    }

    /// All places are free that may be used; `of_port` of each port.
    fn free_all(&mut self, of_port: usize) {
        let all = (0..self.places.len()).filter(|place| self.places[*place].asked.is_none());
        // One of each port after the other.
        let mut free: Vec<u32> = all.filter(|place| place % self.of_port < of_port).map(|place| place as u32).collect();
        free.sort_by_key(|place| *place as usize % self.of_port);
        self.free = free.into();
    }

    /// Does what is due, and returns whether it goes on.
    fn turn(&mut self, now: Instant) -> bool {
        let silent = now.since(*self.heard.get_or_insert(now)) >= NO_ANSWER;
        match self.phase {
            Phase::Calling | Phase::Filling if silent => {
                self.stalled = true;
                self.stop(now);
            }
            Phase::Filling if self.load.is_prepared() => {
                self.load.begin(now, 1, 1);
                self.free_all(self.depth);
                self.phase = Phase::WarmingUp { until: now + self.plan.warm_up };
                tracing::info!("{}", if self.plan.warm_up.is_zero() { "measuring" } else { "warming up" });
            }
            Phase::WarmingUp { until } if now >= until => {
                self.astray.lost = 0;
                self.load.measure(now);
                self.phase = Phase::Measuring { from: now, until: now + self.plan.duration };
            }
            Phase::Measuring { until, .. } if now >= until => self.stop(now),
            _ => {}
        }
        if now.since(self.looked) >= LOOK {
            self.look_for_lost(now);
        }
        self.phase != Phase::Over
    }

    fn stop(&mut self, now: Instant) {
        if let Phase::Measuring { from, until } = self.phase {
            let end = now.min(until);
            self.measured = end.since(from);
            self.load.end(end);
        }
        self.phase = Phase::Over;
    }

    #[cold]
    fn look_for_lost(&mut self, now: Instant) {
        self.looked = now;
        for place in 0..self.places.len() {
            if let Some((request, sent)) = self.places[place].asked
                && now.since(sent) >= LOST_AFTER
            {
                self.vacate(place);
                self.astray.lost += 1;
                if let (Some(filling), What::Set(_)) = (&mut self.load.filling, request.what) {
                    filling.lost([request.number]);
                }
            }
        }
    }

    /// The request in `place` is not waited for any more.
    fn vacate(&mut self, place: usize) {
        let Place { asked, id, pieces } = &mut self.places[place];
        *asked = None;
        *pieces = Default::default();
        // The name of another.
        *id = id.wrapping_add(self.of_port as u16);
        if place % self.of_port < self.depth || self.load.filling.is_some() {
            self.free.push_back(place as u32);
        }
    }

    /// What is to be asked next, if anything is.
    fn draw(&mut self, now: Instant) -> Option<Request> {
        if let Some(request) = self.unsent.take() {
            return Some(request);
        }
        if let Some(filling) = &mut self.load.filling {
            let number = filling.next(&self.load.space)?;
            let set = self.load.issue(number, 0);
            return Some(Request { at: now, number, what: What::Set(set) });
        }
        let at = match &mut self.load.pace {
            None => now,
            Some(pace) if pace.next() <= now => pace.take(),
            Some(_) => return None,
        };
        Some(self.load.draw(at))
    }

    /// Sends what may be sent. Returns whether the transport took all of it.
    fn send(&mut self, net: &mut impl Transport) -> bool {
        let now = net.now();
        for _ in 0..AT_ONCE {
            let Some(place) = self.free.front().copied().filter(|_| self.phase != Phase::Over) else { return true };
            let Some(mut request) = self.draw(now) else { return true };
            let Some(mut block) = self.memory.take() else {
                self.unsent = Some(request);
                return false;
            };
            let (at, values) = (place as usize, &self.load.space.values);
            block[..HEADER].copy_from_slice(&Frame::request(self.places[at].id).bytes());
            let size = request.size(Protocol::Memcached, values).0.min(REQUEST - HEADER);
            let size = HEADER + request.fill(Protocol::Memcached, values, 0, &mut block[HEADER..HEADER + size]);
            let local = SocketAddr::new(self.plan.local, self.port_of(place));
            let datagram = Datagram { local, remote: self.plan.remote, payload: block.freeze(size) };
            if net.send_datagram(datagram).is_err() {
                self.unsent = Some(request);
                return false;
            }
            begun(&mut request, &mut self.load.pace, now);
            self.free.pop_front();
            self.places[at].asked = Some((request, now));
        }
        false
    }

    /// Takes in a datagram, and returns whether it completed an answer.
    fn take(&mut self, datagram: &Datagram, now: Instant) -> bool {
        let Datagram { local, remote, payload } = datagram;
        let frame = Frame::read(payload).filter(|_| *remote == self.plan.remote);
        let place = frame.and_then(|(frame, _)| self.place_of(local.port(), frame.id));
        let (Some((frame, body)), Some(place)) = (frame, place) else {
            self.astray.strange += 1;
            return false;
        };
        let Place { asked: Some((request, _)), id, pieces } = &mut self.places[place] else {
            self.astray.late += 1;
            return false;
        };
        if *id != frame.id {
            self.astray.late += 1;
            return false;
        }
        let (request, sequence) = (*request, usize::from(frame.sequence));
        let mut whole = Ok(body);
        let mut both = [Bytes::new(), Bytes::new()];
        match frame.total {
            1 if sequence == 0 => {}
            2 if sequence < PIECES => {
                pieces[sequence] = Some(payload.slice(HEADER..));
                let [Some(first), Some(second)] = pieces else { return false };
                both = [first.clone(), second.clone()];
                whole = Ok(&both[0]);
            }
            total => whole = Err(format!("its answer is datagram {sequence} of {total}")),
        }
        let taken = whole.and_then(|first| self.read(&request, [first, &both[1]], now));
        if let Err(wrong) = taken {
            self.load.note(|| format!("{}: {wrong}", name(&request)));
            self.astray.corrupt += 1;
            self.reply = Reply::new();
            if let Some(filling) = &mut self.load.filling {
                // It is not set again: the next answer would be as wrong.
                filling.answered();
            }
        }
        self.vacate(place);
        true
    }

    /// Reads the answer to `request`, which is in these parts, and counts it.
    fn read(&mut self, request: &Request, parts: [&[u8]; PIECES], now: Instant) -> Result<(), Wrong> {
        let UdpKvLoad { load, reply, phase, .. } = self;
        let [first, second] = parts;
        let mut last = first;
        if !second.is_empty() {
            let (n, answer) = reply.take(first, Protocol::Memcached, request, load.space.known())?;
            if n < first.len() || answer.is_some() {
                return Err(format!("its answer ends before {}", shown(second)));
            }
            last = second;
        }
        match reply.take(last, Protocol::Memcached, request, load.space.known())? {
            (n, Some(answer)) if n == last.len() => {
                load.count(request, answer, now, matches!(phase, Phase::Measuring { .. }));
                Ok(())
            }
            _ => Err(format!("it was answered with {}", shown(last))),
        }
    }
}

impl Service for UdpKvLoad {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.abort(conn);
    }

    fn poll(&mut self, net: &mut impl Transport) -> Option<Duration> {
        let now = net.now();
        if self.interrupted.load(Ordering::Relaxed) {
            self.stop(now);
        }
        if !self.turn(now) {
            self.over.store(true, Ordering::Relaxed);
            return None;
        }
        let rest = if self.send(net) { LOOK } else { AGAIN };
        let due = self.load.due().map(|due| if due > now { due.since(now) } else { AGAIN });
        Some(due.map_or(rest, |due| due.min(rest)))
    }

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        let now = net.now();
        if !self.take(&datagram, now) {
            return;
        }
        self.heard = Some(now);
        self.answered = true;
        if self.phase == Phase::Calling {
            self.phase = Phase::Filling;
            self.free_all(if self.load.filling.is_some() { self.of_port } else { self.depth });
        }
        self.send(net);
    }
}

#[cfg(test)]
mod tests;
