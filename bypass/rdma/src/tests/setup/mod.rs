//! Establishment of connections.

pub mod connecting;
mod pool;
mod ports;
mod tcp_exchange;
