//! Connections over a model of a device: services at both ends, in random interleavings.

mod connecting;
mod exchange;
mod failing;
mod hostile;
mod leaving;
mod pool;
mod remote;
mod rig;
mod sessions;
mod sleeping;
mod streams;
