//! Sockets and epoll sets over the transport of a worker, with the semantics of socket(7), tcp(7),
//! udp(7) and epoll(7).
//!
//! [`Sockets`] is a [`Service`](linerate_service::Service) whose operations are called between the turns of its worker.
//! No operation blocks: one that cannot complete returns `EAGAIN`, and the caller runs turns until
//! [`Sockets::changes`] grows.
//!
//! Differences from the kernel: a reset discards received bytes that have not been read; `EPOLLRDHUP` follows when all
//! bytes before the peer's FIN have been read.
#![forbid(unsafe_code)]

mod datagram;
mod epoll;
mod options;
mod selection;
mod service;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

pub use datagram::Reuse;
pub use epoll::{EpollId, Interest, Ready, Target};
pub use selection::{InvalidPortList, PortList, SocketOptions};
pub use service::{Endpoint, Shutdown, SocketId, Sockets};
