//! Frame header of memcached's UDP protocol: eight bytes at the start of each datagram ("UDP protocol" in
//! <https://github.com/memcached/memcached/blob/1.6.18/doc/protocol.txt>).
//!
//! A request is one datagram. Its reply is as many as necessary. Differences from memcached 1.6.18:
//! - All replies to the requests of a datagram form one message, as the protocol document says. memcached numbers the
//!   replies to each request separately, and each value of a `get` of several keys.
//! - A reply that takes more than [`MAX_DATAGRAMS`] datagrams is replaced by an error. memcached sends any number.
//! - A datagram whose first line would get the reply `ERROR` gets no reply. No reply starts with a line that is a
//!   request, so two servers cannot be made to reply to each other for ever.

pub const HEADER: usize = 8;
/// Length limit of a reply datagram including its header, the same as in memcached: it fits into an Ethernet frame of
/// 1500 bytes.
pub const DATAGRAM: usize = 1400;
/// Limit of datagrams per reply. A request, possibly with a forged source address, causes at most `MAX_DATAGRAMS *
/// DATAGRAM` bytes.
pub const MAX_DATAGRAMS: usize = 8;
/// Limit of reply bytes.
pub const MAX_REPLY: usize = MAX_DATAGRAMS * (DATAGRAM - HEADER);

/// Frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Request id, chosen by the client and repeated in the reply.
    pub id: u16,
    /// Sequence number of the datagram in its message, from 0.
    pub sequence: u16,
    /// Number of datagrams in the message.
    pub total: u16,
}

impl Frame {
    /// Parses the header of `datagram`. Returns it with the rest, or `None` if the datagram is too short. The reserved
    /// field is ignored, as in memcached.
    #[inline]
    pub fn read(datagram: &[u8]) -> Option<(Frame, &[u8])> {
        let (header, rest) = datagram.split_first_chunk::<HEADER>()?;
        let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        Some((Frame { id: number(0), sequence: number(2), total: number(4) }, rest))
    }

    #[inline]
    pub fn bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        for (field, number) in bytes.chunks_exact_mut(2).zip([self.id, self.sequence, self.total]) {
            field.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    /// Returns the header of the request `id`, which is one datagram.
    #[inline]
    pub fn request(id: u16) -> Frame {
        Frame { id, sequence: 0, total: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn header_is_three_big_endian_numbers() {
        let frame = Frame { id: 0x0102, sequence: 3, total: 0x0405 };
        assert_eq!(frame.bytes(), [1, 2, 0, 3, 4, 5, 0, 0]);
        assert_eq!(Frame::read(&[1, 2, 0, 3, 4, 5, 9, 9, b'x']), Some((frame, &b"x"[..])));
        (0..HEADER).for_each(|len| assert_eq!(Frame::read(&[0; HEADER][..len]), None));
    }

    proptest! {
        #[test]
        fn any_datagram_is_parsed_safely(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            match Frame::read(&bytes) {
                None => prop_assert!(bytes.len() < HEADER),
                Some((frame, rest)) => {
                    prop_assert_eq!(rest, &bytes[HEADER..]);
                    prop_assert_eq!(&frame.bytes()[..6], &bytes[..6]);
                }
            }
        }

        #[test]
        fn encoded_header_is_parsed(id: u16, sequence: u16, total: u16, rest in proptest::collection::vec(any::<u8>(), 0..40)) {
            let frame = Frame { id, sequence, total };
            let datagram = [&frame.bytes()[..], &rest].concat();
            prop_assert_eq!(Frame::read(&datagram), Some((frame, &rest[..])));
        }
    }
}
