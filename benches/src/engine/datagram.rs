//! Echoes of datagrams.

use super::{Bench, EchoService, Forward, Pair, PairConfig, PairOptions};
use crate::client::BenchError;
use crate::client::datagrams::Datagrams;
use linerate_bypass::memory_nic::MemoryNic;
use linerate_stack::Engine;
use std::time::Duration;

/// Echo server over UDP, and the next datagrams.
pub struct Datagram<E: Engine<MemoryNic>> {
    pair: Pair<E, <Forward as EchoService>::Service>,
    datagrams: Datagrams,
}

impl<E: Engine<MemoryNic>> Datagram<E> {
    /// Sends one datagram of `size` bytes from each of `ports` ports, so that first-use allocations are done.
    pub fn new(ports: usize, size: usize, options: PairOptions) -> Result<Self, BenchError> {
        let config = PairConfig { connections: 1, tuples: ports, packets_held: 0, options, segmentation: false };
        let mut bench = Datagram { pair: Pair::new(&config, Forward::create)?, datagrams: Datagrams::new(ports, size) };
        bench.run(ports)?;
        Ok(bench)
    }
}

impl<E: Engine<MemoryNic>> Bench for Datagram<E> {
    fn run(&mut self, echoes: usize) -> Result<Duration, BenchError> {
        let datagrams = &mut self.datagrams;
        self.pair.in_bursts(echoes, datagrams.burst(), |pair, burst| {
            datagrams.send(pair.client(), burst)?;
            pair.converse(burst, |client| datagrams.check(client))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::memory_nic::MemoryPacket;
    use linerate_stack::NativeEngine;

    #[test]
    fn every_datagram_is_answered_by_one_frame() {
        for (ports, size, software_checksum) in [(100, 64, false), (7, 1, true), (1, 1472, true), (33, 300, false)] {
            #[allow(clippy::needless_update, reason = "fast paths are a field in builds with switches for them")]
            let options = PairOptions { software_checksum, ..PairOptions::default() };
            let mut bench = Datagram::<NativeEngine<MemoryPacket>>::new(ports, size, options).unwrap();
            let before = bench.pair.summary();
            bench.run(1000).unwrap();
            let after = bench.pair.summary();
            assert_eq!((after.rx_frames - before.rx_frames, after.tx_frames - before.tx_frames), (1000, 1000));
        }
    }

    #[test]
    fn datagram_above_the_mtu_is_refused() {
        let bench = Datagram::<NativeEngine<MemoryPacket>>::new(1, 1473, PairOptions::default());
        assert!(matches!(bench, Err(BenchError::TooLong { size: 1473, most: 1472 })));
    }
}
