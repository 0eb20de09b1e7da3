//! From a device to workers: what each of them has, and who connects them.

use crate::config::{Connect, Mode, Unsupported};
use crate::connector::{Connector, ExchangeError, Listeners, UdQpHandle, WorkerHandle, sessions};
use crate::provider::{Access, Provider, TransportKind};
use crate::verbs::{self, Cq, Error, ExposedMr, Mr, Mw, Pd, Srq};
use crate::waker::{IdleWait, Waker};
use crate::{Config, Parts, Rendezvous, WorkerChannels};
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
    Unsupported {
        /// The device.
        device: String,
        /// What.
        error: Unsupported,
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
pub struct Adapter<C: Provider, M> {
    config: Config,
    provider: Arc<C>,
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
    workers: Vec<(Receiver<AppMsg<M>>, Option<IdleWait<C>>)>,
}

/// What one worker is made of, on the thread that will run it.
pub struct WorkerParts<C: Provider, M> {
    /// Its number, counted from 0.
    pub worker: usize,
    /// Its limits.
    pub config: Config,
    /// What it has of the device.
    pub parts: Parts<C>,
    /// How it hears of others.
    pub lines: WorkerChannels<C, M>,
}

impl<C: Provider, M: Send + 'static> Adapter<C, M> {
    /// Listens at `listen` for `workers` workers.
    pub fn open(provider: &Arc<C>, config: &Config, listen: &[SocketAddr], workers: usize) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Verbs { device: provider.name().to_owned(), error };
        let limits = provider.limits().map_err(Error::of("query the device")).map_err(failed)?;
        let mut config = config
            .within(&limits)
            .map_err(|error| OpenError::Unsupported { device: provider.name().to_owned(), error })?;
        if config.mode == Mode::Ud {
            let port = provider.port(sessions::PORT).map_err(Error::of("query the port")).map_err(failed)?;
            config.buffer = config.buffer.min(port.mtu.bytes() as usize);
        }
        let config = config;
        tracing::debug!("{}: up to {} connections for each worker", provider.name(), config.max_connections);
        let listeners = match config.connect {
            Connect::Manager => Listeners::open(provider, listen).map_err(failed)?,
            Connect::Exchange => Listeners::by_exchange(provider, listen)
                .map_err(|error| OpenError::Exchange { device: provider.name().to_owned(), error })?,
        };
        let own = config.max_connections * usize::from(config.buffers);
        // Each has a slot in its ring, if there are any; and those of datagrams may all be with services while as many are posted.
        let (buffers, copies) = match (config.mode, config.srq) {
            (Mode::Send, None) => (own, 1),
            (Mode::Send, Some(srq)) => (srq as usize, 1),
            (Mode::Write, _) => (own, 2),
            (Mode::Ud, _) => (config.datagrams(&limits).1 as usize, 2),
        };
        // Some are with services while others are posted in their place.
        let bytes = workers * (LEAST + copies * buffers * (config.buffer + 64) * 5 / 4);
        let buffers = Arena::new(ArenaConfig { bytes, hugepages: true })?;
        let arena = Arena::new(ArenaConfig { bytes: workers * BESIDE, hugepages: true })?;
        let rests = (0..workers).map(|_| config.rests.then(|| IdleWait::new(provider)).transpose());
        let rests = rests.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let (senders, messages): (_, Vec<_>) = rests.iter().map(|rest| mailbox_of(rest.as_ref(), MAILBOX)).unzip();
        Ok(Adapter {
            config,
            provider: provider.clone(),
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
        let device = || self.provider.name().to_owned();
        let limits = self.provider.limits().map_err(Error::of("query the device"));
        if !limits.map_err(|error| OpenError::Verbs { device: device(), error })?.atomics.any() {
            return Err(OpenError::Unsupported { device: device(), error: Unsupported::NoAtomics });
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
        let Adapter { config, provider, listeners, arenas, published, counters: counted, workers: ways, .. } = self;
        let failed = |error| OpenError::Verbs { device: provider.name().to_owned(), error };
        let arenas = arenas.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (arena, own) = (arenas[0].clone(), arenas[1].clone());
        let limits = provider.limits().map_err(Error::of("query the device")).map_err(failed)?;
        let pd = Pd::new(&provider).map_err(failed)?;
        let mr = Mr::new(&pd, &arenas, limits.transport == TransportKind::Iwarp).map_err(failed)?;
        let mut exposed = Vec::new();
        for (memory, told) in published.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let access = Access { remote_read: true, ..Access::default() };
            let memory = ExposedMr::open(&pd, memory, access).map_err(failed)?;
            let _ = told.set(RemoteAddr { address: memory.address(), key: memory.rkey() });
            exposed.push(memory);
        }
        let mut counters = Vec::new();
        for (memory, told) in counted.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let memory = verbs::Counters::open(&pd, memory).map_err(failed)?;
            let _ = told.set(RemoteAddr { address: memory.address(), key: memory.rkey() });
            counters.push(memory);
        }
        let narrow = Rendezvous::of(&limits, provider.emulated_by()) == Rendezvous::MrPart;
        let bell = Waker::new().map_err(failed)?;
        let (commands, heard) = waking_mailbox(NEWS * config.max_connections * ways.len(), bell.wake());
        let (mut seats, mut workers) = (Vec::new(), Vec::new());
        for (worker, (messages, rest)) in ways.into_iter().enumerate() {
            let channel = rest.as_ref().map(IdleWait::channel);
            let most = config.qps_per_cq(&limits).min(config.qps()).max(1);
            let (cqs, datagrams) = match config.mode {
                Mode::Ud => {
                    let (sends, receives) = config.datagrams(&limits);
                    let cq = Cq::new(&provider, sends + receives, channel).map_err(failed)?;
                    let datagrams = sessions::datagrams(&config, &limits, &mr, &own, cq.handle());
                    (vec![cq], Some(datagrams.map_err(failed)?))
                }
                Mode::Send | Mode::Write => {
                    let cq = |_| Cq::new(&provider, most as u32 * config.completions(), channel);
                    let cqs = (0..config.qps().div_ceil(most)).map(cq).collect::<Result<Vec<_>, _>>();
                    (cqs.map_err(failed)?, None)
                }
            };
            let srq = match config.srq {
                Some(buffers) => {
                    let mut srq = Srq::new(&mr, buffers).map_err(failed)?;
                    srq.post((0..buffers).map_while(|_| own.alloc(config.buffer))).map_err(failed)?;
                    Some(srq)
                }
                None => None,
            };
            let count = if config.offer_from < usize::MAX { WINDOWS } else { 0 };
            let mws = (0..count).map(|_| Mw::new(&mr)).collect::<Result<_, _>>().map_err(failed)?;
            let (news, told) = mailbox_of(rest.as_ref(), NEWS * config.max_connections);
            let handles = cqs.iter().map(|cq| cq.handle().clone()).collect();
            let shares = srq.as_ref().map(|srq| srq.handle().clone());
            let datagram_seat = datagrams.as_ref().map(UdQpHandle::of);
            seats.push(WorkerHandle { cqs: handles, most, srq: shares, datagrams: datagram_seat, news });
            let parts = Parts {
                cqs,
                srq,
                datagrams,
                mr: mr.clone(),
                arena: arena.clone(),
                buffers: own.clone(),
                mws,
                narrow,
                atomics: limits.atomics.any(),
            };
            let lines = WorkerChannels { messages, news: told, commands: commands.clone(), rest };
            workers.push(WorkerParts { worker, config: config.clone(), parts, lines });
        }
        let mut connector = Connector::new(&config, listeners, &mr, &own, seats, heard, bell).map_err(failed)?;
        connector.begin(exposed, counters).map_err(failed)?;
        Ok((connector, workers))
    }
}

/// A mailbox of a worker, which is woken if it may sleep.
fn mailbox_of<C: Provider, T: Send>(rest: Option<&IdleWait<C>>, capacity: usize) -> (Sender<T>, Receiver<T>) {
    match rest {
        Some(rest) => waking_mailbox(capacity, rest.wake()),
        None => mailbox(capacity),
    }
}
