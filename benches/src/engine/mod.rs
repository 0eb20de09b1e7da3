//! Cost of the stack alone: a server on the memory NIC whose turns are timed.
//!
//! Each kind of work is a separate bench, for any TCP engine: [`Echo`], [`Connect`], [`Stream`],
//! [`Datagram`], [`Load`], [`TlsEcho`], [`idle`]. [`Roce`] has queue pairs in place of TCP.

mod connect;
mod cost;
mod datagram;
mod echo;
mod echo_services;
pub mod idle;
mod load;
pub mod memory;
mod pair;
mod roce;
mod stream;
mod tls;

pub use connect::Connect;
pub use cost::{Bench, Cost, measure};
pub use datagram::Datagram;
pub use echo::Echo;
pub use echo_services::{AsyncCopy, AsyncForward, EchoService, Forward, Write};
pub use load::Load;
pub use pair::{Pair, PairConfig, PairOptions, worker};
pub use roce::Roce;
pub(crate) use roce::RoceEnd;
pub use stream::Stream;
pub use tls::TlsEcho;
