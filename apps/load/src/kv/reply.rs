//! What is answered: replies of either protocol, in whatever parts they come.

use super::keys::key;
use super::request::{Protocol, Request, What};
use super::values::{HEAD, Values, version_of};
use super::versions::Versions;
use crate::pattern::Position;

/// Bytes of a line that are kept until the rest has come, which is more than any but an error message has.
const KEPT: usize = 128;
/// The longest line that is waited for.
const LONGEST_LINE: usize = 64 << 10;
/// The longest value that a server may have (that is RESP's limit; memcached's is lower).
const LONGEST_VALUE: u32 = 512 << 20;
/// Bytes of a reply that are shown.
const SHOWN: usize = 80;

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A value of so many bytes.
    Value(u32),
    /// There is no such key.
    Miss,
    /// It has been set.
    Done,
    /// An error message.
    Refused(&'a [u8]),
}

/// What came that must not.
pub type Wrong = String;

/// What the first line of a reply says.
enum Head<'a> {
    Value(u32),
    Whole(Answer<'a>),
    Wrong,
}

/// A reply of which perhaps a part has come.
#[derive(Debug)]
pub struct Reply {
    stage: Stage,
    value: Check,
    /// Of a line that is not complete: its length, and its first bytes.
    line: usize,
    kept: [u8; KEPT],
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Line,
    /// So much of the value is still to come.
    Body(u32),
    /// So much of what follows a value has come.
    Tail(usize),
}

/// What the values that come are compared with.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    pub values: &'a Values,
    pub versions: &'a Versions,
}

impl Reply {
    /// One of which nothing has come.
    pub fn new() -> Self {
        Reply { stage: Stage::Line, value: Check::new(0), line: 0, kept: [0; KEPT] }
    }

    /// Takes in what has come: the answer to `request` if `bytes` complete it, and how many of them belong to it.
    #[inline]
    pub fn take<'a>(
        &'a mut self,
        bytes: &'a [u8],
        protocol: Protocol,
        request: &Request,
        known: Option<Known>,
    ) -> Result<(usize, Option<Answer<'a>>), Wrong> {
        if known.is_none()
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
                &self.kept[..self.line.min(KEPT)]
            };
            self.line = 0;
            match protocol.head(line, request) {
                Head::Value(len) => {
                    self.stage = Stage::Body(len);
                    self.value = Check::new(len);
                }
                Head::Whole(answer) => return Ok((at, Some(answer))),
                Head::Wrong => return Err(answered(line)),
            }
        }
        if let Stage::Body(left) = self.stage {
            let part = &bytes[at..bytes.len().min(at + left as usize)];
            at += part.len();
            if let Some(known) = known {
                self.value.take(part, request, known)?;
            }
            let left = left - part.len() as u32;
            self.stage = Stage::Body(left);
            if left > 0 {
                return Ok((at, None));
            }
            self.stage = Stage::Tail(0);
        }
        if let Stage::Tail(come) = self.stage {
            let tail = &protocol.tail()[come..];
            let part = &bytes[at..bytes.len().min(at + tail.len())];
            if *part != tail[..part.len()] {
                return Err(format!("its value was followed by {}", shown(part)));
            }
            at += part.len();
            if part.len() < tail.len() {
                self.stage = Stage::Tail(come + part.len());
                return Ok((at, None));
            }
            self.stage = Stage::Line;
        }
        Ok((at, Some(Answer::Value(self.value.len))))
    }

    #[cold]
    fn keep(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        let from = self.line.min(KEPT);
        let n = bytes.len().min(KEPT - from);
        self.kept[from..from + n].copy_from_slice(&bytes[..n]);
        self.line += bytes.len();
        if self.line > LONGEST_LINE {
            return Err(format!(
                "it was answered with a line of more than {LONGEST_LINE} bytes: {}",
                shown(&self.kept)
            ));
        }
        Ok(())
    }
}

impl Protocol {
    /// Reads the usual answers at once, where they are there to the end and nobody looks at values.
    #[inline]
    fn whole<'a>(self, bytes: &[u8], request: &Request) -> Option<(usize, Option<Answer<'a>>)> {
        const DONE: &[u8] = b"+OK\r\n";
        match (self, request.what) {
            (Protocol::Resp, What::Set(_)) => bytes.starts_with(DONE).then_some((DONE.len(), Some(Answer::Done))),
            (Protocol::Resp, What::Get { .. }) if bytes.first() == Some(&b'$') => {
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
                is_whole.then_some((end, Some(Answer::Value(len))))
            }
            _ => None,
        }
    }

    /// What follows a value.
    fn tail(self) -> &'static [u8] {
        match self {
            Protocol::Resp => b"\r\n",
            Protocol::Memcached => b"\r\nEND\r\n",
        }
    }

    /// Reads the first line of the answer to `request`, or as much of it as was kept.
    #[inline]
    fn head<'a>(self, line: &'a [u8], request: &Request) -> Head<'a> {
        match self {
            Protocol::Resp => resp(line, matches!(request.what, What::Set(_))),
            Protocol::Memcached => memcached(line, request),
        }
    }
}

#[inline]
fn resp(line: &[u8], is_set: bool) -> Head<'_> {
    match line {
        [b'$', digits @ .., b'\r', b'\n'] if !is_set => match number(digits) {
            Some(len) => Head::Value(len),
            None if digits == b"-1" => Head::Whole(Answer::Miss),
            None => Head::Wrong,
        },
        b"+OK\r\n" if is_set => Head::Whole(Answer::Done),
        [b'-', message @ ..] => Head::Whole(Answer::Refused(message.trim_ascii_end())),
        _ => Head::Wrong,
    }
}

fn memcached<'a>(line: &'a [u8], request: &Request) -> Head<'a> {
    let is_set = matches!(request.what, What::Set(_));
    match line {
        b"STORED\r\n" if is_set => Head::Whole(Answer::Done),
        b"END\r\n" if !is_set => Head::Whole(Answer::Miss),
        [b'V', b'A', b'L', b'U', b'E', b' ', value @ .., b'\r', b'\n'] if !is_set => {
            let Some([b' ', value @ ..]) = value.strip_prefix(&key(request.number)) else { return Head::Wrong };
            // What it was set with by others is none of ours.
            let mut words = value.split(|byte| *byte == b' ');
            match (words.next().and_then(number), words.next().and_then(number), words.next()) {
                (Some(_), Some(len), None) => Head::Value(len),
                _ => Head::Wrong,
            }
        }
        _ => {
            let is_error = [&b"ERROR\r\n"[..], b"CLIENT_ERROR ", b"SERVER_ERROR "].iter().any(|e| line.starts_with(e));
            if is_error { Head::Whole(Answer::Refused(line.trim_ascii_end())) } else { Head::Wrong }
        }
    }
}

/// The number that `digits` say, up to the longest value.
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

/// A value that is compared with the one it has to be.
#[derive(Debug, Clone, Copy)]
struct Check {
    len: u32,
    come: u32,
    head: [u8; HEAD],
    rest: Option<Position>,
}

impl Check {
    fn new(len: u32) -> Self {
        Check { len, come: 0, head: [0; HEAD], rest: None }
    }

    fn take(&mut self, mut bytes: &[u8], request: &Request, known: Known) -> Result<(), Wrong> {
        if (self.come as usize) < HEAD {
            let come = self.come as usize;
            let n = bytes.len().min(HEAD - come);
            self.head[come..come + n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            self.come += n as u32;
            if self.come as usize == HEAD {
                self.rest = Some(self.look_up(request, known)?);
            } else if self.come == self.len {
                return Err(format!("a value of {} bytes, shorter than any that is written", self.len));
            }
        }
        if let Some(rest) = &mut self.rest {
            if !rest.matches(bytes) {
                let version = version_of(self.head);
                return Err(format!(
                    "a byte between {} and {} of its version {version} is not what was written",
                    self.come,
                    self.come as usize + bytes.len()
                ));
            }
            self.come += bytes.len() as u32;
        }
        Ok(())
    }

    /// What has to follow the first bytes, if they are of a value that this may be.
    fn look_up(&self, request: &Request, known: Known) -> Result<Position, Wrong> {
        let version = version_of(self.head);
        let value = known.values.of(request.number, version);
        let lowest = if let What::Get { lowest } = request.what { lowest } else { 0 };
        if value.head != self.head || version > known.versions.highest(request.number) {
            return Err(format!("a value that was never written to it, which begins with {}", shown(&self.head)));
        }
        if version < lowest {
            return Err(format!(
                "its version {version}, which had been overwritten when the GET was sent: {lowest} is the oldest that it may have"
            ));
        }
        if value.len != self.len {
            return Err(format!("{} bytes of its version {version}, which has {}", self.len, value.len));
        }
        Ok(value.rest)
    }
}

/// Compares a whole value, which came in answer to a GET, with what may have been written.
pub fn check(value: &[u8], request: &Request, known: Known) -> Result<(), Wrong> {
    Check::new(value.len() as u32).take(value, request, known)
}

#[cold]
fn answered(line: &[u8]) -> Wrong {
    format!("it was answered with {}", shown(line))
}

/// Bytes as text, the first of them.
pub fn shown(bytes: &[u8]) -> String {
    let more = if bytes.len() > SHOWN { "…" } else { "" };
    format!("\"{}{more}\"", bytes[..bytes.len().min(SHOWN)].escape_ascii())
}
