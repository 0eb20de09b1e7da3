//! What is known of a connection from outside: what was sent on it both ways, and what must follow from that.

use super::frames::{ACK, SYN, Sent, Tuple};
use super::probe::written;
use linerate_bypass::ConnId;
use linerate_stack::fuzzing::Numbers;
use std::ops::Range;

/// Byte number `seq` of what the peer sends on `tuple`, whenever it sends it.
pub fn pattern(tuple: &Tuple, seq: u32) -> u8 {
    let salt = u32::from(tuple.remote.port()) << 16 ^ u32::from(tuple.local.port());
    (seq.wrapping_mul(0x85eb_ca6b) ^ salt.wrapping_mul(0x9e37_79b1)).wrapping_mul(0xc2b2_ae35).rotate_left(7) as u8
}

/// Whether `a` comes after `b`.
fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

/// What the peer said in one segment of the window that it has.
#[derive(Clone, Copy)]
struct Offer {
    ack: u32,
    window: u16,
}

/// All that was seen of one 4-tuple.
#[derive(Default)]
pub struct Flow {
    /// Ranges of numbers whose bytes the peer has sent: the first, and how many.
    given: Vec<(u32, u32)>,
    offers: Vec<Offer>,
    /// The numbers behind SYNs that the peer has sent since the endpoint last answered one.
    unanswered: Vec<u32>,
    /// The numbers behind SYNs of the peer that the endpoint has answered, and the number and window of its own last SYN.
    behind_syn: Vec<u32>,
    syn: Option<(u32, u16)>,
    /// The highest number that the endpoint has sent, and what it acknowledged last: what to aim at.
    pub nxt: u32,
    pub ack: u32,
    /// What the endpoint's timestamp was last.
    pub ts: u32,
    /// Connections on the tuple that the service knows, and the last one even if it does not any more. There are two while
    /// it has not read all that came on one that is over.
    conns: Vec<Conn>,
}

impl Flow {
    /// The peer sends a segment with `len` bytes from `first` on.
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

    /// A new connection on the tuple.
    pub fn opened(&mut self, id: ConnId, tuple: Tuple) {
        self.conns.retain(|conn| conn.open);
        for conn in &self.conns {
            assert!(conn.last.is_none_or(|last| last.peer_finished), "two connections on {tuple:?}");
        }
        self.conns.push(Conn::new(id, tuple));
    }

    /// A connection that the service knows.
    pub fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.iter_mut().find(|conn| conn.id == id && conn.open)
    }

    /// The numbers of the present connection as they were after the last turn.
    pub fn numbers(&self) -> Option<Numbers> {
        self.conns.last()?.last
    }

    /// Whether the peer has sent every byte from `first` on, `len` of them.
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

    /// The endpoint has sent `segment` on the tuple.
    pub fn take(&mut self, segment: &Sent) {
        let acks = segment.flags & ACK != 0;
        if segment.flags & SYN != 0 {
            if self.syn.is_none_or(|(iss, _)| iss != segment.seq) {
                self.nxt = segment.seq.wrapping_add(1);
            }
            self.syn = Some((segment.seq, segment.window));
            self.unanswered.clear();
            if acks && !self.behind_syn.contains(&segment.ack) {
                self.behind_syn.push(segment.ack);
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

/// Where the bytes that a service sends come from.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// The connection's own pattern.
    Written,
    /// What the peer sent on `from`, from number `seq` on; unknown if that connection came and went too fast to be seen.
    Received { from: Tuple, seq: Option<u32> },
}

/// A connection that the service knows or knew.
pub struct Conn {
    id: ConnId,
    pub tuple: Tuple,
    pub open: bool,
    /// The numbers of the first bytes of both streams: the peer's, and the endpoint's.
    start: Option<u32>,
    first: Option<u32>,
    /// Bytes that the service has read or sent on.
    pub read: u32,
    /// Bytes that it has given to send, and where they are from.
    sent: Vec<(Range<u32>, Source)>,
    /// What was read since it was last held against what was sent.
    unchecked: Vec<(u32, Vec<u8>)>,
    last: Option<Numbers>,
    /// The right edge of the window that the endpoint has offered, and the one that the peer has.
    edge: Option<u32>,
    allowed: Option<u32>,
    /// Offers of the flow that `allowed` counts.
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

    /// The number of the peer's byte that the service reads next.
    pub fn next_to_read(&self) -> Option<u32> {
        self.start.map(|start| start.wrapping_add(self.read))
    }

    /// The service has read `bytes`.
    pub fn reads(&mut self, bytes: Vec<u8>) {
        assert!(!self.ended, "bytes after the end of the stream");
        let len = bytes.len() as u32;
        self.unchecked.push((self.read, bytes));
        self.read += len;
    }

    /// The service has sent on `len` bytes unseen.
    pub fn skips(&mut self, len: u32) {
        self.read += len;
    }

    /// The service has given `len` bytes to send.
    pub fn sends(&mut self, len: u32, source: Source) {
        let at = self.sent.last().map_or(0, |(range, _)| range.end);
        self.sent.push((at..at + len, source));
    }

    /// Byte `at` of what the service has given to send: `Err` if there is no such byte, `Ok(None)` if it is not known.
    fn given(&self, at: u32) -> Result<Option<u8>, ()> {
        let piece = self.sent.partition_point(|(range, _)| range.end <= at);
        let (range, source) = self.sent.get(piece).ok_or(())?;
        Ok(match source {
            Source::Written => Some(written(at, self.tuple.remote.port())),
            Source::Received { from, seq } => seq.map(|seq| pattern(from, seq.wrapping_add(at - range.start))),
        })
    }
}

impl Flow {
    /// After a turn: `numbers` are those of the connection, if it is still there. Checks what was read.
    pub fn check_received(&mut self, id: ConnId, numbers: Option<Numbers>) {
        let Some(at) = self.conns.iter().position(|conn| conn.id == id) else { return };
        let mut conn = self.conns.remove(at);
        if let Some(now) = numbers {
            let behind = now.received + conn.read + u32::from(now.peer_finished);
            let start = now.rcv_nxt.wrapping_sub(behind);
            assert_eq!(*conn.start.get_or_insert(start), start, "RCV.NXT counts what was received: {now:?}");
            conn.first.get_or_insert(now.una);
            // Where the time stands still, the number of an answer that has not left yet can be guessed, and acknowledged.
            let known = self.behind_syn.contains(&start) || self.unanswered.contains(&start);
            assert!(
                conn.last.is_some() || self.behind_syn.is_empty() || known,
                "the stream begins behind the SYN: {now:?}"
            );
            if let Some(last) = conn.last {
                assert!(!after(last.una, now.una) && !after(last.nxt, now.nxt), "{last:?}, then {now:?}");
                assert!(
                    !after(last.rcv_nxt, now.rcv_nxt) && !after(last.rcv_edge, now.rcv_edge),
                    "{last:?}, then {now:?}"
                );
            }
            conn.last = Some(now);
        } else if let (None, &[behind_syn]) = (conn.start, &self.behind_syn[..]) {
            conn.start = Some(behind_syn);
        }
        if let Some(start) = conn.start {
            for (at, bytes) in conn.unchecked.drain(..) {
                let first = start.wrapping_add(at);
                for (i, byte) in bytes.iter().enumerate() {
                    let seq = first.wrapping_add(i as u32);
                    assert_eq!(*byte, pattern(&conn.tuple, seq), "byte {seq} of {:?}, {i} read", conn.tuple);
                }
            }
            assert!(self.has_given(start, conn.read), "{} bytes from {start} on, not all of them sent", conn.read);
            if let Some((_, window)) = self.syn {
                let edge = *conn.edge.get_or_insert(start.wrapping_add(window.into()));
                let end = start.wrapping_add(conn.read);
                assert!(!after(end, edge), "bytes up to {end}, beyond the window that ends at {edge}");
            }
        }
        conn.unchecked.clear();
        self.conns.insert(at, conn);
    }

    /// The endpoint has sent `segment` on the connection: it is within the windows, and says what the service gave.
    pub fn check_sent(&mut self, segment: &Sent, tso: bool) {
        let Some(conn) = self.conns.last_mut() else { return };
        let Some(numbers) = conn.last else { return };
        let bare = segment.flags & (SYN | super::frames::RST) == 0;
        if bare && conn.open {
            // The right edge does not move left (RFC 9293 §3.8.6.2.1).
            let edge = segment.ack.wrapping_add(u32::from(segment.window) << numbers.rcv_scale);
            if let Some(before) = conn.edge.filter(|_| !numbers.peer_finished) {
                assert!(!after(before, edge), "the right edge went from {before} to {edge}: {segment:?}, {numbers:?}");
            }
            if conn.edge.is_none_or(|before| after(edge, before)) {
                conn.edge = Some(edge);
            }
        }
        let (Some(first), false) = (conn.first, segment.payload.is_empty()) else { return };
        assert!(bare, "a payload beside {:#x}", segment.flags);
        assert!(tso || segment.payload.len() <= usize::from(numbers.mss), "a segment of {}", segment.payload.len());
        let at = segment.seq.wrapping_sub(first);
        for (i, byte) in segment.payload.iter().enumerate() {
            let at = at.wrapping_add(i as u32);
            match conn.given(at) {
                Ok(Some(expected)) => {
                    assert_eq!(*byte, expected, "byte {at} of {}: {i} of the segment", conn.tuple.remote)
                }
                Ok(None) => {}
                Err(()) => panic!("byte {at} is sent, which the service did not give: {numbers:?}"),
            }
        }
        for offer in &self.offers[conn.offers..] {
            // Of what it could have acknowledged.
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
