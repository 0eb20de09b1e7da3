//! From a device to workers: what each of them has, and who connects them.

use crate::calls::{Calls, TransportKind};
use crate::config::TooMany;
use crate::connector::{Connector, Listeners, Seat};
use crate::verbs::{CompletionQueue, Domain, Error, Region, SharedQueue, Window};
use crate::{Config, Lines, Parts};
use linerate_bypass::arena::{ArenaConfig, ArenaError};
use linerate_bypass::mailbox::{Receiver, mailbox};
use linerate_bypass::{Arena, Letter, Postbox};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Messages that a worker's mailbox holds.
const MAILBOX: usize = 4096;
/// What the connector may tell a worker of one connection before it is heard.
const NEWS: usize = 4;
/// Windows of a worker.
const WINDOWS: usize = 64;
/// Memory of a worker beside its connections' buffers.
const BESIDE: usize = 32 << 20;

/// Why a device could not be made ready.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A call failed.
    #[error("{device}: {error}")]
    Verbs {
        /// The device.
        device: String,
        /// The call.
        error: Error,
    },
    /// The device has not as much.
    #[error("{device}: {error}")]
    TooMany {
        /// The device.
        device: String,
        /// Of what.
        error: TooMany,
    },
    /// There is no memory.
    #[error(transparent)]
    Arena(#[from] ArenaError),
}

/// A device on which it is listened, without workers yet. `M` is the message of the services to be run on it.
pub struct Adapter<C: Calls, M> {
    config: Config,
    calls: Arc<C>,
    listeners: Listeners<C>,
    /// All memory that the device is to reach; the first is that of messages.
    arenas: Mutex<Vec<Arena>>,
    postbox: Postbox<M>,
    messages: Vec<Receiver<Letter<M>>>,
}

/// What one worker is made of, on the thread that will run it.
pub struct WorkerParts<C: Calls, M> {
    /// Its number, counted from 0.
    pub worker: usize,
    /// Its limits.
    pub config: Config,
    /// What it has of the device.
    pub parts: Parts<C>,
    /// How it hears of others.
    pub lines: Lines<C, M>,
}

impl<C: Calls, M: Send + 'static> Adapter<C, M> {
    /// Listens at `listen` for `workers` workers.
    pub fn open(calls: &Arc<C>, config: &Config, listen: &[SocketAddr], workers: usize) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Verbs { device: calls.name().to_owned(), error };
        let limits = calls.limits().map_err(Error::of("query the device")).map_err(failed)?;
        let config =
            config.within(&limits).map_err(|error| OpenError::TooMany { device: calls.name().to_owned(), error })?;
        tracing::debug!("{}: up to {} connections for each worker", calls.name(), config.max_connections);
        let listeners = Listeners::open(calls, listen).map_err(failed)?;
        let buffers =
            config.shared.map_or(config.max_connections * usize::from(config.buffers), |shared| shared as usize);
        let bytes = workers * (BESIDE + 2 * buffers * (config.buffer + 64));
        let arena = Arena::new(ArenaConfig { bytes, hugepages: true })?;
        let (senders, messages) = (0..workers).map(|_| mailbox(MAILBOX)).unzip();
        Ok(Adapter {
            config,
            calls: calls.clone(),
            listeners,
            arenas: Mutex::new(vec![arena]),
            postbox: Postbox::new(senders),
            messages,
        })
    }

    /// The addresses listened at, with the ports that were found for port 0.
    pub fn listening(&self) -> Vec<SocketAddr> {
        self.listeners.addresses().collect()
    }

    /// The way to every worker's connections.
    pub fn postbox(&self) -> &Postbox<M> {
        &self.postbox
    }

    /// Memory of `bytes` that the device will reach.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ArenaError> {
        let arena = Arena::new(ArenaConfig { bytes, hugepages: true })?;
        self.arenas.lock().unwrap_or_else(PoisonError::into_inner).push(arena.clone());
        Ok(arena)
    }

    /// The connector, and what each worker is made of.
    #[expect(clippy::type_complexity, reason = "two things that belong together once")]
    pub fn start(self) -> Result<(Connector<C>, Vec<WorkerParts<C, M>>), OpenError> {
        let Adapter { config, calls, listeners, arenas, messages, .. } = self;
        let failed = |error| OpenError::Verbs { device: calls.name().to_owned(), error };
        let arenas = arenas.into_inner().unwrap_or_else(PoisonError::into_inner);
        let arena = arenas[0].clone();
        let limits = calls.limits().map_err(Error::of("query the device")).map_err(failed)?;
        let domain = Domain::new(&calls).map_err(failed)?;
        let region = Region::new(&domain, &arenas, limits.transport == TransportKind::Iwarp).map_err(failed)?;
        let (commands, heard) = mailbox(NEWS * config.max_connections * messages.len());
        let (mut seats, mut workers) = (Vec::new(), Vec::new());
        for (worker, messages) in messages.into_iter().enumerate() {
            let each = u32::from(config.sends) + u32::from(config.buffers);
            let entries = each.saturating_mul(config.max_connections as u32).min(limits.completions);
            let queue = CompletionQueue::new(&calls, entries, None).map_err(failed)?;
            let shared = match config.shared {
                Some(buffers) => {
                    let mut shared = SharedQueue::new(&region, buffers).map_err(failed)?;
                    shared.post((0..buffers).map_while(|_| arena.alloc(config.buffer))).map_err(failed)?;
                    Some(shared)
                }
                None => None,
            };
            let count = if config.offer_from < usize::MAX { WINDOWS } else { 0 };
            let windows = (0..count).map(|_| Window::new(&region)).collect::<Result<_, _>>().map_err(failed)?;
            let (news, told) = mailbox(NEWS * config.max_connections);
            let (handle, shares) = (queue.handle().clone(), shared.as_ref().map(|shared| shared.handle().clone()));
            seats.push(Seat { queue: handle, shared: shares, news });
            let parts = Parts { queue, shared, region: region.clone(), arena: arena.clone(), windows };
            let lines = Lines { messages, news: told, commands: commands.clone() };
            workers.push(WorkerParts { worker, config: config.clone(), parts, lines });
        }
        let connector = Connector::new(&config, listeners, &region, &arena, seats, heard).map_err(failed)?;
        Ok((connector, workers))
    }
}
