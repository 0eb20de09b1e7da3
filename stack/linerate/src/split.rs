//! Workers that run only their transport, with each service on a thread of its own next to its worker
//! ([`ThreadingMode::Split`](crate::ThreadingMode::Split)).

use crate::config::NetConfig;
use crate::error::Error;
use crate::jobs::{Close, Finish, Job, Make};
use crate::network::spawn;
use crate::port::Port;
use crate::run_context::Threading;
use crate::stats_client::StatsClient;
use linerate_bypass::Via;
use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_service::time::Clock;
use linerate_service::{Service, Stop, WorkerCtx};
use linerate_split::{Commands, Config, Relay, RunnerSetup, split};
use linerate_stack::Idle;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes in each direction of a connection between the two threads, without [`NetConfig::buffer`].
const WINDOW: usize = 256 << 10;
/// Memory for the data that each service sends.
const WRITTEN: usize = 32 << 20;

/// Threads and memory of the services of a port whose workers run relays.
pub struct Services {
    cores: Vec<usize>,
    config: Config,
}

impl Services {
    /// Allocates the memory that the services on the cores `services` send from. `port` is the network of `options`,
    /// with workers on `workers`.
    pub fn new(options: &NetConfig, workers: &[usize], services: Vec<usize>, port: &Port) -> Result<Self, Error> {
        let bytes = workers.len() * WRITTEN;
        let arena = match options.via {
            Via::Kernel => Arena::new(ArenaConfig { bytes, hugepages: false }),
            _ => port.arena(bytes),
        };
        let config = Config {
            window: options.buffer.unwrap_or(WINDOW),
            arena: arena.map_err(Error::NoArena)?,
            co_scheduled: services.iter().any(|core| workers.contains(core)),
            sleeps: options.via == Via::Kernel && !options.spin || options.idle == Some(Idle::Wait),
        };
        Ok(Services { cores: services, config })
    }

    /// Returns how services run.
    pub fn threading(&self) -> Threading {
        Threading { co_scheduled: self.config.co_scheduled }
    }

    /// As [`Port::jobs`]. The services' threads start at once and end with their workers; there, `finish` turns each
    /// service into its result.
    pub fn jobs<S: Service + 'static, R: Send + 'static>(
        self,
        port: Port,
        make: Make<S>,
        finish: Finish<S, R>,
        stop: &Stop,
        ready: &Arc<AtomicUsize>,
        stats: &StatsClient,
    ) -> Result<(Vec<Job<R>>, Close), Error> {
        let (relays, setups): (Vec<_>, Vec<_>) =
            split::<S::Message>(self.cores.len(), &self.config).into_iter().unzip();
        let relays = Arc::new(Mutex::new(relays.into_iter().map(Some).collect::<Vec<Option<Relay>>>()));
        let take = {
            let relays = relays.clone();
            move |worker: usize| relays.lock().unwrap_or_else(PoisonError::into_inner)[worker].take()
        };
        let attach = {
            let take = take.clone();
            move |ctx: WorkerCtx<Commands>| take(ctx.worker).expect("each worker makes its relay once").attach(ctx)
        };
        let (workers, close) = port.jobs(Arc::new(attach), stop, ready, stats)?;
        let mut jobs: Vec<Job<R>> = Vec::new();
        for (worker, (run, setup)) in workers.into_iter().zip(setups).enumerate() {
            let (make, finish) = (make.clone(), finish.clone());
            let serve = move || Ok(finish(RunnerSetup::with_service(setup, |ctx| make(ctx)).run(&Clock::start())));
            let service = spawn(format!("service-{worker}"), self.cores[worker], stop, serve)
                .map_err(|source| Error::Spawn { worker, source })?;
            let take = take.clone();
            jobs.push(Box::new(move || {
                let ended = run();
                // Dropping a relay ends its service: also one whose worker failed or was never started.
                drop(take(worker));
                let ended = ended.map(|(relay, mut summary)| {
                    relay.end(&mut summary);
                    summary
                });
                let service = service.join().unwrap_or(Err(Error::Panicked(worker)))?;
                Ok((service, ended?))
            }));
        }
        Ok((jobs, close))
    }
}
