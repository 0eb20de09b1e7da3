//! The fast path: nearly every request is a GET, or a SET of a short value and nothing else, that has come as a whole.
//!
//! A few comparisons find that out, and what they say is what the parser and the table of commands would; whatever they do not
//! recognise goes that way.

use super::Kv;
use super::client::Speech;
use crate::commands::{Quick, Session};
use crate::resp::Protocol;
use crate::sink::Sink;
use crate::store::{Expiry, Key, LONG, Str};
use linerate_bypass::{ConnId, Transport};

/// Requests of one client that are recognised ahead at most.
const AHEAD: usize = 16;

/// A request that is recognised: where in its bytes the key and the value are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    key: (u32, u32),
    /// Empty at 0 for a GET.
    value: (u32, u32),
    /// Bytes of it.
    pub len: u32,
}

/// The beginning of each, in upper case.
const GET: &[u8; HEAD] = b"*2\r\n$3\r\nGET\r\n$";
const SET: &[u8; HEAD] = b"*3\r\n$3\r\nSET\r\n$";
const HEAD: usize = 14;
/// In the last eight bytes of it, of which the third is the first letter: what tells upper case from lower.
const CASE: u64 = 0x20_2020 << 16;

/// The first eight bytes of a beginning, and the last eight with letters in upper case.
#[inline(always)]
const fn words(head: &[u8; HEAD]) -> (u64, u64) {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = *head;
    (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes([g, h, i, j, k, l, m, n]) & !CASE)
}

impl Known {
    /// What `data` begin with, if that is recognised.
    #[inline(always)]
    pub fn of(data: &[u8]) -> Option<Self> {
        let (head, rest) = data.split_first_chunk::<HEAD>()?;
        let words_of_it = words(head);
        if words_of_it == const { words(GET) } {
            let (len, at) = length(rest)?;
            let end = at + len;
            if rest.get(end..end + 2)? != b"\r\n" {
                return None;
            }
            let key = (HEAD as u32 + at as u32, HEAD as u32 + end as u32);
            return Some(Known { key, value: (0, 0), len: HEAD as u32 + end as u32 + 2 });
        }
        if words_of_it != const { words(SET) } {
            return None;
        }
        let (len, at) = length(rest)?;
        let end = at + len;
        if rest.get(end..end + 3)? != b"\r\n$" {
            return None;
        }
        let key = (HEAD as u32 + at as u32, HEAD as u32 + end as u32);
        let start = end + 3;
        let (len, at) = length(&rest[start..])?;
        let (value, end) = (start + at, start + at + len);
        if rest.get(end..end + 2)? != b"\r\n" || len >= LONG {
            return None;
        }
        Some(Known {
            key,
            value: (HEAD as u32 + value as u32, HEAD as u32 + end as u32),
            len: HEAD as u32 + end as u32 + 2,
        })
    }

    /// Its key in `data`, which it was recognised in.
    #[inline(always)]
    pub fn key<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        &data[self.key.0 as usize..self.key.1 as usize]
    }

    /// The value that it sets, if it is a SET.
    #[inline(always)]
    fn value<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        (self.value.0 > 0).then(|| &data[self.value.0 as usize..self.value.1 as usize])
    }
}

/// The length, of up to four digits, that `data` begin with, and where what follows its line begins.
#[inline(always)]
fn length(data: &[u8]) -> Option<(usize, usize)> {
    let mut len = 0;
    for at in 0..5 {
        let byte = *data.get(at)?;
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return (byte == b'\r' && at > 0 && *data.get(at + 1)? == b'\n').then_some((len, at + 2));
        }
        // "01" is for the parser to judge.
        if at > 0 && len == 0 {
            return None;
        }
        len = len * 10 + usize::from(digit);
    }
    None
}

/// Writes `$`, the length and the end of a line.
#[inline(always)]
fn bulk_head(len: usize, place: &mut [u8; 8]) -> &[u8] {
    let mut at = 8;
    let mut put = |byte| {
        at -= 1;
        place[at] = byte;
    };
    put(b'\n');
    put(b'\r');
    let mut rest = len;
    loop {
        put(b'0' + (rest % 10) as u8);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    put(b'$');
    &place[at..]
}

impl Kv {
    /// Whether requests of `speech` may be recognised: nothing lies between them and the shard.
    #[inline(always)]
    pub(super) fn is_plain(&self, speech: &Speech) -> bool {
        self.stores.len() == 1
            && matches!(speech, Speech::Resp { session, parser, .. } if session.is_plain() && !parser.is_within())
    }

    /// Recognises what the clients of `group` ask for next, and fetches what it will touch.
    pub(super) fn look_ahead(&mut self, net: &mut impl Transport, group: &[ConnId]) {
        self.ahead.clear();
        if self.stores.len() > 1 {
            return;
        }
        let Some(store) = &self.stores[self.worker] else { return };
        for conn in group {
            let Some(client) = self.clients.get_mut(conn.slot()).and_then(Option::as_deref_mut) else { continue };
            let Speech::Resp { session, .. } = &client.speech else { continue };
            if client.conn != *conn || !client.is_fresh() || !session.is_plain() {
                continue;
            }
            let (first, mut rest) = (self.ahead.len(), net.peek(*conn));
            while self.ahead.len() - first < AHEAD
                && let Some(known) = Known::of(rest)
            {
                let hash = self.keys.key(session.space(), known.key(rest)).hash();
                store.prefetch_index(hash);
                self.ahead.push((known, hash));
                rest = &rest[known.len as usize..];
            }
            client.ahead = first..self.ahead.len();
        }
        self.ahead.iter().for_each(|(_, hash)| store.prefetch_item(*hash));
    }

    /// Does what `known` asks for, which is in `data` and whose key is `key`. Returns whether it has been done; otherwise
    /// nothing has changed.
    #[inline(always)]
    pub(super) fn run_known(&mut self, known: &Known, key: &Key<'_>, data: &[u8], session: &mut Session) -> bool {
        let Some(store) = &mut self.stores[self.worker] else { return false };
        match known.value(data) {
            None => match store.get(key, self.now) {
                Ok(Some(Str::Short(value))) => {
                    let mut place = [0; 8];
                    self.replies.bulk(bulk_head(value.len(), &mut place), value);
                    self.stats.hits += 1;
                }
                Ok(None) => {
                    self.replies.put(if session.protocol() == Protocol::Resp2 { b"$-1\r\n" } else { b"_\r\n" });
                    self.stats.misses += 1;
                }
                // Long, or no string.
                _ => return false,
            },
            Some(value) => {
                if store.set(key, value, Expiry::Never, self.now).is_err() {
                    return false;
                }
                self.replies.put(b"+OK\r\n");
            }
        }
        self.stats.commands += 1;
        session.used_for(if known.value.0 == 0 { Quick::Get } else { Quick::Set }, self.now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Limits, Parsed, Parser};

    const LIMITS: Limits = Limits { bulk: 512 << 20, long: LONG, authenticated: true };

    /// What is recognised is what the parser reads.
    fn check(data: &[u8]) -> bool {
        let Some(known) = Known::of(data) else { return false };
        let mut parser = Parser::default();
        assert_eq!(parser.parse(data, LIMITS), Ok(Parsed::Request(known.len as usize)), "{data:?}");
        let args: Vec<&[u8]> = parser.args(data).iter().collect();
        let name: &[u8] = if args.len() == 2 { b"GET" } else { b"SET" };
        assert!(args[0].eq_ignore_ascii_case(name));
        assert_eq!((known.key(data), known.value(data)), (args[1], args.get(2).copied()));
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
    fn ordinary_requests_are_recognised() {
        for len in [0, 1, 9, 10, 99, 100, 999, 1000, 4095] {
            let bytes = vec![b'x'; len];
            assert!(check(&request(&[b"GET", &bytes])) && check(&request(&[b"set", b"key", &bytes])), "{len}");
        }
        assert!(check(b"*2\r\n$3\r\ngEt\r\n$2\r\n\r\n\r\n*1\r\n"));
    }

    #[test]
    fn what_goes_on_or_is_something_else_is_not() {
        let long = vec![b'x'; LONG];
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
    fn whatever_is_recognised_is_what_the_parser_reads() {
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

    #[test]
    fn lengths_are_written_as_numbers() {
        for len in [0, 7, 10, 99, 100, 4095] {
            assert_eq!(bulk_head(len, &mut [0; 8]), format!("${len}\r\n").as_bytes());
        }
    }
}
