//! Congestion control: how much may be in flight.
//!
//! The engine finds losses, runs the timers and spreads a reduction over its round trip (proportional rate reduction,
//! RFC 9937); what a loss, a mark or an acknowledgement means for the window is decided here, behind
//! [`CongestionControl`]. Three algorithms come with the stack, and [`Algorithm`] names them: [`Cubic`] (the default),
//! [`NewReno`] and [`Dctcp`]. [`Builtin`] is the one that [`Config::congestion`] asks for. An engine takes any other type
//! that implements the trait in its place.
//!
//! Windows are in bytes. Time is an argument and no clock is read, so that equal calls have equal results on every machine.
//!
//! # An algorithm of one's own
//!
//! ```
//! use linerate_bypass::time::{Duration, Instant};
//! use linerate_stack::Config;
//! use linerate_stack::congestion::{CongestionSignal, CongestionControl, Delivery};
//!
//! /// Keeps sixteen segments in flight, whatever happens: for a link that is reserved.
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
//!     // Recovery sends down to this, so it is what keeps recovery at sixteen segments too.
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

use crate::Config;
use linerate_bypass::time::{Duration, Instant};

pub use builtin::{Algorithm, Builtin, UnknownAlgorithm};
pub use cubic::Cubic;
pub use dctcp::Dctcp;
pub use new_reno::NewReno;
pub use window::{MAX_WINDOW, initial_window};

/// What an acknowledgement delivered, or several that were read together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// When it arrived.
    pub now: Instant,
    /// Bytes that are now known to have arrived and were not before, acknowledged cumulatively or selectively.
    pub bytes: u32,
    /// Of them, those that the peer reported as marked: the bytes of acknowledgements with ECE set.
    pub marked: u32,
    /// Bytes in flight before it: sent, and neither delivered nor taken for lost (`pipe` of RFC 6675 §4).
    pub in_flight: u32,
    /// Whether the window held the sender back when this data was sent, and not the application or the peer's receive
    /// window. A window that is not used is not tested and does not grow (RFC 7661 §4.2, RFC 9438 §5.8).
    ///
    /// It speaks of a whole round trip: the tail of a window that was filled counts as held back too.
    pub window_limited: bool,
    /// Whether the sender spreads what it sends over the round trip. Slow start then takes a long acknowledgement in full
    /// (RFC 9406 §4.3).
    pub paced: bool,
    /// The round-trip time that it measured, if it did: one sample, not smoothed.
    pub rtt: Option<Duration>,
    /// SRTT with that sample (RFC 6298 §2); zero when nothing has been measured.
    pub smoothed_rtt: Duration,
    /// SND.UNA after it, a sequence number: with [`next`](Self::next), what rounds are counted by.
    pub acknowledged: u32,
    /// SND.NXT, a sequence number.
    pub next: u32,
}

/// Why the window has to go down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CongestionSignal {
    /// Segments are taken for lost.
    Loss,
    /// The peer echoed a mark of the network (RFC 3168 §6.1.2).
    EcnEcho,
}

/// A congestion control: one value per connection, which begins as a copy of one that is kept ready.
///
/// The engine keeps this order. Outside of recovery it calls [`delivered`](Self::delivered) for each acknowledgement that
/// delivers something. When it finds a loss, or an echoed mark that the algorithm does not
/// [answer itself](Self::handles_ecn_echo), it calls [`congested`](Self::congested) once, brings what is in flight down to
/// the new [`slow_start_threshold`](Self::slow_start_threshold) by its own means, and when all that was outstanding then
/// has been acknowledged, [`recovered`](Self::recovered). When the retransmission timer expires it calls
/// [`timed_out`](Self::timed_out), which ends such a recovery; `delivered` follows again with the next acknowledgement.
/// [`undo`](Self::undo) may come at any time.
///
/// Values come from the network: no sequence of calls may panic.
pub trait CongestionControl: Clone + 'static {
    /// The state of a new connection that sends segments of at most `mss` bytes of payload.
    fn new(config: &Config, mss: u32) -> Self;

    /// The congestion window in bytes: how much may be in flight. Between [`congested`](Self::congested) and
    /// [`recovered`](Self::recovered) it is what it was before, and the engine does not go by it.
    fn window(&self) -> u32;

    /// The slow start threshold in bytes: below it the window grows exponentially. `u32::MAX` before the first congestion.
    fn slow_start_threshold(&self) -> u32;

    /// Data arrived, outside of recovery: the window may grow. An algorithm that [answers marks](Self::handles_ecn_echo) may
    /// reduce it.
    fn delivered(&mut self, delivery: &Delivery);

    /// Recovery begins, or the round trip of a reduced window (CWR) that answers a mark: sets the threshold. `in_flight`
    /// is FlightSize: bytes sent and not acknowledged cumulatively (RFC 5681 §2), without limited transmit's. During
    /// recovery a further call changes nothing: one window of data is answered once.
    fn congested(&mut self, cause: CongestionSignal, in_flight: u32, now: Instant);

    /// Recovery ended without a time-out: the window becomes the threshold. Changes nothing when no recovery runs.
    fn recovered(&mut self, now: Instant);

    /// The retransmission timer expired: the window becomes one segment. The threshold is set, unless the timer has
    /// expired before and nothing has been delivered since (RFC 5681 §3.1). `in_flight` as for
    /// [`congested`](Self::congested), before anything is marked lost.
    fn timed_out(&mut self, in_flight: u32, now: Instant);

    /// The last reduction was for nothing, as timestamps, F-RTO or D-SACK told: things are as they were before it
    /// (RFC 4015 §3, RFC 9438 §4.9). A recovery that runs is over.
    fn undo(&mut self);

    /// The connection is about to send after `idle_for` without sending (RFC 5681 §4.1); `rto` is its retransmission
    /// time-out. Not called while the window is no larger than the [`initial_window`].
    fn idle(&mut self, idle_for: Duration, rto: Duration);

    /// Segments are now of at most `mss` bytes of payload: the handshake told, or the path's MTU changed.
    fn set_mss(&mut self, mss: u32);

    /// The SYN or SYN-ACK was lost: the first window is one segment (RFC 5681 §3.1). Called before any
    /// [`delivered`](Self::delivered).
    fn handshake_lost(&mut self) {}

    /// Whether to negotiate ECN for the algorithm's own sake, whatever is configured.
    fn wants_ecn(&self) -> bool {
        false
    }

    /// Whether, as a receiver, to echo each change of the CE mark at once and exactly (RFC 8257 §3.2), instead of until the
    /// sender answers (RFC 3168 §6.1.3).
    fn exact_ecn_echo(&self) -> bool {
        false
    }

    /// Whether [`delivered`](Self::delivered) answers marks by itself: the engine then neither calls
    /// [`congested`](Self::congested) with [`CongestionSignal::EcnEcho`] nor begins a recovery for a mark. It still sends CWR once
    /// per window (RFC 8257 §3.3).
    fn handles_ecn_echo(&self) -> bool {
        false
    }

    /// How fast to send outside of recovery when pacing, in bytes per second: a fifth above the window in a round trip, in
    /// slow start twice it, so that pacing is not what limits growth. `u64::MAX` when no round trip has been measured.
    fn pacing_rate(&self, smoothed_rtt: Duration) -> u64 {
        let window = u64::from(self.window());
        let burst = if self.window() < self.slow_start_threshold() { window * 2 } else { window * 6 / 5 };
        let nanos = u64::try_from(smoothed_rtt.as_nanos()).unwrap_or(u64::MAX);
        (burst * 1_000_000_000).checked_div(nanos).unwrap_or(u64::MAX)
    }
}

/// Whether sequence number `a` comes after `b`.
fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}
