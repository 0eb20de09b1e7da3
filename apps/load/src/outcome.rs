//! What a worker's part of a load measured, and what went wrong.

use hdrhistogram::Histogram;
use linerate_bypass::ConnectError;
use linerate_bypass::time::Duration;
use std::ops::AddAssign;

/// Times up to a minute are counted without a histogram having to grow.
const USUAL_NANOS: u64 = 60_000_000_000;

/// A histogram of times, to three digits.
pub(crate) fn histogram_of_nanos() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_max(USUAL_NANOS, 3).expect("the bounds are valid");
    histogram.auto(true);
    histogram
}

/// What one worker measured.
#[derive(Debug)]
pub struct Outcome<T> {
    /// The traffic, with its counts.
    pub traffic: T,
    /// What went wrong.
    pub errors: Errors,
    /// How long was measured: the plan's duration, unless stopped earlier or all connections were lost.
    pub measured: Duration,
    /// Why the last connection that could not be opened could not.
    pub last_failure: Option<ConnectError>,
}

/// What went wrong, in numbers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Errors {
    /// Connections that brought other bytes than they had to.
    pub corrupt: u64,
    /// Connections that the peer closed or reset, or whose peer stopped answering.
    pub lost: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections that could not be opened for another reason.
    pub unopened: u64,
    /// Requests that were answered with an error.
    pub refusals: u64,
    /// Requests for something that was not there and had to be.
    pub missing: u64,
}

impl Errors {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.corrupt + self.lost + self.refused + self.unopened + self.refusals + self.missing
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
    }
}
