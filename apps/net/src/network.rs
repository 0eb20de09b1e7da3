//! An open network, and the workers that run a service on it.

use crate::args::{NetArgs, ThreadingArg};
use crate::cores::{self, Place};
use crate::error::Error;
use crate::port::{Close, Job, Port};
use crate::run_context::Basis;
use crate::split;
use crate::stats_query::Way;
use linerate_bypass::arena::{Arena, ArenaError};
use linerate_bypass::{Published, RemoteAddrCell, RemoteCounters, Service, Stop, Summary, WorkerCtx};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often workers that are starting are looked at.
pub(crate) const READY_PERIOD: Duration = Duration::from_millis(2);

/// Addresses to serve on.
#[derive(Debug, Default, Clone)]
pub struct Listen {
    /// Over TCP.
    pub tcp: Vec<SocketAddr>,
    /// Over UDP.
    pub udp: Vec<SocketAddr>,
}

/// A network that is open, with a core for each worker and no worker running yet. `M` is the message of the
/// services to be run on it.
pub struct Network<M> {
    cores: Vec<usize>,
    port: Threaded<M>,
    way: Way,
}

/// A port, and where services are run on it.
enum Threaded<M> {
    /// On its workers' threads.
    Inline(Port<M>),
    /// On threads of their own.
    Split(split::Port<M>),
}

/// What `does` with the port of a [`Threaded`], whatever its workers' messages are.
macro_rules! with_port {
    ($threaded:expr, $port:ident => $does:expr) => {
        match $threaded {
            Threaded::Inline($port) => $does,
            Threaded::Split(split::Port { port: $port, .. }) => $does,
        }
    };
}

impl<M: Send + 'static> Network<M> {
    /// Opens the network of `args` and begins to listen. Workers without a core given go to `place`. While another
    /// process is waited for, `stop` ends the wait.
    pub fn open(args: &NetArgs, listen: &Listen, place: Place, stop: &Arc<AtomicBool>) -> Result<Self, Error> {
        args.check(listen)?;
        let cores = cores::choose(args.workers, args.cores.as_ref(), place)?;
        let port = match args.threading {
            ThreadingArg::Inline => Threaded::Inline(Port::open(args, listen, cores.len(), stop)?),
            ThreadingArg::Split => Threaded::Split(split::Port::open(args, listen, &cores, place, stop)?),
        };
        Ok(Network { cores, port, way: Way::default() })
    }

    /// The TCP addresses listened on, with the ports that were chosen for port 0.
    pub fn listening(&self) -> Vec<SocketAddr> {
        with_port!(&self.port, port => port.listening())
    }

    /// How many workers there will be.
    pub fn workers(&self) -> usize {
        self.cores.len()
    }

    /// The way to ask the workers how they are, which leads nowhere before they have been started.
    pub fn way(&self) -> Way {
        self.way.clone()
    }

    /// What is below, and how services run on it, where a result says nothing without it.
    pub fn basis(&self) -> Basis {
        let threading = match &self.port {
            Threaded::Inline(_) => None,
            Threaded::Split(port) => Some(port.threading()),
        };
        Basis { device: with_port!(&self.port, port => port.device()), threading }
    }

    /// Memory of `bytes` that the network reaches, for what services send from where it lies.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ArenaError> {
        with_port!(&self.port, port => port.arena(bytes))
    }

    /// Opens `memory` to all peers, to be read by themselves; where, is known when the workers have been started.
    pub fn publish(&self, memory: Arc<Published>) -> Result<RemoteAddrCell, Error> {
        with_port!(&self.port, port => port.publish(memory))
    }

    /// Opens `memory` to all peers, for atomic operations by themselves; where, is known when the workers have been started. `what` is the
    /// option that asks for it.
    pub fn count(&self, memory: Arc<RemoteCounters>, what: &'static str) -> Result<RemoteAddrCell, Error> {
        with_port!(&self.port, port => port.count(memory, what))
    }

    /// Starts the workers, each on a thread pinned to its core, with the service that `make` makes there. They
    /// run until `stop` says so, or until one of them fails.
    pub fn start<S: Service<Message = M> + Send + 'static>(
        self,
        make: impl Fn(WorkerCtx<M>) -> S + Send + Sync + 'static,
        stop: impl Into<Stop>,
    ) -> Result<Running<S>, Error> {
        let (make, stop) = (Arc::new(make), stop.into());
        stop.set_workers(self.cores.len());
        let ready = Arc::default();
        let (jobs, close) = match self.port {
            Threaded::Inline(port) => port.jobs(make, &stop, &ready, &self.way)?,
            Threaded::Split(port) => port.jobs(make, &stop, &ready, &self.way)?,
        };
        let mut running = Running::start(&self.cores, jobs, stop, close)?;
        running.ready = ready;
        Ok(running)
    }
}

/// Running workers.
pub struct Running<S> {
    threads: Vec<JoinHandle<Result<(S, Summary), Error>>>,
    stop: Stop,
    /// How many of them serve.
    ready: Arc<AtomicUsize>,
    close: Close,
}

impl<S: Send + 'static> Running<S> {
    pub(crate) fn start(cores: &[usize], jobs: Vec<Job<S>>, stop: Stop, close: Close) -> Result<Self, Error> {
        let mut running = Running { threads: Vec::new(), stop, ready: Arc::default(), close };
        for ((worker, job), core) in jobs.into_iter().enumerate().zip(cores.iter().copied()) {
            match spawn(format!("worker-{worker}"), core, &running.stop, job) {
                Ok(thread) => running.threads.push(thread),
                Err(source) => {
                    running.stop.stop();
                    // What ended first is what is told.
                    let _ = running.join();
                    return Err(Error::Spawn { worker, source });
                }
            }
        }
        Ok(running)
    }

    /// Waits until all workers serve, which takes a while where DHCP gives the address; `false` if they end first, or
    /// are to drain.
    pub fn await_ready(&self) -> bool {
        while self.ready.load(Ordering::Relaxed) < self.threads.len() {
            if self.is_over() || self.stop.is_draining() {
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

/// A thread called `name` on `core`, at whose end everything ends that `stop` stops.
pub(crate) fn spawn<T: Send + 'static>(
    name: String,
    core: usize,
    stop: &Stop,
    job: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> io::Result<JoinHandle<Result<T, Error>>> {
    let over = StopOnDrop(stop.clone());
    std::thread::Builder::new().name(name).spawn(move || {
        let _over = over;
        if core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
            job()
        } else {
            Err(Error::NotPinned(core))
        }
    })
}

/// Stops all workers when one ends, whether by itself or by a panic: a service that has lost a worker answers only
/// some of its peers, and nobody would know.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(jobs: Vec<Job<u8>>) -> Result<Vec<u8>, Error> {
        let core = core_affinity::get_core_ids().unwrap()[0].id;
        let running = Running::start(&vec![core; jobs.len()], jobs, Stop::default(), Box::new(Summary::default))?;
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
        let running = Running::start(&[core, core], jobs, Stop::default(), Box::new(move || counted(4))).unwrap();
        assert_eq!(running.join().unwrap().1, counted(7));
    }

    #[test]
    fn a_worker_that_panics_stops_the_others_and_is_named() {
        let core = core_affinity::get_core_ids().unwrap()[0].id;
        let stop = Stop::default();
        let seen = stop.clone();
        let runs: Job<u8> = Box::new(move || {
            while !seen.is_stopped() {
                std::thread::yield_now();
            }
            Ok((0, Summary::default()))
        });
        let panics: Job<u8> = Box::new(|| panic!("on purpose"));
        let error = Running::start(&[core, core], vec![runs, panics], stop, Box::new(Summary::default))
            .unwrap()
            .join()
            .unwrap_err();
        assert!(matches!(error, Error::Panicked(1)), "{error}");
    }

    #[test]
    fn a_core_that_cannot_be_had_is_an_error() {
        let jobs: Vec<Job<u8>> = vec![Box::new(|| Ok((0, Summary::default())))];
        let error =
            Running::start(&[1023], jobs, Stop::default(), Box::new(Summary::default)).unwrap().join().unwrap_err();
        assert!(matches!(error, Error::NotPinned(1023)), "{error}");
    }
}
