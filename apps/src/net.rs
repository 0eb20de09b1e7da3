//! From arguments to running workers: opens the network that `--via` names and runs a service on it.

mod args;
mod cores;
#[cfg(feature = "dpdk")]
mod dpdk_port;
mod error;
mod kernel;
mod raw;
#[cfg(feature = "rdma")]
mod rdma;
mod rdma_args;
#[cfg(feature = "dpdk")]
mod stack;

pub use args::{EngineArg, IdleArg, NetArgs, ProfileArg};
pub use cores::{CoreList, Place};
pub use error::Error;
pub use raw::{Frames, PortArgs};
pub use rdma_args::RdmaArgs;
#[cfg(feature = "rdma")]
pub use rdma_args::{ConnectArg, ModeArg};

use crate::over::Device;
use linerate_bypass::arena::{Arena, ArenaConfig, ArenaError};
use linerate_bypass::{Counters, LaterPlace, Published, Seat, Service, Summary, Via};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often workers that are starting are looked at.
const READY_PERIOD: Duration = Duration::from_millis(2);

/// Addresses to serve on.
#[derive(Debug, Default, Clone)]
pub struct Listen {
    /// Over TCP.
    pub tcp: Vec<SocketAddr>,
    /// Over UDP.
    pub udp: Vec<SocketAddr>,
}

/// One worker, ready to be run on its own thread: makes its service there, and gives it back in the end.
type Job<S> = Box<dyn FnOnce() -> Result<(S, Summary), Error> + Send>;

/// A network that is open, with a core for each worker and no worker running yet. `M` is the message of the
/// services to be run on it.
pub struct Network<M> {
    cores: Vec<usize>,
    listening: Vec<SocketAddr>,
    port: Port<M>,
}

enum Port<M> {
    Kernel(kernel::Port<M>),
    #[cfg(feature = "dpdk")]
    Stack(Box<stack::Port>),
    #[cfg(feature = "rdma")]
    Rdma(Box<rdma::Port<M>>),
}

impl<M: Send + 'static> Network<M> {
    /// Opens the network of `args` and begins to listen. Workers without a core given go to `place`. While another
    /// process is waited for, `stop` ends the wait.
    pub fn open(args: &NetArgs, listen: &Listen, place: Place, stop: &Arc<AtomicBool>) -> Result<Self, Error> {
        args.check(listen)?;
        let cores = cores::choose(args.workers, args.cores.as_ref(), place)?;
        let (port, listening) = match &args.via {
            Via::Kernel => {
                let port = kernel::Port::open(args, listen, cores.len())?;
                let listening = port.listening();
                (Port::Kernel(port), listening)
            }
            #[cfg(feature = "rdma")]
            Via::Rdma { device } => {
                let port = rdma::Port::open(device, args, listen, cores.len())?;
                let listening = port.listening();
                (Port::Rdma(Box::new(port)), listening)
            }
            #[cfg(feature = "dpdk")]
            _ => (Port::Stack(Box::new(stack::Port::open(args, listen, cores.len(), stop)?)), listen.tcp.clone()),
            #[cfg(not(feature = "dpdk"))]
            via => {
                // Only DPDK's links are waited for.
                let _ = stop;
                return Err(Error::NotInThisBuild { via: via.clone(), feature: "dpdk" });
            }
        };
        Ok(Network { cores, listening, port })
    }

    /// The TCP addresses listened on, with the ports that were chosen for port 0.
    pub fn listening(&self) -> &[SocketAddr] {
        &self.listening
    }

    /// How many workers there will be.
    pub fn workers(&self) -> usize {
        self.cores.len()
    }

    /// The device below, where it may be emulated.
    pub fn device(&self) -> Option<Device> {
        match &self.port {
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => Some(port.device()),
            _ => None,
        }
    }

    /// Memory of `bytes` that the network reaches, for what services send from where it lies.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ArenaError> {
        match &self.port {
            Port::Kernel(_) => Arena::new(ArenaConfig { bytes, hugepages: true }),
            #[cfg(feature = "dpdk")]
            Port::Stack(port) => port.arena(bytes),
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => port.arena(bytes),
        }
    }

    /// Opens `memory` to all peers, to be read by themselves; where, is known when the workers have been started.
    pub fn publish(&self, memory: Arc<Published>) -> Result<LaterPlace, Error> {
        match &self.port {
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => port.publish(memory),
            _ => {
                drop(memory);
                Err(Error::OnlyWith { what: "--export", with: "--via rdma:DEVICE" })
            }
        }
    }

    /// Opens `memory` to all peers, for atomic operations by themselves; where, is known when the workers have been started. `what` is the
    /// option that asks for it.
    pub fn count(&self, memory: Arc<Counters>, what: &'static str) -> Result<LaterPlace, Error> {
        match &self.port {
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => port.count(memory, what),
            _ => {
                drop(memory);
                Err(Error::OnlyWith { what, with: "--via rdma:DEVICE" })
            }
        }
    }

    /// Starts the workers, each on a thread pinned to its core, with the service that `make` makes there. They
    /// run until `stop` is set, or until one of them fails.
    pub fn start<S: Service<Message = M> + Send + 'static>(
        self,
        make: impl Fn(Seat<M>) -> S + Send + Sync + 'static,
        stop: Arc<AtomicBool>,
    ) -> Result<Running<S>, Error> {
        let make = Arc::new(make);
        let ready = Arc::default();
        let mut running = match self.port {
            Port::Kernel(port) => Running::start(&self.cores, port.jobs(make, &stop, &ready), stop, Summary::default)?,
            #[cfg(feature = "dpdk")]
            Port::Stack(port) => {
                let jobs = port.jobs(make, &stop, &ready);
                Running::start(&self.cores, jobs, stop, move || port.summary())?
            }
            #[cfg(feature = "rdma")]
            Port::Rdma(port) => Running::start(&self.cores, port.jobs(make, &stop, &ready)?, stop, Summary::default)?,
        };
        running.ready = ready;
        Ok(running)
    }
}

/// Running workers.
pub struct Running<S> {
    threads: Vec<JoinHandle<Result<(S, Summary), Error>>>,
    stop: Arc<AtomicBool>,
    /// How many of them serve.
    ready: Arc<AtomicUsize>,
    /// Tells what their port has counted, and closes it.
    close: Box<dyn FnOnce() -> Summary>,
}

impl<S: Send + 'static> Running<S> {
    fn start(
        cores: &[usize],
        jobs: Vec<Job<S>>,
        stop: Arc<AtomicBool>,
        close: impl FnOnce() -> Summary + 'static,
    ) -> Result<Self, Error> {
        let mut running = Running { threads: Vec::new(), stop, ready: Arc::default(), close: Box::new(close) };
        for ((worker, job), core) in jobs.into_iter().enumerate().zip(cores.iter().copied()) {
            let over = StopOnDrop(running.stop.clone());
            let thread = std::thread::Builder::new().name(format!("worker-{worker}")).spawn(move || {
                let _over = over;
                if core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
                    job()
                } else {
                    Err(Error::NotPinned(core))
                }
            });
            match thread {
                Ok(thread) => running.threads.push(thread),
                Err(source) => {
                    running.stop.store(true, Ordering::Relaxed);
                    // What ended first is what is told.
                    let _ = running.join();
                    return Err(Error::Spawn { worker, source });
                }
            }
        }
        Ok(running)
    }

    /// Waits until all workers serve, which takes a while where DHCP gives the address; `false` if they end first.
    pub fn await_ready(&self) -> bool {
        while self.ready.load(Ordering::Relaxed) < self.threads.len() {
            if self.is_over() {
                return false;
            }
            std::thread::sleep(READY_PERIOD);
        }
        true
    }

    /// Whether a worker has ended, by itself or because it was stopped.
    pub fn is_over(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Waits for all workers to end, closes their port, and returns their services, and what they and the port have
    /// counted together.
    pub fn join(self) -> Result<(Vec<S>, Summary), Error> {
        let ends: Vec<_> = self.threads.into_iter().map(JoinHandle::join).collect();
        let mut total = (self.close)();
        let mut services = Vec::new();
        for (worker, end) in ends.into_iter().enumerate() {
            let (service, summary) = end.unwrap_or(Err(Error::Panicked(worker)))?;
            services.push(service);
            tracing::info!(
                "worker {worker}: accepted {}, opened {}, received {} frames, {} of them for other workers",
                summary.accepted,
                summary.connected,
                summary.rx_frames,
                summary.misdirected
            );
            total += &summary;
        }
        Ok((services, total))
    }
}

/// Stops all workers when one ends, whether by itself or by a panic: a service that has lost a worker answers only
/// some of its peers, and nobody would know.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(jobs: Vec<Job<u8>>) -> Result<Vec<u8>, Error> {
        let core = core_affinity::get_core_ids().unwrap()[0].id;
        let running = Running::start(&vec![core; jobs.len()], jobs, Arc::default(), Summary::default)?;
        running.join().map(|(services, _)| services)
    }

    #[test]
    fn services_come_back_in_the_order_of_their_workers() {
        let job = |n| -> Job<u8> { Box::new(move || Ok((n, Summary::default()))) };
        assert_eq!(run(vec![job(1), job(2), job(3)]).unwrap(), [1, 2, 3]);
    }

    #[test]
    fn what_the_workers_and_their_port_counted_is_added_up() {
        let counted = |n| Summary { rx_frames: n, ..Summary::default() };
        let jobs: Vec<Job<u8>> = vec![Box::new(move || Ok((0, counted(1)))), Box::new(move || Ok((0, counted(2))))];
        let core = core_affinity::get_core_ids().unwrap()[0].id;
        let running = Running::start(&[core, core], jobs, Arc::default(), move || counted(4)).unwrap();
        assert_eq!(running.join().unwrap().1, counted(7));
    }

    #[test]
    fn a_worker_that_panics_stops_the_others_and_is_named() {
        let core = core_affinity::get_core_ids().unwrap()[0].id;
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let runs: Job<u8> = Box::new(move || {
            while !seen.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok((0, Summary::default()))
        });
        let panics: Job<u8> = Box::new(|| panic!("on purpose"));
        let error =
            Running::start(&[core, core], vec![runs, panics], stop, Summary::default).unwrap().join().unwrap_err();
        assert!(matches!(error, Error::Panicked(1)), "{error}");
    }

    #[test]
    fn a_core_that_cannot_be_had_is_an_error() {
        let jobs: Vec<Job<u8>> = vec![Box::new(|| Ok((0, Summary::default())))];
        let error = Running::start(&[1023], jobs, Arc::default(), Summary::default).unwrap().join().unwrap_err();
        assert!(matches!(error, Error::NotPinned(1023)), "{error}");
    }
}
