//! `--via rdma:DEVICE` and `--via roce:NETWORK`: workers on queue pairs of a verbs device.

use crate::config::Listen;
use crate::config::NetConfig;
use crate::cores::Topology;
use crate::error::Error;
use crate::jobs::{Job, Make};
use crate::run_context::Device;
use linerate_bypass::arena::{Arena, ArenaError};
#[cfg(feature = "dpdk")]
use linerate_bypass::dpdk::Eal;
use linerate_bypass::{Published, RemoteCounters};
use linerate_rdma::provider::Provider;
use linerate_rdma::rdma_core::RdmaCore;
use linerate_rdma::{Adapter, Config, Connector, DeviceFailed, Mode, Started, Worker, WorkerParts};
use linerate_service::time::Clock;
use linerate_service::{RemoteAddrCell, Service, Stop, WorkerCtx};
use linerate_stack::Idle;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// Assumed share of a worker in the last-level cache, in bytes, if the kernel does not report its size.
const DEFAULT_SHARE: usize = 1 << 20;

/// A listening verbs device.
pub struct Port<C: Provider> {
    device: Device,
    adapter: Adapter<C>,
    mode: Mode,
    workers: usize,
    near: Near,
    /// EAL, if the device is a port of DPDK.
    #[cfg(feature = "dpdk")]
    eal: Option<Eal>,
}

/// Cores of the NUMA node of the device, if it is known.
#[derive(Debug, Clone)]
struct Near(Option<Vec<usize>>);

impl Near {
    /// Runs `work` on these cores: memory that it touches first is allocated on their node, and threads that it starts
    /// inherit the cores.
    fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some((before, near)) = self.affinity() else { return work() };
        if let Err(error) = sched_setaffinity(None, &near) {
            tracing::debug!("cannot run on the NUMA node of the device: {error}");
        }
        let result = work();
        if let Err(error) = sched_setaffinity(None, &before) {
            tracing::debug!("cannot run on the former cores again: {error}");
        }
        result
    }

    /// Returns the cores of the calling thread and, among them, the cores of the node; `None` if the node has none of
    /// them.
    fn affinity(&self) -> Option<(CpuSet, CpuSet)> {
        let before = sched_getaffinity(None).ok()?;
        let mut near = CpuSet::new();
        let cores = self.0.iter().flatten().filter(|core| **core < CpuSet::MAX_CPU && before.is_set(**core));
        cores.for_each(|core| near.set(*core));
        (near.count() > 0).then_some((before, near))
    }
}

impl Port<RdmaCore> {
    /// Opens `device` and listens on it for workers on `cores`.
    pub fn open(device: &str, options: &NetConfig, listen: &Listen, cores: &[usize]) -> Result<Self, Error> {
        Port::over(&Arc::new(RdmaCore::open(device)?), options, listen, cores)
    }
}

impl<C: Provider> Port<C> {
    /// Listens on the device `provider` for workers on `cores`.
    pub fn over(provider: &Arc<C>, options: &NetConfig, listen: &Listen, cores: &[usize]) -> Result<Self, Error> {
        if !listen.udp.is_empty() {
            tracing::info!("UDP is not served: reliable connections carry no datagrams");
        }
        let topology = Topology::of_machine();
        let near = Near(topology.cores_near(&options.via));
        let defaults = Config::default();
        let mut config = Config {
            rx_buffer: options.buffer.unwrap_or(defaults.rx_buffer),
            tx_buffer: options.buffer.unwrap_or(defaults.tx_buffer),
            rests: options.idle == Some(Idle::Wait),
            ..options.rdma.config()
        };
        // The queues of a worker may take half of its cache. The other half is for the data and state of connections.
        let cache = topology.cache_share(cores).unwrap_or(DEFAULT_SHARE) / 2;
        config.fit(cache, options.rdma.sends.is_none() && options.rdma.signal_every.is_none());
        let workers = cores.len();
        let adapter = near.run(|| Adapter::open(provider, &config, &listen.tcp, workers))?;
        let (name, emulated_by) = (provider.name().to_owned(), provider.emulated_by().map(str::to_owned));
        Ok(Port {
            device: Device { name, emulated_by },
            adapter,
            mode: config.mode,
            workers,
            near,
            #[cfg(feature = "dpdk")]
            eal: None,
        })
    }

    /// Registers the threads of the workers with EAL, whose port carries the packets of the device.
    #[cfg(feature = "dpdk")]
    pub fn with_eal(self, eal: Eal) -> Self {
        Port { eal: Some(eal), ..self }
    }

    pub fn device(&self) -> Device {
        self.device.clone()
    }

    /// Returns the listening addresses, with the ports that were chosen for port 0.
    pub fn listening(&self) -> Vec<SocketAddr> {
        self.adapter.listening()
    }

    /// Allocates `bytes` of memory that the device can access.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ArenaError> {
        self.near.run(|| self.adapter.arena(bytes))
    }

    /// Registers `memory` for READs by all peers. Its address is known once workers have been created.
    pub fn publish(&self, memory: Arc<Published>) -> Result<RemoteAddrCell, Error> {
        self.check_remote_memory()?;
        Ok(self.adapter.publish(memory))
    }

    /// Registers `memory` for atomic operations by all peers. Its address is known once workers have been created.
    pub fn count(&self, memory: Arc<RemoteCounters>) -> Result<RemoteAddrCell, Error> {
        self.check_remote_memory()?;
        Ok(self.adapter.count(memory)?)
    }

    /// Checks that the mode has one-sided operations.
    fn check_remote_memory(&self) -> Result<(), Error> {
        if self.mode == Mode::Send { Ok(()) } else { Err(Error::NoRemoteMemory) }
    }

    /// Returns the workers, each for its own thread; each increments `ready` when it serves. The connector has its own
    /// thread, which ends after the last worker.
    pub fn jobs<S: Service + 'static>(
        self,
        make: Make<S>,
        stop: &Stop,
        ready: &Arc<AtomicUsize>,
    ) -> Result<Vec<Job<S>>, Error> {
        let Port { adapter, workers: count, near, .. } = self;
        let Started { connector, workers, app_sender } = near.run(|| adapter.start::<S::Message>())?;
        let running = Arc::new(AtomicUsize::new(count));
        let connector = near.run(|| start_connector(connector, &running, stop));
        let mut connector = Some(connector.map_err(|source| Error::Spawn { worker: count, source })?);
        let job = |parts: WorkerParts<C, S::Message>| -> Job<S> {
            let ctx = WorkerCtx { worker: parts.worker, workers: count, app_sender: app_sender.clone() };
            let (make, stop, ready) = (make.clone(), stop.clone(), ready.clone());
            let running = Ended(running.clone());
            #[cfg(feature = "dpdk")]
            let eal = self.eal.clone();
            // The first worker joins the connector's thread.
            let connector = connector.take();
            Box::new(move || {
                #[cfg(feature = "dpdk")]
                let _known_to_eal = eal.as_ref().map(Eal::register_thread).transpose()?;
                let WorkerParts { worker, config, parts, channels } = parts;
                let worker = Worker::new(worker, config, parts, channels, make(ctx));
                ready.fetch_add(1, Ordering::Relaxed);
                let ended = worker.run(&Clock::start(), &stop);
                drop(running);
                if let Some(Ok(result)) = connector.map(JoinHandle::join) {
                    result?;
                }
                Ok(ended)
            })
        };
        Ok(workers.into_iter().map(job).collect())
    }
}

/// Starts the thread of the connector, which ends after the `running` workers. They stop if the device fails: a service
/// would otherwise run without accepting connections.
fn start_connector<C: Provider>(
    connector: Connector<C>,
    running: &Arc<AtomicUsize>,
    stop: &Stop,
) -> io::Result<JoinHandle<Result<(), DeviceFailed>>> {
    let (running, stop) = (running.clone(), stop.clone());
    let run = move || connector.run(&Clock::start(), || running.load(Ordering::Acquire) == 0, || stop.stop());
    std::thread::Builder::new().name("connector".to_owned()).spawn(run)
}

/// Decrements the number of running workers when dropped.
struct Ended(Arc<AtomicUsize>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_its_threads_run_near_the_device() {
        let cores = || crate::cores::usable();
        let before = cores();
        let last = *before.last().unwrap();
        let near = Near(Some(vec![last, 4000]));
        assert_eq!(near.run(|| (cores(), std::thread::spawn(cores).join().unwrap())), (vec![last], vec![last]));
        assert_eq!(cores(), before);
        // All cores are used if the node is unknown or has no usable core.
        for near in [Near(Some(vec![4000])), Near(None)] {
            assert_eq!(near.run(cores), before);
        }
    }
}
