//! Many consecutive connections: each is accepted, served and released.

use super::engine::on_engine;
use crate::common::client::{connect, exchange, random};
use crate::common::summary;
use crate::common::wire::{Wire, servers};
use linerate_harness::rerun::in_namespaces;
use linerate_harness::tests;
use rustix::net::sockopt::set_socket_linger;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

/// Number of concurrent clients, alternating between IPv4 and IPv6.
const CLIENTS: usize = 8;
const CONNECTIONS: usize = 10_000;
const RESETS: usize = 2_000;

/// Opens `connections` connections to an echo server, calls `use_up` with each, and checks that the server counts them
/// all under `counter`.
fn connections(wire: Wire, connections: usize, counter: &str, use_up: fn(TcpStream, [u8; 8])) {
    in_namespaces(|namespace| {
        wire.connect(namespace);
        let program = wire.serve(&on_engine("echo"), namespace);
        let servers = servers();
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    for number in (client..connections).step_by(CLIENTS) {
                        use_up(connect(servers[client % 2]), (number as u64).to_be_bytes());
                    }
                });
            }
        });
        // The server still works.
        servers.into_iter().for_each(|server| exchange(server, &random(1 << 20), 1));
        let summary = summary(&program.stop());
        assert_eq!(summary["accepted"], connections + 2, "{summary}");
        let two = if counter == "finished" { 2 } else { 0 };
        assert_eq!(summary[counter], connections + two, "{summary}");
    });
}

/// Echoes a word, then closes both sides, the client first.
fn finish(mut stream: TcpStream, word: [u8; 8]) {
    stream.write_all(&word).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert_eq!(back, word);
}

/// Echoes a word, then resets the connection.
fn reset(mut stream: TcpStream, word: [u8; 8]) {
    stream.write_all(&word).unwrap();
    let mut back = [0; 8];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, word);
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

tests! {
    af_xdp_opens_and_closes_ten_thousand_connections => connections(Wire::AfXdp, CONNECTIONS, "finished", finish);
    #[ignore = "AF_XDP covers most of it: ./run test --all"]
    tap_opens_and_closes_ten_thousand_connections => connections(Wire::Tap, CONNECTIONS, "finished", finish);
    reset_connections_are_released => connections(Wire::AfXdp, RESETS, "broken", reset);
}
