//! `--drain`: a server under load ends without losing a request.

#[expect(dead_code, reason = "each test target uses a part of it")]
mod common;
#[path = "common/metrics.rs"]
mod metrics;

use common::{PATIENCE, Program, Server, text};
use metrics::await_metric;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::Output;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Server whose standard error is read line by line.
struct Draining {
    server: Server,
    log: Receiver<String>,
}

impl Draining {
    fn start(service: &str, args: &str) -> Draining {
        let args = format!("--via kernel --listen 127.0.0.1:0 --json {args}");
        let mut server = Server::start(service, &args);
        let stderr = server.program.child().stderr.take().unwrap();
        let (sender, log) = channel();
        thread::spawn(move || {
            BufReader::new(stderr).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Draining { server, log }
    }

    fn address(&self) -> SocketAddr {
        let (_, rest) = self.server.ready.split_once(" on ").unwrap();
        rest.split_once(" via ").unwrap().0.parse().unwrap()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends SIGTERM and waits until the server reports that it drains this number of connections.
    #[track_caller]
    fn drain(&self, connections: &str) {
        self.server.program.signal(Signal::TERM);
        let line = self.log.recv_timeout(PATIENCE).unwrap();
        assert_eq!(line, format!("draining: {connections}"));
    }

    fn ended(self) -> (serde_json::Value, Output) {
        let output = self.server.program.wait();
        assert!(output.status.success(), "{output:?}");
        (serde_json::from_slice(&output.stdout).unwrap(), output)
    }
}

fn ask(stream: &mut TcpStream) {
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
}

/// Stops the server during a load, which must run to its end without errors.
fn no_request_is_lost(service: &str, serve: &str, load: &str) {
    let server = Draining::start(service, &format!("--drain 1m --metrics 127.0.0.1:0 {serve}"));
    let connect = format!("--connect {} --connections 8 --duration 2s --json", server.address());
    let load = Program::start(&format!("{service} load --via kernel {connect} {load}"));
    let deadline = Instant::now() + PATIENCE;
    while connections_to(server.address()) < 8 {
        assert!(Instant::now() < deadline, "not connected");
        thread::sleep(Duration::from_millis(5));
    }
    await_metric(&server.server.ready, "linerate_rx_frames_total", 100);
    server.drain("8 connections");
    let report = load.wait();
    assert!(report.status.success(), "{report:?}");
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert!(report["errors"] == 0 && report["seconds"].as_f64() >= Some(1.9), "{report}");
    let (summary, _) = server.ended();
    assert_eq!(summary["broken"], 0, "{summary}");
}

/// Returns the number of established connections to a loopback port, counted in the kernel's table at the client ends.
fn connections_to(address: SocketAddr) -> usize {
    let established = format!(":{:04X} 01 ", address.port());
    std::fs::read_to_string("/proc/self/net/tcp").unwrap().matches(&established).count()
}

#[test]
fn draining_echo_server_completes_a_load() {
    no_request_is_lost("echo", "", "");
}

#[test]
fn draining_server_with_two_workers_completes_a_load() {
    no_request_is_lost("echo", "--workers 2", "--depth 4");
}

#[test]
fn draining_split_server_completes_a_load() {
    no_request_is_lost("echo", "--threading split", "");
}

#[test]
fn draining_key_value_server_completes_a_load() {
    no_request_is_lost("kv", "--memory 64m", "--keys 1000");
}

#[test]
fn draining_server_refuses_connections_and_ends_with_the_last_one() {
    let server = Draining::start("echo", "--drain 5m");
    let mut old = server.connect();
    ask(&mut old);
    server.drain("1 connection");
    assert_eq!(TcpStream::connect(server.address()).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    udp.send_to(b"hello", server.address()).unwrap();
    assert_eq!(udp.recv(&mut [0; 16]).unwrap(), 5);
    ask(&mut old);
    drop(old);
    let (summary, _) = server.ended();
    assert_eq!((&summary["accepted"], &summary["finished"]), (&1.into(), &1.into()), "{summary}");
}

#[test]
fn drain_without_connections_ends_at_once() {
    let server = Draining::start("discard", "--drain 5m");
    server.drain("0 connections");
    server.ended();
}

#[test]
fn drain_waits_for_an_open_connection_up_to_its_limit() {
    let server = Draining::start("echo", "--drain 700ms");
    let mut idle = server.connect();
    ask(&mut idle);
    let started = Instant::now();
    server.drain("1 connection");
    let (summary, _) = server.ended();
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(650) && took < PATIENCE, "{took:?}");
    assert_eq!(summary["broken"], 1, "{summary}");
}

#[test]
fn second_signal_ends_a_drain_with_a_summary() {
    let server = Draining::start("echo", "--drain 5m");
    let mut idle = server.connect();
    ask(&mut idle);
    server.drain("1 connection");
    server.server.program.signal(Signal::INT);
    let (summary, output) = server.ended();
    assert_eq!(summary["accepted"], 1, "{}", text(&output.stdout));
}
