//! Programs that a bench starts: servers, load generators, and DPDK tools.

pub mod loopback;
pub mod process;
pub mod sockperf;
pub mod testpmd;
