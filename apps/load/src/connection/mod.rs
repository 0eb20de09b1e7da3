//! Loads over connections: the phases of a load, and the loads that keep or change their connections.

mod barrier;
mod connects;
mod load;
#[cfg(feature = "rdma")]
mod rounds;
mod traffic;

pub use barrier::Barrier;
pub use connects::{ConnectPlan, ConnectStats, Connects, PortWaits};
pub use load::Load;
#[cfg(feature = "rdma")]
pub use rounds::{Progress, Rounds, Stage};
pub use traffic::{Corrupt, Traffic};

use crate::Outcome;
use linerate_service::Service;
use linerate_service::time::Duration;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};

/// Concurrent connection attempts of one worker, limited to avoid overflowing a server's backlog.
const OPENING_AT_ONCE: usize = 256;
/// Interval at which a worker checks the barrier while opening and preparing.
const OPENING_TICK: Duration = Duration::from_millis(1);

/// One worker's part of a load of any kind.
pub trait WorkerLoad: Service<Message = Infallible> + Send + 'static {
    /// Counters of the traffic.
    type Traffic: Send;

    /// Returns the measurements.
    fn into_outcome(self) -> Outcome<Self::Traffic>;
}

/// Returns the number of connections of worker `worker` out of `connections` of `workers` workers.
fn share(connections: usize, worker: usize, workers: usize) -> usize {
    (connections + workers - 1 - worker) / workers
}

/// Invalid parameters of a load. Messages name the options of the command line.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The server's ports exceed the port range.
    #[error("--ports {ports}: exceeds the port range after {remote}")]
    PortRange {
        ports: u16,
        /// Address with the first port.
        remote: SocketAddr,
    },
    /// Values are too short to be verified.
    #[error("--value-size: --verify needs values of at least {0} bytes")]
    TooShortToVerify(usize),
    /// A parameter is outside of its range.
    #[error("{0} is outside of its range")]
    OutOfRange(&'static str),
}

/// Parameters of a load, the same for all workers.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server.
    pub remote: SocketAddr,
    /// Number of consecutive server ports, starting with that of `remote`; connections use them in turn.
    pub ports: u16,
    /// Connections of all workers.
    pub connections: usize,
    /// Duration of uncounted traffic before measuring.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub duration: Duration,
}

impl Default for Plan {
    /// Returns a plan of one connection to the echo server of this host (RFC 862), measured for five seconds without
    /// warming up.
    fn default() -> Self {
        let duration = Duration::from_secs(5);
        Plan { remote: (Ipv4Addr::LOCALHOST, 7).into(), ports: 1, connections: 1, warm_up: Duration::ZERO, duration }
    }
}

impl Plan {
    /// Checks that `remote` has as many ports.
    pub fn check(&self) -> Result<(), PlanError> {
        match self.remote.port().checked_add(self.ports.saturating_sub(1)) {
            Some(_) => Ok(()),
            None => Err(PlanError::PortRange { ports: self.ports, remote: self.remote }),
        }
    }

    /// Returns the server address of the connection in `slot`.
    pub fn remote_of(&self, slot: usize) -> SocketAddr {
        let port = self.remote.port() + (slot % usize::from(self.ports)) as u16;
        SocketAddr::new(self.remote.ip(), port)
    }
}
