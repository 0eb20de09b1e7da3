//! Why a port could not be opened, and what to do about it.

use crate::dpdk::mbuf::mempool::MempoolError;
use std::path::PathBuf;
use std::time::Duration;

/// A port could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The network is not one of DPDK's.
    #[error("'{0}' is not a network that DPDK opens")]
    NotDpdk(String),
    /// There is no such interface in this network namespace.
    #[error("there is no interface '{0}' here: 'ip link' lists those that are")]
    NoInterface(String),
    /// A TAP interface of that name would have to be made, and there is one.
    #[error("there is an interface '{0}' already: choose another name, or remove it with 'ip link del {0}'")]
    InterfaceExists(String),
    /// Another Linerate process, or this one, has the interface.
    #[error("'{0}' is being used by another Linerate process: stop it, or choose another interface")]
    InterfaceInUse(String),
    /// The kernel would lose its way out.
    #[error(
        "'{0}' carries this host's default route, and the kernel would lose it (you might be connected through it): \
         choose another interface, or give --force"
    )]
    DefaultRoute(String),
    /// A right is missing.
    #[error("no permission for {via}: it needs {needs}; run as root")]
    NoPermission {
        /// What was to be opened.
        via: String,
        /// The right.
        needs: &'static str,
    },
    /// The kernel has no TUN/TAP driver, or the device node is missing.
    #[error("there is no /dev/net/tun: 'modprobe tun' as root brings it")]
    NoTun,
    /// The directory of a socket does not exist.
    #[error("there is no directory '{}' for the socket: make it, or name another", .0.display())]
    NoDirectory(PathBuf),
    /// The path of a socket is longer than the kernel or DPDK takes.
    #[error("the socket's path '{}' is longer than the {max} bytes it may have: choose a shorter one", .path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// What it may have.
        max: usize,
    },
    /// What is there is not a socket.
    #[error("'{}' is there and is not a socket: choose another path", .0.display())]
    NotASocket(PathBuf),
    /// A living process has the socket.
    #[error("another process serves the socket '{}': stop it, or choose another path", .0.display())]
    SocketInUse(PathBuf),
    /// Nobody serves the socket.
    #[error(
        "nobody served the socket '{}' within {} s: start the other end ({peer}:{})",
        .socket.display(), .waited.as_secs_f32(), .socket.display()
    )]
    NoPeer {
        /// The socket.
        socket: PathBuf,
        /// What the other end is called.
        peer: &'static str,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The stop flag was set while the other end was waited for.
    #[error("stopped while waiting for the other end")]
    Stopped,
    /// No port came of EAL's arguments.
    #[error("EAL found no port: name one after '--', such as -- --vdev=net_ring0")]
    NoPort,
    /// The device has fewer queues.
    #[error("{via} has {has} queue(s) and {asked} are needed: {remedy}")]
    TooManyQueues {
        /// The device.
        via: String,
        /// Queues that were asked for.
        asked: usize,
        /// Queues that it has.
        has: usize,
        /// What to do.
        remedy: String,
    },
    /// The device cannot send packets of that size.
    #[error("{via} takes packets of {max} bytes at most, and an MTU of {asked} was asked for: {remedy}")]
    MtuTooLarge {
        /// The device.
        via: String,
        /// The MTU that was asked for.
        asked: u16,
        /// The MTU that it can have.
        max: u32,
        /// What to do.
        remedy: String,
    },
    /// The device keeps its own Ethernet address.
    #[error("{via} does not take the Ethernet address {mac}: {reason}")]
    Mac {
        /// The device.
        via: String,
        /// The address.
        mac: crate::MacAddr,
        /// DPDK's words.
        reason: String,
    },
    /// No memory for packets.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// DPDK refused, and logged why.
    #[error("{via} could not be {step}: {reason}")]
    Device {
        /// The device.
        via: String,
        /// What was being done.
        step: &'static str,
        /// DPDK's words.
        reason: String,
    },
}
