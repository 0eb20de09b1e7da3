//! Replies.

use super::number;
use crate::sink::Sink;
use crate::store::Str;
use linerate_bypass::Bytes;

/// Which of the two protocols a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// What every client speaks at first.
    #[default]
    Resp2,
    /// What a client chooses by `HELLO 3`: it has maps, sets, doubles, and one null.
    Resp3,
}

/// What is done without an answer of its own is answered with this.
pub const OK: &[u8] = b"+OK\r\n";

/// Writes replies to a client, in its protocol.
pub struct Reply<'a> {
    sink: &'a mut dyn Sink,
    /// The protocol.
    pub protocol: Protocol,
}

impl<'a> Reply<'a> {
    /// Replies that go to `sink`.
    #[inline]
    pub fn new(sink: &'a mut dyn Sink, protocol: Protocol) -> Self {
        Reply { sink, protocol }
    }

    /// `OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.sink.put(OK);
    }

    /// A short text without line ends.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error without line ends.
    pub fn error(&mut self, text: &[u8]) {
        self.line(b'-', text);
    }

    /// A whole number.
    #[inline]
    pub fn integer(&mut self, number: i64) {
        self.head(b':', number);
    }

    /// How many there are of something.
    #[inline]
    pub fn count(&mut self, count: usize) {
        self.integer(count as i64);
    }

    /// 1 or 0, which most commands say instead of true and false in either protocol.
    #[inline]
    pub fn flag(&mut self, flag: bool) {
        self.sink.put(if flag { b":1\r\n" } else { b":0\r\n" });
    }

    /// A string of bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', bytes.len() as i64);
        self.sink.put(bytes);
        self.sink.put(b"\r\n");
    }

    /// A whole number as a string of bytes.
    pub fn bulk_number(&mut self, number: i64) {
        self.bulk(&number::Digits::of(number));
    }

    /// A stored string, which is not copied if it is long.
    #[inline]
    pub fn value(&mut self, value: &Str<'_>) {
        self.head(b'$', value.len() as i64);
        value.write_to(self);
        self.sink.put(b"\r\n");
    }

    /// A part of a stored string, which lies within it.
    pub fn part(&mut self, value: &Str<'_>, range: std::ops::Range<usize>) {
        self.head(b'$', range.len() as i64);
        value.write_range_to(range, self);
        self.sink.put(b"\r\n");
    }

    /// No value.
    #[inline]
    pub fn null(&mut self) {
        self.sink.put(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// No array.
    pub fn null_array(&mut self) {
        self.sink.put(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// An array of `len` replies, which follow.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.head(b'*', len as i64);
    }

    /// A map of `len` pairs of replies, which follow.
    pub fn map(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.head(b'*', 2 * len as i64),
            Protocol::Resp3 => self.head(b'%', len as i64),
        }
    }

    /// A set of `len` replies, which follow.
    pub fn set(&mut self, len: usize) {
        let kind = if self.protocol == Protocol::Resp2 { b'*' } else { b'~' };
        self.head(kind, len as i64);
    }

    /// A text to be shown as it is.
    pub fn verbatim(&mut self, text: &[u8]) {
        if self.protocol == Protocol::Resp2 {
            return self.bulk(text);
        }
        self.head(b'=', text.len() as i64 + 4);
        self.sink.put(b"txt:");
        self.sink.put(text);
        self.sink.put(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.sink.put(&[kind]);
        self.sink.put(text);
        self.sink.put(b"\r\n");
    }

    /// A line of a number.
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

    /// What `write` writes, in both protocols.
    fn written(write: impl Fn(&mut Reply<'_>)) -> [String; 2] {
        [Protocol::Resp2, Protocol::Resp3].map(|protocol| {
            let mut out = Vec::new();
            write(&mut Reply::new(&mut out, protocol));
            out.escape_ascii().to_string()
        })
    }

    #[test]
    fn what_both_protocols_have_is_alike() {
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
    fn what_only_one_has_is_written_as_the_other_can() {
        let each = |two: &str, three: &str| [two.to_owned(), three.to_owned()];
        assert_eq!(written(|reply| reply.null()), each(r"$-1\r\n", r"_\r\n"));
        assert_eq!(written(|reply| reply.null_array()), each(r"*-1\r\n", r"_\r\n"));
        assert_eq!(written(|reply| reply.map(3)), each(r"*6\r\n", r"%3\r\n"));
        assert_eq!(written(|reply| reply.set(2)), each(r"*2\r\n", r"~2\r\n"));
        assert_eq!(written(|reply| reply.verbatim(b"a")), each(r"$1\r\na\r\n", r"=5\r\ntxt:a\r\n"));
    }
}
