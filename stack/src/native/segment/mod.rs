//! Segment formats: sequence numbers, options, headers, and segments without payload.

pub(crate) mod control_segments;
pub(crate) mod header;
pub(crate) mod options;
pub(crate) mod seq;
pub(crate) mod tcp_header;
