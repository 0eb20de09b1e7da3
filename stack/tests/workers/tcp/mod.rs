//! TCP connections, their limits, and zero copy.

mod connections;
mod fairness;
mod packet_limits;
mod per_source_limits;
mod simulator_regressions;
mod streams;
mod zero_copy;
