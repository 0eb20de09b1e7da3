//! Transmission of segments.

pub(crate) mod output;
pub(crate) mod pacing;
mod path_mtu;
pub(crate) mod send_queue;
pub(crate) mod tx_backlog;
