//! `linerate http` with curl, h2load and its own load.

mod clients;
#[cfg(feature = "dpdk")]
#[path = "../../../../stack/linerate/examples/fetch.rs"]
#[expect(dead_code, reason = "the main function of the example is not called")]
mod fetch;
mod limits;
#[cfg(feature = "dpdk")]
mod links;
mod sockets;
