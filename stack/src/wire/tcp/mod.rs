//! TCP segments: sequence numbers, options and headers.

pub(crate) mod header;
pub(crate) mod options;
pub(crate) mod received;
pub(crate) mod seq;

/// IP protocol number.
pub(crate) const PROTOCOL: u8 = 6;

/// Returns the four bytes at `at`, a constant within `bytes`, with one load.
#[inline(always)]
pub(crate) fn field<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |field| u32::from_be_bytes(*field))
}
