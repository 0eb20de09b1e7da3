//! Sockets of a worker.

use crate::epoll::{EpollSet, Target, bits};
use crate::socket::{Socket, State};
use linerate_service::{CloseReason, ConnId, ConnectError, Datagram, Origin, Service, Transport};
use rustix::io::Errno;
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Largest backlog of a listening socket (net.core.somaxconn).
const MAX_BACKLOG: usize = 4096;
/// Most connections that wait for accept(2), whatever the backlog. The kernel drops SYNs while a queue is full, and
/// peers repeat them. The stack resets connections, which a burst of SYNs must not cause.
pub(crate) const MAX_QUEUE: usize = if cfg!(test) { 128 } else { 16_384 };

/// Socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SocketId(pub(crate) u32);

impl SocketId {
    /// Returns the index of the socket, which is reused after its end.
    pub fn index(self) -> u32 {
        self.0
    }

    /// Returns the socket with this index.
    pub fn from_index(index: u32) -> Self {
        SocketId(index)
    }
}

/// Direction of a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// SHUT_RD
    Read,
    /// SHUT_WR
    Write,
    /// SHUT_RDWR
    Both,
}

/// Address on which the worker receives for a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Connections are accepted.
    Tcp(SocketAddr),
    /// Datagrams are received.
    Udp(SocketAddr),
}

/// Sockets and epoll sets of a worker.
#[derive(Debug, Default)]
pub struct Sockets {
    pub(crate) sockets: Slab<Socket>,
    pub(crate) epolls: Slab<EpollSet>,
    /// Listening sockets by their addresses: several with SO_REUSEPORT.
    listeners: HashMap<SocketAddr, Vec<SocketId>>,
    /// Bound datagram sockets by their ports, in the order of their binding.
    pub(crate) ports: HashMap<u16, Vec<SocketId>>,
    /// Hash of peers, which they cannot predict.
    pub(crate) hasher: RandomState,
    /// Number of changes of readiness.
    pub(crate) changes: u64,
}

impl Sockets {
    /// Creates a stream socket.
    pub fn socket(&mut self) -> SocketId {
        SocketId(self.sockets.insert(Socket::new()) as u32)
    }

    /// Returns the number of changes of readiness so far. An operation that returned `EAGAIN` may succeed after one.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the number of sockets, with those that are being closed.
    pub fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Returns whether there are no sockets.
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    pub(crate) fn get(&mut self, id: SocketId) -> Result<&mut Socket, Errno> {
        self.sockets.get_mut(id.0 as usize).ok_or(Errno::BADF)
    }

    /// Returns the local address.
    pub fn local_addr(&self, id: SocketId) -> Option<SocketAddr> {
        self.sockets.get(id.0 as usize)?.local
    }

    /// Returns the address of the peer of a connected socket.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn peer_addr(&self, id: SocketId) -> Result<SocketAddr, Errno> {
        let socket = self.sockets.get(id.0 as usize).ok_or(Errno::BADF)?;
        match socket.state {
            State::Connected(_) | State::Datagrams(_) => socket.peer.ok_or(Errno::NOTCONN),
            _ => Err(Errno::NOTCONN),
        }
    }

    /// Returns whether a socket listens on `address`, or has a connection that was accepted there.
    pub fn uses(&self, address: SocketAddr) -> bool {
        let is_at = |local: SocketAddr| {
            local.port() == address.port()
                && (local.ip() == address.ip() || address.ip().is_unspecified() && local.is_ipv4() == address.is_ipv4())
        };
        self.listeners.contains_key(&address) || self.sockets.iter().any(|(_, socket)| socket.local.is_some_and(is_at))
    }

    /// Sets the local address of a socket (bind(2)).
    ///
    /// # Errors
    /// `EINVAL` if the socket has one; `EADDRINUSE` if another socket listens on it.
    pub fn bind(&mut self, id: SocketId, address: SocketAddr) -> Result<(), Errno> {
        if !self.may_share(id, address) {
            return Err(Errno::ADDRINUSE);
        }
        let socket = self.get(id)?;
        if socket.local.is_some() {
            return Err(Errno::INVAL);
        }
        socket.local = Some(address);
        Ok(())
    }

    /// Begins to listen on the bound address (listen(2)), and with `is_dual` on `0.0.0.0` if that is `::` (ipv6(7)).
    /// Returns the addresses on which the worker must begin to accept.
    ///
    /// # Errors
    /// `EINVAL` for a connected or unbound socket, `EADDRINUSE` if another socket listens on its address.
    pub fn listen(&mut self, id: SocketId, backlog: usize, is_dual: bool) -> Result<Vec<SocketAddr>, Errno> {
        // The kernel accepts one connection more than the backlog.
        let most = backlog.clamp(1, MAX_BACKLOG) + 1;
        let socket = self.get(id)?;
        if let State::Datagrams(_) = socket.state {
            return Err(Errno::OPNOTSUPP);
        }
        let address = socket.local.ok_or(Errno::INVAL)?;
        match &mut socket.state {
            State::Listening { backlog, .. } => {
                *backlog = most;
                return Ok(Vec::new());
            }
            State::Idle => {}
            _ => return Err(Errno::INVAL),
        }
        let mut addresses = vec![address];
        if is_dual && address.ip() == Ipv6Addr::UNSPECIFIED {
            addresses.push((Ipv4Addr::UNSPECIFIED, address.port()).into());
        }
        if !addresses.iter().all(|address| self.may_share(id, *address)) {
            return Err(Errno::ADDRINUSE);
        }
        self.get(id)?.state = State::Listening { backlog: most, queue: VecDeque::new() };
        addresses.retain(|address| {
            let listening = self.listeners.entry(*address).or_default();
            listening.push(id);
            listening.len() == 1
        });
        Ok(addresses)
    }

    /// Returns whether the socket may listen on `address`: no other does, or all permit it (SO_REUSEPORT).
    fn may_share(&self, id: SocketId, address: SocketAddr) -> bool {
        let permits = |id: &SocketId| self.sockets.get(id.0 as usize).is_some_and(|socket| socket.reuses_port);
        let listening = self.listeners_at(address);
        listening.is_empty() || permits(&id) && listening.iter().all(permits)
    }

    /// Takes a connection out of the queue of a listening socket (accept(2)).
    ///
    /// # Errors
    /// `EAGAIN` if there is none, `EINVAL` if the socket does not listen.
    pub fn accept(&mut self, id: SocketId) -> Result<(SocketId, SocketAddr), Errno> {
        let queue = match &mut self.get(id)?.state {
            State::Listening { queue, .. } => queue,
            State::Datagrams(_) => return Err(Errno::OPNOTSUPP),
            _ => return Err(Errno::INVAL),
        };
        let accepted = queue.pop_front().ok_or(Errno::AGAIN)?;
        let peer = self.get(accepted)?.peer;
        Ok((accepted, peer.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))))
    }

    /// Starts a connection (connect(2)).
    ///
    /// # Errors
    /// `EINPROGRESS` once it is started, `EALREADY` while it is, `EISCONN` after its success has been returned.
    pub fn connect(&mut self, net: &mut impl Transport, id: SocketId, remote: SocketAddr) -> Result<(), Errno> {
        let socket = self.get(id)?;
        match socket.state {
            State::Idle | State::Ended => {}
            State::Connecting => return Err(Errno::ALREADY),
            // The first connect(2) after the completion returns its success.
            State::Connected(_) if std::mem::take(&mut socket.connect_unreported) => return Ok(()),
            State::Connected(_) | State::Listening { .. } => return Err(Errno::ISCONN),
            State::Datagrams(_) => return Err(Errno::OPNOTSUPP),
        }
        socket.take_error()?;
        socket.state = State::Connecting;
        socket.peer = Some(remote);
        net.connect(remote, id.0.into());
        Err(Errno::INPROGRESS)
    }

    /// Shuts a connection down, or stops listening (shutdown(2)). Returns the addresses on which the worker need not
    /// receive any more.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn shutdown(&mut self, net: &mut impl Transport, id: SocketId, how: Shutdown) -> Result<Vec<Endpoint>, Errno> {
        let socket = self.get(id)?;
        let conn = match socket.state {
            State::Connected(conn) => Some(conn),
            State::Datagrams(_) if socket.peer.is_some() => None,
            State::Listening { .. } if how == Shutdown::Write => return Ok(Vec::new()),
            State::Listening { .. } => return Ok(self.stop_listening(net, id)),
            _ => return Err(Errno::NOTCONN),
        };
        if how != Shutdown::Write {
            socket.read_shut = true;
        }
        if how != Shutdown::Read && !socket.write_shut {
            socket.write_shut = true;
            conn.into_iter().for_each(|conn| net.close(conn));
        }
        self.wake(id);
        Ok(Vec::new())
    }

    /// Resets the connections that a listening socket has not accepted, and lets it listen no more.
    fn stop_listening(&mut self, net: &mut impl Transport, id: SocketId) -> Vec<Endpoint> {
        let Ok(socket) = self.get(id) else { return Vec::new() };
        if let State::Listening { queue, .. } = std::mem::replace(&mut socket.state, State::Idle) {
            for accepted in queue {
                self.reset_on_close(accepted, true);
                self.close(net, accepted);
            }
        }
        self.wake(id);
        self.leave_addresses(id)
    }

    /// Removes a listening socket from its addresses. Returns those on which no other listens.
    fn leave_addresses(&mut self, id: SocketId) -> Vec<Endpoint> {
        self.listeners.values_mut().for_each(|listening| listening.retain(|other| *other != id));
        let ended = self.listeners.extract_if(|_, listening| listening.is_empty());
        ended.map(|(address, _)| Endpoint::Tcp(address)).collect()
    }

    /// Closes the socket, to which no descriptor refers. Returns the addresses on which the worker need not receive any
    /// more. Unread bytes reset the connection (RFC 2525 §2.17).
    pub fn close(&mut self, net: &mut impl Transport, id: SocketId) -> Vec<Endpoint> {
        self.unwatch(Target::Socket(id), None);
        let Ok(socket) = self.get(id) else { return Vec::new() };
        match &socket.state {
            State::Connecting => socket.orphaned = true,
            State::Connected(conn) => {
                let conn = *conn;
                socket.orphaned = true;
                if socket.resets || !socket.peeked.is_empty() || net.received(conn) > 0 {
                    net.abort(conn);
                } else {
                    net.close(conn);
                }
            }
            State::Listening { .. } => {
                let ended = self.stop_listening(net, id);
                self.sockets.remove(id.0 as usize);
                return ended;
            }
            State::Idle | State::Ended | State::Datagrams(_) => return self.discard(id),
        }
        Vec::new()
    }

    /// Removes a socket without a connection. Returns the addresses on which the worker need not receive any more.
    pub fn discard(&mut self, id: SocketId) -> Vec<Endpoint> {
        if self.sockets.get(id.0 as usize).is_some_and(|socket| matches!(socket.state, State::Datagrams(_))) {
            return self.close_datagrams(id);
        }
        self.sockets.try_remove(id.0 as usize);
        self.leave_addresses(id)
    }

    /// Returns the addresses on which the worker must receive.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let listening = self.listeners.keys().copied().map(Endpoint::Tcp);
        listening.chain(self.datagram_addresses().map(Endpoint::Udp)).collect()
    }

    /// Returns the conditions of epoll_ctl(2) and poll(2) that hold.
    pub fn readiness(&self, net: &mut impl Transport, id: SocketId) -> u32 {
        use bits::*;
        const READABLE: u32 = IN | RDNORM;
        const WRITABLE: u32 = OUT | WRNORM;
        let Some(socket) = self.sockets.get(id.0 as usize) else { return 0 };
        let error = if socket.error.is_some() { ERR } else { 0 };
        error
            | match &socket.state {
                State::Idle => WRITABLE | HUP,
                State::Listening { queue, .. } => {
                    if queue.is_empty() {
                        0
                    } else {
                        READABLE
                    }
                }
                State::Connecting => 0,
                State::Connected(conn) => {
                    let ends = socket.peer_finished || socket.read_shut;
                    let mut ready = if ends { READABLE | RDHUP } else { 0 };
                    if ends && socket.write_shut {
                        ready |= HUP;
                    }
                    if !socket.peeked.is_empty() || net.received(*conn) > 0 {
                        ready |= READABLE;
                    }
                    if socket.write_shut || net.send_space(*conn) > 0 {
                        ready |= WRITABLE;
                    }
                    ready
                }
                State::Datagrams(datagrams) => {
                    let mut ready = if datagrams.is_empty() { WRITABLE } else { READABLE | WRITABLE };
                    if socket.read_shut {
                        ready |= READABLE | RDHUP;
                    }
                    if socket.read_shut && socket.write_shut {
                        ready |= HUP;
                    }
                    ready
                }
                State::Ended => READABLE | WRITABLE | RDHUP | HUP,
            }
    }

    fn listeners_at(&self, local: SocketAddr) -> &[SocketId] {
        let any = if local.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
        let exact = self.listeners.get(&local);
        exact.or_else(|| self.listeners.get(&SocketAddr::new(any, local.port()))).map_or(&[], Vec::as_slice)
    }

    /// Returns the listening socket for a connection from `peer` to `local`.
    fn listener_for(&self, local: SocketAddr, peer: Option<SocketAddr>) -> Option<SocketId> {
        match self.listeners_at(local) {
            [] => None,
            [only] => Some(*only),
            several => Some(several[self.hasher.hash_one(peer) as usize % several.len()]),
        }
    }

    /// Adds an accepted connection to the queue of its listening socket.
    fn accepted(&mut self, net: &mut impl Transport, conn: ConnId) -> Option<SocketId> {
        let (local, peer) = (net.local_addr(conn)?, net.peer_addr(conn));
        let listener = self.listener_for(local, peer)?;
        let Socket { state: State::Listening { queue, .. }, resets, limits, .. } = self.get(listener).ok()? else {
            return None;
        };
        if queue.len() >= MAX_QUEUE {
            return None;
        }
        let (resets, limits) = (*resets, *limits);
        limits.apply(net, conn);
        let state = State::Connected(conn);
        let connected = Socket { state, local: Some(local), peer, resets, limits, ..Socket::new() };
        let id = SocketId(self.sockets.insert(connected) as u32);
        if let State::Listening { queue, .. } = &mut self.sockets[listener.0 as usize].state {
            queue.push_back(id);
        }
        self.wake(listener);
        Some(id)
    }

    /// Completes a connect.
    fn connected(&mut self, net: &mut impl Transport, conn: ConnId, token: u64) -> Option<SocketId> {
        let id = SocketId(u32::try_from(token).ok()?);
        let socket = self.get(id).ok()?;
        if socket.orphaned {
            self.sockets.remove(id.0 as usize);
            return None;
        }
        socket.state = State::Connected(conn);
        socket.connect_unreported = true;
        socket.local = net.local_addr(conn);
        socket.limits.apply(net, conn);
        self.wake(id);
        Some(id)
    }
}

impl Service for Sockets {
    /// Socket of the connection, unless it is reset.
    type Conn = Option<SocketId>;
    type Message = Infallible;

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> Option<SocketId> {
        let socket = match origin {
            Origin::Accepted => self.accepted(net, conn),
            Origin::Connected(token) => self.connected(net, conn, token),
        };
        if socket.is_none() {
            net.abort(conn);
        }
        socket
    }

    fn failed(&mut self, _: &mut impl Transport, token: u64, error: ConnectError) {
        let id = SocketId(token as u32);
        let Ok(socket) = self.get(id) else { return };
        if socket.orphaned {
            self.sockets.remove(id.0 as usize);
            return;
        }
        socket.state = State::Ended;
        socket.error = Some(match error {
            ConnectError::Refused => Errno::CONNREFUSED,
            ConnectError::TimedOut => Errno::TIMEDOUT,
            ConnectError::NoLocalAddress | ConnectError::TooMany => Errno::ADDRNOTAVAIL,
            _ => Errno::HOSTUNREACH,
        });
        self.wake(id);
    }

    fn datagram(&mut self, _: &mut impl Transport, datagram: Datagram) {
        self.received_datagram(datagram);
    }

    fn datagram_refused(&mut self, _: &mut impl Transport, local: SocketAddr, remote: SocketAddr) {
        self.refused_datagram(local, remote);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Option<SocketId>) {
        let Some(id) = *state else { return };
        match self.sockets.get(id.0 as usize) {
            Some(socket) if socket.orphaned => {
                // Data for a closed socket resets the connection (RFC 9293 §3.6.1), once the bytes that the program
                // wrote before have been sent.
                if net.info(conn).is_some_and(|info| info.unsent > 0) {
                    net.consume(conn, usize::MAX);
                } else {
                    net.abort(conn);
                }
            }
            _ => self.wake(id),
        }
    }

    fn writable(&mut self, _: &mut impl Transport, _: ConnId, state: &mut Option<SocketId>) {
        state.iter().for_each(|id| self.wake(*id));
    }

    fn peer_closed(&mut self, _: &mut impl Transport, _: ConnId, state: &mut Option<SocketId>) {
        let Some(id) = *state else { return };
        if let Ok(socket) = self.get(id) {
            socket.peer_finished = true;
        }
        self.wake(id);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, state: Option<SocketId>, reason: CloseReason) {
        let Some(id) = state else { return };
        let Ok(socket) = self.get(id) else { return };
        if socket.orphaned {
            self.sockets.remove(id.0 as usize);
            return;
        }
        socket.state = State::Ended;
        socket.error = match reason {
            CloseReason::Finished => None,
            CloseReason::Reset if socket.peer_finished => Some(Errno::PIPE),
            CloseReason::Reset | CloseReason::Aborted => Some(Errno::CONNRESET),
            CloseReason::AddressLost => Some(Errno::NETDOWN),
            _ => Some(Errno::TIMEDOUT),
        };
        self.wake(id);
    }
}
