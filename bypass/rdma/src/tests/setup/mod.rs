//! Establishment of connections.

pub mod connecting;
mod pool;
mod tcp_exchange;
