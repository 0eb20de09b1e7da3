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
mod tests {
    use super::*;
    use crate::store::{Config, Store};

    const LIMITS: Limits = Limits { item: 1 << 20, long: 4096 };

    /// Returns the data of all requests in `bytes`, and whether the parser fails at the rest.
    fn parsed(bytes: &[u8]) -> (Vec<String>, bool) {
        let mut parser = Parser::default();
        let mut all = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let used = match parser.parse(rest, &LIMITS) {
                Ok(Parsed::Request { data, len, .. }) => {
                    all.push(match data {
                        Data::Short(bytes) => bytes.escape_ascii().to_string(),
                        data => format!("{data:?}"),
                    });
                    len
                }
                Ok(Parsed::Skip(len)) => len,
                Ok(_) => break,
                Err(_) => return (all, true),
            };
            rest = &rest[used..];
        }
        (all, false)
    }

    #[test]
    fn data_block_has_length_of_its_line() {
        assert_eq!(parsed(b"set a 0 0 4\r\nab\r\n\r\nget a\r\n").0, ["ab\\r\\n", ""]);
        assert_eq!(parsed(b"set a 0 0 0\n\r\nms a 1\r\nx\r\n").0, ["", "x"]);
        assert_eq!(parsed(b"set a 0 0 1\r\nxyzget a\r\n").0, ["Unended", ""]);
        assert_eq!(parsed(b"set a 0 0 1\r\nx\n\n").0, ["Unended"]);
    }

    #[test]
    fn too_large_data_is_skipped_and_data_without_length_is_not() {
        let data = vec![b'x'; 1 << 20];
        let bytes = [b"set a 0 0 1048576\r\n", &data[..], b"\r\nget a\r\n"].concat();
        assert_eq!(parsed(&bytes).0, ["TooLarge", ""]);
        assert_eq!(parsed(b"set a 0 0 x\r\nget a\r\n").0, ["", ""]);
        assert_eq!(parsed(b"ms a 5 x\r\nget a\r\nget b\r\n").0, ["TooLarge", ""]);
    }

    #[test]
    fn line_length_is_limited_unless_it_lists_keys() {
        let long = |start: &str, len: usize| [start.as_bytes(), &b" ".repeat(len - start.len()), b"\r\n"].concat();
        for (start, len, is_long) in [
            ("mn", 2047, false),
            ("mn", 2048, true),
            ("mn", 1 << 20, true),
            ("get a", 10_000, false),
            ("gats 0 a", 10_000, false),
            ("  get a", 10_000, false),
            ("getting a", 10_000, true),
            ("gets a", (1 << 20) + 1, true),
        ] {
            assert_eq!(parsed(&long(start, len)).1, is_long, "{start} of {len}");
            // The result is the same without the line end.
            let bytes = long(start, len);
            assert_eq!(parsed(&bytes[..len + 1]).1, is_long, "{start} of {len} and no end");
        }
        let spaces = " ".repeat(101) + "get a" + &" ".repeat(2000);
        assert!(parsed(spaces.as_bytes()).1);
    }

    #[test]
    fn partial_result_states_needed_bytes() {
        let mut parser = Parser::default();
        let partial = |parser: &mut Parser, bytes: &[u8]| match parser.parse(bytes, &LIMITS) {
            Ok(Parsed::Partial(needed)) => needed,
            other => panic!("{other:?}"),
        };
        assert!(!parser.is_within());
        assert_eq!(partial(&mut parser, b"set a 0 0"), 10);
        assert!(parser.is_within());
        assert_eq!(partial(&mut parser, b"set a 0 0 100\r\nx"), 15 + 100 + 2);
        assert_eq!(partial(&mut parser, b"set a 0 0 100\r\nxyz"), 15 + 100 + 2);
    }

    #[test]
    fn long_data_is_taken_out_or_refused() {
        let mut store = Store::new(&Config::new(4 << 20), 0);
        let line = b"set a 0 0 5000\r\n";
        let long_data = |parser: &mut Parser| match parser.parse(line, &LIMITS) {
            Ok(Parsed::Long { at, len, .. }) => (at, len),
            other => panic!("{other:?}"),
        };
        let data = |parser: &mut Parser| match parser.parse(line, &LIMITS) {
            Ok(Parsed::Request { data, len, .. }) => (data, len),
            other => panic!("{other:?}"),
        };
        for (end, is_whole) in [(*b"\r\n", true), (*b"\n\n", false)] {
            let mut parser = Parser::default();
            assert_eq!(long_data(&mut parser), (line.len(), 5000));
            // [`Parsed::Long`] is returned once.
            assert!(matches!(parser.parse(line, &LIMITS), Ok(Parsed::Partial(5018))));
            let mut writer = store.long(5000, 0).unwrap();
            writer.fill(&[b'x'; 5000]);
            parser.give(writer.finish(), end);
            let (given, len) = data(&mut parser);
            assert_eq!((matches!(given, Data::Long(_)), matches!(given, Data::Unended)), (is_whole, !is_whole));
            assert_eq!((len, parser.is_within()), (line.len(), false));
            assert_eq!(long_data(&mut parser), (line.len(), 5000));
        }
        let mut parser = Parser::default();
        long_data(&mut parser);
        parser.refuse(5002);
        assert!(matches!(data(&mut parser), (Data::Full, _)));
        assert!(matches!(parser.parse(&[b'x'; 5000], &LIMITS), Ok(Parsed::Skip(5000))));
        assert!(matches!(parser.parse(b"\r\nmn\r\n", &LIMITS), Ok(Parsed::Skip(2))));
        assert!(!parser.is_within());
    }
}
