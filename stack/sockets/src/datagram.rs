//! Datagram sockets (udp(7)).

use crate::service::{Endpoint, SocketId, Sockets};
use crate::socket::{Socket, State};
use linerate_service::{Datagram, Transport};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Memory that a datagram occupies in addition to its payload, as the kernel counts it (SO_RCVBUF).
const OVERHEAD: usize = 768;

/// Longest payload of a datagram over IPv4.
const MAX_PAYLOAD: usize = 65_507;

/// Other sockets that may be bound to the address of a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Sockets with the same option (SO_REUSEADDR).
    pub address: bool,
    /// Sockets with the same option, among which arrivals are distributed (SO_REUSEPORT).
    pub port: bool,
}

impl Reuse {
    /// Returns whether sockets with these options may have one address.
    pub(crate) fn permits(self, other: Reuse) -> bool {
        self.address && other.address || self.port && other.port
    }
}

/// State of a datagram socket.
#[derive(Debug)]
pub(crate) struct Datagrams {
    /// Address of bind(2): connect(2) may replace the local address of the socket.
    bound: Option<SocketAddr>,
    queue: VecDeque<Datagram>,
    /// Memory of the datagrams in `queue`.
    queued: usize,
    /// Limit of `queued` (SO_RCVBUF).
    limit: usize,
    /// True if `::` includes the addresses of IPv4.
    is_dual: bool,
    reuse: Reuse,
}

impl Datagrams {
    /// Returns the addresses on which the worker must receive.
    fn addresses(&self) -> Vec<SocketAddr> {
        let Some(bound) = self.bound else { return Vec::new() };
        let mut addresses = vec![bound];
        if self.is_dual && bound.ip() == Ipv6Addr::UNSPECIFIED {
            addresses.push((Ipv4Addr::UNSPECIFIED, bound.port()).into());
        }
        addresses
    }

    /// Returns the number of bytes of the first datagram.
    pub fn first_len(&self) -> usize {
        self.queue.front().map_or(0, |first| first.payload.len())
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Returns whether a socket at `bound` receives what is sent to `ip`. `is_dual` is true if `::` includes IPv4.
fn covers(bound: IpAddr, is_dual: bool, ip: IpAddr) -> bool {
    bound == ip || bound.is_unspecified() && (bound.is_ipv4() == ip.is_ipv4() || bound.is_ipv6() && is_dual)
}

impl Sockets {
    /// Creates a datagram socket whose queue holds `limit` bytes. With `is_dual`, `::` includes the addresses of IPv4.
    pub fn datagram_socket(&mut self, limit: usize, is_dual: bool) -> SocketId {
        let queue = VecDeque::new();
        let datagrams = Datagrams { bound: None, queue, queued: 0, limit, is_dual, reuse: Reuse::default() };
        let socket = Socket { state: State::Datagrams(Box::new(datagrams)), ..Socket::new() };
        SocketId(self.sockets.insert(socket) as u32)
    }

    fn datagrams(&mut self, id: SocketId) -> Result<&mut Datagrams, Errno> {
        match &mut self.get(id)?.state {
            State::Datagrams(datagrams) => Ok(datagrams),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Sets the limit of the queue (SO_RCVBUF).
    pub fn set_receive_limit(&mut self, id: SocketId, limit: usize) {
        if let Ok(datagrams) = self.datagrams(id) {
            datagrams.limit = limit;
        }
    }

    /// Binds a datagram socket to `address` (bind(2)), whose port is not 0. Returns the addresses on which the worker
    /// must begin to receive.
    ///
    /// # Errors
    /// `EINVAL` if the socket is bound; `EADDRINUSE` if another socket is, without options that permit it.
    pub fn bind_datagrams(
        &mut self,
        id: SocketId,
        address: SocketAddr,
        reuse: Reuse,
    ) -> Result<Vec<SocketAddr>, Errno> {
        let datagrams = self.datagrams(id)?;
        if datagrams.bound.is_some() {
            return Err(Errno::INVAL);
        }
        let is_dual = datagrams.is_dual;
        let at_port = self.ports.get(&address.port()).map_or(&[][..], Vec::as_slice);
        for other in at_port {
            let Some(Socket { state: State::Datagrams(other), .. }) = self.sockets.get(other.0 as usize) else {
                continue;
            };
            let overlaps = other.bound.is_some_and(|bound| {
                covers(bound.ip(), other.is_dual, address.ip()) || covers(address.ip(), is_dual, bound.ip())
            });
            if overlaps && !reuse.permits(other.reuse) {
                return Err(Errno::ADDRINUSE);
            }
        }
        let socket = self.get(id)?;
        socket.local = Some(address);
        let State::Datagrams(datagrams) = &mut socket.state else { return Err(Errno::OPNOTSUPP) };
        (datagrams.bound, datagrams.reuse) = (Some(address), reuse);
        let wanted = datagrams.addresses();
        let added = wanted.into_iter().filter(|address| !self.receives_at(*address)).collect();
        self.ports.entry(address.port()).or_default().push(id);
        Ok(added)
    }

    /// Returns the addresses of all datagram sockets.
    pub(crate) fn datagram_addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.sockets.iter().flat_map(|(_, socket)| match &socket.state {
            State::Datagrams(datagrams) => datagrams.addresses(),
            _ => Vec::new(),
        })
    }

    /// Returns whether a datagram socket is bound to exactly this address.
    fn receives_at(&self, address: SocketAddr) -> bool {
        self.ports.get(&address.port()).is_some_and(|at_port| {
            at_port.iter().any(|id| match &self.sockets[id.0 as usize].state {
                State::Datagrams(datagrams) => datagrams.addresses().contains(&address),
                _ => false,
            })
        })
    }

    /// Sets the peer of a bound datagram socket (connect(2)), or removes it.
    ///
    /// # Errors
    /// `ENETUNREACH` without a local address for `remote`.
    pub fn connect_datagrams(
        &mut self,
        net: &impl Transport,
        id: SocketId,
        remote: Option<SocketAddr>,
    ) -> Result<(), Errno> {
        let bound = self.datagrams(id)?.bound;
        let local = match (bound, remote) {
            (Some(bound), Some(remote)) if bound.ip().is_unspecified() => {
                let ip = net.source_for(remote.ip()).ok_or(Errno::NETUNREACH)?;
                Some(SocketAddr::new(ip, bound.port()))
            }
            _ => bound,
        };
        let socket = self.get(id)?;
        (socket.peer, socket.local) = (remote, local);
        Ok(())
    }

    /// Takes the first received datagram, or a copy of it with `peek` (MSG_PEEK). Returns `None` after a shutdown of
    /// reading.
    ///
    /// # Errors
    /// `EAGAIN` if there is none.
    pub fn recv_datagram(&mut self, id: SocketId, peek: bool) -> Result<Option<Datagram>, Errno> {
        let socket = self.get(id)?;
        socket.take_error()?;
        let is_shut = socket.read_shut;
        let State::Datagrams(datagrams) = &mut socket.state else { return Err(Errno::OPNOTSUPP) };
        let first = if peek { datagrams.queue.front().cloned() } else { datagrams.queue.pop_front() };
        match first {
            Some(first) => {
                if !peek {
                    datagrams.queued -= first.payload.len() + OVERHEAD;
                }
                Ok(Some(first))
            }
            None if is_shut => Ok(None),
            None => Err(Errno::AGAIN),
        }
    }

    /// Sends a datagram of `len` bytes, which `write` writes, to `to` or else the peer (sendto(2)), from the local
    /// address `from` if the socket is bound to all. One that cannot be sent now for lack of packets is dropped.
    ///
    /// # Errors
    /// `EDESTADDRREQ` without a destination, `EMSGSIZE` if it is too long, `EAGAIN` while the transmit queue is full,
    /// `ENETUNREACH` without a local address, `EPIPE` after a shutdown of writing, or a pending error.
    pub fn send_datagram(
        &mut self,
        net: &mut impl Transport,
        id: SocketId,
        (to, from): (Option<SocketAddr>, Option<IpAddr>),
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), Errno> {
        let socket = self.get(id)?;
        socket.take_error()?;
        if socket.write_shut {
            return Err(Errno::PIPE);
        }
        let remote = to.or(socket.peer).ok_or(Errno::DESTADDRREQ)?;
        let mut local = socket.local.ok_or(Errno::INVAL)?;
        if remote.port() == 0 {
            return Err(Errno::INVAL);
        }
        if len > MAX_PAYLOAD {
            return Err(Errno::MSGSIZE);
        }
        if local.ip().is_unspecified() {
            local.set_ip(from.or_else(|| net.source_for(remote.ip())).ok_or(Errno::NETUNREACH)?);
        }
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(Errno::NETUNREACH);
        }
        if net.datagram_space() == 0 {
            return Err(Errno::AGAIN);
        }
        net.write_datagram(local, remote, len, write);
        Ok(())
    }

    /// Returns the socket that receives a datagram: one that is connected to `remote` before one that is not, a
    /// specific address before all, and of equal ones the latest, as the kernel.
    fn receiver(&self, local: SocketAddr, remote: SocketAddr) -> Option<SocketId> {
        let (mut best, mut best_score, mut equal) = (None, 0, Vec::new());
        for id in self.ports.get(&local.port())?.iter().rev() {
            let socket = &self.sockets[id.0 as usize];
            let State::Datagrams(datagrams) = &socket.state else { continue };
            let at = socket.local?.ip();
            if socket.peer.is_some_and(|peer| peer != remote) || !covers(at, datagrams.is_dual, local.ip()) {
                continue;
            }
            let score = 1 + u32::from(at == local.ip()) + 2 * u32::from(socket.peer.is_some());
            if score > best_score {
                (best, best_score) = (Some(*id), score);
                equal.clear();
            }
            if score == best_score && datagrams.reuse.port {
                equal.push(*id);
            }
        }
        if equal.len() > 1 {
            // Datagrams of one peer stay with one socket.
            return Some(equal[self.hasher.hash_one(remote) as usize % equal.len()]);
        }
        best
    }

    /// Appends a received datagram to the queue of its socket, or drops it if that is full.
    pub(crate) fn received_datagram(&mut self, datagram: Datagram) {
        let Some(id) = self.receiver(datagram.local, datagram.remote) else { return };
        let Ok(datagrams) = self.datagrams(id) else { return };
        if datagrams.queued > datagrams.limit {
            return;
        }
        datagrams.queued += datagram.payload.len() + OVERHEAD;
        datagrams.queue.push_back(datagram);
        self.wake(id);
    }

    /// Reports to the socket that is connected to `remote` that its datagram was refused.
    pub(crate) fn refused_datagram(&mut self, local: SocketAddr, remote: SocketAddr) {
        let Some(id) = self.receiver(local, remote) else { return };
        if let Ok(socket) = self.get(id)
            && socket.peer == Some(remote)
        {
            socket.error = Some(Errno::CONNREFUSED);
            self.wake(id);
        }
    }

    /// Removes a datagram socket. Returns the addresses on which the worker need not receive any more.
    pub(crate) fn close_datagrams(&mut self, id: SocketId) -> Vec<Endpoint> {
        let State::Datagrams(datagrams) = self.sockets.remove(id.0 as usize).state else { return Vec::new() };
        let addresses = datagrams.addresses();
        if let Some(port) = addresses.first().map(SocketAddr::port)
            && let Some(at_port) = self.ports.get_mut(&port)
        {
            at_port.retain(|other| *other != id);
            if at_port.is_empty() {
                self.ports.remove(&port);
            }
        }
        addresses.into_iter().filter(|address| !self.receives_at(*address)).map(Endpoint::Udp).collect()
    }
}
