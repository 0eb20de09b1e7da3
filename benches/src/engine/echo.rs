//! Echoes of one segment on connections that stay open.

use super::{Bench, Pair, PairConfig};
use crate::client::echo::Requests;
use crate::client::{Agreed, Wrong};
use linerate_apps::services;
use linerate_bypass::BURST;
use linerate_bypass::memory::MemoryNic;
use linerate_stack::Engine;
use std::time::Duration;

/// An echo server with all its connections open, and their next requests.
pub struct Echo<E: Engine<MemoryNic>> {
    pair: Pair<E, services::Echo>,
    requests: Requests,
}

impl<E: Engine<MemoryNic>> Echo<E> {
    /// Opens `flows` connections and sends one request of `size` bytes on each, so that what is allocated on first use
    /// is.
    pub fn new(flows: usize, size: usize, timestamps: bool, software_checksum: bool) -> Result<Self, Wrong> {
        let config =
            PairConfig { connections: flows, tuples: flows, timestamps, software_checksum, segmentation: false };
        let mut pair = Pair::new(&config, services::Echo)?;
        pair.open(0..flows)?;
        let mut bench = Echo { pair, requests: Requests::new(0..flows, size) };
        bench.run(flows)?;
        Ok(bench)
    }

    /// What the server agreed to.
    pub fn agreed(&mut self) -> Option<Agreed> {
        self.pair.client().agreed()
    }
}

impl<E: Engine<MemoryNic>> Bench for Echo<E> {
    fn run(&mut self, echoes: usize) -> Result<Duration, Wrong> {
        let mut spent = Duration::ZERO;
        let mut left = echoes;
        while left > 0 {
            let burst = left.min(BURST).min(self.requests.flows());
            self.requests.send(self.pair.client(), burst)?;
            spent += self.pair.converse(burst, |client| self.requests.check(client))?;
            left -= burst;
        }
        Ok(spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_stack::SmoltcpEngine;

    fn echoes(flows: usize, size: usize, timestamps: bool, software_checksum: bool) {
        let mut bench = Echo::<SmoltcpEngine>::new(flows, size, timestamps, software_checksum).unwrap();
        let before = bench.pair.summary();
        bench.run(1000).unwrap();
        let after = bench.pair.summary();
        assert_eq!(
            (after.rx_frames - before.rx_frames, after.tx_frames - before.tx_frames),
            (1000, 1000),
            "a frame for each request, one for each echo"
        );
    }

    #[test]
    fn every_request_is_answered_by_one_frame() {
        echoes(100, 64, true, false);
        echoes(7, 1, true, false);
        echoes(1, 1448, true, false);
        echoes(3, 1460, false, false);
    }

    #[test]
    fn checksums_in_software_are_right_at_both_ends() {
        echoes(100, 64, true, true);
        echoes(33, 1447, true, true);
    }

    #[test]
    fn connections_beyond_the_ports_of_one_address_are_those_of_the_next() {
        let config = PairConfig {
            connections: 64,
            tuples: 50_064,
            timestamps: true,
            software_checksum: false,
            segmentation: false,
        };
        let mut pair = Pair::<SmoltcpEngine, _>::new(&config, services::Echo).unwrap();
        pair.open(49_968..50_032).unwrap();
        let mut bench = Echo { pair, requests: Requests::new(49_968..50_032, 64) };
        bench.run(640).unwrap();
    }

    #[test]
    fn a_request_that_does_not_fit_in_a_segment_is_refused() {
        assert!(matches!(Echo::<SmoltcpEngine>::new(1, 1461, true, false), Err(Wrong::TooLong { .. })));
    }
}
