//! Harness of the scripts: a worker and a scripted peer on an in-memory link, on a virtual clock.
//!
//! As in packetdrill, a script injects segments and expects segments, with sequence numbers relative to the two initial
//! ones, and sends commands to the worker's service in between. Time passes only where the script lets it pass. An
//! unexpected segment fails the script with a trace. Every segment of the worker is also checked against general
//! invariants; see [`flow::Flow::check`].
//!
//! A script runs on several workers, the [arms](arm): with and without checksum offload, with all fast paths and with
//! none. After every step all arms must have sent the same packets.

mod app;
mod arm;
mod commands;
mod expect;
mod flow;
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
pub use script::{CONTROL_RESERVE, Script};
pub use segment::*;
pub use wire::{ACK, CE, CWR, ECE, ECT0, ECT1, FIN, NOT_ECT, PSH, RST, SYN, URG};

pub use linerate_service::time::Duration;
pub use linerate_service::{CloseReason, ConnectError};
