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
    #[error("Protocol error: expected '$', got '{}'", in_line(*.0))]
    NoBulk(u8),
    #[error("Protocol error: invalid bulk length")]
    Length,
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedLength,
}

/// Returns a byte as part of a line, which has a space instead of a line end, as in Redis.
fn in_line(byte: u8) -> char {
    if matches!(byte, b'\r' | b'\n') { ' ' } else { byte.into() }
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
mod tests {
    use super::*;
    use crate::resp::encoded;
    use linerate_service::Bytes;

    const KNOWN: Limits = Limits { bulk: 512 << 20, long: usize::MAX, apart: false, authenticated: true };

    /// Returns all requests in `bytes`, received in parts that end at `cuts`.
    fn requests(bytes: &[u8], cuts: &[usize], limits: Limits) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        let mut parser = Parser::default();
        let mut requests = Vec::new();
        let mut start = 0;
        for end in cuts.iter().copied().chain([bytes.len()]) {
            loop {
                let data = &bytes[start..end.max(start)];
                if data.is_empty() {
                    break;
                }
                match parser.parse(data, limits)? {
                    Parsed::Request(len) => {
                        requests.push(parser.args(data).iter().map(<[u8]>::to_vec).collect());
                        assert!(!parser.is_within());
                        start += len;
                    }
                    Parsed::Long { .. } => unreachable!("none is long"),
                    Parsed::Partial(needed) => {
                        assert!(needed > data.len() && parser.is_within());
                        break;
                    }
                }
            }
        }
        Ok(requests)
    }

    fn whole(bytes: &[u8]) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        requests(bytes, &[], KNOWN)
    }

    #[test]
    fn inline_commands_are_parsed() {
        let words = |text: &str| text.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(whole(b"PING\r\nset a b\n"), Ok(vec![words("PING"), words("set a b")]));
        assert_eq!(whole(b"set \"\" ''\r\n"), Ok(vec![vec![b"set".to_vec(), vec![], vec![]]]));
        assert_eq!(whole(b"\r\n\n*0\r\n*-5\r\n"), Ok(vec![vec![]; 4]));
        assert_eq!(whole(b"\"\"\r\n*1\r\n$4\r\nPING\r\n"), Ok(vec![vec![vec![]], words("PING")]));
    }

    #[test]
    fn protocol_errors_have_the_words_of_redis() {
        let error_of = |bytes: &[u8]| whole(bytes).unwrap_err().to_string();
        assert_eq!(error_of(b"*abc\r\n"), "Protocol error: invalid multibulk length");
        assert_eq!(error_of(b"*2147483648\r\n"), "Protocol error: invalid multibulk length");
        assert_eq!(error_of(b"*1\r\n:3\r\n"), "Protocol error: expected '$', got ':'");
        assert_eq!(error_of(b"*1\r\n\nx\r\n"), "Protocol error: expected '$', got ' '");
        assert_eq!(error_of(b"*1\r\n$-1\r\n"), "Protocol error: invalid bulk length");
        assert_eq!(error_of(b"*1\r\n$536870913\r\n"), "Protocol error: invalid bulk length");
        assert_eq!(error_of(b"*1\r\n$99999999999999999999\r\n"), "Protocol error: invalid bulk length");
        assert_eq!(error_of(b"get \"a\r\n"), "Protocol error: unbalanced quotes in request");
        assert_eq!(error_of(&[b'a'; LINE + 1]), "Protocol error: too big inline request");
        assert_eq!(error_of(&[&b"*"[..], &[b'1'; LINE]].concat()), "Protocol error: too big mbulk count string");
        assert_eq!(error_of(&[&b"*1\r\n$"[..], &[b'1'; LINE]].concat()), "Protocol error: too big bulk count string");
    }

    #[test]
    fn line_limit_does_not_depend_on_cuts() {
        let is_too_long = |before: &str, len: usize, after: &str| {
            let bytes = [before.as_bytes(), &vec![b'1'; len - 1], after.as_bytes()].concat();
            let cut = bytes.len() - after.len();
            let [whole, cut] = [&[][..], &[cut]].map(|cuts| requests(&bytes, cuts, KNOWN));
            assert_eq!(whole, cut);
            let error_of = whole.err().map(|error| error.to_string());
            error_of.is_some_and(|error_of| error_of.contains("too big"))
        };
        for (before, after) in [("g", "\n"), ("*", "\r\n"), ("*1\r\n$", "\r\n")] {
            assert!(!is_too_long(before, LINE, after) && is_too_long(before, LINE + 1, after), "{before:?}");
        }
    }

    #[test]
    fn unauthenticated_client_has_lower_limits() {
        let limits = Limits { authenticated: false, ..KNOWN };
        assert_eq!(requests(b"*11\r\n", &[], limits), Err(ProtocolError::UnauthenticatedCount));
        assert_eq!(requests(b"*1\r\n$16385\r\n", &[], limits), Err(ProtocolError::UnauthenticatedLength));
        assert_eq!(requests(b"*2\r\n$4\r\nAUTH\r\n$3\r\nabc\r\n", &[], limits).map(|all| all.len()), Ok(1));
        // The limits themselves are allowed.
        assert_eq!(requests(b"*10\r\n$16384\r\n", &[], limits), Ok(vec![]));
    }

    #[test]
    fn argument_of_the_maximum_length_is_accepted() {
        let limits = Limits { bulk: 3, ..KNOWN };
        assert_eq!(requests(b"*1\r\n$3\r\nabc\r\n", &[], limits).map(|all| all.len()), Ok(1));
        assert_eq!(requests(b"*1\r\n$4\r\n", &[], limits), Err(ProtocolError::Length));
    }

    #[test]
    fn partial_result_states_missing_bytes_of_argument() {
        let mut parser = Parser::default();
        let data = b"*2\r\n$3\r\nGET\r\n$1000\r\nabc";
        assert_eq!(parser.parse(data, KNOWN), Ok(Parsed::Partial(data.len() - 3 + 1000 + 2)));
    }

    #[test]
    fn huge_count_allocates_nothing() {
        let mut parser = Parser::default();
        assert_eq!(parser.parse(b"*2147483647\r\n", KNOWN), Ok(Parsed::Partial(14)));
        assert!(parser.args.capacity() <= KEPT);
    }

    #[test]
    fn long_argument_not_taken_out_is_parsed_like_others() {
        let mut parser = Parser::default();
        let limits = Limits { long: 10, ..KNOWN };
        let data = encoded(&[b"SET".to_vec(), b"a".to_vec(), vec![b'x'; 100]]);
        let at = data.len() - 102;
        assert_eq!(parser.parse(&data[..at + 50], limits), Ok(Parsed::Long { at, len: 100 }));
        assert_eq!(parser.parse(&data[..at + 60], limits), Ok(Parsed::Partial(data.len())));
        assert_eq!(parser.parse(&data, limits), Ok(Parsed::Request(data.len())));
        assert_eq!(parser.args(&data).longs().count(), 0);
        // Memory is only allocated for authenticated clients.
        let limits = Limits { authenticated: false, ..limits };
        assert_eq!(Parser::default().parse(&data[..at + 50], limits), Ok(Parsed::Partial(data.len())));
    }

    #[test]
    fn long_argument_is_released_with_its_request() {
        let mut parser = Parser::default();
        let limits = Limits { long: 10, ..KNOWN };
        let data = b"*2\r\n$4\r\nECHO\r\n$10\r\n";
        assert_eq!(parser.parse(data, limits), Ok(Parsed::Long { at: data.len(), len: 10 }));
        parser.give(Long::from_parts([Bytes::from(b"0123456789".to_vec())]));
        assert_eq!(parser.parse(data, limits), Ok(Parsed::Request(data.len())));
        let args = parser.args(data);
        assert_eq!((args.len(), args.longs().collect::<Vec<_>>(), &args[1]), (2, vec![1], &b""[..]));
        assert_eq!(args.prefix(1, 4), b"0123");
        assert_eq!(args.to_owned().args().to_whole().args().at(1), b"0123456789");
        parser.forget();
        assert_eq!(parser.args(data).longs().count(), 0);
    }
}
