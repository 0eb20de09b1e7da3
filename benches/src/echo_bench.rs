//! An echo server on the memory NIC, whose turns are timed, and nothing else is.

use crate::synthetic_client::{Endpoints, SyntheticClient, Wrong};
use linerate_apps::services::Echo;
use linerate_bypass::memory::{Link, LinkConfig, MemoryNic};
use linerate_bypass::time::Instant;
use linerate_bypass::{BURST, MacAddr, Nic};
use linerate_stack::{Config, Crossing, Engine, Worker};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 7);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Virtual time that one turn takes: the engine's timers go by it, so that two runs do exactly the same.
const TURN: Duration = Duration::from_micros(10);
/// Turns after which a server that has not answered will not.
const PATIENCE: usize = 8;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct EchoBenchConfig {
    /// Connections, all open and used in turn.
    pub flows: usize,
    /// Bytes of a request.
    pub size: usize,
    /// The server verifies and computes checksums itself.
    pub software_checksum: bool,
}

/// A server with all its connections open.
pub struct EchoBench<E: Engine<MemoryNic>> {
    server: Worker<MemoryNic, Echo, E>,
    client: SyntheticClient,
    now: Instant,
}

impl<E: Engine<MemoryNic>> EchoBench<E> {
    /// Opens the connections and sends one request on each, so that what is allocated on first use is.
    pub fn new(config: &EchoBenchConfig) -> Result<Self, Wrong> {
        let link = LinkConfig { checksum_offload: !config.software_checksum, ..LinkConfig::default() };
        let (client, server) = Link::pair(link);
        let stack = Config {
            addresses: vec!["10.0.0.2/8".parse().expect("an address with a prefix")],
            mac: Some(SERVER_MAC),
            listen: vec![SERVER.into()],
            max_connections: config.flows,
            seed: 1,
            ..Config::default()
        };
        let crossing = Crossing::between(1).remove(0);
        let server = Worker::new(&stack, crossing, server, |_| Echo, Instant::ZERO);
        let endpoints = Endpoints { client_mac: CLIENT_MAC, client: CLIENT, server_mac: SERVER_MAC, server: SERVER };
        let client = SyntheticClient::new(client, endpoints, config.flows, config.size, config.software_checksum);
        let mut bench = EchoBench { server, client, now: Instant::ZERO };
        bench.open()?;
        bench.run(config.flows)?;
        Ok(bench)
    }

    fn open(&mut self) -> Result<(), Wrong> {
        self.client.announce()?;
        self.turn();
        let mut first = 0;
        while first < self.client.flows() {
            let after = (first + BURST).min(self.client.flows());
            self.client.begin(first..after)?;
            let mut left = after - first;
            for _ in 0..PATIENCE {
                self.turn();
                left -= self.client.complete()?;
                if left == 0 {
                    break;
                }
            }
            if left > 0 {
                return Err(Wrong::Missing(left));
            }
            self.turn();
            first = after;
        }
        Ok(())
    }

    fn turn(&mut self) {
        self.now += TURN;
        server_turn(&mut self.server, self.now);
    }

    /// Has the server answer `echoes` requests and returns the time that it spent on them, from the frames in its
    /// receive ring to the frames in its transmit ring. The client's time is not in it.
    pub fn run(&mut self, echoes: usize) -> Result<Duration, Wrong> {
        let mut spent = Duration::ZERO;
        let mut left = echoes;
        while left > 0 {
            let burst = left.min(BURST).min(self.client.flows());
            self.client.request(burst)?;
            let mut unanswered = burst;
            for _ in 0..PATIENCE {
                let began = std::time::Instant::now();
                self.turn();
                spent += began.elapsed();
                unanswered -= self.client.check()?;
                if unanswered == 0 {
                    break;
                }
            }
            if unanswered > 0 {
                return Err(Wrong::Missing(unanswered));
            }
            left -= burst;
        }
        Ok(spent)
    }

    /// Frames that the server has received and sent.
    pub fn frames(&mut self) -> (u64, u64) {
        let stats = self.server.nic().stats();
        (stats.rx_frames, stats.tx_frames)
    }
}

/// Under a name of its own, by which a profiler can tell the server's work from the client's.
#[inline(never)]
fn server_turn<E: Engine<MemoryNic>>(server: &mut Worker<MemoryNic, Echo, E>, now: Instant) {
    server.turn(now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_stack::SmoltcpEngine;

    fn echoes(flows: usize, size: usize, software_checksum: bool) {
        let config = EchoBenchConfig { flows, size, software_checksum };
        let mut bench = EchoBench::<SmoltcpEngine>::new(&config).unwrap();
        let before = bench.frames();
        bench.run(1000).unwrap();
        let after = bench.frames();
        assert_eq!(
            (after.0 - before.0, after.1 - before.1),
            (1000, 1000),
            "a frame for each request, one for each echo"
        );
    }

    #[test]
    fn every_request_is_answered_by_one_frame() {
        echoes(100, 64, false);
        echoes(7, 1, false);
        echoes(1, 1460, false);
    }

    #[test]
    fn checksums_in_software_are_right_at_both_ends() {
        echoes(100, 64, true);
        echoes(33, 1459, true);
    }
}
