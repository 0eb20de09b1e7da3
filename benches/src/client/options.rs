//! TCP options offered by the client, and its timestamps.

use super::{MAX_SEGMENT, TIMESTAMPS};
use linerate_service::time::Instant;
use smoltcp::wire::{TcpOption, TcpPacket};

/// Window scale of the client (RFC 7323 §2.2): units of 2⁷ bytes, for windows of at most 8 MB, more than any message.
pub(super) const WINDOW_SCALE: u8 = 7;
/// Timestamps count microseconds, so that an old echo is detected.
pub(super) const STAMPS_PER_SECOND: u32 = 1_000_000;
/// MSS option: without it the server would send at most 536 bytes (RFC 9293 §3.7.1).
const SEGMENT_SIZE: TcpOption = TcpOption::MaxSegmentSize(MAX_SEGMENT as u16);

/// Options of the server's SYN-ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Agreed {
    /// MSS, TCP options included.
    pub segment_size: u16,
    /// Timestamps (RFC 7323 §3).
    pub timestamps: bool,
    /// Window scale (RFC 7323 §2).
    pub window_scale: Option<u8>,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
}

impl Default for Agreed {
    fn default() -> Self {
        // Defaults without options (RFC 9293 §3.7.1).
        Agreed { segment_size: 536, timestamps: false, window_scale: None, sack: false }
    }
}

impl Agreed {
    /// Removes options that the client did not offer.
    pub(super) fn with_offer(self, timestamps: bool) -> Self {
        Agreed { timestamps: self.timestamps && timestamps, ..self }
    }
}

/// Parses the options of a segment. Returns `None` if they are malformed.
pub(super) fn read(tcp: &TcpPacket<&[u8]>) -> Option<(Agreed, Option<(u32, u32)>)> {
    let (mut agreed, mut timestamps) = (Agreed::default(), None);
    let mut options = tcp.options();
    while !options.is_empty() {
        let (rest, option) = TcpOption::parse(options).ok()?;
        match option {
            TcpOption::EndOfList => break,
            TcpOption::MaxSegmentSize(size) => agreed.segment_size = size,
            TcpOption::WindowScale(scale) => agreed.window_scale = Some(scale),
            TcpOption::SackPermitted => agreed.sack = true,
            TcpOption::TimeStamp { tsval, tsecr } => timestamps = Some((tsval, tsecr)),
            _ => {}
        }
        options = rest;
    }
    agreed.timestamps = timestamps.is_some();
    Some((agreed, timestamps))
}

/// Returns the length of the output of [`write_syn`] or [`write_stamps`].
pub(super) fn len(syn: bool, timestamps: bool) -> usize {
    match (syn, timestamps) {
        (true, true) => 20,
        (true, false) => 12,
        (false, true) => TIMESTAMPS,
        (false, false) => 0,
    }
}

/// Writes the options of a SYN in the order of Linux, with timestamps if `stamp` is given.
pub(super) fn write_syn(out: &mut [u8], stamp: Option<u32>) {
    let rest = SEGMENT_SIZE.emit(out);
    let rest = match stamp {
        Some(tsval) => TcpOption::TimeStamp { tsval, tsecr: 0 }.emit(TcpOption::SackPermitted.emit(rest)),
        None => TcpOption::SackPermitted.emit(TcpOption::NoOperation.emit(TcpOption::NoOperation.emit(rest))),
    };
    TcpOption::WindowScale(WINDOW_SCALE).emit(TcpOption::NoOperation.emit(rest));
}

/// Writes timestamps in the layout of RFC 7323 appendix A.
pub(super) fn write_stamps(out: &mut [u8], tsval: u32, tsecr: u32) {
    let rest = TcpOption::NoOperation.emit(TcpOption::NoOperation.emit(out));
    TcpOption::TimeStamp { tsval, tsecr }.emit(rest);
}

/// Returns the initial timestamp of connection `flow`, far from those of others, so that a mix-up is detected.
pub(super) fn stamp_origin(flow: usize) -> u32 {
    (flow as u32).wrapping_mul(0x85eb_ca6b)
}

/// Returns the timestamp of connection `flow` at `now`.
pub(super) fn stamp(flow: usize, now: Instant) -> u32 {
    stamp_origin(flow).wrapping_add(now.as_micros() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_syn_are_read_as_written() {
        for stamp in [None, Some(77)] {
            let header = 20 + len(true, stamp.is_some());
            let mut bytes = [0; 40];
            let mut tcp = TcpPacket::new_unchecked(&mut bytes[..header]);
            tcp.set_header_len(header as u8);
            write_syn(tcp.options_mut(), stamp);
            let (agreed, timestamps) = read(&TcpPacket::new_checked(&bytes[..header]).unwrap()).unwrap();
            let expected = Agreed {
                segment_size: MAX_SEGMENT as u16,
                timestamps: stamp.is_some(),
                window_scale: Some(WINDOW_SCALE),
                sack: true,
            };
            assert_eq!((agreed, timestamps), (expected, stamp.map(|stamp| (stamp, 0))));
        }
    }
}
