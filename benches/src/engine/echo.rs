//! Echoes of one segment on open connections.

use super::{Bench, EchoService, Forward, Pair, PairConfig, PairOptions};
use crate::client::echo::{Acks, Requests};
use crate::client::{Agreed, BenchError};
use linerate_bypass::BURST;
use linerate_bypass::memory_nic::MemoryNic;
use linerate_stack::Engine;
use std::time::Duration;

/// Echo server with open connections, and their next requests.
pub struct Echo<E: Engine<MemoryNic>, S: EchoService = Forward> {
    pair: Pair<E, S::Service>,
    requests: Requests,
}

impl<E: Engine<MemoryNic>, S: EchoService> Echo<E, S> {
    /// Opens `flows` connections and sends one request of `size` bytes on each, so that first-use allocations are done.
    pub fn new(flows: usize, size: usize, acks: Acks, options: PairOptions) -> Result<Self, BenchError> {
        let config = PairConfig {
            connections: flows,
            tuples: flows,
            packets_held: if acks == Acks::WithRequest { flows } else { 0 },
            options,
            segmentation: false,
        };
        let mut pair = Pair::new(&config, S::create)?;
        pair.open(0..flows)?;
        let mut bench = Echo { pair, requests: Requests::new(0..flows, size, acks) };
        bench.run(flows)?;
        Ok(bench)
    }

    /// Returns the options that the server agreed to.
    pub fn agreed(&mut self) -> Option<Agreed> {
        self.pair.client().agreed()
    }
}

impl<E: Engine<MemoryNic>, S: EchoService> Bench for Echo<E, S> {
    fn run(&mut self, echoes: usize) -> Result<Duration, BenchError> {
        let requests = &mut self.requests;
        let mut spent = self.pair.in_bursts(echoes, BURST.min(requests.flows()), |pair, burst| {
            requests.send(pair.client(), burst)?;
            pair.converse(burst, |client| requests.check(client))
        })?;
        if self.requests.acks() == Acks::Alone {
            // The final acknowledgements.
            spent += self.pair.settle();
        }
        Ok(spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{AsyncCopy, AsyncForward, Write};
    use linerate_bypass::memory_nic::MemoryPacket;
    use linerate_stack::{NativeEngine, SmoltcpEngine};

    fn echoes<E: Engine<MemoryNic>>(flows: usize, size: usize, acks: Acks, timestamps: bool, software_checksum: bool) {
        let new = (flows, size, acks, timestamps, software_checksum);
        echoes_by::<E, Forward>(new);
        echoes_by::<E, Write>(new);
        echoes_by::<E, AsyncForward>(new);
        echoes_by::<E, AsyncCopy>(new);
    }

    fn echoes_by<E: Engine<MemoryNic>, S: EchoService>(
        (flows, size, acks, timestamps, software_checksum): (usize, usize, Acks, bool, bool),
    ) {
        #[allow(clippy::needless_update, reason = "fast paths are a field in builds with switches for them")]
        let options = PairOptions { timestamps, software_checksum, ..PairOptions::default() };
        let mut bench = Echo::<E, S>::new(flows, size, acks, options).unwrap();
        let before = bench.pair.summary();
        bench.run(1000).unwrap();
        let after = bench.pair.summary();
        let received = if acks == Acks::Alone { 2000 } else { 1000 };
        assert_eq!(
            (after.rx_frames - before.rx_frames, after.tx_frames - before.tx_frames),
            (received, 1000),
            "one frame per request, per acknowledgement and per echo"
        );
    }

    fn echoes_of_both(flows: usize, size: usize, acks: Acks, timestamps: bool, software_checksum: bool) {
        echoes::<SmoltcpEngine>(flows, size, acks, timestamps, software_checksum);
        echoes::<NativeEngine<MemoryPacket>>(flows, size, acks, timestamps, software_checksum);
    }

    #[test]
    fn every_request_is_answered_by_one_frame() {
        echoes_of_both(100, 64, Acks::WithRequest, true, false);
        echoes_of_both(7, 1, Acks::WithRequest, true, false);
        echoes_of_both(1, 1448, Acks::WithRequest, true, false);
        echoes_of_both(3, 1460, Acks::WithRequest, false, false);
        echoes_of_both(100, 64, Acks::Alone, true, false);
    }

    #[test]
    fn software_checksums_are_correct_at_both_ends() {
        echoes_of_both(100, 64, Acks::WithRequest, true, true);
        echoes_of_both(33, 1447, Acks::Alone, true, true);
    }

    #[test]
    fn pool_suffices_for_echoes_acknowledged_by_next_request() {
        echoes::<NativeEngine<MemoryPacket>>(9_000, 64, Acks::WithRequest, true, false);
    }

    #[test]
    fn connections_beyond_ports_of_one_address_use_the_next() {
        let config = PairConfig {
            connections: 64,
            tuples: 50_064,
            packets_held: 0,
            options: PairOptions::default(),
            segmentation: false,
        };
        let mut pair = Pair::<SmoltcpEngine, _>::new(&config, Forward::create).unwrap();
        pair.open(49_968..50_032).unwrap();
        let mut bench = Echo::<_, Forward> { pair, requests: Requests::new(49_968..50_032, 64, Acks::WithRequest) };
        bench.run(640).unwrap();
    }

    #[test]
    fn request_above_segment_size_is_refused() {
        assert!(matches!(
            Echo::<SmoltcpEngine>::new(1, 1461, Acks::Alone, PairOptions::default()),
            Err(BenchError::TooLong { .. })
        ));
    }
}
