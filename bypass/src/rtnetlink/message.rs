//! Netlink messages and their attributes (netlink(7)).

/// Length of a message's header.
const HEADER: usize = 16;
/// Length of an attribute's header.
const ATTRIBUTE: usize = 4;
/// Flags of an attribute's type: nested, and in network byte order.
const TYPE_FLAGS: u16 = 0xc000;

/// Request under construction.
pub(crate) struct Request(Vec<u8>);

impl Request {
    /// Creates a request of type `kind` with a header `body` of its family.
    pub fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(body);
        Request(bytes)
    }

    /// Appends an attribute.
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = (ATTRIBUTE + value.len()) as u16;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Returns the bytes of the request, with additional `flags` and its sequence number.
    pub fn finish(mut self, flags: u16, sequence: u32) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        let flags = u16::from_ne_bytes([self.0[6], self.0[7]]) | flags;
        self.0[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    /// Header of the family, and attributes.
    pub body: &'a [u8],
}

/// Returns the messages in `bytes`, up to the first malformed one.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let length = word(header, 0)? as usize;
        let body = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind: half(header, 4)?, flags: half(header, 6)?, sequence: word(header, 8)?, body })
    })
}

/// Returns the attributes in `bytes` with their types, up to the first malformed one.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(half(bytes, 0)?);
        let kind = half(bytes, 2)? & !TYPE_FLAGS;
        let value = bytes.get(ATTRIBUTE..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns the 16-bit value at `offset`.
pub(super) fn half(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u16::from_ne_bytes(*chunk))
}

/// Returns the 32-bit value at `offset`.
pub(super) fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk))
}
