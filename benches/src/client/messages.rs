//! Messages of many segments, one at a time on each connection, echoed in as many as the server likes.

use super::pattern::Pattern;
use super::segment::{Control, Outgoing};
use super::{SyntheticClient, Wrong};

/// The longest message: with all headers it fits in one IP packet.
pub const MAX_MESSAGE: usize = 65_000;

/// How many segments went which way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Segments {
    /// Segments with payload that the client sent. A frame that the port was to cut is one.
    pub data_sent: u64,
    /// Segments with payload that the server sent.
    pub data_received: u64,
    /// Acknowledgements alone that the client sent.
    pub acks_sent: u64,
    /// Acknowledgements alone that the server sent.
    pub acks_received: u64,
}

/// The message that is under way on a connection.
#[derive(Debug, Clone, Copy)]
struct Message {
    flow: usize,
    /// Where it begins in our stream.
    sequence: u32,
    /// Bytes of it that came back.
    received: usize,
    /// Segments that came back and were not acknowledged.
    unacknowledged: usize,
}

/// The messages of a client: the connections take turns.
#[derive(Debug)]
pub struct Messages {
    order: Vec<u32>,
    next: usize,
    size: usize,
    /// Send a message as one frame, as a port that merges segments delivers it.
    merged: bool,
    under_way: Vec<Message>,
    segments: Segments,
}

impl Messages {
    /// Messages of `size` bytes on `flows` connections.
    ///
    /// # Panics
    /// If there are no connections, or `size` is not within 1 and [`MAX_MESSAGE`].
    pub fn new(flows: usize, size: usize, merged: bool) -> Self {
        assert!(flows > 0 && (1..=MAX_MESSAGE).contains(&size));
        let mut order: Vec<u32> = (0..flows as u32).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut order);
        Messages { order, next: 0, size, merged, under_way: Vec::new(), segments: Segments::default() }
    }

    /// Connections that they are sent on.
    pub fn flows(&self) -> usize {
        self.order.len()
    }

    /// Frames that a message is sent in.
    pub fn frames(&self, client: &SyntheticClient) -> usize {
        if self.merged { 1 } else { self.size.div_ceil(client.segment_size()) }
    }

    /// What has gone which way so far.
    pub fn segments(&self) -> Segments {
        self.segments
    }

    /// Sends the next `n` messages, on as many connections in turn.
    pub fn send(&mut self, client: &mut SyntheticClient, n: usize) -> Result<(), Wrong> {
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
            self.under_way.push(Message { flow, sequence, received: 0, unacknowledged: 0 });
        }
        client.flush()
    }

    /// Takes in what has come back, checks and acknowledges it, and returns how many messages are back as a whole.
    pub fn check(&mut self, client: &mut SyntheticClient) -> Result<usize, Wrong> {
        let mut complete = 0;
        let Messages { under_way, segments, size, .. } = self;
        client.each(|client, header, frame| {
            client.established(&header)?;
            let at = under_way.iter().position(|message| message.flow == header.flow);
            let message = at.map(|at| &mut under_way[at]).ok_or(Wrong::Frame("no message is under way there"))?;
            let flow = &mut client.flows[header.flow];
            if header.fin || flow.sequence.wrapping_sub(header.acknowledged) as usize > *size {
                return Err(Wrong::Frame("it acknowledges what was not sent, or less than it did before"));
            }
            if header.payload_len == 0 {
                segments.acks_received += 1;
                return Ok(());
            }
            if header.sequence != flow.expected || header.payload_len > *size - message.received {
                return Err(Wrong::Frame("it is not where the echo should go on"));
            }
            if !header.carries(frame, Pattern::new(header.flow, message.sequence), message.received) {
                return Err(Wrong::Frame("other bytes came back than were sent"));
            }
            flow.expected = flow.expected.wrapping_add(header.payload_len as u32);
            message.received += header.payload_len;
            segments.data_received += 1;
            // RFC 5681 §4.2: every second full-sized segment, which a merged frame is worth.
            message.unacknowledged += header.payload_len.div_ceil(super::MAX_SEGMENT);
            let whole = message.received == *size;
            if whole {
                if header.acknowledged != flow.sequence {
                    return Err(Wrong::Frame("it echoes what it does not acknowledge"));
                }
                if client.window(header.window) < *size {
                    return Err(Wrong::Frame("it has no window for the next message"));
                }
                complete += 1;
            }
            if whole || message.unacknowledged >= 2 {
                message.unacknowledged = 0;
                segments.acks_sent += 1;
                client.segment(Outgoing::control(header.flow, Control::Ack))?;
            }
            if whole && let Some(at) = at {
                under_way.swap_remove(at);
            }
            Ok(())
        })?;
        Ok(complete)
    }
}
