//! The harness of the scripts: a worker on one end of a link in memory, and on the other a peer that is played by hand,
//! on a virtual clock.
//!
//! A script reads like one of packetdrill: segments are injected, and segments are expected, with sequence numbers
//! relative to the two initial ones. The service on the worker is told what to do in between. Time passes only where a
//! script says so, and what the worker sends unexpectedly fails the script with a trace of all that happened. Every
//! segment of the worker is checked besides for what must always hold; see [`flow::Flow::check`].
//!
//! A script runs on several workers at the same time: with and without checksum offload, with all fast paths and with none. After every step
//! they must have sent the same packets; see [`arm`].

mod app;
mod arm;
mod expect;
mod flow;
mod orders;
mod params;
mod receiver;
mod script;
mod segment;
mod trace;
mod wire;

pub use app::Command;
pub use flow::{Got, PEER_CLOCK, PEER_ISN};
pub use params::*;
pub use receiver::{Receiver, retransmissions, transmissions};
pub use script::Script;
pub use segment::*;
pub use wire::{ACK, CE, CWR, ECE, ECT0, ECT1, FIN, NOT_ECT, PSH, RST, SYN, URG};

pub use linerate_bypass::time::Duration;
pub use linerate_bypass::{CloseReason, ConnectError};
