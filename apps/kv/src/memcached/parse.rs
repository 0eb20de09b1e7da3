//! Requests, from bytes that come in pieces.

use super::request::{Body, Request};
use super::words::Words;
use crate::store::Long;
use thiserror::Error;

/// The longest line, but for one of keys.
const LINE: usize = 2048;
/// The longest line of keys.
const KEYS_LINE: usize = 1 << 20;
/// Spaces in front of the first word at most, in a line that is longer than most.
const KEYSPACES: usize = 100;
/// What ends a line, and data.
const END: &[u8; 2] = b"\r\n";

/// What a request may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of an item at most, its key and what memcached keeps beside it among them: 1 MB for memcached.
    pub item: usize,
    /// Data of so many bytes are received [apart](Parsed::Long), if they have not come as a whole.
    pub long: usize,
}

/// A line has no end: the client is not understood any more, and the connection is closed without a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a line has no end")]
pub struct LongLine;

/// What came of an attempt.
#[derive(Debug)]
pub enum Parsed<'a> {
    /// A request, with its data.
    Request {
        /// What is asked for.
        request: Request<'a>,
        /// What is to be stored.
        data: Data<'a>,
        /// After so many bytes it ends.
        len: usize,
    },
    /// It goes on beyond the bytes there are: not before there are so many can it end.
    Partial(usize),
    /// It goes on beyond the bytes there are with data that are long. They, and two bytes for their end, may be taken out of
    /// the request as they come, and [given](Parser::give) as a whole, or not be [wanted](Parser::refuse); or else the request
    /// is read like any other.
    Long {
        /// What is asked for.
        request: Request<'a>,
        /// Where in the request they begin.
        at: usize,
        /// How many they are.
        len: usize,
    },
    /// So many bytes belong to no request any more.
    Skip(usize),
}

/// What comes behind the line of a request.
#[derive(Debug, Clone)]
pub enum Data<'a> {
    /// Bytes, or none.
    Short(&'a [u8]),
    /// Bytes that were received apart.
    Long(Long),
    /// Bytes that do not end where they should.
    Unended,
    /// More than an item may have.
    TooLarge,
    /// Bytes that there is no memory for.
    Full,
}

/// Reads one request after the other.
///
/// A request may come in any number of pieces; each attempt is given all of it that has come, from its first byte on, and goes
/// on where the last one stopped.
#[derive(Debug, Default)]
pub struct Parser {
    /// Up to where the request has been looked through for the end of its line.
    looked: usize,
    /// Before there are so many bytes, it does not end.
    needed: usize,
    /// Whether it was said that its data are long.
    is_said: bool,
    /// Its data, if they were received apart, and how many bytes of them are still to come.
    given: Option<(Data<'static>, usize)>,
    /// Bytes still to come that nobody wants.
    unwanted: usize,
}

impl Parser {
    /// Whether a request has begun, but not come to its end.
    pub fn is_within(&self) -> bool {
        self.looked > 0 || self.unwanted > 0
    }

    /// Tries to read the request at the beginning of `data`.
    pub fn parse<'a>(&mut self, data: &'a [u8], limits: &Limits) -> Result<Parsed<'a>, LongLine> {
        if self.unwanted > 0 {
            let here = self.unwanted.min(data.len());
            self.unwanted -= here;
            return Ok(if here > 0 { Parsed::Skip(here) } else { Parsed::Partial(1) });
        }
        if data.len() < self.needed {
            return Ok(Parsed::Partial(self.needed));
        }
        let from = self.looked.min(data.len());
        let Some(at) = memchr::memchr(b'\n', &data[from..]) else {
            self.looked = data.len();
            return if is_too_long(data) { Err(LongLine) } else { Ok(Parsed::Partial(data.len() + 1)) };
        };
        let (line, start) = (&data[..from + at], from + at + 1);
        if is_too_long(line) {
            return Err(LongLine);
        }
        let (request, body) = Request::read(line.strip_suffix(b"\r").unwrap_or(line), limits);
        let (len, data) = match (body, self.given.take()) {
            (Body::None, _) => (start, Data::Short(b"")),
            (Body::Refused(len), _) => {
                self.unwanted = len + END.len();
                (start, Data::TooLarge)
            }
            (Body::Data(_), Some((given, left))) => {
                self.unwanted = left;
                (start, given)
            }
            (Body::Data(len), None) => {
                let end = start + len + END.len();
                let Some(body) = data.get(start..end) else {
                    (self.looked, self.needed) = (start - 1, end);
                    if len < limits.long || self.is_said {
                        return Ok(Parsed::Partial(end));
                    }
                    self.is_said = true;
                    return Ok(Parsed::Long { request, at: start, len });
                };
                (end, body.strip_suffix(END).map_or(Data::Unended, Data::Short))
            }
        };
        (self.looked, self.needed, self.is_said) = (0, 0, false);
        Ok(Parsed::Request { request, data, len })
    }

    /// The [long data](Parsed::Long) of the request: all of them have been taken out of it, and `end` behind them.
    pub fn give(&mut self, long: Long, end: [u8; 2]) {
        self.given = Some((if end == *END { Data::Long(long) } else { Data::Unended }, 0));
        self.needed = 0;
    }

    /// There is no memory for the [long data](Parsed::Long) of the request: of their bytes, and the two behind them, `left`
    /// have not been taken out of it.
    pub fn refuse(&mut self, left: usize) {
        self.given = Some((Data::Full, left));
        self.needed = 0;
    }
}

/// Whether a line that begins so is longer than one may be.
fn is_too_long(line: &[u8]) -> bool {
    if line.len() <= LINE {
        return false;
    }
    let is_of_keys = || matches!(Words(line).next(), Some(b"get" | b"gets" | b"gat" | b"gats"));
    let spaces = line.iter().take_while(|byte| **byte == b' ').count();
    line.len() > KEYS_LINE || spaces > KEYSPACES || !is_of_keys()
}

#[cfg(test)]
mod tests;
