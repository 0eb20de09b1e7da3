//! What the two ends of a connection say to each other: a header, and what follows it.
//!
//! A connection is asked for, and accepted, with a [`EndParams`]. From then on each message begins with a [`Header`]. A stream's
//! bytes are those of its `Data` messages and those that its `Offer`s lead to, in order.

use crate::connection::credit::LEAST_BUFFERS;

/// Bytes of a header.
pub(crate) const HEADER: usize = 8;
/// Offers of one end at a time that the other has not taken.
pub(crate) const OFFERS: usize = 4;
/// Bytes of an offer, with its header.
pub(crate) const OFFER: usize = HEADER + 16;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes of the stream follow.
    Data,
    /// Nothing but credits.
    Credit,
    /// Bytes of the stream are to be read from the sender's memory: an [`Offer`] follows.
    Offer,
    /// The first offer that was not taken yet has been read.
    Taken,
    /// The stream has come to its end.
    Finish,
    /// From now on messages can be written to a ring: an [`Offer`] of all of it follows. Its slots are as long as buffers, and as many
    /// as the credits that there were at first.
    Ring,
}

/// What each message begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    /// Buffers that the sender has posted since it last said so.
    pub credits: u16,
}

/// Where bytes are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    pub address: u64,
    pub rkey: u32,
    pub len: u32,
}

/// What a peer sent makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer's message makes no sense")]
pub(crate) struct Malformed;

impl Header {
    pub fn write(self, place: &mut [u8; HEADER]) {
        let kind = match self.kind {
            Kind::Data => 0,
            Kind::Credit => 1,
            Kind::Offer => 2,
            Kind::Taken => 3,
            Kind::Finish => 4,
            Kind::Ring => 5,
        };
        let [high, low] = self.credits.to_be_bytes();
        *place = [kind, 0, high, low, 0, 0, 0, 0];
    }

    pub fn read(message: &[u8]) -> Result<Header, Malformed> {
        let [kind, 0, high, low, 0, 0, 0, 0] = *message.first_chunk().ok_or(Malformed)? else { return Err(Malformed) };
        let kind = match kind {
            0 => Kind::Data,
            1 => Kind::Credit,
            2 => Kind::Offer,
            3 => Kind::Taken,
            4 => Kind::Finish,
            5 => Kind::Ring,
            _ => return Err(Malformed),
        };
        let len = match kind {
            Kind::Data => HEADER + 1..=message.len(),
            Kind::Offer | Kind::Ring => OFFER..=OFFER,
            Kind::Credit | Kind::Taken | Kind::Finish => HEADER..=HEADER,
        };
        if !len.contains(&message.len()) {
            return Err(Malformed);
        }
        Ok(Header { kind, credits: u16::from_be_bytes([high, low]) })
    }
}

impl Offer {
    pub fn write(self, place: &mut [u8; OFFER - HEADER]) {
        place[..8].copy_from_slice(&self.address.to_be_bytes());
        place[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        place[12..].copy_from_slice(&self.len.to_be_bytes());
    }

    /// The offer behind a header.
    pub fn read(message: &[u8]) -> Result<Offer, Malformed> {
        let rest = message.get(HEADER..).ok_or(Malformed)?;
        let (address, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let (key, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let (len, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let offer = Offer {
            address: u64::from_be_bytes(*address),
            rkey: u32::from_be_bytes(*key),
            len: u32::from_be_bytes(*len),
        };
        let is_sensible = rest.is_empty() && offer.len > 0 && offer.address.checked_add(offer.len.into()).is_some();
        is_sensible.then_some(offer).ok_or(Malformed)
    }
}

/// What an end says of itself when a connection is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndParams {
    /// Bytes of a buffer, which no message is longer than.
    pub buffer: u32,
    /// Buffers that it has posted.
    pub credits: u16,
    /// Whether it reads what it is offered.
    pub takes_offers: bool,
}

impl EndParams {
    /// Bytes of it.
    pub const LEN: usize = 16;
    /// The first bytes: who speaks, and which version.
    const MAGIC: [u8; 8] = *b"lrrdma\x00\x01";
    /// The shortest buffer there may be: an offer has to fit.
    const LEAST_BUFFER: u32 = 64;

    pub fn write(self) -> [u8; EndParams::LEN] {
        let mut bytes = [0; EndParams::LEN];
        bytes[..8].copy_from_slice(&EndParams::MAGIC);
        bytes[8..12].copy_from_slice(&self.buffer.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.credits.to_be_bytes());
        bytes[14] = self.takes_offers.into();
        bytes
    }

    /// The greeting at the beginning of `bytes`, which devices fill with zeros.
    pub fn read(bytes: &[u8]) -> Result<EndParams, Malformed> {
        let bytes: &[u8; EndParams::LEN] = bytes.first_chunk().ok_or(Malformed)?;
        let (magic, rest) = bytes.split_at(8);
        let [b0, b1, b2, b3, c0, c1, offers @ (0 | 1), 0] = *rest else { return Err(Malformed) };
        let greeting = EndParams {
            buffer: u32::from_be_bytes([b0, b1, b2, b3]),
            credits: u16::from_be_bytes([c0, c1]),
            takes_offers: offers == 1,
        };
        let is_sensible = magic == EndParams::MAGIC
            && greeting.buffer >= EndParams::LEAST_BUFFER
            && greeting.credits >= LEAST_BUFFERS;
        is_sensible.then_some(greeting).ok_or(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [Kind; 6] = [Kind::Data, Kind::Credit, Kind::Offer, Kind::Taken, Kind::Finish, Kind::Ring];

    fn header(kind: Kind, credits: u16) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        Header { kind, credits }.write(&mut bytes);
        bytes
    }

    #[test]
    fn headers_are_read_as_they_were_written() {
        for kind in KINDS {
            let rest: &[u8] = match kind {
                Kind::Data => b"x",
                Kind::Offer | Kind::Ring => &[0; OFFER - HEADER],
                _ => b"",
            };
            let message = [&header(kind, 0xfedc), rest].concat();
            assert_eq!(Header::read(&message), Ok(Header { kind, credits: 0xfedc }));
            // One byte less or more is another thing, but for data.
            assert!(Header::read(&message[..message.len() - 1]).is_err());
            assert_eq!(Header::read(&[&message[..], b"x"].concat()).is_ok(), kind == Kind::Data);
        }
    }

    #[test]
    fn offers_and_greetings_are_read_as_they_were_written() {
        let offer = Offer { address: 0x0123_4567_89ab_cdef, rkey: 0xfeed_beef, len: 1 << 20 };
        let mut message = [0; OFFER];
        offer.write(message.last_chunk_mut().unwrap());
        assert_eq!(Offer::read(&message), Ok(offer));
        let greeting = EndParams { buffer: 4096, credits: 64, takes_offers: true };
        assert_eq!(EndParams::read(&[&greeting.write()[..], &[0; 40]].concat()), Ok(greeting));
    }

    #[test]
    fn an_offer_that_goes_round_the_end_of_memory_or_is_empty_makes_no_sense() {
        for (address, len) in [(u64::MAX, 1), (u64::MAX - 9, 11), (0, 0)] {
            let mut message = [0; OFFER];
            Offer { address, rkey: 1, len }.write(message.last_chunk_mut().unwrap());
            assert_eq!(Offer::read(&message), Err(Malformed));
        }
    }

    #[test]
    fn a_greeting_of_another_program_or_of_an_end_without_buffers_makes_no_sense() {
        let greeting = EndParams { buffer: 4096, credits: 64, takes_offers: false };
        let mut other = greeting.write();
        other[7] += 1;
        assert_eq!(EndParams::read(&other), Err(Malformed));
        assert_eq!(EndParams::read(&[0; 56]), Err(Malformed));
        assert_eq!(EndParams::read(b"lrrdma"), Err(Malformed));
        assert_eq!(EndParams::read(&EndParams { credits: LEAST_BUFFERS - 1, ..greeting }.write()), Err(Malformed));
        assert_eq!(EndParams::read(&EndParams { buffer: 63, ..greeting }.write()), Err(Malformed));
    }

    proptest! {
        #[test]
        fn whatever_a_peer_sends_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Header { kind: Kind::Offer | Kind::Ring, .. }) = Header::read(&bytes) {
                let _ = Offer::read(&bytes);
            }
            let _ = EndParams::read(&bytes);
        }
    }
}
