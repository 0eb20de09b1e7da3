//! Draining: new connections are refused, and existing ones lose nothing.

use crate::common::{DEADLINE, Running, client, listening};
use crate::services::Echo;
use linerate_kernel::Config;
use linerate_service::CloseReason;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn echo_hello(stream: &mut TcpStream) {
    stream.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}

fn await_left(server: &Running<Echo>, connections: usize) {
    linerate_harness::wait_for("the number of connections", || server.stop.remaining() == Some(connections));
}

fn drains(config: &Config) {
    let server = Running::start(config, Echo::default());
    let mut old = client(server.address);
    echo_hello(&mut old);
    assert_eq!(server.stop.remaining(), None);
    server.stop.drain();
    await_left(&server, 1);
    let refused = TcpStream::connect(server.address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    echo_hello(&mut old);
    drop(old);
    await_left(&server, 0);
    let (echo, summary) = server.finish();
    assert_eq!(echo.closed, [CloseReason::Finished]);
    assert_eq!((summary.accepted, summary.broken), (1, 0));
}

#[test]
fn draining_worker_refuses_new_and_serves_existing_connections() {
    drains(&listening());
}

#[test]
fn spinning_draining_worker_refuses_new_and_serves_existing_connections() {
    drains(&Config { spin: true, ..listening() });
}

#[test]
fn drain_accepts_connections_in_the_backlog_first() {
    // More than are accepted in one turn.
    const CLIENTS: usize = 300;
    let (_, mut sockets) = linerate_kernel::bind(&listening(), 1).unwrap();
    let sockets = sockets.remove(0);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| client(sockets.tcp_addrs()[0])).collect();
    let mut worker = linerate_kernel::Worker::new(sockets, Echo::default());
    worker.stop_listening();
    assert_eq!(worker.summary().accepted, CLIENTS as u64);
    clients.iter_mut().for_each(|client| client.write_all(b"hello").unwrap());
    let deadline = Instant::now() + DEADLINE;
    while worker.summary().tx_bytes < 5 * CLIENTS as u64 {
        assert!(Instant::now() < deadline);
        worker.turn(Duration::from_millis(1));
    }
    for client in &mut clients {
        client.read_exact(&mut [0; 5]).unwrap();
    }
}
