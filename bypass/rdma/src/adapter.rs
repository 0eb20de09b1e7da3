//! From a device to workers: what each of them has, and who connects them.

use crate::calls::{Calls, TransportKind};
use crate::connector::{Connector, Listeners, Seat};
use crate::verbs::{CompletionQueue, Domain, Error, Region, SharedQueue, Window};
use crate::{Config, Lines, Parts};
use linerate_bypass::arena::{ArenaConfig, ArenaError};
use linerate_bypass::mailbox::{Receiver, mailbox};
use linerate_bypass::{Arena, Letter, Postbox};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The driver of Soft-RoCE, as [`Calls::emulated_by`] has it.
const RXE: &str = "rxe";
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
        let mut config = config.clone();
        // Each connection may have everything completed at once, and a queue that overflows is lost.
        let each = u32::from(config.sends) + u32::from(config.buffers);
        let most = (limits.completions / each) as usize;
        if most < config.max_connections {
            tracing::debug!(
                "{}: {most} connections for each worker, for a queue of its completions is no longer",
                calls.name()
            );
            config.max_connections = most;
        }
        if limits.transport == TransportKind::Iwarp || !limits.windows_type_2 {
            config.offer_from = usize::MAX;
        }
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
        // Soft-RoCE lets a peer read whatever is in the region to which a window is bound.
        let narrow = calls.emulated_by() == Some(RXE);
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
            let parts = Parts { queue, shared, region: region.clone(), arena: arena.clone(), windows, narrow };
            let lines = Lines { messages, news: told, commands: commands.clone() };
            workers.push(WorkerParts { worker, config: config.clone(), parts, lines });
        }
        let connector = Connector::new(&config, listeners, &region, &arena, seats, heard).map_err(failed)?;
        Ok((connector, workers))
    }
}
