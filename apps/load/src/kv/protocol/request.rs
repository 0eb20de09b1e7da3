//! GETs and SETs as bytes of either protocol.

use super::super::keyspace::{HEAD, Issued, KEY, Value, Values, key};
use crate::pattern::LONG;
use linerate_service::time::Instant;
use linerate_service::{ConnId, Transport};

/// Protocol of the server.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Protocol {
    /// Redis protocol, version 2.
    #[default]
    Resp,
    /// Text protocol of memcached.
    Memcached,
}

/// An outstanding request.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Start of the measured time.
    pub at: Instant,
    /// Number of the key.
    pub number: u64,
    pub op: Op,
}

#[derive(Debug, Clone, Copy)]
pub enum Op {
    Get {
        /// Lowest valid version of the answer.
        lowest: u32,
    },
    Set(Issued),
}

/// Lengths of GETs.
const RESP_GET: usize = 36;
const MEMCACHED_GET: usize = 22;
/// Largest size of the lines before a value, with the value's header.
const LINE: usize = 64;
const END: &[u8; 2] = b"\r\n";

/// Beginning of a SET: its lines, and the value's header.
struct SetPrefix {
    bytes: [u8; LINE],
    len: usize,
}

impl SetPrefix {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    #[inline]
    fn put_number(&mut self, mut n: u32) {
        let digits = digits(n);
        for buffer in self.bytes[self.len..self.len + digits].iter_mut().rev() {
            *buffer = b'0' + (n % 10) as u8;
            n /= 10;
        }
        self.len += digits;
    }

    /// Creates the beginning of the SET of key `number` to `value`.
    #[inline]
    fn new(protocol: Protocol, number: u64, value: &Value) -> Self {
        let mut start = SetPrefix { bytes: [0; LINE], len: 0 };
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

    /// Returns the length without the value's bytes.
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
    /// Placeholder of an unused slot.
    pub const NONE: Request = Request { at: Instant::ZERO, number: 0, op: Op::Get { lowest: 0 } };

    /// Returns the length in bytes, and whether sending by reference is faster than copying.
    #[inline]
    pub fn size(&self, protocol: Protocol, values: &Values) -> (usize, bool) {
        match (self.op, protocol) {
            (Op::Get { .. }, Protocol::Resp) => (RESP_GET, false),
            (Op::Get { .. }, Protocol::Memcached) => (MEMCACHED_GET, false),
            (Op::Set(set), _) => {
                let value = values.value(self.number, set.version);
                let len = value.len as usize;
                (SetPrefix::line(protocol, &value) + len + END.len(), len >= LONG)
            }
        }
    }

    /// Writes the request without its first `from` bytes into `buffer`; returns the number of bytes written.
    #[inline]
    pub fn fill(&self, protocol: Protocol, values: &Values, from: usize, buffer: &mut [u8]) -> usize {
        match (self.op, protocol) {
            (Op::Get { .. }, Protocol::Resp) => {
                if from == 0
                    && let Some(buffer) = buffer.first_chunk_mut::<RESP_GET>()
                {
                    *buffer = resp_get(self.number);
                    return RESP_GET;
                }
                let mut writer = PartialWriter { skip: from, buffer, written: 0 };
                writer.put(&resp_get(self.number));
                writer.written
            }
            (Op::Get { .. }, Protocol::Memcached) => {
                let mut writer = PartialWriter { skip: from, buffer, written: 0 };
                writer.put(&memcached_get(self.number));
                writer.written
            }
            (Op::Set(set), _) => {
                let value = values.value(self.number, set.version);
                let start = SetPrefix::new(protocol, self.number, &value);
                let mut writer = PartialWriter { skip: from, buffer, written: 0 };
                writer.put(&start.bytes[..start.len]);
                writer.put_rest(&value);
                writer.put(END);
                writer.written
            }
        }
    }

    /// Sends a SET without its first `from` bytes, its value by reference; returns the number of bytes sent. Sends
    /// nothing for a GET.
    #[cold]
    pub fn send_long(
        &self,
        protocol: Protocol,
        values: &Values,
        from: usize,
        net: &mut impl Transport,
        conn: ConnId,
    ) -> usize {
        let Op::Set(set) = self.op else { return 0 };
        let mut value = values.value(self.number, set.version);
        let start = SetPrefix::new(protocol, self.number, &value);
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

/// Writer of a byte sequence that skips its beginning and stops when `buffer` is full.
struct PartialWriter<'a> {
    skip: usize,
    buffer: &'a mut [u8],
    written: usize,
}

impl PartialWriter<'_> {
    /// Returns offset and length of the part of the next `len` bytes to write.
    #[inline]
    fn part(&mut self, len: usize) -> (usize, usize) {
        let from = self.skip.min(len);
        self.skip -= from;
        (from, (len - from).min(self.buffer.len() - self.written))
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let (from, n) = self.part(bytes.len());
        self.buffer[self.written..self.written + n].copy_from_slice(&bytes[from..from + n]);
        self.written += n;
    }

    #[inline]
    fn put_rest(&mut self, value: &Value) {
        let (from, n) = self.part((value.len as usize).saturating_sub(HEAD));
        let mut rest = value.rest;
        if from > 0 {
            rest.advance(from);
        }
        rest.fill(&mut self.buffer[self.written..self.written + n]);
        self.written += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Discard;
    use crate::testing::FakeTransport;

    fn get(number: u64) -> Request {
        Request { at: Instant::ZERO, number, op: Op::Get { lowest: 0 } }
    }

    fn set(number: u64, version: u32) -> Request {
        Request { at: Instant::ZERO, number, op: Op::Set(Issued { version, settled: 0 }) }
    }

    fn bytes(request: &Request, protocol: Protocol, values: &Values) -> Vec<u8> {
        let mut bytes = vec![0; request.size(protocol, values).0];
        assert_eq!(request.fill(protocol, values, 0, &mut bytes), bytes.len());
        bytes
    }

    #[test]
    fn requests_follow_the_protocols() {
        let values = Values::new(12, 12, 7);
        assert_eq!(bytes(&get(42), Protocol::Resp, &values), b"*2\r\n$3\r\nGET\r\n$16\r\nkey:00000000002a\r\n");
        assert_eq!(bytes(&get(42), Protocol::Memcached, &values), b"get key:00000000002a\r\n");
        for (protocol, before) in [
            (Protocol::Resp, &b"*3\r\n$3\r\nSET\r\n$16\r\nkey:00000000002a\r\n$12\r\n"[..]),
            (Protocol::Memcached, b"set key:00000000002a 0 0 12\r\n"),
        ] {
            let set = bytes(&set(42, 3), protocol, &values);
            let value = set.strip_prefix(before).unwrap().strip_suffix(b"\r\n").unwrap();
            assert_eq!((value.len(), &value[..8]), (12, &values.value(42, 3).head[..]));
        }
    }

    #[test]
    fn lengths_have_the_minimum_of_digits() {
        for len in [1, 9, 10, 99, 100, 2047] {
            let set = bytes(&set(0, 1), Protocol::Resp, &Values::new(len, len, 7));
            let line = format!("\r\n${len}\r\n");
            assert!(set.windows(line.len()).any(|window| window == line.as_bytes()), "{len}");
            assert_eq!(set.len(), 34 + line.len() + len as usize + 2);
        }
    }

    #[test]
    fn request_in_parts_equals_the_whole() {
        let values = Values::new(1, 100, 7);
        for protocol in [Protocol::Resp, Protocol::Memcached] {
            for request in [get(42), set(42, 3), set(42, 4), set(42, 5)] {
                let whole = bytes(&request, protocol, &values);
                for part in 1..whole.len() + 10 {
                    let mut parts = Vec::new();
                    while parts.len() < whole.len() {
                        let mut buffer = vec![0; part];
                        let n = request.fill(protocol, &values, parts.len(), &mut buffer);
                        assert!(n > 0);
                        parts.extend_from_slice(&buffer[..n]);
                    }
                    assert_eq!(parts, whole, "{part}");
                }
            }
        }
    }

    #[test]
    fn long_value_is_sent_in_parts_that_fit() {
        let values = Values::new(100_000, 100_000, 7);
        let request = set(42, 3);
        let whole = bytes(&request, Protocol::Resp, &values);
        assert!(request.size(Protocol::Resp, &values).1);
        for room in [1, 50, 51, 1000, 40_000, 200_000] {
            let mut net = FakeTransport::new(room);
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
