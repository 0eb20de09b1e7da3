//! Connections over simulated devices: services at both ends, in random interleavings.

mod contract;
mod devices;
mod ending;
mod hostile;
mod remote;
mod rig;
mod sessions;
mod setup;
mod sleeping;
mod streams;
