//! Streams arrive intact, over any number of connections.

use crate::common::{Running, client, echo_exact, listening, local, turn_until, worker};
use crate::services::Echo;
use linerate_kernel::{Config, bind};
use linerate_service::{CloseReason, Summary};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

#[test]
fn hundred_megabytes_return_intact_after_the_client_closes() {
    let server = Running::start(&listening(), Echo::default());
    echo_exact(server.address, 100_000_000);
    let (echo, summary) = server.finish();
    assert_eq!(echo.closed, [CloseReason::Finished]);
    assert_eq!((summary.rx_bytes, summary.tx_bytes, summary.copied_bytes), (100_000_000, 100_000_000, 0));
    assert_eq!((summary.accepted, summary.finished, summary.broken), (1, 1, 0));
}

#[test]
fn spinning_worker_echoes_like_a_sleeping_one() {
    let server = Running::start(&Config { spin: true, ..listening() }, Echo::default());
    echo_exact(server.address, 1_000_000);
    assert_eq!(server.finish().0.closed, [CloseReason::Finished]);
}

#[test]
fn tiny_buffers_only_slow_a_stream_down() {
    let config = Config { rx_buffer: 100, tx_buffer: 70, memory: 1, ..listening() };
    let server = Running::start(&config, Echo::default());
    echo_exact(server.address, 100_000);
    let (echo, summary) = server.finish();
    assert_eq!(echo.closed, [CloseReason::Finished]);
    assert!(echo.most_received <= 100);
    assert_eq!(summary.tx_bytes, 100_000);
}

#[test]
fn thousand_connections_get_their_own_bytes() {
    let server = Running::start(&listening(), Echo::default());
    let mut clients: Vec<_> = (0..1000).map(|_| client(server.address)).collect();
    for round in 0..3u32 {
        for (number, client) in clients.iter_mut().enumerate() {
            client.write_all(&(number as u32 ^ round).to_le_bytes()).unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let mut reply = [0; 4];
            client.read_exact(&mut reply).unwrap();
            assert_eq!(u32::from_le_bytes(reply), number as u32 ^ round);
        }
    }
    for client in &mut clients {
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    }
    let (echo, summary) = server.finish();
    assert_eq!((summary.accepted, summary.finished, summary.broken), (1000, 1000, 0));
    assert_eq!(echo.bursts, echo.readable, "every readable event was announced in a burst");
    assert_eq!(summary.rx_frames as usize, echo.readable);
}

#[test]
fn workers_share_a_port_and_its_connections() {
    let (_, sockets) = bind(&listening(), 3).unwrap();
    let address = sockets[0].tcp_addrs()[0];
    let workers: Vec<_> = sockets.into_iter().map(|sockets| Running::on(sockets, Echo::default())).collect();
    for _ in 0..200 {
        echo_exact(address, 10);
    }
    let accepted: Vec<u64> = workers.into_iter().map(|worker| worker.finish().1.accepted).collect();
    assert_eq!(accepted.iter().sum::<u64>(), 200);
    assert!(accepted.iter().all(|&n| n > 0), "{accepted:?}");
}

#[test]
fn connections_to_the_port_of_a_worker_are_its_own() {
    // Free ports one after the other. Another program may take one before they are bound.
    let sockets = (0..100).find_map(|_| {
        let first = TcpListener::bind(local()).unwrap().local_addr().unwrap();
        let config = Config { listen_by_worker: vec![first], ..listening() };
        bind(&config, 3).ok().map(|(_, sockets)| (first, sockets))
    });
    let (first, sockets) = sockets.expect("three free ports");
    let addresses: Vec<SocketAddr> = sockets.iter().flat_map(|sockets| sockets.own_tcp_addrs()).collect();
    assert_eq!(addresses.iter().map(|own| own.port() - first.port()).collect::<Vec<_>>(), [0, 1, 2]);
    let workers: Vec<_> = sockets.into_iter().map(|sockets| Running::on(sockets, Echo::default())).collect();
    for (worker, address) in addresses.iter().enumerate() {
        (0..5 * (worker + 1)).for_each(|_| echo_exact(*address, 10));
    }
    let accepted: Vec<u64> = workers.into_iter().map(|worker| worker.finish().1.accepted).collect();
    assert_eq!(accepted, [5, 10, 15]);
}

#[test]
fn ipv6_stream_is_echoed() {
    let server =
        Running::start(&Config { listen: vec!["[::1]:0".parse().unwrap()], ..Config::default() }, Echo::default());
    echo_exact(server.address, 100_000);
    assert_eq!(server.finish().1.finished, 1);
}

#[test]
fn turns_and_busy_turns_are_counted() {
    for spin in [false, true] {
        let mut worker = worker(&Config { spin, ..listening() }, Echo::default());
        let address = worker.tcp_addrs()[0];
        let mut streams: Vec<TcpStream> = (0..3).map(|_| client(address)).collect();
        turn_until(&mut worker, "all accepted", |worker| worker.summary().accepted == 3);
        worker.turn(Duration::ZERO);
        let before = worker.summary().clone();
        // Over loopback, sent data are available at once.
        streams.iter_mut().for_each(|stream| stream.write_all(b"hello").unwrap());
        worker.turn(Duration::ZERO);
        let after = worker.summary().clone();
        let counts = |summary: &Summary| [summary.rx_frames, summary.bursts, summary.busy_turns, summary.turns];
        let grown = |after: &Summary| -> Vec<u64> {
            counts(after).iter().zip(counts(&before)).map(|(after, before)| after - before).collect()
        };
        assert_eq!(grown(&after), [3, 1, 1, 1], "spin: {spin}");
        (0..5).for_each(|_| worker.turn(Duration::ZERO));
        let [.., busy, turns] = grown(worker.summary())[..] else { unreachable!() };
        assert!(busy < 5 && turns == 6, "spin: {spin}: {busy} of {turns}");
    }
}
