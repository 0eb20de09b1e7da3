//! Measurements and errors of a worker's part of a load.

use linerate_service::ConnectError;
use linerate_service::time::Duration;
use std::ops::AddAssign;

/// Measurements of one worker.
#[derive(Debug)]
pub struct Outcome<T> {
    /// The traffic and its counters.
    pub traffic: T,
    /// Error counts.
    pub errors: Errors,
    /// Measured duration: that of the plan, unless stopped earlier or all connections were lost.
    pub measured: Duration,
    /// Reason of the most recent failure to open a connection.
    pub last_failure: Option<ConnectError>,
}

/// Error counts of a load.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Errors {
    /// Connections that delivered wrong bytes.
    pub corrupt: u64,
    /// Connections that the peer closed or reset, or whose peer stopped answering.
    pub lost: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections that could not be opened for another reason.
    pub unopened: u64,
    /// Requests answered with an error.
    pub refusals: u64,
    /// Requests for keys that must exist and do not.
    pub missing: u64,
    /// Requests that waited far longer than others when the measurement ended ([`Times::stalled`](crate::Times)).
    pub stalled: u64,
}

impl Errors {
    /// Returns the sum of all counts.
    pub fn total(&self) -> u64 {
        self.corrupt + self.lost + self.refused + self.unopened + self.refusals + self.missing + self.stalled
    }
}

impl AddAssign for Errors {
    fn add_assign(&mut self, other: Errors) {
        self.corrupt += other.corrupt;
        self.lost += other.lost;
        self.refused += other.refused;
        self.unopened += other.unopened;
        self.refusals += other.refusals;
        self.missing += other.missing;
        self.stalled += other.stalled;
    }
}
