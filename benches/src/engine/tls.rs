//! Echoes with TLS, at the server, also during a flood of ClientHellos.

use super::load::{Side, echo_load, host};
use super::pair::{InTurn, TURN, server_turn};
use super::{Bench, PairOptions, worker};
use crate::certificate::{Certificate, client};
use crate::client::{BenchError, SERVER};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_load::services::Echo;
use linerate_load::{EchoLoad, Load};
use linerate_service::time::Instant;
use linerate_service::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use linerate_stack::{Engine, SmoltcpEngine};
use linerate_tls::{Tls, TlsError};
use std::time::Duration;

/// Concurrent connections of a flood.
const ATTACKERS: usize = 256;

/// Echo server and load with TLS, with one request in flight on each connection.
///
/// The load runs the smoltcp engine, which keeps no packets: the two ends of a link in memory share a packet, and the
/// server could not answer in a packet that the load still needed.
pub struct TlsEcho<E: Engine<MemoryNic>> {
    load: Side<Flooding, SmoltcpEngine>,
    server: Side<Tls<Echo>, E>,
    now: Instant,
    /// Records that the server has sent when the current run is complete.
    target: u64,
}

impl<E: Engine<MemoryNic>> TlsEcho<E> {
    /// Opens `connections` connections, on which requests of `size` bytes are exchanged, and floods the server from
    /// then on if `is_flooded`.
    ///
    /// # Errors
    /// If there is no certificate, or a connection cannot be opened.
    pub fn new(connections: usize, size: usize, options: PairOptions, is_flooded: bool) -> Result<Self, BenchError> {
        let usual = LinkConfig::default();
        let all = connections + ATTACKERS;
        let link = LinkConfig { pool: usual.pool + 4 * all, checksum_offload: !options.software_checksum, ..usual };
        let (near, far) = Link::pair(link);
        let files = tempfile::tempdir().map_err(|error| TlsError::Other(format!("temporary files: {error}")))?;
        let server = Tls::new(Certificate::new(files.path())?.server()?.into(), Echo);
        let server = worker(&host(2, all, options), far, |_| server);
        let (load, barrier) = echo_load(connections, size);
        let load = Flooding { load: Tls::new(client()?.into(), load), hello: hello(), missing: 0 };
        let load = worker(&host(1, all, options), near, |_| load);
        let mut bench = TlsEcho { load, server, now: Instant::ZERO, target: 0 };
        bench.wait_until(connections, |_| barrier.opened() == connections)?;
        bench.target = bench.begin(&barrier, connections)?;
        // First-use allocations are done after a request on each connection.
        bench.run(4 * connections)?;
        bench.load.service_mut().missing = if is_flooded { ATTACKERS } else { 0 };
        Ok(bench)
    }

    /// Returns the number of handshakes that the server has not completed.
    pub fn failed(&self) -> u64 {
        self.server.service().counters().failed
    }
}

impl<E: Engine<MemoryNic>> InTurn for TlsEcho<E> {
    /// Returns the number of records that the server has sent: one for each request.
    fn received(&mut self) -> u64 {
        self.server.service().counters().records_sent
    }

    /// Time is that of the server, whose limits are parts of its time.
    fn turns(&mut self) -> Duration {
        self.load.turn(self.now);
        let began = std::time::Instant::now();
        server_turn(&mut self.server, self.now);
        let spent = began.elapsed();
        self.now += if self.failed() > 0 { spent } else { TURN };
        spent
    }
}

impl<E: Engine<MemoryNic>> Bench for TlsEcho<E> {
    fn run(&mut self, echoes: usize) -> Result<Duration, BenchError> {
        self.target += echoes as u64;
        self.run_to(self.target)
    }
}

/// Load, and connections that each send a ClientHello and end when it has been answered.
struct Flooding {
    load: Tls<Load<EchoLoad>>,
    hello: Vec<u8>,
    /// Connections to open.
    missing: usize,
}

/// Token of the connections of a flood.
const ATTACK: u64 = u64::MAX;

impl Service for Flooding {
    /// True for a connection of the flood.
    type Conn = bool;
    type Message = <Tls<Load<EchoLoad>> as Service>::Message;

    fn start(&mut self, net: &mut impl Transport) {
        self.load.start(net);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> bool {
        let is_attack = origin == Origin::Connected(ATTACK);
        if is_attack {
            net.write(conn, &self.hello);
        } else {
            self.load.opened(net, conn, origin);
        }
        is_attack
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, error: ConnectError) {
        match token {
            ATTACK => self.missing += 1,
            _ => self.load.failed(net, token, error),
        }
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, is_attack: &mut bool) {
        match is_attack {
            true => net.abort(conn),
            false => self.load.readable(net, conn, &mut ()),
        }
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, is_attack: &mut bool) {
        if !*is_attack {
            self.load.timer(net, conn, &mut ());
        }
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, is_attack: &mut bool) {
        if !*is_attack {
            self.load.writable(net, conn, &mut ());
        }
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        for _ in 0..std::mem::take(&mut self.missing) {
            net.connect(SERVER.into(), ATTACK);
        }
        self.load.turn(net)
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, is_attack: bool, reason: CloseReason) {
        match is_attack {
            true => self.missing += 1,
            false => self.load.closed(net, conn, (), reason),
        }
    }
}

/// Returns a ClientHello that the server answers with its certificate and a signature.
fn hello() -> Vec<u8> {
    let with_length = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let extension = |kind: u8, content: &[u8]| [&[0, kind][..], &with_length(content)].concat();
    let share = [&[0, 29][..], &with_length(&[9; 32])].concat();
    let extensions = [
        // Version, group X25519 with a share, and signatures by ECDSA.
        extension(43, &[2, 3, 4]),
        extension(10, &with_length(&[0, 29])),
        extension(51, &with_length(&share)),
        extension(13, &with_length(&[4, 3])),
    ];
    let suites = [&[0][..], &with_length(&[0x13, 1]), &[1, 0]].concat();
    let body = [&[3, 3][..], &[7; 32], &suites, &with_length(&extensions.concat())].concat();
    [&[22, 3, 1][..], &with_length(&[&[1, 0][..], &with_length(&body)].concat())].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::memory_nic::MemoryPacket;
    use linerate_stack::NativeEngine;

    type Native = TlsEcho<NativeEngine<MemoryPacket>>;

    #[test]
    fn a_record_is_one_frame() {
        let mut bench = Native::new(40, 64, PairOptions::default(), false).unwrap();
        let before = bench.server.summary();
        bench.run(4000).unwrap();
        let after = bench.server.summary();
        let [received, sent] = [after.rx_frames - before.rx_frames, after.tx_frames - before.tx_frames];
        assert!((4000..4040).contains(&received), "{received}");
        assert!(received.abs_diff(sent) <= 40, "{received} and {sent}");
    }

    #[test]
    fn handshakes_of_a_flood_fail_after_the_signature() {
        let mut bench = Native::new(40, 64, PairOptions::default(), true).unwrap();
        bench.run(40_000).unwrap();
        let counters = bench.server.service().counters();
        assert!(counters.failed > 0 && counters.alerts_sent.is_empty(), "{counters:?}");
    }
}
