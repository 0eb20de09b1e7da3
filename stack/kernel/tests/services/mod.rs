//! Small services that between them use all of the seam. They know no transport: the tests of each transport run
//! the same ones. `contract.rs` and `lingering.rs` are included by themselves.

mod chargen;
mod deferred;
mod echo;
mod proxy;
mod udp_echo;

pub use chargen::{Chargen, assert_pattern, pattern};
pub use deferred::Deferred;
pub use echo::Echo;
pub use proxy::Proxy;
pub use udp_echo::UdpEcho;
