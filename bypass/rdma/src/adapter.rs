//! Adapter: opens a device for a number of workers and a connector.

use crate::config::{Connect, Mode, Unsupported};
use crate::connector::{Connector, ExchangeError, Listeners, UdQpHandle, WorkerHandle};
use crate::provider::{Access, DeviceLimits, Provider, TransportKind};
use crate::queues::Queues;
use crate::verbs::{self, Error, ExposedMr, Mr, Mw, Pd};
use crate::waker::{IdleWait, waker};
use crate::{Config, Parts, Rendezvous, WorkerChannels};
use linerate_bypass::arena::{ArenaConfig, ArenaError};
use linerate_bypass::{Arena, Published, RemoteCounters};
use linerate_service::mailbox::{Receiver, Sender, mailbox, waking_mailbox};
use linerate_service::{AppSender, RemoteAddr, RemoteAddrCell};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Capacity of a worker's message mailbox.
const MAILBOX: usize = 4096;
/// Events per connection that the connector may send before the worker processes them.
const EVENTS_PER_CONNECTION: usize = 5;
/// Memory windows per worker.
const WINDOWS: usize = 64;
/// Bytes of send memory per worker.
const BESIDE: usize = 32 << 20;
/// Bytes per worker for the responses of READs over iWARP.
const SINK: usize = 8 << 20;
/// Bytes of buffer memory per worker, in addition to the connections' buffers.
const LEAST: usize = 1 << 20;

/// Failure to open a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum OpenError {
    #[error("{device}: {error}")]
    Verbs { device: String, error: Error },
    #[error("{device}: {error}")]
    Unsupported { device: String, error: Unsupported },
    #[error("{device}: {error}")]
    Exchange { device: String, error: ExchangeError },
    #[error(transparent)]
    Arena(#[from] ArenaError),
}

/// Device that listens for connections, before its workers run.
pub struct Adapter<C: Provider> {
    config: Config,
    limits: DeviceLimits,
    provider: Arc<C>,
    listeners: Listeners<C>,
    /// All memory to register. Entry 0 is for data to send, entry 1 for receive buffers.
    arenas: Mutex<Vec<Arena>>,
    /// Memory that peers may read, with the cells that receive its address.
    published: Mutex<Vec<(Arc<Published>, RemoteAddrCell)>>,
    /// Counters that peers may update, with the cells that receive their addresses.
    counters: Mutex<Vec<(Arc<RemoteCounters>, RemoteAddrCell)>>,
    /// Wake-up sources of each worker.
    rests: Vec<Option<IdleWait<C>>>,
}

/// Parts of one worker, to be assembled on its thread.
pub struct WorkerParts<C: Provider, M> {
    /// Worker number, counted from 0.
    pub worker: usize,
    /// Configuration, reduced to the limits of the device.
    pub config: Config,
    /// Verbs objects and memory.
    pub parts: Parts<C>,
    /// Channels to the connector and to other workers.
    pub channels: WorkerChannels<C, M>,
}

/// Connector and workers of a device.
pub struct Started<C: Provider, M> {
    /// Connector, which runs on its own thread.
    pub connector: Connector<C>,
    /// Parts of each worker.
    pub workers: Vec<WorkerParts<C, M>>,
    /// Sender of messages to workers and their connections.
    pub app_sender: AppSender<M>,
}

impl<C: Provider> Adapter<C> {
    /// Opens the device for `workers` workers and listens on the addresses `listen`.
    pub fn open(provider: &Arc<C>, config: &Config, listen: &[SocketAddr], workers: usize) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Verbs { device: provider.name().to_owned(), error };
        let limits = usable_limits(provider).map_err(failed)?;
        let mut config = config
            .within(&limits)
            .map_err(|error| OpenError::Unsupported { device: provider.name().to_owned(), error })?;
        if config.mode == Mode::Ud {
            let port = provider.port(config.first_port()).map_err(Error::of("query the port")).map_err(failed)?;
            config.buffer = config.buffer.min(port.mtu.bytes() as usize);
        }
        let config = config;
        let Config { max_connections, sends, .. } = config;
        let cqs = config.qps_of_cqs(&limits);
        tracing::debug!(
            "{}: up to {max_connections} connections per worker, with {sends} requests each, in completion queues for \
             {cqs:?}",
            provider.name()
        );
        let listeners = match config.connect {
            Connect::Manager => Listeners::open(provider, listen).map_err(failed)?,
            Connect::Exchange => Listeners::by_exchange(provider, listen, &config)
                .map_err(|error| OpenError::Exchange { device: provider.name().to_owned(), error })?,
        };
        let own = config.max_connections * usize::from(config.buffers);
        // In UD mode, services may hold all buffers while the same number is posted.
        let (buffers, copies) = match (config.mode, config.srq) {
            (Mode::Send, None) => (own, 1),
            (Mode::Send, Some(srq)) => (srq as usize, 1),
            (Mode::Ud, _) => (config.datagrams(&limits).1 as usize, 2),
        };
        // A quarter more, because services hold buffers while replacements are posted.
        let bytes = workers * (LEAST + copies * buffers * (config.buffer + 64) * 5 / 4);
        let buffers = Arena::new(ArenaConfig { bytes, hugepages: true })?;
        let arena = Arena::new(ArenaConfig { bytes: workers * BESIDE, hugepages: true })?;
        let rests = (0..workers).map(|_| config.rests.then(|| IdleWait::new(provider)).transpose());
        let rests = rests.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        Ok(Adapter {
            config,
            limits,
            provider: provider.clone(),
            listeners,
            arenas: Mutex::new(vec![arena, buffers]),
            published: Mutex::default(),
            counters: Mutex::default(),
            rests,
        })
    }

    /// Returns the addresses listened on, with the ports chosen for port 0.
    pub fn listening(&self) -> Vec<SocketAddr> {
        self.listeners.addresses()
    }

    /// Allocates `bytes` of memory that the device will be able to access.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ArenaError> {
        let arena = Arena::new(ArenaConfig { bytes, hugepages: true })?;
        self.arenas.lock().unwrap_or_else(PoisonError::into_inner).push(arena.clone());
        Ok(arena)
    }

    /// Grants all connected peers atomic operations, and nothing else, on `memory`. The returned cell receives the
    /// address when the workers are created.
    pub fn count(&self, memory: Arc<RemoteCounters>) -> Result<RemoteAddrCell, OpenError> {
        let device = || self.provider.name().to_owned();
        if !self.limits.atomics.any() {
            return Err(OpenError::Unsupported { device: device(), error: Unsupported::NoAtomics });
        }
        let cell = RemoteAddrCell::default();
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).push((memory, Arc::clone(&cell)));
        Ok(cell)
    }

    /// Grants all connected peers read access to `memory`. The returned cell receives the address when the workers
    /// are created.
    pub fn publish(&self, memory: Arc<Published>) -> RemoteAddrCell {
        let cell = RemoteAddrCell::default();
        self.published.lock().unwrap_or_else(PoisonError::into_inner).push((memory, Arc::clone(&cell)));
        cell
    }

    /// Creates the connector, and the parts of each worker for services with message type `M`.
    pub fn start<M: Send + 'static>(self) -> Result<Started<C, M>, OpenError> {
        let Adapter { config, limits, provider, listeners, arenas, published, counters: counted, rests } = self;
        let failed = |error| OpenError::Verbs { device: provider.name().to_owned(), error };
        let arenas = arenas.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (arena, own) = (arenas[0].clone(), arenas[1].clone());
        let pd = Pd::new(&provider).map_err(failed)?;
        let sink = (limits.transport == TransportKind::Iwarp)
            .then(|| Arena::new(ArenaConfig { bytes: rests.len() * SINK, hugepages: true }))
            .transpose()?;
        let mr = Mr::new(&pd, &arenas, sink).map_err(failed)?;
        let mut exposed = Vec::new();
        for (memory, remote) in published.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let access = Access { remote_read: true, ..Access::default() };
            let memory = ExposedMr::open(&pd, memory, access).map_err(failed)?;
            let _ = remote.set(RemoteAddr { address: memory.address(), key: memory.rkey() });
            exposed.push(memory);
        }
        let mut counters = Vec::new();
        for (memory, remote) in counted.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let memory = verbs::Counters::open(&pd, memory).map_err(failed)?;
            let _ = remote.set(RemoteAddr { address: memory.address(), key: memory.rkey() });
            counters.push(memory);
        }
        let narrow = Rendezvous::of(&limits, provider.emulated_by()) == Rendezvous::RegisteredWindows;
        let bell = waker().map_err(failed)?;
        let (commands, requests) =
            waking_mailbox(EVENTS_PER_CONNECTION * config.max_connections * rests.len(), bell.wake());
        let (mut handles, mut workers, mut senders) = (Vec::new(), Vec::new(), Vec::new());
        for (worker, rest) in rests.into_iter().enumerate() {
            let (sender, messages) = mailbox_of(rest.as_ref(), MAILBOX);
            senders.push(sender);
            let channel = rest.as_ref().map(IdleWait::channel);
            let Queues { cqs, srq, datagrams } =
                Queues::new(&config, &limits, &mr, &own, channel, worker).map_err(failed)?;
            let count = if config.offer_from < usize::MAX { WINDOWS } else { 0 };
            let mws = (0..count).map(|_| Mw::new(&mr)).collect::<Result<_, _>>().map_err(failed)?;
            let (events, received) = mailbox_of(rest.as_ref(), EVENTS_PER_CONNECTION * config.max_connections);
            let cq_handles = cqs.iter().map(|cq| cq.handle().clone()).collect();
            let shares = srq.as_ref().map(|srq| srq.handle().clone());
            let datagram_handle = datagrams.as_ref().map(UdQpHandle::of);
            handles.push(WorkerHandle {
                cqs: cq_handles,
                srq: shares,
                datagrams: datagram_handle,
                channel: channel.cloned(),
                events,
            });
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
            let channels = WorkerChannels { messages, events: received, commands: commands.clone(), rest };
            workers.push(WorkerParts { worker, config: config.clone(), parts, channels });
        }
        let mut connector = Connector::new(&config, listeners, &mr, &own, handles, requests, bell).map_err(failed)?;
        connector.begin(exposed, counters).map_err(failed)?;
        Ok(Started { connector, workers, app_sender: AppSender::new(senders) })
    }
}

/// Returns the limits of a device, without memory windows if they are announced but cannot be allocated.
fn usable_limits<C: Provider>(provider: &Arc<C>) -> Result<DeviceLimits, Error> {
    let mut limits = provider.limits().map_err(Error::of("query the device"))?;
    if limits.mw_type_2
        && let Some(error) = Pd::new(provider)?.window_error()
    {
        tracing::warn!("{} announces memory windows, but {error}: long data is sent in messages", provider.name());
        limits.mw_type_2 = false;
    }
    Ok(limits)
}

/// Creates a mailbox that wakes its worker if the worker may sleep.
fn mailbox_of<C: Provider, T: Send>(rest: Option<&IdleWait<C>>, capacity: usize) -> (Sender<T>, Receiver<T>) {
    match rest {
        Some(rest) => waking_mailbox(capacity, rest.wake()),
        None => mailbox(capacity),
    }
}
