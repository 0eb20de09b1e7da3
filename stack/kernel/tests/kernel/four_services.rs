//! The four small services that every transport must support.

use crate::clients::{client, echo_datagrams, echo_exact, receive_exact};
use crate::common::{Running, listening, local, turn_until, worker};
use crate::services::{Chargen, Deferred, Echo, Proxy, UdpEcho, assert_pattern};
use linerate_harness::address::unused_address;
use linerate_kernel::{Config, Worker, bind};
use linerate_service::{CloseReason, ConnectError};
use std::io::{Read, Write};
use std::net::Shutdown;

#[test]
fn chargen_stream_arrives_intact() {
    let length = 30_000_000;
    let server = Running::start(&listening(), Chargen::new(length));
    receive_exact(&client(server.address), length);
    let (_, summary) = server.finish();
    assert_eq!((summary.tx_bytes, summary.copied_bytes), (length, 0));
}

#[test]
fn chargen_waits_for_a_stalled_peer_within_its_buffer() {
    let config = Config { tx_buffer: 100_000, ..listening() };
    let mut worker = worker(&config, Chargen::new(u64::MAX));
    let mut stream = client(worker.tcp_addrs()[0]);
    let stalled = |worker: &mut Worker<Chargen>| {
        // The stream has stalled when turns of one second make no progress.
        let mut before = u64::MAX;
        let mut quiet = 0;
        turn_until(worker, "stream stalled", |worker| {
            let sent = worker.summary().tx_bytes;
            quiet = if sent == before && sent > 0 { quiet + 1 } else { 0 };
            before = sent;
            quiet > 100
        });
    };
    stalled(&mut worker);
    let (sent, written) = (worker.service().sent, worker.summary().tx_bytes);
    assert!(worker.service().held_back > 0);
    assert!(sent - written <= 100_000, "{sent} passed to the transport, {written} taken by the kernel");
    let mut buffer = vec![0; written as usize];
    stream.read_exact(&mut buffer).unwrap();
    assert_pattern(&buffer, 0);
    turn_until(&mut worker, "stream resumed", |worker| worker.summary().tx_bytes > written + 1_000_000);
    drop(stream);
    turn_until(&mut worker, "end of the peer noticed", |worker| !worker.service().closed.is_empty());
    assert_eq!(worker.service().closed, [CloseReason::Reset]);
}

#[test]
fn proxy_splices_both_directions_and_forwards_each_close() {
    let upstream = Running::start(&listening(), Echo::default());
    let proxy = Running::start(&listening(), Proxy::new(upstream.address));
    echo_exact(proxy.address, 20_000_000);
    let (service, summary) = proxy.finish();
    assert_eq!(service.closed, [CloseReason::Finished; 2]);
    assert_eq!((summary.accepted, summary.connected, summary.finished), (1, 1, 2));
    assert_eq!(summary.copied_bytes, 0);
    assert_eq!(upstream.finish().0.closed, [CloseReason::Finished]);
}

#[test]
fn proxy_forwards_a_close_that_precedes_the_upstream_connection() {
    let upstream = Running::start(&listening(), Echo::default());
    let proxy = Running::start(&listening(), Proxy::new(upstream.address));
    for _ in 0..50 {
        let mut stream = client(proxy.address);
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    }
    let (service, _) = proxy.finish();
    assert_eq!(service.closed, [CloseReason::Finished; 100]);
    drop(upstream.finish());
}

#[test]
fn proxy_with_refused_upstream_resets_its_client() {
    let closed = unused_address();
    let proxy = Running::start(&listening(), Proxy::new(closed));
    let error = client(proxy.address).read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let (service, summary) = proxy.finish();
    assert_eq!(service.failed, [ConnectError::Refused]);
    assert_eq!(service.closed, [CloseReason::Aborted]);
    assert_eq!((summary.failed, summary.broken), (1, 1));
}

fn deferred_replies(config: &Config) {
    let (app_sender, mut sockets) = bind(config, 1).unwrap();
    let (service, orders) = Deferred::new();
    let answering = std::thread::spawn(move || Deferred::answer(orders, app_sender));
    let server = Running::on(sockets.remove(0), service);
    let mut streams: Vec<_> = (0..20).map(|_| client(server.address)).collect();
    for round in 0..50u64 {
        for (number, stream) in streams.iter_mut().enumerate() {
            stream.write_all(&(round << 32 | number as u64).to_le_bytes()).unwrap();
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            let mut reply = [0; 8];
            stream.read_exact(&mut reply).unwrap();
            assert_eq!(u64::from_le_bytes(reply), round << 32 | number as u64);
        }
    }
    let (service, summary) = server.finish();
    assert_eq!(summary.copied_bytes, 0);
    drop(service);
    answering.join().unwrap();
}

#[test]
fn replies_from_another_thread_reach_a_sleeping_worker() {
    deferred_replies(&listening());
}

#[test]
fn replies_from_another_thread_reach_a_spinning_worker() {
    deferred_replies(&Config { spin: true, ..listening() });
}

#[test]
fn datagrams_return_from_their_destination_address() {
    let config = Config { listen_udp: vec![local(), "[::1]:0".parse().unwrap()], ..Config::default() };
    let (_, mut sockets) = bind(&config, 1).unwrap();
    let addresses = sockets[0].udp_addrs();
    let server = Running::on(sockets.remove(0), UdpEcho::default());
    addresses.into_iter().for_each(echo_datagrams);
    let (service, summary) = server.finish();
    assert_eq!(service.echoed, 10);
    assert_eq!((summary.rx_frames, summary.tx_frames), (10, 10));
}
