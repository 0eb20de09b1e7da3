//! What can go wrong before a worker runs.

use linerate_bypass::ConnId;
use std::fmt;
use std::io;
use std::net::SocketAddr;

/// What a socket speaks.
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

/// Why workers cannot have the sockets they were to have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another socket has the port.
    #[error("{protocol} {address} is already taken: `ss -lnp 'sport = :{}'` names who has it; stop that or choose another port", .address.port())]
    Taken {
        /// What the address was for.
        protocol: Protocol,
        /// The address.
        address: SocketAddr,
    },
    /// The address belongs to no interface of this host.
    #[error(
        "{protocol} {address} is not an address of this host: `ip address` lists those that are, and the unspecified address stands for all"
    )]
    NotOurs {
        /// What the address was for.
        protocol: Protocol,
        /// The address.
        address: SocketAddr,
    },
    /// We may not use the port.
    #[error(
        "no permission for {protocol} {address}: ports below `sysctl net.ipv4.ip_unprivileged_port_start` need root or CAP_NET_BIND_SERVICE; choose a higher one"
    )]
    Denied {
        /// What the address was for.
        protocol: Protocol,
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be used for another reason.
    #[error("cannot use {protocol} {address}: {source}")]
    Bind {
        /// What the address was for.
        protocol: Protocol,
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// No epoll instance or event descriptor.
    #[error("cannot make an epoll instance: {0}; raise the limit of open files (`ulimit -n`) if it is too low")]
    Epoll(#[source] io::Error),
    /// More workers than can be told apart, or none.
    #[error("{0} workers: choose 1 to {max}", max = ConnId::MAX_WORKERS)]
    Workers(usize),
    /// A limit of the config that leaves no room for anything.
    #[error("{0} must not be 0")]
    Zero(&'static str),
}
