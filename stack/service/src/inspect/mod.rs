//! Inspection of running workers: queries from other threads, and their replies.
//!
//! A query is an entry of the worker's mailbox, as a message is. The worker handles it in its next turn, between events
//! of connections, and replies through a channel of the sender. Nothing is counted or kept for queries, so a turn
//! without a query has no additional cost. The work for one query is bounded, so it delays connections little.

mod summary;

pub use summary::{Summary, Verbs};

use crate::ConnId;
use std::fmt;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Maximum number of slots that a worker visits for one query: about 10 µs.
pub const SLOTS_PER_QUERY: usize = 256;

/// Query to a worker. The worker replies once. It ignores a sender that has stopped waiting; a worker that ends drops
/// the query, and with it the reply channel.
#[derive(Debug)]
pub enum StatsQuery {
    /// Counters and gauges of the worker.
    Counters {
        /// Channel for the reply.
        reply: Sender<Snapshot>,
    },
    /// A page of the worker's connections.
    Connections {
        /// First slot to visit: 0, and then the [`next`](ConnPage::next) of the previous page.
        from: usize,
        /// Maximum number of slots to visit, many of which may be empty; capped at
        /// [`SLOTS_PER_QUERY`](Inspect::SLOTS_PER_QUERY).
        most: usize,
        /// Channel for the reply.
        reply: Sender<ConnPage>,
    },
}

/// State of a worker that queries report. Called on the thread of the worker.
pub trait Inspect {
    /// Maximum number of slots to visit for one query: below [`SLOTS_PER_QUERY`] where a visit takes long.
    const SLOTS_PER_QUERY: usize = SLOTS_PER_QUERY;

    /// Returns the counters and gauges.
    fn snapshot(&mut self) -> Snapshot;

    /// Returns an upper bound of the slots in use.
    fn slots(&self) -> usize;

    /// Returns the connection in `slot`.
    fn connection(&self, slot: usize) -> Option<ConnInfo>;
}

impl StatsQuery {
    /// Sends the reply of `worker`.
    #[cold]
    #[inline(never)]
    pub fn answer(self, worker: &mut impl Inspect) {
        // A sender that has stopped waiting needs no reply.
        let _gone = match self {
            StatsQuery::Counters { reply } => reply.send(worker.snapshot()).is_err(),
            StatsQuery::Connections { from, most, reply } => reply.send(ConnPage::of(worker, from, most)).is_err(),
        };
    }
}

/// Counters and gauges of a worker.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Index of the worker, from 0.
    pub worker: usize,
    /// Counters since the worker started.
    pub summary: Summary,
    /// Current values.
    pub gauges: Gauges,
    /// Events of resource exhaustion at the worker's port; `None` without a port.
    pub shortages: Option<Shortages>,
    /// Frames that an interface shared with the kernel has passed to it, on the first worker; `None` for other ports.
    pub passed_frames: Option<u64>,
    /// Link of the port, on the first worker; `None` without a port.
    pub link: Option<Link>,
    /// Metrics of the service.
    pub service: ServiceMetrics,
}

/// Metrics of a service: [`Service::metrics`](crate::Service::metrics).
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ServiceMetrics {
    /// Requests served, if the service counts them.
    pub requests: Option<u64>,
    /// Requests that delayed other connections noticeably, if the service measures that.
    pub slow_requests: Option<u64>,
    /// Further metrics.
    pub others: Vec<ServiceMetric>,
}

/// Link of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Name of the kernel interface or, without one, the network in the form of `--via`.
    pub interface: String,
    /// True if the link is up.
    pub is_up: bool,
}

/// Metric of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceMetric {
    /// Name, common to the metrics of one kind.
    pub name: &'static str,
    /// Part that the value belongs to, or `""` if there is only one.
    pub part: &'static str,
    /// Value.
    pub value: u64,
}

/// Counts of resource exhaustion at a port.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Shortages {
    /// Transmit bursts that left frames behind because the ring was full.
    pub tx_full: u64,
    /// Packet allocations that failed because the pool was empty.
    pub pool_empty: u64,
}

/// Current values of a worker. `None` where the transport has no such value or does not know it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Gauges {
    /// Connections in any state, except those in TIME-WAIT that the service has closed.
    pub connections: u64,
    /// Half-open connections (SYN-RECEIVED).
    pub half_open: Option<u64>,
    /// Connections in TIME-WAIT.
    pub time_wait: Option<u64>,
    /// Packets of the port held in queues of connections.
    pub packets_held: Option<u64>,
    /// Free packets in the pool of the receive queue. Several workers may share the pool.
    pub pool_left: Option<u64>,
    /// Maximum number of packets that this worker may hold: its share of the pool.
    pub pool_share: Option<u64>,
    /// Frames queued for transmission.
    pub tx_queued: Option<u64>,
}

/// Page of a worker's connections.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ConnPage {
    /// Connections in the visited slots, in slot order.
    pub connections: Vec<ConnInfo>,
    /// First slot of the next page; `None` after the last.
    pub next: Option<usize>,
}

impl ConnPage {
    /// Returns the connections of `worker` in up to `most` slots from `from` on. `most` is clamped to 1 and
    /// [`SLOTS_PER_QUERY`](Inspect::SLOTS_PER_QUERY).
    pub fn of<W: Inspect>(worker: &W, from: usize, most: usize) -> Self {
        let slots = worker.slots();
        let end = from.saturating_add(most.clamp(1, W::SLOTS_PER_QUERY)).min(slots);
        let connections = (from..end).filter_map(|slot| worker.connection(slot)).collect();
        ConnPage { connections, next: (end < slots).then_some(end) }
    }
}

/// State of one connection. `None` where the transport has no such value, does not know it, or has not measured it yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnInfo {
    /// Identifier. The service may not have opened the connection yet, or may have closed it already.
    pub conn: ConnId,
    /// Local address.
    pub local: Option<SocketAddr>,
    /// Peer's address.
    pub remote: SocketAddr,
    /// State of the connection.
    pub state: ConnState,
    /// Received bytes that the service has not consumed.
    pub unread: u64,
    /// Bytes that the service has sent and that have not left for the peer or the kernel.
    pub unsent: u64,
    /// TCP details.
    pub tcp: TcpInfo,
    /// Details of RDMA connections.
    pub verbs: Option<VerbsInfo>,
    /// Details of TLS, after its handshake.
    pub tls: Option<TlsInfo>,
}

/// Details of TLS on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsInfo {
    /// Version, such as `TLSv1.3`.
    pub version: &'static str,
    /// Cipher suite by its name in RFC 8446.
    pub suite: &'static str,
    /// True if a ticket of an earlier connection was used.
    pub is_resumed: bool,
}

/// Details of an RDMA connection.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct VerbsInfo {
    /// Queue pair of this connection alone.
    pub qp: Option<u32>,
    /// Queue pair of the peer, if datagrams are sent to it.
    pub peer_qp: Option<u32>,
    /// State of the queue pair.
    pub state: &'static str,
    /// Free buffers of the peer.
    pub credits: u64,
    /// Incomplete requests, or unacknowledged messages of a session.
    pub outstanding: u64,
    /// Number of times that data had to wait for credits.
    pub credit_stalls: u64,
}

/// TCP details of a connection, from the stack or the kernel. `None` where the value is unknown or not measured yet.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TcpInfo {
    /// Maximum payload of one segment in bytes, options deducted.
    pub mss: Option<u16>,
    /// Bytes sent and not acknowledged.
    pub in_flight: Option<u64>,
    /// Send window: the last receive window that the peer offered, in bytes.
    pub send_window: Option<u64>,
    /// Receive window offered to the peer, in bytes.
    pub receive_window: Option<u64>,
    /// Congestion window in bytes.
    pub congestion_window: Option<u64>,
    /// Slow-start threshold in bytes; `None` also before the first loss or mark.
    pub slow_start_threshold: Option<u64>,
    /// Smoothed round-trip time (RFC 6298).
    pub rtt: Option<Duration>,
    /// Round-trip time variation (RFC 6298).
    pub rtt_variation: Option<Duration>,
    /// Minimum round-trip time of the last minutes.
    pub min_rtt: Option<Duration>,
    /// Retransmission timeout, backoff included.
    pub rto: Option<Duration>,
    /// Consecutive retransmission timeouts since the last acknowledgment.
    pub time_outs: Option<u32>,
    /// Segments retransmitted since the connection was opened.
    pub retransmitted: Option<u64>,
    /// True if loss recovery is in progress.
    pub is_recovering: Option<bool>,
    /// True if reordering has been observed on the path.
    pub reorders: Option<bool>,
    /// Pacing rate in bytes per second, if the connection is paced.
    pub pacing_rate: Option<u64>,
}

/// State of a connection (RFC 9293 §3.3.2). Other transports use the states that apply to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnState {
    /// Closed, and [`Service::closed`](crate::Service::closed) is still due.
    Closed,
    /// A SYN has been sent.
    SynSent,
    /// A SYN has been received.
    SynReceived,
    /// Both ends may send.
    Established,
    /// This end has finished, and the peer has not acknowledged it.
    FinWait1,
    /// This end has finished, and the peer has acknowledged it.
    FinWait2,
    /// The peer has finished.
    CloseWait,
    /// Both ends have finished, this end first, and the peer has not acknowledged it.
    Closing,
    /// Both ends have finished, the peer first, and the peer has not acknowledged it.
    LastAck,
    /// Both ends have finished and acknowledged.
    TimeWait,
}

impl ConnState {
    /// All states.
    pub const ALL: [ConnState; 10] = [
        ConnState::Closed,
        ConnState::SynSent,
        ConnState::SynReceived,
        ConnState::Established,
        ConnState::FinWait1,
        ConnState::FinWait2,
        ConnState::CloseWait,
        ConnState::Closing,
        ConnState::LastAck,
        ConnState::TimeWait,
    ];

    /// Returns the lower-case name, as `ss` writes it, except `established` for `ESTAB`.
    pub fn name(self) -> &'static str {
        match self {
            ConnState::Closed => "closed",
            ConnState::SynSent => "syn-sent",
            ConnState::SynReceived => "syn-received",
            ConnState::Established => "established",
            ConnState::FinWait1 => "fin-wait-1",
            ConnState::FinWait2 => "fin-wait-2",
            ConnState::CloseWait => "close-wait",
            ConnState::Closing => "closing",
            ConnState::LastAck => "last-ack",
            ConnState::TimeWait => "time-wait",
        }
    }

    /// Returns the state of an established connection of a transport that knows only which ends have finished.
    pub fn of_ends(peer_finished: bool, we_finished: bool) -> Self {
        match (peer_finished, we_finished) {
            (false, false) => ConnState::Established,
            (false, true) => ConnState::FinWait1,
            (true, false) => ConnState::CloseWait,
            (true, true) => ConnState::LastAck,
        }
    }
}

impl fmt::Display for ConnState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Worker with a connection in every third slot.
    struct Every3rd(usize);

    impl Inspect for Every3rd {
        fn snapshot(&mut self) -> Snapshot {
            Snapshot { worker: 7, ..Snapshot::default() }
        }

        fn slots(&self) -> usize {
            self.0
        }

        fn connection(&self, slot: usize) -> Option<ConnInfo> {
            assert!(slot < self.0, "{slot}");
            slot.is_multiple_of(3).then(|| ConnInfo {
                conn: ConnId::new(7, slot, 0),
                local: None,
                remote: ([10, 0, 0, 1], 1000).into(),
                state: ConnState::Established,
                unread: 0,
                unsent: 0,
                tcp: TcpInfo::default(),
                verbs: None,
                tls: None,
            })
        }
    }

    fn all(worker: &mut Every3rd, most: usize) -> (Vec<usize>, usize) {
        let (mut slots, mut queries, mut from) = (Vec::new(), 0, Some(0));
        while let Some(slot) = from {
            let (reply, page) = channel();
            StatsQuery::Connections { from: slot, most, reply }.answer(worker);
            let page = page.recv().unwrap();
            slots.extend(page.connections.iter().map(|info| info.conn.slot()));
            (queries, from) = (queries + 1, page.next);
        }
        (slots, queries)
    }

    #[test]
    fn pages_list_every_connection_once() {
        for (slots, most, queries) in
            [(0, 10, 1), (9, 10, 1), (10, 10, 1), (11, 10, 2), (1000, usize::MAX, 4), (5, 0, 5)]
        {
            let (slots_seen, sent) = all(&mut Every3rd(slots), most);
            assert_eq!((slots_seen, sent), ((0..slots).step_by(3).collect(), queries), "{slots} slots, {most} at most");
        }
    }

    #[test]
    fn page_behind_the_last_slot_is_empty() {
        assert_eq!(ConnPage::of(&Every3rd(4), 100, 10), ConnPage::default());
        assert_eq!(ConnPage::of(&Every3rd(4), usize::MAX, 10), ConnPage::default());
    }

    #[test]
    fn reply_to_a_dropped_receiver_is_ignored() {
        let (reply, _) = channel();
        StatsQuery::Counters { reply }.answer(&mut Every3rd(1));
    }

    #[test]
    fn conn_state_display_honours_padding() {
        assert_eq!(format!("{:>12}|", ConnState::FinWait1), "  fin-wait-1|");
    }
}
