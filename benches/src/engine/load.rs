//! Load of echoes, whose turns are timed in place of the server's.

use super::pair::{FOREVER, InTurn, TURN};
use super::{Bench, PairOptions, worker};
use crate::client::{BenchError, SERVER};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::{MacAddr, Nic};
use linerate_load::services::Echo;
use linerate_load::{Barrier, EchoLoad, Plan};
use linerate_service::Service;
use linerate_service::time::Instant;
use linerate_stack::{Config, Engine, SmoltcpEngine, Worker};
use std::sync::Arc;
use std::time::Duration;

pub(super) type Side<S, E> = Box<Worker<MemoryNic, S, E>>;

/// Echo load with one request in flight on each connection.
///
/// The server runs the smoltcp engine, which keeps no packets: the two ends of a link in memory share a packet, and a
/// packet that the server still needed could not carry the next request.
pub struct Load<E: Engine<MemoryNic>> {
    load: Side<linerate_load::Load<EchoLoad>, E>,
    server: Side<Echo, SmoltcpEngine>,
    now: Instant,
    /// Frames that the load has received when the current run is complete.
    target: u64,
}

impl<E: Engine<MemoryNic>> Load<E> {
    /// Opens `connections` connections, on which requests of `size` bytes are exchanged.
    ///
    /// # Errors
    /// If a connection cannot be opened.
    pub fn new(connections: usize, size: usize, options: PairOptions) -> Result<Self, BenchError> {
        let usual = LinkConfig::default();
        let link =
            LinkConfig { pool: usual.pool + 2 * connections, checksum_offload: !options.software_checksum, ..usual };
        let (near, far) = Link::pair(link);
        let server = worker(&host(2, connections, options), far, |_| Echo);
        let (load, barrier) = echo_load(connections, size);
        let load = worker(&host(1, connections, options), near, |_| load);
        let mut bench = Load { load, server, now: Instant::ZERO, target: 0 };
        bench.wait_until(connections, |_| barrier.opened() == connections)?;
        bench.target = bench.begin(&barrier, connections)?;
        // First-use allocations are done after one request on each connection.
        bench.run(connections)?;
        Ok(bench)
    }
}

/// Returns the configuration of 10.0.0.`host`; 2 is the server.
pub(super) fn host(host: u8, connections: usize, options: PairOptions) -> Config {
    Config {
        addresses: vec![format!("10.0.0.{host}/8").parse().expect("an address with a prefix")],
        mac: Some(MacAddr([2, 0, 0, 0, 0, host])),
        listen: if host == 2 { vec![SERVER.into()] } else { Vec::new() },
        max_connections: connections,
        ..options.stack()
    }
}

/// Returns a load of echoes, with one request in flight on each connection.
pub(super) fn echo_load(connections: usize, size: usize) -> (linerate_load::Load<EchoLoad>, Arc<Barrier>) {
    let plan = Plan { remote: SERVER.into(), connections, duration: FOREVER, ..Plan::default() };
    let barrier = Arc::new(Barrier::new(1, connections));
    (linerate_load::Load::new(&plan, barrier.clone(), 0, 1, EchoLoad::new(size, 1, None)), barrier)
}

impl<E: Engine<MemoryNic>> InTurn for Load<E> {
    /// Returns the number of frames that the load has received: one for each reply.
    fn received(&mut self) -> u64 {
        self.load.nic().stats().rx_frames
    }

    fn turns(&mut self) -> Duration {
        self.now += TURN;
        let began = std::time::Instant::now();
        load_turn(&mut self.load, self.now);
        let spent = began.elapsed();
        self.server.turn(self.now);
        spent
    }
}

impl<E: Engine<MemoryNic>> Bench for Load<E> {
    fn run(&mut self, echoes: usize) -> Result<Duration, BenchError> {
        self.target += echoes as u64;
        self.run_to(self.target)
    }
}

/// Separate function, so that a profiler can attribute the load's work.
#[inline(never)]
fn load_turn<E: Engine<MemoryNic>, S: Service>(load: &mut Worker<MemoryNic, S, E>, now: Instant) {
    load.turn(now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::memory_nic::MemoryPacket;
    use linerate_stack::NativeEngine;

    #[test]
    fn a_reply_is_one_frame() {
        let mut bench = Load::<NativeEngine<MemoryPacket>>::new(40, 64, PairOptions::default()).unwrap();
        let before = bench.load.summary();
        bench.run(4000).unwrap();
        let after = bench.load.summary();
        let [received, sent] = [after.rx_frames - before.rx_frames, after.tx_frames - before.tx_frames];
        assert!((4000..4040).contains(&received), "{received}");
        assert!(received.abs_diff(sent) <= 40, "{received} and {sent}");
    }
}
