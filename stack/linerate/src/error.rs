//! Errors between the configuration and running workers.

use crate::config::PortRange;
use linerate_bypass::Via;
use linerate_stack::IpCidr;
use std::fmt::{self, Display};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Reason that a network could not be opened or its workers ended. Messages name the fields of
/// [`NetConfig`](crate::NetConfig) in backticks, those of its parts with the part: `` `rdma.buffers` ``. `Debug`
/// formats the message, too, because it is what a program prints whose `main` returns the error.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "messages explain the fields")]
#[non_exhaustive]
pub enum Error {
    #[error("`{setting}` has no effect with `via` {via}: leave it out, or choose another `via`")]
    NotWith { setting: &'static str, via: &'static str },
    #[error("`{setting}` has an effect only with {with}: leave it out")]
    OnlyWith { setting: &'static str, with: &'static str },
    #[error("`{setting}` {value}: give a number from {least} to {most}")]
    OutOfRange { setting: &'static str, value: u64, least: u64, most: u64 },
    #[error(
        "`rdma.signal_every` {every}: with {sends} outstanding requests at least one in {most} must be signalled: give {most} or less, \
         or more requests with `rdma.sends`"
    )]
    TooFewSignalled { every: u16, sends: u16, most: usize },
    #[error("`{setting}` with `rdma.mode` {mode}: {reason}: leave one of the two out")]
    NotInMode { setting: &'static str, mode: &'static str, reason: &'static str },
    #[error("memory that peers access needs `via` rdma:DEVICE and `rdma.mode` send")]
    NoRemoteMemory,
    #[error("`via` {0}: no local address: give `ip` ADDRESS/PREFIX, `dhcp` or `slaac`")]
    NoAddress(Via),
    #[error("`via` {0}: not a network of the TCP/IP stack: choose a port of DPDK, such as af_xdp:INTERFACE,share")]
    NoStack(Via),
    #[error(
        "`via` {0}: one process at a time uses this network: leave `workers` out, or choose af_xdp:INTERFACE,share, which \
         gives each process a queue"
    )]
    OneProcess(Via),
    #[error(
        "other processes of the program use the network, which {0} may at a time: let the program serve in that many, or \
         give `workers` and an interface with as many queues"
    )]
    NoQueueLeft(u16),
    #[cfg(feature = "tls")]
    #[error("`via` {0}: TLS needs TCP: leave out its options, or choose another `via`")]
    NoTls(Via),
    #[error("no address after {0} s: check the DHCP server or the router")]
    NoAddressInTime(u64),
    #[error("`connect` {0}: no local address of that family: give `ip` ADDRESS/PREFIX")]
    NoAddressFor(SocketAddr),
    #[error("`listen` {address}: not a local address: listen on {}, or give it with `ip`", listed(.own))]
    NotLocal { address: SocketAddr, own: Vec<IpCidr> },
    #[error("`{setting}` {address}: a loopback address, which only kernel sockets reach: give `{setting}` {instead}")]
    Loopback { setting: &'static str, address: SocketAddr, instead: String },
    #[error("`ip` {own}: {reason}: give the address of a host, such as 10.0.0.2/24")]
    NotAHostAddress { own: IpCidr, reason: &'static str },
    #[error(
        "`via` {0}: the loopback interface, which reaches no other host: use `via` kernel, or name another interface"
    )]
    LoopbackInterface(Via),
    #[error(
        "`ip` {address}: the kernel has this address on '{interface}', and would answer for it too: give another \
         address, or leave out `ip` and share the interface with `via` af_xdp:{interface},share"
    )]
    AddressOfKernel { address: IpAddr, interface: String },
    #[error("`from` {address}: not a local address: connect from {}, or give it with `ip`", listed(.own))]
    SourceNotLocal { address: IpAddr, own: Vec<IpCidr> },
    #[error("'{0}' has no address to share: give it one with 'ip addr add ADDRESS/PREFIX dev {0}', or give `ip`")]
    NoKernelAddress(String),
    #[error("'{interface}' has more than {most} routes in the kernel: give `ip` and `gateway` instead")]
    TooManyRoutes { interface: String, most: usize },
    #[error(
        "`outgoing_ports` {wanted}: the kernel uses the ports {kernel} for its own connections: give other ports, or \
         narrow the kernel's range with 'sysctl net.ipv4.ip_local_port_range=\"32768 60999\"'"
    )]
    KernelPorts { wanted: PortRange, kernel: PortRange },
    #[error(
        "'{interface}': reading its addresses, routes and neighbours from the kernel: {source}: name an interface that \
         'ip link' lists"
    )]
    Rtnetlink { interface: String, source: io::Error },
    #[error(
        "`ip`: {count} addresses, counting IPv6's link-local address, the DHCP address and four for router prefixes: \
         at most {most} are supported"
    )]
    TooManyAddresses { count: usize, most: usize },
    #[error("{0}: port 0 is reserved: give a port from 1 to 65535")]
    PortZero(SocketAddr),
    #[error("{first}: worker {worker} has no port: give a port from 1 to 65535 less the number of workers")]
    PortOfWorker { first: SocketAddr, worker: usize },
    #[error("`connect` {0}: not a host address: give the server's address")]
    NotAHost(SocketAddr),
    #[error("`gateway` {0}: second router of its family: give at most one for IPv4 and one for IPv6")]
    SecondGateway(IpAddr),
    #[error("`gateway` {gateway}: {reason}: give the address of the router")]
    NotARouter { gateway: IpAddr, reason: &'static str },
    #[error(
        "`gateway` {gateway}: not on the link of a local address ({}): give a router within such a prefix, or correct \
         the prefix of `ip`; a router outside of it needs `ip` ADDRESS/{}",
        listed(.own),
        if .gateway.is_ipv4() { 32 } else { 128 }
    )]
    GatewayNotOnLink { gateway: IpAddr, own: Vec<IpCidr> },
    #[error("`via` {via}: not in this build: build it with the cargo feature {feature}, or use `via` kernel")]
    NotInThisBuild { via: Via, feature: &'static str },
    #[error("`via` {0}: raw frames need a DPDK port, such as virtio-user:SOCKET or pci:ADDRESS")]
    NoFrames(Via),
    #[error("`cores`: {0} cores for one worker: give one")]
    OneCore(usize),
    #[error("`size` {size}: this port's frames carry {most} bytes at most: give no more, or a larger `mtu`")]
    FrameTooLong { size: usize, most: usize },
    /// Kernel sockets could not be opened.
    #[error(transparent)]
    Kernel(#[from] linerate_kernel::Error),
    /// DPDK could not be started.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Eal(#[from] linerate_bypass::dpdk::EalError),
    #[cfg(feature = "dpdk")]
    #[error("{0}: give fewer workers")]
    Threads(#[from] linerate_bypass::dpdk::TooManyThreads),
    /// The port could not be opened.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Port(#[from] linerate_bypass::dpdk::OpenError),
    /// The port failed while workers were running.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    PortFailed(#[from] linerate_bypass::dpdk::PortFailed),
    /// The capture could not be started.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Capture(#[from] crate::capture::Error),
    /// The RDMA device could not be opened.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Device(#[from] linerate_rdma::rdma_core::Error),
    /// The RDMA device failed while workers were running.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    DeviceFailed(#[from] linerate_rdma::DeviceFailed),
    /// The RDMA adapter could not be created.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Adapter(#[from] linerate_rdma::OpenError),
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Verbs(#[from] linerate_rdma::verbs::Error),
    #[error("`ip` {0}; `skip_dad` skips this check")]
    Duplicate(#[from] linerate_stack::DuplicateAddress),
    #[error(
        "`engine` smoltcp: not in this build: build it with the cargo feature smoltcp-engine, or use `engine` native"
    )]
    NoSmoltcpEngine,
    #[error("`workers` {workers}: a RoCE device has one worker; give 1")]
    RoceWorkers { workers: usize },
    #[error("`ip` is required by roce:NETWORK: give an address that no host has, by which the RoCE device is known")]
    RoceNeedsAddress,
    #[error("`ip` {address}: the kernel has this address on '{interface}': give a RoCE device an address of its own")]
    RoceAddressOfKernel { address: IpAddr, interface: String },
    #[error("roce:{via}: {source}")]
    Roce { via: String, source: std::io::Error },
    #[error("random numbers from the system: {0}")]
    NoRandomness(getrandom::Error),
    #[error("`workers` {asked}: only {cores} cores can be used: give at most {cores}")]
    MoreWorkersThanCores { asked: usize, cores: usize },
    #[error("`{setting}`: core {core} cannot be used by this process: choose from {}", listed(.usable))]
    NoSuchCore { setting: &'static str, core: usize, usable: Vec<usize> },
    #[error("`service_cores`: {services} for {workers} workers: give one for each worker")]
    ServiceCoresMismatch { services: usize, workers: usize },
    #[error("`threading` split: {0}")]
    NoArena(linerate_bypass::arena::ArenaError),
    #[error("{0} workers are too many: give at most 256")]
    TooManyWorkers(usize),
    #[error("core {0}: cannot pin a worker to it: choose others with `cores`")]
    NotPinned(usize),
    #[error("worker {worker}: cannot start its thread: {source}")]
    Spawn { worker: usize, source: io::Error },
    #[error("cannot start the thread that follows the kernel's addresses, routes and neighbours: {0}")]
    NoControlThread(io::Error),
    #[error("cannot create the descriptors that wake a worker ({0}): use --idle poll, or raise 'ulimit -n'")]
    NoSleeper(io::Error),
    #[error("worker {0} panicked: correct its service, or report the lines above if they name another part")]
    Panicked(usize),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Returns whether the arguments alone cause the error, independent of the machine.
    pub fn is_usage(&self) -> bool {
        use Error::*;
        #[cfg(feature = "dpdk")]
        if let Capture(error) = self {
            return matches!(error, crate::capture::Error::Filter { .. });
        }
        #[cfg(feature = "tls")]
        if let NoTls(_) = self {
            return true;
        }
        matches!(
            self,
            NotWith { .. }
                | OnlyWith { .. }
                | OutOfRange { .. }
                | TooFewSignalled { .. }
                | NotInMode { .. }
                | NoRemoteMemory
                | NoAddress(_)
                | NoStack(_)
                | OneProcess(_)
                | NoAddressFor(_)
                | NotLocal { .. }
                | Loopback { .. }
                | SourceNotLocal { .. }
                | TooManyAddresses { .. }
                | PortZero(_)
                | PortOfWorker { .. }
                | NotAHost(_)
                | SecondGateway(_)
                | NotAHostAddress { .. }
                | LoopbackInterface(_)
                | NotARouter { .. }
                | GatewayNotOnLink { .. }
                | NotInThisBuild { .. }
                | NoSmoltcpEngine
                | RoceWorkers { .. }
                | RoceNeedsAddress
                | NoFrames(_)
                | OneCore(_)
        )
    }
}

fn listed(things: &[impl Display]) -> String {
    things.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
