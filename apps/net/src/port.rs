//! An open network of any kind: what `--via` comes to.

#[cfg(feature = "dpdk")]
pub mod dpdk_port;
mod kernel;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(feature = "dpdk")]
mod stack;

use crate::args::NetArgs;
use crate::error::Error;
use crate::network::Listen;
use crate::run_context::Device;
use crate::stats_query::Way;
use linerate_bypass::arena::{Arena, ArenaConfig, ArenaError};
use linerate_bypass::{Published, RemoteAddrCell, RemoteCounters, Service, Stop, Summary, Via, WorkerCtx};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// One worker, ready to be run on its own thread: makes its service there, and gives it back in the end.
pub type Job<S> = Box<dyn FnOnce() -> Result<(S, Summary), Error> + Send>;

/// Tells what a port has counted by itself, and closes it.
pub type Close = Box<dyn FnOnce() -> Summary>;

/// One that services with the message `M` are run on.
pub enum Port<M> {
    /// Kernel sockets.
    Kernel(kernel::Port<M>),
    /// The stack on a DPDK port, and the addresses listened on.
    #[cfg(feature = "dpdk")]
    Stack(Box<stack::Port>, Vec<SocketAddr>),
    /// An RDMA device.
    #[cfg(feature = "rdma")]
    Rdma(Box<rdma::Port<M>>),
}

impl<M: Send + 'static> Port<M> {
    /// Opens the network of `args` for so many workers, and begins to listen.
    pub fn open(args: &NetArgs, listen: &Listen, workers: usize, stop: &Arc<AtomicBool>) -> Result<Self, Error> {
        match &args.via {
            Via::Kernel => Ok(Port::Kernel(kernel::Port::open(args, listen, workers)?)),
            #[cfg(feature = "rdma")]
            Via::Rdma { device } => Ok(Port::Rdma(Box::new(rdma::Port::open(device, args, listen, workers)?))),
            #[cfg(feature = "dpdk")]
            _ => Ok(Port::Stack(Box::new(stack::Port::open(args, listen, workers, stop)?), listen.tcp.clone())),
            #[cfg(not(feature = "dpdk"))]
            via => {
                // Only DPDK's links are waited for.
                let _ = stop;
                Err(Error::NotInThisBuild { via: via.clone(), feature: "dpdk" })
            }
        }
    }

    /// The TCP addresses listened on, with the ports that were chosen for port 0.
    pub fn listening(&self) -> Vec<SocketAddr> {
        match self {
            Port::Kernel(port) => port.listening(),
            #[cfg(feature = "dpdk")]
            Port::Stack(_, listening) => listening.clone(),
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => port.listening(),
        }
    }

    /// The device below, where it may be emulated.
    pub fn device(&self) -> Option<Device> {
        match self {
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => Some(port.device()),
            _ => None,
        }
    }

    /// Memory of `bytes` that the network reaches.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ArenaError> {
        match self {
            Port::Kernel(_) => Arena::new(ArenaConfig { bytes, hugepages: true }),
            #[cfg(feature = "dpdk")]
            Port::Stack(port, _) => port.arena(bytes),
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => port.arena(bytes),
        }
    }

    /// Opens `memory` to all peers, to be read by themselves.
    pub fn publish(&self, memory: Arc<Published>) -> Result<RemoteAddrCell, Error> {
        match self {
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => port.publish(memory),
            _ => {
                drop(memory);
                Err(Error::OnlyWith { what: "--export", with: "--via rdma:DEVICE" })
            }
        }
    }

    /// Opens `memory` to all peers, for atomic operations by themselves, for which `what` asks.
    pub fn count(&self, memory: Arc<RemoteCounters>, what: &'static str) -> Result<RemoteAddrCell, Error> {
        match self {
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => port.count(memory, what),
            _ => {
                drop(memory);
                Err(Error::OnlyWith { what, with: "--via rdma:DEVICE" })
            }
        }
    }

    /// The workers, each to be run on its own thread, where it makes its service and adds one to `ready` when it serves; and what is to
    /// be done when all have ended. The first that is made tells `way`.
    pub fn jobs<S: Service<Message = M> + Send + 'static>(
        self,
        make: Arc<impl Fn(WorkerCtx<M>) -> S + Send + Sync + 'static>,
        stop: &Stop,
        ready: &Arc<AtomicUsize>,
        way: &Way,
    ) -> Result<(Vec<Job<S>>, Close), Error> {
        let make = way.told_by(make);
        match self {
            Port::Kernel(port) => Ok((port.jobs(make, stop, ready), Box::new(Summary::default))),
            #[cfg(feature = "dpdk")]
            Port::Stack(mut port, _) => {
                let jobs = port.jobs(make, stop, ready)?;
                Ok((jobs, Box::new(move || port.summary())))
            }
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => Ok((port.jobs(make, stop, ready)?, Box::new(Summary::default))),
        }
    }
}
