//! Internet checksum (RFC 1071) of TCP and UDP, over packet chains and with partial checksums of local kernels.

use smoltcp::wire::checksum::combine;
use std::net::IpAddr;

/// State of a received transport checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChecksumStatus {
    /// Correct for the packet.
    Valid,
    /// Sum of the pseudo-header only: a kernel on this host left the rest to absent hardware.
    Partial,
    /// Incorrect.
    Invalid,
}

/// Checks the transport checksum of a packet whose transport header and payload are the first `len` bytes of
/// `segments`. `stored` is the value of its checksum field.
pub(crate) fn verify<'a>(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    len: usize,
    stored: u16,
    segments: impl Iterator<Item = &'a [u8]>,
) -> ChecksumStatus {
    let pseudo = pseudo_header_sum(source, destination, protocol, len);
    if sum(len, segments, pseudo) == 0xffff {
        ChecksumStatus::Valid
    } else if stored == pseudo {
        ChecksumStatus::Partial
    } else {
        ChecksumStatus::Invalid
    }
}

/// Returns the sum of `bytes`. The words are added in the byte order of the processor (RFC 1071 §2), which compiles to
/// vector instructions.
#[inline]
pub(crate) fn data(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let sum: u64 = words.iter().chain([&last]).map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    fold(sum).to_be()
}

/// Returns the 16-bit one's complement sum (RFC 1071) of 16-bit or 32-bit numbers with the sum `sum`.
#[inline]
pub(crate) fn fold(sum: u64) -> u16 {
    // A number plus itself with its halves exchanged holds the sum of the halves, including the carry, in its upper
    // half.
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// Returns the sum of `initial` and the first `len` bytes of `segments`.
fn sum<'a>(len: usize, segments: impl Iterator<Item = &'a [u8]>, initial: u16) -> u16 {
    let mut done = 0;
    let mut total = initial;
    for segment in segments {
        let part = &segment[..segment.len().min(len - done)];
        let sum = data(part);
        // Bytes of a segment at an odd offset are in the other halves of the 16-bit words.
        total = combine(&[total, if done % 2 == 0 { sum } else { sum.swap_bytes() }]);
        done += part.len();
    }
    total
}

/// Returns the sum of the concatenated `segments`.
pub(crate) fn sum_of<'a>(segments: impl Iterator<Item = &'a [u8]>) -> u16 {
    sum(usize::MAX, segments, 0)
}

/// Returns the sum of the pseudo-header (RFC 768, RFC 8200 §8.1), which a port expects in the checksum field for
/// transmit checksum offload.
#[inline]
pub(crate) fn pseudo_header_sum(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> u16 {
    let sum = |ip| match ip {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => u64::from(fold_u128(ip.to_bits())),
    };
    fold(sum(source) + sum(destination) + u64::from(protocol) + len as u64)
}

/// Returns the sum of the 16-bit words of `bits`.
fn fold_u128(bits: u128) -> u16 {
    let words = [bits >> 96, bits >> 64, bits >> 32, bits].map(|word| u64::from(word as u32));
    fold(words.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::wire::{Ipv4Address, UdpPacket};

    const SOURCE: IpAddr = IpAddr::V4(Ipv4Address::new(10, 0, 0, 1));
    const DESTINATION: IpAddr = IpAddr::V4(Ipv4Address::new(10, 0, 0, 2));

    fn udp(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 8 + payload.len()];
        bytes[8..].copy_from_slice(payload);
        let mut packet = UdpPacket::new_unchecked(&mut bytes[..]);
        packet.set_src_port(1);
        packet.set_dst_port(2);
        packet.set_len(8 + payload.len() as u16);
        packet.fill_checksum(&SOURCE.into(), &DESTINATION.into());
        bytes
    }

    fn status(bytes: &[u8], cuts: &[usize]) -> ChecksumStatus {
        let mut rest = bytes;
        let mut segments = Vec::new();
        for cut in cuts {
            let (front, back) = rest.split_at((*cut).min(rest.len()));
            segments.push(front);
            rest = back;
        }
        segments.push(rest);
        let stored = u16::from_be_bytes([bytes[6], bytes[7]]);
        verify(SOURCE, DESTINATION, 17, bytes.len(), stored, segments.into_iter())
    }

    proptest! {
        #[test]
        fn sum_adds_16_bit_words(bytes: Vec<u8>, ones in 0usize..300) {
            for bytes in [&bytes[..], &vec![0xff; ones]] {
                let sum = bytes.chunks(2).fold(0u64, |sum, word| {
                    sum + u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]))
                });
                let expected = if sum == 0 { 0 } else { ((sum - 1) % 0xffff + 1) as u16 };
                prop_assert_eq!(data(bytes), expected);
            }
        }

        #[test]
        fn chain_has_the_checksum_status_of_the_whole_packet(
            payload: Vec<u8>, cuts in prop::collection::vec(0..40usize, 0..4), flip: prop::sample::Index
        ) {
            let cuts: Vec<_> = std::iter::once(8).chain(cuts).collect();
            let mut bytes = udp(&payload);
            prop_assert_eq!(status(&bytes, &cuts), ChecksumStatus::Valid);
            let at = flip.index(bytes.len());
            bytes[at] ^= 0x10;
            prop_assert_ne!(status(&bytes, &cuts), ChecksumStatus::Valid);
        }
    }

    #[test]
    fn pseudo_header_sum_is_a_partial_checksum() {
        let mut bytes = udp(b"some payload");
        bytes[6..8].copy_from_slice(&pseudo_header_sum(SOURCE, DESTINATION, 17, 20).to_be_bytes());
        assert_eq!(status(&bytes, &[]), ChecksumStatus::Partial);
    }
}
