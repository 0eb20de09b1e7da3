//! Invariant CRC: CRC-32 over the packet with ones in the fields that routers change (annex A17.3.3).

use crate::wire::{BECN, BTH};

/// Bytes of ones in place of the LRH, which RoCE packets lack.
const LRH: usize = 8;
/// Longest IP and UDP header.
pub(crate) const MAX_HEADERS: usize = 40 + 8;
/// Cached sums, by length of the packet.
const HEADS: usize = 8;

/// IP and UDP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Headers {
    /// Zero from `len` on.
    bytes: [u8; MAX_HEADERS],
    len: usize,
}

impl Headers {
    /// Returns the IP and UDP header in the first `len` bytes, which zeros follow.
    pub fn new(bytes: [u8; MAX_HEADERS], len: usize) -> Self {
        Headers { bytes, len }
    }

    /// Copies the IP and UDP header `bytes`.
    pub fn copied(bytes: &[u8]) -> Self {
        let mut headers = Headers { bytes: [0; MAX_HEADERS], len: bytes.len() };
        headers.bytes[..bytes.len()].copy_from_slice(bytes);
        headers
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Sets the variable fields to ones.
    fn mask(&mut self) {
        let bytes = &mut self.bytes;
        if bytes[0] >> 4 == 4 {
            // Type of service, time to live, header checksum.
            bytes[1] = 0xff;
            bytes[8] = 0xff;
            bytes[10..12].fill(0xff);
        } else {
            // Traffic class, flow label, hop limit.
            bytes[0] |= 0x0f;
            bytes[1..4].fill(0xff);
            bytes[7] = 0xff;
        }
        // Checksum of UDP.
        self.bytes[self.len - 2..self.len].fill(0xff);
    }
}

/// Sums over the headers of recent packets: in a stream they are equal.
#[derive(Debug)]
pub(crate) struct Icrc {
    heads: [(Headers, u32); HEADS],
}

impl Icrc {
    pub fn new() -> Self {
        Icrc { heads: [(Headers { bytes: [0; MAX_HEADERS], len: 0 }, 0); HEADS] }
    }

    /// Returns the ICRC of the packet `body`, which begins with a BTH and excludes the ICRC. `body` is unchanged
    /// afterwards.
    pub fn of_own(&mut self, headers: Headers, body: &mut [u8]) -> u32 {
        // In place: a copy with the masked byte would cost as much as the sum of a short packet.
        let unmasked = std::mem::replace(&mut body[VARIABLE], 0xff);
        let mut crc = crc32fast::Hasher::new_with_initial(self.head(headers));
        crc.update(body);
        body[VARIABLE] = unmasked;
        crc.finalize()
    }

    /// Returns the ICRC of the received packet `body`, as [`of_own`](Self::of_own).
    pub fn of_received(&mut self, headers: Headers, body: &[u8]) -> u32 {
        let mut start = [0; 128];
        let (first, rest) = body.split_at(body.len().min(start.len()));
        let start = &mut start[..first.len()];
        start.copy_from_slice(first);
        start[VARIABLE] = 0xff;
        let mut crc = crc32fast::Hasher::new_with_initial(self.head(headers));
        crc.update(start);
        if !rest.is_empty() {
            crc.update(rest);
        }
        crc.finalize()
    }

    /// Returns the sum up to the BTH.
    fn head(&mut self, mut headers: Headers) -> u32 {
        headers.mask();
        let (cached, sum) = &mut self.heads[usize::from(headers.bytes[headers.len - 3] >> 2) % HEADS];
        if *cached != headers {
            let mut crc = crc32fast::Hasher::new();
            crc.update(&[0xff; LRH]);
            crc.update(&headers.bytes[..headers.len]);
            (*cached, *sum) = (headers, crc.finalize());
        }
        *sum
    }
}

const VARIABLE: usize = BECN.0;
const _: () = assert!(VARIABLE < BTH);
