//! RESP requests. Their meaning depends neither on the parts in which they arrive nor on the threshold of long values.

use super::cuts::Cuts;
use linerate_kv::resp::{Limits, Parsed, Parser, ProtocolError};
use linerate_kv::value::Long;
use linerate_service::Bytes;

/// Limit of an argument.
const BULK: usize = 100_000;

/// Parses the input as requests.
pub fn resp(data: &[u8]) {
    let Some(cuts) = Cuts::read(data) else { return };
    let limits = Limits { bulk: BULK, long: usize::MAX, apart: false, authenticated: cuts.bits & 1 == 0 };
    let [whole, some, bytes] = cuts.each();
    let expected = requests(&whole, limits);
    for parts in [&some, &bytes] {
        assert_eq!(requests(parts, limits), expected);
    }
    let limits = Limits { long: cuts.long, apart: cuts.bits & 2 != 0, ..limits };
    for parts in [&whole, &some, &bytes] {
        assert_eq!(requests(parts, limits), expected, "threshold {}", cuts.long);
    }
}

type Requests = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// Returns the requests in `parts`, and the error that ends them.
fn requests(parts: &[&[u8]], limits: Limits) -> Requests {
    let mut reader = Reader::default();
    for part in parts {
        if let Err(error) = reader.read(part, limits) {
            return (reader.requests, Some(error));
        }
    }
    (reader.requests, None)
}

#[derive(Default)]
struct Reader {
    parser: Parser,
    /// Incomplete request.
    data: Vec<u8>,
    /// Long value being received with its line end, and its length.
    long: Option<(Vec<u8>, usize)>,
    requests: Vec<Vec<Vec<u8>>>,
}

impl Reader {
    fn read(&mut self, mut part: &[u8], limits: Limits) -> Result<(), ProtocolError> {
        if let Some((mut bytes, len)) = self.long.take() {
            let (more, rest) = part.split_at(part.len().min(len + 2 - bytes.len()));
            bytes.extend(more);
            if bytes.len() < len + 2 {
                self.long = Some((bytes, len));
                return Ok(());
            }
            self.parser.give(long(&bytes[..len]));
            part = rest;
        }
        self.data.extend_from_slice(part);
        // A long value may complete a request without further bytes.
        while !self.data.is_empty() {
            match self.parser.parse(&self.data, limits)? {
                Parsed::Request(len) => {
                    assert!(0 < len && len <= self.data.len() && !self.parser.is_within());
                    let args = self.parser.args(&self.data).to_whole();
                    self.requests.push(args.args().iter().map(<[u8]>::to_vec).collect());
                    self.parser.forget();
                    self.data.drain(..len);
                }
                Parsed::Partial(needed) => {
                    assert!(needed > self.data.len() && self.parser.is_within());
                    return Ok(());
                }
                Parsed::Long { at, len } => {
                    assert!(at <= self.data.len() && len >= limits.long);
                    assert!(limits.apart || self.data.len() < at + len + 2);
                    let bytes = self.data.split_off(at);
                    if bytes.len() < len + 2 {
                        self.long = Some((bytes, len));
                        return Ok(());
                    }
                    self.parser.give(long(&bytes[..len]));
                    self.data.extend(&bytes[len + 2..]);
                }
            }
        }
        Ok(())
    }
}

/// Returns `bytes` as a long value.
pub fn long(bytes: &[u8]) -> Long {
    Long::from_parts((!bytes.is_empty()).then(|| Bytes::from(bytes.to_vec())))
}
