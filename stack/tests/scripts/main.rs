//! Behaviour scripts in the style of packetdrill: TCP segment by segment, on a virtual clock.
//!
//! Each script tests one behaviour and cites the paragraph that requires it. The script plays the peer; see
//! [`harness`].
//!
//! Each script runs with and without checksum offload, with all fast paths and with none, and compares the packets. The
//! environment variable `LINERATE_SCRIPTS_EACH_FAST_PATH` adds one run per disabled fast path.

mod harness;

mod congestion;
mod connection;
mod data;
mod path;
mod resources;
mod rr;
