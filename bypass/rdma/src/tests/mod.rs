//! Connections over simulated devices: services at both ends, in random interleavings.

mod contract;
mod devices;
mod ending;
mod hostile;
mod remote;
pub mod rig;
mod sessions;
pub mod setup;
mod sleeping;
mod streams;
