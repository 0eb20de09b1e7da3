//! Options parser: compared with a plain parser and with smoltcp's, and round trips of written options.

use linerate_stack::fuzzing::{ParsedOptions, emit_syn_options, parse_options, predicted_timestamp};
use smoltcp::wire::TcpOption;

/// Parses the input as the options of a segment.
pub fn options(data: &[u8]) {
    let parsed = parse_options(data);
    assert_eq!(parsed, plain(data), "{data:?}");
    if let Some(by_smoltcp) = by_smoltcp(data) {
        assert_eq!(parsed, by_smoltcp, "{data:?}");
    }
    // Every TSval is at or after at least one of these (RFC 7323 §5.3).
    for ts_recent in [0, 1 << 31] {
        if let Some(predicted) = predicted_timestamp(data, ts_recent) {
            let timestamp = parsed.timestamp.filter(|(value, _)| *value == predicted);
            assert!(timestamp.is_some() && (predicted.wrapping_sub(ts_recent) as i32) >= 0, "{predicted} {ts_recent}");
            let alone = ParsedOptions { timestamp, ..ParsedOptions::default() };
            assert_eq!(parsed, alone, "header prediction misses an option");
        }
    }
    // The options of a SYN survive a round trip.
    let expected = ParsedOptions { mss: Some(parsed.mss.unwrap_or(536)), sack: Vec::new(), ..parsed };
    let written = emit_syn_options(&expected);
    assert!(written.len() <= 40 && written.len().is_multiple_of(4), "{} bytes", written.len());
    assert_eq!(parse_options(&written), expected);
}

/// Parses the options of `bytes` one by one (RFC 9293 §3.1).
fn plain(bytes: &[u8]) -> ParsedOptions {
    let mut options = ParsedOptions::default();
    let mut at = 0;
    while at < bytes.len() {
        let kind = bytes[at];
        if kind == 0 {
            break;
        }
        if kind == 1 {
            at += 1;
            continue;
        }
        let Some(&len) = bytes.get(at + 1) else { break };
        let len = usize::from(len);
        if len < 2 || at + len > bytes.len() {
            break;
        }
        let value = &bytes[at + 2..at + len];
        let word = |i: usize| u32::from_be_bytes([value[i], value[i + 1], value[i + 2], value[i + 3]]);
        match (kind, value.len()) {
            (2, 2) => options.mss = Some(u16::from_be_bytes([value[0], value[1]])),
            (3, 1) => options.window_scale = Some(value[0].min(14)),
            (4, 0) => options.sack_permitted = true,
            (5, n) if n % 8 == 0 => {
                options.sack = (0..n / 8).take(4).map(|i| (word(8 * i), word(8 * i + 4))).collect();
            }
            (8, 8) => options.timestamp = Some((word(0), word(4))),
            _ => {}
        }
        at += len;
    }
    options
}

/// Returns smoltcp's result; `None` where smoltcp fails or is known to differ.
fn by_smoltcp(mut bytes: &[u8]) -> Option<ParsedOptions> {
    let mut options = ParsedOptions::default();
    while !bytes.is_empty() {
        let (rest, option) = TcpOption::parse(bytes).ok()?;
        match option {
            TcpOption::EndOfList => break,
            TcpOption::NoOperation | TcpOption::Unknown { .. } => {}
            TcpOption::MaxSegmentSize(mss) => options.mss = Some(mss),
            TcpOption::WindowScale(shift) => options.window_scale = Some(shift.min(14)),
            TcpOption::SackPermitted => options.sack_permitted = true,
            TcpOption::SackRange(ranges) => {
                let len = bytes.len() - rest.len();
                if !(len - 2).is_multiple_of(8) || len > 2 + 3 * 8 {
                    // smoltcp reads three blocks and accepts a broken one.
                    return None;
                }
                options.sack = ranges.iter().flatten().copied().collect();
            }
            TcpOption::TimeStamp { tsval, tsecr } => options.timestamp = Some((tsval, tsecr)),
        }
        bytes = rest;
    }
    Some(options)
}
