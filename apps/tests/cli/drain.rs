//! `--drain`: a server under load ends without losing a request.

use crate::{common, connect};
use linerate_harness::metrics::await_metric;
use linerate_harness::program::Program;
use linerate_harness::{TIMEOUT, tests, wait_for};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

fn serve(service: &str, args: &str) -> Program {
    crate::serve(service, &format!("--json {args}"))
}

/// Sends SIGTERM and waits until the server reports that it drains this number of connections.
#[track_caller]
fn drain(server: &mut Program, connections: &str) {
    server.signal(Signal::TERM);
    assert_eq!(server.wait_for_log("draining"), format!("draining: {connections}"));
}

/// Returns the summary of a server that ends successfully.
#[track_caller]
fn summary(server: Program) -> serde_json::Value {
    common::summary(&server.wait())
}

fn echo_hello(stream: &mut TcpStream) {
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
}

/// Stops the server during a load, which must run to its end without errors.
fn no_request_is_lost(service: &str, serve: &str, load: &str) {
    let mut server = self::serve(service, &format!("--drain 1m --metrics 127.0.0.1:0 {serve}"));
    let connect = format!("--connect {} --connections 8 --duration 2s --json", server.address());
    let load = common::start(&format!("{service} load --via kernel {connect} {load}"));
    wait_for("the connections", || connections_to(server.address()) == 8);
    await_metric(&server.ready, "linerate_rx_frames_total", 100);
    drain(&mut server, "8 connections");
    let report = summary(load);
    assert!(report["errors"] == 0 && report["seconds"].as_f64() >= Some(1.9), "{report}");
    let summary = summary(server);
    assert_eq!(summary["broken"], 0, "{summary}");
}

/// Returns the number of established connections to a loopback port, counted in the kernel's table at the client ends.
fn connections_to(address: SocketAddr) -> usize {
    let established = format!(":{:04X} 01 ", address.port());
    std::fs::read_to_string("/proc/self/net/tcp").unwrap().matches(&established).count()
}

tests! {
    draining_echo_server_completes_a_load => no_request_is_lost("echo", "", "");
    draining_server_with_two_workers_completes_a_load => no_request_is_lost("echo", "--workers 2", "--depth 4");
    draining_split_server_completes_a_load => no_request_is_lost("echo", "--threading split", "");
    draining_key_value_server_completes_a_load => no_request_is_lost("kv", "--memory 64m", "--keys 1000");
}

#[test]
fn draining_server_refuses_connections_and_ends_with_the_last_one() {
    let mut server = serve("echo", "--drain 5m");
    let mut old = connect(&server);
    echo_hello(&mut old);
    drain(&mut server, "1 connection");
    assert_eq!(TcpStream::connect(server.address()).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(TIMEOUT)).unwrap();
    udp.send_to(b"hello", server.address()).unwrap();
    assert_eq!(udp.recv(&mut [0; 16]).unwrap(), 5);
    echo_hello(&mut old);
    drop(old);
    let summary = summary(server);
    assert_eq!((&summary["accepted"], &summary["finished"]), (&1.into(), &1.into()), "{summary}");
}

#[test]
fn drain_without_connections_ends_at_once() {
    let mut server = serve("discard", "--drain 5m");
    drain(&mut server, "0 connections");
    summary(server);
}

#[test]
fn drain_waits_for_an_open_connection_up_to_its_limit() {
    let mut server = serve("echo", "--drain 700ms");
    let mut idle = connect(&server);
    echo_hello(&mut idle);
    let started = Instant::now();
    drain(&mut server, "1 connection");
    let summary = summary(server);
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(650) && took < TIMEOUT, "{took:?}");
    assert_eq!(summary["broken"], 1, "{summary}");
}

#[test]
fn second_signal_ends_a_drain_with_a_summary_after_a_second() {
    let mut server = serve("echo", "--drain 5m");
    let mut idle = connect(&server);
    echo_hello(&mut idle);
    drain(&mut server, "1 connection");
    let drained = Instant::now();
    // `timeout` sends two signals at once. The repetition has no effect.
    server.signal(Signal::TERM);
    wait_for("a second", || {
        echo_hello(&mut idle);
        drained.elapsed() > Duration::from_secs(1)
    });
    server.signal(Signal::INT);
    let summary = summary(server);
    assert_eq!(summary["accepted"], 1, "{summary}");
}
