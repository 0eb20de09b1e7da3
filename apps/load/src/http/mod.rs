//! HTTP/1.1 load: GET requests on connections that are kept open, in a closed or an open loop.

mod response;

pub use response::InvalidResponse;

use crate::{Corrupt, OpenLoop, Pace, Times, Traffic};
use fastrand::Rng;
use linerate_service::time::Instant;
use linerate_service::{ConnId, Transport};
use response::{KnownHead, ResponseReader};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// GET requests of one path, with up to `depth` outstanding on each connection (pipelined, if more than one). The times
/// are those of [`EchoLoad`](crate::EchoLoad): from the event that sends the request to the one that completes the
/// response, or in an open loop from the time at which the request is due.
///
/// A response counts if its status is 2xx or 3xx. Contents are not checked.
#[derive(Debug)]
pub struct HttpLoad {
    /// The request, `depth + 1` times: any sequence of outstanding requests, whole and begun, is a slice of it.
    requests: Box<[u8]>,
    /// Length of one request.
    size: usize,
    depth: usize,
    open: Option<OpenLoop>,
    pace: Option<Pace>,
    known: KnownHead,
    answered: u64,
    bytes: u64,
    refused: u64,
    first_status: Option<u16>,
    first_invalid: Option<InvalidResponse>,
    times: Times,
}

/// Connection of an [`HttpLoad`].
pub struct HttpStream {
    reader: ResponseReader,
    /// Begin or due time of each outstanding request, oldest first.
    begun: VecDeque<Instant>,
    /// Unsent bytes of the youngest outstanding request.
    unsent: usize,
}

impl HttpLoad {
    /// Creates a load of requests for `path` of the server `host`, with `depth` outstanding on each connection, or up
    /// to `depth` in an `open` loop.
    ///
    /// # Panics
    /// If `depth` is 0.
    pub fn new(host: SocketAddr, path: &str, depth: usize, open: Option<OpenLoop>) -> Self {
        assert!(depth > 0);
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        HttpLoad {
            size: request.len(),
            requests: request.repeat(depth + 1).into_bytes().into(),
            depth,
            open,
            pace: None,
            known: KnownHead::default(),
            answered: 0,
            bytes: 0,
            refused: 0,
            first_status: None,
            first_invalid: None,
            times: Times::default(),
        }
    }

    /// Returns the pace of an open loop that has begun.
    pub fn pace(&self) -> Option<&Pace> {
        self.pace.as_ref()
    }

    /// Returns the requests answered while measuring; in an open loop, those also due while measuring.
    pub fn requests(&self) -> u64 {
        self.answered
    }

    /// Returns the body bytes of the counted responses.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of responses with an error status while measuring.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the first error of a response.
    pub fn first_error(&self) -> Option<String> {
        let invalid = self.first_invalid.map(|invalid| invalid.to_string());
        invalid.or_else(|| self.first_status.map(|status| format!("status {status}")))
    }

    /// Returns the round-trip times.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// Sends the rest of a request and up to `more` further ones. Returns the number of requests begun.
    fn send_requests(&self, net: &mut impl Transport, conn: ConnId, stream: &mut HttpStream, more: usize) -> usize {
        let wanted = stream.unsent + more * self.size;
        if wanted == 0 {
            return 0;
        }
        let from = if stream.unsent == 0 { 0 } else { self.size - stream.unsent };
        let sent = net.write(conn, &self.requests[from..from + wanted]);
        let Some(of_new) = sent.checked_sub(stream.unsent) else {
            stream.unsent -= sent;
            return 0;
        };
        let begun = of_new.div_ceil(self.size);
        stream.unsent = begun * self.size - of_new;
        begun
    }

    /// Sends due requests, up to this connection's share and room.
    fn send_due(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut HttpStream) {
        self.send_requests(net, conn, stream, 0);
        let now = net.now();
        let Some(pace) = &self.pace else { return };
        for _ in 0..pace.share(now).min(self.depth - stream.begun.len()) {
            if stream.unsent > 0
                || self.pace.as_ref().is_none_or(|pace| pace.next() > now)
                || self.send_requests(net, conn, stream, 1) == 0
            {
                return;
            }
            if let Some(pace) = &mut self.pace {
                let due = pace.take();
                pace.sent(due, now);
                stream.begun.push_back(due);
            }
        }
    }

    /// Counts a response to the oldest outstanding request.
    fn count(&mut self, now: Instant, begun: Instant, response: response::Response, measuring: bool) {
        if !measuring || self.pace.as_ref().is_some_and(|pace| !pace.counts(begun)) {
            return;
        }
        if !(200..400).contains(&response.status) {
            self.refused += 1;
            self.first_status.get_or_insert(response.status);
            return;
        }
        self.answered += 1;
        self.bytes += response.length;
        self.times.record(now.since(begun).as_nanos() as u64);
    }
}

impl Traffic for HttpLoad {
    type Stream = HttpStream;

    fn stream(&self, _: usize) -> HttpStream {
        HttpStream { reader: ResponseReader::default(), begun: VecDeque::with_capacity(self.depth), unsent: 0 }
    }

    fn begin(&mut self, now: Instant, connections: usize, all: usize) {
        self.pace =
            self.open.filter(|_| connections > 0).map(|open| Pace::new(open, now, connections, all, Rng::new()));
    }

    fn measure(&mut self, now: Instant) {
        self.pace.iter_mut().for_each(|pace| pace.measure(now));
    }

    fn end(&mut self, until: Instant) {
        let times = &mut self.times;
        self.pace.iter_mut().for_each(|pace| pace.end(until, |age, count| times.record_unanswered(age, count)));
    }

    fn record_unanswered(&mut self, stream: &HttpStream, until: Instant) {
        let counted = stream.begun.iter().filter(|begun| self.pace.as_ref().is_none_or(|pace| pace.counts(**begun)));
        counted.for_each(|begun| self.times.record_unanswered(until.since(*begun), 1));
    }

    #[inline]
    fn due(&self) -> Option<Instant> {
        self.pace.as_ref().map(Pace::next)
    }

    fn send(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut HttpStream) {
        if self.open.is_some() {
            return self.send_due(net, conn, stream);
        }
        let begun = self.send_requests(net, conn, stream, self.depth - stream.begun.len());
        stream.begun.extend(std::iter::repeat_n(net.now(), begun));
    }

    fn receive(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut HttpStream,
        measuring: bool,
    ) -> Result<(), Corrupt> {
        let now = net.now();
        loop {
            let bytes = net.peek(conn);
            if bytes.is_empty() {
                return Ok(());
            }
            // The youngest request may be incomplete: it has no response yet.
            let read = match stream.begun.len() - usize::from(stream.unsent > 0) {
                0 => Err(InvalidResponse::Surplus),
                _ => stream.reader.read(bytes, &mut self.known),
            };
            let (n, response) = match read {
                Ok(read) => read,
                Err(invalid) => {
                    self.first_invalid.get_or_insert(invalid);
                    return Err(Corrupt);
                }
            };
            net.consume(conn, n);
            if let Some(response) = response
                && let Some(begun) = stream.begun.pop_front()
            {
                self.count(now, begun, response, measuring);
            }
        }
    }

    fn answered(&self) -> Option<u64> {
        Some(self.answered)
    }

    fn progress(&self) -> u64 {
        self.answered
    }
}

#[cfg(test)]
mod tests;
