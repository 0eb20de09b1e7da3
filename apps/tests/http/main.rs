//! `linerate http` with common clients: curl and h2load, and with its own load.
//!
//! Clients that are not installed are skipped with a message, as are links without root.

#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "each test target uses a part of it")]
mod common;
#[cfg(feature = "dpdk")]
#[path = "../../../stack/linerate/examples/fetch.rs"]
#[expect(dead_code, reason = "the main function of the example is not called")]
mod fetch;
#[cfg(feature = "dpdk")]
#[path = "../net/program.rs"]
mod program;
#[cfg(feature = "dpdk")]
#[path = "../net/wire.rs"]
#[expect(dead_code, reason = "each test target uses a part of it")]
mod wire;

mod clients;
mod limits;
#[cfg(feature = "dpdk")]
mod links;
mod sockets;
