//! The Internet checksum (RFC 1071) of received TCP and UDP, over chains and over what a local kernel left partial.

use smoltcp::wire::checksum::{combine, data, pseudo_header};
use std::net::IpAddr;

/// What a transport checksum turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It covers the packet.
    Intact,
    /// It holds the pseudo-header's sum only: a kernel on this host left the rest to hardware that is not there.
    Partial,
    /// It is wrong.
    Broken,
}

/// Judges the transport checksum of a packet whose transport header and payload are the first `len` bytes of
/// `segments`; `stored` is what its checksum field holds.
pub(crate) fn verify<'a>(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    len: usize,
    stored: u16,
    segments: impl Iterator<Item = &'a [u8]>,
) -> Verdict {
    let Ok(length) = u32::try_from(len) else { return Verdict::Broken };
    let pseudo = pseudo_header(&source.into(), &destination.into(), protocol.into(), length);
    if sum(len, segments, pseudo) == 0xffff {
        Verdict::Intact
    } else if stored == pseudo {
        Verdict::Partial
    } else {
        Verdict::Broken
    }
}

/// The sum of the first `len` bytes of `segments`, and `initial`.
fn sum<'a>(len: usize, segments: impl Iterator<Item = &'a [u8]>, initial: u16) -> u16 {
    let mut done = 0;
    let mut total = initial;
    for segment in segments {
        let part = &segment[..segment.len().min(len - done)];
        let sum = data(part);
        // A segment that begins at an odd offset adds its bytes to the other halves of the words.
        total = combine(&[total, if done % 2 == 0 { sum } else { sum.swap_bytes() }]);
        done += part.len();
    }
    total
}

/// The sum of `segments`, which follow each other.
pub(crate) fn sum_of<'a>(segments: impl Iterator<Item = &'a [u8]>) -> u16 {
    sum(usize::MAX, segments, 0)
}

/// The sum that a port which computes the transport checksum wants in the checksum field.
pub(crate) fn partial(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> u16 {
    pseudo_header(&source.into(), &destination.into(), protocol.into(), len as u32)
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

    fn judge(bytes: &[u8], cuts: &[usize]) -> Verdict {
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
        fn a_chain_is_judged_like_the_whole(
            payload: Vec<u8>, cuts in prop::collection::vec(0..40usize, 0..4), flip: prop::sample::Index
        ) {
            let cuts: Vec<_> = std::iter::once(8).chain(cuts).collect();
            let mut bytes = udp(&payload);
            prop_assert_eq!(judge(&bytes, &cuts), Verdict::Intact);
            let at = flip.index(bytes.len());
            bytes[at] ^= 0x10;
            prop_assert_ne!(judge(&bytes, &cuts), Verdict::Intact);
        }
    }

    #[test]
    fn the_pseudo_header_s_sum_alone_is_partial() {
        let mut bytes = udp(b"some payload");
        bytes[6..8].copy_from_slice(&partial(SOURCE, DESTINATION, 17, 20).to_be_bytes());
        assert_eq!(judge(&bytes, &[]), Verdict::Partial);
    }
}
