//! Session header of each datagram.

use crate::wire::Malformed;

/// Session header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramHeader {
    /// Session number of the receiver.
    pub session: u64,
    /// Number of the message, or of the next message if the datagram carries none.
    pub number: u32,
    /// A message follows.
    pub has_message: bool,
    /// Number of the first message that the sender of this datagram has not received.
    pub expected: u32,
    /// Number of messages from `expected` on that the sender can accept.
    pub room: u8,
    /// Later messages that were received: bit 0 is `expected` + 1.
    pub early: u32,
}

impl DatagramHeader {
    /// Encoded size in bytes.
    pub const LEN: usize = 24;
    /// Protocol name and version.
    pub(super) const MAGIC: [u8; 2] = *b"l\x01";

    pub fn write(&self, out: &mut [u8; Self::LEN]) {
        out[..2].copy_from_slice(&Self::MAGIC);
        out[2..4].copy_from_slice(&[self.has_message.into(), self.room]);
        out[4..12].copy_from_slice(&self.session.to_be_bytes());
        out[12..16].copy_from_slice(&self.number.to_be_bytes());
        out[16..20].copy_from_slice(&self.expected.to_be_bytes());
        out[20..].copy_from_slice(&self.early.to_be_bytes());
    }

    pub fn read(datagram: &[u8]) -> Result<Self, Malformed> {
        let (head, rest) = datagram.split_first_chunk::<{ Self::LEN }>().ok_or(Malformed)?;
        let (magic, head) = head.split_at(2);
        let (&[has_message @ (0 | 1), room], head) = head.split_first_chunk().ok_or(Malformed)? else {
            return Err(Malformed);
        };
        let (session, head) = head.split_first_chunk().ok_or(Malformed)?;
        let (number, head) = head.split_first_chunk().ok_or(Malformed)?;
        let (expected, early) = head.split_first_chunk().ok_or(Malformed)?;
        let header = DatagramHeader {
            session: u64::from_be_bytes(*session),
            number: u32::from_be_bytes(*number),
            has_message: has_message == 1,
            expected: u32::from_be_bytes(*expected),
            room,
            early: u32::from_be_bytes(*early.first_chunk().ok_or(Malformed)?),
        };
        let is_sensible = magic == Self::MAGIC && header.has_message != rest.is_empty();
        is_sensible.then_some(header).ok_or(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        for has_message in [false, true] {
            let header = DatagramHeader {
                session: 0x0123_4567_89ab_cdef,
                number: 0xfedc_ba98,
                has_message,
                expected: 0x7654_3210,
                room: 31,
                early: 0x8000_0001,
            };
            let mut bytes = [0; DatagramHeader::LEN];
            header.write(&mut bytes);
            assert_eq!(DatagramHeader::read(&bytes).is_ok(), !has_message);
            let with_message = [&bytes[..], b"x"].concat();
            assert_eq!(DatagramHeader::read(&with_message).is_ok(), has_message);
            let datagram = if has_message { &with_message } else { &bytes.to_vec() };
            assert_eq!(DatagramHeader::read(datagram), Ok(header));
            assert!(DatagramHeader::read(&datagram[..DatagramHeader::LEN - 1]).is_err());
        }
    }
}
