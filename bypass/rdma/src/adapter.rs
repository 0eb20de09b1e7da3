//! From a device to workers: what each of them has, and who connects them.

use crate::calls::{Access, Calls, TransportKind};
use crate::config::{Connect, Mode, Unable};
use crate::connector::{Connector, DatagramSeat, ExchangeError, Listeners, Seat, sessions};
use crate::rest::{Bell, Rest};
use crate::verbs::{self, CompletionQueue, Domain, Error, Exposed, Region, SharedQueue, Window};
use crate::{Config, Lines, Offers, Parts};
use linerate_bypass::arena::{ArenaConfig, ArenaError};
use linerate_bypass::mailbox::{Receiver, Sender, mailbox, waking_mailbox};
use linerate_bypass::{AppMsg, AppSender, Arena, Published, RemoteAddr, RemoteAddrCell, RemoteCounters};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Messages that a worker's mailbox holds.
const MAILBOX: usize = 4096;
/// What the connector may tell a worker of one connection before it is heard.
const NEWS: usize = 5;
/// Windows of a worker.
const WINDOWS: usize = 64;
/// Memory of a worker for what it sends.
const BESIDE: usize = 32 << 20;
/// Memory of a worker for buffers, and messages of a few bytes, beside what it needs for its connections' buffers.
const LEAST: usize = 1 << 20;

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
    /// The device cannot do what was asked for.
    #[error("{device}: {error}")]
    Unable {
        /// The device.
        device: String,
        /// What.
        error: Unable,
    },
    /// Connections cannot be made by an exchange over TCP.
    #[error("{device}: {error}")]
    Exchange {
        /// The device.
        device: String,
        /// Why not.
        error: ExchangeError,
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
    /// All memory that the device is to reach; the first is what messages are made in, the second what they come in.
    arenas: Mutex<Vec<Arena>>,
    /// What peers may read, and where they learn how.
    published: Mutex<Vec<(Arc<Published>, RemoteAddrCell)>>,
    /// What they may count with, and where they learn how.
    counters: Mutex<Vec<(Arc<RemoteCounters>, RemoteAddrCell)>>,
    app_sender: AppSender<M>,
    /// How each worker is written to, and woken.
    #[expect(clippy::type_complexity, reason = "two things of each")]
    workers: Vec<(Receiver<AppMsg<M>>, Option<Rest<C>>)>,
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
        let mut config =
            config.within(&limits).map_err(|error| OpenError::Unable { device: calls.name().to_owned(), error })?;
        if config.mode == Mode::Datagrams {
            let port = calls.port(sessions::PORT).map_err(Error::of("query the port")).map_err(failed)?;
            config.buffer = config.buffer.min(port.mtu.bytes() as usize);
        }
        let config = config;
        tracing::debug!("{}: up to {} connections for each worker", calls.name(), config.max_connections);
        let listeners = match config.connect {
            Connect::Manager => Listeners::open(calls, listen).map_err(failed)?,
            Connect::Exchange => Listeners::by_exchange(calls, listen)
                .map_err(|error| OpenError::Exchange { device: calls.name().to_owned(), error })?,
        };
        let own = config.max_connections * usize::from(config.buffers);
        // Each has a slot in its ring, if there are any; and those of datagrams may all be with services while as many are posted.
        let (buffers, copies) = match (config.mode, config.shared) {
            (Mode::Send, None) => (own, 1),
            (Mode::Send, Some(shared)) => (shared as usize, 1),
            (Mode::Write, _) => (own, 2),
            (Mode::Datagrams, _) => (config.datagrams(&limits).1 as usize, 2),
        };
        // Some are with services while others are posted in their place.
        let bytes = workers * (LEAST + copies * buffers * (config.buffer + 64) * 5 / 4);
        let buffers = Arena::new(ArenaConfig { bytes, hugepages: true })?;
        let arena = Arena::new(ArenaConfig { bytes: workers * BESIDE, hugepages: true })?;
        let rests = (0..workers).map(|_| config.rests.then(|| Rest::new(calls)).transpose());
        let rests = rests.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let (senders, messages): (_, Vec<_>) = rests.iter().map(|rest| mailbox_of(rest.as_ref(), MAILBOX)).unzip();
        Ok(Adapter {
            config,
            calls: calls.clone(),
            listeners,
            arenas: Mutex::new(vec![arena, buffers]),
            published: Mutex::default(),
            counters: Mutex::default(),
            app_sender: AppSender::new(senders),
            workers: messages.into_iter().zip(rests).collect(),
        })
    }

    /// The addresses listened at, with the ports that were found for port 0.
    pub fn listening(&self) -> Vec<SocketAddr> {
        self.listeners.addresses()
    }

    /// The way to every worker's connections.
    pub fn app_sender(&self) -> &AppSender<M> {
        &self.app_sender
    }

    /// Memory of `bytes` that the device will reach.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ArenaError> {
        let arena = Arena::new(ArenaConfig { bytes, hugepages: true })?;
        self.arenas.lock().unwrap_or_else(PoisonError::into_inner).push(arena.clone());
        Ok(arena)
    }

    /// Has `memory` opened to all peers that are connected, for atomic operations and nothing else. Where, is known when workers are
    /// made.
    pub fn count(&self, memory: Arc<RemoteCounters>) -> Result<RemoteAddrCell, OpenError> {
        let device = || self.calls.name().to_owned();
        let limits = self.calls.limits().map_err(Error::of("query the device"));
        if !limits.map_err(|error| OpenError::Verbs { device: device(), error })?.atomics.any() {
            return Err(OpenError::Unable { device: device(), error: Unable::NoAtomics });
        }
        let place = RemoteAddrCell::default();
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).push((memory, Arc::clone(&place)));
        Ok(place)
    }

    /// Has `memory` opened to all peers that are connected, to be read and for nothing else. Where, is known when workers are made.
    pub fn publish(&self, memory: Arc<Published>) -> RemoteAddrCell {
        let place = RemoteAddrCell::default();
        self.published.lock().unwrap_or_else(PoisonError::into_inner).push((memory, Arc::clone(&place)));
        place
    }

    /// The connector, and what each worker is made of.
    #[expect(clippy::type_complexity, reason = "two things that belong together once")]
    pub fn start(self) -> Result<(Connector<C>, Vec<WorkerParts<C, M>>), OpenError> {
        let Adapter { config, calls, listeners, arenas, published, counters: counted, workers: ways, .. } = self;
        let failed = |error| OpenError::Verbs { device: calls.name().to_owned(), error };
        let arenas = arenas.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (arena, own) = (arenas[0].clone(), arenas[1].clone());
        let limits = calls.limits().map_err(Error::of("query the device")).map_err(failed)?;
        let domain = Domain::new(&calls).map_err(failed)?;
        let region = Region::new(&domain, &arenas, limits.transport == TransportKind::Iwarp).map_err(failed)?;
        let mut exposed = Vec::new();
        for (memory, told) in published.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let access = Access { remote_read: true, ..Access::default() };
            let memory = Exposed::open(&domain, memory, access).map_err(failed)?;
            let _ = told.set(RemoteAddr { address: memory.address(), key: memory.remote_key() });
            exposed.push(memory);
        }
        let mut counters = Vec::new();
        for (memory, told) in counted.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let memory = verbs::Counters::open(&domain, memory).map_err(failed)?;
            let _ = told.set(RemoteAddr { address: memory.address(), key: memory.remote_key() });
            counters.push(memory);
        }
        let narrow = Offers::of(&limits, calls.emulated_by()) == Offers::Registered;
        let bell = Bell::new().map_err(failed)?;
        let (commands, heard) = waking_mailbox(NEWS * config.max_connections * ways.len(), bell.wake());
        let (mut seats, mut workers) = (Vec::new(), Vec::new());
        for (worker, (messages, rest)) in ways.into_iter().enumerate() {
            let channel = rest.as_ref().map(Rest::channel);
            let most = config.pairs_of_queue(&limits).min(config.pairs()).max(1);
            let (queues, datagrams) = match config.mode {
                Mode::Datagrams => {
                    let (sends, receives) = config.datagrams(&limits);
                    let queue = CompletionQueue::new(&calls, sends + receives, channel).map_err(failed)?;
                    let datagrams = sessions::datagrams(&config, &limits, &region, &own, queue.handle());
                    (vec![queue], Some(datagrams.map_err(failed)?))
                }
                Mode::Send | Mode::Write => {
                    let queue = |_| CompletionQueue::new(&calls, most as u32 * config.completions(), channel);
                    let queues = (0..config.pairs().div_ceil(most)).map(queue).collect::<Result<Vec<_>, _>>();
                    (queues.map_err(failed)?, None)
                }
            };
            let shared = match config.shared {
                Some(buffers) => {
                    let mut shared = SharedQueue::new(&region, buffers).map_err(failed)?;
                    shared.post((0..buffers).map_while(|_| own.alloc(config.buffer))).map_err(failed)?;
                    Some(shared)
                }
                None => None,
            };
            let count = if config.offer_from < usize::MAX { WINDOWS } else { 0 };
            let windows = (0..count).map(|_| Window::new(&region)).collect::<Result<_, _>>().map_err(failed)?;
            let (news, told) = mailbox_of(rest.as_ref(), NEWS * config.max_connections);
            let handles = queues.iter().map(|queue| queue.handle().clone()).collect();
            let shares = shared.as_ref().map(|shared| shared.handle().clone());
            let datagram_seat = datagrams.as_ref().map(DatagramSeat::of);
            seats.push(Seat { queues: handles, most, shared: shares, datagrams: datagram_seat, news });
            let parts = Parts {
                queues,
                shared,
                datagrams,
                region: region.clone(),
                arena: arena.clone(),
                buffers: own.clone(),
                windows,
                narrow,
                atomics: limits.atomics.any(),
            };
            let lines = Lines { messages, news: told, commands: commands.clone(), rest };
            workers.push(WorkerParts { worker, config: config.clone(), parts, lines });
        }
        let mut connector = Connector::new(&config, listeners, &region, &own, seats, heard, bell).map_err(failed)?;
        connector.begin(exposed, counters).map_err(failed)?;
        Ok((connector, workers))
    }
}

/// A mailbox of a worker, which is woken if it may sleep.
fn mailbox_of<C: Calls, T: Send>(rest: Option<&Rest<C>>, capacity: usize) -> (Sender<T>, Receiver<T>) {
    match rest {
        Some(rest) => waking_mailbox(capacity, rest.wake()),
        None => mailbox(capacity),
    }
}
