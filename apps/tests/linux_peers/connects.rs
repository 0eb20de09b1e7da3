//! Many connections, one after the other: each is accepted, served and forgotten.

use super::client::{connect, exchange, random};
use super::engine::on_engine;
use super::namespace::in_namespaces;
use super::wire::{Wire, servers};
use rustix::net::sockopt::set_socket_linger;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

/// Clients at a time, over IPv4 and IPv6 by turns.
const CLIENTS: usize = 8;
const CONNECTIONS: usize = 10_000;
const RESETS: usize = 2_000;

/// Has clients open `connections` connections to an echo server, do `use_up` with each, and checks that the server
/// counted them all under `counter`.
fn connections(name: &str, wire: Wire, connections: usize, counter: &str, use_up: fn(TcpStream, [u8; 8])) {
    in_namespaces(name, |namespace| {
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
        // It is as good as new.
        servers.into_iter().for_each(|server| exchange(server, &random(1 << 20), 1));
        let ended = program.stop();
        assert!(ended.status.success(), "{ended:?}");
        let summary = ended.json();
        assert_eq!(summary["accepted"], connections + 2, "{summary}");
        let two = if counter == "finished" { 2 } else { 0 };
        assert_eq!(summary[counter], connections + two, "{summary}");
    });
}

/// A word goes there and back, and then both sides close, the client first.
fn finish(mut stream: TcpStream, word: [u8; 8]) {
    stream.write_all(&word).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert_eq!(back, word);
}

/// A word goes there and back, and then the client resets the connection.
fn reset(mut stream: TcpStream, word: [u8; 8]) {
    stream.write_all(&word).unwrap();
    let mut back = [0; 8];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, word);
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

#[test]
fn ten_thousand_connections_over_af_xdp_are_opened_and_closed() {
    let name = "connects::ten_thousand_connections_over_af_xdp_are_opened_and_closed";
    connections(name, Wire::AfXdp, CONNECTIONS, "finished", finish);
}

#[test]
fn ten_thousand_connections_over_tap_are_opened_and_closed() {
    let name = "connects::ten_thousand_connections_over_tap_are_opened_and_closed";
    connections(name, Wire::Tap, CONNECTIONS, "finished", finish);
}

#[test]
fn connections_that_clients_reset_are_forgotten() {
    connections("connects::connections_that_clients_reset_are_forgotten", Wire::AfXdp, RESETS, "broken", reset);
}
