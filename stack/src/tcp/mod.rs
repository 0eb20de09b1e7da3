//! TCP parts that both engines use: connection identity, ephemeral ports, per-source limits and timers.

pub(crate) mod ephemeral_ports;
pub(crate) mod per_source_limits;
pub(crate) mod tuple;
pub(crate) mod wheel;
