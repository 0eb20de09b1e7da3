//! Trace of a script: one line per segment, in the format of tcpdump.

use super::flow::Got;
use super::segment::{Seg, Want};
use std::fmt::Write;

fn flags_of(flags: u8) -> String {
    let names = ['F', 'S', 'R', 'P', '.', 'U', 'E', 'W'];
    names.iter().enumerate().filter(|(bit, _)| flags & 1 << bit != 0).map(|(_, name)| name).collect()
}

/// Formats a scripted segment.
pub fn describe(seg: &Seg) -> String {
    let mut line =
        format!("{} {}:{}({})", flags_of(seg.flags), seg.seq, seg.seq + seg.payload.len(), seg.payload.len());
    if let Want::Is(ack) = seg.ack {
        let _ = write!(line, " ack {ack}");
    }
    for (name, value) in [("port", seg.port.map(u32::from)), ("win", seg.window.map(u32::from))] {
        if let Some(value) = value {
            let _ = write!(line, " {name} {value}");
        }
    }
    for (name, value) in [("mss", seg.mss.value().map(u32::from)), ("ws", seg.window_scale.value().map(u32::from))] {
        if let Some(value) = value {
            let _ = write!(line, " <{name} {value}>");
        }
    }
    if seg.sack_permitted != Want::Any {
        let _ = write!(line, " <sackOK {:?}>", seg.sack_permitted);
    }
    if seg.timestamp != Want::Any {
        let _ = write!(line, " <ts {:?}>", seg.timestamp);
    }
    if !seg.sack.is_empty() {
        let _ = write!(line, " <sack {:?}>", seg.sack);
    }
    if let Some(ecn) = seg.ecn {
        let _ = write!(line, " [ecn {ecn}]");
    }
    line
}

/// Formats a segment of the worker.
pub fn describe_got(got: &Got) -> String {
    let options = &got.raw.options;
    let mut line = format!(
        "{} {}:{}({}) ack {} win {} port {}",
        flags_of(got.flags),
        got.seq,
        got.seq + got.len,
        got.len,
        got.ack,
        got.raw.window,
        got.port
    );
    if let Some(mss) = options.mss {
        let _ = write!(line, " <mss {mss}>");
    }
    if let Some(shift) = options.window_scale {
        let _ = write!(line, " <ws {shift}>");
    }
    if options.sack_permitted {
        line += " <sackOK>";
    }
    if let Some((value, echo)) = options.timestamp {
        let _ = write!(line, " <ts {value} ecr {echo}>");
    }
    if !got.sack.is_empty() {
        let _ = write!(line, " <sack {:?}>", got.sack);
    }
    if got.raw.ecn != 0 {
        let _ = write!(line, " [ecn {}]", got.raw.ecn);
    }
    line
}
