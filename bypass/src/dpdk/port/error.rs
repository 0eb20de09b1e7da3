//! Errors of opening a port, with remedies.

use crate::dpdk::mbuf::mempool::MempoolError;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Reason that a port could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum OpenError {
    #[error("'{0}' is not a DPDK network")]
    NotDpdk(String),
    #[error("interface '{0}' does not exist here: 'ip link' lists the existing ones")]
    NoInterface(String),
    #[error("interface '{0}' already exists: choose another name, or remove it with 'ip link del {0}'")]
    InterfaceExists(String),
    #[error("'{0}' is being used by another Linerate process: stop it, or choose another interface")]
    InterfaceInUse(String),
    #[error(
        "'{0}' carries this host's default route, and the kernel would lose it (you might be connected through it): \
         share it by --via af_xdp:{0},share, choose another interface, or give --force"
    )]
    DefaultRoute(String),
    #[error("'{0}' is shared with the kernel and keeps its Ethernet address: leave --mac out")]
    SharedMac(String),
    #[error(
        "'{interface}' receives on {queues} queues, and a shared interface needs a worker for each: give --workers \
         {queues}, or run 'ethtool -L {interface} combined {workers}'"
    )]
    SharedQueues { interface: String, queues: usize, workers: u16 },
    #[error(
        "{address} is an address of this host's kernel: leave --ip out to serve on the kernel's addresses, or give \
         '{interface}' an address that no host uses"
    )]
    KernelAddress { interface: String, address: std::net::IpAddr },
    #[error(
        "{address}: the {protocol} port cannot be reserved in the kernel ({reason}): 'ss -lntup' shows the server that \
         uses it; stop that server, or choose another port"
    )]
    EndpointInUse { address: std::net::SocketAddr, protocol: &'static str, reason: String },
    #[error(
        "{local}: a TCP {kind} of the kernel has this port, whose segments it would no longer receive: 'ss -natp sport \
         = :{}' shows it; close it, or choose other ports with --listen or --outgoing-ports", .local.port()
    )]
    KernelSocket { local: std::net::SocketAddr, kind: &'static str },
    #[error("'{interface}' cannot be shared with the kernel: {reason}")]
    NotShared { interface: String, reason: String },
    #[error(
        "'{0}' removes VLAN tags from received frames, so that frames of other VLANs could not be told apart, and \
         'ethtool -K {0} rxvlan off' does not change that: choose another interface"
    )]
    VlanTagsRemoved(String),
    #[error("no permission for {via}: it needs {needs}; run as root")]
    NoPermission { via: String, needs: &'static str },
    #[error("there is no /dev/net/tun: {}", tun_remedy(Path::new("/proc/modules").exists()))]
    NoTun,
    #[error("there is no directory '{}' for the socket: create it, or choose another", .0.display())]
    NoDirectory(PathBuf),
    #[error("no permission to create the socket '{}': choose a directory of this user, such as /tmp", .0.display())]
    DirectoryNotWritable(PathBuf),
    #[error("the socket path '{}' exceeds {max} bytes: choose a shorter one", .path.display())]
    PathTooLong { path: PathBuf, max: usize },
    #[error("'{}' exists and is not a socket: choose another path", .0.display())]
    NotASocket(PathBuf),
    #[error("another process serves the socket '{}': stop it, or choose another path", .0.display())]
    SocketInUse(PathBuf),
    #[error(
        "another Linerate process is connected to the socket '{}', which has one client: stop it, or choose another \
         path at both ends", .0.display()
    )]
    ClientConnected(PathBuf),
    #[error(
        "no process served the socket '{}' within {} s: start the other end ({peer}:{})",
        .socket.display(), .waited.as_secs_f32(), .socket.display()
    )]
    NoPeer { socket: PathBuf, peer: &'static str, waited: Duration },
    #[error("stopped while waiting for the other end")]
    Stopped,
    #[error("EAL found no port: name one after '--', such as -- --vdev=net_ring0")]
    NoPort,
    #[error("{via} has {has} queue(s) and {requested} are needed: {remedy}")]
    TooManyQueues { via: String, requested: usize, has: usize, remedy: String },
    #[error("{via} supports an MTU of at most {max} bytes, and {requested} was requested: {remedy}")]
    MtuTooLarge { via: String, requested: u16, max: u32, remedy: String },
    #[error("{via} rejects the Ethernet address {mac}: {reason}")]
    Mac { via: String, mac: crate::MacAddr, reason: String },
    /// There is no memory for packets.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    #[error("{via} could not be {step}: {reason}")]
    Device { via: String, step: &'static str, reason: String },
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
