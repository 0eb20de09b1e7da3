//! Payload is not copied, by address: what a service is given lies where the port received it, what it sends goes to the
//! port where the service put it, and goes there again from the same place when it is lost.

use crate::common::observer::{How, Observer};
use crate::common::recorder::{Notes, Recorder, Stream};
use crate::common::{host, server};
use linerate_bypass::memory_nic::{End, Impairments, Link, LinkConfig, MemoryNic};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{CloseReason, ConnId, Origin, Service, Transport};
use linerate_stack::{Config, Engine, Mailboxes, NativeEngine, SmoltcpEngine, Worker};
use std::convert::Infallible;
use std::net::SocketAddr;

/// Sends one message, byte by byte a pattern, by reserving and committing; reads it back and closes.
struct Sender {
    to: SocketAddr,
    size: usize,
    /// Where each byte was written, and where each that came back lay.
    written: Vec<usize>,
    read: Vec<usize>,
    closed: Option<CloseReason>,
}

impl Sender {
    fn new(to: &str, size: usize) -> Self {
        Sender { to: to.parse().unwrap(), size, written: Vec::new(), read: Vec::new(), closed: None }
    }

    fn byte(at: usize) -> u8 {
        (at.wrapping_mul(0x9e37_79b9) >> 11) as u8
    }

    fn send(&mut self, net: &mut impl Transport, conn: ConnId) {
        while self.written.len() < self.size {
            let from = self.written.len();
            let Some(place) = net.reserve(conn, self.size - from) else { return };
            let (address, len) = (place.as_ptr() as usize, place.len());
            place.iter_mut().enumerate().for_each(|(at, byte)| *byte = Self::byte(from + at));
            // Not always all of it.
            let len = len.div_ceil(1 + from % 2);
            self.written.extend(address..address + len);
            net.commit(conn, len);
        }
    }
}

impl Service for Sender {
    type Conn = ();
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        net.connect(self.to, 0);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        self.send(net, conn);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        self.send(net, conn);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        loop {
            let (bytes, from) = (net.peek(conn), self.read.len());
            if bytes.is_empty() {
                break;
            }
            assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == Self::byte(from + at)), "other bytes came back");
            let (address, len) = (bytes.as_ptr() as usize, bytes.len());
            self.read.extend(address..address + len);
            net.consume(conn, len);
        }
        if self.read.len() == self.size {
            net.close(conn);
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.close(conn);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), why: CloseReason) {
        self.closed = Some(why);
    }
}

/// What one message there and back left.
struct Exchange {
    /// Where the sender's service wrote each byte, and where it read it.
    written: Vec<usize>,
    read: Vec<usize>,
    /// What crossed the sender's port, and the server's.
    ours: (Stream, Stream),
    theirs: (Stream, Stream),
    /// Where the server's service saw each byte.
    seen: Vec<usize>,
    /// Payload bytes that either side says it has copied.
    copied: u64,
}

type Host<S, E> = Worker<Recorder<MemoryNic>, S, E>;

fn start<S: Service, E: Engine<Recorder<MemoryNic>>>(config: &Config, nic: MemoryNic, service: S) -> Host<S, E> {
    let mailboxes = Mailboxes::for_workers(1).pop().unwrap();
    let mut service = Some(service);
    Worker::new(config, mailboxes, Recorder::new(nic), |_| service.take().unwrap(), Instant::ZERO)
}

/// The only connection in `notes`: received and sent.
fn only(notes: &Notes) -> (Stream, Stream) {
    assert!(notes.received.len() == 1 && notes.sent.len() == 1);
    let first = |streams: &std::collections::HashMap<_, Stream>| streams.values().next().unwrap().clone();
    (first(&notes.received), first(&notes.sent))
}

/// Sends a message of `size` bytes to `to` and back over `link`, the answers over an impaired one, both hosts paced or neither.
fn exchange<E: Engine<Recorder<MemoryNic>>>(
    link: &LinkConfig,
    answers: Impairments,
    pacing: bool,
    to: &str,
    size: usize,
    how: How,
) -> Exchange {
    let (a, b) = Link::pair(link.clone());
    let link = a.link().clone();
    link.impair(End::B, answers);
    let mut client: Host<_, E> = start(&Config { pacing, ..host(1) }, a, Sender::new(to, size));
    let mut server: Host<_, E> = start(&Config { pacing, ..server() }, b, Observer::new(vec![how]));
    let notes = (client.nic().notes(), server.nic().notes());
    let limit = Instant::ZERO + Duration::from_secs(300);
    while client.service().closed.is_none() || server.service().closed == 0 {
        let now = link.clock().now();
        assert!(now < limit, "{how:?} of {size} bytes does not end");
        while client.turn(now) + server.turn(now) > 0 {}
        let arrivals = [client.nic().inner().next_arrival(), server.nic().inner().next_arrival()];
        let next = arrivals.into_iter().chain([client.next_deadline(), server.next_deadline()]).flatten().min();
        link.clock().advance_to(next.unwrap_or(limit).max(now + Duration::from_micros(1)));
    }
    assert_eq!(client.service().closed, Some(CloseReason::Finished));
    let copied = client.summary().copied_bytes + server.summary().copied_bytes;
    let Sender { written, read, .. } = client.service();
    let (ours, theirs) = (only(&notes.0.lock().unwrap()), only(&notes.1.lock().unwrap()));
    let seen = server.service().seen[0].1.clone();
    Exchange { written: written.clone(), read: read.clone(), ours, theirs, seen, copied }
}

/// What every exchange must have been like that copied nothing.
fn assert_not_copied(exchange: &Exchange, size: usize, what: &str) {
    let Exchange { written, read, ours: (back, out), theirs: (received, sent), seen, copied } = exchange;
    for stream in [back, out, received, sent] {
        assert!(
            stream.places.len() == size && stream.places.iter().all(|place| *place != 0),
            "{what}: not all was watched"
        );
        assert_eq!(stream.moved, 0, "{what}: bytes were sent again from elsewhere");
    }
    assert!(out.places == *written, "{what}: bytes were not sent from where the sender wrote them");
    let looked_at = seen.iter().zip(&received.places).filter(|(seen, _)| **seen != 0);
    assert!(looked_at.clone().count() > 0, "{what}: the service has seen nothing");
    assert!({ looked_at }.all(|(seen, received)| seen == received), "{what}: the service saw copies");
    assert!(sent.places == received.places, "{what}: bytes were not sent back from where they had been received");
    assert!(*read == back.places, "{what}: the sender saw copies");
    assert_eq!(*copied, 0, "{what}: bytes that were counted as copied");
}

/// Message sizes: less than a segment, a segment, some, many.
const SIZES: [usize; 7] = [1, 64, 1_000, 1_448, 10_000, 100_000, 1 << 20];

const V4: &str = "10.0.0.2:7";
const V6: &str = "[fd00::2]:7";

fn links() -> [(&'static str, LinkConfig); 4] {
    let plain = LinkConfig::default();
    [
        ("plain", plain.clone()),
        ("offloads", LinkConfig { checksum_offload: true, ..plain.clone() }),
        ("large segments", LinkConfig { checksum_offload: true, tso: Some(65_000), ..plain.clone() }),
        ("long packets", LinkConfig { mtu: 9000, data_room: 9216, ..plain }),
    ]
}

#[test]
fn an_echo_is_sent_from_where_the_port_put_it_at_every_size_however_the_service_sends_it() {
    for (name, link) in links() {
        for size in SIZES {
            for (how, to) in How::all(size).into_iter().zip([V4, V6, V4, V6]) {
                let exchange = exchange::<NativeEngine<_>>(&link, Impairments::default(), false, to, size, how);
                assert_not_copied(&exchange, size, &format!("{name}, {size} bytes, {how:?}"));
            }
        }
    }
}

#[test]
fn what_is_lost_is_sent_again_from_the_same_place() {
    for (name, link) in links() {
        for (how, pacing) in How::all(300_000).into_iter().flat_map(|how| [(how, false), (how, true)]) {
            // Large segments are few.
            let loss = if link.tso.is_some() { 0.3 } else { 0.03 };
            let lossy = |seed| Impairments { loss, seed, delay: Duration::from_millis(1), ..Impairments::default() };
            let mut exchanges =
                (7..30).map(|seed| exchange::<NativeEngine<_>>(&link, lossy(seed), pacing, V4, 300_000, how));
            let exchange = exchanges.find(|exchange| exchange.theirs.1.repeated > 0);
            let exchange = exchange.unwrap_or_else(|| panic!("{name}, {how:?}: nothing was lost"));
            assert_not_copied(&exchange, 300_000, &format!("{name}, {how:?}, paced {pacing}, with losses"));
        }
    }
}

#[test]
fn an_engine_that_copies_is_found_out() {
    let exchange = exchange::<SmoltcpEngine>(
        &LinkConfig::default(),
        Impairments::default(),
        false,
        V4,
        10_000,
        How::Take(usize::MAX),
    );
    assert!(exchange.copied > 0);
    assert_ne!(exchange.theirs.0.places, exchange.theirs.1.places);
    assert_ne!(exchange.written, exchange.ours.1.places);
}

#[test]
fn a_port_without_chains_is_given_copies_and_they_are_counted() {
    let link = LinkConfig { multi_segment: false, ..LinkConfig::default() };
    let exchange = exchange::<NativeEngine<_>>(&link, Impairments::default(), false, V4, 10_000, How::Forward);
    assert!(exchange.copied > 0);
}
