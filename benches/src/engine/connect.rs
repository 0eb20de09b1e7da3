//! Connections that are opened for one request and closed, while others stay open.

use super::{Bench, Pair, PairConfig, PairOptions};
use crate::client::connections::{Connections, Course};
use crate::client::{Agreed, BenchError};
use linerate_bypass::BURST;
use linerate_bypass::memory_nic::MemoryNic;
use linerate_service::{ConnId, Origin, Service, Transport};
use linerate_stack::Engine;
use std::convert::Infallible;
use std::time::Duration;

/// Addresses and ports that new connections use in turn. With TIME-WAIT at the server, it has this many records after
/// one cycle, and each further SYN matches one of them (RFC 6191).
const TUPLES: usize = 200_000;

/// Service that echoes, and closes immediately if it closes first.
struct Answer {
    closes: bool,
}

impl Service for Answer {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.forward(conn, conn);
        if self.closes {
            net.close(conn);
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.close(conn);
    }
}

/// Server with some open connections, and a client that opens and closes others.
pub struct Connect<E: Engine<MemoryNic>> {
    pair: Pair<E, Answer>,
    connections: Connections,
    course: Course,
}

impl<E: Engine<MemoryNic>> Connect<E> {
    /// Opens the `flows` lasting connections, then some of the others, so that first-use allocations are done.
    pub fn new(flows: usize, course: Course, options: PairOptions) -> Result<Self, BenchError> {
        let tuples = flows + TUPLES;
        let connections = flows + 4 * BURST;
        let config = PairConfig { connections, tuples, packets_held: 0, options, segmentation: false };
        let mut pair = Pair::new(&config, |_, _| Answer { closes: course.server_closes })?;
        pair.open(0..flows)?;
        let mut bench = Connect { pair, connections: Connections::new(flows..tuples, course), course };
        bench.run(16 * BURST)?;
        Ok(bench)
    }

    /// Returns the options that the server agreed to.
    pub fn agreed(&mut self) -> Option<Agreed> {
        self.pair.client().agreed()
    }

    /// Returns the numbers of frames that the server has received and sent.
    pub fn frames(&mut self) -> (u64, u64) {
        let summary = self.pair.summary();
        (summary.rx_frames, summary.tx_frames)
    }
}

impl<E: Engine<MemoryNic>> Bench for Connect<E> {
    fn run(&mut self, connections: usize) -> Result<Duration, BenchError> {
        let before = self.pair.summary().finished;
        let mut spent = Duration::ZERO;
        let mut left = connections;
        while left > 0 {
            let burst = self.connections.begin(self.pair.client(), left.min(BURST))?;
            let mut over = 0;
            spent += self.pair.converse(burst, |client| {
                let before = over;
                over = self.connections.advance(client)?;
                Ok(over - before)
            })?;
            left -= burst;
        }
        // The final acknowledgements, and one more turn.
        spent += self.pair.settle() + self.pair.settle();
        let finished = self.pair.summary().finished - before;
        // The engine decides when a connection in TIME-WAIT counts as finished.
        if !self.course.server_closes && finished != connections as u64 {
            return Err(BenchError::Unfinished { closed: connections as u64, finished });
        }
        Ok(spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::memory_nic::MemoryPacket;
    use linerate_stack::{NativeEngine, SmoltcpEngine};

    fn run<E: Engine<MemoryNic>>(flows: usize, course: Course, n: usize) -> (u64, u64) {
        let options = PairOptions { software_checksum: true, ..PairOptions::default() };
        let mut bench = Connect::<E>::new(flows, course, options).unwrap();
        let before = bench.frames();
        bench.run(n).unwrap();
        let after = bench.frames();
        (after.0 - before.0, after.1 - before.1)
    }

    fn connection_takes_four_or_five_frames<E: Engine<MemoryNic>>() {
        let course = Course { size: 64, request_with_ack: false, server_closes: false };
        let (received, sent) = run::<E>(10, course, 1000);
        assert_eq!(received, 5000, "SYN, ACK, request, FIN, ACK");
        assert!((3000..=4000).contains(&sent), "SYN-ACK, echo, and FIN with or after ACK: {sent}");
        assert_eq!(run::<E>(1, Course { request_with_ack: true, ..course }, 500).0, 2000);
    }

    fn server_closes_first<E: Engine<MemoryNic>>() {
        let course = Course { size: 64, request_with_ack: true, server_closes: true };
        let (received, sent) = run::<E>(1, course, 1000);
        assert!((3000..=4000).contains(&received), "SYN, request, FIN with or after ACK: {received}");
        assert!((3000..=4000).contains(&sent), "SYN-ACK, echo with or before FIN, ACK: {sent}");
    }

    #[test]
    fn connection_takes_four_or_five_frames_smoltcp() {
        connection_takes_four_or_five_frames::<SmoltcpEngine>();
    }

    #[test]
    fn connection_takes_four_or_five_frames_native() {
        connection_takes_four_or_five_frames::<NativeEngine<MemoryPacket>>();
    }

    #[test]
    fn server_closes_first_smoltcp() {
        server_closes_first::<SmoltcpEngine>();
    }

    #[test]
    fn server_closes_first_native() {
        server_closes_first::<NativeEngine<MemoryPacket>>();
    }
}
