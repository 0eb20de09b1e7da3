//! Connections that are opened for one request and closed.

use super::pattern::Pattern;
use super::received::Header;
use super::segment::{Control, Outgoing};
use super::{BenchError, SyntheticClient};
use linerate_bypass::memory_nic::MemoryPacket;
use std::ops::Range;

/// Course of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    /// Size of the request in bytes.
    pub size: usize,
    /// True if the request is on the final segment of the handshake instead of the next one.
    pub request_with_ack: bool,
    /// True if the server closes first, which keeps the connection in TIME-WAIT; otherwise the client does.
    pub server_closes: bool,
}

/// Segment that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// SYN-ACK.
    Opening,
    Echo,
    /// FIN of the server, which closes first.
    Answered,
    /// FIN of the server, and the ACK of the client's.
    Closing,
    /// ACK of the client's FIN, which answered the server's.
    Last,
    /// No connection.
    Over,
}

/// Connections of a client, which reuse their addresses and ports in turn.
#[derive(Debug)]
pub struct Connections {
    tuples: Range<usize>,
    next: usize,
    course: Course,
    /// Flow of the first connection in progress; the others follow.
    first: usize,
    phases: Vec<Phase>,
    over: usize,
}

impl Connections {
    /// Creates connections from the addresses and ports of `tuples`.
    ///
    /// # Panics
    /// If `tuples` is empty or a request has no bytes.
    pub fn new(tuples: Range<usize>, course: Course) -> Self {
        assert!(!tuples.is_empty() && course.size > 0);
        Connections { next: tuples.start, first: tuples.start, tuples, course, phases: Vec::new(), over: 0 }
    }

    /// Opens up to `n` connections, once the earlier ones are closed. Returns their number.
    pub fn begin(&mut self, client: &mut SyntheticClient, n: usize) -> Result<usize, BenchError> {
        if self.next == self.tuples.end {
            self.next = self.tuples.start;
        }
        let n = n.min(self.tuples.end - self.next);
        self.first = self.next;
        self.next += n;
        self.over = 0;
        self.phases.clear();
        self.phases.resize(n, Phase::Opening);
        client.begin(self.first..self.next)?;
        Ok(n)
    }

    /// Processes the server's segments and continues. Returns the number of current connections that have closed.
    pub fn advance(&mut self, client: &mut SyntheticClient) -> Result<usize, BenchError> {
        client.each(|client, header, frame| {
            let at = header.flow.wrapping_sub(self.first);
            let phase = *self.phases.get(at).ok_or(BenchError::Frame("on a closed connection"))?;
            let next = self.course.next(client, phase, &header, frame)?;
            self.over += usize::from(next == Phase::Over);
            self.phases[at] = next;
            Ok(())
        })?;
        Ok(self.over)
    }
}

impl Course {
    fn next(
        &self,
        client: &mut SyntheticClient,
        phase: Phase,
        header: &Header,
        frame: &MemoryPacket,
    ) -> Result<Phase, BenchError> {
        let flow = header.flow;
        if phase == Phase::Opening {
            client.synchronized(header)?;
            self.send_request(client, flow)?;
            return Ok(Phase::Echo);
        }
        client.established(header)?;
        let unacknowledged = client.flows[flow].sequence.wrapping_sub(header.acknowledged);
        if header.payload_len > 0 || header.fin {
            // Every segment of the server acknowledges all sent data, except a FIN that crosses the client's.
            if unacknowledged > 0 || header.sequence != client.flows[flow].expected {
                return Err(BenchError::Frame("it does not acknowledge the request, or has a wrong sequence number"));
            }
        } else if unacknowledged as usize > self.size {
            return Err(BenchError::Frame("it acknowledges unsent data"));
        }
        let mut next = phase;
        if header.payload_len > 0 {
            let sequence = client.flows[flow].sequence.wrapping_sub(self.size as u32);
            let whole = phase == Phase::Echo && header.payload_len == self.size;
            if !whole || !header.carries(frame, Pattern::new(flow, sequence), 0) {
                return Err(BenchError::Frame("the echo is missing"));
            }
            client.flows[flow].expected = client.flows[flow].expected.wrapping_add(self.size as u32);
            next = Phase::Answered;
            if !self.server_closes {
                self.finish(client, flow)?;
                next = Phase::Closing;
            }
        }
        if header.fin {
            client.flows[flow].expected = client.flows[flow].expected.wrapping_add(1);
            match next {
                Phase::Answered => {
                    self.finish(client, flow)?;
                    return Ok(Phase::Last);
                }
                Phase::Closing if phase == Phase::Closing => {
                    client.segment(Outgoing::control(flow, Control::Ack))?;
                    return Ok(Phase::Over);
                }
                _ => return Err(BenchError::Frame("the server closes too early")),
            }
        }
        match next {
            Phase::Last if unacknowledged == 0 => Ok(Phase::Over),
            Phase::Over => Err(BenchError::Frame("a segment on a closed connection")),
            next => Ok(next),
        }
    }

    /// Completes the handshake and sends the request.
    fn send_request(&self, client: &mut SyntheticClient, flow: usize) -> Result<(), BenchError> {
        if self.size > client.segment_size() {
            return Err(BenchError::TooLong { size: self.size, most: client.segment_size() });
        }
        if !self.request_with_ack {
            client.segment(Outgoing::control(flow, Control::Ack))?;
        }
        let sequence = client.flows[flow].sequence;
        client.segment(Outgoing::data(flow, Pattern::new(flow, sequence), 0, self.size))?;
        client.flows[flow].sequence = sequence.wrapping_add(self.size as u32);
        Ok(())
    }

    /// Sends the client's FIN.
    fn finish(&self, client: &mut SyntheticClient, flow: usize) -> Result<(), BenchError> {
        client.segment(Outgoing::control(flow, Control::Fin))?;
        client.flows[flow].sequence = client.flows[flow].sequence.wrapping_add(1);
        Ok(())
    }
}
