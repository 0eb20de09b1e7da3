//! Connections over a model of a device: services at both ends, in random interleavings.

mod connecting;
mod failing;
mod hostile;
mod rig;
mod streams;
