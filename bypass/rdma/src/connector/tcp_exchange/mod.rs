//! TCP exchange: connection setup without the connection manager.
//!
//! The client sends its [`QpInfo`]; the server readies its queue pair and replies with its own; the client does the
//! same and confirms, after which the server may send. The TCP connection stays open as long as the queue pairs: its
//! end signals that the peer is gone.

mod handshake;

use super::qp_info::QpInfo;
use super::{Connector, ListenerKind, Made, Step};
use crate::connection::conn_transport::ConnTransport;
use crate::provider::{Gid, Provider, TransportKind};
use crate::verbs::Error;
use crate::wire::EndParams;
use crate::{Config, ConnectorEvent};
use handshake::{Half, gid_of};
use linerate_bypass::raise_open_files;
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnectError, Origin};
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

/// Maximum concurrent handshakes that peers initiated. Further ones wait in the kernel's backlog.
pub(crate) const MAX_PENDING: usize = 128;
/// Listen backlog.
const BACKLOG: i32 = 4096;
/// Events processed at a time.
const EVENTS: usize = 64;
/// Pause after a failed accept for lack of resources.
const PAUSE: Duration = Duration::from_millis(100);
/// Event key: a listener, an established connection by its number, or a handshake by a local number.
const LISTENER: u64 = 1 << 63;
const MADE: u64 = 1 << 62;

/// Failure of the TCP exchange.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum ExchangeError {
    #[error("iWARP connections need rdma_cm: remove `rdma.connect`")]
    Iwarp,
    #[error(
        "{0} is not an address of this device: use an address from linerate rdma info, or a route through the device"
    )]
    NotOfDevice(IpAddr),
    #[error("{0} is not at the chosen port and GID index: linerate rdma info shows both")]
    NotChosen(IpAddr),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the peer is not a compatible Linerate process")]
    Malformed,
    #[error("the peer uses another transport: `rdma.mode` ud must be set at both ends or neither")]
    OtherMode,
    #[error("no random number: {0}")]
    NoRandomness(getrandom::Error),
    #[error("the GID of the peer's queue pair does not match the peer's IP address")]
    Elsewhere,
    #[error("the worker has no room for another connection")]
    Full,
    #[error("TCP: {0}")]
    Tcp(#[from] io::Error),
    #[error(transparent)]
    Verbs(#[from] Error),
}

impl From<Errno> for ExchangeError {
    fn from(error: Errno) -> Self {
        ExchangeError::Tcp(error.into())
    }
}

impl ExchangeError {
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

/// Sockets of a connector.
pub(super) struct Exchange<C: Provider> {
    listeners: Vec<(TcpListener, SocketAddr)>,
    epoll: OwnedFd,
    /// Time from which waiting clients can be accepted, if any may be waiting.
    accept_from: Option<Instant>,
    handshakes: HashMap<u64, Handshake<C>>,
    next: u64,
    /// TCP connection of each established connection, by queue pair number or session number. Dropping it signals
    /// disconnect.
    made: HashMap<u64, TcpStream>,
}

/// Connection being established.
pub(super) struct Handshake<C: Provider> {
    stream: TcpStream,
    worker: usize,
    origin: Origin,
    until: Instant,
    /// Queue pair or session number, once the worker has been notified of it.
    number: Option<u64>,
    stage: Stage<C>,
    /// Received part of the next message.
    read: [u8; QpInfo::LEN],
    len: usize,
}

enum Stage<C: Provider> {
    /// TCP connect in progress.
    Connecting,
    /// Attributes sent to the server.
    Requested { half: Half<C>, own: Gid, record: QpInfo },
    /// Waiting for the client's attributes.
    Listening,
    /// Reply sent to the client.
    Answered(ConnTransport<C>, EndParams),
    /// Finished.
    Over,
}

impl<C: Provider> Exchange<C> {
    /// Listens on `addresses` of the device.
    pub fn open(provider: &Arc<C>, addresses: &[SocketAddr], config: &Config) -> Result<Self, ExchangeError> {
        let limits = provider.limits().map_err(Error::of("query the device"))?;
        if limits.transport == TransportKind::Iwarp {
            return Err(ExchangeError::Iwarp);
        }
        // Each connection needs a socket; the default limit is 1024.
        if let Err(error) = raise_open_files(None) {
            tracing::debug!("cannot raise the limit of open files: {error}");
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut listeners = Vec::new();
        for &address in addresses {
            if !address.ip().is_unspecified() {
                gid_of(&**provider, address.ip(), config)?;
            }
            let begin = || {
                let listener = TcpListener::bind(address)?;
                // Increases the backlog: a client that finds it full retries only after seconds.
                listen(&listener, BACKLOG)?;
                listener.set_nonblocking(true)?;
                epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN | EventFlags::ET)?;
                let address = listener.local_addr()?;
                Ok((listener, address))
            };
            listeners.push(begin().map_err(|source| ExchangeError::Listen { address, source })?);
        }
        Ok(Exchange { listeners, epoll, accept_from: None, handshakes: HashMap::new(), next: 0, made: HashMap::new() })
    }

    /// Returns the addresses, with the ports chosen for port 0.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.listeners.iter().map(|(_, address)| *address)
    }

    /// Signals the end of a connection to its peer.
    pub fn end(&mut self, number: u64) {
        self.made.remove(&number);
    }

    /// Removes the handshakes that have a queue pair of this worker.
    pub fn take_of(&mut self, worker: usize) -> Vec<Handshake<C>> {
        let is_its = |_: &u64, handshake: &mut Handshake<C>| handshake.worker == worker && handshake.number.is_some();
        self.handshakes.extract_if(is_its).map(|(_, handshake)| handshake).collect()
    }

    /// Accepts a waiting client, if there is room.
    fn accept(&mut self, now: Instant) -> Option<TcpStream> {
        let pending = || self.handshakes.values().filter(|handshake| handshake.origin == Origin::Accepted).count();
        if self.accept_from.is_none_or(|from| from > now) || pending() >= MAX_PENDING {
            return None;
        }
        for (listener, _) in &self.listeners {
            match listener.accept() {
                Ok((stream, _)) => return Some(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The client has disconnected.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => return None,
                Err(error) => {
                    tracing::warn!("a connection cannot be accepted: {error}");
                    self.accept_from = Some(now + PAUSE);
                    return None;
                }
            }
        }
        self.accept_from = None;
        None
    }

    /// Starts a handshake.
    fn begin(&mut self, stream: TcpStream, worker: usize, origin: Origin, until: Instant) -> Result<(), ExchangeError> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let (stage, flags) = match origin {
            Origin::Accepted => (Stage::Listening, EventFlags::IN),
            Origin::Connected(_) => (Stage::Connecting, EventFlags::OUT),
        };
        self.next = (self.next + 1) % MADE;
        epoll::add(&self.epoll, &stream, EventData::new_u64(self.next), flags)?;
        let handshake =
            Handshake { stream, worker, origin, until, number: None, stage, read: [0; QpInfo::LEN], len: 0 };
        self.handshakes.insert(self.next, handshake);
        Ok(())
    }
}

impl<C: Provider> AsFd for Exchange<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl<C: Provider> Handshake<C> {
    /// Reads the next `N` bytes once all are available.
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

    /// Sends a short message, which fits into the socket buffer of a new connection.
    fn send(&mut self, bytes: &[u8]) -> Result<(), ExchangeError> {
        Ok(self.stream.write_all(bytes)?)
    }
}

impl<C: Provider> Connector<C> {
    fn exchange(&mut self) -> Option<&mut Exchange<C>> {
        match &mut self.listeners.0 {
            ListenerKind::Exchange(exchange) => Some(exchange),
            ListenerKind::Manager { .. } => None,
        }
    }

    /// Processes all exchange events. Returns true if there were any.
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
                LISTENER => _ = self.exchange().map(|exchange| exchange.accept_from = Some(now)),
                // No data follows: any event means the end.
                made if made & MADE != 0 => self.peer_is_gone(made & !MADE),
                handshake => self.go_on(handshake, now),
            }
        }
        let Some(exchange) = self.exchange() else { return Ok(worked) };
        while let Some(stream) = exchange.accept(now) {
            worked = true;
            if let Err(error) = exchange.begin(stream, 0, Origin::Accepted, until) {
                tracing::warn!("connection not accepted: {error}");
            }
        }
        let late: Vec<u64> =
            exchange.handshakes.iter().filter(|(_, handshake)| handshake.until <= now).map(|(key, _)| *key).collect();
        for key in late {
            worked = true;
            if let Some(handshake) = self.exchange().and_then(|exchange| exchange.handshakes.remove(&key)) {
                self.give_up(handshake, ConnectError::TimedOut, now);
            }
        }
        Ok(worked)
    }

    /// Closes the listeners after accepting the waiting clients.
    pub(super) fn close_exchange(&mut self) {
        if let Some(exchange) = self.exchange()
            && exchange.accept_from.is_none()
        {
            exchange.listeners.clear();
        }
    }

    /// Connects a worker to a peer.
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

    /// Notifies the worker of a lost connection. The TCP connection is kept until the worker releases the transport.
    fn peer_is_gone(&mut self, number: u64) {
        let Some(exchange) = self.exchange() else { return };
        let Some(stream) = exchange.made.get(&number) else { return };
        if let Err(error) = epoll::delete(&exchange.epoll, stream) {
            tracing::debug!("{error}");
        }
        if let Some(made) = self.made.get(&number) {
            self.notify(made.worker, ConnectorEvent::Lost(number, CloseReason::Reset));
        }
    }

    /// Advances a handshake after an event.
    fn go_on(&mut self, key: u64, now: Instant) {
        let Some(mut handshake) = self.exchange().and_then(|exchange| exchange.handshakes.remove(&key)) else { return };
        let result = match self.next_step(&mut handshake, key, now) {
            Ok(Step::Wait) => {
                _ = self.exchange().map(|exchange| exchange.handshakes.insert(key, handshake));
                return;
            }
            Ok(Step::Refused(reason)) => return self.give_up(handshake, reason, now),
            Ok(Step::Ready(transport, peer_params)) => self.settle(&handshake, transport, &peer_params),
            Err(error) => Err(error),
        };
        match result {
            Ok((link, source)) => {
                let (worker, origin) = (handshake.worker, handshake.origin);
                let number = link.transport.number();
                let made = Made { worker, qp: link.transport.handle(), id: None, source, had_last: false };
                self.made.insert(number, made);
                _ = self.exchange().map(|exchange| exchange.made.insert(number, handshake.stream));
                self.notify(worker, ConnectorEvent::Made(link, origin));
            }
            Err(error) => {
                let peer = handshake.stream.peer_addr().map_or_else(|_| "a peer".to_owned(), |peer| peer.to_string());
                match error {
                    ExchangeError::OtherMode => tracing::warn!("no connection with {peer}: {error}"),
                    _ => tracing::info!("no connection with {peer}: {error}"),
                }
                self.give_up(handshake, error.outcome(), now);
            }
        }
    }

    pub(super) fn give_up(&mut self, handshake: Handshake<C>, error: ConnectError, now: Instant) {
        self.not_made(handshake.worker, handshake.number, handshake.origin, error);
        if let Stage::Answered(ConnTransport::Rc(qp), _) = handshake.stage
            && self.config.srq.is_some()
        {
            // The peer may have sent data.
            self.leave(handshake.worker, qp, false, now);
        }
    }
}

/// Starts a TCP connect to `remote`.
fn begin_connect(remote: SocketAddr) -> Result<TcpStream, ExchangeError> {
    let family = if remote.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match connect(&socket, &remote) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}
