//! Zero copy, checked by address: received data is at the address where the port put it, and sent data reaches the port
//! at the address where the service put it, also when retransmitted.

use crate::common::observer::{EchoMode, Observer};
use crate::common::recorder::{Notes, Recorder, Stream};
use crate::common::{host, server};
use linerate_bypass::memory_nic::{End, Impairments, Link, LinkConfig, MemoryNic};
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnId, Origin, Service, Transport};
use linerate_stack::{Config, Engine, Mailboxes, NativeEngine, Worker};
use std::convert::Infallible;
use std::net::SocketAddr;

/// Client that sends one message with a byte pattern through reserve and commit, reads the echo, and closes.
struct Sender {
    to: SocketAddr,
    size: usize,
    /// Address of each byte when written, and when read back.
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
            let Ok(space) = net.reserve(conn, self.size - from) else { return };
            let (address, len) = (space.as_ptr() as usize, space.len());
            space.iter_mut().enumerate().for_each(|(at, byte)| *byte = Self::byte(from + at));
            // `writable` may accept a part.
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
            assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == Self::byte(from + at)), "the echo differs");
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

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.closed = Some(reason);
    }
}

/// Record of one echoed message.
struct Exchange {
    /// Addresses at which the sender's service wrote and read each byte.
    written: Vec<usize>,
    read: Vec<usize>,
    /// Streams recorded at the sender's port, and at the server's.
    client: (Stream, Stream),
    server: (Stream, Stream),
    /// Addresses at which the server's service saw each byte.
    seen: Vec<usize>,
    /// Payload bytes that either side counts as copied.
    copied: u64,
}

type Host<S, E> = Worker<Recorder<MemoryNic>, S, E>;

fn start<S: Service, E: Engine<Recorder<MemoryNic>>>(config: &Config, nic: MemoryNic, service: S) -> Host<S, E> {
    let mailboxes = Mailboxes::for_workers(1).pop().unwrap();
    let mut service = Some(service);
    Worker::new(config, mailboxes, Recorder::new(nic), |_| service.take().unwrap(), Instant::ZERO)
}

/// Returns the only connection of `notes`: received and sent.
fn only(notes: &Notes) -> (Stream, Stream) {
    assert!(notes.received.len() == 1 && notes.sent.len() == 1);
    let first = |streams: &std::collections::HashMap<_, Stream>| streams.values().next().unwrap().clone();
    (first(&notes.received), first(&notes.sent))
}

/// Sends a message of `size` bytes to `to` over `link` and echoes it over an impaired link, with or without pacing on
/// both hosts.
fn exchange<E: Engine<Recorder<MemoryNic>>>(
    link: &LinkConfig,
    answers: Impairments,
    pacing: bool,
    to: &str,
    size: usize,
    mode: EchoMode,
) -> Exchange {
    let (a, b) = Link::pair(link.clone());
    let link = a.link().clone();
    link.impair(End::B, answers);
    let mut client: Host<_, E> = start(&Config { pacing, ..host(1) }, a, Sender::new(to, size));
    let mut server: Host<_, E> = start(&Config { pacing, ..server() }, b, Observer::new(vec![mode]));
    let notes = (client.nic().notes(), server.nic().notes());
    let limit = Instant::ZERO + Duration::from_secs(300);
    while client.service().closed.is_none() || server.service().closed == 0 {
        let now = link.clock().now();
        assert!(now < limit, "{mode:?} of {size} bytes does not finish");
        while client.turn(now) + server.turn(now) > 0 {}
        let arrivals = [client.nic().inner().next_arrival(), server.nic().inner().next_arrival()];
        let next = arrivals.into_iter().chain([client.next_deadline(), server.next_deadline()]).flatten().min();
        link.clock().advance_to(next.unwrap_or(limit).max(now + Duration::from_micros(1)));
    }
    assert_eq!(client.service().closed, Some(CloseReason::Finished));
    let copied = client.summary().copied_bytes + server.summary().copied_bytes;
    let Sender { written, read, .. } = client.service();
    let (client_streams, server_streams) = (only(&notes.0.lock().unwrap()), only(&notes.1.lock().unwrap()));
    let seen = server.service().seen[0].1.clone();
    Exchange {
        written: written.clone(),
        read: read.clone(),
        client: client_streams,
        server: server_streams,
        seen,
        copied,
    }
}

/// Asserts that `exchange` copied nothing.
fn assert_not_copied(exchange: &Exchange, size: usize, case: &str) {
    let Exchange { written, read, client: (back, out), server: (received, sent), seen, copied } = exchange;
    for stream in [back, out, received, sent] {
        assert!(
            stream.addresses.len() == size && stream.addresses.iter().all(|address| *address != 0),
            "{case}: not all bytes were recorded"
        );
        assert_eq!(stream.moved, 0, "{case}: bytes were retransmitted from another address");
    }
    assert!(out.addresses == *written, "{case}: bytes were not sent from their address at the sender");
    let looked_at = seen.iter().zip(&received.addresses).filter(|(seen, _)| **seen != 0);
    assert!(looked_at.clone().count() > 0, "{case}: the service has seen no data");
    assert!({ looked_at }.all(|(seen, received)| seen == received), "{case}: the service saw copies");
    assert!(sent.addresses == received.addresses, "{case}: bytes were not echoed from their address of reception");
    assert!(*read == back.addresses, "{case}: the sender saw copies");
    assert_eq!(*copied, 0, "{case}: bytes counted as copied");
}

/// Message sizes: below a segment, one segment, several, many.
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
fn echo_is_zero_copy_at_every_size_and_call() {
    for (name, link) in links() {
        for size in SIZES {
            for (mode, to) in EchoMode::all(size).into_iter().zip([V4, V6, V4, V6]) {
                let exchange = exchange::<NativeEngine<_>>(&link, Impairments::default(), false, to, size, mode);
                assert_not_copied(&exchange, size, &format!("{name}, {size} bytes, {mode:?}"));
            }
        }
    }
}

#[test]
fn retransmission_uses_original_memory() {
    for (name, link) in links() {
        for (mode, pacing) in EchoMode::all(300_000).into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
            // TSO packets are few.
            let loss = if link.tso.is_some() { 0.3 } else { 0.03 };
            let lossy = |seed| Impairments { loss, seed, delay: Duration::from_millis(1), ..Impairments::default() };
            let mut exchanges =
                (7..30).map(|seed| exchange::<NativeEngine<_>>(&link, lossy(seed), pacing, V4, 300_000, mode));
            let exchange = exchanges.find(|exchange| exchange.server.1.repeated > 0);
            let exchange = exchange.unwrap_or_else(|| panic!("{name}, {mode:?}: nothing was lost"));
            assert_not_copied(&exchange, 300_000, &format!("{name}, {mode:?}, paced {pacing}, with losses"));
        }
    }
}

#[test]
#[cfg(feature = "smoltcp-engine")]
fn copying_engine_is_detected() {
    let exchange = exchange::<linerate_stack::SmoltcpEngine>(
        &LinkConfig::default(),
        Impairments::default(),
        false,
        V4,
        10_000,
        EchoMode::Take(usize::MAX),
    );
    assert!(exchange.copied > 0);
    assert_ne!(exchange.server.0.addresses, exchange.server.1.addresses);
    assert_ne!(exchange.written, exchange.client.1.addresses);
}

#[test]
fn port_without_chains_gets_counted_copies() {
    let link = LinkConfig { multi_segment: false, ..LinkConfig::default() };
    let exchange = exchange::<NativeEngine<_>>(&link, Impairments::default(), false, V4, 10_000, EchoMode::Forward);
    assert!(exchange.copied > 0);
}
