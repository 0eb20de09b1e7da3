//! Transmission of segments.

pub(crate) mod control_segments;
mod delayed_ack;
pub(crate) mod output;
mod pacing;
mod path_mtu;
