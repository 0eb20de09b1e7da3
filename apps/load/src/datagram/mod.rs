//! Traffic without connections: request loss, timeouts and echoes of datagrams.

mod flight;
mod probe;
mod udp_echo;

pub(crate) use flight::{ANSWER_TIMEOUT, EXPIRY_INTERVAL, RETRY_DELAY, SEND_BATCH};
pub use flight::{Counts, FIRST_ANSWER_TIMEOUT, Flight, FlightPlan};
pub use probe::{Probe, ProbeCheck};
pub use udp_echo::UdpEchoLoad;
