//! Connections over a model of a device: services at both ends, in random interleavings.

mod connecting;
mod failing;
mod rig;
mod streams;
