//! Internals for fuzz targets. Not for applications.

use crate::wire::tcp::options::{Options, SynOptions, Timestamp};
use crate::wire::tuple::Tuple;

pub use crate::tcp::native::inspect::Numbers;

/// TCP options in plain types.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParsedOptions {
    /// Maximum segment size.
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    /// Presence of SACK-permitted.
    pub sack_permitted: bool,
    /// Timestamp value and echo.
    pub timestamp: Option<(u32, u32)>,
    /// Edges of the SACK blocks.
    pub sack: Vec<(u32, u32)>,
}

/// Parses options as the native engine does.
pub fn parse_options(bytes: &[u8]) -> ParsedOptions {
    let Options { mss, window_scale, sack_permitted, timestamp, sack } = Options::parse(bytes);
    ParsedOptions {
        mss,
        window_scale,
        sack_permitted,
        timestamp: timestamp.map(|timestamp| (timestamp.value, timestamp.echo)),
        sack: sack.iter().map(|block| (block.left.0, block.right.0)).collect(),
    }
}

/// Returns the TSval that header prediction accepts from these options, on a connection whose TS.Recent is `ts_recent`.
pub fn predicted_timestamp(bytes: &[u8], ts_recent: u32) -> Option<u32> {
    crate::tcp::native::inspect::predicted_timestamp(bytes, ts_recent)
}

/// Returns the hash bits of `tuple` in the native engine's flow table, for a worker with the seed `seed`.
pub fn flow_tag(seed: u128, tuple: &Tuple) -> u32 {
    crate::tcp::native::inspect::flow_tag(seed, tuple)
}

/// Writes SYN options as the native engine does.
pub fn emit_syn_options(options: &ParsedOptions) -> Vec<u8> {
    let syn = SynOptions {
        mss: options.mss.unwrap_or_default(),
        window_scale: options.window_scale,
        sack_permitted: options.sack_permitted,
        timestamp: options.timestamp.map(|(value, echo)| Timestamp { value, echo }),
    };
    let mut out = vec![0; syn.len()];
    let written = syn.emit(&mut out);
    assert_eq!(written, out.len(), "length differs from SynOptions::len");
    out
}
