//! Connection state that few segments need.

use crate::tcp::clock::challenge_ack::challenge_time;
use crate::tcp::clock::tick::Tick;
use crate::tcp::congestion::{Builtin, CongestionControl};
use crate::tcp::recovery::Path;
use crate::wire::tcp::seq::Seq;
use linerate_service::time::Instant;
use linerate_service::{CloseReason, ConnectError};

/// Part of the connection state outside the [`Tcb`](crate::tcp::tcb::Tcb), in the same slot.
#[derive(Clone)]
pub(crate) struct TcbCold<C> {
    pub control: C,
    /// Path properties that persist while no data is in flight.
    pub path: Path,
    /// Current limit of the receive queue in bytes, tuned to the path and the service.
    pub rx_limit: u32,
    /// Sequence number consumed at the start of the current tuning round trip, and the end of that round trip.
    pub tuned_from: Seq,
    pub tuned_at: Tick,
    /// Largest window field advertised by the peer (MAX.SND.WND of RFC 5961 §5.2).
    largest_window: u16,
    /// [Time](challenge_time) of the last challenge ACK.
    challenged: u8,
    /// Timestamp clock when the connection last became idle, for the age of TS.Recent and the restart after idleness.
    /// In SYN-SENT: timestamp clock of the first SYN.
    pub idle_since: u32,
    /// Data segments retransmitted since the connection was opened, for introspection.
    pub retransmitted: u32,
    /// Reason for the end of the connection; valid once it has ended.
    pub end_reason: EndReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// Both ends closed the connection.
    Finished,
    /// The peer reset the connection.
    Reset,
    /// The local end aborted the connection.
    Aborted,
    IdleTimeout,
    /// The peer stopped responding.
    TimedOut,
    /// The peer of a connect call is unreachable.
    Unreachable,
    /// The local address was removed.
    AddressLost,
}

impl From<EndReason> for CloseReason {
    fn from(reason: EndReason) -> CloseReason {
        match reason {
            EndReason::Finished => CloseReason::Finished,
            EndReason::Reset => CloseReason::Reset,
            EndReason::Aborted => CloseReason::Aborted,
            EndReason::IdleTimeout => CloseReason::IdleTimeout,
            EndReason::TimedOut | EndReason::Unreachable => CloseReason::TimedOut,
            EndReason::AddressLost => CloseReason::AddressLost,
        }
    }
}

impl From<EndReason> for ConnectError {
    fn from(reason: EndReason) -> ConnectError {
        match reason {
            EndReason::Reset => ConnectError::Refused,
            EndReason::Unreachable => ConnectError::Unreachable,
            EndReason::AddressLost => ConnectError::NoLocalAddress,
            _ => ConnectError::TimedOut,
        }
    }
}

// Stored per connection, of which there may be a million.
const _: () = assert!(size_of::<TcbCold<Builtin>>() <= 96);

impl<C: CongestionControl> TcbCold<C> {
    /// Creates the state of a new connection with congestion control `control` and a receive queue of `rx_limit` bytes.
    #[inline(always)]
    pub fn new(control: C, rx_limit: u32) -> Self {
        TcbCold {
            control,
            path: Path::default(),
            rx_limit,
            tuned_from: Seq(0),
            tuned_at: Tick::NONE,
            largest_window: 0,
            challenged: 0,
            idle_since: 0,
            retransmitted: 0,
            end_reason: EndReason::Finished,
        }
    }

    /// Returns the largest window advertised by the peer, in bytes.
    #[inline]
    pub fn largest_window(&self, scale: u8) -> u32 {
        u32::from(self.largest_window) << scale
    }

    /// Records a window of `bytes` advertised by the peer.
    #[inline]
    pub fn offered(&mut self, bytes: u32, scale: u8) {
        // The window of a SYN is not scaled, and need not be a multiple of the unit.
        let field = bytes.div_ceil(1 << scale).min(65_535) as u16;
        self.largest_window = self.largest_window.max(field);
    }

    /// Returns whether a challenge ACK may be sent at `now`, and records it.
    pub fn may_challenge(&mut self, now: Instant) -> bool {
        let time = challenge_time(self.challenged, now);
        self.challenged = time.unwrap_or(self.challenged);
        time.is_some()
    }
}
