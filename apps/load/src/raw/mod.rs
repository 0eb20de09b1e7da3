//! Raw frames: the performance of a port without any protocol, as a reference for protocols.
//!
//! A [`Reflector`] returns every frame. A [`Load`] sends frames and receives them back. Both move bursts without
//! allocating.

mod load;
mod reflect;

pub use load::{Load, SMALLEST};
pub use reflect::Reflector;

use linerate::ETHERNET;

use linerate_bypass::QueueStats;
use linerate_service::Summary;

/// Returns the counters of a queue pair as a summary.
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
