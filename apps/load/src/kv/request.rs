//! What is asked: GETs and SETs, as bytes of either protocol.

use super::keys::{KEY, key};
use super::values::{HEAD, Value, Values};
use super::versions::Issued;
use crate::pattern::LONG;
use linerate_bypass::time::Instant;
use linerate_bypass::{ConnId, Transport};

/// How a server is spoken to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// That of Redis, version 2.
    #[default]
    Resp,
    /// The text protocol of memcached.
    Memcached,
}

/// A request that has no answer yet.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// What its time is counted from.
    pub at: Instant,
    /// The key.
    pub number: u64,
    pub what: What,
}

#[derive(Debug, Clone, Copy)]
pub enum What {
    Get {
        /// No version before this one may come.
        lowest: u32,
    },
    Set(Issued),
}

/// Bytes of a GET, and what precedes and follows the key.
const RESP_GET: usize = 36;
const MEMCACHED_GET: usize = 22;
/// The longest line before a value, with the value's first bytes.
const LINE: usize = 64;
const END: &[u8; 2] = b"\r\n";

/// What comes before the most of a SET's value: its lines, and the value's first bytes.
struct Start {
    bytes: [u8; LINE],
    len: usize,
}

impl Start {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    #[inline]
    fn put_number(&mut self, mut n: u32) {
        let digits = digits(n);
        for place in self.bytes[self.len..self.len + digits].iter_mut().rev() {
            *place = b'0' + (n % 10) as u8;
            n /= 10;
        }
        self.len += digits;
    }

    /// Of the SET of the key `number` to `value`.
    #[inline]
    fn new(protocol: Protocol, number: u64, value: &Value) -> Self {
        let mut start = Start { bytes: [0; LINE], len: 0 };
        match protocol {
            Protocol::Resp => {
                start.put(b"*3\r\n$3\r\nSET\r\n$16\r\n");
                start.put(&key(number));
                start.put(b"\r\n$");
            }
            Protocol::Memcached => {
                start.put(b"set ");
                start.put(&key(number));
                start.put(b" 0 0 ");
            }
        }
        start.put_number(value.len);
        start.put(END);
        start.put(&value.head[..HEAD.min(value.len as usize)]);
        start
    }

    /// How long it will be without the value's bytes.
    #[inline]
    fn line(protocol: Protocol, value: &Value) -> usize {
        let around = match protocol {
            Protocol::Resp => 18 + KEY + 3 + END.len(),
            Protocol::Memcached => 4 + KEY + 5 + END.len(),
        };
        around + digits(value.len)
    }
}

#[inline]
fn digits(n: u32) -> usize {
    n.checked_ilog10().map_or(1, |log| log as usize + 1)
}

#[inline]
fn resp_get(number: u64) -> [u8; RESP_GET] {
    let mut bytes = *b"*2\r\n$3\r\nGET\r\n$16\r\n................\r\n";
    bytes[18..18 + KEY].copy_from_slice(&key(number));
    bytes
}

fn memcached_get(number: u64) -> [u8; MEMCACHED_GET] {
    let mut bytes = *b"get ................\r\n";
    bytes[4..4 + KEY].copy_from_slice(&key(number));
    bytes
}

impl Request {
    /// In the place of one.
    pub const NONE: Request = Request { at: Instant::ZERO, number: 0, what: What::Get { lowest: 0 } };

    /// Its length in bytes, and whether most of it is better handed over than copied.
    #[inline]
    pub fn size(&self, protocol: Protocol, values: &Values) -> (usize, bool) {
        match (self.what, protocol) {
            (What::Get { .. }, Protocol::Resp) => (RESP_GET, false),
            (What::Get { .. }, Protocol::Memcached) => (MEMCACHED_GET, false),
            (What::Set(set), _) => {
                let value = values.of(self.number, set.version);
                let len = value.len as usize;
                (Start::line(protocol, &value) + len + END.len(), len >= LONG)
            }
        }
    }

    /// Writes its bytes into `place`, without the first `from`, and returns how many there were room for.
    #[inline]
    pub fn fill(&self, protocol: Protocol, values: &Values, from: usize, place: &mut [u8]) -> usize {
        match (self.what, protocol) {
            (What::Get { .. }, Protocol::Resp) => {
                if from == 0
                    && let Some(place) = place.first_chunk_mut::<RESP_GET>()
                {
                    *place = resp_get(self.number);
                    return RESP_GET;
                }
                let mut cut = Cut { skip: from, place, written: 0 };
                cut.put(&resp_get(self.number));
                cut.written
            }
            (What::Get { .. }, Protocol::Memcached) => {
                let mut cut = Cut { skip: from, place, written: 0 };
                cut.put(&memcached_get(self.number));
                cut.written
            }
            (What::Set(set), _) => {
                let value = values.of(self.number, set.version);
                let start = Start::new(protocol, self.number, &value);
                let mut cut = Cut { skip: from, place, written: 0 };
                cut.put(&start.bytes[..start.len]);
                cut.put_rest(&value);
                cut.put(END);
                cut.written
            }
        }
    }

    /// Sends it, without its first `from` bytes, its value without copying that, and returns how many bytes there was
    /// room for. If it is not a SET, nothing.
    #[cold]
    pub fn send_long(
        &self,
        protocol: Protocol,
        values: &Values,
        from: usize,
        net: &mut impl Transport,
        conn: ConnId,
    ) -> usize {
        let What::Set(set) = self.what else { return 0 };
        let mut value = values.of(self.number, set.version);
        let start = Start::new(protocol, self.number, &value);
        let end = start.len + (value.len as usize).saturating_sub(HEAD);
        let mut at = from;
        if at < start.len {
            at += net.write(conn, &start.bytes[at..start.len]);
        }
        if (start.len..end).contains(&at) {
            value.rest.advance(at - start.len);
            at += value.rest.send(net, conn, end - at);
        }
        if at >= end {
            at += net.write(conn, &END[at - end..]);
        }
        at - from
    }
}

/// A part of some bytes: all but the first, as far as they fit.
struct Cut<'a> {
    skip: usize,
    place: &'a mut [u8],
    written: usize,
}

impl Cut<'_> {
    /// The part of the next `len` bytes that is wanted: from where, and how many.
    #[inline]
    fn part(&mut self, len: usize) -> (usize, usize) {
        let from = self.skip.min(len);
        self.skip -= from;
        (from, (len - from).min(self.place.len() - self.written))
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let (from, n) = self.part(bytes.len());
        self.place[self.written..self.written + n].copy_from_slice(&bytes[from..from + n]);
        self.written += n;
    }

    #[inline]
    fn put_rest(&mut self, value: &Value) {
        let (from, n) = self.part((value.len as usize).saturating_sub(HEAD));
        let mut rest = value.rest;
        if from > 0 {
            rest.advance(from);
        }
        rest.fill(&mut self.place[self.written..self.written + n]);
        self.written += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Discard;
    use crate::testing::Fake;

    fn get(number: u64) -> Request {
        Request { at: Instant::ZERO, number, what: What::Get { lowest: 0 } }
    }

    fn set(number: u64, version: u32) -> Request {
        Request { at: Instant::ZERO, number, what: What::Set(Issued { version, settled: 0 }) }
    }

    fn bytes(request: &Request, protocol: Protocol, values: &Values) -> Vec<u8> {
        let mut bytes = vec![0; request.size(protocol, values).0];
        assert_eq!(request.fill(protocol, values, 0, &mut bytes), bytes.len());
        bytes
    }

    #[test]
    fn requests_are_what_the_protocols_say() {
        let values = Values::new(12, 12, 7);
        assert_eq!(bytes(&get(42), Protocol::Resp, &values), b"*2\r\n$3\r\nGET\r\n$16\r\nkey:00000000002a\r\n");
        assert_eq!(bytes(&get(42), Protocol::Memcached, &values), b"get key:00000000002a\r\n");
        for (protocol, before) in [
            (Protocol::Resp, &b"*3\r\n$3\r\nSET\r\n$16\r\nkey:00000000002a\r\n$12\r\n"[..]),
            (Protocol::Memcached, b"set key:00000000002a 0 0 12\r\n"),
        ] {
            let set = bytes(&set(42, 3), protocol, &values);
            let value = set.strip_prefix(before).unwrap().strip_suffix(b"\r\n").unwrap();
            assert_eq!((value.len(), &value[..8]), (12, &values.of(42, 3).head[..]));
        }
    }

    #[test]
    fn lengths_have_as_many_digits_as_they_need() {
        for len in [1, 9, 10, 99, 100, 2047] {
            let set = bytes(&set(0, 1), Protocol::Resp, &Values::new(len, len, 7));
            let line = format!("\r\n${len}\r\n");
            assert!(set.windows(line.len()).any(|window| window == line.as_bytes()), "{len}");
            assert_eq!(set.len(), 34 + line.len() + len as usize + 2);
        }
    }

    #[test]
    fn a_request_in_parts_is_the_same_request() {
        let values = Values::new(1, 100, 7);
        for protocol in [Protocol::Resp, Protocol::Memcached] {
            for request in [get(42), set(42, 3), set(42, 4), set(42, 5)] {
                let whole = bytes(&request, protocol, &values);
                for part in 1..whole.len() + 10 {
                    let mut parts = Vec::new();
                    while parts.len() < whole.len() {
                        let mut place = vec![0; part];
                        let n = request.fill(protocol, &values, parts.len(), &mut place);
                        assert!(n > 0);
                        parts.extend_from_slice(&place[..n]);
                    }
                    assert_eq!(parts, whole, "{part}");
                }
            }
        }
    }

    #[test]
    fn a_long_value_is_sent_in_the_parts_that_there_is_room_for() {
        let values = Values::new(100_000, 100_000, 7);
        let request = set(42, 3);
        let whole = bytes(&request, Protocol::Resp, &values);
        assert!(request.size(Protocol::Resp, &values).1);
        for room in [1, 50, 51, 1000, 40_000, 200_000] {
            let mut net = Fake::new(room);
            let conn = net.accept(&mut Discard::default());
            let mut sent = Vec::new();
            while sent.len() < whole.len() {
                let n = request.send_long(Protocol::Resp, &values, sent.len(), &mut net, conn);
                let part = net.drain(&mut Discard::default(), conn);
                assert!(n > 0 && part.len() == n);
                sent.extend(part);
            }
            assert!(sent == whole, "{room}");
        }
    }
}
