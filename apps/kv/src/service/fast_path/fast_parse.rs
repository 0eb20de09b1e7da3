//! Fast parser for plain GET and short SET. Everything else falls through to the full parser. Where this parser
//! succeeds, its result equals that of the full parser and the command table.

use crate::resp::Protocol;
use crate::service::workers::routed::{Operation, Routed};
use crate::store::{Key, LONG_THRESHOLD};
use std::ops::Range;

/// Parsed request: positions of the key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) struct FastRequest {
    /// Start and end of the key, then of the value, 16 bits each, lowest first. The value of a GET is empty at 0. One
    /// word, so that it is written and read as a whole: reading a word just written in parts stalls.
    bounds: u64,
    /// Length of the request.
    pub len: usize,
}

/// First bytes of each command, in upper case.
const GET: &[u8; HEAD] = b"*2\r\n$3\r\nGET\r\n$";
const SET: &[u8; HEAD] = b"*3\r\n$3\r\nSET\r\n$";
const HEAD: usize = 14;
/// Case bits of the letters in the last eight of these bytes, where the command name starts at the third byte.
const CASE: u64 = 0x20_2020 << 16;
/// Position of a key whose length has two digits.
const KEY: usize = HEAD + 4;
const END: &[u8; 2] = b"\r\n";

/// Returns the first and the last eight bytes of `head`, with letters in upper case.
#[inline(always)]
fn words(head: &[u8; HEAD]) -> (u64, u64) {
    let [first, last] =
        [head.first_chunk(), head.last_chunk()].map(|word| word.map_or(0, |word| u64::from_le_bytes(*word)));
    (first, last & !CASE)
}

impl FastRequest {
    /// Creates a request from positions, which fit into 16 bits: key and value are shorter than [`LONG_THRESHOLD`].
    #[inline(always)]
    fn new(key: Range<usize>, value: Range<usize>, len: usize) -> Self {
        let bounds = key.start as u64 | (key.end as u64) << 16 | (value.start as u64) << 32 | (value.end as u64) << 48;
        FastRequest { bounds, len }
    }

    /// Returns position number `n`.
    #[inline(always)]
    fn bound(&self, n: u32) -> usize {
        (self.bounds >> (16 * n)) as u16 as usize
    }

    /// Parses the request at the start of `data`. Returns it with its key.
    #[inline(always)]
    pub fn of(data: &[u8]) -> Option<(Self, &[u8])> {
        // Most keys and values have lengths of two digits.
        if let Some(start) = data.first_chunk::<{ HEAD + 7 }>()
            && let (Some(head), Some(line)) = (start.first_chunk(), start.last_chunk())
            && let Some(len) = two_digit_len(u64::from_le_bytes(*line))
            && let Some((key, behind)) = data[KEY..].split_at_checked(len)
            && behind.first_chunk() == Some(END)
        {
            let (head, end) = (words(head), KEY + len);
            if head == words(GET) {
                return Some((FastRequest::new(KEY..end, 0..0, end + 2), key));
            }
            if head == words(SET)
                && let Some(line) = behind[END.len()..].first_chunk()
                && let Some(len) = two_digit_len(u64::from_le_bytes(*line))
                && behind.get(7 + len..).is_some_and(|behind| behind.first_chunk() == Some(END))
            {
                let (from, to) = (end + 7, end + 7 + len);
                return Some((FastRequest::new(KEY..end, from..to, to + 2), key));
            }
        }
        FastRequest::parse_general(data)
    }

    /// [`of`](Self::of) for lengths of any number of digits.
    #[inline(never)]
    fn parse_general(data: &[u8]) -> Option<(Self, &[u8])> {
        let head = words(data.first_chunk()?);
        let key = Bulk::of(data, HEAD - 1)?;
        let bytes = &data[key.start..key.end];
        if head == words(GET) {
            return Some((FastRequest::new(key.range(), 0..0, key.behind), bytes));
        }
        let value = Bulk::of(data, key.behind)?;
        let is_set = head == words(SET) && value.end - value.start < LONG_THRESHOLD;
        is_set.then(|| (FastRequest::new(key.range(), value.range(), value.behind), bytes))
    }

    /// Returns the key in `data`, from which the request was parsed.
    #[inline(always)]
    pub fn key<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        &data[self.bound(0)..self.bound(1)]
    }

    /// Returns the operation for `data`, from which the request was parsed, with its key.
    #[inline(always)]
    pub fn routed<'a>(&self, key: Key<'a>, protocol: Protocol, data: &'a [u8]) -> Routed<'a> {
        match self.value(data) {
            Some(value) => Routed { operation: Operation::Set, key, value, protocol },
            None => Routed { operation: Operation::Get, key, value: &[], protocol },
        }
    }

    /// Returns true for SET.
    #[inline(always)]
    pub fn is_set(&self) -> bool {
        self.bounds >> 32 > 0
    }

    /// Returns the value of a SET.
    #[inline(always)]
    pub fn value<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        self.is_set().then(|| &data[self.bound(2)..self.bound(3)])
    }
}

/// Parses the length line of a bulk string in `word`, if the length has two digits.
#[inline(always)]
fn two_digit_len(word: u64) -> Option<usize> {
    const OTHERS: u64 = u64::from_le_bytes(*b"\xff\0\0\xff\xff\0\0\0");
    const EXPECTED: u64 = u64::from_le_bytes(*b"$\0\0\r\n\0\0\0");
    // Two digits, one per byte, the tens first and not zero.
    let digits = (word >> 8 & 0xffff) ^ 0x3030;
    let is_number = (digits | (digits + 0x7676)) & 0x8080 == 0 && digits & 0xff > 0;
    (word & OTHERS == EXPECTED && is_number).then_some(((digits * 0x0a01) >> 8 & 0xff) as usize)
}

/// Parses the length line at the start of `data`. Returns the length and its number of digits, at most four.
#[inline]
fn length(data: &[u8]) -> Option<(usize, usize)> {
    let digits = data.get(1..)?.iter().take(5).take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = data[1..].split_at(digits);
    // Leading zeros are left to the full parser.
    if data[0] != b'$' || !(1..=4).contains(&digits) || digits > 1 && number[0] == b'0' || !rest.starts_with(b"\r\n") {
        return None;
    }
    Some((number.iter().fold(0, |len, digit| len * 10 + usize::from(digit - b'0')), digits))
}

/// Bulk string: start and end of its bytes, and the position behind it.
pub(in crate::service) struct Bulk {
    pub start: usize,
    pub end: usize,
    pub behind: usize,
}

impl Bulk {
    /// Parses the bulk string whose `$` is at `at`, if it is complete and its length has at most four digits.
    #[inline(always)]
    pub fn of(data: &[u8], at: usize) -> Option<Self> {
        let (len, digits) =
            match data.get(at..)?.first_chunk().and_then(|word| two_digit_len(u64::from_le_bytes(*word))) {
                Some(len) => (len, 2),
                None => length(&data[at..])?,
            };
        let start = at + digits + 3;
        let end = start + len;
        let is_whole = data.get(end..)?.first_chunk() == Some(END);
        is_whole.then_some(Bulk { start, end, behind: end + 2 })
    }

    #[inline(always)]
    fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Limits, Parsed, Parser};

    const LIMITS: Limits = Limits { bulk: 512 << 20, long: LONG_THRESHOLD, apart: false, authenticated: true };

    /// Compares the result with that of the full parser. Returns false if the fast parser does not take `data`.
    fn check(data: &[u8]) -> bool {
        let Some((fast, key)) = FastRequest::of(data) else { return false };
        let mut parser = Parser::default();
        assert_eq!(parser.parse(data, LIMITS), Ok(Parsed::Request(fast.len)), "{data:?}");
        let args: Vec<&[u8]> = parser.args(data).iter().collect();
        let name: &[u8] = if args.len() == 2 { b"GET" } else { b"SET" };
        assert!(args[0].eq_ignore_ascii_case(name));
        assert_eq!((key, fast.key(data), fast.value(data)), (args[1], args[1], args.get(2).copied()));
        true
    }

    fn request(args: &[&[u8]]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            bytes.extend(format!("${}\r\n", arg.len()).bytes());
            bytes.extend(*arg);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    #[test]
    fn plain_get_and_short_set_are_parsed() {
        for len in [0, 1, 9, 10, 99, 100, 999, 1000, 4095] {
            let bytes = vec![b'x'; len];
            assert!(check(&request(&[b"GET", &bytes])) && check(&request(&[b"set", b"key", &bytes])), "{len}");
        }
        assert!(check(b"*2\r\n$3\r\ngEt\r\n$2\r\n\r\n\r\n*1\r\n"));
    }

    #[test]
    fn incomplete_and_other_requests_are_left_to_full_parser() {
        let long = vec![b'x'; LONG_THRESHOLD];
        for bytes in [
            request(&[b"SET", b"k", &long]),
            request(&[b"DEL", b"k"]),
            request(&[b"SET", b"k", b"v", b"EX", b"1"]),
            request(&[b"GET", b"k", b"l"]),
            b"*2\r\n$3\r\nGET\r\n$01\r\nk\r\n".to_vec(),
            b"*2\r\n$3\r\nGET\r\n$-1\r\n\r\n".to_vec(),
            b"*2\r\n$3\r\nGET\r\n$1\r\nkxx".to_vec(),
            b"GET k\r\n".to_vec(),
        ] {
            assert!(!check(&bytes), "{}", bytes.escape_ascii());
        }
        let whole = request(&[b"SET", b"key", b"value"]);
        (0..whole.len()).for_each(|len| assert!(!check(&whole[..len]), "{len}"));
    }

    #[test]
    fn result_equals_that_of_full_parser() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200_000 {
            let (key, value) = (vec![b'k'; random.usize(..12)], vec![b'\n'; random.usize(..120)]);
            let mut bytes = if random.bool() { request(&[b"get", &key]) } else { request(&[b"SET", &key, &value]) };
            for _ in 0..random.usize(..3) {
                let at = random.usize(..bytes.len());
                bytes[at] = *random.choice(b"0123456789\r\n$*-+ gGsS").unwrap();
            }
            check(&bytes);
        }
    }
}
