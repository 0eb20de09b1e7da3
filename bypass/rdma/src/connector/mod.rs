//! Connector: establishes connections for all workers, by the connection manager or the TCP exchange. Its system
//! calls run on a thread of their own.

mod cm;
mod draining;
mod events;
mod pool;
mod qp_info;
mod rebuild;
pub(crate) mod sessions;
pub(crate) mod steps;
mod tcp_exchange;

pub use tcp_exchange::ExchangeError;
#[cfg(test)]
pub(crate) use tcp_exchange::MAX_PENDING;

use crate::connection::conn_transport::ConnTransport;
use crate::provider::{DeviceLimits, Handle, Provider, TransportKind};
use crate::verbs::{
    CmId, CmNotification, CompChannel, Counters, CqHandle, Error, EventChannel, ExposedMr, Mr, Mw, Qp, QpConfig,
    SrqHandle,
};
use crate::waker::wait_readable;
use crate::wire::EndParams;
use crate::{Config, ConnCore, ConnectorEvent, ConnectorRequest};
use cm::Pending;
use linerate_bypass::{Arena, Waker};
use linerate_service::mailbox::{Receiver, Sender};
use linerate_service::time::{Clock, Duration, Instant};
use linerate_service::{ConnectError, Origin};
use pool::Pool;
use sessions::AhCache;
pub use sessions::UdQpHandle;
use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use tcp_exchange::Exchange;

/// Listen backlog.
const BACKLOG: u32 = 512;
/// Time-out of address and route resolution.
const RESOLVE_MS: u32 = 2000;
/// Retry interval while a worker's mailbox is full.
const MOMENT: Duration = Duration::from_millis(1);
/// Interval of checks for time-outs and the end of all workers.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Queues and event mailbox of a worker, for the connector.
pub struct WorkerHandle<C: Provider> {
    /// Completion queues of the worker's connections.
    pub cqs: Vec<CqHandle<C>>,
    /// Shared receive queue, if any.
    pub srq: Option<SrqHandle<C>>,
    /// UD queue pair, if connections are sessions.
    pub datagrams: Option<UdQpHandle>,
    /// Channel of the completion queues, if the worker sleeps.
    pub channel: Option<CompChannel<C>>,
    /// Events for the worker.
    pub events: Sender<ConnectorEvent<C>>,
}

/// Listening sockets or identifiers.
pub struct Listeners<C: Provider>(ListenerKind<C>);

enum ListenerKind<C: Provider> {
    Manager {
        // Dropped before their channel.
        ids: Vec<(CmId<C>, SocketAddr)>,
        channel: EventChannel<C>,
    },
    Exchange(Exchange<C>),
}

impl<C: Provider> Listeners<C> {
    /// Listens on `addresses` with the connection manager of the device.
    pub fn open(provider: &Arc<C>, addresses: &[SocketAddr]) -> Result<Self, Error> {
        let channel = EventChannel::new(provider)?;
        let mut ids = Vec::new();
        for address in addresses {
            let mut id = channel.id()?;
            let address = id.listen(*address, BACKLOG)?;
            ids.push((id, address));
        }
        Ok(Listeners(ListenerKind::Manager { ids, channel }))
    }

    /// Listens on `addresses` with the TCP exchange.
    pub fn by_exchange(provider: &Arc<C>, addresses: &[SocketAddr], config: &Config) -> Result<Self, ExchangeError> {
        Ok(Listeners(ListenerKind::Exchange(Exchange::open(provider, addresses, config)?)))
    }

    /// Returns the addresses, with the ports chosen for port 0.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match &self.0 {
            ListenerKind::Manager { ids, .. } => ids.iter().map(|(_, address)| *address).collect(),
            ListenerKind::Exchange(exchange) => exchange.addresses().collect(),
        }
    }

    /// Returns the next event of the connection manager.
    fn next_event(&mut self) -> Result<Option<CmNotification<C>>, Error> {
        match &mut self.0 {
            ListenerKind::Manager { channel, .. } => channel.next_event(),
            ListenerKind::Exchange(_) => Ok(None),
        }
    }
}

impl<C: Provider> AsFd for Listeners<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            ListenerKind::Manager { channel, .. } => channel.as_fd(),
            ListenerKind::Exchange(exchange) => exchange.as_fd(),
        }
    }
}

/// The device has failed or was removed, and all its connections have ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("RDMA device {device} has failed: {reason}; see `dmesg`. Restart once `linerate rdma info` lists the device")]
pub struct DeviceFailed {
    /// Device name.
    pub device: String,
    /// Report of the failure.
    pub reason: String,
}

/// Connector of a device.
pub struct Connector<C: Provider> {
    config: Config,
    qp: QpConfig,
    greeting: EndParams,
    is_iwarp: bool,
    limits: DeviceLimits,
    // Dropped before their channel.
    pending: HashMap<Handle, Pending<C>>,
    listeners: Listeners<C>,
    mr: Mr<C>,
    buffers: Arena,
    workers: Vec<WorkerHandle<C>>,
    /// Prepared queue pairs, by worker.
    pools: Vec<Pool<C>>,
    next: usize,
    commands: Receiver<ConnectorRequest<C>>,
    /// Signalled by `commands`.
    bell: Waker,
    /// Connections of workers, by queue pair number or session number.
    made: HashMap<u64, Made>,
    /// Address handles of session peers.
    ah_cache: AhCache<C>,
    /// Ports that are down, with the times of their reports.
    down_since: Vec<(u8, Instant)>,
    /// The device has failed or was removed.
    failure: Option<DeviceFailed>,
    /// The last turn failed, and the error was logged.
    has_failed: bool,
    refuses: bool,
    /// Events that workers had no room for.
    unsent: VecDeque<(usize, ConnectorEvent<C>)>,
    /// Memory that peers may access, kept while there are connections.
    exposed: Vec<ExposedMr<C>>,
    counters: Vec<Counters<C>>,
}

/// Port and GID of a connection's local end.
type Source = (u8, [u8; 16]);

struct Made {
    worker: usize,
    qp: Handle,
    /// Connection manager identifier, if it was established that way.
    id: Option<Handle>,
    /// Local port and GID.
    source: Source,
    /// The queue pair is in ERROR and has reached its last shared buffer.
    had_last: bool,
}

impl<C: Provider> Connector<C> {
    /// Creates a connector for `workers`. `buffers` is a part of the memory of `mr`. `commands` signals `bell`.
    pub fn new(
        config: &Config,
        listeners: Listeners<C>,
        mr: &Mr<C>,
        buffers: &Arena,
        workers: Vec<WorkerHandle<C>>,
        commands: Receiver<ConnectorRequest<C>>,
        bell: Waker,
    ) -> Result<Self, Error> {
        let provider = mr.pd().provider();
        let limits = provider.limits().map_err(Error::of("query the device"))?;
        let is_iwarp = limits.transport == TransportKind::Iwarp;
        let qp = config.qp();
        let worker = workers.first().filter(|_| config.inline > 0);
        let inline = worker.and_then(|WorkerHandle { cqs, srq, .. }| {
            let cq = cqs.first()?;
            let make = |qp: &QpConfig| Qp::new(mr, cq, srq.as_ref(), qp).map(|_| qp.inline);
            QpConfig { inline: config.inline, ..qp }.with_largest_inline(make).ok()
        });
        let greeting = EndParams {
            buffer: u32::try_from(config.message()).unwrap_or(u32::MAX),
            credits: config.buffers,
            takes_offers: config.offer_from < usize::MAX,
        };
        let pools = workers.iter().map(|_| Pool::default()).collect();
        Ok(Connector {
            config: config.clone(),
            qp: QpConfig { inline: inline.unwrap_or(0), ..qp },
            greeting,
            is_iwarp,
            limits,
            pending: HashMap::new(),
            listeners,
            mr: mr.clone(),
            buffers: buffers.clone(),
            workers,
            pools,
            next: 0,
            commands,
            bell,
            made: HashMap::new(),
            ah_cache: AhCache::default(),
            down_since: Vec::new(),
            failure: None,
            has_failed: false,
            refuses: false,
            unsent: VecDeque::new(),
            exposed: Vec::new(),
            counters: Vec::new(),
        })
    }

    /// Keeps memory that peers may access, and fills the pools of prepared queue pairs.
    pub fn begin(&mut self, exposed: Vec<ExposedMr<C>>, counters: Vec<Counters<C>>) -> Result<(), Error> {
        (self.exposed, self.counters) = (exposed, counters);
        self.fill_pools()
    }

    /// Establishes connections until `is_over` returns true, then processes the last requests of the workers. Calls
    /// `stop` if the device fails, after which no connections are possible.
    ///
    /// # Errors
    /// [`DeviceFailed`] if the device has failed.
    pub fn run(mut self, clock: &Clock, is_over: impl Fn() -> bool, stop: impl FnOnce()) -> Result<(), DeviceFailed> {
        let mut stop = Some(stop);
        loop {
            // Requests sent before the workers ended are still processed.
            let last = is_over();
            let turn = self.turn(clock.now());
            if self.failure.is_some()
                && let Some(stop) = stop.take()
            {
                stop();
            }
            match turn {
                Ok(true) => self.has_failed = false,
                Ok(false) if last => break,
                Ok(false) => self.rest(),
                Err(error) => {
                    if !self.has_failed {
                        tracing::error!("{}: {error}", self.mr.pd().provider().name());
                    }
                    self.has_failed = true;
                    if let Some(libc::EIO | libc::ENODEV | libc::ENXIO) = error.error.raw_os_error() {
                        self.device_failed(error.to_string());
                    }
                    if last {
                        break;
                    }
                    self.rest();
                }
            }
        }
        self.failure.map_or(Ok(()), Err)
    }

    #[cfg(test)]
    pub(crate) fn failure(&self) -> Option<&DeviceFailed> {
        self.failure.as_ref()
    }

    fn device_failed(&mut self, reason: impl Into<String>) {
        let device = self.mr.pd().provider().name().to_owned();
        if self.failure.is_none() {
            let failure = self.failure.insert(DeviceFailed { device, reason: reason.into() });
            tracing::error!("{failure}");
        }
    }

    /// Waits for an event or a request.
    fn rest(&mut self) {
        if self.commands.about_to_sleep() {
            // Retries and the end of the workers generate no event.
            let longest = if self.unsent.is_empty() { CHECK_INTERVAL } else { MOMENT };
            let rings = [self.listeners.as_fd(), self.mr.pd().async_fd(), self.bell.as_fd()];
            if let Err(error) = wait_readable(rings, longest) {
                tracing::debug!("{error}");
            }
            self.bell.quiet();
        }
        self.commands.awake();
    }

    /// Processes all events and requests. Returns true if there were any.
    pub fn turn(&mut self, now: Instant) -> Result<bool, Error> {
        let mut worked = false;
        while let Some(command) = self.commands.receive() {
            worked = true;
            match command {
                ConnectorRequest::Refuse => self.refuses = true,
                ConnectorRequest::Readdress(worker, number, path) => {
                    match self.ah_cache.renew(worker, self.mr.pd(), &path, now) {
                        Ok(ah) => self.notify(worker, ConnectorEvent::Readdressed(number, ah)),
                        Err(error) => tracing::debug!("{error}"),
                    }
                }
                ConnectorRequest::DeviceFailed(reason) => self.device_failed(reason),
                ConnectorRequest::Retire(worker, link) => self.retire(worker, link, now),
                ConnectorRequest::Drained(worker, qp) => self.rest_drained(worker, qp, now),
                ConnectorRequest::Polled(worker, qp) => self.polled(worker, qp),
                ConnectorRequest::Connect { worker, remote, token } => self.connect(worker, remote, token, now),
            }
        }
        // Precedes operations that fail after a device removal.
        worked |= self.leave_late(now);
        while let Some(event) = self.listeners.next_event()? {
            worked = true;
            match event {
                CmNotification::Request { id, event, .. } => self.request(id, &event, now),
                CmNotification::Event(event) => self.event(&event, now),
            }
        }
        worked |= self.exchange_turn(now)?;
        if self.refuses {
            self.close_exchange();
        }
        while let Some(event) = self.mr.pd().provider().async_event().map_err(Error::of("read the device's events"))? {
            worked = true;
            self.device_event(event, now);
        }
        self.end_if_down(now);
        worked |= self.give_up_late(now);
        worked |= self.take_up(now);
        // Only if nothing else is pending.
        worked = worked || self.prepare_one();
        self.send_events();
        Ok(worked)
    }

    /// Notifies a worker of a connection immediately, because the peer may send soon. Earlier events precede it: they
    /// may be about another connection with the same number.
    fn expect(&mut self, worker: usize, number: u64) -> Result<(), Error> {
        self.notify(worker, ConnectorEvent::Expected(number));
        self.send_events();
        let is_it = |(of, event): &(usize, ConnectorEvent<C>)| {
            *of == worker && matches!(event, ConnectorEvent::Expected(waiting) if *waiting == number)
        };
        if self.unsent.back().is_some_and(is_it) {
            self.unsent.pop_back();
            let error = ErrorKind::WouldBlock.into();
            return Err(Error { operation: "notify a worker of a connection", error });
        }
        Ok(())
    }

    /// Sends events to the workers, in order for each worker. Events that find a full mailbox stay in `unsent`.
    fn send_events(&mut self) {
        let mut full = Vec::new();
        for (worker, event) in std::mem::take(&mut self.unsent) {
            let unsent = if full.contains(&worker) { Err(event) } else { self.workers[worker].events.send(event) };
            if let Err(event) = unsent {
                full.push(worker);
                self.unsent.push_back((worker, event));
            }
        }
    }

    fn notify(&mut self, worker: usize, event: ConnectorEvent<C>) {
        self.unsent.push_back((worker, event));
    }

    /// Notifies a worker that a connection was not established.
    fn not_made(&mut self, worker: usize, number: Option<u64>, origin: Origin, error: ConnectError) {
        if let Some(number) = number {
            self.notify(worker, ConnectorEvent::Unexpected(number));
        }
        if let Origin::Connected(token) = origin {
            self.notify(worker, ConnectorEvent::Failed(token, error));
        }
    }

    /// Releases an ended connection of a worker.
    fn retire(&mut self, worker: usize, link: ConnCore<C>, now: Instant) {
        let ConnCore { transport, id, opened, mws, .. } = link;
        let had_last = self.made.remove(&transport.number()).is_some_and(|made| made.had_last);
        if let ListenerKind::Exchange(exchange) = &mut self.listeners.0 {
            exchange.end(transport.number());
        }
        if let Some(mut id) = id
            && let Err(error) = id.disconnect()
        {
            tracing::debug!("{error}");
        }
        drop(opened);
        match transport {
            ConnTransport::Rc(qp) if self.config.srq.is_some() => self.leave(worker, qp, had_last, now),
            ConnTransport::Rc(qp) => self.recycle(worker, qp),
            ConnTransport::Ud(peer) => drop(peer),
        }
        for _ in 0..mws {
            match Mw::new(&self.mr) {
                Ok(mw) => self.notify(worker, ConnectorEvent::Mw(mw)),
                Err(error) => tracing::warn!("{error}: more data is sent in messages instead of by rendezvous"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::rig::Setup;
    use crate::tests::setup::connecting::rig;
    use linerate_service::CloseReason;

    #[test]
    fn events_of_a_recycled_number_keep_their_order() {
        const NUMBER: u64 = 77;
        let mut rig = rig(&Setup::default(), &[], true);
        let connector = rig.ends[1].connector.as_mut().unwrap();
        // The queue pair of a failed connection is destroyed, and the next one has its number.
        connector.expect(0, NUMBER).unwrap();
        connector.notify(0, ConnectorEvent::Lost(NUMBER, CloseReason::Reset));
        connector.notify(0, ConnectorEvent::Unexpected(NUMBER));
        connector.expect(0, NUMBER).unwrap();
        connector.turn(Instant::ZERO).unwrap();
        rig.ends[1].worker.turn(Instant::ZERO);
        assert_eq!(rig.ends[1].worker.expected(), 1);
    }

    #[test]
    fn full_mailbox_refuses_further_connections_only() {
        let mut rig = rig(&Setup::default(), &[], true);
        let connector = rig.ends[1].connector.as_mut().unwrap();
        let fits = (0..1000).take_while(|number| connector.expect(0, *number).is_ok()).count();
        assert!((1..1000).contains(&fits) && connector.unsent.is_empty());
        rig.ends[1].worker.turn(Instant::ZERO);
        assert_eq!(rig.ends[1].worker.expected(), fits);
        assert!(rig.ends[1].connector.as_mut().unwrap().expect(0, 1000).is_ok());
    }
}
