//! Errors of opening a port, with remedies.

use crate::dpdk::mbuf::mempool::MempoolError;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Reason that a port could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The network is not opened by DPDK.
    #[error("'{0}' is not a DPDK network")]
    NotDpdk(String),
    /// The interface does not exist in this network namespace.
    #[error("interface '{0}' does not exist here: 'ip link' lists the existing ones")]
    NoInterface(String),
    /// A TAP interface is to be created, and an interface with its name exists.
    #[error("interface '{0}' already exists: choose another name, or remove it with 'ip link del {0}'")]
    InterfaceExists(String),
    /// Another Linerate process, or this one, uses the interface.
    #[error("'{0}' is being used by another Linerate process: stop it, or choose another interface")]
    InterfaceInUse(String),
    /// The interface carries the default route.
    #[error(
        "'{0}' carries this host's default route, and the kernel would lose it (you might be connected through it): \
         share it by --via af_xdp:{0},share, choose another interface, or give --force"
    )]
    DefaultRoute(String),
    /// A shared interface is to have another Ethernet address.
    #[error("'{0}' is shared with the kernel and keeps its Ethernet address: leave --mac out")]
    SharedMac(String),
    /// A shared interface has queues without a worker, on which frames of the port's addresses may arrive.
    #[error(
        "'{interface}' receives on {queues} queues, and a shared interface needs a worker for each: give --workers \
         {queues}, or run 'ethtool -L {interface} combined {workers}'"
    )]
    SharedQueues {
        /// Name of the interface.
        interface: String,
        /// Receive queues of the interface.
        queues: usize,
        /// Requested workers.
        workers: u16,
    },
    /// An address for a shared interface belongs to the kernel.
    #[error(
        "{address} is an address of this host's kernel: leave --ip out to serve on the kernel's addresses, or give \
         '{interface}' an address that no host uses"
    )]
    KernelAddress {
        /// Name of the interface.
        interface: String,
        /// The address.
        address: std::net::IpAddr,
    },
    /// The kernel does not reserve a listening port at its addresses, usually because one of its servers uses the port.
    #[error(
        "{address}: the {protocol} port cannot be reserved in the kernel ({reason}): 'ss -lntup' shows the server that \
         uses it; stop that server, or choose another port"
    )]
    EndpointInUse {
        /// Listening address.
        address: std::net::SocketAddr,
        /// Name of the protocol.
        protocol: &'static str,
        /// Reason.
        reason: String,
    },
    /// A TCP socket of the kernel has a port whose segments a shared interface would take.
    #[error(
        "{local}: a TCP {kind} of the kernel has this port, whose segments it would no longer receive: 'ss -natp sport \
         = :{}' shows it; close it, or choose other ports with --listen or --outgoing-ports", .local.port()
    )]
    KernelSocket {
        /// Local address of the socket.
        local: std::net::SocketAddr,
        /// Kind of the socket.
        kind: &'static str,
    },
    /// An interface could not be shared.
    #[error("'{interface}' cannot be shared with the kernel: {reason}")]
    NotShared {
        /// Name of the interface.
        interface: String,
        /// Failed step and reason.
        reason: String,
    },
    /// The interface removes VLAN tags from received frames, and its driver does not support anything else.
    #[error(
        "'{0}' removes VLAN tags from received frames, so that frames of other VLANs could not be told apart, and \
         'ethtool -K {0} rxvlan off' does not change that: choose another interface"
    )]
    VlanTagsRemoved(String),
    /// A Linux capability is missing.
    #[error("no permission for {via}: it needs {needs}; run as root")]
    NoPermission {
        /// Network to be opened.
        via: String,
        /// Missing capability.
        needs: &'static str,
    },
    /// The kernel has no TUN/TAP driver, or the device node is missing.
    #[error("there is no /dev/net/tun: {}", tun_remedy(Path::new("/proc/modules").exists()))]
    NoTun,
    /// The directory of a socket does not exist.
    #[error("there is no directory '{}' for the socket: create it, or choose another", .0.display())]
    NoDirectory(PathBuf),
    /// The user may not create a socket in the directory.
    #[error("no permission to create the socket '{}': choose a directory of this user, such as /tmp", .0.display())]
    DirectoryNotWritable(PathBuf),
    /// The path of a socket exceeds the limit of the kernel or DPDK.
    #[error("the socket path '{}' exceeds {max} bytes: choose a shorter one", .path.display())]
    PathTooLong {
        /// Path of the socket.
        path: PathBuf,
        /// Maximum length in bytes.
        max: usize,
    },
    /// The path exists and is not a socket.
    #[error("'{}' exists and is not a socket: choose another path", .0.display())]
    NotASocket(PathBuf),
    /// A live process serves the socket.
    #[error("another process serves the socket '{}': stop it, or choose another path", .0.display())]
    SocketInUse(PathBuf),
    /// Another process is the client of the socket.
    #[error(
        "another Linerate process is connected to the socket '{}', which has one client: stop it, or choose another \
         path at both ends", .0.display()
    )]
    ClientConnected(PathBuf),
    /// The socket was not served within the timeout.
    #[error(
        "no process served the socket '{}' within {} s: start the other end ({peer}:{})",
        .socket.display(), .waited.as_secs_f32(), .socket.display()
    )]
    NoPeer {
        /// Path of the socket.
        socket: PathBuf,
        /// Kind of the other end.
        peer: &'static str,
        /// Time waited.
        waited: Duration,
    },
    /// The stop flag was set while waiting for the other end.
    #[error("stopped while waiting for the other end")]
    Stopped,
    /// EAL's arguments created no port.
    #[error("EAL found no port: name one after '--', such as -- --vdev=net_ring0")]
    NoPort,
    /// The device has too few queues.
    #[error("{via} has {has} queue(s) and {requested} are needed: {remedy}")]
    TooManyQueues {
        /// Network to be opened.
        via: String,
        /// Requested queues.
        requested: usize,
        /// Available queues.
        has: usize,
        /// Remedy.
        remedy: String,
    },
    /// The MTU exceeds the maximum of the device.
    #[error("{via} supports an MTU of at most {max} bytes, and {requested} was requested: {remedy}")]
    MtuTooLarge {
        /// Network to be opened.
        via: String,
        /// Requested MTU.
        requested: u16,
        /// Maximum MTU.
        max: u32,
        /// Remedy.
        remedy: String,
    },
    /// The device rejects the Ethernet address.
    #[error("{via} rejects the Ethernet address {mac}: {reason}")]
    Mac {
        /// Network to be opened.
        via: String,
        /// Requested address.
        mac: crate::MacAddr,
        /// DPDK's error messages.
        reason: String,
    },
    /// There is no memory for packets.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// DPDK failed.
    #[error("{via} could not be {step}: {reason}")]
    Device {
        /// Network to be opened.
        via: String,
        /// Failed step, as a participle.
        step: &'static str,
        /// DPDK's error messages.
        reason: String,
    },
}

/// Returns the remedy for a missing TUN/TAP driver.
fn tun_remedy(loads_modules: bool) -> &'static str {
    if loads_modules {
        "run 'modprobe tun' as root"
    } else {
        "this kernel cannot load modules: boot a kernel with CONFIG_TUN, or choose another network"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_for_tun_loads_a_module_only_where_the_kernel_loads_modules() {
        assert_eq!(tun_remedy(true), "run 'modprobe tun' as root");
        assert!(!tun_remedy(false).contains("modprobe"));
    }
}
