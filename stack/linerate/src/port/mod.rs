//! An open network of any kind that `--via` can name.

#[cfg(feature = "dpdk")]
pub mod dpdk_port;
mod kernel;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(all(feature = "rdma", feature = "dpdk"))]
pub mod roce;
#[cfg(feature = "dpdk")]
pub mod shared;
#[cfg(feature = "dpdk")]
pub mod stack;

use crate::config::Listen;
use crate::config::NetConfig;
use crate::error::Error;
use crate::jobs::{Close, Job, Make};
use crate::run_context::Device;
use crate::stats_client::StatsClient;
use linerate_bypass::arena::{Arena, ArenaConfig, ArenaError};
use linerate_bypass::{Published, RemoteCounters, Via};
use linerate_service::{RemoteAddrCell, Service, Stop, Summary};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// An open network.
pub enum Port {
    Kernel(kernel::Port),
    /// The stack on a DPDK port, and its listening addresses.
    #[cfg(feature = "dpdk")]
    Stack(Box<stack::Port>, Vec<SocketAddr>),
    #[cfg(feature = "rdma")]
    Rdma(Box<rdma::Port<linerate_rdma::rdma_core::RdmaCore>>),
    #[cfg(all(feature = "rdma", feature = "dpdk"))]
    Roce(Box<rdma::Port<roce::Device>>),
}

impl Port {
    /// Opens the network of `config` for workers on `cores`, and begins to listen.
    pub fn open(config: &NetConfig, listen: &Listen, cores: &[usize], stop: &Stop) -> Result<Self, Error> {
        let workers = cores.len();
        match &config.via {
            Via::Kernel => Ok(Port::Kernel(kernel::Port::open(config, listen, workers)?)),
            #[cfg(feature = "rdma")]
            Via::Rdma { device } => Ok(Port::Rdma(Box::new(rdma::Port::open(device, config, listen, cores)?))),
            #[cfg(all(feature = "rdma", feature = "dpdk"))]
            Via::Roce { port } => Ok(Port::Roce(Box::new(roce::open(port, config, listen, cores, stop)?))),
            #[cfg(feature = "dpdk")]
            _ => {
                let listening = listen.all_tcp(workers)?;
                let is_client = listen.tcp.is_empty() && listen.by_worker.is_empty();
                let port = stack::Port::open(config, listen, is_client, workers, stop)?;
                Ok(Port::Stack(Box::new(port), listening))
            }
            #[cfg(not(feature = "dpdk"))]
            via => {
                // `stop` ends the wait for a link, which only DPDK ports have.
                let _ = stop;
                Err(Error::NotInThisBuild { via: via.clone(), feature: "dpdk" })
            }
        }
    }

    /// Returns the TCP listening addresses, with the ports that were chosen for port 0.
    pub fn listening(&self) -> Vec<SocketAddr> {
        match self {
            Port::Kernel(port) => port.listening(),
            #[cfg(feature = "dpdk")]
            Port::Stack(_, listening) => listening.clone(),
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => port.listening(),
            #[cfg(all(feature = "rdma", feature = "dpdk"))]
            Port::Roce(port) => port.listening(),
        }
    }

    /// Returns the RDMA device, which may be emulated.
    pub fn device(&self) -> Option<Device> {
        match self {
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => Some(port.device()),
            #[cfg(all(feature = "rdma", feature = "dpdk"))]
            Port::Roce(port) => Some(port.device()),
            _ => None,
        }
    }

    /// Allocates `bytes` of memory that the network can send from.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ArenaError> {
        match self {
            Port::Kernel(_) => Arena::new(ArenaConfig { bytes, hugepages: true }),
            #[cfg(feature = "dpdk")]
            Port::Stack(port, _) => port.arena(bytes),
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => port.arena(bytes),
            #[cfg(all(feature = "rdma", feature = "dpdk"))]
            Port::Roce(port) => port.arena(bytes),
        }
    }

    /// Registers `memory` for READs by all peers.
    pub fn publish(&self, memory: Arc<Published>) -> Result<RemoteAddrCell, Error> {
        match self {
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => port.publish(memory),
            #[cfg(all(feature = "rdma", feature = "dpdk"))]
            Port::Roce(port) => port.publish(memory),
            _ => {
                drop(memory);
                Err(Error::NoRemoteMemory)
            }
        }
    }

    /// Registers `memory` for atomic operations by all peers.
    pub fn count(&self, memory: Arc<RemoteCounters>) -> Result<RemoteAddrCell, Error> {
        match self {
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => port.count(memory),
            #[cfg(all(feature = "rdma", feature = "dpdk"))]
            Port::Roce(port) => port.count(memory),
            _ => {
                drop(memory);
                Err(Error::NoRemoteMemory)
            }
        }
    }

    /// Returns the workers, each of which runs on its own thread, creates its service there and increments `ready` when
    /// it serves; and a function that closes the port after all workers have ended. The first worker connects `stats`.
    pub fn jobs<S: Service + 'static>(
        self,
        make: Make<S>,
        stop: &Stop,
        ready: &Arc<AtomicUsize>,
        stats: &StatsClient,
    ) -> Result<(Vec<Job<S>>, Close), Error> {
        let make = stats.connect_with(make);
        match self {
            Port::Kernel(port) => Ok((port.jobs(make, stop, ready), Box::new(Summary::default))),
            #[cfg(feature = "dpdk")]
            Port::Stack(mut port, _) => {
                port.add_to(stats);
                let jobs = port.jobs(make, stop, ready)?;
                Ok((jobs, Box::new(move || port.summary())))
            }
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => Ok((port.jobs(make, stop, ready)?, Box::new(Summary::default))),
            #[cfg(all(feature = "rdma", feature = "dpdk"))]
            Port::Roce(port) => Ok((port.jobs(make, stop, ready)?, Box::new(Summary::default))),
        }
    }

    /// As [`jobs`](Self::jobs), for TCP by the kernel or the native engine: each further engine would compile every
    /// service once more.
    #[cfg(feature = "tls")]
    pub fn native_jobs<S: Service + 'static>(
        self,
        make: Make<S>,
        stop: &Stop,
        ready: &Arc<AtomicUsize>,
        stats: &StatsClient,
    ) -> Result<(Vec<Job<S>>, Close), Error> {
        let make = stats.connect_with(make);
        match self {
            Port::Kernel(port) => Ok((port.jobs(make, stop, ready), Box::new(Summary::default))),
            #[cfg(feature = "dpdk")]
            Port::Stack(mut port, _) => {
                port.add_to(stats);
                let jobs = port.native_jobs(make, stop, ready)?;
                Ok((jobs, Box::new(move || port.summary())))
            }
            #[cfg(feature = "rdma")]
            _ => unreachable!("networks without TCP are refused before they are opened"),
        }
    }
}
