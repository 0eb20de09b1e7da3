//! memcached requests. Their meaning depends neither on the parts in which they arrive nor on the threshold of long
//! values.

use super::cuts::Cuts;
use super::resp::long;
use linerate_kv::memcached::{Data, InvalidInput, Limits, Parsed, Parser};

/// Item limit.
const ITEM: usize = 3000;

/// Parses the input as requests.
pub fn memcached(data: &[u8]) {
    let Some(cuts) = Cuts::read(data) else { return };
    let limits = Limits { item: ITEM, long: usize::MAX };
    let [whole, some, bytes] = cuts.each();
    let expected = requests(&whole, limits, false);
    for parts in [&some, &bytes] {
        assert_eq!(requests(parts, limits, false), expected);
    }
    let limits = Limits { long: cuts.long, ..limits };
    for parts in [&whole, &some, &bytes] {
        assert_eq!(requests(parts, limits, false), expected, "threshold {}", cuts.long);
    }
    if cuts.bits & 1 != 0 {
        // A refused data block affects only its own request. The last request then does not wait for its data block.
        let lines = |requests: Requests| requests.0.into_iter().map(|(line, _)| line).collect::<Vec<_>>();
        let expected = lines(expected);
        for parts in [&whole, &some, &bytes] {
            let mut refused = lines(requests(parts, limits, true));
            refused.truncate(expected.len().max(refused.len().saturating_sub(1)));
            assert_eq!(refused, expected, "threshold {}, refused", cuts.long);
        }
    }
}

/// Requests with their data blocks, and whether the parser failed.
type Requests = (Vec<(String, Body)>, bool);

/// Data block of a request.
#[derive(Debug, PartialEq, Eq)]
enum Body {
    Bytes(Vec<u8>),
    Unended,
    TooLarge,
    Full,
}

/// Returns the requests in `parts`. If `refuses`, long data are refused.
fn requests(parts: &[&[u8]], limits: Limits, refuses: bool) -> Requests {
    let mut reader = Reader { refuses, ..Reader::default() };
    for part in parts {
        if reader.read(part, limits).is_err() {
            return (reader.requests, true);
        }
    }
    (reader.requests, false)
}

#[derive(Default)]
struct Reader {
    refuses: bool,
    parser: Parser,
    /// Incomplete request.
    data: Vec<u8>,
    /// Long value being received with its line end, and its length.
    long: Option<(Vec<u8>, usize)>,
    requests: Vec<(String, Body)>,
}

impl Reader {
    fn read(&mut self, mut part: &[u8], limits: Limits) -> Result<(), InvalidInput> {
        if let Some((mut bytes, len)) = self.long.take() {
            let (more, rest) = part.split_at(part.len().min(len + 2 - bytes.len()));
            bytes.extend(more);
            let Ok(end) = <[u8; 2]>::try_from(bytes.get(len..).unwrap_or_default()) else {
                self.long = Some((bytes, len));
                return Ok(());
            };
            self.parser.give(long(&bytes[..len]), end);
            part = rest;
        }
        self.data.extend_from_slice(part);
        while !self.data.is_empty() {
            let used = match self.parser.parse(&self.data, &limits)? {
                Parsed::Request { request, data, len } => {
                    assert!(0 < len && len <= self.data.len());
                    let body = match data {
                        Data::Short(bytes) => Body::Bytes(bytes.to_vec()),
                        Data::Long(long) => Body::Bytes(long.range(0..long.len()).flat_map(|b| b.to_vec()).collect()),
                        Data::Unended => Body::Unended,
                        Data::TooLarge => Body::TooLarge,
                        Data::Full => Body::Full,
                    };
                    self.requests.push((format!("{request:?}"), body));
                    len
                }
                Parsed::Skip(len) => {
                    assert!(0 < len && len <= self.data.len());
                    len
                }
                Parsed::Partial(needed) => {
                    assert!(needed > self.data.len() && self.parser.is_within());
                    return Ok(());
                }
                Parsed::Long { at, len, .. } => {
                    assert!(at <= self.data.len() && len >= limits.long && self.data.len() < at + len + 2);
                    if self.refuses {
                        self.parser.refuse(len + 2);
                        continue;
                    }
                    self.long = Some((self.data.split_off(at), len));
                    return Ok(());
                }
            };
            self.data.drain(..used);
        }
        Ok(())
    }
}
