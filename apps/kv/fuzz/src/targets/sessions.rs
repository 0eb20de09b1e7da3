//! Clients of both protocols at a service of one or two workers. For any input, each request gets one reply in order,
//! memory stays within its limit, and the next client is served.
//!
//! An input is a byte of choices, followed by parts that start with [`PART`]: a byte for the client and the kind of
//! delivery, and the bytes it sends.

use crate::net::{Client, TestServer};
use crate::reply::Value;
use linerate_kv::commands::Settings;
use linerate_kv::store::{Evictable, EvictionPolicy};
use linerate_kv::{memcached, resp};
use linerate_service::time::Duration;

/// Start of a part.
pub const PART: u8 = 0xff;
/// Start of a repetition. The next byte *n* and the byte after it stand for 64 · *n* copies of the latter.
const REPEAT: u8 = 0xfe;
/// Limit of the bytes sent in a session.
const MAX_SENT: usize = 256 << 10;
/// Memory per worker.
const MEMORY: u64 = 2 << 20;
/// Limits of an argument, and of queued replies.
const BULK: u64 = 20_000;
const OUTPUT: u64 = 300_000;
/// Limit of the bytes that a client reads.
const ROOM: usize = 4 << 20;
/// Redis clients, followed by memcached clients.
const CLIENTS: usize = 8;
const REDIS: usize = 5;

/// Bits of a part's first byte, above the client number.
struct Part;

impl Part {
    /// The part arrives in the same turn as the one before.
    const BURST: u8 = 1 << 3;
    /// The part arrives in slices of a few bytes.
    const SLICES: u8 = 1 << 4;
    /// A request with a known reply follows.
    const TAGGED: u8 = 1 << 5;
    /// Event before the part: none, the client stops or resumes reading, it half-closes or vanishes, or time passes.
    const EVENT: u8 = 3 << 6;
}

/// Runs the input.
pub fn sessions(data: &[u8]) {
    let (&bits, rest) = data.split_first().unwrap_or((&0, &[]));
    let mut simulation = Simulation::new(bits);
    for part in rest.split(|byte| *byte == PART).skip(1) {
        if let Some((delivery, bytes)) = part.split_first() {
            simulation.part(*delivery, bytes);
        }
    }
    simulation.finish();
}

/// Client with its expected state.
struct SimulatedClient {
    conn: Client,
    is_memcached: bool,
    /// Parsers for the bytes sent.
    resp: resp::Parser,
    memcached: memcached::Parser,
    unread: Vec<u8>,
    requests: usize,
    /// Requests with known replies: their positions and tokens.
    tagged: Vec<(usize, String)>,
    /// The client sent a protocol error or `quit`.
    sends_no_more: bool,
    has_finished: bool,
    is_gone: bool,
    received: Vec<u8>,
    room: usize,
}

struct Simulation {
    server: TestServer,
    workers: usize,
    clients: Vec<Option<SimulatedClient>>,
    sent: usize,
    tagged: usize,
    /// A client may have changed the settings that are checked here.
    is_lenient: bool,
}

impl Simulation {
    fn new(bits: u8) -> Self {
        fastrand::seed(bits.into());
        let workers = 1 + usize::from(bits & 1);
        let set = |settings: &mut Settings| {
            settings.memory = MEMORY * workers as u64;
            settings.evict = [
                EvictionPolicy::None,
                EvictionPolicy::Lru(Evictable::AllKeys),
                EvictionPolicy::Ttl,
                EvictionPolicy::Random(Evictable::AllKeys),
            ][usize::from(bits >> 1 & 3)];
            settings.bulk = BULK;
            settings.output = OUTPUT;
            settings.password = (bits & 8 != 0).then(|| b"pw".to_vec());
        };
        Simulation {
            server: TestServer::with(workers, set),
            workers,
            clients: (0..CLIENTS).map(|_| None).collect(),
            sent: 0,
            tagged: 0,
            is_lenient: bits & 8 != 0,
        }
    }

    /// Sends `bytes` from a client.
    fn part(&mut self, delivery: u8, bytes: &[u8]) {
        let number = usize::from(delivery) % CLIENTS;
        if delivery & Part::BURST == 0 {
            self.settle();
        }
        let mut client = self.clients[number].take().unwrap_or_else(|| self.connect(number));
        let (first, mut rest) = bytes.split_first().unwrap_or((&0, &[]));
        match (delivery & Part::EVENT) >> 6 {
            0 => rest = bytes,
            1 => {
                let room = if *first == b'+' { client.room } else { usize::from(*first).min(client.room) };
                self.server.set_room(client.conn, room);
            }
            2 if *first == b'-' => {
                self.server.lose(client.conn);
                client.is_gone = true;
            }
            2 => {
                client.has_finished = true;
                self.server.finish(client.conn);
            }
            _ => self.server.pass(Duration::from_millis(1 << (first % 14))),
        }
        if client.is_gone {
            // A new client takes its place.
            return;
        }
        if !client.has_finished {
            let mut bytes = expanded(rest);
            bytes.truncate(MAX_SENT.saturating_sub(self.sent));
            self.sent += bytes.len();
            self.is_lenient |= client.append_requests(&bytes);
            if delivery & Part::TAGGED != 0 {
                self.tagged += 1;
                bytes.extend(client.append_tagged(self.tagged));
            }
            let slice = if delivery & Part::SLICES != 0 { 1 + bytes.len() / 64 } else { bytes.len().max(1) };
            bytes.chunks(slice).for_each(|slice| self.server.send(client.conn, slice));
        }
        self.clients[number] = Some(client);
    }

    fn connect(&mut self, number: usize) -> SimulatedClient {
        let is_memcached = number >= REDIS;
        let worker = number % self.workers;
        let client = match is_memcached {
            true => self.server.connect_to_memcached(worker),
            false => self.server.connect(worker),
        };
        self.server.set_room(client, ROOM);
        SimulatedClient {
            conn: client,
            is_memcached,
            resp: resp::Parser::default(),
            memcached: memcached::Parser::default(),
            unread: Vec::new(),
            requests: 0,
            tagged: Vec::new(),
            sends_no_more: false,
            has_finished: false,
            is_gone: false,
            received: Vec::new(),
            room: ROOM,
        }
    }

    /// Runs until the service is idle. Removes disconnected clients.
    fn settle(&mut self) {
        self.server.settle();
        for slot in &mut self.clients {
            let Some(client) = slot else { continue };
            let received = self.server.received(client.conn);
            client.room -= received.len();
            client.received.extend(received);
            let end = self.server.end(client.conn);
            if end.is_aborted || end.is_closed {
                client.check(self.is_lenient, end.is_aborted);
                self.server.lose(client.conn);
                *slot = None;
            }
        }
    }

    /// Lets all clients read everything, and checks the final state.
    fn finish(mut self) {
        self.settle();
        for client in self.clients.iter().flatten() {
            self.server.set_room(client.conn, client.room);
        }
        self.settle();
        for client in self.clients.iter().flatten() {
            client.check(self.is_lenient, false);
        }
        for worker in 0..self.workers {
            let (redis, memcached) = (self.server.connect(worker), self.server.connect_to_memcached(worker));
            let pong = self.server.call(redis, b"PING\r\n");
            let version = self.server.call(memcached, b"version\r\n");
            if self.is_lenient {
                continue;
            }
            assert_eq!((&pong[..], &version[..]), ("+PONG\r\n", "VERSION 1.6.18\r\n"));
            let info = self.server.call(redis, b"INFO memory\r\n");
            let number = |name: &str| {
                let line = info.lines().find_map(|line| line.strip_prefix(name)).expect(name);
                line.parse::<u64>().expect(name)
            };
            assert!(number("used_memory:") <= number("maxmemory:"), "{info}");
        }
    }
}

impl SimulatedClient {
    /// Records `bytes` as sent. Returns true if they may change the settings that are checked.
    fn append_requests(&mut self, bytes: &[u8]) -> bool {
        self.unread.extend_from_slice(bytes);
        let mut used = 0;
        let mut is_lenient = false;
        while !self.sends_no_more && used < self.unread.len() {
            let data = &self.unread[used..];
            let len = if self.is_memcached {
                let limits = memcached::Limits { item: 1 << 20, long: usize::MAX };
                match self.memcached.parse(data, &limits) {
                    Ok(memcached::Parsed::Request { len, .. }) => {
                        let line = data[..len].split(|byte| matches!(byte, 0 | b'\r' | b'\n')).next();
                        self.sends_no_more = line.unwrap_or_default().trim_ascii().starts_with(b"quit");
                        len
                    }
                    Ok(memcached::Parsed::Skip(len)) => len,
                    Ok(_) => break,
                    Err(_) => {
                        self.sends_no_more = true;
                        break;
                    }
                }
            } else {
                let limits = resp::Limits { bulk: BULK as usize, long: usize::MAX, apart: false, authenticated: true };
                match self.resp.parse(data, limits) {
                    Ok(resp::Parsed::Request(len)) => {
                        let args = self.resp.args(data);
                        if let Some(name) = args.get(0) {
                            self.requests += 1;
                            is_lenient |= name.eq_ignore_ascii_case(b"config");
                            self.sends_no_more = name.eq_ignore_ascii_case(b"quit");
                        }
                        len
                    }
                    Ok(_) => break,
                    Err(_) => {
                        // The request gets an error reply.
                        self.requests += 1;
                        self.sends_no_more = true;
                        break;
                    }
                }
            };
            used += len;
        }
        self.unread.drain(..used);
        is_lenient
    }

    /// Returns a request whose reply contains `number`, if the client can send one now.
    fn append_tagged(&mut self, number: usize) -> Vec<u8> {
        if self.sends_no_more || self.resp.is_within() || self.memcached.is_within() {
            return Vec::new();
        }
        let token = format!("~{number}~");
        let request = match self.is_memcached {
            // No key has this name.
            true => format!("md {token} O{token}\r\n"),
            false => format!("*2\r\n$4\r\nECHO\r\n${}\r\n{token}\r\n", token.len()),
        };
        self.tagged.push((self.requests, token));
        self.append_requests(request.as_bytes());
        request.into_bytes()
    }

    /// Checks the replies of a client that was served, unless it was disconnected (`is_aborted`).
    fn check(&self, is_lenient: bool, is_aborted: bool) {
        if is_lenient || is_aborted || self.room == 0 {
            return;
        }
        let received = || self.received[..self.received.len().min(1000)].escape_ascii();
        if self.is_memcached {
            let mut rest = &self.received[..];
            for (_, token) in &self.tagged {
                let answer = format!(" O{token}\r\n");
                let at = rest.windows(answer.len()).position(|window| window == answer.as_bytes());
                let Some(at) = at else { panic!("{token} has no reply: {}", received()) };
                rest = &rest[at..];
            }
            return;
        }
        let (mut rest, mut replies) = (&self.received[..], Vec::new());
        while !rest.is_empty() {
            replies.push(Value::read(&mut rest).unwrap_or_else(|error| panic!("{error}: {}", received())));
        }
        assert_eq!(replies.len(), self.requests, "{}", received());
        for (request, token) in &self.tagged {
            let reply = &replies[*request];
            let is_answer = [Value::Bulk(token.clone()), Value::Simple("QUEUED".to_owned())].contains(reply);
            assert!(is_answer, "{token} has the reply {reply:?}: {}", received());
        }
    }
}

/// Returns `bytes` with the repetitions expanded.
pub fn expanded(mut bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(at) = bytes.iter().position(|byte| *byte == REPEAT) {
        all.extend_from_slice(&bytes[..at]);
        let Some(&[times, byte]) = bytes.get(at + 1..at + 3).and_then(|rest| rest.first_chunk()) else { return all };
        all.resize(all.len() + 64 * usize::from(times), byte);
        bytes = &bytes[at + 3..];
    }
    all.extend_from_slice(bytes);
    all
}
