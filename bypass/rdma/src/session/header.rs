//! What each datagram says of its session, in front of its message.

use crate::connection::wire::Malformed;

/// What each datagram begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramHeader {
    /// What the receiver calls the session.
    pub session: u64,
    /// The number of its message; of the next, if it has none.
    pub number: u32,
    /// Whether there is one.
    pub has_message: bool,
    /// The number of the first message that has not come to the sender.
    pub expected: u32,
    /// For how many messages from that one on the sender has room.
    pub room: u8,
    /// Those behind it that have: bit 0 is the one after it.
    pub early: u32,
}

impl DatagramHeader {
    /// Bytes of it.
    pub const LEN: usize = 24;
    /// The first bytes: whose it is, and which version.
    pub(super) const MAGIC: [u8; 2] = *b"l\x01";

    pub fn write(&self, place: &mut [u8; Self::LEN]) {
        place[..2].copy_from_slice(&Self::MAGIC);
        place[2..4].copy_from_slice(&[self.has_message.into(), self.room]);
        place[4..12].copy_from_slice(&self.session.to_be_bytes());
        place[12..16].copy_from_slice(&self.number.to_be_bytes());
        place[16..20].copy_from_slice(&self.expected.to_be_bytes());
        place[20..].copy_from_slice(&self.early.to_be_bytes());
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
    fn headers_are_read_as_they_were_written() {
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
