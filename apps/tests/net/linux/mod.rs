//! Linux clients of servers on `af_xdp:` and `tap:`, configured with addresses only.

mod network;
mod slaac;
mod workers;

use crate::common::client::{connect, exchange, random};
use crate::common::wire::{ADDRESSES, V4, Wire, linerate_in, servers};
use crate::common::{assert_refused, linerate, stop, summary};
use linerate_harness::program::{Program, ip};
use linerate_harness::rerun::{command as role, in_namespaces, plays};
use linerate_harness::{TIMEOUT, tests, wait_for};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs `body` of this test with an echo server, and checks the summary of the server.
fn with_echo(wire: Wire, body: impl FnOnce()) {
    in_namespaces(|server| {
        wire.connect(server);
        let program = wire.serve("echo", server);
        body();
        let summary = stop(program);
        assert!(summary["rx_bytes"].as_u64() > Some(0), "{summary}");
    });
}

/// Echoes 100 MB over 1, 64 and 1000 connections, each half-closed after its part.
fn streams() {
    let bytes = random(100_000_000);
    for server in servers() {
        for connections in [1, 64, 1000] {
            exchange(server, &bytes, connections);
        }
    }
}

tests! {
    af_xdp_returns_100_mb_exactly_over_1_64_and_1000_connections => with_echo(Wire::AfXdp, streams);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    tap_returns_100_mb_exactly_over_1_64_and_1000_connections => with_echo(Wire::Tap, streams);
}

/// Checks ping, half-closed connections, closed ports and datagrams.
fn host_behaviour() {
    for server in servers() {
        let ip = server.ip().to_string();
        let ping = Command::new("ping").args(["-c", "3", "-i", "0.2", "-W", "5", &ip]).output().unwrap();
        assert!(ping.status.success(), "{ping:?}");
        half_closed(server);
        refused(server);
        datagrams(server);
    }
}

/// Sends everything and closes the client's side before reading.
fn half_closed(server: SocketAddr) {
    for len in [0, 1, 1_000, 100_000] {
        let bytes = random(len);
        let mut stream = connect(server);
        stream.write_all(&bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == bytes, "{} of {len} bytes came back", back.len());
    }
}

fn refused(server: SocketAddr) {
    let closed = SocketAddr::new(server.ip(), 99);
    let error = TcpStream::connect_timeout(&closed, TIMEOUT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
}

fn datagrams(server: SocketAddr) {
    let any: SocketAddr = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
    let socket = UdpSocket::bind(any).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.connect(server).unwrap();
    for len in [0, 1, 64, 1_400] {
        let bytes = random(len);
        socket.send(&bytes).unwrap();
        let mut back = [0; 2_000];
        let n = socket.recv(&mut back).unwrap();
        assert!(back[..n] == bytes, "{len} bytes became {n}");
    }
}

tests! {
    af_xdp_answers_ping_half_closed_connections_datagrams_and_closed_ports => with_echo(Wire::AfXdp, host_behaviour);
    tap_answers_ping_half_closed_connections_datagrams_and_closed_ports => with_echo(Wire::Tap, host_behaviour);
}

/// Role of a client that sends and reads continuously.
const STREAMER: &str = "streamer";

/// Tests other clients next to a client that is killed and one that stops reading.
fn bad_clients(wire: Wire) {
    if plays(STREAMER) {
        let mut stream = connect(V4.parse().unwrap());
        let bytes = random(1 << 20);
        let mut back = vec![0; 1 << 19];
        println!("streaming");
        loop {
            // Reads less than it writes, so that pending data grows with each round.
            stream.write_all(&bytes[..1 << 19]).unwrap();
            stream.read_exact(&mut back[..1 << 18]).unwrap();
        }
    }
    with_echo(wire, || {
        let [v4, v6] = servers();
        // Fills the buffers of the server, the wire and both kernels, and never reads.
        let mut blocked = connect(v6);
        blocked.set_nonblocking(true).unwrap();
        let bytes = random(1 << 20);
        let mut sent = 0;
        let mut last_sent = Instant::now();
        wait_for("the end of the window", || {
            while let Ok(n) = blocked.write(&bytes[sent % bytes.len()..]) {
                sent += n;
                last_sent = Instant::now();
            }
            last_sent.elapsed() > Duration::from_millis(300)
        });
        exchange(v4, &bytes, 4);

        let mut streamer = Program::start(role(STREAMER));
        streamer.wait_for_line("streaming");
        exchange(v4, &bytes, 4);
        streamer.kill();
        exchange(v4, &bytes, 4);
        exchange(v6, &bytes, 4);

        // The blocked client has lost no data.
        blocked.set_nonblocking(false).unwrap();
        let mut back = vec![0; bytes.len().min(sent)];
        blocked.read_exact(&mut back).unwrap();
        assert!(bytes.starts_with(&back));
    });
}

tests! {
    af_xdp_clients_are_unaffected_by_a_dead_or_blocked_one => bad_clients(Wire::AfXdp);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    tap_clients_are_unaffected_by_a_dead_or_blocked_one => bad_clients(Wire::Tap);
}

/// Tests bulk transfer in both directions: discard consumes, and chargen sends until the client closes.
fn discard_and_chargen(wire: Wire) {
    in_namespaces(|server| {
        wire.connect(server);
        let program = wire.serve("discard", server);
        for server in servers() {
            let mut stream = connect(server);
            stream.write_all(&random(10_000_000)).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        }
        let summary = program.stop().json();
        assert!(summary["rx_bytes"].as_u64().unwrap() > 20_000_000, "{summary}");
        assert_eq!(summary["finished"], 2, "{summary}");

        let program = wire.serve("chargen", server);
        for server in servers() {
            let mut stream = connect(server);
            let mut lines = vec![0; 74 * 95 * 1_000];
            stream.read_exact(&mut lines).unwrap();
            assert!(lines.starts_with(b" !\"#$%&'()") && lines.chunks(74).all(|line| line.ends_with(b"\r\n")));
            stream.shutdown(Shutdown::Write).unwrap();
            stream.read_to_end(&mut lines).unwrap();
        }
        let ended = program.stop();
        assert_eq!(ended.json()["finished"], 2, "{ended:?}");
    });
}

tests! {
    af_xdp_discards_and_generates => discard_and_chargen(Wire::AfXdp);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    tap_discards_and_generates => discard_and_chargen(Wire::Tap);
}

#[test]
fn af_xdp_drops_connections_beyond_the_limit() {
    in_namespaces(|namespace| {
        Wire::AfXdp.connect(namespace);
        let [server, _] = servers();
        let program = Wire::AfXdp.serve("echo --max-connections 2", namespace);
        let open = [connect(server), connect(server)];
        assert!(TcpStream::connect_timeout(&server, Duration::from_millis(300)).is_err());
        drop(open);
        exchange(server, &random(1000), 2);
        let summary = program.stop().json();
        assert_eq!(summary["accepted"], 4, "{summary}");
        assert!(summary["drops"]["too many connections"].as_u64() > Some(0), "{summary}");
    });
}

/// Tests loads as clients of a server over kernel sockets.
fn loads(wire: Wire) {
    in_namespaces(|namespace| {
        wire.connect(namespace);
        let server = "echo serve --via kernel --listen 0.0.0.0:7 --listen [::]:7 --json";
        let server = Program::serve(linerate(server));
        for load in
            ["--connect 10.9.0.1:7 --connections 64", "--connect [fd09::1]:7 --connections 3 --size 100000 --depth 2"]
        {
            let report = summary(&wire.load(&format!("echo {load} --duration 300ms"), namespace).wait());
            assert!(report["errors"] == 0 && report["requests"].as_u64() > Some(0), "{report}");
        }
        assert_eq!(server.stop().json()["accepted"], 67);
    });
}

tests! {
    loads_over_af_xdp_reach_a_kernel_server => loads(Wire::AfXdp);
    loads_over_tap_reach_a_kernel_server => loads(Wire::Tap);
}

#[test]
fn af_xdp_serves_again_after_a_kill_and_after_the_link_was_down() {
    in_namespaces(|namespace| {
        let wire = Wire::AfXdp;
        wire.connect(namespace);
        let [server, _] = servers();
        wire.serve("echo", namespace).kill();
        // The killed server is no obstacle, but a running server is.
        let program = wire.serve("echo", namespace);
        exchange(server, &random(100_000), 2);
        let second = linerate_in(namespace, &format!("echo serve --via af_xdp:lr1 {ADDRESSES}"));
        assert_refused(second, 1, &["lr1"]);
        exchange(server, &random(100_000), 2);
        // An open connection survives link loss.
        let mut stream = connect(server);
        for end in ["link set lr0".to_owned(), format!("-n {namespace} link set lr1")] {
            ip(&format!("{end} down"));
            ip(&format!("{end} up"));
            stream.write_all(b"still open!").unwrap();
            let mut back = [0; 11];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(&back, b"still open!");
        }
        drop(stream);
        assert!(program.stop().status.success());
    });
}
