//! The frame header of memcached's UDP protocol, eight bytes in front of what each datagram carries ("UDP protocol" in
//! <https://github.com/memcached/memcached/blob/1.6.18/doc/protocol.txt>).
//!
//! A request is one datagram, and its answer as many as it takes. Where this differs from memcached 1.6.18:
//! - All answers to the requests in one datagram are one message, as the protocol says: memcached numbers the answer to each by
//!   itself, and each value of a `get` of several keys.
//! - An answer that takes more than [`MOST`] datagrams is an error instead. memcached sends any number.
//! - A datagram whose first line would be answered with `ERROR` is not answered. No answer begins with a line that is a request, so
//!   two servers can never be made to answer each other for ever.

/// Bytes of the header.
pub const HEADER: usize = 8;
/// Bytes of a datagram of an answer at most, its header among them, as many as memcached's: they fit into a frame of 1500 bytes.
pub const DATAGRAM: usize = 1400;
/// Datagrams of an answer at most. So no request, whoever sent it and from whatever address it seems to come, is answered with
/// more than `MOST * DATAGRAM` bytes.
pub const MOST: usize = 8;
/// Bytes of an answer at most.
pub const ANSWER: usize = MOST * (DATAGRAM - HEADER);

/// What the header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The request's name, which its answer has too; the client chooses it.
    pub id: u16,
    /// The number of this datagram in its message, from 0 on.
    pub sequence: u16,
    /// Datagrams of the message.
    pub total: u16,
}

impl Frame {
    /// The header that `datagram` begins with, and what follows it; `None` if there is not that much. What is reserved is not
    /// looked at, as memcached does not.
    #[inline]
    pub fn read(datagram: &[u8]) -> Option<(Frame, &[u8])> {
        let (header, rest) = datagram.split_first_chunk::<HEADER>()?;
        let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        Some((Frame { id: number(0), sequence: number(2), total: number(4) }, rest))
    }

    /// Its bytes.
    #[inline]
    pub fn bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        for (place, number) in bytes.chunks_exact_mut(2).zip([self.id, self.sequence, self.total]) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    /// That of the request `id`, which is one datagram.
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
    fn a_header_is_three_numbers_with_the_high_byte_first() {
        let frame = Frame { id: 0x0102, sequence: 3, total: 0x0405 };
        assert_eq!(frame.bytes(), [1, 2, 0, 3, 4, 5, 0, 0]);
        assert_eq!(Frame::read(&[1, 2, 0, 3, 4, 5, 9, 9, b'x']), Some((frame, &b"x"[..])));
        (0..HEADER).for_each(|len| assert_eq!(Frame::read(&[0; HEADER][..len]), None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm_and_mean_what_they_say(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            match Frame::read(&bytes) {
                None => prop_assert!(bytes.len() < HEADER),
                Some((frame, rest)) => {
                    prop_assert_eq!(rest, &bytes[HEADER..]);
                    prop_assert_eq!(&frame.bytes()[..6], &bytes[..6]);
                }
            }
        }

        #[test]
        fn what_is_written_is_read(id: u16, sequence: u16, total: u16, rest in proptest::collection::vec(any::<u8>(), 0..40)) {
            let frame = Frame { id, sequence, total };
            let datagram = [&frame.bytes()[..], &rest].concat();
            prop_assert_eq!(Frame::read(&datagram), Some((frame, &rest[..])));
        }
    }
}
