//! Connections made without the connection manager: both ends tell each other of their queue pairs, or sessions, over TCP.
//!
//! Whoever asks sends its [`QpInfo`]; whoever is asked makes its queue pair ready, and answers with its own; whoever asked does
//! the same, and says so, for only then may the other end send. The TCP connection stays while the queue pairs do: its end says
//! that the peer is gone.

mod handshake;

use super::qp_info::QpInfo;
use super::{Connector, Made, Step, Way};
use crate::ConnectorEvent;
use crate::connection::conn_transport::ConnTransport;
use crate::connection::wire::EndParams;
use crate::provider::{Gid, Provider, TransportKind};
use crate::verbs::Error;
use handshake::{Half, gid_of};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{CloseReason, ConnectError, Origin, raise_open_files};
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
/// What an event is about: a listener, or a connection that has been made, by the number of what carries it; or one that is being
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
    Malformed,
    /// One end has a queue pair for each connection, the other sessions.
    #[error("the peer's connections are carried otherwise: --rdma-mode ud is for both ends or neither")]
    OtherMode,
    /// The system has no random number for a session.
    #[error("no random number: {0}")]
    NoRandomness(getrandom::Error),
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
            ExchangeError::Malformed | ExchangeError::OtherMode | ExchangeError::Elsewhere => ConnectError::Refused,
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
pub(super) struct Exchange<C: Provider> {
    listeners: Vec<(TcpListener, SocketAddr)>,
    epoll: OwnedFd,
    /// Somebody may wait to be accepted; not before that time.
    asked: Option<Instant>,
    /// Connections that are being made.
    talks: HashMap<u64, Handshake<C>>,
    next: u64,
    /// What ends when those do that have been made, by the number of what carries them.
    made: HashMap<u64, TcpStream>,
}

/// A connection that is being made.
struct Handshake<C: Provider> {
    stream: TcpStream,
    worker: usize,
    origin: Origin,
    until: Instant,
    /// The number of what is to carry it, once the worker has been told of it.
    number: Option<u64>,
    stage: Stage<C>,
    /// What has been read of what comes next.
    read: [u8; QpInfo::LEN],
    len: usize,
}

enum Stage<C: Provider> {
    /// TCP connects.
    Connecting,
    /// We have asked.
    Asking { half: Half<C>, own: Gid, record: QpInfo },
    /// The peer is to ask.
    Listening,
    /// We have answered.
    Answered(ConnTransport<C>, EndParams),
    /// It is over.
    Over,
}

impl<C: Provider> Exchange<C> {
    /// Listens at `addresses`, which are the device's.
    pub fn open(provider: &Arc<C>, addresses: &[SocketAddr]) -> Result<Self, ExchangeError> {
        let limits = provider.limits().map_err(Error::of("query the device"))?;
        if limits.transport == TransportKind::Iwarp {
            return Err(ExchangeError::Iwarp);
        }
        // Each connection has a socket, and by default there may be 1024.
        if let Err(error) = raise_open_files(None) {
            tracing::debug!("cannot raise the limit of open files: {error}");
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut listeners = Vec::new();
        for &address in addresses {
            if !address.ip().is_unspecified() {
                gid_of(&**provider, address.ip())?;
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
    pub fn end(&mut self, number: u64) {
        self.made.remove(&number);
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
        let talk = Handshake { stream, worker, origin, until, number: None, stage, read: [0; QpInfo::LEN], len: 0 };
        self.talks.insert(self.next, talk);
        Ok(())
    }
}

impl<C: Provider> AsFd for Exchange<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl<C: Provider> Handshake<C> {
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

impl<C: Provider> Connector<C> {
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
                made if made & MADE != 0 => self.peer_is_gone(made & !MADE),
                talk => self.go_on(talk, now),
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
                self.give_up(talk, ConnectError::TimedOut, now);
            }
        }
        Ok(worked)
    }

    /// Closes the listeners, once those who had asked are accepted.
    pub(super) fn close_exchange(&mut self) {
        if let Some(exchange) = self.exchange()
            && exchange.asked.is_none()
        {
            exchange.listeners.clear();
        }
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

    /// What carries the connection stays until the worker gives it up.
    fn peer_is_gone(&mut self, number: u64) {
        let Some(exchange) = self.exchange() else { return };
        let Some(stream) = exchange.made.get(&number) else { return };
        if let Err(error) = epoll::delete(&exchange.epoll, stream) {
            tracing::debug!("{error}");
        }
        if let Some(made) = self.made.get(&number) {
            self.tell(made.worker, ConnectorEvent::Lost(number, CloseReason::Reset));
        }
    }

    /// Something has happened to a connection that is being made.
    fn go_on(&mut self, key: u64, now: Instant) {
        let Some(mut talk) = self.exchange().and_then(|exchange| exchange.talks.remove(&key)) else { return };
        let result = match self.next_step(&mut talk, key) {
            Ok(Step::Wait) => {
                _ = self.exchange().map(|exchange| exchange.talks.insert(key, talk));
                return;
            }
            Ok(Step::Refused(why)) => return self.give_up(talk, why, now),
            Ok(Step::Ready(transport, theirs)) => self.settle(&talk, transport, &theirs),
            Err(error) => Err(error),
        };
        match result {
            Ok(link) => {
                let (worker, origin) = (talk.worker, talk.origin);
                let number = link.transport.number();
                let made =
                    Made { worker, qp: link.transport.handle(), id: None, local: link.local.ip(), had_last: false };
                self.made.insert(number, made);
                _ = self.exchange().map(|exchange| exchange.made.insert(number, talk.stream));
                self.tell(worker, ConnectorEvent::Made(link, origin));
            }
            Err(error) => {
                match error {
                    ExchangeError::OtherMode => tracing::warn!("a connection is not made: {error}"),
                    _ => tracing::debug!("a connection is not made: {error}"),
                }
                self.give_up(talk, error.outcome(), now);
            }
        }
    }

    /// A connection is not made.
    fn give_up(&mut self, talk: Handshake<C>, error: ConnectError, now: Instant) {
        self.not_made(talk.worker, talk.number, talk.origin, error);
        if let Stage::Answered(ConnTransport::Rc(qp), _) = talk.stage
            && self.config.srq.is_some()
        {
            // The peer may have sent something.
            self.leave(talk.worker, qp, false, now);
        }
    }
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
