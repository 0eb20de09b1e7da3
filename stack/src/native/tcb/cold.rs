//! Connection state that few segments need.

use crate::congestion::{Builtin, CongestionControl};
use crate::native::recovery::Path;
use crate::native::segment::seq::Seq;
use crate::native::timers::tick::Tick;
use linerate_bypass::time::Instant;

/// Part of the connection state outside the [`Tcb`](crate::native::tcb::Tcb), in the same slot.
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
    /// Time of the last challenge ACK (RFC 5961 §7) in units of [`CHALLENGE_SHIFT`]; zero before the first.
    challenged: u16,
    /// Timestamp clock when the connection last became idle, for the age of TS.Recent and the restart after idleness.
    /// In SYN-SENT: timestamp clock of the first SYN.
    pub idle_since: u32,
    /// Data segments retransmitted since the connection was opened, for introspection.
    pub retransmitted: u32,
}

/// Unit of the challenge time in nanoseconds, as a power of two: 17 ms.
const CHALLENGE_SHIFT: u32 = 24;
/// Interval between two challenge ACKs of one connection (RFC 5961 §7): half a second, less than the first SYN
/// retransmission. The recorded time repeats every 18 minutes, and may then suppress one challenge ACK; the peer
/// retransmits.
const CHALLENGE_PERIOD: u16 = 30;

// Each of a million connections has one.
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
        let now = ((now.as_nanos() >> CHALLENGE_SHIFT) as u16).max(1);
        if self.challenged != 0 && now.wrapping_sub(self.challenged) < CHALLENGE_PERIOD {
            return false;
        }
        self.challenged = now;
        true
    }
}
