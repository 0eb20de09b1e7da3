//! Ends of connections.

use crate::common::{listening, turn_until, worker};
use crate::services::Echo;
use linerate_service::{Bytes, CloseReason, ConnId, Origin, Service, Transport, WriteError};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

fn vanish(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

#[test]
fn peer_reset_ends_only_its_connection() {
    let mut worker = worker(&listening(), Echo::default());
    let address = worker.tcp_addrs()[0];
    let mut staying = TcpStream::connect(address).unwrap();
    let leaving: Vec<_> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
    turn_until(&mut worker, "all accepted", |worker| worker.summary().accepted == 51);
    for (number, mut stream) in leaving.into_iter().enumerate() {
        if number % 2 == 0 {
            stream.write_all(b"last farewell").unwrap();
        }
        vanish(stream);
    }
    turn_until(&mut worker, "resets seen", |worker| worker.service().closed.len() == 50);
    assert!(worker.service().closed.iter().all(|&reason| reason == CloseReason::Reset));
    staying.write_all(b"still here").unwrap();
    turn_until(&mut worker, "reply sent", |worker| worker.summary().tx_bytes >= 10);
    let mut reply = [0; 10];
    staying.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"still here");
}

/// Service that ends connections within events of other connections, and uses stale identifiers.
#[derive(Default)]
struct Executioner {
    opened: Vec<ConnId>,
    gone: Vec<ConnId>,
    events_after_the_end: usize,
}

impl Executioner {
    fn check_nothing_happens(net: &mut impl Transport, gone: ConnId) {
        assert_eq!((net.received(gone), net.peek(gone)), (0, &[][..]));
        assert_eq!(net.take(gone, 10), None);
        assert_eq!((net.send_space(gone), net.local_addr(gone), net.peer_addr(gone)), (0, None, None));
        let unsent = net.send(gone, Bytes::from_static(b"lost")).unwrap_err();
        assert_eq!((&unsent.bytes[..], unsent.error), (&b"lost"[..], WriteError::Closed));
        assert_eq!(net.reserve(gone, 10).unwrap_err(), WriteError::Closed);
        assert_eq!((net.write(gone, b"lost"), net.forward(gone, gone)), (0, 0));
        net.commit(gone, 0);
        net.consume(gone, 10);
        net.set_timer(gone, Some(Duration::ZERO));
        net.close(gone);
        net.abort(gone);
    }
}

impl Service for Executioner {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, conn: ConnId, _: Origin) {
        self.opened.push(conn);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        self.events_after_the_end += usize::from(self.gone.contains(&conn));
        net.consume(conn, usize::MAX);
        // All of them are readable in this burst: the first event ends the others and itself.
        for &victim in &self.opened {
            net.abort(victim);
            Self::check_nothing_happens(net, victim);
        }
        self.gone.extend(&self.opened);
    }

    fn timer(&mut self, _: &mut impl Transport, _: ConnId, _: &mut ()) {
        self.events_after_the_end += 1;
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, _: (), reason: CloseReason) {
        assert_eq!(reason, CloseReason::Aborted);
        Self::check_nothing_happens(net, conn);
        self.opened.retain(|&other| other != conn);
    }
}

#[test]
fn service_can_end_any_connection_in_any_event_and_stale_ids_are_ignored() {
    let mut worker = worker(&listening(), Executioner::default());
    let address = worker.tcp_addrs()[0];
    let mut generations = Vec::new();
    for round in 1..=3 {
        let mut streams: Vec<_> = (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
        turn_until(&mut worker, "all accepted", |worker| worker.summary().accepted == 10 * round);
        generations.extend(worker.service().opened.iter().map(|conn| (conn.slot(), conn.generation())));
        streams.iter_mut().for_each(|stream| stream.write_all(b"x").unwrap());
        turn_until(&mut worker, "all ended", |worker| worker.summary().broken == 10 * round);
        for stream in &mut streams {
            assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
    }
    assert_eq!(worker.service().events_after_the_end, 0);
    assert!(generations.iter().all(|&(slot, _)| slot < 10), "slots are reused");
    generations.sort_unstable();
    generations.dedup();
    assert_eq!(generations.len(), 30, "identifiers are not");
}

/// Service that sends a message, closes at once, and continues to read.
#[derive(Default)]
struct ClosesFirst {
    received: usize,
    peer_closed: bool,
    closed: Option<CloseReason>,
}

impl Service for ClosesFirst {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        assert_eq!(net.write(conn, b"goodbye"), 7);
        net.close(conn);
        assert_eq!((net.send_space(conn), net.write(conn, b"too late")), (0, 0));
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        self.received += net.received(conn);
        net.consume(conn, usize::MAX);
    }

    fn peer_closed(&mut self, _: &mut impl Transport, _: ConnId, _: &mut ()) {
        self.peer_closed = true;
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, _: (), reason: CloseReason) {
        assert!(self.peer_closed);
        self.closed = Some(reason);
    }
}

#[test]
fn closed_connection_receives_until_the_peer_closes() {
    let mut worker = worker(&listening(), ClosesFirst::default());
    let mut stream = TcpStream::connect(worker.tcp_addrs()[0]).unwrap();
    turn_until(&mut worker, "accepted", |worker| worker.summary().tx_bytes == 7);
    let mut farewell = Vec::new();
    stream.read_to_end(&mut farewell).unwrap();
    assert_eq!(farewell, b"goodbye");
    for _ in 0..3 {
        stream.write_all(&[0; 1000]).unwrap();
        worker.turn(Duration::from_millis(1));
    }
    turn_until(&mut worker, "rest received", |worker| worker.service().received == 3000);
    assert_eq!(worker.service().closed, None);
    stream.shutdown(Shutdown::Write).unwrap();
    turn_until(&mut worker, "it ends", |worker| worker.service().closed.is_some());
    assert_eq!(worker.service().closed, Some(CloseReason::Finished));
    assert_eq!((worker.summary().finished, worker.summary().broken), (1, 0));
}

#[test]
fn stop_resets_open_connections_and_informs_the_service() {
    let server = crate::common::Running::start(&listening(), Echo::default());
    let mut streams: Vec<_> = (0..5).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    for stream in &mut streams {
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0; 1]).unwrap();
    }
    let (echo, summary) = server.finish();
    assert_eq!(echo.closed, [CloseReason::Aborted; 5]);
    assert_eq!((summary.accepted, summary.broken), (5, 5));
    for stream in &mut streams {
        assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}
