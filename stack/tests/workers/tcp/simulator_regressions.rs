//! Regressions found by the simulator, each in its smallest form.

use crate::common::client::{Client, Close};
use crate::common::services::Echo;
use crate::common::{Net, SERVER, host, server};
use linerate_bypass::memory_nic::{End, LinkConfig, MemoryNic};
use linerate_service::time::Duration;
use linerate_service::{Bytes, CloseReason, ConnId, Origin, Service, Transport};
use linerate_stack::{Config, Engine, Keepalive};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

with_all_engine_pairs! {
    received_data_is_readable_after_both_ends_closed,
    received_data_is_readable_in_time_wait,
    uncommitted_reservation_is_not_sent,
}

/// Client or server that sends a little, closes immediately, and reads later.
#[derive(Default)]
struct LateReader {
    connects: bool,
    reads: bool,
    received: usize,
    ended: bool,
    closed: Option<CloseReason>,
}

impl Service for LateReader {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        if self.connects {
            net.connect(format!("{SERVER}:7").parse().unwrap(), 0);
        }
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.write(conn, &[1; 500]);
        net.close(conn);
        net.set_timer(conn, Some(20 * SECOND));
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut ()) {
        self.reads = true;
        self.readable(net, conn, state);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        while self.reads
            && let Some(bytes) = net.take(conn, usize::MAX)
        {
            self.received += bytes.len();
        }
    }

    fn peer_closed(&mut self, _: &mut impl Transport, _: ConnId, _: &mut ()) {
        self.ended = true;
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.closed = Some(reason);
    }
}

/// RFC 9293 §3.10.5 with §3.6: data received before the FIN belongs to the service, regardless of which end closes
/// first. Here the peer's FIN arrives first, and the worker's FIN is acknowledged long before the service reads.
fn received_data_is_readable_after_both_ends_closed<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let client = || Client::new(SERVER, 1, 1000);
    let mut net = Net::<_, _, A, B>::start(LinkConfig::default(), client, LateReader::default);
    net.expect("server closed", MINUTE, |net| net.b.service().closed.is_some());
    let LateReader { received, ended, closed, .. } = *net.b.service();
    assert_eq!((received, ended, closed), (1000, true, Some(CloseReason::Finished)));
}

/// RFC 9293 §3.8.4: keepalive is for peers that may still send.
#[test]
fn keepalive_does_not_probe_closed_peer() {
    let keepalive = Some(Keepalive { idle: SECOND, interval: SECOND, probes: 3 });
    let b = Config { keepalive, ..server() };
    let client = || Client::new(SERVER, 1, 1000);
    let mut net = Net::with(LinkConfig::default(), 1, &host(1), client, &b, LateReader::default);
    net.expect("server closed", MINUTE, |net| net.b.service().closed.is_some());
    assert_eq!((net.b.service().received, net.b.service().closed), (1000, Some(CloseReason::Finished)));
}

/// As above, at the end in TIME-WAIT.
fn received_data_is_readable_in_time_wait<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let client = || LateReader { connects: true, ..LateReader::default() };
    let mut net = Net::<_, _, A, B>::start(LinkConfig::default(), client, Echo::default);
    net.expect("client closed", MINUTE, |net| net.a.service().closed.is_some());
    let LateReader { received, ended, closed, .. } = *net.a.service();
    assert_eq!((received, ended, closed), (500, true, Some(CloseReason::Finished)));
}

/// Client that sends nothing, closes, and aborts when the peer has closed.
#[derive(Default)]
struct Aborter {
    closed: Option<CloseReason>,
}

impl Service for Aborter {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        net.connect(format!("{SERVER}:7").parse().unwrap(), 0);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.close(conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.abort(conn);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.closed = Some(reason);
    }
}

/// RFC 9293 §3.10.5: TIME-WAIT sends no reset, and the FIN that has just arrived is acknowledged.
#[test]
fn abort_in_time_wait_acknowledges_fin() {
    let mut net = Net::new(LinkConfig::default(), Aborter::default, Echo::default);
    net.link.capture();
    net.run_until(SECOND, |_| false);
    assert_eq!(net.a.service().closed, Some(CloseReason::Aborted));
    assert_eq!(net.b.service().closed, [CloseReason::Finished]);
    // Headers: Ethernet, IPv4, and the flags of TCP.
    let segments = net.link.captured().into_iter().filter(|frame| frame.bytes[12..14] == [8, 0]);
    let fins = segments.filter(|frame| frame.bytes[14 + 20 + 13] & 1 == 1);
    assert_eq!(fins.count(), 2);
}

/// Client that reserves space, does not commit it, sends other data, and keeps the echo.
#[derive(Default)]
struct ReserveWithoutCommit {
    received: Vec<u8>,
    closed: Option<CloseReason>,
}

impl Service for ReserveWithoutCommit {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        net.connect(format!("{SERVER}:7").parse().unwrap(), 0);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.write(conn, b"one ");
        net.reserve(conn, 100).unwrap().fill(b'-');
        net.send(conn, Bytes::from_static(b"two ")).unwrap();
        net.reserve(conn, 100).unwrap().fill(b'-');
        net.write(conn, b"three");
        net.reserve(conn, 100).unwrap().fill(b'-');
        net.close(conn);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        while let Some(bytes) = net.take(conn, usize::MAX) {
            self.received.extend_from_slice(&bytes);
        }
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.closed = Some(reason);
    }
}

fn uncommitted_reservation_is_not_sent<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let mut net = Net::<_, _, A, B>::start(LinkConfig::default(), ReserveWithoutCommit::default, Echo::default);
    net.expect("the connection closed", MINUTE, |net| net.a.service().closed.is_some());
    assert_eq!(net.a.service().received.escape_ascii().to_string(), "one two three");
    assert_eq!(net.a.service().closed, Some(CloseReason::Finished));
}

/// RFC 9293 §3.8.4: a connection times out only if its peer does not answer.
#[test]
fn answered_keepalive_probes_keep_connection_at_any_interval() {
    let keepalive = Some(Keepalive { idle: SECOND, interval: 5 * SECOND, probes: 3 });
    let client = || Client::new(SERVER, 1, 10).closing(Close::Never);
    let a = Config { keepalive, ..host(1) };
    let mut net = Net::with(LinkConfig::default(), 1, &a, client, &server(), Echo::default);
    net.run_until(2 * MINUTE, |_| false);
    assert_eq!(net.a.service().outcomes[0].closed, None);
    // A peer that stops answering times out.
    net.link.set_up(false);
    net.expect("the connection closed", MINUTE, |net| net.a.service().all_finished());
    assert_eq!(net.a.service().outcomes[0].closed, Some(CloseReason::TimedOut));
}

/// Client that sends many chunks of a few bytes at once.
#[derive(Default)]
struct SmallChunkSender;

/// Number of chunks, and bytes per chunk.
const CHUNKS: (usize, usize) = (1000, 3);

impl Service for SmallChunkSender {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        net.connect(format!("{SERVER}:7").parse().unwrap(), 0);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        for _ in 0..CHUNKS.0 {
            net.send(conn, Bytes::from_static(&[7; CHUNKS.1])).unwrap();
        }
    }
}

/// Ports accept chains of some tens of segments, the length of a short virtio queue.
#[test]
fn chain_length_of_frame_is_bounded() {
    let mut net = Net::new(LinkConfig::default(), SmallChunkSender::default, Echo::default);
    net.link.capture();
    net.run_until(SECOND, |_| false);
    let frames = net.link.captured();
    let from_a = frames.iter().filter(|frame| frame.from == End::A);
    // Headers and 48 chunks.
    assert!(from_a.clone().all(|frame| frame.bytes.len() <= 66 + 48 * CHUNKS.1));
    assert!(from_a.map(|frame| frame.bytes.len()).sum::<usize>() > CHUNKS.0 * CHUNKS.1);
}
