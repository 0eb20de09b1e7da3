//! Synthetic client of low cost: it implements no TCP, only the course of a flow without loss.
//!
//! A connection takes 16 bytes, so that a million of them do not evict the server's state from the caches. The client
//! checks every header, timestamp and byte of the server, and any deviation ends the bench: an in-memory link neither
//! loses, delays nor reorders frames.
//!
//! Conversations: [`echo`], [`messages`], [`connections`], and [`datagrams`] without a connection.

pub mod connections;
pub mod datagrams;
pub mod echo;
mod error;
pub mod messages;
mod options;
mod pattern;
mod received;
mod segment;
mod tuples;

#[cfg(test)]
mod tests;

pub use error::BenchError;
pub use options::Agreed;
pub use tuples::{SERVER, SERVER_MAC};

use crate::client::received::Header;
use crate::client::segment::{Control, Outgoing};
use linerate_bypass::memory_nic::{MemoryNic, MemoryPacket};
use linerate_bypass::{BURST, Nic};
use linerate_service::time::Instant;
use std::ops::Range;

/// Maximum payload of a segment at an MTU of 1500 bytes, without TCP options (RFC 9293 §3.7.1).
pub const MAX_SEGMENT: usize = 1460;
/// Maximum payload of a datagram over IPv4 at that MTU (RFC 768, RFC 791).
pub const MAX_DATAGRAM: usize = 1472;
/// Size of the padded timestamps option (RFC 7323 appendix A).
pub const TIMESTAMPS: usize = 12;

/// Configuration of the client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Maximum number of connections.
    pub flows: usize,
    /// Offers timestamps (RFC 7323). Window scaling and SACK are always offered.
    pub timestamps: bool,
    /// Computes and verifies checksums in software; otherwise the link reports them as good.
    pub software_checksum: bool,
}

/// One connection.
#[derive(Debug, Clone, Copy)]
struct Flow {
    /// Next sequence number to send.
    sequence: u32,
    /// Next expected sequence number.
    expected: u32,
    /// Last TSval sent.
    stamp: u32,
    /// Last TSval received.
    peer_stamp: u32,
}

/// Client's end of the link.
pub struct SyntheticClient {
    nic: MemoryNic,
    timestamps: bool,
    software_checksum: bool,
    flows: Vec<Flow>,
    /// Options agreed by the server, the same for every connection.
    agreed: Option<Agreed>,
    now: Instant,
    outgoing: Vec<MemoryPacket>,
    received: Vec<MemoryPacket>,
    /// Buffer that linearises a chain.
    scratch: Vec<u8>,
}

impl SyntheticClient {
    /// Creates a client on `nic` without connections.
    pub fn new(nic: MemoryNic, config: &ClientConfig) -> Self {
        // Written to, so that it is resident before memory is measured.
        let flow = |n: usize| Flow {
            sequence: (n as u32).wrapping_mul(0x9e37_79b9),
            expected: 0,
            stamp: options::stamp_origin(n),
            peer_stamp: 0,
        };
        SyntheticClient {
            nic,
            timestamps: config.timestamps,
            software_checksum: config.software_checksum,
            flows: (0..config.flows).map(flow).collect(),
            agreed: None,
            now: Instant::ZERO,
            outgoing: Vec::with_capacity(BURST),
            received: Vec::with_capacity(BURST),
            scratch: Vec::new(),
        }
    }

    /// Returns the maximum number of connections.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Returns the number of frames sent.
    pub fn sent(&self) -> u64 {
        self.nic.stats().tx_frames
    }

    /// Returns the number of packets of the client's pool that are in use at either end.
    pub fn packets_held(&self) -> usize {
        self.nic.pool_capacity() - self.nic.pool_available()
    }

    /// Returns the options that the server agreed to on the first connection.
    pub fn agreed(&self) -> Option<Agreed> {
        self.agreed
    }

    /// Sets the current time, for timestamps.
    pub fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Returns the maximum payload of a segment from the client.
    pub fn segment_size(&self) -> usize {
        let agreed = self.agreed.unwrap_or_default();
        MAX_SEGMENT.min(agreed.segment_size.into()) - if agreed.timestamps { TIMESTAMPS } else { 0 }
    }

    /// Sends a SYN on each of `flows`.
    pub fn begin(&mut self, flows: Range<usize>) -> Result<(), BenchError> {
        for flow in flows {
            self.syn(flow)?;
        }
        self.flush()
    }

    /// Receives SYN-ACKs and completes their handshakes. Returns their number.
    pub fn complete(&mut self) -> Result<usize, BenchError> {
        let mut completed = 0;
        self.each(|client, header, _| {
            client.synchronized(&header)?;
            completed += 1;
            client.segment(Outgoing::control(header.flow, Control::Ack))
        })?;
        Ok(completed)
    }

    /// Queues a SYN of `flow`. A new incarnation has a higher sequence number, which a server in TIME-WAIT accepts (RFC
    /// 9293 §3.10.7.4, RFC 6191 §2).
    fn syn(&mut self, flow: usize) -> Result<(), BenchError> {
        let state = &mut self.flows[flow];
        state.sequence = state.sequence.wrapping_add(1 << 17);
        (state.expected, state.peer_stamp) = (0, 0);
        self.segment(Outgoing::control(flow, Control::Syn))?;
        self.flows[flow].sequence = self.flows[flow].sequence.wrapping_add(1);
        Ok(())
    }

    /// Checks a SYN-ACK and records its options.
    fn synchronized(&mut self, header: &Header) -> Result<(), BenchError> {
        if !header.syn || header.fin || header.rst || header.payload_len > 0 {
            return Err(BenchError::Frame("not a SYN-ACK"));
        }
        let flow = &mut self.flows[header.flow];
        if header.acknowledged != flow.sequence {
            return Err(BenchError::Frame("a SYN-ACK that does not acknowledge the SYN"));
        }
        let agreed = header.agreed.with_offer(self.timestamps);
        if *self.agreed.get_or_insert(agreed) != agreed {
            return Err(BenchError::Frame("a SYN-ACK with options that differ from the first connection's"));
        }
        flow.expected = header.sequence.wrapping_add(1);
        if let Some((stamp, _)) = header.timestamps {
            flow.peer_stamp = stamp;
        }
        self.check_timestamps(header)
    }

    /// Checks a segment of an established connection, except its sequence number and payload.
    fn established(&mut self, header: &Header) -> Result<(), BenchError> {
        if header.syn || header.rst {
            return Err(BenchError::Frame("a SYN or RST on an established connection"));
        }
        self.check_timestamps(header)
    }

    /// Checks timestamps. RFC 7323 §3.2: once agreed they are on every segment. The server echoes the client's (§4.3),
    /// and the server's own never decrease (§5.4).
    fn check_timestamps(&mut self, header: &Header) -> Result<(), BenchError> {
        let agreed = self.agreed.is_some_and(|agreed| agreed.timestamps);
        let Some((stamp, echo)) = header.timestamps else {
            return if agreed { Err(BenchError::Frame("it lacks the agreed timestamps")) } else { Ok(()) };
        };
        if !agreed {
            return Err(BenchError::Frame("it has timestamps without agreement"));
        }
        let flow = &mut self.flows[header.flow];
        if flow.stamp.wrapping_sub(echo) > options::STAMPS_PER_SECOND {
            return Err(BenchError::Frame("it echoes a timestamp that was not sent recently"));
        }
        if (stamp.wrapping_sub(flow.peer_stamp) as i32) < 0 {
            return Err(BenchError::Frame("its timestamp is older than the one before it"));
        }
        flow.peer_stamp = stamp;
        Ok(())
    }

    /// Calls `handle` for every received segment in order, then sends the queued segments. ARP is answered.
    fn each(
        &mut self,
        mut handle: impl FnMut(&mut Self, Header, &MemoryPacket) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let mut received = std::mem::take(&mut self.received);
        while self.nic.rx_burst(&mut received) > 0 {
            for frame in received.drain(..) {
                if let Some(header) = self.header_of(&frame)? {
                    handle(self, header, &frame)?;
                }
            }
        }
        self.received = received;
        self.flush()
    }

    /// Sends the queued segments.
    fn flush(&mut self) -> Result<(), BenchError> {
        while !self.outgoing.is_empty() {
            if self.nic.tx_burst(&mut self.outgoing) == 0 {
                return Err(BenchError::Full);
            }
        }
        if self.nic.stats().tx_dropped > 0 {
            return Err(BenchError::Unsendable);
        }
        Ok(())
    }
}
