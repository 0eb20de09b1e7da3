//! Wire format of a connection.
//!
//! Both ends announce [`EndParams`] when connecting. Each message begins with a [`Header`]. The stream consists of
//! the bytes of `Data` messages and of the memory that `Offer`s refer to, in order.

/// Minimum buffers of an end: one is reserved for credit messages, and two used ones trigger a credit message.
pub(crate) const LEAST_BUFFERS: u16 = 3;

/// Header size in bytes.
pub(crate) const HEADER: usize = 8;
/// Maximum unread offers of one end.
pub(crate) const OFFERS: usize = 4;
/// Size of an offer message in bytes.
pub(crate) const OFFER: usize = HEADER + 16;

/// Message type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// Stream bytes follow.
    Data,
    /// Credits only.
    Credit,
    /// Stream bytes are to be read from the sender's memory, described by an [`Offer`].
    Offer,
    /// The oldest offer was read.
    Taken,
    /// End of stream.
    Finish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: MessageKind,
    /// Buffers that the sender has posted since its last message.
    pub credits: u16,
}

/// Memory to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    pub address: u64,
    pub rkey: u32,
    pub len: u32,
}

/// Malformed message of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed message from the peer")]
pub(crate) struct Malformed;

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER] {
        let kind = match self.kind {
            MessageKind::Data => 0,
            MessageKind::Credit => 1,
            MessageKind::Offer => 2,
            MessageKind::Taken => 3,
            MessageKind::Finish => 4,
        };
        let [high, low] = self.credits.to_be_bytes();
        [kind, 0, high, low, 0, 0, 0, 0]
    }

    pub fn read(message: &[u8]) -> Result<Header, Malformed> {
        let [kind, 0, high, low, 0, 0, 0, 0] = *message.first_chunk().ok_or(Malformed)? else { return Err(Malformed) };
        let kind = match kind {
            0 => MessageKind::Data,
            1 => MessageKind::Credit,
            2 => MessageKind::Offer,
            3 => MessageKind::Taken,
            4 => MessageKind::Finish,
            _ => return Err(Malformed),
        };
        let len = match kind {
            MessageKind::Data => HEADER + 1..=message.len(),
            MessageKind::Offer => OFFER..=OFFER,
            MessageKind::Credit | MessageKind::Taken | MessageKind::Finish => HEADER..=HEADER,
        };
        if !len.contains(&message.len()) {
            return Err(Malformed);
        }
        Ok(Header { kind, credits: u16::from_be_bytes([high, low]) })
    }
}

impl Offer {
    pub fn write(self, out: &mut [u8; OFFER - HEADER]) {
        out[..8].copy_from_slice(&self.address.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        out[12..].copy_from_slice(&self.len.to_be_bytes());
    }

    /// Parses the offer after a header.
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

/// Parameters of one end, announced when connecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndParams {
    /// Buffer size in bytes, which limits messages.
    pub buffer: u32,
    /// Posted buffers.
    pub credits: u16,
    /// Rendezvous is supported.
    pub takes_offers: bool,
}

impl EndParams {
    /// Encoded size in bytes.
    pub const LEN: usize = 16;
    /// Protocol name and version.
    const MAGIC: [u8; 8] = *b"lrrdma\x00\x01";
    /// Minimum buffer size: an offer must fit.
    const LEAST_BUFFER: u32 = 64;

    pub fn write(self) -> [u8; EndParams::LEN] {
        let mut bytes = [0; EndParams::LEN];
        bytes[..8].copy_from_slice(&EndParams::MAGIC);
        bytes[8..12].copy_from_slice(&self.buffer.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.credits.to_be_bytes());
        bytes[14] = self.takes_offers.into();
        bytes
    }

    /// Parses the start of `bytes`, which devices pad with zeros.
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

    const KINDS: [MessageKind; 5] =
        [MessageKind::Data, MessageKind::Credit, MessageKind::Offer, MessageKind::Taken, MessageKind::Finish];

    fn header(kind: MessageKind, credits: u16) -> [u8; HEADER] {
        Header { kind, credits }.to_bytes()
    }

    #[test]
    fn headers_round_trip() {
        for kind in KINDS {
            let rest: &[u8] = match kind {
                MessageKind::Data => b"x",
                MessageKind::Offer => &[0; OFFER - HEADER],
                _ => b"",
            };
            let message = [&header(kind, 0xfedc), rest].concat();
            assert_eq!(Header::read(&message), Ok(Header { kind, credits: 0xfedc }));
            // A different length is malformed, except for data.
            assert!(Header::read(&message[..message.len() - 1]).is_err());
            assert_eq!(Header::read(&[&message[..], b"x"].concat()).is_ok(), kind == MessageKind::Data);
        }
    }

    #[test]
    fn offers_and_end_params_round_trip() {
        let offer = Offer { address: 0x0123_4567_89ab_cdef, rkey: 0xfeed_beef, len: 1 << 20 };
        let mut message = [0; OFFER];
        offer.write(message.last_chunk_mut().unwrap());
        assert_eq!(Offer::read(&message), Ok(offer));
        let greeting = EndParams { buffer: 4096, credits: 64, takes_offers: true };
        assert_eq!(EndParams::read(&[&greeting.write()[..], &[0; 40]].concat()), Ok(greeting));
    }

    #[test]
    fn empty_or_wrapping_offer_is_malformed() {
        for (address, len) in [(u64::MAX, 1), (u64::MAX - 9, 11), (0, 0)] {
            let mut message = [0; OFFER];
            Offer { address, rkey: 1, len }.write(message.last_chunk_mut().unwrap());
            assert_eq!(Offer::read(&message), Err(Malformed));
        }
    }

    #[test]
    fn foreign_or_bufferless_end_params_are_malformed() {
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
        fn arbitrary_input_is_parsed_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Header { kind: MessageKind::Offer, .. }) = Header::read(&bytes) {
                let _ = Offer::read(&bytes);
            }
            let _ = EndParams::read(&bytes);
        }
    }
}
