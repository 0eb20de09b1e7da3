//! Invariant CRC: CRC-32 over the packet with ones in the fields that routers change (annex A17.3.3).

use crate::wire::{BECN, BTH};
use crc32fast::Hasher;
use std::sync::LazyLock;

/// Length of the header of IPv4 and UDP, and of IPv6 and UDP.
const IPV4: usize = 20 + 8;
pub(crate) const MAX_HEADERS: usize = 40 + 8;
/// Ones in place of the LRH, which RoCE packets lack, without the first four bytes: the initial remainder of ones
/// inverts these to zeros, and leading zeros leave a remainder of zero unchanged.
const LRH: usize = 4;
/// Bytes that are summed in one step. Zeros before the packet make its length a multiple.
const BLOCK: usize = 16;
/// Packets up to this length, with all headers, are summed in one part. The first part of longer ones has
/// `FIRST` bytes.
const WHOLE: usize = 256;
const FIRST: usize = 128;

/// Sum whose remainder is zero. A clone saves the detection of the processor's features.
static ZERO: LazyLock<Hasher> = LazyLock::new(|| Hasher::new_with_initial(!0));

/// Returns the ICRC of the packet with the IP and UDP header `headers` and with `body`, which begins with a BTH and
/// excludes the ICRC.
pub(crate) fn icrc(headers: &[u8], body: &[u8]) -> u32 {
    let (start, whole) = layout(headers.len() + body.len());
    let mut buffer = [0; WHOLE];
    let at = start + headers.len();
    buffer[start..at].copy_from_slice(headers);
    let (copied, rest) = body.split_at(if whole { body.len() } else { FIRST - at });
    buffer[at..at + copied.len()].copy_from_slice(copied);
    sum(&mut buffer[..at + copied.len()], start, headers.len(), rest)
}

/// Returns the ICRC of the received packet `packet`, from the IP header on and without the ICRC. Its IP and UDP header
/// have `headers` bytes.
pub(crate) fn icrc_of_received(packet: &[u8], headers: usize) -> u32 {
    let (start, whole) = layout(packet.len());
    let mut buffer = [0; WHOLE];
    let (copied, rest) = packet.split_at(if whole { packet.len() } else { FIRST - start });
    buffer[start..start + copied.len()].copy_from_slice(copied);
    sum(&mut buffer[..start + copied.len()], start, headers, rest)
}

/// Returns the position of a packet of `len` bytes in the buffer, and whether the buffer holds all of it. The ones of
/// the LRH and zeros precede it.
fn layout(len: usize) -> (usize, bool) {
    let start = LRH + (LRH + len).wrapping_neg() % BLOCK;
    (start, start + len <= WHOLE)
}

/// Returns the sum over the packet at `start` in `buffer` and `rest`.
#[inline(always)]
fn sum(buffer: &mut [u8], start: usize, headers: usize, rest: &[u8]) -> u32 {
    buffer[start - LRH..start].fill(0xff);
    let packet = &mut buffer[start..];
    if headers == IPV4 {
        let Some(head) = packet.first_chunk_mut::<{ IPV4 + BTH }>() else { return 0 };
        // Type of service, time to live, header checksum, checksum of UDP.
        for at in [1, 8, 10, 11, IPV4 - 2, IPV4 - 1, IPV4 + BECN.0] {
            head[at] = 0xff;
        }
    } else {
        let Some(head) = packet.first_chunk_mut::<{ MAX_HEADERS + BTH }>() else { return 0 };
        // Traffic class, flow label, hop limit, checksum of UDP.
        head[0] |= 0x0f;
        for at in [1, 2, 3, 7, MAX_HEADERS - 2, MAX_HEADERS - 1, MAX_HEADERS + BECN.0] {
            head[at] = 0xff;
        }
    }
    let mut crc = ZERO.clone();
    crc.update(buffer);
    if !rest.is_empty() {
        crc.update(rest);
    }
    crc.finalize()
}
