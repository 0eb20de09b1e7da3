//! Linux clients during a flood of SYNs from addresses that do not answer (RFC 4987), or of neighbour solicitations
//! from forged addresses (RFC 6583).

use super::engine::{needs_native, on_engine};
use super::spoofed::Flood;
use crate::common::client::{connect, exchange, random};
use crate::common::summary;
use crate::common::wire::{V4, V6, Wire};
use linerate_harness::rerun::in_namespaces;
use linerate_harness::{tests, wait_for};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// SYNs per millisecond. Within the lifetime of a half-open connection they exceed the limit many times.
const RATE: u32 = 10;
/// Number of SYNs before the measurement, above the limit of half-open connections.
const BEFORE: u64 = 10_000;
/// Duration of the measurement.
const TIME: Duration = Duration::from_secs(2);
/// Time limit of a new connection from SYN to close. A lost SYN is retransmitted after one second.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// Minimum number of new connections. On an idle machine there are thousands.
const MIN_CONNECTIONS: u64 = 20;

/// Floods the address `to` of an echo server and runs `meanwhile` with an open connection and the end time. `meanwhile`
/// returns the number of connections that it opened; the server must have accepted exactly these.
fn flooded(wire: Wire, to: &str, meanwhile: impl FnOnce(&mut TcpStream, Instant) -> u64) {
    in_namespaces(|namespace| {
        let to: SocketAddr = to.parse().unwrap();
        wire.connect(namespace);
        // Replies to the flood go to the kernel, which drops them.
        let program = wire.serve(&on_engine("echo --gateway 10.9.0.1 --gateway fd09::1"), namespace);
        let mut before = connect(to);
        echo(&mut before);
        let (sent, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let opened = std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            scope.spawn(|| Flood::new(to).run(RATE, &sent, &stop));
            wait_for("the flood", || sent.load(Ordering::Relaxed) >= BEFORE);
            meanwhile(&mut before, Instant::now() + TIME)
        });
        echo(&mut before);
        drop(before);
        let summary = summary(&program.stop());
        assert_eq!(summary["accepted"], opened + 1, "{sent:?} SYNs: {summary}");
        for cause in ["bad TCP or UDP checksum", "bad IPv4 checksum", "truncated frame"] {
            assert!(summary["drops"].get(cause).is_none(), "not a flood of SYNs: {summary}");
        }
    });
}

/// Stops the flood, even on panic.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn echo(stream: &mut TcpStream) {
    let bytes = random(10_000);
    let mut back = vec![0; bytes.len()];
    stream.write_all(&bytes).unwrap();
    stream.read_exact(&mut back).unwrap();
    assert!(back == bytes, "other bytes came back");
}

/// Solicitations per millisecond, and their number before the measurement, above the capacity of the neighbour table.
const SOLICITATIONS: u32 = 100;
const BEFORE_SOLICITED: u64 = 25_000;
/// Duration after which all solicitations may have stayed within the rate limit.
const SLOW: Duration = Duration::from_secs(20);

/// Tests an open IPv6 connection and a new IPv4 neighbour during a flood of solicitations.
fn solicitation_flood(wire: Wire) {
    in_namespaces(|namespace| {
        let [v4, v6] = [V4, V6].map(|to| to.parse().unwrap());
        wire.connect(namespace);
        let program = wire.serve(&on_engine("echo"), namespace);
        let mut before = connect(v6);
        echo(&mut before);
        let (sent, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let started = Instant::now();
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            scope.spawn(|| Flood::solicitations(v6).run(SOLICITATIONS, &sent, &stop));
            wait_for("the flood", || sent.load(Ordering::Relaxed) >= BEFORE_SOLICITED);
            echo(&mut before);
            echo(&mut connect(v4));
            echo(&mut connect(v6));
        });
        let was_slow = started.elapsed() > SLOW;
        drop(before);
        let drops = &summary(&program.stop())["drops"];
        assert!(was_slow || drops["unsolicited neighbour beyond the rate limit"].as_u64() > Some(0), "{drops}");
        assert!(drops.get("neighbour table full").is_none(), "{drops}");
    });
}

tests! {
    neighbors_are_served_during_solicitation_flood_over_af_xdp => solicitation_flood(Wire::AfXdp);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    neighbors_are_served_during_solicitation_flood_over_tap => solicitation_flood(Wire::Tap);
}

fn open_connection_works_during_flood(wire: Wire, to: &str) {
    flooded(wire, to, |before, end| {
        while Instant::now() < end {
            echo(before);
        }
        0
    });
}

fn new_connections_open_during_flood(wire: Wire, to: &str) {
    if !needs_native() {
        return;
    }
    flooded(wire, to, |_, end| {
        let server = to.parse().unwrap();
        let mut opened = 0;
        while Instant::now() < end {
            let started = Instant::now();
            let mut stream = connect(server);
            echo(&mut stream);
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            assert!(started.elapsed() < CONNECTION_LIMIT, "connection {opened} took {:?}", started.elapsed());
            opened += 1;
        }
        assert!(opened >= MIN_CONNECTIONS, "{opened} connections opened");
        // SYN cookies preserve window scaling and SACK, so a megabyte is as fast as without a flood.
        exchange(server, &random(1 << 20), 1);
        opened + 1
    });
}

tests! {
    open_connection_survives_flood_over_af_xdp_and_ipv4 => open_connection_works_during_flood(Wire::AfXdp, V4);
    open_connection_survives_flood_over_tap_and_ipv6 => open_connection_works_during_flood(Wire::Tap, V6);
    new_connections_open_during_flood_over_af_xdp_and_ipv4 => new_connections_open_during_flood(Wire::AfXdp, V4);
    #[ignore = "over IPv4 by default: ./run test --all"]
    new_connections_open_during_flood_over_af_xdp_and_ipv6 => new_connections_open_during_flood(Wire::AfXdp, V6);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    new_connections_open_during_flood_over_tap_and_ipv4 => new_connections_open_during_flood(Wire::Tap, V4);
}
