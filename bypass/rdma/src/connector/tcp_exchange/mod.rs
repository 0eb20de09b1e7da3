//! TCP exchange: connection setup without the connection manager.
//!
//! The client sends its [`QpInfo`]; the server readies its queue pair and replies with its own; the client does the
//! same and confirms, after which the server may send. The TCP connection stays open as long as the queue pairs: its
//! end signals that the peer is gone.

mod handshake;
mod sockets;

use super::qp_info::QpInfo;
use super::{Connector, ListenerKind, Made, Source};
use crate::connection::ConnCore;
use crate::connection::conn_transport::ConnTransport;
use crate::provider::{Gid, Provider, StreamEvent, Streams, TransportKind};
use crate::verbs::Error;
use crate::wire::EndParams;
use crate::{Config, ConnectorEvent};
use handshake::{Half, gid_of};
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnectError, Origin};
use rustix::io::Errno;
use sockets::Sockets;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Maximum concurrent handshakes that peers initiated. Further ones wait in the backlog.
pub(crate) const MAX_PENDING: usize = 128;
/// Events processed at a time.
const EVENTS: usize = 64;
/// Pause after a failed accept for lack of resources.
const PAUSE: Duration = Duration::from_millis(100);

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

/// Streams of a connector.
pub(super) struct Exchange<C: Provider> {
    streams: Box<dyn Streams>,
    listening: Vec<SocketAddr>,
    /// Time from which waiting clients can be accepted, if any may be waiting.
    accept_from: Option<Instant>,
    /// Handshakes by stream.
    handshakes: HashMap<u64, Handshake<C>>,
    /// Stream of each established connection, by queue pair number or session number. Its end signals disconnect.
    made: HashMap<u64, u64>,
    /// Numbers of established connections whose stream has not ended, by stream.
    watched: HashMap<u64, u64>,
}

/// Connection being established.
pub(super) struct Handshake<C: Provider> {
    stream: u64,
    /// Local and peer's address, once the stream is connected.
    addresses: Option<[SocketAddr; 2]>,
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
    /// Stream being connected.
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
        let mut streams = match provider.streams()? {
            Some(streams) => streams,
            None => Box::new(Sockets::open()?),
        };
        let mut listening = Vec::new();
        for &address in addresses {
            if !address.ip().is_unspecified() {
                gid_of(&**provider, address.ip(), config)?;
            }
            let failed = |source| ExchangeError::Listen { address, source };
            listening.push(streams.listen(address).map_err(failed)?);
        }
        let (handshakes, made, watched) = (HashMap::new(), HashMap::new(), HashMap::new());
        Ok(Exchange { streams, listening, accept_from: None, handshakes, made, watched })
    }

    /// Returns the addresses, with the ports chosen for port 0.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.listening.iter().copied()
    }

    /// Signals the end of a connection to its peer.
    pub fn end(&mut self, number: u64) {
        if let Some(stream) = self.made.remove(&number) {
            self.watched.remove(&stream);
            self.streams.close(stream);
        }
    }

    /// Removes the handshakes that have a queue pair of this worker.
    pub fn take_of(&mut self, worker: usize) -> Vec<Handshake<C>> {
        let is_its = |_: &u64, handshake: &mut Handshake<C>| handshake.worker == worker && handshake.number.is_some();
        self.handshakes.extract_if(is_its).map(|(_, handshake)| handshake).collect()
    }

    /// Accepts a waiting client, if there is room.
    fn accept(&mut self, now: Instant) -> Option<u64> {
        let pending = || self.handshakes.values().filter(|handshake| handshake.origin == Origin::Accepted).count();
        if self.accept_from.is_none_or(|from| from > now) || pending() >= MAX_PENDING {
            return None;
        }
        match self.streams.accept() {
            Ok(stream) => return Some(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.accept_from = None,
            // The client has disconnected.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!("a connection cannot be accepted: {error}");
                self.accept_from = Some(now + PAUSE);
            }
        }
        None
    }

    /// Starts a handshake.
    fn begin(&mut self, stream: u64, worker: usize, origin: Origin, until: Instant) {
        let stage = match origin {
            Origin::Accepted => Stage::Listening,
            Origin::Connected(_) => Stage::Connecting,
        };
        let read = [0; QpInfo::LEN];
        let handshake = Handshake { stream, addresses: None, worker, origin, until, number: None, stage, read, len: 0 };
        self.handshakes.insert(stream, handshake);
    }

    /// Returns the next message of a handshake once all of it has arrived, in a buffer of the longest one.
    fn receive(&mut self, handshake: &mut Handshake<C>) -> Result<Option<[u8; QpInfo::LEN]>, ExchangeError> {
        if handshake.addresses.is_none() {
            match self.streams.addresses(handshake.stream) {
                Ok(addresses) => {
                    let canonical = |of: SocketAddr| SocketAddr::new(of.ip().to_canonical(), of.port());
                    handshake.addresses = Some(addresses.map(canonical));
                }
                Err(error) if error.kind() == ErrorKind::NotConnected && handshake.is_connecting() => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        let len = handshake.message_len();
        while handshake.len < len {
            match self.streams.read(handshake.stream, &mut handshake.read[handshake.len..len]) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(n) => handshake.len += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        handshake.len = 0;
        Ok(Some(handshake.read))
    }

    /// Returns whether the stream of an established connection has ended. No data follows the handshake: data mean the
    /// end, too.
    fn has_ended(&mut self, stream: u64) -> bool {
        let read = self.streams.read(stream, &mut [0]);
        !read.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted))
    }
}

impl<C: Provider> AsFd for Exchange<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.streams.as_fd()
    }
}

impl<C: Provider> Connector<C> {
    fn exchange(&mut self) -> Option<&mut Exchange<C>> {
        match &mut self.listeners.0 {
            ListenerKind::Exchange(exchange) => Some(exchange),
            ListenerKind::Manager { .. } => None,
        }
    }

    /// Processes exchange events. Returns true if there were any.
    pub(super) fn exchange_turn(&mut self, now: Instant) -> Result<bool, Error> {
        let until = now + self.config.connect_timeout;
        let mut worked = false;
        for _ in 0..EVENTS {
            let Some(exchange) = self.exchange() else { return Ok(false) };
            let Some(event) = exchange.streams.next_event().map_err(Error::of("wait for peers"))? else { break };
            worked = true;
            match event {
                StreamEvent::Incoming => exchange.accept_from = Some(now),
                StreamEvent::Ready(stream) if exchange.handshakes.contains_key(&stream) => self.go_on(stream, now),
                StreamEvent::Ready(stream) => self.check_peer(stream),
            }
        }
        while let Some(exchange) = self.exchange()
            && let Some(stream) = exchange.accept(now)
        {
            worked = true;
            exchange.begin(stream, 0, Origin::Accepted, until);
            // The first message may have arrived.
            self.go_on(stream, now);
        }
        let Some(exchange) = self.exchange() else { return Ok(worked) };
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
            exchange.streams.stop_listening();
        }
    }

    /// Connects a worker to a peer.
    pub(super) fn exchange_connect(&mut self, worker: usize, remote: SocketAddr, token: u64, now: Instant) {
        let until = now + self.config.connect_timeout;
        let origin = Origin::Connected(token);
        let Some(exchange) = self.exchange() else { return };
        match exchange.streams.connect(remote) {
            Ok(stream) => exchange.begin(stream, worker, origin, until),
            Err(error) => {
                tracing::debug!("{remote}: {error}");
                self.not_made(worker, None, origin, ExchangeError::Tcp(error).outcome());
            }
        }
    }

    /// Notifies the worker of a lost connection if its stream has ended. The stream is kept until the worker releases
    /// the transport.
    fn check_peer(&mut self, stream: u64) {
        let Some(exchange) = self.exchange() else { return };
        if !exchange.watched.contains_key(&stream) || !exchange.has_ended(stream) {
            return;
        }
        if let Some(number) = exchange.watched.remove(&stream)
            && let Some(made) = self.made.get(&number)
        {
            self.notify(made.worker, ConnectorEvent::Lost(number, CloseReason::Reset));
        }
    }

    /// Advances a handshake after an event.
    fn go_on(&mut self, stream: u64, now: Instant) {
        let Some(mut handshake) = self.exchange().and_then(|exchange| exchange.handshakes.remove(&stream)) else {
            return;
        };
        match self.advance(&mut handshake, now) {
            Ok(None) => _ = self.exchange().map(|exchange| exchange.handshakes.insert(stream, handshake)),
            Ok(Some((link, source))) => {
                let (worker, origin) = (handshake.worker, handshake.origin);
                let number = link.transport.number();
                let made = Made { worker, qp: link.transport.handle(), id: None, source, had_last: false };
                self.made.insert(number, made);
                if let Some(exchange) = self.exchange() {
                    exchange.made.insert(number, stream);
                    exchange.watched.insert(stream, number);
                }
                self.notify(worker, ConnectorEvent::Made(link, origin));
                // The end may have arrived with the last message.
                self.check_peer(stream);
            }
            Err(error) => {
                let peer = handshake.addresses.map_or_else(|| "a peer".to_owned(), |[_, peer]| peer.to_string());
                match error {
                    ExchangeError::OtherMode => tracing::warn!("no connection with {peer}: {error}"),
                    _ => tracing::info!("no connection with {peer}: {error}"),
                }
                self.give_up(handshake, error.outcome(), now);
            }
        }
    }

    /// Passes messages between a handshake and its stream, until the next message has not arrived yet. Returns the
    /// established connection with its local port and GID.
    fn advance(
        &mut self,
        handshake: &mut Handshake<C>,
        now: Instant,
    ) -> Result<Option<(ConnCore<C>, Source)>, ExchangeError> {
        while let Some(exchange) = self.exchange()
            && let Some(message) = exchange.receive(handshake)?
        {
            let mut reply = Vec::new();
            let ready = self.next_step(handshake, &message, &mut reply, now);
            if let Some(exchange) = self.exchange()
                && !reply.is_empty()
            {
                exchange.streams.write(handshake.stream, &reply)?;
            }
            if let Some((transport, remote)) = ready? {
                return self.settle(handshake, transport, &remote).map(Some);
            }
        }
        Ok(None)
    }

    pub(super) fn give_up(&mut self, handshake: Handshake<C>, error: ConnectError, now: Instant) {
        self.not_made(handshake.worker, handshake.number, handshake.origin, error);
        if let Some(exchange) = self.exchange() {
            exchange.streams.close(handshake.stream);
        }
        if let Stage::Answered(ConnTransport::Rc(qp), _) = handshake.stage
            && self.config.srq.is_some()
        {
            // The peer may have sent data.
            self.leave(handshake.worker, qp, false, now);
        }
    }
}
