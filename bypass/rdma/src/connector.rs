//! Who makes connections, by the connection manager or an exchange over TCP, for all workers: what takes system calls, on a thread
//! of its own.

mod exchange;
mod record;

pub use exchange::ExchangeError;
#[cfg(test)]
pub(crate) use exchange::MOST_ASKING;

use crate::calls::{AsyncEvent, Calls, CmEvent, CmEventKind, CmParameters, Handle, PortState, Private, TransportKind};
use crate::rest::{self, Bell};
use crate::verbs::{
    CmId, CmNews, Error, EventChannel, Init, New, PairConfig, QueueHandle, QueuePair, ReadyToSend, Region,
    SharedHandle, Window,
};
use crate::wire::Greeting;
use crate::{Command, Config, Link, News};
use exchange::Exchange;
use linerate_bypass::mailbox::{Receiver, Sender};
use linerate_bypass::time::{Clock, Duration, Instant};
use linerate_bypass::{Arena, CloseReason, ConnectError, Origin};
use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

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
pub struct Seat<C: Calls> {
    /// Where completions of the worker's connections go.
    pub queues: Vec<QueueHandle<C>>,
    /// Connections whose completions each of them has room for.
    pub most: usize,
    /// The buffers that they share, if they do.
    pub shared: Option<SharedHandle<C>>,
    /// The way to it.
    pub news: Sender<News<C>>,
}

/// Where connections are asked for.
pub struct Listeners<C: Calls>(Way<C>);

enum Way<C: Calls> {
    Manager {
        // Identifiers go before their channel.
        ids: Vec<(CmId<C>, SocketAddr)>,
        channel: EventChannel<C>,
    },
    Exchange(Exchange<C>),
}

impl<C: Calls> Listeners<C> {
    /// Listens at all `addresses` of the device behind `calls`.
    pub fn open(calls: &Arc<C>, addresses: &[SocketAddr]) -> Result<Self, Error> {
        let channel = EventChannel::new(calls)?;
        let mut ids = Vec::new();
        for address in addresses {
            let mut id = channel.id()?;
            let address = id.listen(*address, BACKLOG)?;
            ids.push((id, address));
        }
        Ok(Listeners(Way::Manager { ids, channel }))
    }

    /// As [`open`](Self::open), for connections that are made without the connection manager, by an exchange over TCP.
    pub fn by_exchange(calls: &Arc<C>, addresses: &[SocketAddr]) -> Result<Self, ExchangeError> {
        Ok(Listeners(Way::Exchange(Exchange::open(calls, addresses)?)))
    }

    /// The addresses, with the ports that were found for port 0.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match &self.0 {
            Way::Manager { ids, .. } => ids.iter().map(|(_, address)| *address).collect(),
            Way::Exchange(exchange) => exchange.addresses().collect(),
        }
    }

    /// What the connection manager says.
    fn next_event(&mut self) -> Result<Option<CmNews<C>>, Error> {
        match &mut self.0 {
            Way::Manager { channel, .. } => channel.next_event(),
            Way::Exchange(_) => Ok(None),
        }
    }
}

impl<C: Calls> AsFd for Listeners<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Way::Manager { channel, .. } => channel.as_fd(),
            Way::Exchange(exchange) => exchange.as_fd(),
        }
    }
}

/// See the file's head.
pub struct Connector<C: Calls> {
    config: Config,
    pair: PairConfig,
    greeting: Greeting,
    is_iwarp: bool,
    reads: (u8, u8),
    ports: u8,
    // Identifiers go before their channel.
    pending: HashMap<Handle, Pending<C>>,
    listeners: Listeners<C>,
    region: Region<C>,
    buffers: Arena,
    workers: Vec<Seat<C>>,
    /// Who gets the next connection.
    next: usize,
    commands: Receiver<Command<C>>,
    /// What they ring.
    bell: Bell,
    /// Connections that workers have, by the number of their queue pair.
    made: HashMap<u32, Made>,
    /// When a port of the device was last said to be down, until one is said to be active.
    down_since: Option<Instant>,
    /// A turn has failed, and that has been said.
    has_failed: bool,
    /// What workers had no room for.
    unsent: VecDeque<(usize, News<C>)>,
}

/// A connection that is being made.
struct Pending<C: Calls> {
    worker: usize,
    origin: Origin,
    /// Its queue pair's, once the worker has been told of it.
    number: Option<u32>,
    pair: Option<QueuePair<C, Init>>,
    ready: Option<QueuePair<C, ReadyToSend>>,
    /// What the peer said of itself, who asked for it.
    theirs: Option<Greeting>,
    until: Instant,
    id: CmId<C>,
}

/// A connection that a worker has.
struct Made {
    worker: usize,
    pair: Handle,
    /// The connection manager's name for it, if that made it.
    id: Option<Handle>,
    local: IpAddr,
}

/// What becomes of it.
enum Step<C: Calls> {
    Wait,
    Refused(ConnectError),
    Ready(QueuePair<C, ReadyToSend>, Greeting),
}

impl<C: Calls> Connector<C> {
    /// One for `workers`, on memory of `region`, of which `buffers` is a part. `commands` ring `bell`.
    pub fn new(
        config: &Config,
        listeners: Listeners<C>,
        region: &Region<C>,
        buffers: &Arena,
        workers: Vec<Seat<C>>,
        commands: Receiver<Command<C>>,
        bell: Bell,
    ) -> Result<Self, Error> {
        let calls = region.domain().calls();
        let limits = calls.limits().map_err(Error::of("query the device"))?;
        let is_iwarp = limits.transport == TransportKind::Iwarp;
        let pair = PairConfig {
            sends: config.sends.into(),
            receives: config.buffers.into(),
            inline: 0,
            signal_every: config.signal_every,
            list: config.list,
        };
        let inline = workers.first().map_or(0, |seat| inline(region, seat, &pair, config.inline));
        let greeting = Greeting {
            buffer: u32::try_from(config.buffer).unwrap_or(u32::MAX),
            credits: config.buffers,
            takes_offers: limits.windows_type_2 && !is_iwarp && config.offer_from < usize::MAX,
        };
        Ok(Connector {
            config: config.clone(),
            pair: PairConfig { inline, ..pair },
            greeting,
            is_iwarp,
            reads: (limits.reads_answered, limits.reads_asked),
            ports: limits.ports,
            pending: HashMap::new(),
            listeners,
            region: region.clone(),
            buffers: buffers.clone(),
            workers,
            next: 0,
            commands,
            bell,
            made: HashMap::new(),
            down_since: None,
            has_failed: false,
            unsent: VecDeque::new(),
        })
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
                        tracing::error!("{}: {error}", self.region.domain().calls().name());
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
            let rings = [self.listeners.as_fd(), self.region.domain().async_fd(), self.bell.as_fd()];
            if let Err(error) = rest::wait(rings, longest) {
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
                Command::Bury(worker, link) => self.bury(worker, link),
                Command::Connect { worker, remote, token } => self.connect(worker, remote, token, now),
            }
        }
        while let Some(news) = self.listeners.next_event()? {
            worked = true;
            match news {
                CmNews::Request { id, event, .. } => self.request(id, &event, now),
                CmNews::Event(event) => self.event(&event),
            }
        }
        worked |= self.exchange_turn(now)?;
        while let Some(event) =
            self.region.domain().calls().async_event().map_err(Error::of("read the device's events"))?
        {
            worked = true;
            self.device_event(event, now);
        }
        if self.down_since.is_some_and(|since| since + self.config.down_timeout <= now) {
            self.down_since = None;
            self.end_if_down();
        }
        let late: Vec<Handle> =
            self.pending.iter().filter(|(_, pending)| pending.until <= now).map(|(id, _)| *id).collect();
        for id in late {
            worked = true;
            if let Some(pending) = self.pending.remove(&id) {
                self.refused(&pending, ConnectError::TimedOut);
            }
        }
        while let Some((worker, news)) = self.unsent.pop_front() {
            if let Err(news) = self.workers[worker].news.send(news) {
                self.unsent.push_front((worker, news));
                break;
            }
        }
        Ok(worked)
    }

    /// Tells a worker of a queue pair, at once: soon the peer may send.
    fn expect(&mut self, worker: usize, pair: u32) -> Result<(), Error> {
        let full = |_| Error { what: "tell a worker of a connection", error: ErrorKind::WouldBlock.into() };
        self.workers[worker].news.send(News::Expected(pair)).map_err(full)
    }

    fn tell(&mut self, worker: usize, news: News<C>) {
        self.unsent.push_back((worker, news));
    }

    /// Somebody asks for a connection.
    fn request(&mut self, id: CmId<C>, event: &CmEvent, now: Instant) {
        let refusal = |why: &'static [u8], id: CmId<C>| {
            if let Err(error) = id.reject(why) {
                tracing::debug!("{error}");
            }
        };
        let Ok(theirs) = Greeting::read(event.private.bytes()) else {
            return refusal(b"this is linerate, and you are not", id);
        };
        if !id.is_here() {
            return refusal(b"not on this device", id);
        }
        let worker = self.next;
        self.next = (worker + 1) % self.workers.len();
        if self.is_full(worker) {
            return refusal(b"too many connections", id);
        }
        match self.accept(id, worker, theirs, event, now) {
            Ok(()) => {}
            Err(error) => tracing::warn!("a connection is not accepted: {error}"),
        }
    }

    fn accept(
        &mut self,
        mut id: CmId<C>,
        worker: usize,
        theirs: Greeting,
        event: &CmEvent,
        now: Instant,
    ) -> Result<(), Error> {
        let pair = self.make_pair(worker)?.init_by(&id)?;
        let pair = self.with_buffers(pair)?;
        let parameters = self.parameters(pair.number(), event.reads_asked, event.reads_answered);
        let (pair, ready) = if self.is_iwarp {
            (Some(pair), None)
        } else {
            (None, Some(pair.ready_to_receive_by(&id)?.ready_to_send_by(&id)?))
        };
        self.expect(worker, parameters.pair)?;
        if let Err(error) = id.accept(&parameters) {
            self.tell(worker, News::Unexpected(parameters.pair));
            return Err(error);
        }
        let until = now + self.config.connect_timeout;
        let number = Some(parameters.pair);
        let pending =
            Pending { worker, origin: Origin::Accepted, number, pair, ready, theirs: Some(theirs), until, id };
        self.pending.insert(pending.id.handle(), pending);
        Ok(())
    }

    /// A worker asks for a connection.
    fn connect(&mut self, worker: usize, remote: SocketAddr, token: u64, now: Instant) {
        let Way::Manager { channel, .. } = &self.listeners.0 else {
            return self.exchange_connect(worker, remote, token, now);
        };
        let begun = channel.id().and_then(|mut id| id.resolve_address(remote, RESOLVE_MS).map(|()| id));
        match begun {
            Ok(id) => {
                let (until, origin) = (now + self.config.connect_timeout, Origin::Connected(token));
                let pending =
                    Pending { worker, origin, number: None, pair: None, ready: None, theirs: None, until, id };
                self.pending.insert(pending.id.handle(), pending);
            }
            Err(error) => {
                tracing::debug!("{remote}: {error}");
                self.tell(worker, News::Failed(token, ConnectError::Unreachable));
            }
        }
    }

    /// Something has happened to an identifier of ours.
    fn event(&mut self, event: &CmEvent) {
        use CmEventKind::*;
        let Some(mut pending) = self.pending.remove(&event.id) else {
            if let Disconnected | Removed | TimeWaitExit | AddressChanged = event.kind {
                self.lose(CloseReason::Reset, |made| made.id == Some(event.id));
            }
            return;
        };
        match self.step(&mut pending, event) {
            Ok(Step::Wait) => _ = self.pending.insert(event.id, pending),
            Ok(Step::Refused(why)) => self.refused(&pending, why),
            Ok(Step::Ready(pair, theirs)) => self.hand_over(pending, pair, theirs),
            Err(error) => {
                tracing::warn!("a connection is not made: {error}");
                self.refused(&pending, ConnectError::Unreachable);
            }
        }
    }

    /// What an event leads to for a connection that is being made.
    fn step(&mut self, pending: &mut Pending<C>, event: &CmEvent) -> Result<Step<C>, Error> {
        use CmEventKind::*;
        let greeting = || Greeting::read(event.private.bytes());
        let id = &mut pending.id;
        match event.kind {
            AddressResolved if !id.is_here() => {
                tracing::warn!("there is no way to the peer by {}", self.region.domain().calls().name());
                return Ok(Step::Refused(ConnectError::Unreachable));
            }
            AddressResolved => id.resolve_route(RESOLVE_MS)?,
            RouteResolved => {
                let pair = self.make_pair(pending.worker)?.init_by(id)?;
                let pair = self.with_buffers(pair)?;
                self.expect(pending.worker, pair.number())?;
                pending.number = Some(pair.number());
                let (answered, asked) = self.reads;
                id.connect(&self.parameters(pair.number(), answered, asked))?;
                pending.pair = Some(pair);
            }
            Response => {
                let (Ok(theirs), Some(pair)) = (greeting(), pending.pair.take()) else {
                    tracing::warn!("the peer is another program");
                    return Ok(Step::Refused(ConnectError::Refused));
                };
                let ready = pair.init_again_by(id)?.ready_to_receive_by(id)?.ready_to_send_by(id)?;
                id.establish()?;
                return Ok(Step::Ready(ready, theirs));
            }
            // What was accepted is there; or, with iWARP, what was asked for.
            Established => {
                let theirs = pending.theirs.map_or_else(greeting, Ok);
                let ready = match (pending.ready.take(), pending.pair.take()) {
                    (Some(ready), _) => Some(ready),
                    (None, Some(pair)) => Some(pair.made_ready_by_iwarp()),
                    (None, None) => None,
                };
                return Ok(match (ready, theirs) {
                    (Some(ready), Ok(theirs)) => Step::Ready(ready, theirs),
                    _ => Step::Refused(ConnectError::Refused),
                });
            }
            Rejected | Failed | Disconnected => return Ok(Step::Refused(ConnectError::Refused)),
            AddressFailed | RouteFailed | Unreachable | Removed => {
                return Ok(Step::Refused(ConnectError::Unreachable));
            }
            _ => {}
        }
        Ok(Step::Wait)
    }

    /// Gives a connection to its worker.
    fn hand_over(&mut self, pending: Pending<C>, pair: QueuePair<C, ReadyToSend>, theirs: Greeting) {
        let Pending { id, worker, origin, .. } = pending;
        let Some((local, remote)) = id.addresses() else { return };
        let made = Made { worker, pair: pair.handle(), id: Some(id.handle()), local: local.ip() };
        self.made.insert(pair.number(), made);
        let link = Link::new(pair, Some(id), [local, remote], &self.greeting, &theirs);
        self.tell(worker, News::Made(link, origin));
    }

    fn refused(&mut self, pending: &Pending<C>, error: ConnectError) {
        self.not_made(pending.worker, pending.number, pending.origin, error);
    }

    /// A worker is told that a connection has not been made, of the queue pair with this number if it knows of it.
    fn not_made(&mut self, worker: usize, number: Option<u32>, origin: Origin, error: ConnectError) {
        if let Some(pair) = number {
            self.tell(worker, News::Unexpected(pair));
        }
        if let Origin::Connected(token) = origin {
            self.tell(worker, News::Failed(token, error));
        }
    }

    /// A link of a worker's is over.
    fn bury(&mut self, worker: usize, link: Link<C>) {
        let Link { pair, id, opened, windows, .. } = link;
        self.made.remove(&pair.number());
        if let Way::Exchange(exchange) = &mut self.listeners.0 {
            exchange.end(pair.number());
        }
        if let Some(mut id) = id
            && let Err(error) = id.disconnect()
        {
            tracing::debug!("{error}");
        }
        drop(opened);
        drop(pair);
        for _ in 0..windows {
            match Window::new(&self.region) {
                Ok(window) => self.tell(worker, News::Window(window)),
                Err(error) => tracing::warn!("{error}: what would go through it goes in messages"),
            }
        }
    }

    /// Tells workers of their connections that are lost.
    fn lose(&mut self, why: CloseReason, is_lost: impl Fn(&Made) -> bool) {
        let lost = self.made.iter().filter(|(_, made)| is_lost(made));
        self.unsent.extend(lost.map(|(number, made)| (made.worker, News::Lost(*number, why))));
    }

    fn device_event(&mut self, event: AsyncEvent, now: Instant) {
        let calls = self.region.domain().calls().clone();
        let device = calls.name();
        match event {
            AsyncEvent::PortDown(port) => {
                tracing::warn!("{device}: port {port} is down");
                self.down_since.get_or_insert(now);
            }
            AsyncEvent::PortActive(port) => {
                tracing::info!("{device}: port {port} is active");
                self.down_since = None;
            }
            AsyncEvent::GidsChanged(port) => match calls.gids(port) {
                Ok(gids) => {
                    tracing::info!("{device}: the addresses of port {port} have changed");
                    let is_left = |ip| gids.iter().any(|gid| gid.ip() == ip);
                    self.lose(CloseReason::Reset, |made| !is_left(made.local));
                }
                Err(error) => tracing::warn!("{device}: query the addresses of port {port}: {error}"),
            },
            AsyncEvent::PairFatal(pair) | AsyncEvent::PairRequest(pair) | AsyncEvent::PairAccess(pair) => {
                tracing::debug!("{device}: {event:?}");
                self.lose(CloseReason::Reset, |made| made.pair == pair);
            }
            AsyncEvent::QueueError(queue) => {
                tracing::error!("{device}: a completion queue is out of order, and its connections are over");
                self.lose_of(|seat| seat.queues.iter().any(|it| it.handle() == queue));
            }
            AsyncEvent::SharedError(shared) => {
                tracing::error!("{device}: a shared receive queue is out of order, and its connections are over");
                self.lose_of(|seat| seat.shared.as_ref().is_some_and(|it| it.handle() == shared));
            }
            AsyncEvent::Fatal => {
                tracing::error!("{device} is out of order: all its connections are over");
                self.lose(CloseReason::Reset, |_| true);
            }
            event => tracing::debug!("{device}: {event:?}"),
        }
    }

    /// The connections are lost of the worker whose seat `is_it` says yes to.
    fn lose_of(&mut self, is_it: impl Fn(&Seat<C>) -> bool) {
        let worker = self.workers.iter().position(is_it);
        self.lose(CloseReason::Reset, |made| Some(made.worker) == worker);
    }

    /// A port has been down for too long. It may have been another than all connections'.
    fn end_if_down(&mut self) {
        let calls = self.region.domain().calls();
        let is_active = |port| calls.port(port).is_ok_and(|port| port.state == PortState::Active);
        if !(1..=self.ports).any(is_active) {
            tracing::warn!("{}: no port carries packets, and all connections are over", calls.name());
            self.lose(CloseReason::TimedOut, |_| true);
        }
    }

    fn parameters(&self, pair: u32, asked: u8, answered: u8) -> CmParameters {
        CmParameters {
            pair,
            reads_answered: self.reads.0.min(asked),
            reads_asked: self.reads.1.min(answered),
            retries: RETRIES,
            // Nobody sends without a buffer at the other end.
            not_ready_retries: 0,
            is_shared: self.config.shared.is_some(),
            private: Private::new(&self.greeting.write()),
        }
    }

    /// Whether a worker has as many queue pairs as it may have connections: so many completions its queues have room for, and for
    /// so many are the buffers that it shares.
    fn is_full(&self, worker: usize) -> bool {
        self.workers[worker].queues.iter().map(QueueHandle::pairs).sum::<usize>() >= self.config.max_connections
    }

    fn make_pair(&self, worker: usize) -> Result<QueuePair<C, New>, Error> {
        let seat = &self.workers[worker];
        let queue = seat.queues.iter().min_by_key(|queue| queue.pairs()).filter(|queue| queue.pairs() < seat.most);
        let full = || Error { what: "have room for a connection's completions", error: ErrorKind::StorageFull.into() };
        QueuePair::new(&self.region, queue.ok_or_else(full)?, seat.shared.as_ref(), &self.pair)
    }

    fn with_buffers(&self, mut pair: QueuePair<C, Init>) -> Result<QueuePair<C, Init>, Error> {
        if self.config.shared.is_none() {
            pair.post((0..self.config.buffers).map_while(|_| self.buffers.alloc(self.config.buffer)))?;
            if pair.buffers_wanted() > 0 {
                let error = ErrorKind::OutOfMemory.into();
                return Err(Error { what: "have buffers for a connection", error });
            }
        }
        Ok(pair)
    }
}

/// The most bytes up to `wanted` that a queue pair sends inline: what devices do not tell but by refusing.
fn inline<C: Calls>(region: &Region<C>, seat: &Seat<C>, pair: &PairConfig, wanted: u32) -> u32 {
    let mut inline = wanted;
    while inline > 0 {
        let config = PairConfig { inline, ..*pair };
        let Some(queue) = seat.queues.first() else { break };
        if QueuePair::new(region, queue, seat.shared.as_ref(), &config).is_ok() {
            break;
        }
        inline /= 2;
    }
    inline
}
