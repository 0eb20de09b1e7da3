//! What the simulator has found, each in its smallest form.

use crate::common::client::{Client, Close};
use crate::common::services::Echo;
use crate::common::{Net, SERVER, host, server};
use linerate_bypass::memory_nic::{End, LinkConfig, MemoryNic};
use linerate_bypass::time::Duration;
use linerate_bypass::{Bytes, CloseReason, ConnId, Origin, Service, Transport};
use linerate_stack::{Config, Engine, Keepalive};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

with_each_engine! {
    what_has_arrived_is_read_though_both_ends_have_closed,
    what_has_arrived_is_read_in_time_wait,
    what_was_reserved_and_not_committed_is_not_sent,
}

with_unlike_engines! {
    what_has_arrived_is_read_though_both_ends_have_closed,
    what_has_arrived_is_read_in_time_wait,
    what_was_reserved_and_not_committed_is_not_sent,
}

/// Sends a little, closes at once, and reads later.
#[derive(Default)]
struct Late {
    connects: bool,
    reads: bool,
    received: usize,
    ended: bool,
    closed: Option<CloseReason>,
}

impl Service for Late {
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

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), why: CloseReason) {
        self.closed = Some(why);
    }
}

/// RFC 9293 §3.10.5 with §3.6: data that was received before the FIN is the service's, whatever the order in which the two
/// ends close; here the peer's FIN is first, and the acknowledgement of ours comes long before the service reads.
fn what_has_arrived_is_read_though_both_ends_have_closed<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let client = || Client::new(SERVER, 1, 1000);
    let mut net = Net::<_, _, A, B>::start(LinkConfig::default(), client, Late::default);
    net.expect("the server's end over", MINUTE, |net| net.b.service().closed.is_some());
    let Late { received, ended, closed, .. } = *net.b.service();
    assert_eq!((received, ended, closed), (1000, true, Some(CloseReason::Finished)));
}

/// RFC 9293 §3.8.4 is about peers that may still have to say something.
#[test]
fn nobody_asks_whether_a_peer_that_has_finished_is_alive() {
    let keepalive = Some(Keepalive { idle: SECOND, interval: SECOND, probes: 3 });
    let b = Config { keepalive, ..server() };
    let client = || Client::new(SERVER, 1, 1000);
    let mut net = Net::with(LinkConfig::default(), 1, &host(1), client, &b, Late::default);
    net.expect("the server's end over", MINUTE, |net| net.b.service().closed.is_some());
    assert_eq!((net.b.service().received, net.b.service().closed), (1000, Some(CloseReason::Finished)));
}

/// As above, at the end that is in TIME-WAIT.
fn what_has_arrived_is_read_in_time_wait<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let client = || Late { connects: true, ..Late::default() };
    let mut net = Net::<_, _, A, B>::start(LinkConfig::default(), client, Echo::default);
    net.expect("the client's end over", MINUTE, |net| net.a.service().closed.is_some());
    let Late { received, ended, closed, .. } = *net.a.service();
    assert_eq!((received, ended, closed), (500, true, Some(CloseReason::Finished)));
}

/// Sends nothing, closes, and aborts when the peer has closed.
#[derive(Default)]
struct Impatient {
    closed: Option<CloseReason>,
}

impl Service for Impatient {
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

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), why: CloseReason) {
        self.closed = Some(why);
    }
}

/// RFC 9293 §3.10.5: in TIME-WAIT nothing is reset. The FIN that has just come is acknowledged all the same.
#[test]
fn an_abort_in_time_wait_leaves_no_end_unacknowledged() {
    let mut net = Net::new(LinkConfig::default(), Impatient::default, Echo::default);
    net.link.capture();
    net.run_until(SECOND, |_| false);
    assert_eq!(net.a.service().closed, Some(CloseReason::Aborted));
    assert_eq!(net.b.service().closed, [CloseReason::Finished]);
    // Ethernet, IPv4, and the flags of TCP.
    let segments = net.link.captured().into_iter().filter(|frame| frame.bytes[12..14] == [8, 0]);
    let fins = segments.filter(|frame| frame.bytes[14 + 20 + 13] & 1 == 1);
    assert_eq!(fins.count(), 2);
}

/// Reserves, thinks better of it, and sends something else; keeps what comes back.
#[derive(Default)]
struct Wavering {
    received: Vec<u8>,
    closed: Option<CloseReason>,
}

impl Service for Wavering {
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

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), why: CloseReason) {
        self.closed = Some(why);
    }
}

fn what_was_reserved_and_not_committed_is_not_sent<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let mut net = Net::<_, _, A, B>::start(LinkConfig::default(), Wavering::default, Echo::default);
    net.expect("the connection over", MINUTE, |net| net.a.service().closed.is_some());
    assert_eq!(net.a.service().received.escape_ascii().to_string(), "one two three");
    assert_eq!(net.a.service().closed, Some(CloseReason::Finished));
}

/// RFC 9293 §3.8.4: a peer is given up only if it has not answered.
#[test]
fn a_peer_that_answers_probes_is_kept_however_far_apart_they_are() {
    let keepalive = Some(Keepalive { idle: SECOND, interval: 5 * SECOND, probes: 3 });
    let client = || Client::new(SERVER, 1, 10).closing(Close::Never);
    let a = Config { keepalive, ..host(1) };
    let mut net = Net::with(LinkConfig::default(), 1, &a, client, &server(), Echo::default);
    net.run_until(2 * MINUTE, |_| false);
    assert_eq!(net.a.service().outcomes[0].closed, None);
    // One that does not answer any more is.
    net.link.set_up(false);
    net.expect("the connection over", MINUTE, |net| net.a.service().all_finished());
    assert_eq!(net.a.service().outcomes[0].closed, Some(CloseReason::TimedOut));
}

/// Sends many pieces of a few bytes at once.
#[derive(Default)]
struct Shredder;

/// Pieces, and bytes in each.
const PIECES: (usize, usize) = (1000, 3);

impl Service for Shredder {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        net.connect(format!("{SERVER}:7").parse().unwrap(), 0);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        for _ in 0..PIECES.0 {
            net.send(conn, Bytes::from_static(&[7; PIECES.1])).unwrap();
        }
    }
}

/// Ports take chains of some tens of segments; a virtio queue is no longer than that.
#[test]
fn a_frame_is_a_chain_of_a_bounded_number_of_pieces() {
    let mut net = Net::new(LinkConfig::default(), Shredder::default, Echo::default);
    net.link.capture();
    net.run_until(SECOND, |_| false);
    let frames = net.link.captured();
    let from_a = frames.iter().filter(|frame| frame.from == End::A);
    // Headers, 48 pieces.
    assert!(from_a.clone().all(|frame| frame.bytes.len() <= 66 + 48 * PIECES.1));
    assert!(from_a.map(|frame| frame.bytes.len()).sum::<usize>() > PIECES.0 * PIECES.1);
}
