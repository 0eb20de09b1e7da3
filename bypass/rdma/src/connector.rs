//! Who makes connections, by the connection manager, for all workers: what takes system calls, on a thread of its own.

use crate::calls::{AsyncEvent, Calls, CmEvent, CmEventKind, CmParameters, Handle, Private, TransportKind};
use crate::verbs::{
    CmId, CmNews, Error, EventChannel, Init, New, PairConfig, QueueHandle, QueuePair, ReadyToSend, Region, SharedHandle,
};
use crate::wire::Greeting;
use crate::{Command, Config, Link, News};
use linerate_bypass::mailbox::{Receiver, Sender};
use linerate_bypass::time::{Clock, Instant};
use linerate_bypass::{Arena, ConnectError, Origin};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 512;
/// How long an address or a route is looked for.
const RESOLVE_MS: u32 = 2000;
/// How often the device asks again when there is no answer: the most there can be.
const RETRIES: u8 = 7;
/// How long what workers ask for may wait, in milliseconds.
const MOMENT_MS: i32 = 1;

/// What the connector has of a worker.
pub struct Seat<C: Calls> {
    /// Where completions of the worker's connections go.
    pub queue: QueueHandle<C>,
    /// The buffers that they share, if they do.
    pub shared: Option<SharedHandle<C>>,
    /// The way to it.
    pub news: Sender<News<C>>,
}

/// Where connections are asked for.
pub struct Listeners<C: Calls> {
    // Identifiers go before their channel.
    ids: Vec<(CmId<C>, SocketAddr)>,
    channel: EventChannel<C>,
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
        Ok(Listeners { ids, channel })
    }

    /// The addresses, with the ports that were found for port 0.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.ids.iter().map(|(_, address)| *address)
    }
}

/// See the file's head.
pub struct Connector<C: Calls> {
    config: Config,
    pair: PairConfig,
    greeting: Greeting,
    is_iwarp: bool,
    reads: (u8, u8),
    // Identifiers go before their channel.
    pending: HashMap<Handle, Pending<C>>,
    listeners: Listeners<C>,
    region: Region<C>,
    arena: Arena,
    workers: Vec<Seat<C>>,
    /// Who gets the next connection.
    next: usize,
    commands: Receiver<Command<C>>,
    /// Which worker's queue pair an identifier belongs to.
    made: HashMap<Handle, (usize, u32)>,
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

/// What becomes of it.
enum Step<C: Calls> {
    Wait,
    Refused(ConnectError),
    Ready(QueuePair<C, ReadyToSend>, Greeting),
}

impl<C: Calls> Connector<C> {
    /// One for `workers`, on memory of `region`, of which `arena` is a part.
    pub fn new(
        config: &Config,
        listeners: Listeners<C>,
        region: &Region<C>,
        arena: &Arena,
        workers: Vec<Seat<C>>,
        commands: Receiver<Command<C>>,
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
            pending: HashMap::new(),
            listeners,
            region: region.clone(),
            arena: arena.clone(),
            workers,
            next: 0,
            commands,
            made: HashMap::new(),
            unsent: VecDeque::new(),
        })
    }

    /// Makes connections until `is_over` says so, and then ends those that workers have given up.
    pub fn run(mut self, clock: &Clock, is_over: impl Fn() -> bool) {
        loop {
            // What workers said before they ended is heard.
            let last = is_over();
            match self.turn(clock.now()) {
                Ok(true) => {}
                Ok(false) if last => return,
                Ok(false) => self.rest(),
                Err(error) => {
                    tracing::error!("{}: {error}", self.region.domain().calls().name());
                    if last {
                        return;
                    }
                    self.rest();
                }
            }
        }
    }

    /// Waits until something has happened to a connection or the device, or for a moment: workers may have asked for something.
    fn rest(&self) {
        let fds = [self.listeners.channel.as_raw_fd(), self.region.domain().calls().async_fd()];
        let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: as many descriptions as are said, which live until it returns.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, MOMENT_MS) };
    }

    /// Does all there is to be done at `now`. Returns whether there was anything.
    pub fn turn(&mut self, now: Instant) -> Result<bool, Error> {
        let mut worked = false;
        while let Some(command) = self.commands.receive() {
            worked = true;
            match command {
                Command::Bury(link) => self.bury(link),
                Command::Connect { worker, remote, token } => self.connect(worker, remote, token, now),
            }
        }
        while let Some(news) = self.listeners.channel.next_event()? {
            worked = true;
            match news {
                CmNews::Request { id, event, .. } => self.request(id, &event, now),
                CmNews::Event(event) => self.event(&event),
            }
        }
        while let Some(event) =
            self.region.domain().calls().async_event().map_err(Error::of("read the device's events"))?
        {
            worked = true;
            self.device_event(event);
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
        let full = |_| Error { what: "tell a worker of a connection", error: std::io::ErrorKind::WouldBlock.into() };
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
        let begun = self.listeners.channel.id().and_then(|mut id| id.resolve_address(remote, RESOLVE_MS).map(|()| id));
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
        if let Some((worker, pair)) = self.made.get(&event.id).copied() {
            if let Disconnected | Removed | TimeWaitExit | AddressChanged = event.kind {
                self.tell(worker, News::Lost(pair));
            }
            return;
        }
        let Some(mut pending) = self.pending.remove(&event.id) else { return };
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
        self.made.insert(id.handle(), (worker, pair.number()));
        let link = Link::new(pair, Some(id), [local, remote], &self.greeting, &theirs);
        self.tell(worker, News::Made(link, origin));
    }

    fn refused(&mut self, pending: &Pending<C>, error: ConnectError) {
        if let Some(pair) = pending.number {
            self.tell(pending.worker, News::Unexpected(pair));
        }
        if let Origin::Connected(token) = pending.origin {
            self.tell(pending.worker, News::Failed(token, error));
        }
    }

    /// A link is over.
    fn bury(&mut self, link: Link<C>) {
        let Link { pair, id, .. } = link;
        if let Some(mut id) = id {
            self.made.remove(&id.handle());
            if let Err(error) = id.disconnect() {
                tracing::debug!("{error}");
            }
        }
        drop(pair);
    }

    fn device_event(&mut self, event: AsyncEvent) {
        let device = self.region.domain().calls().name();
        match event {
            AsyncEvent::PortDown(port) => tracing::warn!("{device}: port {port} is down"),
            AsyncEvent::PortActive(port) => tracing::info!("{device}: port {port} is active"),
            AsyncEvent::GidsChanged(port) => tracing::warn!("{device}: the addresses of port {port} have changed"),
            AsyncEvent::Fatal => {
                tracing::error!("{device} is out of order: all its connections are over");
                let lost: Vec<(usize, u32)> = self.made.values().copied().collect();
                lost.into_iter().for_each(|(worker, pair)| self.tell(worker, News::Lost(pair)));
            }
            event => tracing::debug!("{device}: {event:?}"),
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

    fn make_pair(&self, worker: usize) -> Result<QueuePair<C, New>, Error> {
        let seat = &self.workers[worker];
        QueuePair::new(&self.region, &seat.queue, seat.shared.as_ref(), &self.pair)
    }

    fn with_buffers(&self, mut pair: QueuePair<C, Init>) -> Result<QueuePair<C, Init>, Error> {
        if self.config.shared.is_none() {
            pair.post((0..self.config.buffers).map_while(|_| self.arena.alloc(self.config.buffer)))?;
            if pair.buffers_wanted() > 0 {
                let error = std::io::ErrorKind::OutOfMemory.into();
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
        if QueuePair::new(region, &seat.queue, seat.shared.as_ref(), &config).is_ok() {
            break;
        }
        inline /= 2;
    }
    inline
}
