//! Redis client that writes values of changing sizes and tracks the permitted value of each key.

use crate::common::client::connect;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Number of keys. The first few have values of all sizes, the others small ones.
const KEYS: u64 = 400_000;
const LARGE: u64 = 4000;
/// Limits of a batch: number of requests, and bytes of requests and replies, which must not block each other.
const BATCH: usize = 64;
const BYTES: usize = 150_000;
/// Time between changes of the value sizes.
const PHASE: Duration = Duration::from_millis(1500);
/// Tolerance for the expiry clock.
const LATE: Duration = Duration::from_millis(100);

/// A connection to a server.
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    pub fn new(server: SocketAddr) -> Self {
        let stream = connect(server);
        stream.set_nodelay(true).unwrap();
        Connection(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        assert!(line.ends_with("\r\n"), "{line:?}");
        line.truncate(line.len() - 2);
        line
    }

    /// Reads a bulk string, or `None` for a null reply.
    fn bulk(&mut self) -> Option<Vec<u8>> {
        let line = self.line();
        let len: i64 = line.strip_prefix('$').unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        let len = usize::try_from(len).ok()?;
        let mut bytes = vec![0; len + 2];
        self.0.read_exact(&mut bytes).unwrap();
        bytes.truncate(len);
        Some(bytes)
    }

    /// Returns a number of `INFO`.
    pub fn info(&mut self, name: &str) -> u64 {
        self.0.get_mut().write_all(b"INFO\r\n").unwrap();
        let info = String::from_utf8(self.bulk().unwrap()).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect(name);
        line.parse().unwrap()
    }
}

/// Last value of a key: version, length and expiry.
#[derive(Clone, Copy)]
struct Last {
    version: u64,
    len: usize,
    until: Option<Instant>,
}

/// Pending request.
enum Request {
    Get(u64, Instant),
    Set(u64, Last, Option<Duration>),
}

/// Client.
pub struct Churn {
    connection: Connection,
    name: u64,
    /// Set if some values have no expiry.
    some_stay: bool,
    random: fastrand::Rng,
    versions: u64,
    lasts: HashMap<u64, Last>,
    seen: u64,
}

impl Churn {
    pub fn new(server: SocketAddr, name: u64, some_stay: bool) -> Self {
        let random = fastrand::Rng::with_seed(name);
        Churn {
            connection: Connection::new(server),
            name,
            some_stay,
            random,
            versions: 0,
            lasts: HashMap::new(),
            seen: 0,
        }
    }

    /// Runs until `done`. Returns the number of values received.
    pub fn run(mut self, done: &AtomicBool) -> u64 {
        let started = Instant::now();
        while !done.load(Ordering::Relaxed) {
            let phase = started.elapsed().as_millis() / PHASE.as_millis();
            let requests = self.send_batch(phase.is_multiple_of(2));
            requests.into_iter().for_each(|request| self.check(request));
        }
        self.seen
    }

    fn send_batch(&mut self, is_large: bool) -> Vec<Request> {
        let (mut out, mut replies, mut all) = (Vec::new(), 0, Vec::new());
        while all.len() < BATCH && out.len() + replies < BYTES {
            // A batch requests each key once only, so that its value is known.
            let at = all.len() as u64;
            let key = if is_large { self.random.u64(..LARGE) } else { self.random.u64(LARGE..KEYS) } / 64 * 64 + at;
            if self.random.u8(..3) == 0 {
                write!(out, "GET churn:{}:{key}\r\n", self.name).unwrap();
                replies += self.lasts.get(&key).map_or(0, |last| last.len);
                all.push(Request::Get(key, Instant::now()));
                continue;
            }
            let len = match self.random.u32(..200) {
                _ if !is_large => self.random.usize(1..300),
                0 | 1 => 1 << 20,
                _ => 1usize << self.random.u32(..16) | self.random.usize(1..1000),
            };
            self.versions += 1;
            let life = Duration::from_millis(1 << self.random.u32(3..18));
            let life = (!self.some_stay || self.random.bool()).then_some(life);
            let value = value(self.name, key, self.versions, len);
            let words = if life.is_some() { 5 } else { 3 };
            let name = format!("churn:{}:{key}", self.name);
            write!(out, "*{words}\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${len}\r\n", name.len()).unwrap();
            out.extend_from_slice(&value);
            out.extend_from_slice(b"\r\n");
            if let Some(life) = life {
                let life = life.as_millis().to_string();
                write!(out, "$2\r\nPX\r\n${}\r\n{life}\r\n", life.len()).unwrap();
            }
            all.push(Request::Set(key, Last { version: self.versions, len, until: None }, life));
        }
        self.connection.0.get_mut().write_all(&out).unwrap();
        all
    }

    /// Checks the reply to a request.
    fn check(&mut self, request: Request) {
        match request {
            Request::Get(key, at) => {
                let Some(bytes) = self.connection.bulk() else { return };
                let Some(last) = self.lasts.get(&key) else { panic!("{key} was never set") };
                assert!(last.until.is_none_or(|until| at < until), "{key} of {} bytes has expired", last.len);
                let is_last = bytes == value(self.name, key, last.version, last.len);
                assert!(is_last, "{key} has {} bytes instead of {} of version {}", bytes.len(), last.len, last.version);
                self.seen += 1;
            }
            Request::Set(key, last, life) => match &self.connection.line()[..] {
                "+OK" => {
                    let until = life.map(|life| Instant::now() + life + LATE);
                    self.lasts.insert(key, Last { until, ..last });
                }
                // A refused SET keeps the earlier value.
                refused => assert!(refused.starts_with("-OOM "), "{refused}"),
            },
        }
    }
}

/// Returns the content of `version` of a key.
fn value(name: u64, key: u64, version: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(name << 60 ^ key << 40 ^ version);
    let pattern: [u8; 64] = std::array::from_fn(|_| random.u8(..));
    pattern.iter().copied().cycle().zip(0u64..).map(|(byte, at)| byte ^ (at / 64) as u8).take(len).collect()
}
