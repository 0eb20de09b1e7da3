//! Segments as scripts write them: what the peer sends, and what the worker is expected to send.
//!
//! One type serves both. In a segment to be sent, what is not said is absent or ordinary; in an expected one, what is not
//! said is not looked at, except for the flags, the SACK blocks and the ECN bits, which must then be as ordinary.

use super::wire::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};

/// A number of the sequence space relative to the initial one of whoever counts in it: 0 is the SYN, 1 the first byte.
pub type Rel = i64;

/// Bytes of the standard segment of scripts: a peer's MSS is chosen so that segments carry this many.
pub const SEG: Rel = 1000;

/// What is said about an option.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Want<T> {
    /// Nothing. Not put into a segment to be sent.
    #[default]
    Any,
    /// It is not there.
    Absent,
    /// It is there, with this value.
    Is(T),
}

impl<T> Want<T> {
    /// The value, if one is said.
    pub fn value(self) -> Option<T> {
        match self {
            Want::Is(value) => Some(value),
            _ => None,
        }
    }
}

/// What a segment's payload is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// This many bytes of the sender's stream, the first of which has sequence number 1.
    Stream(Rel),
    /// This many bytes that are not of the stream: if they are ever delivered, the script fails.
    Junk(Rel),
}

impl Payload {
    /// How many bytes it is.
    pub fn len(&self) -> Rel {
        match *self {
            Payload::Stream(len) | Payload::Junk(len) => len,
        }
    }
}

/// A segment: see the functions that make one.
#[derive(Debug, Clone)]
pub struct Seg {
    /// The peer's port, if not the script's current one.
    pub port: Option<u16>,
    pub flags: u8,
    /// Flags that are not compared.
    pub ignored_flags: u8,
    pub seq: Rel,
    /// `seq` and `ack` are not relative.
    pub absolute: bool,
    pub ack: Want<Rel>,
    pub payload: Payload,
    pub window: Option<u16>,
    pub urgent: u16,
    pub mss: Want<u16>,
    pub window_scale: Want<u8>,
    pub sack_permitted: Want<()>,
    /// TSval and TSecr as on the wire.
    pub timestamp: Want<(u32, u32)>,
    /// TSecr as on the wire, to be expected.
    pub echo: Option<u32>,
    /// Blocks, left edge and right edge.
    pub sack: Vec<(Rel, Rel)>,
    pub any_sack: bool,
    /// Options as bytes: put in front of the others.
    pub raw_options: Vec<u8>,
    /// The ECN bits of the IP header (RFC 3168 §5); `None` is not compared.
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

/// A SYN.
pub fn syn(seq: Rel) -> Seg {
    segment(SYN, seq, None)
}

/// A SYN that acknowledges.
pub fn syn_ack(seq: Rel, ack: Rel) -> Seg {
    segment(SYN | ACK, seq, Some(ack))
}

/// An acknowledgement without data.
pub fn ack(seq: Rel, ack: Rel) -> Seg {
    segment(ACK, seq, Some(ack))
}

/// `len` bytes of the stream. Say with [`Seg::ack`] what it acknowledges: sent, it is 1 otherwise; expected, any.
pub fn data(seq: Rel, len: Rel) -> Seg {
    Seg { payload: Payload::Stream(len), ack: Want::Any, ..segment(ACK, seq, None) }
}

/// A FIN without data.
pub fn fin(seq: Rel, ack: Rel) -> Seg {
    segment(FIN | ACK, seq, Some(ack))
}

/// A reset without an acknowledgement.
pub fn rst(seq: Rel) -> Seg {
    segment(RST, seq, None)
}

/// A reset that acknowledges.
pub fn rst_ack(seq: Rel, ack: Rel) -> Seg {
    segment(RST | ACK, seq, Some(ack))
}

/// The reset for a segment that acknowledged nothing: `<SEQ=0><ACK=…><CTL=RST,ACK>` (RFC 9293 §3.10.7.1). The number
/// acknowledged is relative, the sequence number really 0.
pub fn refusal(ack: Rel) -> Seg {
    Seg { absolute: true, ..segment(RST | ACK, 0, Some(ack)) }
}

impl Seg {
    /// From or to this port of the peer.
    pub fn port(self, port: u16) -> Self {
        Seg { port: Some(port), ..self }
    }

    /// Acknowledging this.
    pub fn ack(self, ack: Rel) -> Self {
        Seg { flags: self.flags | ACK, ack: Want::Is(ack), ..self }
    }

    /// Whatever it acknowledges.
    pub fn any_ack(self) -> Self {
        Seg { ack: Want::Any, ..self }
    }

    /// With or without the ACK bit, whatever it acknowledges.
    pub fn maybe_ack(self) -> Self {
        Seg { ignored_flags: self.ignored_flags | ACK, ack: Want::Any, ..self }
    }

    /// Without the ACK bit.
    pub fn no_ack(self) -> Self {
        Seg { flags: self.flags & !ACK, ack: Want::Absent, ..self }
    }

    /// With this payload of the stream.
    pub fn len(self, len: Rel) -> Self {
        Seg { payload: Payload::Stream(len), ..self }
    }

    /// With as long a payload that is not of the stream.
    pub fn junk(self) -> Self {
        Seg { payload: Payload::Junk(self.payload.len()), ..self }
    }

    /// With these flags beside the others.
    pub fn with(self, flags: u8) -> Self {
        Seg { flags: self.flags | flags, ignored_flags: self.ignored_flags & !flags, ..self }
    }

    /// With exactly these flags.
    pub fn flags(self, flags: u8) -> Self {
        Seg { flags, ignored_flags: 0, ..self }
    }

    /// With PSH.
    pub fn push(self) -> Self {
        self.with(PSH)
    }

    /// With FIN.
    pub fn with_fin(self) -> Self {
        self.with(FIN)
    }

    /// With ECE.
    pub fn ece(self) -> Self {
        self.with(ECE)
    }

    /// With CWR.
    pub fn cwr(self) -> Self {
        self.with(CWR)
    }

    /// With or without ECE and CWR, and with any ECN bits.
    pub fn any_ecn(self) -> Self {
        Seg { ignored_flags: self.ignored_flags | ECE | CWR, ecn: None, ..self }
    }

    /// With URG and this pointer.
    pub fn urgent(self, pointer: u16) -> Self {
        Seg { urgent: pointer, ..self.with(URG) }
    }

    /// With this in the window field.
    pub fn window(self, window: u16) -> Self {
        Seg { window: Some(window), ..self }
    }

    /// With a maximum segment size.
    pub fn mss(self, mss: u16) -> Self {
        Seg { mss: Want::Is(mss), ..self }
    }

    /// With SACK-permitted.
    pub fn sack_permitted(self) -> Self {
        Seg { sack_permitted: Want::Is(()), ..self }
    }

    /// With these timestamps, as on the wire.
    pub fn timestamp(self, value: u32, echo: u32) -> Self {
        Seg { timestamp: Want::Is((value, echo)), ..self }
    }

    /// Without timestamps, whatever was negotiated.
    pub fn no_timestamp(self) -> Self {
        Seg { timestamp: Want::Absent, ..self }
    }

    /// Echoing this timestamp, as on the wire.
    pub fn echoing(self, echo: u32) -> Self {
        Seg { echo: Some(echo), ..self }
    }

    /// With these SACK blocks, in this order.
    pub fn sack(self, blocks: &[(Rel, Rel)]) -> Self {
        Seg { sack: blocks.to_vec(), ..self }
    }

    /// With whatever SACK blocks.
    pub fn any_sack(self) -> Self {
        Seg { any_sack: true, ..self }
    }

    /// With these bytes in front of the other options.
    pub fn raw_option(self, bytes: &[u8]) -> Self {
        Seg { raw_options: [&self.raw_options[..], bytes].concat(), ..self }
    }

    /// With these ECN bits in the IP header.
    pub fn ecn(self, bits: u8) -> Self {
        Seg { ecn: Some(bits), ..self }
    }

    /// With a wrong TCP checksum.
    pub fn bad_checksum(self) -> Self {
        Seg { bad_checksum: true, ..self }
    }

    /// The sequence numbers it takes up.
    pub fn sequence_len(&self) -> Rel {
        self.payload.len() + Rel::from(self.flags & SYN != 0) + Rel::from(self.flags & FIN != 0)
    }
}
