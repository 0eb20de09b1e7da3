//! Replies.

use super::number;
use crate::value::{Sink, Str};
use linerate_service::Bytes;

/// Version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// RESP2, the initial protocol of every client.
    #[default]
    Resp2,
    /// RESP3, selected by `HELLO 3`, with maps, sets, doubles and one null.
    Resp3,
}

pub const OK: &[u8] = b"+OK\r\n";

/// Writer of replies in a client's protocol.
pub struct Reply<'a> {
    sink: &'a mut dyn Sink,
    pub protocol: Protocol,
}

impl<'a> Reply<'a> {
    #[inline]
    pub fn new(sink: &'a mut dyn Sink, protocol: Protocol) -> Self {
        Reply { sink, protocol }
    }

    #[inline]
    pub fn ok(&mut self) {
        self.sink.put(OK);
    }

    /// Writes a simple string without line ends.
    pub fn simple(&mut self, text: &str) {
        self.parse_inline(b'+', text.as_bytes());
    }

    /// Writes an error without line ends.
    pub fn error(&mut self, text: &[u8]) {
        self.parse_inline(b'-', text);
    }

    #[inline]
    pub fn integer(&mut self, number: i64) {
        self.head(b':', number);
    }

    #[inline]
    pub fn count(&mut self, count: usize) {
        self.integer(count as i64);
    }

    /// Writes 1 or 0, which most commands use for true and false in both protocols.
    #[inline]
    pub fn flag(&mut self, flag: bool) {
        self.sink.put(if flag { b":1\r\n" } else { b":0\r\n" });
    }

    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', bytes.len() as i64);
        self.sink.put(bytes);
        self.sink.put(b"\r\n");
    }

    /// Writes bulk strings, one after another.
    pub fn bulks<const N: usize>(&mut self, all: [&str; N]) {
        all.into_iter().for_each(|text| self.bulk(text.as_bytes()));
    }

    pub fn bulk_number(&mut self, number: i64) {
        self.bulk(&number::Digits::new(number));
    }

    /// Writes a stored string, without a copy if it is long.
    #[inline]
    pub fn value(&mut self, value: &Str<'_>) {
        self.head(b'$', value.len() as i64);
        value.write_to(self);
        self.sink.put(b"\r\n");
    }

    /// Writes a stored string, or null.
    #[inline]
    pub fn optional(&mut self, value: Option<Str<'_>>) {
        match value {
            Some(value) => self.value(&value),
            None => self.null(),
        }
    }

    pub fn part(&mut self, value: &Str<'_>, range: std::ops::Range<usize>) {
        self.head(b'$', range.len() as i64);
        value.write_range_to(range, self);
        self.sink.put(b"\r\n");
    }

    #[inline]
    pub fn null(&mut self) {
        self.sink.put(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    pub fn null_array(&mut self) {
        self.sink.put(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    #[inline]
    pub fn array(&mut self, len: usize) {
        self.head(b'*', len as i64);
    }

    pub fn map(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.head(b'*', 2 * len as i64),
            Protocol::Resp3 => self.head(b'%', len as i64),
        }
    }

    pub fn set(&mut self, len: usize) {
        let kind = if self.protocol == Protocol::Resp2 { b'*' } else { b'~' };
        self.head(kind, len as i64);
    }

    pub fn verbatim(&mut self, text: &[u8]) {
        if self.protocol == Protocol::Resp2 {
            return self.bulk(text);
        }
        self.head(b'=', text.len() as i64 + 4);
        self.sink.put(b"txt:");
        self.sink.put(text);
        self.sink.put(b"\r\n");
    }

    fn parse_inline(&mut self, kind: u8, text: &[u8]) {
        self.sink.put(&[kind]);
        self.sink.put(text);
        self.sink.put(b"\r\n");
    }

    /// Writes a line with a type byte and a number.
    #[inline]
    fn head(&mut self, kind: u8, number: i64) {
        let mut line = [0; number::LONGEST + 3];
        let end = line.len() - 2;
        line[end..].copy_from_slice(b"\r\n");
        let from = number::write(number, &mut line[..end]) - 1;
        line[from] = kind;
        self.sink.put(&line[from..]);
    }
}

impl Sink for Reply<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.sink.put(bytes);
    }

    #[inline]
    fn attach(&mut self, bytes: Bytes) {
        self.sink.attach(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the output of `write` in both protocols.
    fn written(write: impl Fn(&mut Reply<'_>)) -> [String; 2] {
        [Protocol::Resp2, Protocol::Resp3].map(|protocol| {
            let mut out = Vec::new();
            write(&mut Reply::new(&mut out, protocol));
            out.escape_ascii().to_string()
        })
    }

    #[test]
    fn replies_common_to_both_protocols_are_equal() {
        let alike = |text: &str| [text.to_owned(), text.to_owned()];
        assert_eq!(written(|reply| reply.ok()), alike(r"+OK\r\n"));
        assert_eq!(written(|reply| reply.simple("PONG")), alike(r"+PONG\r\n"));
        assert_eq!(written(|reply| reply.error(b"ERR no")), alike(r"-ERR no\r\n"));
        assert_eq!(written(|reply| reply.integer(0)), alike(r":0\r\n"));
        assert_eq!(written(|reply| reply.integer(i64::MIN)), alike(r":-9223372036854775808\r\n"));
        assert_eq!(written(|reply| reply.flag(true)), alike(r":1\r\n"));
        assert_eq!(written(|reply| reply.bulk(b"")), alike(r"$0\r\n\r\n"));
        assert_eq!(written(|reply| reply.bulk(b"a\r\nb")), alike(r"$4\r\na\r\nb\r\n"));
        assert_eq!(written(|reply| reply.bulk_number(-7)), alike(r"$2\r\n-7\r\n"));
        assert_eq!(written(|reply| reply.value(&Str::Short(b"abc"))), alike(r"$3\r\nabc\r\n"));
        assert_eq!(written(|reply| reply.part(&Str::Short(b"abcd"), 1..3)), alike(r"$2\r\nbc\r\n"));
        assert_eq!(written(|reply| reply.array(12)), alike(r"*12\r\n"));
        assert_eq!(written(|reply| reply.count(34)), alike(r":34\r\n"));
        assert_eq!(written(|reply| reply.attach(Bytes::from(b"ab".to_vec()))), alike("ab"));
    }

    #[test]
    fn replies_of_one_protocol_are_expressed_in_the_other() {
        let each = |two: &str, three: &str| [two.to_owned(), three.to_owned()];
        assert_eq!(written(|reply| reply.null()), each(r"$-1\r\n", r"_\r\n"));
        assert_eq!(written(|reply| reply.null_array()), each(r"*-1\r\n", r"_\r\n"));
        assert_eq!(written(|reply| reply.map(3)), each(r"*6\r\n", r"%3\r\n"));
        assert_eq!(written(|reply| reply.set(2)), each(r"*2\r\n", r"~2\r\n"));
        assert_eq!(written(|reply| reply.verbatim(b"a")), each(r"$1\r\na\r\n", r"=5\r\ntxt:a\r\n"));
    }
}
