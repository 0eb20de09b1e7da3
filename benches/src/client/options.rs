//! The TCP options that the client offers, and the time stamps that it sends.

use super::{MAX_SEGMENT, TIMESTAMPS};
use linerate_bypass::time::Instant;
use smoltcp::wire::{TcpOption, TcpPacket};

/// Our windows are offered in units of 2⁷ bytes (RFC 7323 §2.2): 8 MB at most, more than any message.
pub(super) const WINDOW_SCALE: u8 = 7;
/// Our time stamps count microseconds, so that a server that echoes an old one is found out.
pub(super) const STAMPS_PER_SECOND: u32 = 1_000_000;
/// Without the option the server would send 536 bytes at most (RFC 9293 §3.7.1).
const SEGMENT_SIZE: TcpOption = TcpOption::MaxSegmentSize(MAX_SEGMENT as u16);

/// What the server agreed to in its SYN-ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Agreed {
    /// Payload that it takes in one segment, TCP options included.
    pub segment_size: u16,
    /// Time stamps (RFC 7323 §3).
    pub timestamps: bool,
    /// How its windows are scaled, if at all (RFC 7323 §2).
    pub window_scale: Option<u8>,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
}

impl Default for Agreed {
    fn default() -> Self {
        // What holds without options (RFC 9293 §3.7.1).
        Agreed { segment_size: 536, timestamps: false, window_scale: None, sack: false }
    }
}

impl Agreed {
    /// Less what we did not offer.
    pub(super) fn with_offer(self, timestamps: bool) -> Self {
        Agreed { timestamps: self.timestamps && timestamps, ..self }
    }
}

/// What a segment's options say. `None` if they are malformed.
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

/// The bytes that [`write_syn`] or [`write_stamps`] takes.
pub(super) fn len(syn: bool, timestamps: bool) -> usize {
    match (syn, timestamps) {
        (true, true) => 20,
        (true, false) => 12,
        (false, true) => TIMESTAMPS,
        (false, false) => 0,
    }
}

/// Writes a SYN's options, in the order in which Linux has them; `stamp` if time stamps are offered.
pub(super) fn write_syn(place: &mut [u8], stamp: Option<u32>) {
    let rest = SEGMENT_SIZE.emit(place);
    let rest = match stamp {
        Some(tsval) => TcpOption::TimeStamp { tsval, tsecr: 0 }.emit(TcpOption::SackPermitted.emit(rest)),
        None => TcpOption::SackPermitted.emit(TcpOption::NoOperation.emit(TcpOption::NoOperation.emit(rest))),
    };
    TcpOption::WindowScale(WINDOW_SCALE).emit(TcpOption::NoOperation.emit(rest));
}

/// Writes time stamps as RFC 7323 appendix A has them.
pub(super) fn write_stamps(place: &mut [u8], tsval: u32, tsecr: u32) {
    let rest = TcpOption::NoOperation.emit(TcpOption::NoOperation.emit(place));
    TcpOption::TimeStamp { tsval, tsecr }.emit(rest);
}

/// Where the time stamps of connection `flow` begin: far from those of others, so that none is taken for another's.
pub(super) fn stamp_origin(flow: usize) -> u32 {
    (flow as u32).wrapping_mul(0x85eb_ca6b)
}

/// The time stamp of connection `flow` at `now`.
pub(super) fn stamp(flow: usize, now: Instant) -> u32 {
    stamp_origin(flow).wrapping_add(now.as_micros() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_a_syn_are_read_as_they_were_written() {
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
