//! Clients of both protocols at a service of one worker or two: whatever they send, replies come, one for each request and in
//! order, memory has its bound, and the next client is served.
//!
//! An input is a byte of choices, and then parts with [`PART`] in front: a byte for which client and how, and what it sends.

use super::net::{Client, Host};
use super::replies;
use linerate_bypass::time::Duration;
use linerate_kv::commands::Settings;
use linerate_kv::store::{Evictable, EvictionPolicy};
use linerate_kv::{memcached, resp};

/// What parts begin with.
pub const PART: u8 = 0xff;
/// What repetitions begin with: how often, times 64, and which byte follow.
const REPEAT: u8 = 0xfe;
/// Bytes sent in one session at most.
const MOST: usize = 256 << 10;
/// What a service may keep, and how much of that must be free for a client to be told anything.
const MEMORY: u64 = 2 << 20;
/// Bytes of an argument, and of replies that may wait.
const BULK: u64 = 20_000;
const OUTPUT: u64 = 300_000;
/// What a client reads at all.
const ROOM: usize = 4 << 20;
/// Clients of Redis, then those of memcached.
const CLIENTS: usize = 8;
const REDIS: usize = 5;

/// Bits of a part's first byte, above those of the client's number.
struct Part;

impl Part {
    /// It comes at once with what comes before.
    const BURST: u8 = 1 << 3;
    /// It comes in slices of a few bytes.
    const SLICES: u8 = 1 << 4;
    /// A question follows whose answer is known.
    const ASK: u8 = 1 << 5;
    /// What else happens before: nothing, the client reads no more or goes on reading, sends no more or vanishes, time passes.
    const EVENT: u8 = 3 << 6;
}

/// Plays the input.
pub fn sessions(data: &[u8]) {
    let (&bits, rest) = data.split_first().unwrap_or((&0, &[]));
    let mut play = Play::new(bits);
    for part in rest.split(|byte| *byte == PART).skip(1) {
        if let Some((how, said)) = part.split_first() {
            play.part(*how, said);
        }
    }
    play.finish();
}

/// A client as it sees itself.
struct Speaker {
    client: Client,
    is_memcached: bool,
    /// What it has said, as the parsers read it: requests, and whether it is in the middle of one.
    resp: resp::Parser,
    memcached: memcached::Parser,
    unread: Vec<u8>,
    requests: usize,
    /// The requests that were questions, and what they asked for.
    asked: Vec<(usize, String)>,
    /// What it says is not understood any more, or it has said that it goes.
    is_over: bool,
    has_finished: bool,
    is_gone: bool,
    received: Vec<u8>,
    room: usize,
}

struct Play {
    host: Host,
    workers: usize,
    speakers: Vec<Option<Speaker>>,
    sent: usize,
    asked: usize,
    /// Somebody may have changed what is checked here.
    is_lenient: bool,
}

impl Play {
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
        Play {
            host: Host::with(workers, set),
            workers,
            speakers: (0..CLIENTS).map(|_| None).collect(),
            sent: 0,
            asked: 0,
            is_lenient: bits & 8 != 0,
        }
    }

    /// A client says `said`.
    fn part(&mut self, how: u8, said: &[u8]) {
        let number = usize::from(how) % CLIENTS;
        if how & Part::BURST == 0 {
            self.settle();
        }
        let mut speaker = self.speakers[number].take().unwrap_or_else(|| self.connect(number));
        let (first, mut rest) = said.split_first().unwrap_or((&0, &[]));
        match (how & Part::EVENT) >> 6 {
            0 => rest = said,
            1 => {
                let room = if *first == b'+' { speaker.room } else { usize::from(*first).min(speaker.room) };
                self.host.set_room(speaker.client, room);
            }
            2 if *first == b'-' => {
                self.host.lose(speaker.client);
                speaker.is_gone = true;
            }
            2 => {
                speaker.has_finished = true;
                self.host.finish(speaker.client);
            }
            _ => self.host.pass(Duration::from_millis(1 << (first % 14))),
        }
        if speaker.is_gone {
            // Another takes its place.
            return;
        }
        if !speaker.has_finished {
            let mut said = expanded(rest);
            said.truncate(MOST.saturating_sub(self.sent));
            self.sent += said.len();
            self.is_lenient |= speaker.say(&said);
            if how & Part::ASK != 0 {
                self.asked += 1;
                said.extend(speaker.ask(self.asked));
            }
            let slice = if how & Part::SLICES != 0 { 1 + said.len() / 64 } else { said.len().max(1) };
            said.chunks(slice).for_each(|slice| self.host.send(speaker.client, slice));
        }
        self.speakers[number] = Some(speaker);
    }

    fn connect(&mut self, number: usize) -> Speaker {
        let is_memcached = number >= REDIS;
        let worker = number % self.workers;
        let client = match is_memcached {
            true => self.host.connect_to_memcached(worker),
            false => self.host.connect(worker),
        };
        self.host.set_room(client, ROOM);
        Speaker {
            client,
            is_memcached,
            resp: resp::Parser::default(),
            memcached: memcached::Parser::default(),
            unread: Vec::new(),
            requests: 0,
            asked: Vec::new(),
            is_over: false,
            has_finished: false,
            is_gone: false,
            received: Vec::new(),
            room: ROOM,
        }
    }

    /// Everything comes to rest; who has been disconnected is gone.
    fn settle(&mut self) {
        self.host.settle();
        for place in &mut self.speakers {
            let Some(speaker) = place else { continue };
            let received = self.host.received(speaker.client);
            speaker.room -= received.len();
            speaker.received.extend(received);
            let end = self.host.end(speaker.client);
            if end.is_aborted || end.is_closed {
                speaker.check(self.is_lenient, end.is_aborted);
                self.host.lose(speaker.client);
                *place = None;
            }
        }
    }

    /// Everybody reads all there is; everything is checked.
    fn finish(mut self) {
        self.settle();
        for speaker in self.speakers.iter().flatten() {
            self.host.set_room(speaker.client, speaker.room);
        }
        self.settle();
        for speaker in self.speakers.iter().flatten() {
            speaker.check(self.is_lenient, false);
        }
        for worker in 0..self.workers {
            let (redis, memcached) = (self.host.connect(worker), self.host.connect_to_memcached(worker));
            let pong = self.host.ask(redis, b"PING\r\n");
            let version = self.host.ask(memcached, b"version\r\n");
            if self.is_lenient {
                continue;
            }
            assert_eq!((&pong[..], &version[..]), ("+PONG\r\n", "VERSION 1.6.18\r\n"));
            let info = self.host.ask(redis, b"INFO memory\r\n");
            let number = |name: &str| {
                let line = info.lines().find_map(|line| line.strip_prefix(name)).expect(name);
                line.parse::<u64>().expect(name)
            };
            assert!(number("used_memory:") <= number("maxmemory:"), "{info}");
        }
    }
}

impl Speaker {
    /// It says `bytes`. Returns whether what is checked here may be another after that.
    fn say(&mut self, bytes: &[u8]) -> bool {
        self.unread.extend_from_slice(bytes);
        let mut used = 0;
        let mut is_lenient = false;
        while !self.is_over && used < self.unread.len() {
            let data = &self.unread[used..];
            let len = if self.is_memcached {
                let limits = memcached::Limits { item: 1 << 20, long: usize::MAX };
                match self.memcached.parse(data, &limits) {
                    Ok(memcached::Parsed::Request { len, .. }) => {
                        let line = data[..len].split(|byte| matches!(byte, 0 | b'\r' | b'\n')).next();
                        self.is_over = line.unwrap_or_default().trim_ascii().starts_with(b"quit");
                        len
                    }
                    Ok(memcached::Parsed::Skip(len)) => len,
                    Ok(_) => break,
                    Err(_) => {
                        self.is_over = true;
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
                            self.is_over = name.eq_ignore_ascii_case(b"quit");
                        }
                        len
                    }
                    Ok(_) => break,
                    Err(_) => {
                        // It is told so.
                        self.requests += 1;
                        self.is_over = true;
                        break;
                    }
                }
            };
            used += len;
        }
        self.unread.drain(..used);
        is_lenient
    }

    /// A question whose answer names `number`, if it can ask one now.
    fn ask(&mut self, number: usize) -> Vec<u8> {
        if self.is_over || self.resp.is_within() || self.memcached.is_within() {
            return Vec::new();
        }
        let token = format!("~{number}~");
        let question = match self.is_memcached {
            // Nothing has this name.
            true => format!("md {token} O{token}\r\n"),
            false => format!("*2\r\n$4\r\nECHO\r\n${}\r\n{token}\r\n", token.len()),
        };
        self.asked.push((self.requests, token));
        self.say(question.as_bytes());
        question.into_bytes()
    }

    /// Checks the replies of one that has been served, or disconnected without regard to them if `is_aborted`.
    fn check(&self, is_lenient: bool, is_aborted: bool) {
        if is_lenient || is_aborted || self.room == 0 {
            return;
        }
        let received = || self.received[..self.received.len().min(1000)].escape_ascii();
        if self.is_memcached {
            let mut rest = &self.received[..];
            for (_, token) in &self.asked {
                let answer = format!(" O{token}\r\n");
                let at = rest.windows(answer.len()).position(|window| window == answer.as_bytes());
                let Some(at) = at else { panic!("{token} is not answered: {}", received()) };
                rest = &rest[at..];
            }
            return;
        }
        let Some(replies) = replies::all(&self.received) else { panic!("no replies: {}", received()) };
        assert_eq!(replies.len(), self.requests, "{}", received());
        for (request, token) in &self.asked {
            let reply = replies[*request];
            let answer = format!("${}\r\n{token}\r\n", token.len());
            let is_answer = reply == answer.as_bytes() || reply == b"+QUEUED\r\n";
            assert!(is_answer, "{token} is answered with {}: {}", reply.escape_ascii(), received());
        }
    }
}

/// `bytes` with their repetitions.
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
