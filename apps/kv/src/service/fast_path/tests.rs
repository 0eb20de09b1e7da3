//! Tests of the fast parser.

use super::*;
use crate::resp::{Limits, Parsed, Parser, encoded};

const LIMITS: Limits = Limits { bulk: 512 << 20, long: LONG_THRESHOLD, apart: false, authenticated: true };

/// Compares the result with that of the full parser. Returns false if the fast parser does not take `data`.
fn check(data: &[u8]) -> bool {
    let Some((fast, key)) = FastRequest::parse(data) else { return false };
    let mut parser = Parser::default();
    assert_eq!(parser.parse(data, LIMITS), Ok(Parsed::Request(fast.len)), "{data:?}");
    let args: Vec<&[u8]> = parser.args(data).iter().collect();
    let name: &[u8] = if args.len() == 2 { b"GET" } else { b"SET" };
    assert!(args[0].eq_ignore_ascii_case(name));
    assert_eq!((key, fast.key(data), fast.value(data)), (args[1], args[1], args.get(2).copied()));
    true
}

fn request(args: &[&[u8]]) -> Vec<u8> {
    encoded(args)
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
