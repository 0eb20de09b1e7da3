//! RESP requests. Their meaning depends neither on the parts in which they arrive nor on the threshold of long values.

use super::cuts::Cuts;
use linerate_kv::resp::{Limits, Parsed, Parser, ProtocolError};
use linerate_kv::store::{Config, LongWriter, Store};
use std::cell::RefCell;

thread_local! {
    /// Store of long arguments.
    static STORE: RefCell<Store> = RefCell::new(Store::new(&Config::new(8 << 20), 0));
}

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
    let limits = Limits { long: cuts.long, ..limits };
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
    /// Long value being received, and its missing bytes including the line end.
    apart: Option<(LongWriter, usize)>,
    requests: Vec<Vec<Vec<u8>>>,
}

impl Reader {
    fn read(&mut self, mut part: &[u8], limits: Limits) -> Result<(), ProtocolError> {
        if let Some((mut writer, missing)) = self.apart.take() {
            let n = part.len().min(missing);
            writer.fill(&part[..n]);
            if n < missing {
                self.apart = Some((writer, missing - n));
                return Ok(());
            }
            self.parser.give(writer.finish());
            part = &part[n..];
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
                    assert!(at <= self.data.len() && len >= limits.long && self.data.len() < at + len + 2);
                    // Without memory, it is parsed like any other argument.
                    let Ok(mut writer) = STORE.with_borrow_mut(|store| store.long(len, 0)) else { continue };
                    let begun = self.data.split_off(at);
                    writer.fill(&begun);
                    self.apart = Some((writer, len + 2 - begun.len()));
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
