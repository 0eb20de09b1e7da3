//! The part of a connection's state that few segments need.

use crate::congestion::{Builtin, CongestionControl};
use crate::native::recovery::Path;
use crate::native::segment::seq::Seq;
use crate::native::timers::tick::Tick;
use linerate_bypass::time::Instant;

/// What lies apart from the [`Tcb`](crate::native::tcb::Tcb), in the same slot.
#[derive(Clone)]
pub(crate) struct TcbCold<C> {
    /// Congestion control.
    pub control: C,
    /// What is known of the path when nothing is in flight.
    pub path: Path,
    /// Bytes that the receive queue may hold at present: tuned to what the path and the service take.
    pub rx_limit: u32,
    /// Up to where the stream had been consumed when a round trip began, by which the receive queue is tuned, and when it
    /// will be over.
    pub tuned_from: Seq,
    pub tuned_at: Tick,
    /// The largest window that the peer has offered (MAX.SND.WND of RFC 5961 §5.2), as it is on the wire.
    largest_window: u16,
    /// When the last challenge was sent (RFC 5961 §7), in units of [`CHALLENGE_SHIFT`]; zero if none was.
    challenged: u16,
    /// Milliseconds at which the connection was last seen idle: for the age of TS.Recent, and the restart after idleness. In
    /// SYN-SENT, those at which the first SYN was sent.
    pub idle_since: u32,
    /// Segments with data that were sent again, since the connection was begun: for who looks into it.
    pub retransmitted: u32,
}

/// Nanoseconds per unit of the time between two challenges, as a power of two: 17 ms.
const CHALLENGE_SHIFT: u32 = 24;
/// The time between two challenges of one connection (RFC 5961 §7), less than the first retransmission of a SYN: half a
/// second. Every 18 minutes a challenge of long ago looks as if it had been one of just now; whoever is owed one asks again.
const CHALLENGE_PERIOD: u16 = 30;

// Each of a million connections has one.
const _: () = assert!(size_of::<TcbCold<Builtin>>() <= 96);

impl<C: CongestionControl> TcbCold<C> {
    /// That of a new connection with this congestion control, whose receive queue may hold `rx_limit` bytes.
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

    /// The largest window that the peer has offered, in bytes.
    #[inline]
    pub fn largest_window(&self, scale: u8) -> u32 {
        u32::from(self.largest_window) << scale
    }

    /// The peer has offered a window of `bytes`.
    #[inline]
    pub fn offered(&mut self, bytes: u32, scale: u8) {
        // What a SYN offers is not scaled, so that it may lie between two steps.
        let field = bytes.div_ceil(1 << scale).min(65_535) as u16;
        self.largest_window = self.largest_window.max(field);
    }

    /// Whether a challenge may be sent now; it is noted that it was.
    pub fn may_challenge(&mut self, now: Instant) -> bool {
        let now = ((now.as_nanos() >> CHALLENGE_SHIFT) as u16).max(1);
        if self.challenged != 0 && now.wrapping_sub(self.challenged) < CHALLENGE_PERIOD {
            return false;
        }
        self.challenged = now;
        true
    }
}
