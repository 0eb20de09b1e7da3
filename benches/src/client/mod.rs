//! A client that costs little: it knows no TCP, only how a flow that loses nothing goes on.
//!
//! What one connection needs is 16 bytes, so that a million of them do not push the server's state out of the caches.
//! Every header, every time stamp and every byte of the server's is checked, and anything unexpected ends the bench:
//! over a link in memory nothing is lost, late or out of order unless the server is wrong.
//!
//! The conversations are in modules of their own: [`echo`], [`messages`], [`connections`].

pub mod connections;
pub mod echo;
pub mod messages;
mod options;
mod pattern;
mod received;
mod segment;
mod tuples;
mod wrong;

#[cfg(test)]
mod tests;

pub use options::Agreed;
pub use tuples::Endpoints;
pub use wrong::Wrong;

use crate::client::received::Header;
use crate::client::segment::{Control, Outgoing};
use linerate_bypass::memory_nic::{MemoryNic, MemoryPacket};
use linerate_bypass::time::Instant;
use linerate_bypass::{BURST, Nic};
use std::ops::Range;

/// What one segment carries at an MTU of 1500 bytes, without TCP options (RFC 9293 §3.7.1).
pub const MAX_SEGMENT: usize = 1460;
/// What the time stamps take of that, padded to a multiple of four (RFC 7323 appendix A).
pub const TIMESTAMPS: usize = 12;

/// What the client is to be like.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Both ends' addresses.
    pub endpoints: Endpoints,
    /// Connections that there can be.
    pub flows: usize,
    /// Offer time stamps (RFC 7323). Window scaling and SACK are always offered.
    pub timestamps: bool,
    /// Compute and verify all checksums; otherwise the link claims to.
    pub software_checksum: bool,
}

/// One connection.
#[derive(Debug, Clone, Copy)]
struct Flow {
    /// The next sequence number that we send.
    sequence: u32,
    /// The next one that we expect.
    expected: u32,
    /// The time stamp that we sent last.
    stamp: u32,
    /// The time stamp that we received last.
    peer_stamp: u32,
}

/// The client's end of the link.
pub struct SyntheticClient {
    nic: MemoryNic,
    endpoints: Endpoints,
    timestamps: bool,
    software_checksum: bool,
    flows: Vec<Flow>,
    /// What the server has agreed to, with every connection the same.
    agreed: Option<Agreed>,
    now: Instant,
    outgoing: Vec<MemoryPacket>,
    received: Vec<MemoryPacket>,
    /// A chain in one piece.
    scratch: Vec<u8>,
}

impl SyntheticClient {
    /// A client on `nic` with no connection open.
    pub fn new(nic: MemoryNic, config: &ClientConfig) -> Self {
        // Written, so that all of it is there before anybody looks at the memory that is in use.
        let flow = |n: usize| Flow {
            sequence: (n as u32).wrapping_mul(0x9e37_79b9),
            expected: 0,
            stamp: options::stamp_origin(n),
            peer_stamp: 0,
        };
        SyntheticClient {
            nic,
            endpoints: config.endpoints,
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

    /// How many connections there can be.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Frames sent so far.
    pub fn sent(&self) -> u64 {
        self.nic.stats().tx_frames
    }

    /// Packets of our pool that are in use, by whomever.
    pub fn packets_held(&self) -> usize {
        self.nic.pool_capacity() - self.nic.pool_available()
    }

    /// What the server agreed to when the first connection was opened.
    pub fn agreed(&self) -> Option<Agreed> {
        self.agreed
    }

    /// The present, for the time stamps.
    pub fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Payload bytes that one segment of ours carries.
    pub fn segment_size(&self) -> usize {
        let agreed = self.agreed.unwrap_or_default();
        MAX_SEGMENT.min(agreed.segment_size.into()) - if agreed.timestamps { TIMESTAMPS } else { 0 }
    }

    /// Sends a SYN on each of `flows`.
    pub fn begin(&mut self, flows: Range<usize>) -> Result<(), Wrong> {
        for flow in flows {
            self.syn(flow)?;
        }
        self.flush()
    }

    /// Takes the SYN-ACKs in and completes those connections. Returns how many there were.
    pub fn complete(&mut self) -> Result<usize, Wrong> {
        let mut completed = 0;
        self.each(|client, header, _| {
            client.synchronized(&header)?;
            completed += 1;
            client.segment(Outgoing::control(header.flow, Control::Ack))
        })?;
        Ok(completed)
    }

    /// Puts a SYN of `flow` in line. A connection that was there before is followed by one further on in the sequence
    /// space, by which a server in TIME-WAIT knows it (RFC 9293 §3.10.7.4, RFC 6191 §2).
    fn syn(&mut self, flow: usize) -> Result<(), Wrong> {
        let state = &mut self.flows[flow];
        state.sequence = state.sequence.wrapping_add(1 << 17);
        (state.expected, state.peer_stamp) = (0, 0);
        self.segment(Outgoing::control(flow, Control::Syn))?;
        self.flows[flow].sequence = self.flows[flow].sequence.wrapping_add(1);
        Ok(())
    }

    /// Checks a SYN-ACK and notes what it says.
    fn synchronized(&mut self, header: &Header) -> Result<(), Wrong> {
        if !header.syn || header.fin || header.rst || header.payload_len > 0 {
            return Err(Wrong::Frame("not a SYN-ACK"));
        }
        let flow = &mut self.flows[header.flow];
        if header.acknowledged != flow.sequence {
            return Err(Wrong::Frame("a SYN-ACK that does not acknowledge the SYN"));
        }
        let agreed = header.agreed.with_offer(self.timestamps);
        if *self.agreed.get_or_insert(agreed) != agreed {
            return Err(Wrong::Frame("a SYN-ACK with other options than that of the first connection"));
        }
        flow.expected = header.sequence.wrapping_add(1);
        if let Some((stamp, _)) = header.timestamps {
            flow.peer_stamp = stamp;
        }
        self.check_timestamps(header)
    }

    /// Checks what holds for every segment of an established connection but its place and its payload.
    fn established(&mut self, header: &Header) -> Result<(), Wrong> {
        if header.syn || header.rst {
            return Err(Wrong::Frame("a SYN or RST on an established connection"));
        }
        self.check_timestamps(header)
    }

    /// RFC 7323 §3.2: once agreed upon they are on every segment. Ours come back (§4.3), theirs never go back (§5.4).
    fn check_timestamps(&mut self, header: &Header) -> Result<(), Wrong> {
        let agreed = self.agreed.is_some_and(|agreed| agreed.timestamps);
        let Some((stamp, echo)) = header.timestamps else {
            return if agreed { Err(Wrong::Frame("it lacks the time stamps agreed upon")) } else { Ok(()) };
        };
        if !agreed {
            return Err(Wrong::Frame("it has time stamps, which were not agreed upon"));
        }
        let flow = &mut self.flows[header.flow];
        if flow.stamp.wrapping_sub(echo) > options::STAMPS_PER_SECOND {
            return Err(Wrong::Frame("it echoes a time stamp that we did not send of late"));
        }
        if (stamp.wrapping_sub(flow.peer_stamp) as i32) < 0 {
            return Err(Wrong::Frame("its time stamp is older than the one before it"));
        }
        flow.peer_stamp = stamp;
        Ok(())
    }

    /// Gives `heed` every segment that has arrived, in order, then sends what it put in line. ARP is answered.
    fn each(
        &mut self,
        mut heed: impl FnMut(&mut Self, Header, &MemoryPacket) -> Result<(), Wrong>,
    ) -> Result<(), Wrong> {
        let mut received = std::mem::take(&mut self.received);
        while self.nic.rx_burst(&mut received) > 0 {
            for frame in received.drain(..) {
                if let Some(header) = self.header_of(&frame)? {
                    heed(self, header, &frame)?;
                }
            }
        }
        self.received = received;
        self.flush()
    }

    /// Sends what is in line.
    fn flush(&mut self) -> Result<(), Wrong> {
        while !self.outgoing.is_empty() {
            if self.nic.tx_burst(&mut self.outgoing) == 0 {
                return Err(Wrong::Full);
            }
        }
        if self.nic.stats().tx_dropped > 0 {
            return Err(Wrong::Unsendable);
        }
        Ok(())
    }
}
