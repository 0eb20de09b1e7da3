//! The part of a connection's state that few segments need.

use super::recovery::Path;
use super::seq::Seq;
use super::tick::Tick;
use crate::config::Config;
use crate::congestion::CongestionControl;

/// What lies apart from the [`Block`](super::block::Block), in the same slot.
pub(super) struct Cold<C> {
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
    /// The largest window that the peer has offered (MAX.SND.WND of RFC 5961 §5.2), in bytes.
    pub largest_window: u32,
    /// Milliseconds at which the connection was last seen idle: for the age of TS.Recent, and the restart after idleness.
    pub idle_since: u32,
    /// When the last challenge was sent (RFC 5961 §7).
    pub challenged: Tick,
    /// When a segment last came, if probes of idle connections are asked for.
    pub heard: Tick,
}

impl<C: CongestionControl> Cold<C> {
    pub fn new(config: &Config) -> Self {
        Cold {
            control: C::new(config, 536),
            path: Path::default(),
            rx_limit: 0,
            tuned_from: Seq(0),
            tuned_at: Tick::NONE,
            largest_window: 0,
            idle_since: 0,
            challenged: Tick::NONE,
            heard: Tick::NONE,
        }
    }
}
