//! Congestion control.
//!
//! The engine detects losses, runs timers and spreads a reduction over its round trip (proportional rate reduction, RFC
//! 9937). A [`CongestionControl`] decides the effect of losses, marks and acknowledgements on the window. The stack has
//! three algorithms, listed by [`Algorithm`]: [`Cubic`] (the default), [`NewReno`] and [`Dctcp`]. [`Builtin`] is the
//! algorithm that [`Config::congestion`] selects. An engine accepts any other type that implements the trait.
//!
//! Windows are in bytes. Time is an argument, so equal calls have equal results on every machine.
//!
//! # Custom algorithm
//!
//! ```
//! use linerate_service::time::{Duration, Instant};
//! use linerate_stack::Config;
//! use linerate_stack::congestion::{CongestionSignal, CongestionControl, Delivery};
//!
//! /// Keeps sixteen segments in flight, for a reserved link.
//! #[derive(Clone)]
//! struct Fixed {
//!     mss: u32,
//! }
//!
//! impl CongestionControl for Fixed {
//!     fn new(_: &Config, mss: u32) -> Self {
//!         Fixed { mss }
//!     }
//!
//!     fn window(&self) -> u32 {
//!         self.mss.saturating_mul(16)
//!     }
//!
//!     // Recovery reduces the window to this value, here to sixteen segments too.
//!     fn slow_start_threshold(&self) -> u32 {
//!         self.window()
//!     }
//!
//!     fn delivered(&mut self, _: &Delivery) {}
//!     fn congested(&mut self, _: CongestionSignal, _in_flight: u32, _: Instant) {}
//!     fn recovered(&mut self, _: Instant) {}
//!     fn timed_out(&mut self, _in_flight: u32, _: Instant) {}
//!     fn undo(&mut self) {}
//!     fn idle(&mut self, _idle_for: Duration, _rto: Duration) {}
//!
//!     fn set_mss(&mut self, mss: u32) {
//!         self.mss = mss;
//!     }
//! }
//!
//! let mut fixed = Fixed::new(&Config::default(), 1000);
//! fixed.congested(CongestionSignal::Loss, 16_000, Instant::ZERO);
//! fixed.recovered(Instant::ZERO);
//! assert_eq!(fixed.window(), 16_000);
//! assert_eq!(fixed.pacing_rate(Duration::from_millis(10)), 1_920_000);
//! ```

mod builtin;
mod cubic;
mod dctcp;
mod hystart;
mod new_reno;
#[cfg(test)]
mod testing;
mod window;

use crate::config::Config;
use linerate_service::time::{Duration, Instant};

pub use crate::config::{Algorithm, UnknownAlgorithm};
pub use builtin::Builtin;
pub use cubic::Cubic;
pub use dctcp::Dctcp;
pub use new_reno::NewReno;
pub use window::{MAX_WINDOW, initial_window};

/// Delivery that one acknowledgement reports, or several processed together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Time of arrival.
    pub now: Instant,
    /// Bytes newly acknowledged, cumulatively or selectively.
    pub bytes: u32,
    /// Part of [`bytes`](Self::bytes) that the peer reported as marked, by acknowledgements with ECE set.
    pub marked: u32,
    /// Bytes in flight before the delivery: sent, and neither delivered nor presumed lost (`pipe` of RFC 6675 §4).
    pub in_flight: u32,
    /// True if the congestion window limited the sender of this data, and not the application or the peer's receive
    /// window. An unused window is untested and does not grow (RFC 7661 §4.2, RFC 9438 §5.8).
    ///
    /// It applies to a whole round trip: the tail of a filled window counts as limited too.
    pub window_limited: bool,
    /// True if the sender paces. Slow start then uses all bytes of a large acknowledgement (RFC 9406 §4.3).
    pub paced: bool,
    /// RTT sample, not smoothed.
    pub rtt: Option<Duration>,
    /// SRTT including that sample (RFC 6298 §2); zero before the first.
    pub smoothed_rtt: Duration,
    /// SND.UNA after the delivery. Together with [`next`](Self::next) it delimits rounds.
    pub acknowledged: u32,
    /// SND.NXT.
    pub next: u32,
}

/// Signal that requires a reduction of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CongestionSignal {
    /// Segments are presumed lost.
    Loss,
    /// The peer echoed a CE mark (RFC 3168 §6.1.2).
    EcnEcho,
}

/// Congestion control algorithm. Each connection has its own value, cloned from an initial one.
///
/// The engine calls the methods in this order. Outside of recovery it calls [`delivered`](Self::delivered) for each
/// acknowledgement that delivers data. On a loss, or an echoed mark that the algorithm does not [handle
/// itself](Self::handles_ecn_echo), it calls [`congested`](Self::congested) once, reduces the data in flight to the new
/// [`slow_start_threshold`](Self::slow_start_threshold), and calls [`recovered`](Self::recovered) when all data
/// outstanding at that time are acknowledged. On expiry of the retransmission timer it calls
/// [`timed_out`](Self::timed_out), which ends such a recovery; `delivered` follows with the next acknowledgement.
/// [`undo`](Self::undo) may occur at any time.
///
/// Values come from the network: no sequence of calls may panic.
pub trait CongestionControl: Clone + 'static {
    /// Creates the state of a connection with segments of at most `mss` bytes of payload.
    fn new(config: &Config, mss: u32) -> Self;

    /// Returns the congestion window in bytes. Between [`congested`](Self::congested) and
    /// [`recovered`](Self::recovered) it keeps its earlier value, and the engine ignores it.
    fn window(&self) -> u32;

    /// Returns the slow start threshold in bytes: `u32::MAX` before the first congestion.
    fn slow_start_threshold(&self) -> u32;

    /// Handles delivered data outside of recovery: the window may grow. An algorithm that [handles
    /// marks](Self::handles_ecn_echo) may reduce it.
    fn delivered(&mut self, delivery: &Delivery);

    /// Starts a recovery, or the round trip of a window reduced for a mark (CWR): sets the threshold. `in_flight` is
    /// FlightSize: bytes sent and not cumulatively acknowledged (RFC 5681 §2), without limited transmit. During
    /// recovery further calls have no effect: one window of data causes one reduction.
    fn congested(&mut self, cause: CongestionSignal, in_flight: u32, now: Instant);

    /// Ends a recovery without a timeout: the window becomes the threshold. No effect outside of recovery.
    fn recovered(&mut self, now: Instant);

    /// Handles the expiry of the retransmission timer: the window becomes one segment. It sets the threshold, unless
    /// the timer has expired before without a delivery since (RFC 5681 §3.1). `in_flight` is as for
    /// [`congested`](Self::congested), before any data are marked lost.
    fn timed_out(&mut self, in_flight: u32, now: Instant);

    /// Undoes the last reduction, which was spurious by timestamps, F-RTO or D-SACK (RFC 4015 §3, RFC 9438 §4.9). Ends
    /// a recovery.
    fn undo(&mut self);

    /// Handles the end of an idle period of `idle_for` before transmission (RFC 5681 §4.1); `rto` is the retransmission
    /// timeout. Not called while the window is at most the [`initial_window`].
    fn idle(&mut self, idle_for: Duration, rto: Duration);

    /// Sets the maximum payload of a segment, after the handshake or a path MTU change.
    fn set_mss(&mut self, mss: u32);

    /// Handles the loss of the SYN or SYN-ACK: the initial window is one segment (RFC 5681 §3.1). Called before any
    /// [`delivered`](Self::delivered).
    fn handshake_lost(&mut self) {}

    /// Returns whether the algorithm requires ECN, regardless of the configuration.
    fn wants_ecn(&self) -> bool {
        false
    }

    /// Returns whether the receiver echoes each change of the CE mark at once (RFC 8257 §3.2), instead of until CWR
    /// (RFC 3168 §6.1.3).
    fn exact_ecn_echo(&self) -> bool {
        false
    }

    /// Returns whether [`delivered`](Self::delivered) handles marks itself: the engine then neither calls
    /// [`congested`](Self::congested) with [`CongestionSignal::EcnEcho`] nor starts a recovery for a mark. It still
    /// sends CWR once per window (RFC 8257 §3.3).
    fn handles_ecn_echo(&self) -> bool {
        false
    }

    /// Returns the pacing rate outside of recovery in bytes per second: 1.2 windows per round trip, or two in slow
    /// start, so that pacing does not limit growth. `u64::MAX` before the first RTT sample.
    fn pacing_rate(&self, smoothed_rtt: Duration) -> u64 {
        let window = u64::from(self.window());
        let burst = if self.window() < self.slow_start_threshold() { window * 2 } else { window * 6 / 5 };
        let nanos = u64::try_from(smoothed_rtt.as_nanos()).unwrap_or(u64::MAX);
        (burst * 1_000_000_000).checked_div(nanos).unwrap_or(u64::MAX)
    }
}

/// Returns whether sequence number `a` is after `b`.
fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}
