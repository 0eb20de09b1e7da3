//! Small transport-independent services that together use the whole [`Transport`](linerate_service::Transport)
//! interface. The tests of each transport run them. `clients.rs`, `contract.rs` and `lingering.rs` are included
//! separately.

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
