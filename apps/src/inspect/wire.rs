//! Messages between processes: one JSON line each, with a version.

use linerate_service::inspect::{ConnInfo, Snapshot};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Protocol version. Optional additions keep it; any other change increments it.
pub const VERSION: u32 = 1;

/// Query or reply line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Line<T> {
    pub version: u32,
    /// Content.
    #[serde(flatten)]
    pub body: T,
}

impl<T: Serialize> Line<T> {
    /// Encodes a line, including its line feed.
    pub fn encode(body: T) -> Vec<u8> {
        let line = Line { version: VERSION, body };
        let mut bytes = serde_json::to_vec(&line).expect("the types serialize without error");
        bytes.push(b'\n');
        bytes
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Query {
    /// Description of the process.
    About,
    /// Counters of all workers.
    Counters,
    /// One page of the connections of a worker.
    Connections {
        /// Worker number.
        worker: usize,
        /// First slot: 0, then `next` of the previous reply.
        from: usize,
    },
}

/// Reply to a query.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Reply to [`Query::About`].
    About(About),
    /// Reply to [`Query::Counters`].
    Counters(Counters),
    /// Reply to [`Query::Connections`].
    Connections(Connections),
    /// Reply to an invalid query or one of another version.
    Error(String),
}

/// Description of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Process id.
    pub pid: u32,
    /// Program version.
    pub program: String,
    /// Command line without the program name.
    pub command: String,
    /// Number of workers.
    pub workers: usize,
}

/// Counters of the workers of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Time of the reply, in microseconds since introspection started.
    pub at_us: u64,
    /// Values of each worker by metric name, indexed by worker number. `None` for a worker that did not answer within
    /// one second. Metrics that the network does not have are absent.
    pub workers: Vec<Option<BTreeMap<String, Value>>>,
}

/// Value of a metric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// Single value.
    One(u64),
    /// One value per label value.
    Each(BTreeMap<String, u64>),
}

impl Value {
    /// Returns a value of the same form without counts.
    pub fn zero(&self) -> Value {
        match self {
            Value::One(_) => Value::One(0),
            Value::Each(_) => Value::Each(BTreeMap::new()),
        }
    }
}

/// Page of connections of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// Set if the worker answered within one second.
    pub up: bool,
    /// Connections in the examined slots, in slot order.
    pub connections: Vec<Connection>,
    /// First slot of the next page, if there is one.
    pub next: Option<usize>,
}

/// One connection. `None` means not available or not measured yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// Number of the owning worker.
    pub worker: usize,
    /// Slot in the worker.
    pub slot: usize,
    /// Number of earlier uses of the slot.
    pub generation: u32,
    /// TCP state.
    pub state: String,
    pub local: Option<SocketAddr>,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Bytes received and not consumed by the service.
    pub unread_bytes: u64,
    /// Bytes written by the service and not sent.
    pub unsent_bytes: u64,
    /// Bytes sent and not acknowledged.
    pub in_flight_bytes: Option<u64>,
    /// Maximum segment size.
    pub mss_bytes: Option<u16>,
    /// Receive window of the peer.
    pub send_window_bytes: Option<u64>,
    /// Window advertised to the peer.
    pub receive_window_bytes: Option<u64>,
    pub congestion_window_bytes: Option<u64>,
    /// Slow-start threshold, set after the first loss or mark.
    pub slow_start_threshold_bytes: Option<u64>,
    /// Smoothed round-trip time.
    pub rtt_us: Option<f64>,
    /// Round-trip time variation.
    pub rtt_variation_us: Option<f64>,
    /// Minimum round-trip time of the last minutes.
    pub min_rtt_us: Option<f64>,
    /// Retransmission timeout.
    pub retransmission_time_out_us: Option<f64>,
    /// Consecutive retransmission timeouts.
    pub time_outs: Option<u32>,
    pub retransmitted_segments: Option<u64>,
    /// Set if loss recovery is in progress.
    pub is_recovering: Option<bool>,
    /// Set if reordering was observed on the path.
    pub reorders: Option<bool>,
    /// Pacing rate, if the connection is paced.
    pub pacing_bytes_per_second: Option<u64>,
    /// Queue pair of this connection alone (RDMA).
    #[serde(default)]
    pub rdma_qp: Option<u32>,
    /// Queue pair of the peer, if datagrams are sent to it (RDMA).
    #[serde(default)]
    pub rdma_peer_qp: Option<u32>,
    /// State of the queue pair (RDMA).
    #[serde(default)]
    pub rdma_state: Option<String>,
    /// Free buffers of the peer (RDMA).
    #[serde(default)]
    pub rdma_credits: Option<u64>,
    /// Incomplete requests (RDMA).
    #[serde(default)]
    pub rdma_outstanding: Option<u64>,
    /// Number of times that data waited for buffers of the peer (RDMA).
    #[serde(default)]
    pub rdma_credit_stalls: Option<u64>,
    /// Version (TLS).
    #[serde(default)]
    pub tls_version: Option<String>,
    /// Cipher suite (TLS).
    #[serde(default)]
    pub tls_suite: Option<String>,
    /// Set if a ticket of an earlier connection was used (TLS).
    #[serde(default)]
    pub tls_is_resumed: Option<bool>,
}

impl From<&ConnInfo> for Connection {
    fn from(info: &ConnInfo) -> Self {
        let micros = |time: Option<Duration>| time.map(|time| time.as_nanos() as f64 / 1000.0);
        let (conn, tcp, verbs) = (info.conn, &info.tcp, info.verbs.as_ref());
        Connection {
            worker: conn.worker(),
            slot: conn.slot(),
            generation: conn.generation(),
            state: info.state.name().to_owned(),
            local: info.local,
            remote: info.remote,
            unread_bytes: info.unread,
            unsent_bytes: info.unsent,
            in_flight_bytes: tcp.in_flight,
            mss_bytes: tcp.mss,
            send_window_bytes: tcp.send_window,
            receive_window_bytes: tcp.receive_window,
            congestion_window_bytes: tcp.congestion_window,
            slow_start_threshold_bytes: tcp.slow_start_threshold,
            rtt_us: micros(tcp.rtt),
            rtt_variation_us: micros(tcp.rtt_variation),
            min_rtt_us: micros(tcp.min_rtt),
            retransmission_time_out_us: micros(tcp.rto),
            time_outs: tcp.time_outs,
            retransmitted_segments: tcp.retransmitted,
            is_recovering: tcp.is_recovering,
            reorders: tcp.reorders,
            pacing_bytes_per_second: tcp.pacing_rate,
            rdma_qp: verbs.and_then(|verbs| verbs.qp),
            rdma_peer_qp: verbs.and_then(|verbs| verbs.peer_qp),
            rdma_state: verbs.map(|verbs| verbs.state.to_owned()),
            rdma_credits: verbs.map(|verbs| verbs.credits),
            rdma_outstanding: verbs.map(|verbs| verbs.outstanding),
            rdma_credit_stalls: verbs.map(|verbs| verbs.credit_stalls),
            tls_version: info.tls.map(|tls| tls.version.to_owned()),
            tls_suite: info.tls.map(|tls| tls.suite.to_owned()),
            tls_is_resumed: info.tls.map(|tls| tls.is_resumed),
        }
    }
}

impl Counters {
    /// Creates the message from `snapshots`, taken `at` after introspection started.
    pub fn new(at: Duration, snapshots: &[Option<Snapshot>]) -> Self {
        let values = |snapshot: &Option<Snapshot>| snapshot.as_ref().map(super::metrics::values);
        Counters { at_us: at.as_micros() as u64, workers: snapshots.iter().map(values).collect() }
    }
}
