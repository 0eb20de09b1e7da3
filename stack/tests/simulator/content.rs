//! Stream contents: bytes that identify their position.

use linerate_bypass::memory_nic::End;
use std::sync::LazyLock;

/// Period of the pattern in bytes: a prime, so that it is no multiple of a segment or buffer size.
const PERIOD: usize = 1_048_573;
/// Maximum length of a contiguous chunk.
pub const LONGEST: usize = 1 << 16;

static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = fastrand::Rng::with_seed(0x6c69_6e65);
    let mut bytes: Vec<u8> = (0..PERIOD).map(|_| random.u8(..)).collect();
    bytes.extend_from_within(..LONGEST);
    bytes
});

/// Byte stream that one end of a connection sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    start: usize,
}

impl Stream {
    /// Returns the stream that `from` sends on connection `n`.
    pub fn of(n: usize, from: End) -> Stream {
        let mut random = fastrand::Rng::with_seed(2 * n as u64 + u64::from(from == End::A));
        Stream { start: random.usize(..PERIOD) }
    }

    /// Returns up to `len` bytes at position `at`, at most [`LONGEST`].
    pub fn chunk(self, at: u64, len: usize) -> &'static [u8] {
        let from = (self.start + (at % PERIOD as u64) as usize) % PERIOD;
        &LazyLock::force(&PATTERN)[from..from + len.min(LONGEST)]
    }

    /// Returns the index of the first of `bytes` that differs from the stream at position `at`.
    pub fn differs(self, at: u64, bytes: &[u8]) -> Option<usize> {
        let mut checked = 0;
        for part in bytes.chunks(LONGEST) {
            let expected = self.chunk(at + checked as u64, part.len());
            if part != expected {
                return part.iter().zip(expected).position(|(a, b)| a != b).map(|i| checked + i);
            }
            checked += part.len();
        }
        None
    }

    /// Returns a position of `bytes` in the stream within one period, for error messages.
    pub fn find(self, bytes: &[u8]) -> Option<u64> {
        let probe = bytes.get(..16)?;
        let pattern = LazyLock::force(&PATTERN);
        let at = pattern[..PERIOD + probe.len()].windows(probe.len()).position(|window| window == probe)?;
        Some(((at + PERIOD - self.start) % PERIOD) as u64)
    }
}
