//! Parser of replies in either protocol, which may arrive in chunks.

use super::super::keyspace::{HEAD, Values, Versions, key, version_of};
use super::{Op, Protocol, Request};
use crate::pattern::Position;

/// Stored bytes of an incomplete line; only error messages are longer.
const LINE_PREFIX: usize = 128;
/// Largest accepted line.
const LONGEST_LINE: usize = 64 << 10;
/// Largest accepted value: RESP's limit; memcached's is lower.
const LONGEST_VALUE: u32 = 512 << 20;
/// Bytes of a reply quoted in error messages.
const SHOWN: usize = 80;

#[derive(Debug, PartialEq, Eq)]
pub enum RequestResult<'a> {
    /// Length of the value.
    Value(u32),
    /// The key does not exist.
    Miss,
    /// The SET is complete.
    Done,
    /// Error message.
    Refused(&'a [u8]),
}

/// Description of a wrong reply.
pub type Wrong = String;

/// First line of a reply.
enum Head<'a> {
    Value(u32),
    Whole(RequestResult<'a>),
    Wrong,
}

/// Parser state of a partly received reply.
#[derive(Debug)]
pub struct Reply {
    stage: Stage,
    value: Check,
    /// Length and first bytes of an incomplete line.
    line: usize,
    prefix: [u8; LINE_PREFIX],
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Line,
    /// Bytes of the value that are still missing.
    Body(u32),
    /// Bytes received after the value.
    Tail(usize),
}

#[derive(Clone, Copy)]
pub struct Expected<'a> {
    pub values: &'a Values,
    pub versions: &'a Versions,
}

impl Reply {
    /// Creates the state before the first byte.
    pub fn new() -> Self {
        Reply { stage: Stage::Line, value: Check::new(0), line: 0, prefix: [0; LINE_PREFIX] }
    }

    /// Processes `bytes`; returns the number of bytes that belong to the reply to `request`, and the answer if they
    /// complete it.
    #[inline]
    pub fn take<'a>(
        &'a mut self,
        bytes: &'a [u8],
        protocol: Protocol,
        request: &Request,
        expected: Option<Expected>,
    ) -> Result<(usize, Option<RequestResult<'a>>), Wrong> {
        if expected.is_none()
            && let (Stage::Line, 0) = (self.stage, self.line)
            && let Some(whole) = protocol.whole(bytes, request)
        {
            return Ok(whole);
        }
        let mut at = 0;
        if let Stage::Line = self.stage {
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                self.keep(bytes)?;
                return Ok((bytes.len(), None));
            };
            at = end + 1;
            let line = if self.line == 0 {
                &bytes[..at]
            } else {
                self.keep(&bytes[..at])?;
                &self.prefix[..self.line.min(LINE_PREFIX)]
            };
            self.line = 0;
            match protocol.head(line, request) {
                Head::Value(len) => {
                    self.stage = Stage::Body(len);
                    self.value = Check::new(len);
                }
                Head::Whole(answer) => return Ok((at, Some(answer))),
                Head::Wrong => return Err(wrong_answer(line)),
            }
        }
        if let Stage::Body(left) = self.stage {
            let part = &bytes[at..bytes.len().min(at + left as usize)];
            at += part.len();
            if let Some(expected) = expected {
                self.value.take(part, request, expected)?;
            }
            let left = left - part.len() as u32;
            self.stage = Stage::Body(left);
            if left > 0 {
                return Ok((at, None));
            }
            self.stage = Stage::Tail(0);
        }
        if let Stage::Tail(received) = self.stage {
            let tail = &protocol.tail()[received..];
            let part = &bytes[at..bytes.len().min(at + tail.len())];
            if *part != tail[..part.len()] {
                return Err(format!("the value is followed by {}", shown(part)));
            }
            at += part.len();
            if part.len() < tail.len() {
                self.stage = Stage::Tail(received + part.len());
                return Ok((at, None));
            }
            self.stage = Stage::Line;
        }
        Ok((at, Some(RequestResult::Value(self.value.len))))
    }

    #[cold]
    fn keep(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        let from = self.line.min(LINE_PREFIX);
        let n = bytes.len().min(LINE_PREFIX - from);
        self.prefix[from..from + n].copy_from_slice(&bytes[..n]);
        self.line += bytes.len();
        if self.line > LONGEST_LINE {
            return Err(format!("the reply is a line of more than {LONGEST_LINE} bytes: {}", shown(&self.prefix)));
        }
        Ok(())
    }
}

impl Protocol {
    /// Fast parser for common complete answers, used if values are not verified.
    #[inline]
    fn whole<'a>(self, bytes: &[u8], request: &Request) -> Option<(usize, Option<RequestResult<'a>>)> {
        const DONE: &[u8] = b"+OK\r\n";
        match (self, request.op) {
            (Protocol::Resp, Op::Set(_)) => bytes.starts_with(DONE).then_some((DONE.len(), Some(RequestResult::Done))),
            (Protocol::Resp, Op::Get { .. }) if bytes.first() == Some(&b'$') => {
                let (mut at, mut len) = (1, 0);
                loop {
                    let byte = *bytes.get(at)?;
                    at += 1;
                    match byte {
                        b'0'..=b'9' if at < 10 => len = len * 10 + u32::from(byte - b'0'),
                        b'\r' if at > 2 && len <= LONGEST_VALUE => break,
                        _ => return None,
                    }
                }
                let end = at + 1 + len as usize + 2;
                let is_whole = bytes.get(at) == Some(&b'\n') && bytes.get(end - 2..end) == Some(b"\r\n");
                is_whole.then_some((end, Some(RequestResult::Value(len))))
            }
            _ => None,
        }
    }

    /// Returns the bytes that follow a value.
    fn tail(self) -> &'static [u8] {
        match self {
            Protocol::Resp => b"\r\n",
            Protocol::Memcached => b"\r\nEND\r\n",
        }
    }

    /// Parses the first line of the reply to `request`, or its stored beginning.
    #[inline]
    fn head<'a>(self, line: &'a [u8], request: &Request) -> Head<'a> {
        match self {
            Protocol::Resp => resp(line, matches!(request.op, Op::Set(_))),
            Protocol::Memcached => memcached(line, request),
        }
    }
}

#[inline]
fn resp(line: &[u8], is_set: bool) -> Head<'_> {
    match line {
        [b'$', digits @ .., b'\r', b'\n'] if !is_set => match number(digits) {
            Some(len) => Head::Value(len),
            None if digits == b"-1" => Head::Whole(RequestResult::Miss),
            None => Head::Wrong,
        },
        b"+OK\r\n" if is_set => Head::Whole(RequestResult::Done),
        [b'-', message @ ..] => Head::Whole(RequestResult::Refused(message.trim_ascii_end())),
        _ => Head::Wrong,
    }
}

fn memcached<'a>(line: &'a [u8], request: &Request) -> Head<'a> {
    let is_set = matches!(request.op, Op::Set(_));
    match line {
        b"STORED\r\n" if is_set => Head::Whole(RequestResult::Done),
        b"END\r\n" if !is_set => Head::Whole(RequestResult::Miss),
        [b'V', b'A', b'L', b'U', b'E', b' ', value @ .., b'\r', b'\n'] if !is_set => {
            let Some([b' ', value @ ..]) = value.strip_prefix(&key(request.number)) else { return Head::Wrong };
            // The flags are arbitrary.
            let mut words = value.split(|byte| *byte == b' ');
            match (words.next().and_then(number), words.next().and_then(number), words.next()) {
                (Some(_), Some(len), None) => Head::Value(len),
                _ => Head::Wrong,
            }
        }
        _ => {
            let is_error = [&b"ERROR\r\n"[..], b"CLIENT_ERROR ", b"SERVER_ERROR "].iter().any(|e| line.starts_with(e));
            if is_error { Head::Whole(RequestResult::Refused(line.trim_ascii_end())) } else { Head::Wrong }
        }
    }
}

/// Parses a decimal number up to the longest value.
#[inline]
fn number(digits: &[u8]) -> Option<u32> {
    if !(1..=9).contains(&digits.len()) {
        return None;
    }
    let mut number = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u32::from(digit - b'0');
    }
    (number <= LONGEST_VALUE).then_some(number)
}

/// Comparison of a value with the expected one.
#[derive(Debug, Clone, Copy)]
struct Check {
    len: u32,
    received: u32,
    head: [u8; HEAD],
    rest: Option<Position>,
}

impl Check {
    fn new(len: u32) -> Self {
        Check { len, received: 0, head: [0; HEAD], rest: None }
    }

    fn take(&mut self, mut bytes: &[u8], request: &Request, expected: Expected) -> Result<(), Wrong> {
        if (self.received as usize) < HEAD {
            let received = self.received as usize;
            let n = bytes.len().min(HEAD - received);
            self.head[received..received + n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            self.received += n as u32;
            if self.received as usize == HEAD {
                self.rest = Some(self.look_up(request, expected)?);
            } else if self.received == self.len {
                return Err(format!("a value of {} bytes, shorter than the minimum", self.len));
            }
        }
        if let Some(rest) = &mut self.rest {
            if !rest.matches(bytes) {
                let version = version_of(self.head);
                return Err(format!(
                    "a byte between {} and {} of its version {version} differs from the written value",
                    self.received,
                    self.received as usize + bytes.len()
                ));
            }
            self.received += bytes.len() as u32;
        }
        Ok(())
    }

    /// Returns the expected remainder of the value, if its header is that of a valid version.
    fn look_up(&self, request: &Request, expected: Expected) -> Result<Position, Wrong> {
        let version = version_of(self.head);
        let value = expected.values.value(request.number, version);
        let lowest = if let Op::Get { lowest } = request.op { lowest } else { 0 };
        if value.head != self.head || version > expected.versions.highest(request.number) {
            return Err(format!("a value that was never written to the key, which begins with {}", shown(&self.head)));
        }
        if version < lowest {
            return Err(format!(
                "version {version}, which was overwritten before the GET was sent: the oldest valid version is {lowest}"
            ));
        }
        if value.len != self.len {
            return Err(format!("{} bytes of version {version}, which has {}", self.len, value.len));
        }
        Ok(value.rest)
    }
}

/// Checks a complete value received for a GET against the values that may have been written.
pub fn check(value: &[u8], request: &Request, expected: Expected) -> Result<(), Wrong> {
    Check::new(value.len() as u32).take(value, request, expected)
}

#[cold]
fn wrong_answer(line: &[u8]) -> Wrong {
    format!("the reply is {}", shown(line))
}

/// Returns the beginning of `bytes` in quotes. Only bytes that are not printable ASCII are escaped.
pub fn shown(bytes: &[u8]) -> String {
    let more = if bytes.len() > SHOWN { "…" } else { "" };
    let mut text = String::from('"');
    for byte in &bytes[..bytes.len().min(SHOWN)] {
        match byte {
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => text.extend(byte.escape_ascii().map(char::from)),
        }
    }
    text + more + "\""
}
