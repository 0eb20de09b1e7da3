//! Requests, from bytes that come in pieces.

use super::{Args, inline, number};
use crate::store::Long;
use std::ops::Range;
use thiserror::Error;

/// The longest line, of a request or in front of what is counted: 64 KB.
const LINE: usize = 64 << 10;
/// Arguments, and bytes of one, of whoever has not said the password.
const UNKNOWN_ARGS: i64 = 10;
const UNKNOWN_BULK: i64 = 16 << 10;
/// Places for arguments that are kept from one request to the next.
const KEPT: usize = 64;

/// What a request may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of an argument at most: 512 MB for Redis.
    pub bulk: usize,
    /// Arguments of so many bytes are received [apart](Parsed::Long), if they have not come as a whole, and only from whoever
    /// is authenticated.
    pub long: usize,
    /// Whether they are even if they have come as a whole.
    pub apart: bool,
    /// Whether the client has said the password, or there is none.
    pub authenticated: bool,
}

/// Why a client is not understood any more: it is told so, as Redis would, and the connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A line of words has no end.
    #[error("Protocol error: too big inline request")]
    LongInline,
    /// A quote in it is not closed.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// The number of arguments has no end.
    #[error("Protocol error: too big mbulk count string")]
    LongCount,
    /// The number of arguments is none, or too large.
    #[error("Protocol error: invalid multibulk length")]
    Count,
    /// There are more arguments than the password has.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnknownCount,
    /// The length of an argument has no end.
    #[error("Protocol error: too big bulk count string")]
    LongLength,
    /// An argument does not begin as one.
    #[error("Protocol error: expected '$', got '{}'", *.0 as char)]
    NoBulk(u8),
    /// The length of an argument is none, or too large.
    #[error("Protocol error: invalid bulk length")]
    Length,
    /// An argument is longer than a password.
    #[error("Protocol error: unauthenticated bulk length")]
    UnknownLength,
}

/// What came of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// A request, which ends after so many bytes; none of them may be an argument (an empty line).
    Request(usize),
    /// It goes on beyond the bytes there are: not before there are so many can it end.
    Partial(usize),
    /// It goes on with an argument that is long, and beyond the bytes there are or to be received [apart](Limits::apart) anyway.
    /// Its bytes, and two for the end of the line, may be taken out of the request as they come, and [given](Parser::give) as a
    /// whole; or else it is read like any other.
    Long {
        /// Where in the request it begins.
        at: usize,
        /// Its bytes.
        len: usize,
    },
}

/// Reads one request after the other.
///
/// A request may come in any number of pieces; each attempt is given all of it that has come, from its first byte on, and goes
/// on where the last one stopped.
#[derive(Debug, Default)]
pub struct Parser {
    args: Vec<Range<usize>>,
    /// Whether the request is a line, and its words, which are not as they came.
    is_line: bool,
    words: Vec<u8>,
    /// Arguments that are still to come, if their number is known.
    left: Option<usize>,
    /// The length of the argument that comes next, if that is known.
    bulk: Option<usize>,
    /// Arguments that were received apart, by their number.
    longs: Vec<(usize, Long)>,
    /// Up to where the request has been understood, and looked through for the end of a line.
    at: usize,
    looked: usize,
}

impl Parser {
    /// Whether a request has begun, but not come to its end.
    pub fn is_within(&self) -> bool {
        self.at > 0 || self.looked > 0
    }

    /// Tries to read the request at the beginning of `data`.
    pub fn parse(&mut self, data: &[u8], limits: Limits) -> Result<Parsed, ProtocolError> {
        if self.at == 0 {
            self.longs.clear();
            self.args.clear();
            self.args.shrink_to(KEPT);
            self.is_line = false;
            if *data.first().unwrap_or(&b'*') != b'*' {
                return self.line(data);
            }
        }
        let left = match self.left {
            Some(left) => left,
            None => {
                let Some(line) = self.counted(data, ProtocolError::LongCount)? else {
                    return Ok(Parsed::Partial(data.len() + 1));
                };
                let count = number::parse(&data[1..line.end]).filter(|count| *count <= i32::MAX.into());
                let count = count.ok_or(ProtocolError::Count)?;
                if count > UNKNOWN_ARGS && !limits.authenticated {
                    return Err(ProtocolError::UnknownCount);
                }
                // Less than none is none, too.
                usize::try_from(count).unwrap_or(0)
            }
        };
        self.left = Some(left);
        self.bulks(data, left, limits)
    }

    /// The arguments of the request that was read from `data`.
    pub fn args<'a>(&'a self, data: &'a [u8]) -> Args<'a> {
        let data = if self.is_line { &self.words } else { data };
        Args { data, ranges: &self.args, longs: &self.longs }
    }

    /// The [long argument](Parsed::Long) that comes next: all of its bytes, and the end of its line, have been taken out of the
    /// request.
    pub fn give(&mut self, long: Long) {
        self.longs.push((self.args.len(), long));
        self.args.push(self.at..self.at);
        self.bulk = None;
        self.left = self.left.map(|left| left.saturating_sub(1));
    }

    /// The request that was read has been answered: its long arguments are let go.
    pub fn forget(&mut self) {
        self.longs.clear();
    }

    /// The arguments that are still to come, `left` of them.
    fn bulks(&mut self, data: &[u8], mut left: usize, limits: Limits) -> Result<Parsed, ProtocolError> {
        while left > 0 {
            let mut is_new = false;
            let bulk = match self.bulk {
                Some(bulk) => bulk,
                None => {
                    let start = self.at;
                    let Some(line) = self.counted(data, ProtocolError::LongLength)? else {
                        return Ok(Parsed::Partial(data.len() + 1));
                    };
                    if data[start] != b'$' {
                        return Err(ProtocolError::NoBulk(data[start]));
                    }
                    let len = number::parse(&data[start + 1..line.end]).filter(|len| *len >= 0);
                    let len = len.ok_or(ProtocolError::Length)?;
                    if usize::try_from(len).is_ok_and(|len| len > limits.bulk) {
                        return Err(ProtocolError::Length);
                    }
                    if len > UNKNOWN_BULK && !limits.authenticated {
                        return Err(ProtocolError::UnknownLength);
                    }
                    is_new = true;
                    len as usize
                }
            };
            let end = self.at + bulk + 2;
            // What is done is said in a few bytes.
            let is_long = is_new && bulk >= limits.long && limits.authenticated && !self.args.is_empty();
            if data.len() < end || is_long && limits.apart {
                self.bulk = Some(bulk);
                return Ok(if is_long { Parsed::Long { at: self.at, len: bulk } } else { Parsed::Partial(end) });
            }
            // What the two bytes behind it are, Redis does not ask either.
            self.args.push(self.at..self.at + bulk);
            self.bulk = None;
            self.at = end;
            self.looked = end;
            left -= 1;
            self.left = Some(left);
        }
        Ok(self.end(self.at))
    }

    /// The line from where the request has been understood on, if all of it has come: it is understood then. `too_long` is what
    /// is wrong if it has not and should have.
    fn counted(&mut self, data: &[u8], too_long: ProtocolError) -> Result<Option<Range<usize>>, ProtocolError> {
        let (start, from) = (self.at, self.looked.max(self.at).min(data.len()));
        match data[from..].iter().position(|byte| *byte == b'\r') {
            // Too long is too long, in however few pieces it comes.
            at if at.map_or(data.len(), |at| from + at) - start > LINE => Err(too_long),
            None => {
                self.looked = data.len();
                Ok(None)
            }
            Some(at) if from + at + 1 < data.len() => {
                let end = from + at;
                self.at = end + 2;
                self.looked = self.at;
                Ok(Some(start..end))
            }
            Some(at) => {
                self.looked = from + at;
                Ok(None)
            }
        }
    }

    /// A request that is a line of words.
    fn line(&mut self, data: &[u8]) -> Result<Parsed, ProtocolError> {
        let from = self.looked.min(data.len());
        let found = data[from..].iter().position(|byte| *byte == b'\n').map(|at| from + at);
        if found.unwrap_or(data.len()) > LINE {
            return Err(ProtocolError::LongInline);
        }
        let Some(end) = found else {
            self.looked = data.len();
            return Ok(Parsed::Partial(data.len() + 1));
        };
        let line = data[..end].strip_suffix(b"\r").unwrap_or(&data[..end]);
        self.words.clear();
        for word in inline::words(line).ok_or(ProtocolError::Quotes)? {
            let start = self.words.len();
            self.words.extend(word);
            self.args.push(start..self.words.len());
        }
        self.is_line = true;
        Ok(self.end(end + 1))
    }

    fn end(&mut self, at: usize) -> Parsed {
        self.left = None;
        self.bulk = None;
        self.at = 0;
        self.looked = 0;
        Parsed::Request(at)
    }
}

#[cfg(test)]
mod tests;
