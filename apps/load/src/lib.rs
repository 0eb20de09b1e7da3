//! Load generators: services that open connections and measure the responses.
//!
//! Most are a [`Load`], which keeps its connections; [`Connects`] opens a connection for each request. [`UdpEchoLoad`],
//! [`UdpKvLoad`] and [`raw`] send datagrams or frames.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not published")]

mod connection;
mod datagram;
mod http;
mod kv;
mod outcome;
mod pace;
mod pattern;
mod payload;
pub mod raw;
pub mod report;
pub mod services;
mod stream;
#[cfg(test)]
mod testing;
mod times;

pub use connection::{
    Barrier, ConnectPlan, ConnectStats, Connects, Corrupt, Load, Plan, PlanError, PortWaits, Traffic, WorkerLoad,
};
#[cfg(feature = "rdma")]
pub use connection::{Progress, Rounds, Stage};
pub use datagram::{Counts, FIRST_ANSWER_TIMEOUT, Flight, FlightPlan, Probe, ProbeCheck, UdpEchoLoad};
pub use http::{HttpLoad, InvalidResponse};
pub use kv::{
    CountLoad, CountPlan, CountStats, CounterLookup, CounterLookupError, DatagramErrors, Exported, Keyspace, KvLoad,
    KvPlan, LONGEST_IN_DATAGRAM, MOST_KEYS, OneSidedStats, OpStats, Protocol, Query, SWAP_EVERY, UdpKvLoad, UdpPlan,
    counter_name, local_millis,
};
pub use outcome::{Errors, Outcome};
pub use pace::{Arrivals, OpenLoop, Pace};
pub use payload::allocate_payload;
pub use stream::{Bulk, Direction, EchoLoad, Incast};
pub use times::Times;
pub(crate) use times::histogram_of_nanos;
