//! What is asked and answered between processes: one line of JSON each, which says its version.

use linerate_bypass::inspect::{ConnInfo, Snapshot};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// The version of all of it. What is added and may be left out changes nothing; whatever else changes makes it another.
pub const VERSION: u32 = 1;

/// A line, either way.
#[derive(Debug, Serialize, Deserialize)]
pub struct Line<T> {
    /// [`VERSION`].
    pub version: u32,
    /// What it says.
    #[serde(flatten)]
    pub said: T,
}

impl<T: Serialize> Line<T> {
    /// The line that says so, with its end.
    pub fn of(said: T) -> Vec<u8> {
        let line = Line { version: VERSION, said };
        let mut bytes = serde_json::to_vec(&line).expect("it is made of plain numbers and text");
        bytes.push(b'\n');
        bytes
    }
}

/// A question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// What the process is.
    About,
    /// What its workers have counted.
    Counters,
    /// The connections of a worker, a page of them.
    Connections {
        /// Its number.
        worker: usize,
        /// The slot to begin with: 0, and then the `next` of the last answer.
        from: usize,
    },
}

/// What is said to a question.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Ask::About`].
    About(About),
    /// To [`Ask::Counters`].
    Counters(Counters),
    /// To [`Ask::Connections`].
    Connections(Connections),
    /// To what is no question, or one of another version.
    Error(String),
}

/// What a process is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Its number.
    pub pid: u32,
    /// The program's version.
    pub program: String,
    /// The words it was started with, without the program's name.
    pub command: String,
    /// How many workers it has.
    pub workers: usize,
}

/// What the workers of a process have counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// When that was: microseconds since the process began to be looked into.
    pub at_us: u64,
    /// Each worker's, in the order of their numbers; `None` where one did not answer within a second. They go by the names of the
    /// metrics, and what a network does not have is not there.
    pub workers: Vec<Option<BTreeMap<String, Value>>>,
}

/// What a metric's value is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// One number.
    One(u64),
    /// One for each of its label's.
    Each(BTreeMap<String, u64>),
}

/// Some connections of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// Whether the worker answered within a second.
    pub up: bool,
    /// Those in the slots that were looked at, in their order.
    pub connections: Vec<Connection>,
    /// The slot to go on with, if there are more.
    pub next: Option<usize>,
}

/// One connection. `None` is what cannot be told, or has not been measured yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// Whose it is.
    pub worker: usize,
    /// Its place there.
    pub slot: usize,
    /// How often the place had been used before.
    pub generation: u32,
    /// How far it has come.
    pub state: String,
    /// Our address.
    pub local: Option<SocketAddr>,
    /// The peer's.
    pub remote: SocketAddr,
    /// Received, and not consumed by the service.
    pub unread_bytes: u64,
    /// Sent by the service, and not gone yet.
    pub unsent_bytes: u64,
    /// Sent, and not acknowledged.
    pub in_flight_bytes: Option<u64>,
    /// The most payload of a segment.
    pub mss_bytes: Option<u16>,
    /// The peer's receive window.
    pub send_window_bytes: Option<u64>,
    /// The window that the peer may use.
    pub receive_window_bytes: Option<u64>,
    /// The congestion window.
    pub congestion_window_bytes: Option<u64>,
    /// The slow-start threshold, once something was lost or marked.
    pub slow_start_threshold_bytes: Option<u64>,
    /// The smoothed round-trip time.
    pub rtt_us: Option<f64>,
    /// Its variation.
    pub rtt_variation_us: Option<f64>,
    /// The smallest one of the last minutes.
    pub min_rtt_us: Option<f64>,
    /// The retransmission time-out.
    pub retransmission_time_out_us: Option<f64>,
    /// Retransmission time-outs in a row.
    pub time_outs: Option<u32>,
    /// Segments that were sent again.
    pub retransmitted_segments: Option<u64>,
    /// Payload bytes that were copied.
    pub copied_bytes: Option<u64>,
    /// Whether something was lost that is being repaired.
    pub is_recovering: Option<bool>,
    /// Whether the path has been seen to reorder.
    pub reorders: Option<bool>,
    /// What is sent in a second, if it is paced.
    pub pacing_bytes_per_second: Option<u64>,
}

impl From<&ConnInfo> for Connection {
    fn from(info: &ConnInfo) -> Self {
        let micros = |time: Option<Duration>| time.map(|time| time.as_nanos() as f64 / 1000.0);
        let (conn, tcp) = (info.conn, &info.tcp);
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
            // Nobody counts them for a connection.
            copied_bytes: None,
            is_recovering: tcp.is_recovering,
            reorders: tcp.reorders,
            pacing_bytes_per_second: tcp.pacing_rate,
        }
    }
}

impl Counters {
    /// What was told `at` so long after the process began to be looked into.
    pub fn of(at: Duration, told: &[Option<Snapshot>]) -> Self {
        let values = |told: &Option<Snapshot>| told.as_ref().map(super::metrics::values);
        Counters { at_us: at.as_micros() as u64, workers: told.iter().map(values).collect() }
    }
}
