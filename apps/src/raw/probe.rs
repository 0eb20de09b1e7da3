//! The frames of a load: what is in them, and whether what came back is one.

use super::ETHERNET;
use linerate_bypass::MacAddr;
use linerate_bypass::time::Instant;

/// The EtherType of frames for local experiments (IEEE 802, clause 9.2.4).
const ETHERTYPE: [u8; 2] = 0x88b5_u16.to_be_bytes();
/// Bytes of a frame in front of its payload.
pub const HEADER: usize = ETHERNET;
/// The shortest payload, as Ethernet has it: a shorter one would be padded.
pub const SMALLEST: usize = 46;

/// Where the run's number is, then what differs from frame to frame.
const RUN: usize = ETHERNET;
const SEQUENCE: usize = RUN + 8;
const SENT: usize = SEQUENCE + 8;
const PLACE: usize = SENT + 8;
const PATTERN: usize = PLACE + 4;

/// One frame of a load, of which all others are copies but for a few fields:
///
/// | bytes | what |
/// |---|---|
/// | 14 | Ethernet header, EtherType 0x88B5 |
/// | 8 | the run's number |
/// | 8 | sequence number |
/// | 8 | when it was sent, in nanoseconds of the sender's clock |
/// | 4 | its place among those on their way |
/// | the rest | a pattern |
///
/// All numbers are big-endian.
pub struct Probe {
    bytes: Vec<u8>,
}

/// What differs from frame to frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Counts from 0.
    pub sequence: u64,
    /// When it was sent.
    pub sent: Instant,
    /// Its place among those on their way.
    pub place: u32,
}

/// What a frame is that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// One of this run, as it was sent.
    Ours(Stamp),
    /// One of this run, with wrong bytes.
    Corrupt,
    /// Anything else.
    Strange,
}

impl Probe {
    /// A frame from `own` to every station, with so many bytes of `payload`. `run` tells it from those of another run.
    ///
    /// # Panics
    /// If `payload` is less than [`SMALLEST`].
    pub fn new(own: MacAddr, payload: usize, run: u64) -> Self {
        assert!(payload >= SMALLEST);
        let mut bytes: Vec<u8> = (0..HEADER + payload).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        bytes[6..12].copy_from_slice(&own.0);
        bytes[12..14].copy_from_slice(&ETHERTYPE);
        bytes[RUN..SEQUENCE].copy_from_slice(&run.to_be_bytes());
        let mut probe = Probe { bytes };
        probe.address_to(MacAddr::BROADCAST);
        probe
    }

    /// Sends to `to` from now on.
    pub fn address_to(&mut self, to: MacAddr) {
        self.bytes[..6].copy_from_slice(&to.0);
    }

    /// Bytes of a frame.
    #[expect(clippy::len_without_is_empty, reason = "no frame is empty")]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes a frame of `stamp` to `into`, which has room for it just so.
    #[inline]
    pub fn write(&self, stamp: Stamp, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes);
        into[SEQUENCE..SENT].copy_from_slice(&stamp.sequence.to_be_bytes());
        into[SENT..PLACE].copy_from_slice(&stamp.sent.as_nanos().to_be_bytes());
        into[PLACE..PATTERN].copy_from_slice(&stamp.place.to_be_bytes());
    }

    /// What `frame` is. Ports may have padded it.
    #[inline]
    pub fn read(&self, frame: &[u8]) -> Arrival {
        let head = (frame.get(12..14), frame.get(RUN..SEQUENCE));
        if head != (Some(&ETHERTYPE[..]), Some(&self.bytes[RUN..SEQUENCE])) {
            return Arrival::Strange;
        }
        if frame.get(PATTERN..self.len()) != Some(&self.bytes[PATTERN..]) {
            return Arrival::Corrupt;
        }
        let number = |at: usize| frame[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let sent = Instant::from_nanos(number(SENT));
        Arrival::Ours(Stamp { sequence: number(SEQUENCE), sent, place: (number(PLACE) >> 32) as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { sequence: 1 << 40 | 7, sent: Instant::from_nanos(1 << 50 | 9), place: 0x1234_5678 };

    fn frame(probe: &Probe) -> Vec<u8> {
        let mut frame = vec![0; probe.len()];
        probe.write(STAMP, &mut frame);
        frame
    }

    #[test]
    fn what_is_written_is_read_padded_or_not() {
        for payload in [SMALLEST, 64, 1500] {
            let probe = Probe::new(MacAddr([2; 6]), payload, 11);
            let mut frame = frame(&probe);
            assert_eq!(
                (frame.len(), &frame[..6], &frame[6..14]),
                (payload + 14, &[0xff; 6][..], &[2, 2, 2, 2, 2, 2, 0x88, 0xb5][..])
            );
            assert_eq!(probe.read(&frame), Arrival::Ours(STAMP));
            frame.extend([0; 8]);
            assert_eq!(probe.read(&frame), Arrival::Ours(STAMP));
        }
    }

    #[test]
    fn frames_of_others_and_damaged_ones_are_told_apart() {
        let probe = Probe::new(MacAddr([2; 6]), SMALLEST, 11);
        let frame = frame(&probe);
        assert_eq!(Probe::new(MacAddr([2; 6]), SMALLEST, 12).read(&frame), Arrival::Strange);
        for len in 0..frame.len() {
            assert_eq!(probe.read(&frame[..len]), if len < 22 { Arrival::Strange } else { Arrival::Corrupt }, "{len}");
        }
        for at in 12..frame.len() {
            let mut wrong = frame.clone();
            wrong[at] ^= 1;
            let read = probe.read(&wrong);
            match at {
                12..22 => assert_eq!(read, Arrival::Strange),
                22..42 => assert!(matches!(read, Arrival::Ours(stamp) if stamp != STAMP)),
                _ => assert_eq!(read, Arrival::Corrupt),
            }
        }
    }
}
