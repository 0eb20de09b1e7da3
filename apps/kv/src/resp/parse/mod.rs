//! Incremental parser of requests.

use super::{Args, inline, number};
use crate::value::Long;
use std::ops::Range;
use thiserror::Error;

/// Length limit of an inline command, and of a line with a count: 64 KB.
const LINE: usize = 64 << 10;
/// Limits of arguments, and of the bytes of one, without authentication.
const UNAUTHENTICATED_ARGS: i64 = 10;
const UNAUTHENTICATED_BULK: i64 = 16 << 10;
/// Capacity for arguments kept between requests.
const KEPT: usize = 64;

/// Limits of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Limit of an argument in bytes: 512 MB in Redis.
    pub bulk: usize,
    /// Arguments from this length on are received as [long values](Parsed::Long), if they are incomplete and the client
    /// is authenticated.
    pub long: usize,
    /// Also receive complete arguments of this length as long values.
    pub apart: bool,
    /// The client is authenticated, or there is no password.
    pub authenticated: bool,
}

/// Protocol error. The connection closes after this error reply, as in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    #[error("Protocol error: too big inline request")]
    LongInline,
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    #[error("Protocol error: too big mbulk count string")]
    LongCount,
    #[error("Protocol error: invalid multibulk length")]
    Count,
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedCount,
    #[error("Protocol error: too big bulk count string")]
    LongLength,
    #[error("Protocol error: expected '$', got '{}'", *.0 as char)]
    NoBulk(u8),
    #[error("Protocol error: invalid bulk length")]
    Length,
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedLength,
}

/// Result of a parse attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// Complete request of this length. An empty line has no arguments.
    Request(usize),
    /// Incomplete request. It cannot end before this many bytes.
    Partial(usize),
    /// Request with a long argument that is incomplete, or to be received as a [long value](Limits::apart) in any case.
    /// The caller may take its bytes and the two after it out of the input and [give](Parser::give) the value as a
    /// whole. Otherwise it is parsed like any other.
    Long {
        /// Offset of the argument in the request.
        at: usize,
        len: usize,
    },
}

/// Incremental parser.
///
/// A request may arrive in any number of parts. Each attempt gets all bytes received so far, from the first byte of
/// the request on, and continues where the last one stopped.
#[derive(Debug, Default)]
pub struct Parser {
    args: Vec<Range<usize>>,
    /// The request is an inline command, whose unquoted words are in `words`.
    is_inline: bool,
    words: Vec<u8>,
    /// Number of missing arguments, if known.
    left: Option<usize>,
    /// Length of the next argument, if known.
    bulk: Option<usize>,
    /// Long arguments, by position.
    longs: Vec<(usize, Long)>,
    /// Number of bytes parsed, and number searched for a line end.
    at: usize,
    searched: usize,
}

impl Parser {
    /// Returns true if an incomplete request has been seen.
    pub fn is_within(&self) -> bool {
        self.at > 0 || self.searched > 0
    }

    /// Returns the memory of an incomplete request.
    pub fn memory(&self) -> usize {
        if self.is_within() { size_of_val(&self.args[..]) + size_of_val(&self.longs[..]) } else { 0 }
    }

    /// Releases the memory of a complete request, except a little capacity.
    pub fn trim(&mut self) {
        if !self.is_within() && self.args.capacity().max(self.words.capacity()) > KEPT {
            self.args.clear();
            self.args.shrink_to(KEPT);
            self.longs = Vec::new();
            self.words = Vec::new();
        }
    }

    pub fn parse(&mut self, data: &[u8], limits: Limits) -> Result<Parsed, ProtocolError> {
        if self.at == 0 {
            self.longs.clear();
            self.args.clear();
            self.args.shrink_to(KEPT);
            self.is_inline = false;
            if *data.first().unwrap_or(&b'*') != b'*' {
                return self.parse_inline(data);
            }
        }
        let left = match self.left {
            Some(left) => left,
            None => {
                let Some(line) = self.count_line(data, ProtocolError::LongCount)? else {
                    return Ok(Parsed::Partial(data.len() + 1));
                };
                let count = number::parse(&data[1..line.end]).filter(|count| *count <= i32::MAX.into());
                let count = count.ok_or(ProtocolError::Count)?;
                if count > UNAUTHENTICATED_ARGS && !limits.authenticated {
                    return Err(ProtocolError::UnauthenticatedCount);
                }
                // A negative number counts as 0.
                usize::try_from(count).unwrap_or(0)
            }
        };
        self.left = Some(left);
        self.parse_args(data, left, limits)
    }

    pub fn args<'a>(&'a self, data: &'a [u8]) -> Args<'a> {
        let data = if self.is_inline { &self.words } else { data };
        Args { data, ranges: &self.args, longs: &self.longs }
    }

    /// Supplies the next [long argument](Parsed::Long), whose bytes and line end the caller took out of the input.
    pub fn give(&mut self, long: Long) {
        self.longs.push((self.args.len(), long));
        self.args.push(self.at..self.at);
        self.bulk = None;
        self.left = self.left.map(|left| left.saturating_sub(1));
    }

    /// Releases the long arguments after the request has run.
    pub fn forget(&mut self) {
        self.longs.clear();
    }

    /// Parses the missing arguments, `left` of them.
    fn parse_args(&mut self, data: &[u8], mut left: usize, limits: Limits) -> Result<Parsed, ProtocolError> {
        while left > 0 {
            let mut is_new = false;
            let bulk = match self.bulk {
                Some(bulk) => bulk,
                None => {
                    let start = self.at;
                    let Some(line) = self.count_line(data, ProtocolError::LongLength)? else {
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
                    if len > UNAUTHENTICATED_BULK && !limits.authenticated {
                        return Err(ProtocolError::UnauthenticatedLength);
                    }
                    is_new = true;
                    len as usize
                }
            };
            let end = self.at + bulk + 2;
            // The name of a command is short.
            let is_long = is_new && bulk >= limits.long && limits.authenticated && !self.args.is_empty();
            if data.len() < end || is_long && limits.apart {
                self.bulk = Some(bulk);
                return Ok(if is_long { Parsed::Long { at: self.at, len: bulk } } else { Parsed::Partial(end) });
            }
            // Like Redis, ignore the two bytes after the argument.
            self.args.push(self.at..self.at + bulk);
            self.bulk = None;
            self.at = end;
            self.searched = end;
            left -= 1;
            self.left = Some(left);
        }
        Ok(self.end(self.at))
    }

    /// Parses the next line with a count, if it is complete. Returns `too_long` if it exceeds the limit.
    fn count_line(&mut self, data: &[u8], too_long: ProtocolError) -> Result<Option<Range<usize>>, ProtocolError> {
        let (start, from) = (self.at, self.searched.max(self.at).min(data.len()));
        match data[from..].iter().position(|byte| *byte == b'\r') {
            // The limit applies to complete lines as well, so the result does not depend on how the input is divided.
            at if at.map_or(data.len(), |at| from + at) - start > LINE => Err(too_long),
            None => {
                self.searched = data.len();
                Ok(None)
            }
            Some(at) if from + at + 1 < data.len() => {
                let end = from + at;
                self.at = end + 2;
                self.searched = self.at;
                Ok(Some(start..end))
            }
            Some(at) => {
                self.searched = from + at;
                Ok(None)
            }
        }
    }

    fn parse_inline(&mut self, data: &[u8]) -> Result<Parsed, ProtocolError> {
        let from = self.searched.min(data.len());
        let found = data[from..].iter().position(|byte| *byte == b'\n').map(|at| from + at);
        if found.unwrap_or(data.len()) > LINE {
            return Err(ProtocolError::LongInline);
        }
        let Some(end) = found else {
            self.searched = data.len();
            return Ok(Parsed::Partial(data.len() + 1));
        };
        let line = data[..end].strip_suffix(b"\r").unwrap_or(&data[..end]);
        self.words.clear();
        inline::split(line, &mut self.words, &mut self.args).ok_or(ProtocolError::Quotes)?;
        self.is_inline = true;
        Ok(self.end(end + 1))
    }

    fn end(&mut self, at: usize) -> Parsed {
        self.left = None;
        self.bulk = None;
        self.at = 0;
        self.searched = 0;
        Parsed::Request(at)
    }
}

#[cfg(test)]
mod tests;
