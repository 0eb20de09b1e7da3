//! A client of Redis whose values come and go, and that knows what each of its keys may have.

use crate::common::PATIENCE;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Keys, of which the first few have values of all sizes, and the others small ones.
const KEYS: u64 = 400_000;
const LARGE: u64 = 4000;
/// Requests that are sent together, and bytes of them and of their replies, which must not wait for each other.
const BATCH: usize = 64;
const BYTES: usize = 150_000;
/// How long it is one size, and then the other.
const PHASE: Duration = Duration::from_millis(1500);
/// How late a clock may be.
const LATE: Duration = Duration::from_millis(100);

/// A connection to a server.
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    pub fn new(server: SocketAddr) -> Self {
        let stream = TcpStream::connect(server).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        assert!(line.ends_with("\r\n"), "{line:?}");
        line.truncate(line.len() - 2);
        line
    }

    /// A string, if there is one.
    fn bulk(&mut self) -> Option<Vec<u8>> {
        let line = self.line();
        let len: i64 = line.strip_prefix('$').unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        let len = usize::try_from(len).ok()?;
        let mut bytes = vec![0; len + 2];
        self.0.read_exact(&mut bytes).unwrap();
        bytes.truncate(len);
        Some(bytes)
    }

    /// A number of `INFO`.
    pub fn info(&mut self, name: &str) -> u64 {
        self.0.get_mut().write_all(b"INFO\r\n").unwrap();
        let info = String::from_utf8(self.bulk().unwrap()).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect(name);
        line.parse().unwrap()
    }
}

/// What a key has been set to: `version` of so many bytes, and until when.
#[derive(Clone, Copy)]
struct Last {
    version: u64,
    len: usize,
    until: Option<Instant>,
}

/// What was asked for.
enum Asked {
    Get(u64, Instant),
    Set(u64, Last, Option<Duration>),
}

/// The client.
pub struct Churn {
    connection: Connection,
    name: u64,
    /// Some live for ever.
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

    /// Goes on until `done`. Returns how many values it has seen.
    pub fn run(mut self, done: &AtomicBool) -> u64 {
        let began = Instant::now();
        while !done.load(Ordering::Relaxed) {
            let phase = began.elapsed().as_millis() / PHASE.as_millis();
            let asked = self.ask(phase.is_multiple_of(2));
            asked.into_iter().for_each(|asked| self.check(asked));
        }
        self.seen
    }

    /// Sends some requests.
    fn ask(&mut self, is_large: bool) -> Vec<Asked> {
        let (mut out, mut replies, mut all) = (Vec::new(), 0, Vec::new());
        while all.len() < BATCH && out.len() + replies < BYTES {
            // No key is asked for twice in a batch, so that each is known.
            let at = all.len() as u64;
            let key = if is_large { self.random.u64(..LARGE) } else { self.random.u64(LARGE..KEYS) } / 64 * 64 + at;
            if self.random.u8(..3) == 0 {
                write!(out, "GET churn:{}:{key}\r\n", self.name).unwrap();
                replies += self.lasts.get(&key).map_or(0, |last| last.len);
                all.push(Asked::Get(key, Instant::now()));
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
            all.push(Asked::Set(key, Last { version: self.versions, len, until: None }, life));
        }
        self.connection.0.get_mut().write_all(&out).unwrap();
        all
    }

    /// Checks a reply.
    fn check(&mut self, asked: Asked) {
        match asked {
            Asked::Get(key, at) => {
                let Some(bytes) = self.connection.bulk() else { return };
                let Some(last) = self.lasts.get(&key) else { panic!("{key} was never set") };
                assert!(last.until.is_none_or(|until| at < until), "{key} of {} bytes is over", last.len);
                let is_last = bytes == value(self.name, key, last.version, last.len);
                assert!(is_last, "{key} has {} bytes instead of {} of version {}", bytes.len(), last.len, last.version);
                self.seen += 1;
            }
            Asked::Set(key, last, life) => match &self.connection.line()[..] {
                "+OK" => {
                    let until = life.map(|life| Instant::now() + life + LATE);
                    self.lasts.insert(key, Last { until, ..last });
                }
                // What was there before is still there.
                refused => assert!(refused.starts_with("-OOM "), "{refused}"),
            },
        }
    }
}

/// What `version` of a client's key is.
fn value(name: u64, key: u64, version: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(name << 60 ^ key << 40 ^ version);
    let piece: [u8; 64] = std::array::from_fn(|_| random.u8(..));
    piece.iter().copied().cycle().zip(0u64..).map(|(byte, at)| byte ^ (at / 64) as u8).take(len).collect()
}
