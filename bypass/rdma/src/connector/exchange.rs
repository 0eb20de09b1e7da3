//! Connections made without the connection manager: both ends tell each other of their queue pairs over TCP.
//!
//! Whoever asks sends its [`Record`]; whoever is asked makes its queue pair ready, and answers with its own; whoever asked does
//! the same, and says so, for only then may the other end send. The TCP connection stays while the queue pairs do: its end says
//! that the peer is gone.

use super::record::{NUMBERS, READY, Record};
use super::{Connector, Made, Step, Way};
use crate::News;
use crate::calls::{Calls, Gid, GidKind, Path, Transition, TransportKind};
use crate::connection::Link;
use crate::verbs::{Error, Init, QueuePair, ReadyToSend};
use crate::wire::Greeting;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{CloseReason, ConnectError, Origin};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, listen, socket_with};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Connections that are being made at a time because peers ask for them; further ones wait in the kernel's backlog.
pub(crate) const MOST_ASKING: usize = 128;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// Events that are taken at a time.
const EVENTS: usize = 64;
/// How long no connection is accepted after one could not be, for want of something.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an answer may take before a packet is sent again: 4.096 µs times two to the power of this, a quarter of a second.
const TIMEOUT: u8 = 16;
/// What a peer that has no buffer posted would be told to wait, which none is: 0.64 ms (IBA table 45).
const NOT_READY_TIMER: u8 = 12;
/// What an event is about: a listener, or a connection that has been made, by the number of its queue pair; or one that is being
/// made, by a number of ours.
const LISTENER: u64 = 1 << 63;
const MADE: u64 = 1 << 62;

/// Why connections cannot be made by an exchange over TCP, or one was not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// iWARP's connections are TCP connections of its own.
    #[error("iWARP has its connections made by rdma_cm alone: leave --rdma-connect out")]
    Iwarp,
    /// RoCE goes by the addresses of its own port.
    #[error("{0} is no address of this device: listen at, or have a route by, one that linerate rdma info shows")]
    NotOfDevice(IpAddr),
    /// An address cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// What the peer says makes no sense.
    #[error("the peer is another program")]
    Senseless,
    /// What the peer says is not of itself.
    #[error("the peer's queue pair is not where the peer is")]
    Elsewhere,
    /// The worker has as many connections as it may.
    #[error("the worker has no room for another connection")]
    Full,
    /// The connection by TCP failed.
    #[error("TCP: {0}")]
    Tcp(#[from] io::Error),
    /// The device did not do it.
    #[error(transparent)]
    Verbs(#[from] Error),
}

impl From<Errno> for ExchangeError {
    fn from(error: Errno) -> Self {
        ExchangeError::Tcp(error.into())
    }
}

impl ExchangeError {
    /// What whoever wanted the connection is told.
    fn outcome(&self) -> ConnectError {
        use ErrorKind::*;
        match self {
            ExchangeError::Senseless | ExchangeError::Elsewhere => ConnectError::Refused,
            ExchangeError::Full => ConnectError::TooMany,
            ExchangeError::Tcp(error) => match error.kind() {
                ConnectionRefused | ConnectionReset | UnexpectedEof => ConnectError::Refused,
                TimedOut => ConnectError::TimedOut,
                _ => ConnectError::Unreachable,
            },
            _ => ConnectError::Unreachable,
        }
    }
}

/// The sockets of a connector.
pub(super) struct Exchange<C: Calls> {
    listeners: Vec<(TcpListener, SocketAddr)>,
    epoll: OwnedFd,
    /// Somebody may wait to be accepted; not before that time.
    asked: Option<Instant>,
    /// Connections that are being made.
    talks: HashMap<u64, Talk<C>>,
    next: u64,
    /// What ends when those do that have been made, by the number of the queue pair.
    made: HashMap<u32, TcpStream>,
}

/// A connection that is being made.
struct Talk<C: Calls> {
    stream: TcpStream,
    worker: usize,
    origin: Origin,
    until: Instant,
    /// The number of the queue pair, once the worker has been told of it.
    number: Option<u32>,
    stage: Stage<C>,
    /// What has been read of what comes next.
    read: [u8; Record::LEN],
    len: usize,
}

enum Stage<C: Calls> {
    /// TCP connects.
    Connecting,
    /// We have asked.
    Asking { pair: QueuePair<C, Init>, own: Gid, record: Record },
    /// The peer is to ask.
    Listening,
    /// We have answered.
    Answered(QueuePair<C, ReadyToSend>, Greeting),
    /// It is over.
    Over,
}

impl<C: Calls> Exchange<C> {
    /// Listens at `addresses`, which are the device's.
    pub fn open(calls: &Arc<C>, addresses: &[SocketAddr]) -> Result<Self, ExchangeError> {
        let limits = calls.limits().map_err(Error::of("query the device"))?;
        if limits.transport == TransportKind::Iwarp {
            return Err(ExchangeError::Iwarp);
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut listeners = Vec::new();
        for &address in addresses {
            if !address.ip().is_unspecified() {
                gid_of(&**calls, address.ip())?;
            }
            let begin = || {
                let listener = TcpListener::bind(address)?;
                // Once more, with a longer backlog: who finds it full asks again only after seconds.
                listen(&listener, BACKLOG)?;
                listener.set_nonblocking(true)?;
                epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN | EventFlags::ET)?;
                let address = listener.local_addr()?;
                Ok((listener, address))
            };
            listeners.push(begin().map_err(|source| ExchangeError::Listen { address, source })?);
        }
        Ok(Exchange { listeners, epoll, asked: None, talks: HashMap::new(), next: 0, made: HashMap::new() })
    }

    /// The addresses, with the ports that were found for port 0.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.listeners.iter().map(|(_, address)| *address)
    }

    /// The peer of a connection is to learn that it is over.
    pub fn end(&mut self, pair: u32) {
        self.made.remove(&pair);
    }

    /// Accepts somebody, if anybody asks and there may be more.
    fn accept(&mut self, now: Instant) -> Option<TcpStream> {
        let asking = || self.talks.values().filter(|talk| talk.origin == Origin::Accepted).count();
        if self.asked.is_none_or(|from| from > now) || asking() >= MOST_ASKING {
            return None;
        }
        for (listener, _) in &self.listeners {
            match listener.accept() {
                Ok((stream, _)) => return Some(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // Whoever asked has left.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => return None,
                Err(error) => {
                    tracing::warn!("a connection cannot be accepted: {error}");
                    self.asked = Some(now + PAUSE);
                    return None;
                }
            }
        }
        self.asked = None;
        None
    }

    /// Begins to make a connection.
    fn begin(&mut self, stream: TcpStream, worker: usize, origin: Origin, until: Instant) -> Result<(), ExchangeError> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let (stage, flags) = match origin {
            Origin::Accepted => (Stage::Listening, EventFlags::IN),
            Origin::Connected(_) => (Stage::Connecting, EventFlags::OUT),
        };
        self.next = (self.next + 1) % MADE;
        epoll::add(&self.epoll, &stream, EventData::new_u64(self.next), flags)?;
        let talk = Talk { stream, worker, origin, until, number: None, stage, read: [0; Record::LEN], len: 0 };
        self.talks.insert(self.next, talk);
        Ok(())
    }
}

impl<C: Calls> AsFd for Exchange<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl<C: Calls> Talk<C> {
    /// The next `N` bytes of the peer's, once they are all there.
    fn next<const N: usize>(&mut self) -> Result<Option<[u8; N]>, ExchangeError> {
        while self.len < N {
            match self.stream.read(&mut self.read[self.len..N]) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(n) => self.len += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.len = 0;
        Ok(self.read.first_chunk().copied())
    }

    /// Says something short, for which a new connection has room.
    fn say(&mut self, bytes: &[u8]) -> Result<(), ExchangeError> {
        Ok(self.stream.write_all(bytes)?)
    }
}

impl<C: Calls> Connector<C> {
    fn exchange(&mut self) -> Option<&mut Exchange<C>> {
        match &mut self.listeners.0 {
            Way::Exchange(exchange) => Some(exchange),
            Way::Manager { .. } => None,
        }
    }

    /// Does what there is to be done for connections by exchange. Returns whether there was anything.
    pub(super) fn exchange_turn(&mut self, now: Instant) -> Result<bool, Error> {
        let until = now + self.config.connect_timeout;
        let Some(exchange) = self.exchange() else { return Ok(false) };
        let mut buffer = [const { MaybeUninit::uninit() }; EVENTS];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let events: &[Event] = match epoll::wait(&exchange.epoll, &mut buffer, Some(&none)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &[],
            Err(error) => return Err(Error::of("wait for peers")(error.into())),
        };
        let mut worked = !events.is_empty();
        for event in events {
            match event.data.u64() {
                LISTENER => _ = self.exchange().map(|exchange| exchange.asked = Some(now)),
                // Nothing is said any more: whatever it is, it is the end.
                pair if pair & MADE != 0 => self.peer_is_gone(pair as u32),
                talk => self.go_on(talk),
            }
        }
        let Some(exchange) = self.exchange() else { return Ok(worked) };
        while let Some(stream) = exchange.accept(now) {
            worked = true;
            if let Err(error) = exchange.begin(stream, 0, Origin::Accepted, until) {
                tracing::warn!("a connection is not accepted: {error}");
            }
        }
        let late: Vec<u64> = exchange.talks.iter().filter(|(_, talk)| talk.until <= now).map(|(key, _)| *key).collect();
        for key in late {
            worked = true;
            if let Some(talk) = self.exchange().and_then(|exchange| exchange.talks.remove(&key)) {
                self.not_made(talk.worker, talk.number, talk.origin, ConnectError::TimedOut);
            }
        }
        Ok(worked)
    }

    /// A worker asks for a connection.
    pub(super) fn exchange_connect(&mut self, worker: usize, remote: SocketAddr, token: u64, now: Instant) {
        let until = now + self.config.connect_timeout;
        let origin = Origin::Connected(token);
        let begun = begin_connect(remote).and_then(|stream| match self.exchange() {
            Some(exchange) => exchange.begin(stream, worker, origin, until),
            None => Ok(()),
        });
        if let Err(error) = begun {
            tracing::debug!("{remote}: {error}");
            self.not_made(worker, None, origin, error.outcome());
        }
    }

    /// Its queue pair stays until the worker gives it up.
    fn peer_is_gone(&mut self, pair: u32) {
        let Some(exchange) = self.exchange() else { return };
        let Some(stream) = exchange.made.get(&pair) else { return };
        if let Err(error) = epoll::delete(&exchange.epoll, stream) {
            tracing::debug!("{error}");
        }
        if let Some(made) = self.made.get(&pair) {
            self.tell(made.worker, News::Lost(pair, CloseReason::Reset));
        }
    }

    /// Something has happened to a connection that is being made.
    fn go_on(&mut self, key: u64) {
        let Some(mut talk) = self.exchange().and_then(|exchange| exchange.talks.remove(&key)) else { return };
        let result = match self.next_step(&mut talk, key) {
            Ok(Step::Wait) => {
                _ = self.exchange().map(|exchange| exchange.talks.insert(key, talk));
                return;
            }
            Ok(Step::Refused(why)) => return self.not_made(talk.worker, talk.number, talk.origin, why),
            Ok(Step::Ready(pair, theirs)) => self.settle(&talk, pair, &theirs),
            Err(error) => Err(error),
        };
        match result {
            Ok(link) => {
                let (worker, origin) = (talk.worker, talk.origin);
                let pair = link.pair.number();
                let made = Made { worker, pair: link.pair.handle(), id: None, local: link.local.ip() };
                self.made.insert(pair, made);
                _ = self.exchange().map(|exchange| exchange.made.insert(pair, talk.stream));
                self.tell(worker, News::Made(link, origin));
            }
            Err(error) => {
                tracing::debug!("a connection is not made: {error}");
                self.not_made(talk.worker, talk.number, talk.origin, error.outcome());
            }
        }
    }

    /// What comes next for a connection that is being made.
    fn next_step(&mut self, talk: &mut Talk<C>, key: u64) -> Result<Step<C>, ExchangeError> {
        match std::mem::replace(&mut talk.stage, Stage::Over) {
            Stage::Connecting => {
                if let Some(error) = talk.stream.take_error()? {
                    return Err(error.into());
                }
                let (pair, own, record) = self.new_pair(talk)?;
                self.expect_of(talk, record.pair)?;
                talk.say(&record.write())?;
                if let Some(exchange) = self.exchange() {
                    epoll::modify(&exchange.epoll, &talk.stream, EventData::new_u64(key), EventFlags::IN)?;
                }
                talk.stage = Stage::Asking { pair, own, record };
            }
            Stage::Asking { pair, own, record } => match talk.next()? {
                None => talk.stage = Stage::Asking { pair, own, record },
                Some(bytes) => {
                    let theirs = read(&bytes, talk)?;
                    let pair = join(pair, &own, &record, &theirs)?;
                    talk.say(&[READY])?;
                    return Ok(Step::Ready(pair, theirs.greeting));
                }
            },
            Stage::Listening => match talk.next()? {
                None => talk.stage = Stage::Listening,
                Some(bytes) => {
                    let theirs = read(&bytes, talk)?;
                    talk.worker = self.next;
                    self.next = (self.next + 1) % self.workers.len();
                    let (pair, own, record) = self.new_pair(talk)?;
                    let pair = join(pair, &own, &record, &theirs)?;
                    self.expect_of(talk, record.pair)?;
                    talk.say(&record.write())?;
                    talk.stage = Stage::Answered(pair, theirs.greeting);
                }
            },
            Stage::Answered(pair, theirs) => match talk.next()? {
                None => talk.stage = Stage::Answered(pair, theirs),
                Some([READY]) => return Ok(Step::Ready(pair, theirs)),
                Some(_) => return Err(ExchangeError::Senseless),
            },
            Stage::Over => {}
        }
        Ok(Step::Wait)
    }

    /// A queue pair with its buffers, by the port that the peer is reached by, and what the peer is told of it.
    fn new_pair(&mut self, talk: &Talk<C>) -> Result<(QueuePair<C, Init>, Gid, Record), ExchangeError> {
        if self.is_full(talk.worker) {
            return Err(ExchangeError::Full);
        }
        let calls = self.region.domain().calls();
        let own = gid_of(&**calls, talk.stream.local_addr()?.ip())?;
        let port = calls.port(own.port).map_err(Error::of("query the port"))?;
        let pair = self.pair_for(talk.worker, Some(own.port), |pair| pair.init(own.port))?;
        let record = Record {
            greeting: self.greeting,
            pair: pair.number(),
            first_packet: fastrand::u32(..NUMBERS),
            gid: own.raw,
            mtu: port.mtu,
            reads_asked: self.reads.1,
            reads_answered: self.reads.0,
        };
        Ok((pair, own, record))
    }

    /// The worker is told of the queue pair before the peer is.
    fn expect_of(&mut self, talk: &mut Talk<C>, pair: u32) -> Result<(), ExchangeError> {
        self.expect(talk.worker, pair)?;
        talk.number = Some(pair);
        Ok(())
    }

    /// The link of a connection that has been made, whose end will be heard of.
    fn settle(
        &mut self,
        talk: &Talk<C>,
        pair: QueuePair<C, ReadyToSend>,
        theirs: &Greeting,
    ) -> Result<Link<C>, ExchangeError> {
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let addresses = [talk.stream.local_addr()?, talk.stream.peer_addr()?].map(canonical);
        if let Some(exchange) = self.exchange() {
            let name = EventData::new_u64(MADE | u64::from(pair.number()));
            epoll::modify(&exchange.epoll, &talk.stream, name, EventFlags::IN | EventFlags::RDHUP)?;
        }
        Ok(Link::new(pair, None, addresses, &self.greeting, theirs))
    }
}

/// What the peer says of itself, which is of itself.
fn read<C: Calls>(bytes: &[u8; Record::LEN], talk: &Talk<C>) -> Result<Record, ExchangeError> {
    let record = Record::read(bytes).map_err(|_| ExchangeError::Senseless)?;
    let at = IpAddr::from(record.gid).to_canonical();
    if at == talk.stream.peer_addr()?.ip().to_canonical() { Ok(record) } else { Err(ExchangeError::Elsewhere) }
}

/// Makes a queue pair ready to receive from the peer's, and to send to it.
fn join<C: Calls>(
    pair: QueuePair<C, Init>,
    own: &Gid,
    ours: &Record,
    theirs: &Record,
) -> Result<QueuePair<C, ReadyToSend>, Error> {
    let receive = Transition::ReadyToReceive {
        mtu: ours.mtu.min(theirs.mtu),
        pair: theirs.pair,
        first_packet: theirs.first_packet,
        reads_answered: ours.reads_answered.min(theirs.reads_asked),
        not_ready_timer: NOT_READY_TIMER,
        path: Path::to(theirs.gid, 0, own),
    };
    let send = Transition::ReadyToSend {
        first_packet: ours.first_packet,
        timeout: TIMEOUT,
        retries: super::RETRIES,
        // Nobody sends without a buffer at the other end.
        not_ready_retries: 0,
        reads_asked: ours.reads_asked.min(theirs.reads_answered),
    };
    pair.ready_to_receive(&receive)?.ready_to_send(&send)
}

/// The RoCE address of the device for `ip`.
fn gid_of(calls: &impl Calls, ip: IpAddr) -> Result<Gid, ExchangeError> {
    let ip = ip.to_canonical();
    let ports = calls.limits().map_err(Error::of("query the device"))?.ports;
    for port in 1..=ports {
        let gids = calls.gids(port).map_err(Error::of("query the port's addresses"))?;
        if let Some(gid) = gids.into_iter().find(|gid| gid.kind == GidKind::RoceV2 && gid.ip() == ip) {
            return Ok(gid);
        }
    }
    Err(ExchangeError::NotOfDevice(ip))
}

/// A socket that connects to `remote`.
fn begin_connect(remote: SocketAddr) -> Result<TcpStream, ExchangeError> {
    let family = if remote.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match connect(&socket, &remote) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}
