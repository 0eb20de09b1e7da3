//! An open network, and the workers that run a service on it.

use crate::builder::NetworkBuilder;
use crate::config::{Listen, NetConfig, ThreadingMode};
use crate::cores::{CorePlacement, choose_services};
use crate::error::Error;
use crate::jobs::{Close, Finish, Job, Make};
use crate::port::Port;
use crate::run_context::RunContext;
use crate::split::Services;
use crate::stats_client::StatsClient;
use linerate_bypass::arena::{Arena, ArenaError};
use linerate_bypass::{Published, RemoteCounters};
use linerate_service::{RemoteAddrCell, Service, Stop, Summary, WorkerCtx};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval at which the start of workers is checked.
pub(crate) const READY_PERIOD: Duration = Duration::from_millis(2);

/// An open network with a core for each worker, before any worker runs.
///
/// ```
/// use linerate::{ConnId, Network, Origin, Service, Transport};
/// # use std::sync::Arc;
/// # use std::sync::atomic::AtomicBool;
///
/// /// Sends back the bytes of each connection.
/// struct Echo;
///
/// impl Service for Echo {
///     type Conn = ();
///     type Message = ();
///
///     fn opened(&mut self, _net: &mut impl Transport, _conn: ConnId, _origin: Origin) {}
///
///     fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _state: &mut ()) {
///         net.forward(conn, conn);
///     }
/// }
///
/// let network = Network::builder().via("kernel".parse()?).listen("127.0.0.1:0".parse()?);
/// # let stop = linerate::Stop::default();
/// # stop.stop();
/// # let network = network.stop(stop);
/// network.build()?.run(|_ctx| Echo)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "workers are started by `run` or `start`"]
pub struct Network {
    cores: Vec<usize>,
    port: Port,
    /// Threads of services, if they are not those of the workers.
    services: Option<Services>,
    stats: StatsClient,
    stop: Stop,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<linerate_tls::TlsConfig>,
}

/// As [`Port::jobs`].
type MakeJobs<S> = fn(Port, Make<S>, &Stop, &Arc<AtomicUsize>, &StatsClient) -> Result<(Vec<Job<S>>, Close), Error>;

impl Network {
    /// Returns a builder.
    pub fn builder() -> NetworkBuilder {
        NetworkBuilder::default()
    }

    /// Opens the network of `config`, which has been checked, for workers on `cores`. `place` selects the cores of
    /// services on their own threads. `stop` ends the wait for another process.
    pub(crate) fn open(
        config: &NetConfig,
        listen: &Listen,
        cores: Vec<usize>,
        place: CorePlacement,
        stop: Stop,
    ) -> Result<Self, Error> {
        let services = match config.threading {
            ThreadingMode::Inline => None,
            ThreadingMode::Split => Some(choose_services(&config.via, config.service_cores.as_ref(), &cores, place)?),
        };
        let port = Port::open(config, listen, &cores, &stop)?;
        let services = services.map(|services| Services::new(config, &cores, services, &port)).transpose()?;
        Ok(Network {
            cores,
            port,
            services,
            stats: StatsClient::default(),
            stop,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }

    /// Returns the TCP listening addresses, with the ports that were chosen for port 0.
    pub fn listening(&self) -> Vec<SocketAddr> {
        self.port.listening()
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.cores.len()
    }

    /// Returns a client for queries to the workers. It is not connected before they start.
    pub fn stats_client(&self) -> StatsClient {
        self.stats.clone()
    }

    /// Returns the context to report with results.
    pub fn run_context(&self) -> RunContext {
        RunContext { device: self.port.device(), threading: self.services.as_ref().map(Services::threading) }
    }

    /// Allocates `bytes` of memory that the network can send from without a copy.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ArenaError> {
        self.port.arena(bytes)
    }

    /// Registers `memory` for READs by all peers. Its address is known once the workers have started.
    pub fn publish(&self, memory: Arc<Published>) -> Result<RemoteAddrCell, Error> {
        self.port.publish(memory)
    }

    /// Registers `memory` for atomic operations by all peers. Its address is known once the workers have started.
    pub fn count(&self, memory: Arc<RemoteCounters>) -> Result<RemoteAddrCell, Error> {
        self.port.count(memory)
    }

    /// Runs a service, created by `make` for each worker, until the request of [`NetworkBuilder::stop`] or until a
    /// worker fails. Returns the sum of the counters. `make` runs on the thread of the worker, where the service stays,
    /// so the service need not be `Send`.
    ///
    /// # Errors
    /// If a worker fails or panics.
    pub fn run<S: Service + 'static>(
        self,
        make: impl Fn(WorkerCtx<S::Message>) -> S + Send + Sync + 'static,
    ) -> Result<Summary, Error> {
        let stop = self.stop.clone();
        self.start_local(make, drop, stop)?.join().map(|(_, summary)| summary)
    }

    /// Starts each worker on a thread pinned to its core, with a service created there by `make`. Workers run until
    /// `stop`, or until one of them fails.
    pub fn start<S: Service + Send + 'static>(
        self,
        make: impl Fn(WorkerCtx<S::Message>) -> S + Send + Sync + 'static,
        stop: Stop,
    ) -> Result<Running<S>, Error> {
        self.start_local(make, |service| service, stop)
    }

    /// As [`start`](Self::start), for services that are not `Send`: `finish` turns each into its result, on its thread.
    pub fn start_local<S: Service + 'static, R: Send + 'static>(
        self,
        make: impl Fn(WorkerCtx<S::Message>) -> S + Send + Sync + 'static,
        finish: impl Fn(S) -> R + Send + Sync + 'static,
        stop: Stop,
    ) -> Result<Running<R>, Error> {
        #[cfg(feature = "tls")]
        if let Some(tls) = self.tls.clone() {
            use linerate_tls::Tls;
            let make = move |ctx: WorkerCtx<S::Message>| Tls::new(tls.clone(), make(ctx));
            let finish = move |service: Tls<S>| finish(service.into_service());
            return self.start_jobs(Port::native_jobs, Arc::new(make), Arc::new(finish), stop);
        }
        self.start_jobs(Port::jobs, Arc::new(make), Arc::new(finish), stop)
    }

    fn start_jobs<S: Service + 'static, R: Send + 'static>(
        self,
        make_jobs: MakeJobs<S>,
        make: Make<S>,
        finish: Finish<S, R>,
        stop: Stop,
    ) -> Result<Running<R>, Error> {
        stop.set_workers(self.cores.len());
        let ready = Arc::default();
        let (jobs, close) = match self.services {
            None => {
                let (jobs, close) = make_jobs(self.port, make, &stop, &ready, &self.stats)?;
                let finished = |job: Job<S>| -> Job<R> {
                    let finish = finish.clone();
                    Box::new(move || job().map(|(service, summary)| (finish(service), summary)))
                };
                (jobs.into_iter().map(finished).collect(), close)
            }
            Some(services) => services.jobs(self.port, make, finish, &stop, &ready, &self.stats)?,
        };
        linerate_bypass::trim_heap();
        let mut running = Running::start(&self.cores, jobs, stop, close)?;
        running.ready = ready;
        Ok(running)
    }
}

/// A network's running workers. They continue when it is dropped.
#[must_use = "errors of workers are returned by `join`"]
pub struct Running<S> {
    threads: Vec<JoinHandle<Result<(S, Summary), Error>>>,
    stop: Stop,
    /// Workers that serve.
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
                    // The error reported is the spawn error.
                    let _ = running.join();
                    return Err(Error::Spawn { worker, source });
                }
            }
        }
        Ok(running)
    }

    /// Waits until all workers serve, which takes time where DHCP assigns the address. Returns `false` if they end or
    /// drain before.
    pub fn await_ready(&self) -> bool {
        while self.ready.load(Ordering::Relaxed) < self.threads.len() {
            if self.is_finished() || self.stop.is_draining() {
                return false;
            }
            std::thread::sleep(READY_PERIOD);
        }
        true
    }

    /// Requests the workers to stop.
    pub fn stop(&self) {
        self.stop.stop();
    }

    /// Requests the workers to drain: they accept no new connections, and serve the existing ones until
    /// [`stop`](Self::stop).
    pub fn drain(&self) {
        self.stop.drain();
    }

    /// Returns the number of remaining connections, or `None` until all workers have stopped listening.
    pub fn remaining(&self) -> Option<usize> {
        self.stop.remaining()
    }

    /// Returns whether a worker has ended, of its own accord or stopped.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Waits for all workers to end and closes their port. Returns the services, and the sum of the workers' and the
    /// port's counters.
    pub fn join(self) -> Result<(Vec<S>, Summary), Error> {
        let ends: Vec<_> = self.threads.into_iter().map(JoinHandle::join).collect();
        let mut total = (self.close)();
        let mut services = Vec::new();
        for (worker, end) in ends.into_iter().enumerate() {
            let (service, summary) = end.unwrap_or(Err(Error::Panicked(worker)))?;
            services.push(service);
            tracing::info!(
                "worker {worker}: accepted {}, opened {}, received {} bytes",
                summary.accepted,
                summary.connected,
                summary.rx_bytes
            );
            total += &summary;
        }
        Ok((services, total))
    }
}

/// Starts a thread called `name` on `core`. When it ends, it sets `stop`.
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

/// Stops all workers when one ends or panics: a service without all its workers would silently fail to answer some of
/// its peers.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_service::{ConnId, Origin, Transport};
    use std::convert::Infallible;
    use std::rc::Rc;

    /// Service that cannot be sent between threads.
    struct Local(Rc<u32>);

    impl Service for Local {
        type Conn = ();
        type Message = Infallible;

        fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}
    }

    #[test]
    fn service_that_is_not_send_is_finished_on_its_thread() {
        for threading in [ThreadingMode::Inline, ThreadingMode::Split] {
            let network = Network::builder().threading(threading).build().unwrap();
            let running = network.start_local(|_| Local(Rc::new(7)), |service| *service.0, Stop::default()).unwrap();
            assert!(running.await_ready());
            running.drain();
            assert!(!running.is_finished());
            running.stop();
            assert_eq!(running.join().unwrap().0, [7]);
        }
    }

    fn run(jobs: Vec<Job<u8>>) -> Result<Vec<u8>, Error> {
        let core = core_affinity::get_core_ids().unwrap()[0].id;
        let running = Running::start(&vec![core; jobs.len()], jobs, Stop::default(), Box::new(Summary::default))?;
        running.join().map(|(services, _)| services)
    }

    #[test]
    fn services_are_returned_in_worker_order() {
        let job = |n| -> Job<u8> { Box::new(move || Ok((n, Summary::default()))) };
        assert_eq!(run(vec![job(1), job(2), job(3)]).unwrap(), [1, 2, 3]);
    }

    #[test]
    fn summary_adds_workers_and_port() {
        let counted = |n| Summary { rx_frames: n, ..Summary::default() };
        let jobs: Vec<Job<u8>> = vec![Box::new(move || Ok((0, counted(1)))), Box::new(move || Ok((0, counted(2))))];
        let core = core_affinity::get_core_ids().unwrap()[0].id;
        let running = Running::start(&[core, core], jobs, Stop::default(), Box::new(move || counted(4))).unwrap();
        assert_eq!(running.join().unwrap().1, counted(7));
    }

    #[test]
    fn panicking_worker_stops_the_others_and_is_named() {
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
    fn unavailable_core_is_an_error() {
        let jobs: Vec<Job<u8>> = vec![Box::new(|| Ok((0, Summary::default())))];
        let error =
            Running::start(&[1023], jobs, Stop::default(), Box::new(Summary::default)).unwrap().join().unwrap_err();
        assert!(matches!(error, Error::NotPinned(1023)), "{error}");
    }
}
