//! Connections that are opened for one request and closed, while others stay open.

use super::{Bench, Pair, PairConfig, PairOptions};
use crate::client::connections::Connections;
use crate::client::{Agreed, BenchError};
use linerate_bypass::BURST;
use linerate_bypass::memory_nic::MemoryNic;
use linerate_service::{ConnId, Origin, Service, Transport};
use linerate_stack::Engine;
use std::convert::Infallible;
use std::time::Duration;

/// Addresses and ports that new connections use in turn.
const TUPLES: usize = 200_000;

/// Service that echoes, and closes after its peer.
struct Answer;

impl Service for Answer {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.forward(conn, conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.close(conn);
    }
}

/// Server with some open connections, and a client that opens and closes others.
pub struct Connect<E: Engine<MemoryNic>> {
    pair: Pair<E, Answer>,
    connections: Connections,
}

impl<E: Engine<MemoryNic>> Connect<E> {
    /// Opens the `flows` lasting connections, then some of the others, so that first-use allocations are done.
    pub fn new(flows: usize, size: usize, options: PairOptions) -> Result<Self, BenchError> {
        let tuples = flows + TUPLES;
        let connections = flows + 4 * BURST;
        let config = PairConfig { connections, tuples, packets_held: 0, options, segmentation: false };
        let mut pair = Pair::new(&config, |_, _| Answer)?;
        pair.open(0..flows)?;
        let mut bench = Connect { pair, connections: Connections::new(flows..tuples, size) };
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
        let opened = &mut self.connections;
        let mut spent = self.pair.in_bursts(connections, BURST, |pair, burst| {
            opened.begin(pair.client(), burst)?;
            pair.converse(burst, |client| opened.advance(client))
        })?;
        // The final acknowledgements, and one more turn.
        spent += self.pair.settle() + self.pair.settle();
        let finished = self.pair.summary().finished - before;
        let closed = connections as u64;
        if finished == closed { Ok(spent) } else { Err(BenchError::Unfinished { closed, finished }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::memory_nic::MemoryPacket;
    use linerate_stack::{NativeEngine, SmoltcpEngine};

    fn connection_takes_eight_or_nine_frames<E: Engine<MemoryNic>>() {
        let options = PairOptions { software_checksum: true, ..PairOptions::default() };
        let mut bench = Connect::<E>::new(10, 64, options).unwrap();
        let before = bench.frames();
        bench.run(1000).unwrap();
        let after = bench.frames();
        assert_eq!(after.0 - before.0, 5000, "SYN, ACK, request, FIN, ACK");
        let sent = after.1 - before.1;
        assert!((3000..=4000).contains(&sent), "SYN-ACK, echo, and FIN with or after ACK: {sent}");
    }

    #[test]
    fn connection_takes_eight_or_nine_frames_smoltcp() {
        connection_takes_eight_or_nine_frames::<SmoltcpEngine>();
    }

    #[test]
    fn connection_takes_eight_or_nine_frames_native() {
        connection_takes_eight_or_nine_frames::<NativeEngine<MemoryPacket>>();
    }
}
