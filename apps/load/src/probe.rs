//! What is in the requests of a load that may be lost, and whether what came back is one.

use linerate_bypass::time::Instant;

/// Where the run's number is, then what differs from request to request.
const RUN: usize = 0;
const SEQUENCE: usize = RUN + 8;
const SENT: usize = SEQUENCE + 8;
const PLACE: usize = SENT + 8;
const PATTERN: usize = PLACE + 4;

/// One request of a load, of which all others are copies but for a few fields:
///
/// | bytes | what |
/// |---|---|
/// | 8 | the run's number |
/// | 8 | sequence number |
/// | 8 | when it was sent, in nanoseconds of the sender's clock |
/// | 4 | its place among those on their way |
/// | the rest | a pattern |
///
/// All numbers are big-endian.
#[derive(Debug)]
pub struct Probe {
    bytes: Vec<u8>,
}

/// What differs from request to request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Counts from 0.
    pub sequence: u64,
    /// When it was sent.
    pub sent: Instant,
    /// Its place among those on their way.
    pub place: u32,
}

/// What it is that has arrived.
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
    /// Bytes of the smallest.
    pub const SMALLEST: usize = PATTERN;

    /// Requests of `size` bytes. `run` tells them from those of another run.
    ///
    /// # Panics
    /// If `size` is less than [`SMALLEST`](Self::SMALLEST).
    pub fn new(size: usize, run: u64) -> Self {
        assert!(size >= Self::SMALLEST);
        let mut bytes: Vec<u8> = (0..size).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        bytes[RUN..SEQUENCE].copy_from_slice(&run.to_be_bytes());
        Probe { bytes }
    }

    /// Bytes of a request.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Writes the request of `stamp` to `into`, which has room for it just so.
    #[inline]
    pub fn write(&self, stamp: Stamp, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes);
        into[SEQUENCE..SENT].copy_from_slice(&stamp.sequence.to_be_bytes());
        into[SENT..PLACE].copy_from_slice(&stamp.sent.as_nanos().to_be_bytes());
        into[PLACE..PATTERN].copy_from_slice(&stamp.place.to_be_bytes());
    }

    /// What `bytes` are, behind which there may be padding.
    #[inline]
    pub fn read(&self, bytes: &[u8]) -> Arrival {
        let Some((bytes, _)) = bytes.split_at_checked(self.size()) else { return self.read_short(bytes) };
        if bytes[RUN..SEQUENCE] != self.bytes[RUN..SEQUENCE] {
            return Arrival::Strange;
        }
        if bytes[PATTERN..] != self.bytes[PATTERN..] {
            return Arrival::Corrupt;
        }
        let number = |at: usize| bytes[at..].first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
        let place = bytes[PLACE..].first_chunk().map_or(0, |number| u32::from_be_bytes(*number));
        Arrival::Ours(Stamp { sequence: number(SEQUENCE), sent: Instant::from_nanos(number(SENT)), place })
    }

    #[cold]
    fn read_short(&self, bytes: &[u8]) -> Arrival {
        if bytes.get(RUN..SEQUENCE) == Some(&self.bytes[RUN..SEQUENCE]) { Arrival::Corrupt } else { Arrival::Strange }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { sequence: 1 << 40 | 7, sent: Instant::from_nanos(1 << 50 | 9), place: 0x1234_5678 };

    fn request(probe: &Probe) -> Vec<u8> {
        let mut bytes = vec![0; probe.size()];
        probe.write(STAMP, &mut bytes);
        bytes
    }

    #[test]
    fn what_is_written_is_read_padded_or_not() {
        for size in [Probe::SMALLEST, 64, 1500] {
            let probe = Probe::new(size, 11);
            let mut bytes = request(&probe);
            assert_eq!(probe.read(&bytes), Arrival::Ours(STAMP));
            bytes.extend([0; 8]);
            assert_eq!(probe.read(&bytes), Arrival::Ours(STAMP));
        }
    }

    #[test]
    fn requests_of_others_and_damaged_ones_are_told_apart() {
        let probe = Probe::new(46, 11);
        let bytes = request(&probe);
        assert_eq!(Probe::new(46, 12).read(&bytes), Arrival::Strange);
        for len in 0..bytes.len() {
            assert_eq!(probe.read(&bytes[..len]), if len < 8 { Arrival::Strange } else { Arrival::Corrupt }, "{len}");
        }
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            let read = probe.read(&wrong);
            match at {
                0..8 => assert_eq!(read, Arrival::Strange),
                8..28 => assert!(matches!(read, Arrival::Ours(stamp) if stamp != STAMP)),
                _ => assert_eq!(read, Arrival::Corrupt),
            }
        }
    }
}
