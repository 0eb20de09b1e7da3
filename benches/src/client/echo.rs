//! Requests of one segment, one at a time on each connection, answered by one segment that acknowledges it.

use super::pattern::Pattern;
use super::segment::{Control, Outgoing};
use super::{SyntheticClient, Wrong};
use std::ops::Range;

/// How the client acknowledges an echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Acks {
    /// By the next request on its connection. Until then a server that sends what it received without a copy holds it,
    /// so there must be a packet for every connection.
    WithRequest,
    /// By a segment of its own, at once.
    Alone,
}

/// The requests of a client: the connections take turns.
#[derive(Debug)]
pub struct Requests {
    /// The connections in the order in which they are used: mixed, so that neither end profits from their lying in a
    /// row.
    order: Vec<u32>,
    next: usize,
    size: usize,
    acks: Acks,
}

impl Requests {
    /// Requests of `size` bytes on `flows`, whose echoes are acknowledged so.
    ///
    /// # Panics
    /// If there are no flows or no bytes.
    pub fn new(flows: Range<usize>, size: usize, acks: Acks) -> Self {
        assert!(!flows.is_empty() && size > 0);
        let mut order: Vec<u32> = flows.map(|flow| flow as u32).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut order);
        Requests { order, next: 0, size, acks }
    }

    /// Connections that they are made on.
    pub fn flows(&self) -> usize {
        self.order.len()
    }

    /// How the echoes are acknowledged.
    pub fn acks(&self) -> Acks {
        self.acks
    }

    /// Sends the next `n` requests, on as many connections in turn.
    pub fn send(&mut self, client: &mut SyntheticClient, n: usize) -> Result<(), Wrong> {
        if self.size > client.segment_size() {
            return Err(Wrong::TooLong { size: self.size, most: client.segment_size() });
        }
        for _ in 0..n {
            let flow = self.order[self.next] as usize;
            self.next = (self.next + 1) % self.order.len();
            let sequence = client.flows[flow].sequence;
            client.segment(Outgoing::data(flow, Pattern::new(flow, sequence), 0, self.size))?;
            client.flows[flow].sequence = sequence.wrapping_add(self.size as u32);
        }
        client.flush()
    }

    /// Takes what has been answered in, checks it, acknowledges it if that is not for the next request, and returns how
    /// many answers there were.
    pub fn check(&mut self, client: &mut SyntheticClient) -> Result<usize, Wrong> {
        let mut answers = 0;
        client.each(|client, header, frame| {
            client.established(&header)?;
            let flow = &mut client.flows[header.flow];
            if header.fin || header.acknowledged != flow.sequence {
                return Err(Wrong::Frame("it does not acknowledge the request"));
            }
            // RFC 7323 §4.3: the request was the last segment in sequence, so it is its time stamp that comes back.
            if header.timestamps.is_some_and(|(_, echo)| echo != flow.stamp) {
                return Err(Wrong::Frame("it echoes another time stamp than the request's"));
            }
            if header.sequence != flow.expected || header.payload_len != self.size {
                return Err(Wrong::Frame("it is not where or not as long as the echo should be"));
            }
            let sequence = flow.sequence.wrapping_sub(self.size as u32);
            if !header.carries(frame, Pattern::new(header.flow, sequence), 0) {
                return Err(Wrong::Frame("other bytes came back than were sent"));
            }
            flow.expected = flow.expected.wrapping_add(self.size as u32);
            answers += 1;
            match self.acks {
                Acks::WithRequest => Ok(()),
                Acks::Alone => client.segment(Outgoing::control(header.flow, Control::Ack)),
            }
        })?;
        Ok(answers)
    }
}
