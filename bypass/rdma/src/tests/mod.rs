//! Connections over simulated devices: services at both ends, in random interleavings.

mod connecting;
mod contract;
mod failing;
mod hostile;
mod leaving;
mod lingering;
mod pool;
mod remote;
mod rig;
mod sessions;
mod sleeping;
mod streams;
mod tcp_exchange;
