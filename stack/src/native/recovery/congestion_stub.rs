//! What recovery needs of a congestion control, until `crate::congestion` is there: a stand-in, to be removed.

use linerate_bypass::time::{Duration, Instant};

/// What an acknowledgement delivered.
#[derive(Debug, Clone, Copy)]
pub struct Delivery {
    /// When the acknowledgement arrived.
    pub now: Instant,
    /// Bytes newly known to have arrived, cumulatively or selectively.
    pub bytes: u32,
    /// How many of them the receiver reported as marked by the network.
    pub marked: u32,
    /// Bytes in flight just before the acknowledgement.
    pub in_flight: u32,
    /// Whether the window, not the application, limited the sending of what was acknowledged.
    pub window_limited: bool,
    /// The round-trip time that the acknowledgement measured.
    pub rtt: Option<Duration>,
    /// The smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// SND.UNA after the acknowledgement.
    pub acknowledged: u32,
    /// SND.NXT.
    pub next: u32,
}

/// Why the window is to shrink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A segment was lost.
    Loss,
    /// The receiver echoed a congestion mark.
    EcnEcho,
}

/// A congestion control, as far as recovery calls it.
pub trait CongestionControl {
    /// The congestion window, bytes.
    fn window(&self) -> u32;
    /// The slow start threshold, bytes: after [`congested`](Self::congested), the window to arrive at.
    fn slow_start_threshold(&self) -> u32;
    /// Data has arrived.
    fn delivered(&mut self, delivery: &Delivery);
    /// The network is congested: reduce, once per window.
    fn congested(&mut self, cause: Cause, in_flight: u32, now: Instant);
    /// The episode that [`congested`](Self::congested) began is over.
    fn recovered(&mut self, now: Instant);
    /// The retransmission timer has expired.
    fn timed_out(&mut self, in_flight: u32, now: Instant);
    /// The last reduction was for nothing.
    fn undo(&mut self);
}
