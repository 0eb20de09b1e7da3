//! Echoed messages of many segments.

use super::{Bench, Pair, PairConfig, PairOptions};
use crate::client::messages::{Messages, Segments};
use crate::client::{Agreed, BenchError};
use linerate_bypass::BURST;
use linerate_bypass::memory_nic::MemoryNic;
use linerate_load::services;
use linerate_stack::Engine;
use std::time::Duration;

/// Echo server with open connections, and their next messages.
pub struct Stream<E: Engine<MemoryNic>> {
    pair: Pair<E, services::Echo>,
    messages: Messages,
    /// Messages sent at once: a burst of frames.
    at_once: usize,
}

impl<E: Engine<MemoryNic>> Stream<E> {
    /// Opens `flows` connections and sends a message of `size` bytes on each. With `segmentation` the ports have TSO
    /// and LRO, so a message can be one frame in each direction.
    pub fn new(flows: usize, size: usize, options: PairOptions, segmentation: bool) -> Result<Self, BenchError> {
        let config = PairConfig { connections: flows, tuples: flows, packets_held: 0, options, segmentation };
        let mut pair = Pair::new(&config, |_, _| services::Echo)?;
        pair.open(0..flows)?;
        let messages = Messages::new(flows, size, segmentation);
        let at_once = (BURST / messages.frames(pair.client())).clamp(1, flows);
        let mut bench = Stream { pair, messages, at_once };
        bench.run(flows)?;
        Ok(bench)
    }

    /// Returns the options that the server agreed to.
    pub fn agreed(&mut self) -> Option<Agreed> {
        self.pair.client().agreed()
    }

    /// Returns the segment counters.
    pub fn segments(&self) -> Segments {
        self.messages.segments()
    }

    /// Returns the payload bytes that the server has copied.
    pub fn copied_bytes(&mut self) -> u64 {
        self.pair.summary().copied_bytes
    }
}

impl<E: Engine<MemoryNic>> Bench for Stream<E> {
    fn run(&mut self, messages: usize) -> Result<Duration, BenchError> {
        let sent = &mut self.messages;
        let spent = self.pair.in_bursts(messages, self.at_once, |pair, n| {
            sent.send(pair.client(), n)?;
            pair.converse(n, |client| sent.check(client))
        })?;
        // The final acknowledgements.
        Ok(spent + self.pair.settle())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::memory_nic::MemoryPacket;
    use linerate_stack::{NativeEngine, SmoltcpEngine};

    const SIZE: usize = 16 << 10;

    fn run<E: Engine<MemoryNic>>(
        flows: usize,
        size: usize,
        software_checksum: bool,
        segmentation: bool,
        n: usize,
    ) -> Segments {
        let options = PairOptions { software_checksum, ..PairOptions::default() };
        let mut bench = Stream::<E>::new(flows, size, options, segmentation).unwrap();
        let before = bench.segments();
        bench.run(n).unwrap();
        let after = bench.segments();
        Segments {
            data_sent: after.data_sent - before.data_sent,
            data_received: after.data_received - before.data_received,
            acks_sent: after.acks_sent - before.acks_sent,
            acks_received: after.acks_received - before.acks_received,
        }
    }

    fn message_is_echoed_in_segments<E: Engine<MemoryNic>>() {
        for software_checksum in [false, true] {
            let segments = run::<E>(5, SIZE, software_checksum, false, 100);
            assert_eq!(segments.data_sent, 1200);
            assert!(segments.data_received >= 1200, "{segments:?}");
            assert!(segments.acks_sent >= 600, "every second segment is acknowledged: {segments:?}");
        }
    }

    fn merged_message_is_echoed_as_one_frame<E: Engine<MemoryNic>>() {
        let segments = run::<E>(40, SIZE, false, true, 100);
        assert_eq!(segments.data_sent, 100);
        assert!(segments.data_received >= 100, "{segments:?}");
    }

    fn messages_of_any_size_are_echoed<E: Engine<MemoryNic>>() {
        for size in [1, 1448, 1449, 60_000] {
            run::<E>(3, size, false, false, 10);
            run::<E>(3, size, false, true, 10);
        }
    }

    #[test]
    fn messages_smoltcp() {
        message_is_echoed_in_segments::<SmoltcpEngine>();
        merged_message_is_echoed_as_one_frame::<SmoltcpEngine>();
        messages_of_any_size_are_echoed::<SmoltcpEngine>();
    }

    #[test]
    fn messages_native() {
        message_is_echoed_in_segments::<NativeEngine<MemoryPacket>>();
        merged_message_is_echoed_as_one_frame::<NativeEngine<MemoryPacket>>();
        messages_of_any_size_are_echoed::<NativeEngine<MemoryPacket>>();
    }
}
