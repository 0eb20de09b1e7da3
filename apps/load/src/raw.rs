//! Frames with no protocol: what a port can do by itself, for whatever has a protocol to be held against.
//!
//! A [`Reflector`] gives every frame back. A [`Load`] sends frames and takes them in again. Both move
//! bursts, and neither allocates.

mod load;
mod reflect;

pub use load::{Load, SMALLEST};
pub use reflect::Reflector;

use linerate_net::ETHERNET;

use linerate_bypass::{QueueStats, Summary};

/// What a queue pair has counted, as a summary.
pub fn summary_of(stats: QueueStats) -> Summary {
    let mut summary = Summary {
        rx_frames: stats.rx_frames,
        rx_bytes: stats.rx_bytes,
        tx_frames: stats.tx_frames,
        tx_bytes: stats.tx_bytes,
        copied_bytes: stats.copied_bytes,
        ..Summary::default()
    };
    summary.drop_for("too long for the port", stats.tx_dropped);
    summary
}
