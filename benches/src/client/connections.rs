//! Connections that are opened for one request and closed.

use super::pattern::Pattern;
use super::received::Header;
use super::segment::{Control, Outgoing};
use super::{BenchError, SyntheticClient};
use linerate_bypass::memory_nic::MemoryPacket;
use std::ops::Range;

/// Segment that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// SYN-ACK.
    Opening,
    Echo,
    /// FIN of the server, and the ACK of the client's.
    Closing,
    /// No connection.
    Over,
}

/// Connections of a client, which reuse their addresses and ports in turn.
#[derive(Debug)]
pub struct Connections {
    tuples: Range<usize>,
    next: usize,
    /// Size of the request in bytes.
    size: usize,
    /// Flow of the first connection in progress; the others follow.
    first: usize,
    phases: Vec<Phase>,
    over: usize,
}

impl Connections {
    /// Creates connections from the addresses and ports of `tuples`, with one request of `size` bytes each.
    ///
    /// # Panics
    /// If `tuples` is empty or a request has no bytes.
    pub fn new(tuples: Range<usize>, size: usize) -> Self {
        assert!(!tuples.is_empty() && size > 0);
        Connections { next: tuples.start, first: tuples.start, tuples, size, phases: Vec::new(), over: 0 }
    }

    /// Opens `n` connections, fewer than there are tuples, once the earlier ones are closed.
    pub fn begin(&mut self, client: &mut SyntheticClient, n: usize) -> Result<(), BenchError> {
        if self.next + n > self.tuples.end {
            self.next = self.tuples.start;
        }
        self.first = self.next;
        self.next += n;
        self.over = 0;
        self.phases.clear();
        self.phases.resize(n, Phase::Opening);
        client.begin(self.first..self.next)
    }

    /// Processes the server's segments and continues. Returns the number of connections that have closed.
    pub fn advance(&mut self, client: &mut SyntheticClient) -> Result<usize, BenchError> {
        let before = self.over;
        client.each(|client, header, frame| {
            let at = header.flow.wrapping_sub(self.first);
            let phase = *self.phases.get(at).ok_or(BenchError::Frame("on a closed connection"))?;
            let next = next_phase(client, self.size, phase, &header, frame)?;
            self.over += usize::from(next == Phase::Over);
            self.phases[at] = next;
            Ok(())
        })?;
        Ok(self.over - before)
    }
}

/// Processes a segment of the server in `phase`, and continues a connection with a request of `size` bytes.
fn next_phase(
    client: &mut SyntheticClient,
    size: usize,
    phase: Phase,
    header: &Header,
    frame: &MemoryPacket,
) -> Result<Phase, BenchError> {
    let flow = header.flow;
    if phase == Phase::Opening {
        client.synchronized(header)?;
        send_request(client, size, flow)?;
        return Ok(Phase::Echo);
    }
    client.established(header)?;
    let unacknowledged = client.flows[flow].sequence.wrapping_sub(header.acknowledged);
    if header.payload_len > 0 || header.fin {
        // Every segment of the server acknowledges all sent data, except a FIN that crosses the client's.
        if unacknowledged > 0 || header.sequence != client.flows[flow].expected {
            return Err(BenchError::Frame("it does not acknowledge the request, or has a wrong sequence number"));
        }
    } else if unacknowledged as usize > size {
        return Err(BenchError::Frame("it acknowledges unsent data"));
    }
    let mut next = phase;
    if header.payload_len > 0 {
        let sequence = client.flows[flow].sequence.wrapping_sub(size as u32);
        let whole = phase == Phase::Echo && header.payload_len == size;
        if !whole || !header.carries(frame, Pattern::new(flow, sequence), 0) {
            return Err(BenchError::Frame("the echo is missing"));
        }
        client.flows[flow].expected = client.flows[flow].expected.wrapping_add(size as u32);
        client.segment(Outgoing::control(flow, Control::Fin))?;
        client.flows[flow].sequence = client.flows[flow].sequence.wrapping_add(1);
        next = Phase::Closing;
    }
    if header.fin {
        if phase != Phase::Closing {
            return Err(BenchError::Frame("the server closes too early"));
        }
        client.flows[flow].expected = client.flows[flow].expected.wrapping_add(1);
        client.segment(Outgoing::control(flow, Control::Ack))?;
        return Ok(Phase::Over);
    }
    if next == Phase::Over { Err(BenchError::Frame("a segment on a closed connection")) } else { Ok(next) }
}

/// Completes the handshake and sends the request.
fn send_request(client: &mut SyntheticClient, size: usize, flow: usize) -> Result<(), BenchError> {
    if size > client.segment_size() {
        return Err(BenchError::TooLong { size, most: client.segment_size() });
    }
    client.segment(Outgoing::control(flow, Control::Ack))?;
    let sequence = client.flows[flow].sequence;
    client.segment(Outgoing::data(flow, Pattern::new(flow, sequence), 0, size))?;
    client.flows[flow].sequence = sequence.wrapping_add(size as u32);
    Ok(())
}
