//! Segments of scripts: injected by the peer, or expected from the worker.
//!
//! One type serves both. In an injected segment, an unset field is absent or has its usual value. In an expected
//! segment, an unset field is not compared, except for the flags, the SACK blocks and the ECN bits, which must have
//! their usual values.

use super::wire::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};

/// Sequence number relative to the sender's initial sequence number: 0 is the SYN, 1 the first byte.
pub type Rel = i64;

/// Payload bytes of the standard segment. The peer's MSS is chosen to match.
pub const SEG: Rel = 1000;

/// Requirement on an option.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Want<T> {
    /// Unspecified: absent from an injected segment, not compared in an expected one.
    #[default]
    Any,
    Absent,
    /// Present with this value.
    Is(T),
}

impl<T> Want<T> {
    /// Returns the value of [`Want::Is`].
    pub fn value(self) -> Option<T> {
        match self {
            Want::Is(value) => Some(value),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// This many bytes of the sender's stream, at the segment's sequence number.
    Stream(Rel),
    /// This many bytes that differ from the stream. Their delivery fails the script.
    Junk(Rel),
}

impl Payload {
    pub fn len(&self) -> Rel {
        match *self {
            Payload::Stream(len) | Payload::Junk(len) => len,
        }
    }
}

/// Segment, created by the functions below.
#[derive(Debug, Clone)]
pub struct Seg {
    /// Port of the peer; `None` is the current port of the script.
    pub port: Option<u16>,
    pub flags: u8,
    /// Flags that are not compared.
    pub ignored_flags: u8,
    pub seq: Rel,
    /// True if `seq` and `ack` are absolute.
    pub absolute: bool,
    pub ack: Want<Rel>,
    pub payload: Payload,
    pub window: Option<u16>,
    pub urgent: u16,
    pub mss: Want<u16>,
    pub window_scale: Want<u8>,
    pub sack_permitted: Want<()>,
    /// TSval and TSecr.
    pub timestamp: Want<(u32, u32)>,
    /// Expected TSecr.
    pub echo: Option<u32>,
    /// SACK blocks: left and right edge.
    pub sack: Vec<(Rel, Rel)>,
    pub any_sack: bool,
    /// Raw options before the other options.
    pub raw_options: Vec<u8>,
    /// ECN bits of the IP header (RFC 3168 §5); `None` is not compared.
    pub ecn: Option<u8>,
    pub bad_checksum: bool,
}

fn segment(flags: u8, seq: Rel, ack: Option<Rel>) -> Seg {
    Seg {
        port: None,
        flags,
        ignored_flags: PSH,
        seq,
        absolute: false,
        ack: ack.map_or(Want::Absent, Want::Is),
        payload: Payload::Stream(0),
        window: None,
        urgent: 0,
        mss: Want::Any,
        window_scale: Want::Any,
        sack_permitted: Want::Any,
        timestamp: Want::Any,
        echo: None,
        sack: Vec::new(),
        any_sack: false,
        raw_options: Vec::new(),
        ecn: None,
        bad_checksum: false,
    }
}

pub fn syn(seq: Rel) -> Seg {
    segment(SYN, seq, None)
}

pub fn syn_ack(seq: Rel, ack: Rel) -> Seg {
    segment(SYN | ACK, seq, Some(ack))
}

pub fn ack(seq: Rel, ack: Rel) -> Seg {
    segment(ACK, seq, Some(ack))
}

/// Returns `len` bytes of the stream. Without [`Seg::ack`], an injected segment acknowledges 1 and an expected one may
/// acknowledge any number.
pub fn data(seq: Rel, len: Rel) -> Seg {
    Seg { payload: Payload::Stream(len), ack: Want::Any, ..segment(ACK, seq, None) }
}

/// Returns a FIN without data.
pub fn fin(seq: Rel, ack: Rel) -> Seg {
    segment(FIN | ACK, seq, Some(ack))
}

pub fn rst(seq: Rel) -> Seg {
    segment(RST, seq, None)
}

pub fn rst_ack(seq: Rel, ack: Rel) -> Seg {
    segment(RST | ACK, seq, Some(ack))
}

/// Returns the reset for a segment without ACK: `<SEQ=0><ACK=…><CTL=RST,ACK>` (RFC 9293 §3.10.7.1). `ack` is relative;
/// the sequence number is absolute 0.
pub fn refusal(ack: Rel) -> Seg {
    Seg { absolute: true, ..segment(RST | ACK, 0, Some(ack)) }
}

impl Seg {
    pub fn port(self, port: u16) -> Self {
        Seg { port: Some(port), ..self }
    }

    pub fn ack(self, ack: Rel) -> Self {
        Seg { flags: self.flags | ACK, ack: Want::Is(ack), ..self }
    }

    /// Accepts any acknowledgement number.
    pub fn any_ack(self) -> Self {
        Seg { ack: Want::Any, ..self }
    }

    /// Accepts any acknowledgement number, with or without the ACK bit.
    pub fn maybe_ack(self) -> Self {
        Seg { ignored_flags: self.ignored_flags | ACK, ack: Want::Any, ..self }
    }

    pub fn no_ack(self) -> Self {
        Seg { flags: self.flags & !ACK, ack: Want::Absent, ..self }
    }

    pub fn len(self, len: Rel) -> Self {
        Seg { payload: Payload::Stream(len), ..self }
    }

    /// Replaces the payload by bytes that differ from the stream.
    pub fn junk(self) -> Self {
        Seg { payload: Payload::Junk(self.payload.len()), ..self }
    }

    pub fn with(self, flags: u8) -> Self {
        Seg { flags: self.flags | flags, ignored_flags: self.ignored_flags & !flags, ..self }
    }

    /// Sets exactly these flags.
    pub fn flags(self, flags: u8) -> Self {
        Seg { flags, ignored_flags: 0, ..self }
    }

    pub fn push(self) -> Self {
        self.with(PSH)
    }

    pub fn with_fin(self) -> Self {
        self.with(FIN)
    }

    pub fn ece(self) -> Self {
        self.with(ECE)
    }

    pub fn cwr(self) -> Self {
        self.with(CWR)
    }

    /// Accepts any ECE, CWR and ECN bits.
    pub fn any_ecn(self) -> Self {
        Seg { ignored_flags: self.ignored_flags | ECE | CWR, ecn: None, ..self }
    }

    /// Adds URG with this pointer.
    pub fn urgent(self, pointer: u16) -> Self {
        Seg { urgent: pointer, ..self.with(URG) }
    }

    pub fn window(self, window: u16) -> Self {
        Seg { window: Some(window), ..self }
    }

    pub fn mss(self, mss: u16) -> Self {
        Seg { mss: Want::Is(mss), ..self }
    }

    pub fn sack_permitted(self) -> Self {
        Seg { sack_permitted: Want::Is(()), ..self }
    }

    /// Sets TSval and TSecr.
    pub fn timestamp(self, value: u32, echo: u32) -> Self {
        Seg { timestamp: Want::Is((value, echo)), ..self }
    }

    /// Omits timestamps even if negotiated.
    pub fn no_timestamp(self) -> Self {
        Seg { timestamp: Want::Absent, ..self }
    }

    /// Expects this TSecr.
    pub fn echoing(self, echo: u32) -> Self {
        Seg { echo: Some(echo), ..self }
    }

    pub fn sack(self, blocks: &[(Rel, Rel)]) -> Self {
        Seg { sack: blocks.to_vec(), ..self }
    }

    /// Accepts any SACK blocks.
    pub fn any_sack(self) -> Self {
        Seg { any_sack: true, ..self }
    }

    /// Adds raw bytes before the other options.
    pub fn raw_option(self, bytes: &[u8]) -> Self {
        Seg { raw_options: [&self.raw_options[..], bytes].concat(), ..self }
    }

    pub fn ecn(self, bits: u8) -> Self {
        Seg { ecn: Some(bits), ..self }
    }

    /// Corrupts the TCP checksum.
    pub fn bad_checksum(self) -> Self {
        Seg { bad_checksum: true, ..self }
    }

    pub fn sequence_len(&self) -> Rel {
        self.payload.len() + Rel::from(self.flags & SYN != 0) + Rel::from(self.flags & FIN != 0)
    }
}
