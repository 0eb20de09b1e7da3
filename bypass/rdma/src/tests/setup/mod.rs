//! Establishment of connections.

pub mod connecting;
mod pool;
mod ports;
mod queues;
mod tcp_exchange;
