//! Connection setup by the TCP exchange over real TCP, including foreign peers.

use crate::connector::{ExchangeError, Listeners, MAX_PENDING};
use crate::tests::rig::{Peer, Rig, Setup};
use crate::{Config, Connect};
use linerate_roce::testing::{DeviceConfig, Fabric, FabricConfig};
use linerate_service::{CloseReason, ConnectError};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

fn setup(seed: u64, config: Config) -> Setup {
    // A step takes one microsecond.
    let config = Config { connect: Connect::Exchange, connect_timeout: Duration::from_millis(20), ..config };
    Setup { seed, network: [127, 0, 0], config, ..Setup::default() }
}

/// Creates two ends. The second one listens on the returned address.
fn rig(setup: &Setup, parts: &[(usize, bool)]) -> (Rig, SocketAddr) {
    let mut rig = Rig::new(setup, [Peer::sends(parts), Peer::echoes()]);
    let address = rig.listens("127.0.0.2:0".parse().unwrap());
    (rig, address)
}

/// Like [`rig`], with a connect from the first end to the second.
fn connecting(setup: &Setup, parts: &[(usize, bool)]) -> Rig {
    let (mut rig, address) = rig(setup, parts);
    rig.connect_to(address);
    rig
}

fn defaults() -> Config {
    Setup::default().config
}

#[test]
fn exchange_opens_and_closes_without_leftovers() {
    for seed in 0..30 {
        let config =
            Config { offer_from: 3000, srq: (seed % 3 == 0).then_some(8), pool: seed as usize % 4, ..defaults() };
        let setup = setup(seed, config);
        let mut rig = connecting(&setup, &[(100, false), (5000, true), (20, true)]);
        rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended == [CloseReason::Finished]));
        assert_eq!(rig.ends[0].worker.service().received, 5120);
        assert_eq!(rig.fabric.not_ready(), 0);
        // No connection manager is used.
        assert_eq!(rig.fabric.live().cm_channels, 0);
        let fabric = rig.fabric.clone();
        rig.run_until(|_| fabric.live().qps == 2 * setup.config.pool);
        rig.end();
    }
}

#[test]
fn addresses_match_the_tcp_connection() {
    let (mut rig, address) = rig(&setup(1, defaults()), &[(100, false)]);
    rig.connect_to(address);
    rig.run_until(|ends| ends.iter().all(|end| end.worker.service().addresses.is_some()));
    let [a, b] = [0, 1].map(|n| rig.ends[n].worker.service().addresses.unwrap());
    assert_eq!((a.1, a), (address, (b.1, b.0)));
    assert_eq!(a.0.ip().to_string(), "127.0.0.1");
}

#[test]
fn exchange_without_listener_is_refused() {
    // The devices of the rig have other addresses, so every port of this one is closed.
    let address = "127.0.0.9:7".parse().unwrap();
    let (mut rig, _) = rig(&setup(1, defaults()), &[(100, false)]);
    rig.connect_to(address);
    rig.run_until(|ends| ends[0].worker.service().failed == [(7, ConnectError::Refused)]);
}

#[test]
fn stop_listening_serves_waiting_client_and_refuses_next() {
    let (mut rig, address) = rig(&setup(1, defaults()), &[(100, false)]);
    rig.connect_to(address);
    rig.run_until(|ends| ends[1].worker.service().addresses.is_some());
    rig.ends[1].worker.stop_listening();
    rig.run_until(|ends| ends.iter().all(|end| !end.worker.service().ended.is_empty()));
    assert_eq!(rig.ends[1].worker.service().received, 100);
    rig.connect_to(address);
    rig.run_until(|ends| ends[0].worker.service().failed == [(7, ConnectError::Refused)]);
}

/// Runs `peer` as the server that the first end has connected to. Returns the resulting error.
fn error_after(peer: impl FnOnce(&mut TcpStream)) -> ConnectError {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let (mut rig, _) = rig(&setup(1, defaults()), &[(100, false)]);
    rig.connect_to(listener.local_addr().unwrap());
    // The kernel accepts the connection.
    let fabric = rig.fabric.clone();
    rig.run_until(|ends| fabric.live_of(&ends[0].device).qps == 1);
    let (mut stream, _) = listener.accept().unwrap();
    peer(&mut stream);
    rig.run_until(|ends| !ends[0].worker.service().failed.is_empty());
    assert_eq!(rig.fabric.live().qps, 0);
    rig.ends[0].worker.service().failed[0].1
}

#[test]
fn malformed_reply_is_refused_and_silent_server_times_out() {
    assert_eq!(error_after(|peer| peer.write_all(&[b'x'; 100]).unwrap()), ConnectError::Refused);
    assert_eq!(error_after(|peer| peer.shutdown(std::net::Shutdown::Both).unwrap()), ConnectError::Refused);
    assert_eq!(error_after(|_| ()), ConnectError::TimedOut);
    // An echo of the client's attributes contains a wrong address.
    let echo = |peer: &mut TcpStream| {
        let mut record = [0; 56];
        peer.read_exact(&mut record).unwrap();
        peer.write_all(&record).unwrap();
    };
    assert_eq!(error_after(echo), ConnectError::Refused);
}

/// Returns true if the other end has closed `stream`.
fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(0) => true,
        Ok(_) => panic!("unexpected reply"),
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[test]
fn malformed_partial_or_silent_clients_are_dropped() {
    let (mut rig, address) = rig(&setup(1, defaults()), &[(100, false)]);
    let send = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let strangers = [
        send(b"GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: somebody else\r\n\r\n"),
        send(b"lrrdma\0\x01half"),
        send(b""),
    ];
    rig.run_until(|_| strangers.iter().all(is_closed));
    assert!(rig.ends.iter().all(|end| end.worker.service().ended.is_empty()));
    assert_eq!(rig.fabric.live().qps, 0);
    rig.connect_to(address);
    rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended == [CloseReason::Finished]));
}

#[test]
fn excess_clients_wait_and_are_served() {
    let few = setup(1, defaults());
    let few = Setup { config: Config { connect_timeout: Duration::from_millis(2), ..few.config }, ..few };
    let (mut rig, address) = rig(&few, &[(100, false)]);
    let mut strangers = Vec::new();
    for _ in 0..MAX_PENDING + 50 {
        strangers.push(TcpStream::connect(address).unwrap());
        // The kernel may keep no more than 128 waiting clients.
        (0..10).for_each(|_| rig.step());
    }
    rig.run_until(|_| strangers.iter().all(is_closed));
    rig.connect_to(address);
    rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended == [CloseReason::Finished]));
}

#[test]
fn exchange_connections_are_limited() {
    for (most, refused, outcome) in [([1, 9], 2, ConnectError::TooMany), ([9, 1], 2, ConnectError::Refused)] {
        let one = setup(1, defaults());
        let setups = most.map(|max_connections| Config { max_connections, ..one.config.clone() });
        // A connection without traffic stays open.
        let mut rig = Rig::with(&one, &setups, [Peer::echoes(), Peer::echoes()]);
        let address = rig.ends[1].connects(&["127.0.0.2:0".parse().unwrap()])[0];
        rig.ends[0].connects(&[]);
        (0..=refused).for_each(|_| rig.connect_to(address));
        rig.run_until(|ends| ends[0].worker.service().failed.len() == refused);
        assert_eq!(rig.ends[0].worker.service().failed, vec![(7, outcome); refused]);
        let fabric = rig.fabric.clone();
        rig.run_until(|_| fabric.live().qps == 2);
    }
}

#[test]
fn end_of_tcp_connection_ends_connection() {
    let (mut rig, address) = rig(&setup(1, defaults()), &[(100_000, false)]);
    rig.connect_to(address);
    rig.run_until(|ends| ends[1].worker.service().received > 0);
    // Simulates the end of the process, which closes its sockets.
    drop(rig.ends[0].connector.take());
    rig.run_until(|ends| ends[1].worker.service().ended == [CloseReason::Reset]);
}

#[test]
fn foreign_address_cannot_be_listened_on() {
    let fabric = Fabric::new(FabricConfig::default());
    let device = fabric.device("roce", DeviceConfig::roce([127, 0, 0, 2].into()));
    let listens =
        |address: &str| Listeners::by_exchange(&device, &[address.parse().unwrap()], &Config::default()).err();
    assert!(listens("127.0.0.2:0").is_none() && listens("0.0.0.0:0").is_none());
    assert!(matches!(listens("127.0.0.1:0"), Some(ExchangeError::NotOfDevice(ip)) if ip.to_string() == "127.0.0.1"));
    let other = TcpListener::bind("127.0.0.2:0").unwrap();
    let taken = other.local_addr().unwrap();
    assert!(matches!(listens(&taken.to_string()), Some(ExchangeError::Listen { address, .. }) if address == taken));
}

#[test]
fn iwarp_has_no_exchange() {
    let fabric = Fabric::new(FabricConfig::default());
    let device = fabric.device("iwarp", DeviceConfig::iwarp([127, 0, 0, 2].into()));
    assert!(matches!(Listeners::by_exchange(&device, &[], &Config::default()).err(), Some(ExchangeError::Iwarp)));
}
