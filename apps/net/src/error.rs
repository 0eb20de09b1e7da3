//! What can go wrong between the arguments and running workers.

use linerate_bypass::Via;
use linerate_stack::IpCidr;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Why a network could not be opened or its workers ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The network has its own addresses, or its own way to do it.
    #[error("{what} has no effect with --via {via}: leave it out")]
    NotWith {
        /// The argument.
        what: &'static str,
        /// The network, or its kind.
        via: &'static str,
    },
    /// There is no such choice elsewhere.
    #[error("{what} has an effect only with {with}: leave it out")]
    OnlyWith {
        /// The argument.
        what: &'static str,
        /// What else has to be given.
        with: &'static str,
    },
    /// A queue pair would stand still that learns too seldom what has been sent.
    #[error(
        "--rdma-signal-every {every}: of {sends} requests that are under way at a time every {most}th has to be signalled \
         at least: give {most} or less, or more of them with --rdma-sends"
    )]
    SignalledTooSeldom {
        /// Messages between completions.
        every: u16,
        /// Requests under way.
        sends: u16,
        /// The most messages.
        most: usize,
    },
    /// How messages come leaves no choice in something else.
    #[error("{what} with --rdma-mode {mode}: {why}: leave one of the two out")]
    NotInMode {
        /// The other option.
        what: &'static str,
        /// The mode.
        mode: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// The stack needs to know who it is.
    #[error("--via {0}: no address of ours: give --ip ADDRESS/PREFIX, --dhcp or --slaac")]
    NoAddress(Via),
    /// There is no local address to connect from.
    #[error("--connect {0}: no address of that family is ours: give --ip ADDRESS/PREFIX")]
    NoAddressFor(SocketAddr),
    /// An address to serve on is not ours.
    #[error("--listen {address}: not an address of ours: listen on {}, or give it with --ip", listed(.own))]
    NotOurs {
        /// The address.
        address: SocketAddr,
        /// Our addresses.
        own: Vec<IpCidr>,
    },
    /// An address to connect from is not ours.
    #[error("--from {address}: not an address of ours: connect from {}, or give it with --ip", listed(.own))]
    FromNotOurs {
        /// The address.
        address: IpAddr,
        /// Our addresses.
        own: Vec<IpCidr>,
    },
    /// More than the stack answers for.
    #[error(
        "--ip: {count} addresses, with the link-local one that comes with IPv6, that of DHCP and four of routers' prefixes: give so few that \
         it is {most} at most"
    )]
    TooManyAddresses {
        /// How many there would be.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// A port number is needed.
    #[error("{0}: port 0 is none: give a port from 1 to 65535")]
    NoPort(SocketAddr),
    /// Not the address of one host.
    #[error("--connect {0}: not the address of a host: give the server's own address")]
    NotAHost(SocketAddr),
    /// One router for each address family.
    #[error("--gateway {0}: the second one of its family: give one for IPv4 and one for IPv6 at most")]
    SecondGateway(IpAddr),
    /// The program was built without it.
    #[error("--via {via}: not in this build: build it with the cargo feature {feature}, or use --via kernel")]
    NotInThisBuild {
        /// The network.
        via: Via,
        /// The missing feature.
        feature: &'static str,
    },
    /// There are no frames where there is no port.
    #[error("--via {0}: no frames to be had there: name a DPDK port, such as virtio-user:SOCKET or pci:ADDRESS")]
    NoFrames(Via),
    /// Frames without a protocol are moved by one worker.
    #[error("--cores: {0} cores for one worker: give one")]
    OneCore(usize),
    /// A frame does not fit.
    #[error("--size {size}: this port's frames carry {most} bytes at most: give no more, or a larger --mtu")]
    FrameTooLong {
        /// Bytes of payload.
        size: usize,
        /// What there may be.
        most: usize,
    },
    /// The kernel's sockets could not be had.
    #[error(transparent)]
    Kernel(#[from] linerate_kernel::Error),
    /// DPDK could not be started.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Eal(#[from] linerate_bypass::dpdk::EalError),
    /// DPDK knows no further thread.
    #[cfg(feature = "dpdk")]
    #[error("{0}: ask for fewer workers")]
    Threads(#[from] linerate_bypass::dpdk::TooManyThreads),
    /// The port could not be opened.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Port(#[from] linerate_bypass::dpdk::OpenError),
    /// What passes the port cannot be written.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Capture(#[from] crate::capture::Error),
    /// The RDMA device could not be opened.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Device(#[from] linerate_rdma::native::Error),
    /// It could not be made ready.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Adapter(#[from] linerate_rdma::OpenError),
    /// It failed.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Verbs(#[from] linerate_rdma::verbs::Error),
    /// Another host has an address of ours.
    #[error("--ip {0}; --no-dad does not look")]
    Duplicate(#[from] linerate_stack::DuplicateAddress),
    /// The system has no randomness to give.
    #[error("no randomness from the system: {0}")]
    NoRandomness(getrandom::Error),
    /// A worker needs a core of its own.
    #[error("--workers {asked}: only {cores} cores can be used: ask for no more than {cores}")]
    MoreWorkersThanCores {
        /// Workers asked for.
        asked: usize,
        /// Cores there are.
        cores: usize,
    },
    /// A core that is not there, or that this process may not use.
    #[error("{option}: core {core} cannot be used by this process: choose from {}", listed(.usable))]
    NoSuchCore {
        /// What named it.
        option: &'static str,
        /// The core.
        core: usize,
        /// The ones that can be used.
        usable: Vec<usize>,
    },
    /// Not as many cores for services as for workers.
    #[error("--service-cores: {services} for {workers} workers: give one for each worker")]
    NotOneEach {
        /// How many there are.
        services: usize,
        /// How many workers.
        workers: usize,
    },
    /// There is no memory in which services on threads of their own could write.
    #[error("--threading split: {0}")]
    NoArena(linerate_bypass::arena::ArenaError),
    /// More workers than connection names can tell apart.
    #[error("{0} workers are too many: ask for no more than 256")]
    TooManyWorkers(usize),
    /// Linux refused to pin a worker.
    #[error("core {0}: cannot pin a worker to it: choose others with --cores")]
    NotPinned(usize),
    /// A thread could not be made.
    #[error("worker {worker}: cannot start its thread: {source}")]
    Spawn {
        /// The worker.
        worker: usize,
        /// Why.
        source: io::Error,
    },
    /// A worker panicked; its message is on standard error.
    #[error("worker {0} panicked: this is a bug, please report it with the lines above")]
    Panicked(usize),
}

impl Error {
    /// Whether the arguments alone show it, without a look at the machine.
    pub fn is_usage(&self) -> bool {
        use Error::*;
        #[cfg(feature = "dpdk")]
        if let Capture(error) = self {
            return matches!(error, crate::capture::Error::Filter { .. });
        }
        matches!(
            self,
            NotWith { .. }
                | OnlyWith { .. }
                | SignalledTooSeldom { .. }
                | NotInMode { .. }
                | NoAddress(_)
                | NoAddressFor(_)
                | NotOurs { .. }
                | FromNotOurs { .. }
                | TooManyAddresses { .. }
                | NoPort(_)
                | NotAHost(_)
                | SecondGateway(_)
                | NotInThisBuild { .. }
                | NoFrames(_)
                | OneCore(_)
        )
    }
}

fn listed(things: &[impl Display]) -> String {
    things.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
