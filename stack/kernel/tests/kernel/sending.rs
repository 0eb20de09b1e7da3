//! Mixed ways to send.

use crate::common::{DEADLINE, Running, listening, turn_until, worker};
use linerate_service::{Bytes, CloseReason, ConnId, Origin, Service, Transport, WriteError};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

/// Service that sends, when data arrive, the same text in chunks on each connection in turn, and alternates between the
/// ways to send. It closes all connections at the first `peer_closed`.
#[derive(Default)]
struct Mixer {
    conns: Vec<ConnId>,
}

const CHUNKS: usize = 300;

fn text() -> Vec<u8> {
    (0..CHUNKS).flat_map(chunk).collect()
}

fn chunk(n: usize) -> Vec<u8> {
    format!("chunk {n} of some length {};", "x".repeat(n % 50)).into_bytes()
}

impl Service for Mixer {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, conn: ConnId, _: Origin) {
        self.conns.push(conn);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.consume(conn, usize::MAX);
        for n in 0..CHUNKS {
            let chunk = chunk(n);
            for &conn in &self.conns {
                match n % 3 {
                    0 => assert_eq!(net.write(conn, &chunk), chunk.len()),
                    1 => net.send(conn, Bytes::from(chunk.clone())).unwrap(),
                    _ => {
                        // Reserve more than is sent, and then exactly the rest.
                        let half = chunk.len() / 2;
                        net.reserve(conn, 1000).unwrap()[..half].copy_from_slice(&chunk[..half]);
                        net.commit(conn, half);
                        let rest = net.reserve(conn, chunk.len() - half).unwrap();
                        rest.copy_from_slice(&chunk[half..]);
                        net.commit(conn, chunk.len() - half);
                    }
                }
            }
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, _: ConnId, _: &mut ()) {
        self.conns.drain(..).for_each(|conn| net.close(conn));
    }
}

#[test]
fn mixed_sends_on_many_connections_keep_their_order() {
    let server = Running::start(&listening(), Mixer::default());
    let mut streams: Vec<_> = (0..5).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    // The last connection sends the request, so that all exist.
    streams[4].write_all(b"go").unwrap();
    streams[4].shutdown(Shutdown::Write).unwrap();
    for stream in &mut streams {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert!(received == text());
    }
    let (_, summary) = server.finish();
    assert_eq!(summary.tx_bytes as usize, 5 * text().len());
    assert!(summary.tx_frames < 5 * CHUNKS as u64 / 10, "chunks are combined: {} writes", summary.tx_frames);
}

/// Service that commits more than it reserved.
struct Greedy;

impl Service for Greedy {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        let n = net.reserve(conn, 10).unwrap().len();
        net.commit(conn, n + 1);
    }
}

#[test]
#[should_panic(expected = "cannot send 11 bytes of 10 reserved")]
fn committing_more_than_was_reserved_panics() {
    let mut worker = worker(&listening(), Greedy);
    let _stream = TcpStream::connect(worker.tcp_addrs()[0]).unwrap();
    turn_until(&mut worker, "accepted", |worker| worker.summary().accepted == 1);
}

/// Service that sends more than its peer receives.
struct Filler;

impl Service for Filler {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        while let Ok(space) = net.reserve(conn, 4096).map(|space| space.len()) {
            net.commit(conn, space);
        }
        assert_eq!(net.reserve(conn, 1).unwrap_err(), WriteError::Full);
        assert_eq!(net.send(conn, Bytes::from_static(b"x")).unwrap_err().error, WriteError::Full);
    }
}

#[test]
fn full_queue_is_distinguished_from_a_closed_connection() {
    let mut worker = worker(&listening(), Filler);
    let _stream = TcpStream::connect(worker.tcp_addrs()[0]).unwrap();
    turn_until(&mut worker, "accepted", |worker| worker.summary().accepted == 1);
}

/// Service that aborts on the peer's last data, which arrive with the FIN.
#[derive(Default)]
struct Rude {
    peer_closed: bool,
    closed: Option<CloseReason>,
}

impl Service for Rude {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.abort(conn);
    }

    fn peer_closed(&mut self, _: &mut impl Transport, _: ConnId, _: &mut ()) {
        self.peer_closed = true;
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, _: (), reason: CloseReason) {
        self.closed = Some(reason);
    }
}

#[test]
fn only_closed_follows_an_abort() {
    let mut worker = worker(&listening(), Rude::default());
    let mut stream = TcpStream::connect(worker.tcp_addrs()[0]).unwrap();
    stream.write_all(b"last words").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    turn_until(&mut worker, "closed", |worker| worker.service().closed.is_some());
    assert_eq!((worker.service().closed, worker.service().peer_closed), (Some(CloseReason::Aborted), false));
}
