//! Requests of a load over a lossy transport, and validation of answers.

use linerate_service::time::Instant;

/// Offset of the run identifier, followed by the fields that differ between requests.
const RUN: usize = 0;
const SEQUENCE: usize = RUN + 8;
const SENT: usize = SEQUENCE + 8;
const SLOT: usize = SENT + 8;
const PATTERN: usize = SLOT + 4;

/// Request template. Requests of a run differ only in some fields:
///
/// | bytes | field |
/// |---|---|
/// | 8 | run identifier |
/// | 8 | sequence number |
/// | 8 | send time, in nanoseconds of the sender's clock |
/// | 4 | slot |
/// | rest | pattern |
///
/// All numbers are big-endian.
#[derive(Debug)]
pub struct Probe {
    bytes: Vec<u8>,
}

/// Fields that differ between requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Sequence number, from 0.
    pub sequence: u64,
    /// Send time, or due time in an open loop.
    pub sent: Instant,
    /// Slot of the outstanding request.
    pub slot: u32,
}

/// Validation result of a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeCheck {
    /// Request of this run, unchanged.
    Valid(Stamp),
    /// Request of this run with wrong bytes.
    Corrupt,
    /// Any other message.
    Foreign,
}

impl Probe {
    /// Smallest size of a request.
    pub const SMALLEST: usize = PATTERN;

    /// Creates the template of requests of `size` bytes. `run` identifies this run's requests.
    ///
    /// # Panics
    /// If `size` is less than [`SMALLEST`](Self::SMALLEST).
    pub fn new(size: usize, run: u64) -> Self {
        assert!(size >= Self::SMALLEST);
        let mut bytes: Vec<u8> = (0..size).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        bytes[RUN..SEQUENCE].copy_from_slice(&run.to_be_bytes());
        Probe { bytes }
    }

    /// Returns the size of a request.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Writes the request of `stamp` to `into`, which has the request's size.
    #[inline]
    pub fn write(&self, stamp: Stamp, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes);
        into[SEQUENCE..SENT].copy_from_slice(&stamp.sequence.to_be_bytes());
        into[SENT..SLOT].copy_from_slice(&stamp.sent.as_nanos().to_be_bytes());
        into[SLOT..PATTERN].copy_from_slice(&stamp.slot.to_be_bytes());
    }

    /// Validates `bytes`, which may end with padding.
    #[inline]
    pub fn read(&self, bytes: &[u8]) -> ProbeCheck {
        let Some((bytes, _)) = bytes.split_at_checked(self.size()) else { return self.read_short(bytes) };
        if bytes[RUN..SEQUENCE] != self.bytes[RUN..SEQUENCE] {
            return ProbeCheck::Foreign;
        }
        if bytes[PATTERN..] != self.bytes[PATTERN..] {
            return ProbeCheck::Corrupt;
        }
        let number = |at: usize| bytes[at..].first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
        let slot = bytes[SLOT..].first_chunk().map_or(0, |number| u32::from_be_bytes(*number));
        ProbeCheck::Valid(Stamp { sequence: number(SEQUENCE), sent: Instant::from_nanos(number(SENT)), slot })
    }

    #[cold]
    fn read_short(&self, bytes: &[u8]) -> ProbeCheck {
        if bytes.get(RUN..SEQUENCE) == Some(&self.bytes[RUN..SEQUENCE]) {
            ProbeCheck::Corrupt
        } else {
            ProbeCheck::Foreign
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { sequence: 1 << 40 | 7, sent: Instant::from_nanos(1 << 50 | 9), slot: 0x1234_5678 };

    fn request(probe: &Probe) -> Vec<u8> {
        let mut bytes = vec![0; probe.size()];
        probe.write(STAMP, &mut bytes);
        bytes
    }

    #[test]
    fn written_request_is_valid_with_or_without_padding() {
        for size in [Probe::SMALLEST, 64, 1500] {
            let probe = Probe::new(size, 11);
            let mut bytes = request(&probe);
            assert_eq!(probe.read(&bytes), ProbeCheck::Valid(STAMP));
            bytes.extend([0; 8]);
            assert_eq!(probe.read(&bytes), ProbeCheck::Valid(STAMP));
        }
    }

    #[test]
    fn foreign_and_corrupt_requests_are_distinguished() {
        let probe = Probe::new(46, 11);
        let bytes = request(&probe);
        assert_eq!(Probe::new(46, 12).read(&bytes), ProbeCheck::Foreign);
        for len in 0..bytes.len() {
            assert_eq!(
                probe.read(&bytes[..len]),
                if len < 8 { ProbeCheck::Foreign } else { ProbeCheck::Corrupt },
                "{len}"
            );
        }
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            let read = probe.read(&wrong);
            match at {
                0..8 => assert_eq!(read, ProbeCheck::Foreign),
                8..28 => assert!(matches!(read, ProbeCheck::Valid(stamp) if stamp != STAMP)),
                _ => assert_eq!(read, ProbeCheck::Corrupt),
            }
        }
    }
}
