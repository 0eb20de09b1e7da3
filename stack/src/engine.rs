//! The seam between TCP and what is around it.
//!
//! An engine is sans-IO: segments and the time go in, events come out, and what it sends goes to an [`Egress`]. It
//! reads no clock, and its randomness comes from the configuration's seed, so that the same input gives the same
//! output.

use crate::config::Config;
use crate::egress::Egress;
use crate::tcp::tuple::Tuple;
use linerate_bypass::inspect::{ConnInfo, Gauges};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{Bytes, CloseReason, ConnId, ConnectError, Nic, Origin, Summary};
use std::net::{IpAddr, SocketAddr};

/// What the demultiplexer has found out about a TCP segment.
#[derive(Debug, Clone, Copy)]
pub struct SegmentMeta {
    /// The connection that it is of.
    pub tuple: Tuple,
    /// Where in the packet the TCP header begins, behind those of Ethernet and IP.
    pub tcp_offset: usize,
}

/// The TCP segments of one burst, in the order of their arrival, whose headers and checksums have been found right.
///
/// Packets and what is known of them lie apart, so that either can be gone through without moving the other.
#[derive(Debug)]
pub struct Segments<P> {
    packets: Vec<P>,
    heads: Vec<SegmentMeta>,
}

impl<P> Segments<P> {
    /// None.
    pub(crate) fn new() -> Self {
        Segments { packets: Vec::new(), heads: Vec::new() }
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Makes room for `n` more.
    #[inline]
    pub(crate) fn reserve(&mut self, n: usize) {
        self.packets.reserve(n);
        self.heads.reserve(n);
    }

    /// Appends a segment. `packet` is the frame, which ends with the payload.
    #[inline(always)]
    pub fn push(&mut self, packet: P, head: SegmentMeta) {
        self.packets.push(packet);
        self.heads.push(head);
    }

    /// What is known of them.
    #[inline]
    pub fn heads(&self) -> &[SegmentMeta] {
        &self.heads
    }

    /// Takes them out, and leaves nothing.
    #[inline]
    pub fn drain(&mut self) -> impl Iterator<Item = (P, SegmentMeta)> {
        self.packets.drain(..).zip(self.heads.drain(..))
    }

    /// The packets, to be drained, and what is known of them; [`clear`](Self::clear) ends it.
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut Vec<P>, &[SegmentMeta]) {
        (&mut self.packets, &self.heads)
    }

    /// Leaves nothing.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.packets.clear();
        self.heads.clear();
    }
}

/// What the network says of a segment that we have sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpError {
    /// It cannot be delivered.
    Unreachable,
    /// It is longer than what the path takes, which is `mtu` bytes of IP packet (RFC 1191 §4, RFC 8201 §4).
    TooBig {
        /// As the error has it, whatever that is.
        mtu: u16,
    },
}

/// What has happened to connections, to be told to their [`Service`](linerate_bypass::Service) in this order: all events of one
/// connection are, which is what it relies on.
#[derive(Debug, Default)]
pub struct EventBatch {
    /// Connections that are established.
    pub opened: Vec<(ConnId, Origin)>,
    /// Connections for which the time asked for has come.
    pub timers: Vec<ConnId>,
    /// Connections on which more bytes have arrived.
    pub readable: Vec<ConnId>,
    /// What else there is.
    pub others: Vec<Event>,
}

impl EventBatch {
    /// How much there is of it.
    #[inline]
    pub fn len(&self) -> usize {
        self.opened.len() + self.timers.len() + self.readable.len() + self.others.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Leaves none.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.opened.clear();
        self.timers.clear();
        self.readable.clear();
        self.others.clear();
    }
}

/// What happened to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The connection asked for with this token could not be made.
    Failed(u64, ConnectError),
    /// There is room again.
    Writable(ConnId),
    /// The peer has finished, and all it sent has been consumed.
    PeerClosed(ConnId),
    /// It is gone, and to be released.
    Closed(ConnId, CloseReason),
}

/// TCP for the flows of one worker.
///
/// The operations on connections are those of [`Transport`](linerate_bypass::Transport), which see.
pub trait Engine<N: Nic>: Sized {
    /// An engine for worker number `worker` of `workers`.
    fn new(config: &Config, worker: usize, workers: usize, egress: &mut Egress<N>, now: Instant) -> Self;

    /// Takes in the segments of one burst, all of flows that this worker owns, in order; leaves `burst` empty.
    fn rx_burst(&mut self, burst: &mut Segments<N::Packet>, egress: &mut Egress<N>, now: Instant);

    /// Whether to take in the segments of the next burst by themselves, as they come, is as good as to take them in together.
    #[inline]
    fn processes_immediately(&self) -> bool {
        false
    }

    /// Takes in a segment by itself. To be asked only while no segment waits to be taken in.
    fn rx_segment(&mut self, packet: N::Packet, head: &SegmentMeta, egress: &mut Egress<N>, now: Instant);

    /// An ICMP error quoted a segment of `tuple` that began at `sequence`. Blind attackers can send such errors
    /// (RFC 5927).
    fn icmp_error(&mut self, tuple: Tuple, sequence: u32, error: IcmpError);

    /// No neighbour answered for `ip`.
    fn neighbor_unreachable(&mut self, ip: IpAddr);

    /// `ip` is no longer an address of ours: its connections end at once, and nothing more is sent from it.
    fn address_removed(&mut self, ip: IpAddr);

    /// The largest IPv6 packet on the link has `mtu` bytes from now on. An engine whose connections cannot be told goes on as before.
    fn set_mtu_v6(&mut self, mtu: usize) {
        let _ = mtu;
    }

    /// Lets the timers due at `now` do their work.
    fn expire(&mut self, now: Instant);

    /// Puts what has happened since the last call into `news`, which are empty; what became readable during a burst is one
    /// event.
    fn take_events(&mut self, news: &mut EventBatch);

    /// Voids the name `conn`, whose `Closed` event is being delivered: its slot may be used again.
    fn release(&mut self, conn: ConnId, now: Instant);

    /// Sends what is to be sent.
    fn flush(&mut self, egress: &mut Egress<N>, now: Instant);

    /// When [`expire`](Self::expire) has something to do next; `Some` of the past when [`flush`](Self::flush) could
    /// not send everything.
    fn next_deadline(&self) -> Option<Instant>;

    /// Connections that exist, in whatever state.
    fn connections(&self) -> usize;

    /// Accepts no new connections: a SYN is answered as where nobody listens. One that has been answered may still become a
    /// connection, unless nothing was kept of it.
    fn stop_listening(&mut self);

    /// Closes every connection as if its service had, so that the worker can stop.
    fn close_all(&mut self);

    /// Aborts every connection.
    fn abort_all(&mut self);

    /// Adds the engine's counters to `summary`.
    fn summarize(&self, summary: &mut Summary);

    /// Puts what the engine has at the moment into `gauges`.
    fn fill_levels(&self, gauges: &mut Gauges);

    /// Slots that connections are in or have been in: all are below.
    fn slot_count(&self) -> usize;

    /// What is known of the connection in `slot`, if there is one.
    fn conn_info(&self, slot: usize) -> Option<ConnInfo>;

    /// Our address of the connection.
    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr>;
    /// The peer's address of the connection.
    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr>;
    /// Bytes received and not consumed.
    fn received(&self, conn: ConnId) -> usize;
    /// The first slice of them.
    fn peek(&mut self, conn: ConnId) -> &[u8];
    /// Drops the first `n` of them.
    fn consume(&mut self, conn: ConnId, n: usize);
    /// Takes the first slice of them, at most `max` bytes.
    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes>;
    /// Bytes that can be sent now.
    fn room(&mut self, conn: ConnId) -> usize;
    /// Sends all of `bytes`, or none.
    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Bytes>;
    /// A place of up to `max` bytes in an outgoing buffer.
    fn reserve(&mut self, conn: ConnId, max: usize, egress: &mut Egress<N>) -> Option<&mut [u8]>;
    /// Sends the first `n` bytes of that place.
    fn commit(&mut self, conn: ConnId, n: usize);
    /// Consumes the first `request` bytes received, and sends `len` that `write` writes, if that can be done at once; otherwise
    /// nothing has been consumed, sent or written, and `write` comes back.
    #[expect(unused_variables, reason = "the default has no shorter way than its steps")]
    fn try_answer<W: FnOnce(&mut [u8])>(
        &mut self,
        conn: ConnId,
        (request, len): (usize, usize),
        write: W,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Result<(), W> {
        Err(write)
    }
    /// Sends on `to` what was received on `from`.
    fn forward(&mut self, from: ConnId, to: ConnId, egress: &mut Egress<N>, now: Instant) -> usize;
    /// Finishes sending.
    fn close(&mut self, conn: ConnId);
    /// Resets.
    fn abort(&mut self, conn: ConnId);
    /// Asks for the connection to be [due](EventBatch::due) at `at`.
    fn set_timer(&mut self, conn: ConnId, at: Option<Instant>);
    /// Begins to connect.
    fn connect(&mut self, remote: SocketAddr, token: u64, egress: &mut Egress<N>, now: Instant);
}

/// How long TIME-WAIT lasts: twice a maximum segment lifetime of 30 s, as common systems have it (RFC 9293 §3.4.2
/// leaves the choice).
pub(crate) const TIME_WAIT: Duration = Duration::from_secs(60);
