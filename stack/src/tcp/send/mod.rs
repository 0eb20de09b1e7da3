//! Transmission of segments.

pub(crate) mod control_segments;
pub(crate) mod output;
mod pacing;
mod path_mtu;
