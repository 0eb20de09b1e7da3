//! Messages of many segments, one at a time on each connection, echoed in any number of segments.

use super::pattern::Pattern;
use super::segment::{Control, Outgoing};
use super::{BenchError, SyntheticClient};

/// Maximum message length: with all headers it fits into one IP packet.
pub const MAX_MESSAGE: usize = 65_000;

/// Segment counters by direction.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Segments {
    /// Segments with payload sent by the client. A TSO frame counts as one.
    pub data_sent: u64,
    /// Segments with payload sent by the server.
    pub data_received: u64,
    /// Pure acknowledgements sent by the client.
    pub acks_sent: u64,
    /// Pure acknowledgements sent by the server.
    pub acks_received: u64,
}

/// Message in progress on a connection.
#[derive(Debug, Clone, Copy)]
struct Message {
    flow: usize,
    /// Sequence number of its first byte.
    sequence: u32,
    /// Bytes echoed so far.
    received: usize,
    /// Echoed segments that are not acknowledged yet.
    unacknowledged: usize,
}

/// Messages of a client on connections in turn.
#[derive(Debug)]
pub struct Messages {
    order: Vec<u32>,
    next: usize,
    size: usize,
    /// True if a message is sent as one frame, as a port with LRO delivers it.
    merged: bool,
    outstanding: Vec<Message>,
    segments: Segments,
}

impl Messages {
    /// Creates messages of `size` bytes on `flows` connections.
    ///
    /// # Panics
    /// If there are no connections, or `size` is not within 1 and [`MAX_MESSAGE`].
    pub fn new(flows: usize, size: usize, merged: bool) -> Self {
        assert!(flows > 0 && (1..=MAX_MESSAGE).contains(&size));
        let mut order: Vec<u32> = (0..flows as u32).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut order);
        Messages { order, next: 0, size, merged, outstanding: Vec::new(), segments: Segments::default() }
    }

    /// Returns the number of connections.
    pub fn flows(&self) -> usize {
        self.order.len()
    }

    /// Returns the number of frames per message.
    pub fn frames(&self, client: &SyntheticClient) -> usize {
        if self.merged { 1 } else { self.size.div_ceil(client.segment_size()) }
    }

    /// Returns the segment counters.
    pub fn segments(&self) -> Segments {
        self.segments
    }

    /// Sends the next `n` messages, on as many connections.
    pub fn send(&mut self, client: &mut SyntheticClient, n: usize) -> Result<(), BenchError> {
        for _ in 0..n {
            let flow = self.order[self.next] as usize;
            self.next = (self.next + 1) % self.order.len();
            let sequence = client.flows[flow].sequence;
            let step = if self.merged { self.size } else { client.segment_size() };
            for offset in (0..self.size).step_by(step) {
                let len = step.min(self.size - offset);
                client.segment(Outgoing::data(flow, Pattern::new(flow, sequence), offset, len))?;
                client.flows[flow].sequence = client.flows[flow].sequence.wrapping_add(len as u32);
                self.segments.data_sent += 1;
            }
            self.outstanding.push(Message { flow, sequence, received: 0, unacknowledged: 0 });
        }
        client.flush()
    }

    /// Receives, checks and acknowledges echoes. Returns the number of completed messages.
    pub fn check(&mut self, client: &mut SyntheticClient) -> Result<usize, BenchError> {
        let mut complete = 0;
        let Messages { outstanding, segments, size, .. } = self;
        client.each(|client, header, frame| {
            client.established(&header)?;
            let at = outstanding.iter().position(|message| message.flow == header.flow);
            let message =
                at.map(|at| &mut outstanding[at]).ok_or(BenchError::Frame("no message is in progress there"))?;
            let flow = &mut client.flows[header.flow];
            if header.fin || flow.sequence.wrapping_sub(header.acknowledged) as usize > *size {
                return Err(BenchError::Frame("it acknowledges unsent data, or less than before"));
            }
            if header.payload_len == 0 {
                segments.acks_received += 1;
                return Ok(());
            }
            if header.sequence != flow.expected || header.payload_len > *size - message.received {
                return Err(BenchError::Frame("its sequence number does not continue the echo"));
            }
            if !header.carries(frame, Pattern::new(header.flow, message.sequence), message.received) {
                return Err(BenchError::Frame("other bytes came back than were sent"));
            }
            flow.expected = flow.expected.wrapping_add(header.payload_len as u32);
            message.received += header.payload_len;
            segments.data_received += 1;
            // RFC 5681 §4.2: every second full-sized segment, which a merged frame counts as.
            message.unacknowledged += header.payload_len.div_ceil(super::MAX_SEGMENT);
            let whole = message.received == *size;
            if whole {
                if header.acknowledged != flow.sequence {
                    return Err(BenchError::Frame("it echoes data without acknowledging it"));
                }
                if client.window(header.window) < *size {
                    return Err(BenchError::Frame("its window has no space for the next message"));
                }
                complete += 1;
            }
            if whole || message.unacknowledged >= 2 {
                message.unacknowledged = 0;
                segments.acks_sent += 1;
                client.segment(Outgoing::control(header.flow, Control::Ack))?;
            }
            if whole && let Some(at) = at {
                outstanding.swap_remove(at);
            }
            Ok(())
        })?;
        Ok(complete)
    }
}
