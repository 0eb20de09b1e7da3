//! Connections that are opened for one request and closed again.

use super::pattern::Pattern;
use super::received::Header;
use super::segment::{Control, Outgoing};
use super::{SyntheticClient, Wrong};
use linerate_bypass::memory_nic::MemoryPacket;
use std::ops::Range;

/// How a connection goes.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    /// Bytes of the request.
    pub size: usize,
    /// The request comes on the segment that completes the handshake, and not on the one after it.
    pub request_with_ack: bool,
    /// The server closes first, and so keeps the connection in TIME-WAIT; otherwise the client does.
    pub server_closes: bool,
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The SYN-ACK.
    Opening,
    /// The echo.
    Asked,
    /// The server's FIN, which is to come first.
    Answered,
    /// The server's FIN, and the acknowledgement of ours.
    Closing,
    /// The acknowledgement of our FIN, which answered the server's.
    Last,
    /// Nothing.
    Over,
}

/// The connections of a client: their addresses and ports are used in turn, and again.
#[derive(Debug)]
pub struct Connections {
    tuples: Range<usize>,
    next: usize,
    course: Course,
    /// The flow of the first connection that is under way; the others follow.
    first: usize,
    phases: Vec<Phase>,
    over: usize,
}

impl Connections {
    /// Connections by way of the addresses and ports of `tuples`.
    ///
    /// # Panics
    /// If there are none, or no bytes in a request.
    pub fn new(tuples: Range<usize>, course: Course) -> Self {
        assert!(!tuples.is_empty() && course.size > 0);
        Connections { next: tuples.start, first: tuples.start, tuples, course, phases: Vec::new(), over: 0 }
    }

    /// Begins up to `n` connections, once those before are over, and returns how many.
    pub fn begin(&mut self, client: &mut SyntheticClient, n: usize) -> Result<usize, Wrong> {
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

    /// Takes in what the server has sent and goes on. Returns how many of the connections begun last are over.
    pub fn go_on(&mut self, client: &mut SyntheticClient) -> Result<usize, Wrong> {
        client.each(|client, header, frame| {
            let at = header.flow.wrapping_sub(self.first);
            let phase = *self.phases.get(at).ok_or(Wrong::Frame("for a connection that is over"))?;
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
    ) -> Result<Phase, Wrong> {
        let flow = header.flow;
        if phase == Phase::Opening {
            client.synchronized(header)?;
            self.ask(client, flow)?;
            return Ok(Phase::Asked);
        }
        client.established(header)?;
        let unacknowledged = client.flows[flow].sequence.wrapping_sub(header.acknowledged);
        if header.payload_len > 0 || header.fin {
            // It has all that we sent when it sends something, but for a FIN that crosses its own.
            if unacknowledged > 0 || header.sequence != client.flows[flow].expected {
                return Err(Wrong::Frame("it does not acknowledge what it answers, or goes on at the wrong place"));
            }
        } else if unacknowledged as usize > self.size {
            return Err(Wrong::Frame("it acknowledges what was not sent"));
        }
        let mut next = phase;
        if header.payload_len > 0 {
            let sequence = client.flows[flow].sequence.wrapping_sub(self.size as u32);
            let whole = phase == Phase::Asked && header.payload_len == self.size;
            if !whole || !header.carries(frame, Pattern::new(flow, sequence), 0) {
                return Err(Wrong::Frame("it is not the echo"));
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
                _ => return Err(Wrong::Frame("it closes before its time")),
            }
        }
        match next {
            Phase::Last if unacknowledged == 0 => Ok(Phase::Over),
            Phase::Over => Err(Wrong::Frame("it says something on a connection that is over")),
            next => Ok(next),
        }
    }

    /// Completes the handshake and sends the request.
    fn ask(&self, client: &mut SyntheticClient, flow: usize) -> Result<(), Wrong> {
        if self.size > client.segment_size() {
            return Err(Wrong::TooLong { size: self.size, most: client.segment_size() });
        }
        if !self.request_with_ack {
            client.segment(Outgoing::control(flow, Control::Ack))?;
        }
        let sequence = client.flows[flow].sequence;
        client.segment(Outgoing::data(flow, Pattern::new(flow, sequence), 0, self.size))?;
        client.flows[flow].sequence = sequence.wrapping_add(self.size as u32);
        Ok(())
    }

    /// Sends our FIN.
    fn finish(&self, client: &mut SyntheticClient, flow: usize) -> Result<(), Wrong> {
        client.segment(Outgoing::control(flow, Control::Fin))?;
        client.flows[flow].sequence = client.flows[flow].sequence.wrapping_add(1);
        Ok(())
    }
}
