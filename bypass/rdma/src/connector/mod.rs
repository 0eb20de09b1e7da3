//! Who makes connections, by the connection manager or an exchange over TCP, for all workers: what takes system calls, on a thread
//! of its own.

mod cm;
mod draining;
mod events;
mod pool;
mod qp_info;
pub(crate) mod sessions;
mod tcp_exchange;

pub use tcp_exchange::ExchangeError;
#[cfg(test)]
pub(crate) use tcp_exchange::MOST_ASKING;

use crate::connection::conn_transport::ConnTransport;
use crate::connection::wire::EndParams;
use crate::provider::{Handle, Provider, TransportKind};
use crate::verbs::{
    CmId, CmNotification, Counters, CqHandle, Error, EventChannel, ExposedMr, Mr, Mw, Qp, QpConfig, SrqHandle,
};
use crate::waker::{self, Waker};
use crate::{Config, ConnCore, ConnectorEvent, ConnectorRequest};
use cm::Pending;
use linerate_bypass::mailbox::{Receiver, Sender};
use linerate_bypass::time::{Clock, Duration, Instant};
use linerate_bypass::{Arena, ConnectError, Origin};
use pool::Pool;
pub use sessions::UdQpHandle;
use sessions::Ways;
use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use tcp_exchange::Exchange;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 512;
/// How long an address or a route is looked for.
const RESOLVE_MS: u32 = 2000;
/// How often the device asks again when there is no answer: the most there can be.
const RETRIES: u8 = 7;
/// How long what workers had no room for may wait.
const MOMENT: Duration = Duration::from_millis(1);
/// How often it looks whether there is something to be given up, or all is over.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// What the connector has of a worker.
pub struct WorkerHandle<C: Provider> {
    /// Where completions of the worker's connections go.
    pub cqs: Vec<CqHandle<C>>,
    /// Queue pairs whose completions each of them has room for.
    pub most: usize,
    /// The buffers that they share, if they do.
    pub srq: Option<SrqHandle<C>>,
    /// The queue pair by which its sessions go, if it has such.
    pub datagrams: Option<UdQpHandle>,
    /// The way to it.
    pub news: Sender<ConnectorEvent<C>>,
}

/// Where connections are asked for.
pub struct Listeners<C: Provider>(Way<C>);

enum Way<C: Provider> {
    Manager {
        // Identifiers go before their channel.
        ids: Vec<(CmId<C>, SocketAddr)>,
        channel: EventChannel<C>,
    },
    Exchange(Exchange<C>),
}

impl<C: Provider> Listeners<C> {
    /// Listens at all `addresses` of the device behind `provider`.
    pub fn open(provider: &Arc<C>, addresses: &[SocketAddr]) -> Result<Self, Error> {
        let channel = EventChannel::new(provider)?;
        let mut ids = Vec::new();
        for address in addresses {
            let mut id = channel.id()?;
            let address = id.listen(*address, BACKLOG)?;
            ids.push((id, address));
        }
        Ok(Listeners(Way::Manager { ids, channel }))
    }

    /// As [`open`](Self::open), for connections that are made without the connection manager, by an exchange over TCP.
    pub fn by_exchange(provider: &Arc<C>, addresses: &[SocketAddr]) -> Result<Self, ExchangeError> {
        Ok(Listeners(Way::Exchange(Exchange::open(provider, addresses)?)))
    }

    /// The addresses, with the ports that were found for port 0.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match &self.0 {
            Way::Manager { ids, .. } => ids.iter().map(|(_, address)| *address).collect(),
            Way::Exchange(exchange) => exchange.addresses().collect(),
        }
    }

    /// What the connection manager says.
    fn next_event(&mut self) -> Result<Option<CmNotification<C>>, Error> {
        match &mut self.0 {
            Way::Manager { channel, .. } => channel.next_event(),
            Way::Exchange(_) => Ok(None),
        }
    }
}

impl<C: Provider> AsFd for Listeners<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Way::Manager { channel, .. } => channel.as_fd(),
            Way::Exchange(exchange) => exchange.as_fd(),
        }
    }
}

/// See the file's head.
pub struct Connector<C: Provider> {
    config: Config,
    qp: QpConfig,
    greeting: EndParams,
    is_iwarp: bool,
    reads: (u8, u8),
    ports: u8,
    // Identifiers go before their channel.
    pending: HashMap<Handle, Pending<C>>,
    listeners: Listeners<C>,
    mr: Mr<C>,
    buffers: Arena,
    workers: Vec<WorkerHandle<C>>,
    /// Queue pairs that are prepared for connections to come, by worker.
    pools: Vec<Pool<C>>,
    /// Who gets the next connection.
    next: usize,
    commands: Receiver<ConnectorRequest<C>>,
    /// What they ring.
    bell: Waker,
    /// Connections that workers have, by the number of what carries them.
    made: HashMap<u64, Made>,
    /// The ways to sessions' peers.
    ways: Ways<C>,
    /// When a port of the device was last said to be down, until one is said to be active.
    down_since: Option<Instant>,
    /// A turn has failed, and that has been said.
    has_failed: bool,
    /// Nobody is accepted any more.
    refuses: bool,
    /// What workers had no room for.
    unsent: VecDeque<(usize, ConnectorEvent<C>)>,
    /// What peers may reach for as long as there are any.
    exposed: Vec<ExposedMr<C>>,
    counters: Vec<Counters<C>>,
}

/// A connection that a worker has.
struct Made {
    worker: usize,
    qp: Handle,
    /// The connection manager's name for it, if that made it.
    id: Option<Handle>,
    local: IpAddr,
    /// Whether its queue pair is in the state of error, and has had its last buffer of a shared queue.
    had_last: bool,
}

/// What becomes of it.
enum Step<C: Provider> {
    Wait,
    Refused(ConnectError),
    Ready(ConnTransport<C>, EndParams),
}

impl<C: Provider> Connector<C> {
    /// One for `workers`, on memory of `mr`, of which `buffers` is a part. `commands` ring `bell`.
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
        let inline = workers.first().map_or(0, |seat| inline(mr, seat, &qp, config.inline));
        let greeting = EndParams {
            buffer: u32::try_from(config.message()).unwrap_or(u32::MAX),
            credits: config.buffers,
            takes_offers: config.offer_from < usize::MAX,
        };
        let pools = workers.iter().map(|_| Pool::default()).collect();
        Ok(Connector {
            config: config.clone(),
            qp: QpConfig { inline, ..qp },
            greeting,
            is_iwarp,
            reads: (limits.responder_resources, limits.initiator_depth),
            ports: limits.ports,
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
            ways: Ways::default(),
            down_since: None,
            has_failed: false,
            refuses: false,
            unsent: VecDeque::new(),
            exposed: Vec::new(),
            counters: Vec::new(),
        })
    }

    /// Keeps memory open that peers may reach, and prepares queue pairs if any are to be.
    pub fn begin(&mut self, exposed: Vec<ExposedMr<C>>, counters: Vec<Counters<C>>) -> Result<(), Error> {
        (self.exposed, self.counters) = (exposed, counters);
        self.fill_pools()
    }

    /// Makes connections until `is_over` says so, and then ends those that workers have given up.
    pub fn run(mut self, clock: &Clock, is_over: impl Fn() -> bool) {
        loop {
            // What workers said before they ended is heard.
            let last = is_over();
            match self.turn(clock.now()) {
                Ok(true) => self.has_failed = false,
                Ok(false) if last => return,
                Ok(false) => self.rest(),
                Err(error) => {
                    if !self.has_failed {
                        tracing::error!("{}: {error}", self.mr.pd().provider().name());
                    }
                    self.has_failed = true;
                    if last {
                        return;
                    }
                    self.rest();
                }
            }
        }
    }

    /// Waits until something has happened to a connection or the device, or workers ask for something.
    fn rest(&mut self) {
        if self.commands.about_to_sleep() {
            // What is to be tried again, and whether it is all over, does not ring.
            let longest = if self.unsent.is_empty() { LOOK_AROUND } else { MOMENT };
            let rings = [self.listeners.as_fd(), self.mr.pd().async_fd(), self.bell.as_fd()];
            if let Err(error) = waker::wait_readable(rings, longest) {
                tracing::debug!("{error}");
            }
            self.bell.quiet();
        }
        self.commands.awake();
    }

    /// Does all there is to be done at `now`. Returns whether there was anything.
    pub fn turn(&mut self, now: Instant) -> Result<bool, Error> {
        let mut worked = false;
        while let Some(command) = self.commands.receive() {
            worked = true;
            match command {
                ConnectorRequest::Refuse => self.refuses = true,
                ConnectorRequest::Bury(worker, link) => self.bury(worker, link, now),
                ConnectorRequest::Drained(worker, qp) => self.come_back(worker, qp, now),
                ConnectorRequest::Polled(worker, qp) => self.polled(worker, qp),
                ConnectorRequest::Connect { worker, remote, token } => self.connect(worker, remote, token, now),
            }
        }
        // Before what a device that is gone answers with an error.
        worked |= self.leave_late(now);
        while let Some(news) = self.listeners.next_event()? {
            worked = true;
            match news {
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
        if self.down_since.is_some_and(|since| since + self.config.down_timeout <= now) {
            self.down_since = None;
            self.end_if_down();
        }
        worked |= self.give_up_late(now);
        worked |= self.take_up(now);
        // Where nothing waits.
        worked = worked || self.prepare_one();
        while let Some((worker, news)) = self.unsent.pop_front() {
            if let Err(news) = self.workers[worker].news.send(news) {
                self.unsent.push_front((worker, news));
                break;
            }
        }
        Ok(worked)
    }

    /// Tells a worker of a connection, at once: soon the peer may send.
    fn expect(&mut self, worker: usize, number: u64) -> Result<(), Error> {
        let full = |_| Error { what: "tell a worker of a connection", error: ErrorKind::WouldBlock.into() };
        self.workers[worker].news.send(ConnectorEvent::Expected(number)).map_err(full)
    }

    fn tell(&mut self, worker: usize, news: ConnectorEvent<C>) {
        self.unsent.push_back((worker, news));
    }

    /// A worker is told that a connection has not been made, the one with this number if it knows of it.
    fn not_made(&mut self, worker: usize, number: Option<u64>, origin: Origin, error: ConnectError) {
        if let Some(number) = number {
            self.tell(worker, ConnectorEvent::Unexpected(number));
        }
        if let Origin::Connected(token) = origin {
            self.tell(worker, ConnectorEvent::Failed(token, error));
        }
    }

    /// A link of a worker's is over.
    fn bury(&mut self, worker: usize, link: ConnCore<C>, now: Instant) {
        let ConnCore { transport, id, opened, mws, .. } = link;
        let had_last = self.made.remove(&transport.number()).is_some_and(|made| made.had_last);
        if let Way::Exchange(exchange) = &mut self.listeners.0 {
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
            ConnTransport::Rc(qp) => self.retire(worker, qp),
            ConnTransport::Ud(peer) => drop(peer),
        }
        for _ in 0..mws {
            match Mw::new(&self.mr) {
                Ok(mw) => self.tell(worker, ConnectorEvent::Mw(mw)),
                Err(error) => tracing::warn!("{error}: what would go through it goes in messages"),
            }
        }
    }
}

/// The most bytes up to `wanted` that a queue pair sends inline: what devices do not tell but by refusing.
fn inline<C: Provider>(mr: &Mr<C>, seat: &WorkerHandle<C>, qp: &QpConfig, wanted: u32) -> u32 {
    let mut inline = wanted;
    while inline > 0 {
        let config = QpConfig { inline, ..*qp };
        let Some(cq) = seat.cqs.first() else { break };
        if Qp::new(mr, cq, seat.srq.as_ref(), &config).is_ok() {
            break;
        }
        inline /= 2;
    }
    inline
}
