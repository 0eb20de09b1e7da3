//! State of a connection as seen from outside: the data sent in both directions, and its consequences.

use super::frames::{ACK, SYN, Sent, Tuple};
use super::probe::written;
use linerate_service::ConnId;
use linerate_stack::fuzzing::Numbers;
use std::ops::Range;

/// Returns the byte with number `seq` of the peer's stream on `tuple`, the same in every transmission.
pub fn pattern(tuple: &Tuple, seq: u32) -> u8 {
    let salt = u32::from(tuple.remote.port()) << 16 ^ u32::from(tuple.local.port());
    (seq.wrapping_mul(0x85eb_ca6b) ^ salt.wrapping_mul(0x9e37_79b1)).wrapping_mul(0xc2b2_ae35).rotate_left(7) as u8
}

fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

/// Receive window that the peer advertised in one segment.
#[derive(Clone, Copy)]
struct Offer {
    ack: u32,
    window: u16,
}

/// Record of one 4-tuple.
#[derive(Default)]
pub struct Flow {
    /// Ranges of sequence numbers whose bytes the peer has sent: first number and length.
    given: Vec<(u32, u32)>,
    offers: Vec<Offer>,
    /// Sequence numbers after SYNs of the peer that the endpoint has not answered yet.
    unanswered: Vec<u32>,
    /// Sequence numbers after answered SYNs of the peer.
    after_syn: Vec<u32>,
    /// Sequence number and window of the endpoint's last SYN.
    syn: Option<(u32, u16)>,
    /// Sequence number after the last one that the endpoint has sent; relative acknowledgement numbers start from it.
    pub nxt: u32,
    /// Last acknowledgement number of the endpoint; relative sequence numbers start from it.
    pub ack: u32,
    /// Last TSval of the endpoint.
    pub ts: u32,
    /// Connections on the tuple that the service knows, and the last closed one. There are two while the service has
    /// not read all data of a closed one.
    conns: Vec<Conn>,
}

impl Flow {
    /// Records a segment of the peer with `len` bytes from `first`.
    pub fn give(&mut self, first: u32, len: u32, flags: u8, ack: u32, window: u16) {
        if len > 0 {
            self.given.push((first, len));
        }
        if flags & SYN != 0 && !self.unanswered.contains(&first) {
            self.unanswered.push(first);
        }
        if flags & ACK != 0 {
            self.offers.push(Offer { ack, window });
        }
    }

    pub fn opened(&mut self, id: ConnId, tuple: Tuple) {
        self.conns.retain(|conn| conn.open);
        for conn in &self.conns {
            assert!(conn.last.is_none_or(|last| last.peer_finished), "two connections on {tuple:?}");
        }
        self.conns.push(Conn::new(id, tuple));
    }

    /// Returns a connection that the service knows.
    pub fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.iter_mut().find(|conn| conn.id == id && conn.open)
    }

    /// Returns the sequence numbers of the current connection after the last turn.
    pub fn numbers(&self) -> Option<Numbers> {
        self.conns.last()?.last
    }

    /// Returns true if the peer has sent all `len` bytes from `first`.
    fn has_given(&self, mut first: u32, len: u32) -> bool {
        let end = first.wrapping_add(len);
        while after(end, first) {
            let reach = |&(start, len): &(u32, u32)| {
                let into = first.wrapping_sub(start);
                (into < len).then(|| len - into)
            };
            match self.given.iter().filter_map(reach).max() {
                Some(further) => first = first.wrapping_add(further),
                None => return false,
            }
        }
        true
    }

    /// Records a `segment` of the endpoint.
    pub fn take(&mut self, segment: &Sent) {
        let acks = segment.flags & ACK != 0;
        if segment.flags & SYN != 0 {
            if self.syn.is_none_or(|(iss, _)| iss != segment.seq) {
                self.nxt = segment.seq.wrapping_add(1);
            }
            self.syn = Some((segment.seq, segment.window));
            self.unanswered.clear();
            if acks && !self.after_syn.contains(&segment.ack) {
                self.after_syn.push(segment.ack);
            }
        }
        if segment.flags & super::frames::RST != 0 {
            return;
        }
        let end =
            segment.seq.wrapping_add(segment.payload.len() as u32 + u32::from(segment.flags & super::frames::FIN));
        if after(end, self.nxt) {
            self.nxt = end;
        }
        if acks {
            self.ack = segment.ack;
        }
        if let [.., 8, 10, a, b, c, d, _, _, _, _] = segment.options[..] {
            self.ts = u32::from_be_bytes([a, b, c, d]);
        } else if let Some(at) = segment.options.windows(2).position(|head| head == [8, 10])
            && let Some(&[a, b, c, d]) = segment.options.get(at + 2..at + 6)
        {
            self.ts = u32::from_be_bytes([a, b, c, d]);
        }
    }
}

/// Source of the bytes that a service sends.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// The connection's own pattern.
    Written,
    /// The peer's data on `from`, from number `seq`; unknown if that connection closed before it was recorded.
    Received { from: Tuple, seq: Option<u32> },
}

/// Connection that the service knows or knew.
pub struct Conn {
    id: ConnId,
    pub tuple: Tuple,
    pub open: bool,
    /// Sequence numbers of the first bytes of both streams: the peer's, and the endpoint's.
    start: Option<u32>,
    first: Option<u32>,
    /// Bytes that the service has read or forwarded.
    pub read: u32,
    /// Bytes queued for sending, and their sources.
    sent: Vec<(Range<u32>, Source)>,
    /// Bytes read since the last comparison.
    unchecked: Vec<(u32, Vec<u8>)>,
    last: Option<Numbers>,
    /// Right edge of the window that the endpoint has advertised, and of the peer's.
    edge: Option<u32>,
    allowed: Option<u32>,
    /// Number of windows of the flow included in `allowed`.
    offers: usize,
    pub ended: bool,
}

impl Conn {
    pub fn new(id: ConnId, tuple: Tuple) -> Conn {
        Conn {
            id,
            tuple,
            open: true,
            start: None,
            first: None,
            read: 0,
            sent: Vec::new(),
            unchecked: Vec::new(),
            last: None,
            edge: None,
            allowed: None,
            offers: 0,
            ended: false,
        }
    }

    pub fn numbers(&self) -> Option<Numbers> {
        self.last
    }

    /// Returns the sequence number of the peer's byte that the service reads next.
    pub fn next_to_read(&self) -> Option<u32> {
        self.start.map(|start| start.wrapping_add(self.read))
    }

    /// Records that the service has read `bytes`.
    pub fn reads(&mut self, bytes: Vec<u8>) {
        assert!(!self.ended, "bytes after the end of the stream");
        let len = bytes.len() as u32;
        self.unchecked.push((self.read, bytes));
        self.read += len;
    }

    /// Records that the service has forwarded `len` bytes without reading them.
    pub fn skips(&mut self, len: u32) {
        self.read += len;
    }

    /// Records that the service has queued `len` bytes for sending.
    pub fn sends(&mut self, len: u32, source: Source) {
        let at = self.sent.last().map_or(0, |(range, _)| range.end);
        self.sent.push((at..at + len, source));
    }

    /// Returns byte `at` of the queued data: `Err` if there is no such byte, `Ok(None)` if it is unknown.
    fn given(&self, at: u32) -> Result<Option<u8>, ()> {
        let chunk = self.sent.partition_point(|(range, _)| range.end <= at);
        let (range, source) = self.sent.get(chunk).ok_or(())?;
        Ok(match source {
            Source::Written => Some(written(at, self.tuple.remote.port())),
            Source::Received { from, seq } => seq.map(|seq| pattern(from, seq.wrapping_add(at - range.start))),
        })
    }
}

impl Flow {
    /// Checks the received data after a turn. `numbers` are the connection's, if it still exists.
    pub fn check_received(&mut self, id: ConnId, numbers: Option<Numbers>) {
        let Some(at) = self.conns.iter().position(|conn| conn.id == id) else { return };
        let mut conn = self.conns.remove(at);
        if let Some(now) = numbers {
            let delivered = now.received + conn.read + u32::from(now.peer_finished);
            let start = now.rcv_nxt.wrapping_sub(delivered);
            assert_eq!(*conn.start.get_or_insert(start), start, "RCV.NXT counts the received bytes: {now:?}");
            conn.first.get_or_insert(now.una);
            // While time stands still, an attacker can guess and acknowledge the number of an unsent reply.
            let known = self.after_syn.contains(&start) || self.unanswered.contains(&start);
            assert!(
                conn.last.is_some() || self.after_syn.is_empty() || known,
                "the stream begins after the SYN: {now:?}"
            );
            if let Some(last) = conn.last {
                assert!(!after(last.una, now.una) && !after(last.nxt, now.nxt), "{last:?}, then {now:?}");
                assert!(
                    !after(last.rcv_nxt, now.rcv_nxt) && !after(last.rcv_edge, now.rcv_edge),
                    "{last:?}, then {now:?}"
                );
            }
            conn.last = Some(now);
        } else if let (None, &[after_syn]) = (conn.start, &self.after_syn[..]) {
            conn.start = Some(after_syn);
        }
        if let Some(start) = conn.start {
            for (at, bytes) in conn.unchecked.drain(..) {
                let first = start.wrapping_add(at);
                for (i, byte) in bytes.iter().enumerate() {
                    let seq = first.wrapping_add(i as u32);
                    assert_eq!(*byte, pattern(&conn.tuple, seq), "byte {seq} of {:?}, {i} read", conn.tuple);
                }
            }
            assert!(self.has_given(start, conn.read), "{} bytes from {start}, not all of them sent", conn.read);
            if let Some((_, window)) = self.syn {
                let edge = *conn.edge.get_or_insert(start.wrapping_add(window.into()));
                let end = start.wrapping_add(conn.read);
                assert!(!after(end, edge), "bytes up to {end}, beyond the window that ends at {edge}");
            }
        }
        conn.unchecked.clear();
        self.conns.insert(at, conn);
    }

    /// Checks a `segment` of the endpoint: it is within the windows and carries the service's data.
    pub fn check_sent(&mut self, segment: &Sent, tso: bool) {
        let Some(conn) = self.conns.last_mut() else { return };
        let Some(numbers) = conn.last else { return };
        let bare = segment.flags & (SYN | super::frames::RST) == 0;
        if bare && conn.open {
            // The right edge does not move left (RFC 9293 §3.8.6.2.1) by a unit of the window field (RFC 7323 §2.4).
            let unit = 1 << numbers.rcv_scale;
            let edge = segment.ack.wrapping_add(u32::from(segment.window) << numbers.rcv_scale);
            if let Some(before) = conn.edge.filter(|_| !numbers.peer_finished) {
                assert!(
                    after(edge.wrapping_add(unit), before),
                    "the right edge went from {before} to {edge}: {segment:?}, {numbers:?}"
                );
            }
            if conn.edge.is_none_or(|before| after(edge, before)) {
                conn.edge = Some(edge);
            }
        }
        let (Some(first), false) = (conn.first, segment.payload.is_empty()) else { return };
        assert!(bare, "a payload with flags {:#x}", segment.flags);
        assert!(tso || segment.payload.len() <= usize::from(numbers.mss), "a segment of {}", segment.payload.len());
        let at = segment.seq.wrapping_sub(first);
        for (i, byte) in segment.payload.iter().enumerate() {
            let at = at.wrapping_add(i as u32);
            match conn.given(at) {
                Ok(Some(expected)) => {
                    assert_eq!(*byte, expected, "byte {at} of {}: {i} of the segment", conn.tuple.remote)
                }
                Ok(None) => {}
                Err(()) => panic!("byte {at} is sent, but was not queued: {numbers:?}"),
            }
        }
        for offer in &self.offers[conn.offers..] {
            // The window that the endpoint could have received.
            if offer.ack.wrapping_sub(first) <= numbers.nxt.wrapping_sub(first) {
                let edge = offer.ack.wrapping_add(u32::from(offer.window) << numbers.snd_scale);
                if conn.allowed.is_none_or(|allowed| after(edge, allowed)) {
                    conn.allowed = Some(edge);
                }
            }
        }
        conn.offers = self.offers.len();
        let end = segment.seq.wrapping_add(segment.payload.len() as u32);
        if let Some(allowed) = conn.allowed {
            assert!(!after(end, allowed), "{end} is beyond the peer's window, which ends at {allowed}: {numbers:?}");
        }
    }
}
