//! Errors before a worker runs.

use linerate_service::ConnId;
use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        })
    }
}

/// Error that prevents workers from getting their sockets. `Debug` formats the message, too, because it is what a
/// program prints whose `main` returns the error.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum Error {
    #[error("{protocol} {address} is already taken: `ss -lnp 'sport = :{}'` names the owner; \
            stop it or choose another port", .address.port())]
    Taken { protocol: Protocol, address: SocketAddr },
    #[error(
        "{protocol} {address} is not an address of this host: `ip address` lists its addresses, and \
         the unspecified address stands for all"
    )]
    NotOurs { protocol: Protocol, address: SocketAddr },
    #[error(
        "no permission for {protocol} {address}: ports below `sysctl net.ipv4.ip_unprivileged_port_start` need root \
         or CAP_NET_BIND_SERVICE; choose a higher one"
    )]
    Denied { protocol: Protocol, address: SocketAddr },
    #[error("cannot use {protocol} {address}: {source}")]
    Bind { protocol: Protocol, address: SocketAddr, source: io::Error },
    #[error("cannot create an epoll instance: {0}; raise the limit of open files (`ulimit -n`) if it is too low")]
    Epoll(#[source] io::Error),
    #[error("{0} workers: choose 1 to {max}", max = ConnId::MAX_WORKERS)]
    Workers(usize),
    #[error("{0} must not be 0")]
    Zero(&'static str),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
