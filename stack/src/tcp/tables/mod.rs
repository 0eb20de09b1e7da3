//! Tables keyed by addresses: connections, TIME-WAIT, connections per source, and ephemeral ports.

pub(crate) mod ephemeral_ports;
pub(crate) mod flow_table;
pub(crate) mod per_source_limits;
pub(crate) mod time_wait;
