//! Invariant CRC: CRC-32 over the packet with ones in the fields that routers change (annex A17.3.3).

use crate::wire::{BECN, BTH};

/// Longest IP and UDP header.
pub(crate) const MAX_HEADERS: usize = 40 + 8;
/// Ones in place of the LRH, which RoCE packets lack, without the first four bytes: the initial remainder of ones
/// inverts these to zeros, and leading zeros leave a remainder of zero unchanged.
const LRH: usize = 4;
/// Bytes that are summed in one step. Zeros before the packet make its length a multiple.
const BLOCK: usize = 16;
/// Packets up to this length, with all headers, are summed in one part. Of longer ones, the first part has `FIRST` bytes.
const WHOLE: usize = 256;
const FIRST: usize = 128;

/// Returns the ICRC of the packet with the IP and UDP header `headers`, and `body`, which begins with a BTH and excludes
/// the ICRC.
pub(crate) fn icrc(headers: &[u8], body: &[u8]) -> u32 {
    debug_assert!(headers.len() <= MAX_HEADERS && body.len() >= BTH);
    let len = LRH + headers.len() + body.len();
    let lrh = len.wrapping_neg() % BLOCK;
    let start = lrh + LRH;
    let body_start = start + headers.len();
    let copied = if lrh + len <= WHOLE { body.len() } else { FIRST - body_start };
    let mut buffer = [0; WHOLE];
    buffer[lrh..start].fill(0xff);
    buffer[start..body_start].copy_from_slice(headers);
    buffer[body_start..body_start + copied].copy_from_slice(&body[..copied]);
    if headers[0] >> 4 == 4 {
        // Type of service, time to live, header checksum.
        buffer[start + 1] = 0xff;
        buffer[start + 8] = 0xff;
        buffer[start + 10..start + 12].fill(0xff);
    } else {
        // Traffic class, flow label, hop limit.
        buffer[start] |= 0x0f;
        buffer[start + 1..start + 4].fill(0xff);
        buffer[start + 7] = 0xff;
    }
    // Checksum of UDP.
    buffer[body_start - 2..body_start].fill(0xff);
    buffer[body_start + BECN.0] = 0xff;
    // Continues after a sum whose remainder is zero.
    let mut crc = crc32fast::Hasher::new_with_initial(!0);
    crc.update(&buffer[..body_start + copied]);
    if copied < body.len() {
        crc.update(&body[copied..]);
    }
    crc.finalize()
}
