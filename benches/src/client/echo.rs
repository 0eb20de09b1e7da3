//! Requests of one segment, one at a time on each connection, each answered by one segment that acknowledges it.

use super::pattern::Pattern;
use super::segment::{Control, Outgoing};
use super::{BenchError, SyntheticClient};
use std::ops::Range;

/// Acknowledgement of an echo by the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Acks {
    /// By the next request on its connection. Until then a zero-copy server holds the packet of the echo, so there must
    /// be a packet per connection.
    WithRequest,
    /// By a separate segment, immediately.
    Alone,
}

/// Requests of a client on connections in turn.
#[derive(Debug)]
pub struct Requests {
    /// Connections in the order of use, shuffled so that neither end profits from sequential memory access.
    order: Vec<u32>,
    next: usize,
    size: usize,
    acks: Acks,
}

impl Requests {
    /// Creates requests of `size` bytes on `flows`, whose echoes are acknowledged by `acks`.
    ///
    /// # Panics
    /// If there are no flows or no bytes.
    pub fn new(flows: Range<usize>, size: usize, acks: Acks) -> Self {
        assert!(!flows.is_empty() && size > 0);
        let mut order: Vec<u32> = flows.map(|flow| flow as u32).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut order);
        Requests { order, next: 0, size, acks }
    }

    /// Returns the number of connections.
    pub fn flows(&self) -> usize {
        self.order.len()
    }

    /// Returns the acknowledgement mode.
    pub fn acks(&self) -> Acks {
        self.acks
    }

    /// Sends the next `n` requests, on as many connections.
    pub fn send(&mut self, client: &mut SyntheticClient, n: usize) -> Result<(), BenchError> {
        if self.size > client.segment_size() {
            return Err(BenchError::TooLong { size: self.size, most: client.segment_size() });
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

    /// Receives and checks answers, and acknowledges them unless the next request does. Returns the number of answers.
    pub fn check(&mut self, client: &mut SyntheticClient) -> Result<usize, BenchError> {
        let mut answers = 0;
        client.each(|client, header, frame| {
            client.established(&header)?;
            let flow = &mut client.flows[header.flow];
            if header.fin || header.acknowledged != flow.sequence {
                return Err(BenchError::Frame("it does not acknowledge the request"));
            }
            // RFC 7323 §4.3: the request was the last in-order segment, so its timestamp is echoed.
            if header.timestamps.is_some_and(|(_, echo)| echo != flow.stamp) {
                return Err(BenchError::Frame("it echoes another timestamp than the request's"));
            }
            if header.sequence != flow.expected || header.payload_len != self.size {
                return Err(BenchError::Frame("it is not at the position or not as long as the echo should be"));
            }
            let sequence = flow.sequence.wrapping_sub(self.size as u32);
            if !header.carries(frame, Pattern::new(header.flow, sequence), 0) {
                return Err(BenchError::Frame("other bytes came back than were sent"));
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
