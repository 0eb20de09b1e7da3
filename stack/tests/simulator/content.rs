//! What streams consist of: bytes that tell where they belong.

use linerate_bypass::memory_nic::End;
use std::sync::LazyLock;

/// The pattern repeats after so many bytes: a prime, so that no multiple of a segment or a buffer does.
const PERIOD: usize = 1_048_573;
/// The longest piece that lies in one place.
pub const LONGEST: usize = 1 << 16;

static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = fastrand::Rng::with_seed(0x6c69_6e65);
    let mut bytes: Vec<u8> = (0..PERIOD).map(|_| random.u8(..)).collect();
    bytes.extend_from_within(..LONGEST);
    bytes
});

/// The bytes that one end of a connection sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    start: usize,
}

impl Stream {
    /// What `from` sends on connection `n`.
    pub fn of(n: usize, from: End) -> Stream {
        let mut random = fastrand::Rng::with_seed(2 * n as u64 + u64::from(from == End::A));
        Stream { start: random.usize(..PERIOD) }
    }

    /// Up to `len` bytes from position `at` on, [`LONGEST`] at most.
    pub fn piece(self, at: u64, len: usize) -> &'static [u8] {
        let from = (self.start + (at % PERIOD as u64) as usize) % PERIOD;
        &LazyLock::force(&PATTERN)[from..from + len.min(LONGEST)]
    }

    /// The position in `bytes` of the first that is not what belongs at `at` and behind it.
    pub fn differs(self, at: u64, bytes: &[u8]) -> Option<usize> {
        let mut checked = 0;
        for part in bytes.chunks(LONGEST) {
            let expected = self.piece(at + checked as u64, part.len());
            if part != expected {
                return part.iter().zip(expected).position(|(a, b)| a != b).map(|i| checked + i);
            }
            checked += part.len();
        }
        None
    }

    /// Where `bytes` belong in the stream, if anywhere within one period: for a message.
    pub fn find(self, bytes: &[u8]) -> Option<u64> {
        let probe = bytes.get(..16)?;
        let pattern = LazyLock::force(&PATTERN);
        let at = pattern[..PERIOD + probe.len()].windows(probe.len()).position(|window| window == probe)?;
        Some(((at + PERIOD - self.start) % PERIOD) as u64)
    }
}
