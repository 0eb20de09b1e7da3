//! A flood of SYNs from addresses that do not answer (RFC 4987), or of neighbour solicitations from made-up addresses (RFC 6583),
//! and Linux clients that go on working meanwhile.

use super::client::{connect, exchange, random};
use super::engine::{is_native_for, on_engine};
use super::namespace::in_namespaces;
use super::program::wait_for;
use super::spoofed::Flood;
use super::wire::{V4, V6, Wire};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// SYNs in a millisecond. In the time that a half-open connection lives they are many times what there may be.
const RATE: u32 = 10;
/// The SYNs before anything is measured: more than there may be half-open connections.
const BEFORE: u64 = 10_000;
/// How long clients work meanwhile.
const TIME: Duration = Duration::from_secs(2);
/// How long a new connection may take from its SYN to its end: a SYN may get lost, and is sent again after a second.
const PATIENT: Duration = Duration::from_secs(10);
/// New connections that come about meanwhile, at least. On an idle machine they are thousands.
const LEAST: u64 = 20;

/// Floods the address `to` of an echo server and runs `meanwhile`, with a connection that was open before and the time
/// when to end. It returns how many connections it has opened: the server must have accepted these and nobody else.
fn flooded(name: &str, wire: Wire, to: &str, meanwhile: impl FnOnce(&mut TcpStream, Instant) -> u64) {
    in_namespaces(name, |namespace| {
        let to: SocketAddr = to.parse().unwrap();
        wire.connect(namespace);
        // What the server answers to the flood goes to the kernel, which drops it.
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
        let ended = program.stop();
        assert!(ended.status.success(), "{ended:?}");
        let summary = ended.json();
        assert_eq!(summary["accepted"], opened + 1, "{sent:?} SYNs: {summary}");
        for cause in ["bad TCP or UDP checksum", "bad IPv4 checksum", "truncated frame"] {
            assert!(summary["drops"].get(cause).is_none(), "it was no flood of SYNs: {summary}");
        }
    });
}

/// Ends a flood, also when what runs meanwhile fails.
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

/// Solicitations in a millisecond, and those before anything is measured: more than the neighbour table holds.
const SOLICITATIONS: u32 = 100;
const BEFORE_SOLICITED: u64 = 25_000;
/// The time after which so many may have been within the rate limit.
const SLOW: Duration = Duration::from_secs(20);

/// During a flood of solicitations an open connection over IPv6 works, and a host connects over IPv4 that was not known before.
fn neighbors_are_served_during_solicitation_flood(name: &str, wire: Wire) {
    in_namespaces(name, |namespace| {
        let [v4, v6] = [V4, V6].map(|to| to.parse().unwrap());
        wire.connect(namespace);
        let program = wire.serve(&on_engine("echo"), namespace);
        let mut before = connect(v6);
        echo(&mut before);
        let (sent, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let began = Instant::now();
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            scope.spawn(|| Flood::of_solicitations(v6).run(SOLICITATIONS, &sent, &stop));
            wait_for("the flood", || sent.load(Ordering::Relaxed) >= BEFORE_SOLICITED);
            echo(&mut before);
            echo(&mut connect(v4));
            echo(&mut connect(v6));
        });
        let was_slow = began.elapsed() > SLOW;
        drop(before);
        let ended = program.stop();
        assert!(ended.status.success(), "{ended:?}");
        let drops = &ended.json()["drops"];
        assert!(was_slow || drops["unsolicited neighbour beyond the rate limit"].as_u64() > Some(0), "{drops}");
        assert!(drops.get("neighbour table full").is_none(), "{drops}");
    });
}

#[test]
fn neighbors_are_served_during_solicitation_flood_over_af_xdp() {
    let name = "flood::neighbors_are_served_during_solicitation_flood_over_af_xdp";
    neighbors_are_served_during_solicitation_flood(name, Wire::AfXdp);
}

#[test]
fn neighbors_are_served_during_solicitation_flood_over_tap() {
    let name = "flood::neighbors_are_served_during_solicitation_flood_over_tap";
    neighbors_are_served_during_solicitation_flood(name, Wire::Tap);
}

fn an_open_connection_works_on(name: &str, wire: Wire, to: &str) {
    flooded(name, wire, to, |before, end| {
        while Instant::now() < end {
            echo(before);
        }
        0
    });
}

fn new_connections_come_about(name: &str, wire: Wire, to: &str) {
    if !is_native_for(name) {
        return;
    }
    flooded(name, wire, to, |_, end| {
        let server = to.parse().unwrap();
        let mut opened = 0;
        while Instant::now() < end {
            let began = Instant::now();
            let mut stream = connect(server);
            echo(&mut stream);
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            assert!(began.elapsed() < PATIENT, "connection {opened} took {:?}", began.elapsed());
            opened += 1;
        }
        assert!(opened >= LEAST, "{opened} connections came about");
        // Window scaling and SACK are not forgotten with the SYN: a megabyte is as fast as ever.
        exchange(server, &random(1 << 20), 1);
        opened + 1
    });
}

#[test]
fn an_open_connection_outlives_a_flood_over_af_xdp_and_ipv4() {
    an_open_connection_works_on("flood::an_open_connection_outlives_a_flood_over_af_xdp_and_ipv4", Wire::AfXdp, V4);
}

#[test]
fn an_open_connection_outlives_a_flood_over_tap_and_ipv6() {
    an_open_connection_works_on("flood::an_open_connection_outlives_a_flood_over_tap_and_ipv6", Wire::Tap, V6);
}

#[test]
fn new_connections_come_about_during_a_flood_over_af_xdp_and_ipv4() {
    let name = "flood::new_connections_come_about_during_a_flood_over_af_xdp_and_ipv4";
    new_connections_come_about(name, Wire::AfXdp, V4);
}

#[test]
fn new_connections_come_about_during_a_flood_over_af_xdp_and_ipv6() {
    let name = "flood::new_connections_come_about_during_a_flood_over_af_xdp_and_ipv6";
    new_connections_come_about(name, Wire::AfXdp, V6);
}

#[test]
fn new_connections_come_about_during_a_flood_over_tap_and_ipv4() {
    new_connections_come_about("flood::new_connections_come_about_during_a_flood_over_tap_and_ipv4", Wire::Tap, V4);
}
