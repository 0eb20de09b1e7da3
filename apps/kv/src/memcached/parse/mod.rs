//! Incremental parser of requests.

use super::request::{Body, Request};
use super::words::Words;
use crate::store::Long;
use thiserror::Error;

/// Limit of a line that does not list keys.
const LINE: usize = 2048;
/// Limit of a line that lists keys.
const KEYS_LINE: usize = 1 << 20;
/// Limit of spaces before the first word of a long line.
const MAX_LEADING_SPACES: usize = 100;
/// First byte of a request of the binary protocol.
const BINARY: u8 = 0x80;
/// End of a line and of a data block.
const END: &[u8; 2] = b"\r\n";

/// Limits of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Limit of an item in bytes, including its key and memcached's header: 1 MB in memcached.
    pub item: usize,
    /// Data blocks from this length on are received as [long values](Parsed::Long) unless they are complete.
    pub long: usize,
}

/// Error for input that is not a request. The connection closes without a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum InvalidInput {
    #[error("line too long")]
    LongLine,
    #[error("binary protocol")]
    Binary,
}

/// Result of a parse attempt.
#[derive(Debug)]
pub enum Parsed<'a> {
    Request {
        request: Request<'a>,
        data: Data<'a>,
        len: usize,
    },
    /// Incomplete request. It cannot end before this many bytes.
    Partial(usize),
    /// Incomplete request with a long data block. The caller may take the block and its two end bytes out of the input
    /// and [give](Parser::give) them as a whole, or [refuse](Parser::refuse) them. Otherwise the request is parsed like
    /// any other.
    Long {
        request: Request<'a>,
        /// Offset of the data block.
        at: usize,
        len: usize,
    },
    /// Bytes of a discarded data block.
    Skip(usize),
}

/// Data block of a request.
#[derive(Debug, Clone)]
pub enum Data<'a> {
    /// Bytes, or none.
    Short(&'a [u8]),
    Long(Long),
    /// Block without a valid end.
    Unended,
    /// Block that exceeds the item limit.
    TooLarge,
    /// Block for which there is no memory.
    Full,
}

/// Incremental parser.
///
/// A request may arrive in any number of parts. Each attempt gets all bytes received so far, from the first byte of
/// the request on, and continues where the last one stopped.
#[derive(Debug, Default)]
pub struct Parser {
    /// Number of bytes searched for the line end.
    searched: usize,
    /// Lower bound of the request's length.
    needed: usize,
    /// [`Parsed::Long`] was already returned for this request.
    is_long_reported: bool,
    /// Data block received separately, and how many of its bytes are still to be skipped.
    given: Option<(Data<'static>, usize)>,
    skip_bytes: usize,
}

impl Parser {
    /// Returns true if an incomplete request has been seen.
    pub fn is_within(&self) -> bool {
        self.searched > 0 || self.skip_bytes > 0
    }

    pub fn parse<'a>(&mut self, data: &'a [u8], limits: &Limits) -> Result<Parsed<'a>, InvalidInput> {
        if self.skip_bytes > 0 {
            let here = self.skip_bytes.min(data.len());
            self.skip_bytes -= here;
            return Ok(if here > 0 { Parsed::Skip(here) } else { Parsed::Partial(1) });
        }
        if data.len() < self.needed {
            return Ok(Parsed::Partial(self.needed));
        }
        if self.searched == 0 && data.first() == Some(&BINARY) {
            return Err(InvalidInput::Binary);
        }
        let from = self.searched.min(data.len());
        let Some(at) = memchr::memchr(b'\n', &data[from..]) else {
            self.searched = data.len();
            return if is_too_long(data) { Err(InvalidInput::LongLine) } else { Ok(Parsed::Partial(data.len() + 1)) };
        };
        let (line, start) = (&data[..from + at], from + at + 1);
        if is_too_long(line) {
            return Err(InvalidInput::LongLine);
        }
        let (request, body) = Request::read(line.strip_suffix(b"\r").unwrap_or(line), limits);
        let (len, data) = match (body, self.given.take()) {
            (Body::None, _) => (start, Data::Short(b"")),
            (Body::Skip(len), _) => {
                self.skip_bytes = len + END.len();
                (start, Data::TooLarge)
            }
            (Body::Data(_), Some((given, left))) => {
                self.skip_bytes = left;
                (start, given)
            }
            (Body::Data(len), None) => {
                let end = start + len + END.len();
                let Some(body) = data.get(start..end) else {
                    (self.searched, self.needed) = (start - 1, end);
                    if len < limits.long || self.is_long_reported {
                        return Ok(Parsed::Partial(end));
                    }
                    self.is_long_reported = true;
                    return Ok(Parsed::Long { request, at: start, len });
                };
                (end, body.strip_suffix(END).map_or(Data::Unended, Data::Short))
            }
        };
        (self.searched, self.needed, self.is_long_reported) = (0, 0, false);
        Ok(Parsed::Request { request, data, len })
    }

    /// Supplies the [long data block](Parsed::Long), which the caller took out of the input with the two bytes `end`
    /// after it.
    pub fn give(&mut self, long: Long, end: [u8; 2]) {
        self.given = Some((if end == *END { Data::Long(long) } else { Data::Unended }, 0));
        self.needed = 0;
    }

    /// Reports that there is no memory for the [long data block](Parsed::Long). `left` of its bytes, including the two
    /// after it, are still in the input.
    pub fn refuse(&mut self, left: usize) {
        self.given = Some((Data::Full, left));
        self.needed = 0;
    }
}

fn is_too_long(line: &[u8]) -> bool {
    if line.len() <= LINE {
        return false;
    }
    let is_of_keys = || matches!(Words(line).next(), Some(b"get" | b"gets" | b"gat" | b"gats"));
    let spaces = line.iter().take_while(|byte| **byte == b' ').count();
    line.len() > KEYS_LINE || spaces > MAX_LEADING_SPACES || !is_of_keys()
}

#[cfg(test)]
mod tests;
