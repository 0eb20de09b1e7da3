//! Interface between TCP engines and the worker.
//!
//! An engine is sans-IO: it takes segments and the time, produces events, and sends through an [`Egress`]. It reads no
//! clock, and its randomness comes from the seed in the configuration. Equal input therefore gives equal output.

use crate::config::Config;
use crate::ip::egress::Egress;
use crate::wire::icmp::IcmpError;
use crate::wire::tuple::Tuple;
use linerate_bypass::Nic;
use linerate_service::inspect::{ConnInfo, Gauges};
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, ConnId, EventBatch, Keepalive, Summary, Unsent, WriteError};
use std::net::{IpAddr, SocketAddr};

/// Connection and header position of a received TCP segment, as the demultiplexer found them.
#[derive(Debug, Clone, Copy)]
pub struct SegmentMeta {
    /// Connection of the segment.
    pub tuple: Tuple,
    /// Offset of the TCP header in the packet, after the Ethernet and IP headers.
    pub tcp_offset: usize,
}

/// TCP segments of one burst in order of arrival, with valid headers and checksums.
///
/// Packets and metadata are in separate vectors, so that a pass over one does not move the other.
#[derive(Debug)]
pub struct Segments<P> {
    packets: Vec<P>,
    metas: Vec<SegmentMeta>,
}

impl<P> Segments<P> {
    /// Creates an empty burst.
    pub(crate) fn new() -> Self {
        Segments { packets: Vec::new(), metas: Vec::new() }
    }

    /// Returns whether there are no segments.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Reserves capacity for `n` more segments.
    #[inline]
    pub(crate) fn reserve(&mut self, n: usize) {
        self.packets.reserve(n);
        self.metas.reserve(n);
    }

    /// Appends a segment. `packet` is the frame, which ends with the payload.
    #[inline(always)]
    pub fn push(&mut self, packet: P, meta: SegmentMeta) {
        self.packets.push(packet);
        self.metas.push(meta);
    }

    /// Returns the metadata of all segments.
    #[inline]
    pub fn metas(&self) -> &[SegmentMeta] {
        &self.metas
    }

    /// Returns whether there are no segments.
    #[inline]
    pub fn drain(&mut self) -> impl Iterator<Item = (P, SegmentMeta)> {
        self.packets.drain(..).zip(self.metas.drain(..))
    }

    /// Returns the packets, for the caller to drain, and their metadata. The caller ends with [`clear`](Self::clear).
    #[inline]
    pub(crate) fn parts(&mut self) -> (&mut Vec<P>, &[SegmentMeta]) {
        (&mut self.packets, &self.metas)
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.packets.clear();
        self.metas.clear();
    }
}

/// TCP engine: the connections of one worker.
///
/// The operations on connections correspond to [`Transport`](linerate_service::Transport).
pub trait Engine<N: Nic>: Sized {
    /// Creates the engine of worker number `worker` of `workers`.
    fn new(config: &Config, worker: usize, workers: usize, egress: &mut Egress<N>, now: Instant) -> Self;

    /// Processes the segments of one burst in order and leaves `burst` empty. This worker owns all their flows.
    fn rx_burst(&mut self, burst: &mut Segments<N::Packet>, egress: &mut Egress<N>, now: Instant);

    /// Returns whether the segments of the next burst should be processed one at a time, by
    /// [`rx_segment`](Self::rx_segment).
    #[inline]
    fn processes_immediately(&self) -> bool {
        false
    }

    /// Processes one segment. Call it only while no segment of a burst waits for [`rx_burst`](Self::rx_burst).
    fn rx_segment(&mut self, packet: N::Packet, meta: &SegmentMeta, egress: &mut Egress<N>, now: Instant);

    /// Handles an ICMP error that quotes a segment of `tuple` with the sequence number `sequence`. Off-path attackers
    /// can forge such errors (RFC 5927).
    fn icmp_error(&mut self, tuple: Tuple, sequence: u32, error: IcmpError);

    /// Handles failed address resolution of the next hop `ip`.
    fn neighbor_unreachable(&mut self, ip: IpAddr);

    /// Handles the loss of the local address `ip`: its connections end at once, and no further segment is sent from it.
    fn address_removed(&mut self, ip: IpAddr);

    /// Sets the IPv6 MTU of the link to `mtu` bytes. An engine that cannot change the MTU of connections ignores it.
    fn set_mtu_v6(&mut self, mtu: usize) {
        let _ = mtu;
    }

    /// Runs the timers that are due at `now`.
    fn expire(&mut self, now: Instant);

    /// Moves the events since the last call into the empty `events`. All data of a connection that arrived in one burst
    /// produce a single event.
    fn take_events(&mut self, events: &mut EventBatch);

    /// Returns whether [`take_events`](Self::take_events) may return events now.
    fn has_events(&self) -> bool;

    /// Invalidates `conn`, whose `Closed` event is being delivered. Its slot can be reused.
    fn release(&mut self, conn: ConnId, now: Instant);

    /// Sends all pending segments.
    fn flush(&mut self, egress: &mut Egress<N>, now: Instant);

    /// Returns the time of the next [`expire`](Self::expire), which is in the past if [`flush`](Self::flush) could not
    /// send everything.
    fn next_deadline(&self) -> Option<Instant>;

    /// Returns the number of connections in any state.
    fn connections(&self) -> usize;

    /// Stops accepting connections: a SYN is answered as on a closed port. A half-open connection may still be
    /// established, but a SYN cookie is no longer accepted.
    fn stop_listening(&mut self);

    /// Closes every connection as its service would, for the shutdown of the worker.
    fn close_all(&mut self);

    /// Aborts every connection.
    fn abort_all(&mut self);

    /// Adds the engine's counters to `summary`.
    fn summarize(&self, summary: &mut Summary);

    /// Writes current resource levels into `gauges`.
    fn fill_gauges(&self, gauges: &mut Gauges);

    /// Returns the number of slots that have ever held a connection.
    fn slot_count(&self) -> usize;

    /// Returns information about the connection in `slot`.
    fn conn_info(&self, slot: usize) -> Option<ConnInfo>;

    /// Returns the local address of the connection.
    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr>;
    /// Returns the peer's address of the connection.
    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr>;
    /// Returns the number of received bytes that are not consumed.
    fn received(&self, conn: ConnId) -> usize;
    /// Returns the first slice of the received bytes.
    fn peek(&mut self, conn: ConnId) -> &[u8];
    /// Returns the first slice of the received bytes, and the number of received bytes.
    fn front(&mut self, conn: ConnId) -> (&[u8], usize) {
        let received = self.received(conn);
        (self.peek(conn), received)
    }
    /// Consumes the first `n` received bytes.
    fn consume(&mut self, conn: ConnId, n: usize);
    /// Takes the first slice of the received bytes, at most `max` bytes.
    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes>;
    /// Returns the number of bytes that can be sent now.
    fn send_space(&mut self, conn: ConnId) -> usize;
    /// Sends all of `bytes` or none.
    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent>;
    /// Returns up to `max` writable bytes in an outgoing buffer.
    fn reserve(&mut self, conn: ConnId, max: usize, egress: &mut Egress<N>) -> Result<&mut [u8], WriteError>;
    /// Sends the first `n` bytes written after [`reserve`](Self::reserve).
    fn commit(&mut self, conn: ConnId, n: usize);
    /// Consumes the first `request` received bytes and sends `len` bytes that `write` writes, if both are possible at
    /// once. Otherwise it has no effect and returns `write`.
    #[expect(unused_variables, reason = "the default never succeeds")]
    fn respond<W: FnOnce(&mut [u8])>(
        &mut self,
        conn: ConnId,
        (request, len): (usize, usize),
        write: W,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Result<(), W> {
        Err(write)
    }
    /// Sends the data received on `from` on `to`.
    fn forward(&mut self, from: ConnId, to: ConnId, egress: &mut Egress<N>, now: Instant) -> usize;
    /// Sends a FIN after the queued data.
    fn close(&mut self, conn: ConnId);
    /// Resets the connection.
    fn abort(&mut self, conn: ConnId);
    /// Schedules a [timer event](EventBatch::timers) for the connection at `at`, or cancels it.
    fn set_timer(&mut self, conn: ConnId, at: Option<Instant>);
    /// Sets the keepalive of the connection, in place of [`Config::keepalive`].
    fn set_keepalive(&mut self, conn: ConnId, keepalive: Option<Keepalive>, now: Instant) {
        let _ = (conn, keepalive, now);
    }
    /// Sets the user timeout of the connection, or restores [`Config::user_timeout`].
    fn set_user_timeout(&mut self, conn: ConnId, timeout: Option<Duration>) {
        let _ = (conn, timeout);
    }
    /// Withholds segments that are not full, or sends them.
    fn set_corked(&mut self, conn: ConnId, corked: bool) {
        let _ = (conn, corked);
    }
    /// Opens a connection to `remote`.
    fn connect(&mut self, remote: SocketAddr, token: u64, egress: &mut Egress<N>, now: Instant);
}
