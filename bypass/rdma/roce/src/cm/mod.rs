//! Connection manager (IBA 12), with the private data header of the RDMA IP CM service (annex A11).
//!
//! It interoperates with Linux' ib_cm and rdma_cm. Retransmission is faster: a port on a LAN answers within
//! milliseconds, and a message that was lost would otherwise be late by seconds.

mod connections;
mod mad;
mod messages;
#[cfg(test)]
mod tests;

use crate::table::{Table, errno, require};
use crate::waker::Waker;
use connections::{Connection, Connections, State};
use linerate_rdma_provider::{
    Access, AhAttr, CmConnParam, CmEvent, CmEventKind, Handle, Mtu, PrivateData, QpOptions, QpState, Retry, Transition,
};
use linerate_service::time::Instant;
use mad::{Endpoint, MAD_LEN, Mad, Rep, Req, gid_of, mtu_code};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

/// Maximum requests of peers that are not established. Further requests are dropped; their senders retry.
const MAX_HALF_OPEN: usize = 4096;
/// Maximum connections that repeat a DREQ or REJ without an identifier. Further ones send it once.
const MAX_LINGERING: usize = 1024;
/// Range of ports that the connection manager chooses from (RFC 6335 §6).
const FIRST_DYNAMIC_PORT: u16 = 49_152;
/// Port number of the device.
const PORT: u8 = 1;

/// Messages that had no effect, by cause.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// No message of the connection manager.
    pub malformed: u64,
    /// Message type that is not implemented: LAP, APR and SIDR.
    pub unsupported: u64,
    /// Duplicate, or of no connection.
    pub ignored: u64,
    /// Request beyond a backlog or [`MAX_HALF_OPEN`].
    pub over_limit: u64,
    /// Message not sent because too many were pending.
    pub unsent: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    New,
    Listening {
        backlog: u32,
        /// Requests whose events were not taken.
        untaken: u32,
    },
    AddressResolved,
    RouteResolved,
    /// Has the connection with this communication ID.
    Connecting(u32),
    /// The connection failed or has ended.
    Over,
}

struct Id {
    channel: Handle,
    phase: Phase,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    /// Listener of a request, until its event is taken.
    listener: Option<Handle>,
    /// PSN of the first packet received. The peer is notified of it.
    psn: u32,
}

impl Id {
    fn is_on_device(&self) -> bool {
        self.local.is_some_and(|local| !local.ip().is_unspecified())
    }
}

/// MAD to send, between two ports.
struct Outgoing {
    local: IpAddr,
    remote: IpAddr,
    mad: Box<Mad>,
}

/// Identifiers and event channels of a device.
pub(crate) struct Cm {
    random: fastrand::Rng,
    guid: u64,
    /// Upper half of transaction IDs.
    transaction: u32,
    addresses: Vec<(IpAddr, u8)>,
    mtu: Mtu,
    channels: Table<Waker<CmEvent>>,
    ids: Table<Id>,
    listeners: HashMap<u16, Vec<Handle>>,
    next_port: u16,
    connections: Connections,
    outgoing: VecDeque<Outgoing>,
    counters: Counters,
}

impl Cm {
    /// Creates a connection manager without addresses.
    pub fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Cm {
            guid: random.u64(..),
            transaction: random.u32(..),
            addresses: Vec::new(),
            mtu: Mtu::Mtu1024,
            channels: Table::new(),
            ids: Table::new(),
            listeners: HashMap::new(),
            next_port: random.u16(FIRST_DYNAMIC_PORT..),
            connections: Connections::default(),
            outgoing: VecDeque::new(),
            counters: Counters::default(),
            random,
        }
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Sets the local addresses with their prefix lengths, and the path MTU of the port. Identifiers that are bound to
    /// a removed address receive [`CmEventKind::AddressChanged`].
    pub fn set_addresses(&mut self, addresses: &[(IpAddr, u8)], mtu: Mtu) {
        self.mtu = mtu;
        let old = std::mem::replace(&mut self.addresses, addresses.to_vec());
        let is_removed = |ip: IpAddr| old.iter().any(|&(other, _)| other == ip) && !self.is_local(ip);
        let is_bound = |id: &Id| id.phase != Phase::Over && id.local.is_some_and(|local| is_removed(local.ip()));
        let bound: Vec<Handle> = self.ids.iter().filter(|(_, id)| is_bound(id)).map(|(handle, _)| handle).collect();
        for id in bound {
            self.notify_id(id, CmEventKind::AddressChanged, 0, PrivateData::default());
        }
    }

    fn is_local(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|&(address, _)| address == ip)
    }

    /// Returns the index in the GID table of a local address.
    pub fn gid_index(&self, local: IpAddr) -> u8 {
        let index = self.addresses.iter().position(|&(address, _)| address == local);
        index.and_then(|index| u8::try_from(index).ok()).unwrap_or_default()
    }

    pub fn create_event_channel(&mut self) -> io::Result<(Handle, RawFd)> {
        let channel = Waker::new()?;
        let fd = channel.fd();
        Ok((self.channels.add(channel), fd))
    }

    /// Destroys an event channel, which must have no identifiers.
    pub fn destroy_event_channel(&mut self, channel: Handle) -> io::Result<()> {
        require(!self.ids.iter().any(|(_, id)| id.channel == channel), libc::EBUSY)?;
        self.channels.remove(channel).map(drop)
    }

    pub fn get_event(&mut self, channel: Handle) -> io::Result<Option<CmEvent>> {
        let event = self.channels.get_mut(channel)?.pop();
        if let Some(CmEvent { id, kind: CmEventKind::Request { listener }, .. }) = event {
            self.ids.get_mut(id)?.listener = None;
            if let Phase::Listening { untaken, .. } = &mut self.ids.get_mut(listener)?.phase {
                *untaken -= 1;
            }
        }
        Ok(event)
    }

    pub fn create_id(&mut self, channel: Handle) -> io::Result<Handle> {
        self.channels.get(channel)?;
        Ok(self.add_id(channel, Phase::New))
    }

    fn add_id(&mut self, channel: Handle, phase: Phase) -> Handle {
        let psn = self.random.u32(..1 << 24);
        self.ids.add(Id { channel, phase, local: None, remote: None, listener: None, psn })
    }

    /// Destroys an identifier, with its events. Ends its connection, or rejects its request; a listener's requests that
    /// were not taken are rejected.
    pub fn destroy_id(&mut self, id: Handle, now: Instant) -> io::Result<()> {
        let Id { phase, local, .. } = *self.ids.get(id)?;
        match phase {
            Phase::Listening { .. } => {
                let untaken = self.ids.iter().filter(|(_, other)| other.listener == Some(id));
                for request in untaken.map(|(request, _)| request).collect::<Vec<_>>() {
                    self.destroy_id(request, now)?;
                }
                let port = local.map(|local| local.port()).unwrap_or_default();
                if let Some(listeners) = self.listeners.get_mut(&port) {
                    listeners.retain(|&listener| listener != id);
                    if listeners.is_empty() {
                        self.listeners.remove(&port);
                    }
                }
            }
            Phase::Connecting(comm) => self.abandon(comm, now),
            _ => {}
        }
        let Id { channel, .. } = self.ids.remove(id)?;
        self.channels.get_mut(channel)?.retain(|event| event.id != id);
        Ok(())
    }

    /// Listens on `address`. Returns it with the port chosen for port 0.
    pub fn listen(&mut self, id: Handle, mut address: SocketAddr, backlog: u32) -> io::Result<SocketAddr> {
        require(self.ids.get(id)?.phase == Phase::New, libc::EINVAL)?;
        require(address.ip().is_unspecified() || self.is_local(address.ip()), libc::EADDRNOTAVAIL)?;
        if address.port() == 0 {
            address.set_port(self.free_port().ok_or_else(|| errno(libc::EADDRNOTAVAIL))?);
        }
        let ip = address.ip();
        let overlaps = |other: IpAddr| matches_address(ip, other) || matches_address(other, ip);
        let is_taken = self.listeners_at(address.port()).any(|(_, other)| overlaps(other));
        require(!is_taken, libc::EADDRINUSE)?;
        self.listeners.entry(address.port()).or_default().push(id);
        let object = self.ids.get_mut(id)?;
        object.phase = Phase::Listening { backlog: backlog.max(1), untaken: 0 };
        object.local = Some(address);
        Ok(address)
    }

    /// Returns the listeners of a port, with their addresses.
    fn listeners_at(&self, port: u16) -> impl Iterator<Item = (Handle, IpAddr)> {
        let listeners = self.listeners.get(&port).into_iter().flatten();
        listeners.filter_map(|&id| Some((id, self.ids.get(id).ok()?.local?.ip())))
    }

    /// Returns the listener of a local address, the most specific one first.
    fn listener(&self, address: IpAddr, port: u16) -> Option<Handle> {
        let matching = self.listeners_at(port).filter(|&(_, listening)| matches_address(listening, address));
        matching.min_by_key(|(_, listening)| listening.is_unspecified()).map(|(id, _)| id)
    }

    fn free_port(&mut self) -> Option<u16> {
        for _ in FIRST_DYNAMIC_PORT..=u16::MAX {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_DYNAMIC_PORT);
            if !self.listeners.contains_key(&port) {
                return Some(port);
            }
        }
        None
    }

    /// Binds an identifier to the local address on the way to `remote`. The event follows at once: neighbors are
    /// resolved by the port.
    pub fn resolve_addr(&mut self, id: Handle, remote: SocketAddr, _timeout_ms: u32) -> io::Result<()> {
        require(self.ids.get(id)?.phase == Phase::New, libc::EINVAL)?;
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let local = self.source_to(remote.ip()).zip(self.free_port());
        let object = self.ids.get_mut(id)?;
        object.remote = Some(remote);
        object.local = local.map(SocketAddr::from);
        let (phase, kind, status) = match local {
            Some(_) => (Phase::AddressResolved, CmEventKind::AddressResolved, 0),
            None => (Phase::Over, CmEventKind::AddressFailed, -libc::ENETUNREACH),
        };
        object.phase = phase;
        self.notify_id(id, kind, status, PrivateData::default());
        Ok(())
    }

    /// Returns the local address with the longest prefix that `remote` has, else the first one of its family.
    fn source_to(&self, remote: IpAddr) -> Option<IpAddr> {
        let of_family = || self.addresses.iter().filter(|(address, _)| address.is_ipv4() == remote.is_ipv4());
        let itself = of_family().find(|&&(address, _)| address == remote);
        let near = of_family().rev().filter(|&&(address, prefix)| shares_prefix(address, remote, prefix));
        let nearest = near.max_by_key(|(_, prefix)| *prefix);
        itself.or(nearest).or_else(|| of_family().next()).map(|&(address, _)| address)
    }

    pub fn resolve_route(&mut self, id: Handle, _timeout_ms: u32) -> io::Result<()> {
        let object = self.ids.get_mut(id)?;
        require(object.phase == Phase::AddressResolved, libc::EINVAL)?;
        object.phase = Phase::RouteResolved;
        self.notify_id(id, CmEventKind::RouteResolved, 0, PrivateData::default());
        Ok(())
    }

    pub fn is_on_device(&self, id: Handle) -> bool {
        self.ids.get(id).is_ok_and(Id::is_on_device)
    }

    /// Returns the local and the remote address.
    pub fn addresses(&self, id: Handle) -> Option<(SocketAddr, SocketAddr)> {
        let Id { local, remote, .. } = self.ids.get(id).ok()?;
        local.zip(*remote)
    }

    /// Returns the local address of an identifier that is bound to this device.
    pub fn source(&self, id: Handle) -> io::Result<IpAddr> {
        let object = self.ids.get(id)?;
        require(object.is_on_device(), libc::EINVAL)?;
        object.local.map(|local| local.ip()).ok_or_else(|| errno(libc::EINVAL))
    }

    pub fn connect(&mut self, id: Handle, parameters: &CmConnParam, now: Instant) -> io::Result<()> {
        let Id { phase, local, remote, psn, .. } = *self.ids.get(id)?;
        require(phase == Phase::RouteResolved, libc::EINVAL)?;
        let (local, remote) = local.zip(remote).ok_or_else(|| errno(libc::EINVAL))?;
        let comm = self.new_comm();
        let transaction = self.transaction_of(comm);
        let ends = [local.ip(), remote.ip()];
        let mut connection = Connection::new(id, State::ReqSent, ends, transaction, self.mtu);
        connection.set_parameters(parameters);
        self.connections.add(comm, connection);
        self.ids.get_mut(id)?.phase = Phase::Connecting(comm);
        let req = Req {
            transaction,
            sender: self.endpoint(comm, psn, parameters),
            service: Req::service_of(remote.port()),
            transport: 0,
            retries: parameters.retries,
            rnr_retries: parameters.rnr_retries,
            mtu: mtu_code(self.mtu),
            is_shared: parameters.is_shared,
            local: local.ip(),
            remote: remote.ip(),
            port: Some(local.port()),
            private_data: parameters.private_data,
        };
        self.send_until_answered(now, comm, req.write());
        Ok(())
    }

    fn endpoint(&self, comm: u32, psn: u32, parameters: &CmConnParam) -> Endpoint {
        let &CmConnParam { qp, responder_resources, initiator_depth, .. } = parameters;
        Endpoint { comm, guid: self.guid, qp, psn, responder_resources, initiator_depth }
    }

    /// Notifies the peer, which has accepted, that the queue pair is ready.
    pub fn establish(&mut self, id: Handle) -> io::Result<()> {
        let (comm, &Connection { transaction, peer, .. }) = self.connection(id, &[State::RepReceived])?;
        self.connections.set_state(comm, State::Established);
        self.send(comm, Mad::new(mad::attribute::RTU, transaction, comm, peer.comm));
        Ok(())
    }

    pub fn accept(&mut self, id: Handle, parameters: &CmConnParam, now: Instant) -> io::Result<()> {
        let psn = self.ids.get(id)?.psn;
        let (comm, &Connection { transaction, peer, .. }) = self.connection(id, &[State::ReqReceived])?;
        if let Some(connection) = self.connections.get_mut(comm) {
            connection.set_parameters(parameters);
        }
        self.connections.set_state(comm, State::RepSent);
        let rep = Rep {
            transaction,
            sender: self.endpoint(comm, psn, parameters),
            receiver: peer.comm,
            rnr_retries: parameters.rnr_retries,
            is_shared: parameters.is_shared,
            private_data: parameters.private_data,
        };
        self.send_until_answered(now, comm, rep.write());
        Ok(())
    }

    pub fn reject(&mut self, id: Handle, private_data: &[u8], now: Instant) -> io::Result<()> {
        let (comm, _) = self.connection(id, &[State::ReqReceived])?;
        self.reject_request(now, comm, private_data);
        Ok(())
    }

    /// Ends a connection, or confirms that the peer has ended it.
    pub fn disconnect(&mut self, id: Handle, now: Instant) -> io::Result<()> {
        use State::*;
        if self.ids.get(id)?.phase == Phase::Over {
            return Ok(());
        }
        let states = [RepReceived, RepSent, Established, DreqSent, DreqReceived, TimeWait];
        let (comm, connection) = self.connection(id, &states)?;
        match connection.state {
            RepReceived | RepSent | Established => self.send_dreq(now, comm),
            DreqReceived => {
                self.send_drep(comm);
                self.enter_time_wait(now, comm);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the connection of an identifier, if it is in one of `states`.
    fn connection(&self, id: Handle, states: &[State]) -> io::Result<(u32, &Connection)> {
        let Phase::Connecting(comm) = self.ids.get(id)?.phase else { return Err(errno(libc::EINVAL)) };
        let connection = self.connections.get(comm).filter(|connection| states.contains(&connection.state));
        Ok((comm, connection.ok_or_else(|| errno(libc::EINVAL))?))
    }

    /// Returns the transition to `state` with the attributes of the connection, except for `options`. Before a connect
    /// request, `Init` grants the peer nothing; afterwards it grants writes, and reads if the peer may initiate READs.
    pub fn transition(&self, id: Handle, state: QpState, options: &QpOptions) -> io::Result<Transition> {
        use State::*;
        let object = self.ids.get(id)?;
        let source = self.source(id)?;
        let QpOptions { retry, path } = options;
        let answered = || self.connection(id, &[ReqReceived, RepReceived, RepSent, Established]);
        Ok(match state {
            QpState::Init => {
                let requested = self.connection(id, &[ReqSent, ReqReceived, RepReceived, RepSent, Established]).ok();
                let remote_read = requested.is_some_and(|(_, connection)| connection.responder_resources > 0);
                let remote_write = requested.is_some();
                let access = Access { remote_write, remote_read, remote_atomic: remote_read, ..Access::default() };
                Transition::Init { port: PORT, partition: path.pkey_index, access }
            }
            QpState::Rtr => {
                let (_, connection) = answered()?;
                require(self.is_local(source), libc::EADDRNOTAVAIL)?;
                Transition::Rtr {
                    mtu: connection.mtu,
                    qp: connection.peer.qp,
                    psn: object.psn,
                    responder_resources: connection.responder_resources,
                    min_rnr_timer: retry.min_rnr_timer,
                    path: AhAttr {
                        gid: gid_of(connection.remote),
                        lid: 0,
                        source: self.gid_index(source),
                        port: PORT,
                        hop_limit: 64,
                        traffic_class: path.traffic_class,
                        service_level: path.service_level,
                    },
                }
            }
            QpState::Rts => {
                let (_, connection) = answered()?;
                let Retry { timeout, retries, rnr_retries, .. } = *retry;
                let (psn, initiator_depth) = (connection.peer.psn, connection.initiator_depth);
                Transition::Rts { psn, timeout, retries, rnr_retries, initiator_depth }
            }
            _ => return Err(errno(libc::EINVAL)),
        })
    }

    /// Writes pending MADs until `send` returns false, because the port has no room.
    pub fn transmit(&mut self, send: &mut dyn FnMut(IpAddr, IpAddr, &[u8; MAD_LEN]) -> bool) {
        while let Some(Outgoing { local, remote, mad }) = self.outgoing.front() {
            if !send(*local, *remote, &mad.0) {
                return;
            }
            self.outgoing.pop_front();
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.connections.next_deadline()
    }
}

#[cfg(any(test, feature = "testing"))]
impl Cm {
    /// Returns the numbers of event channels and identifiers.
    pub fn live(&self) -> [usize; 2] {
        [self.channels.len(), self.ids.len()]
    }

    /// Returns true if the channel or identifier of a handle was destroyed.
    pub fn is_gone(&self, handle: Handle, is_channel: bool) -> bool {
        if is_channel { self.channels.is_gone(handle) } else { self.ids.is_gone(handle) }
    }

    pub fn ids(&self) -> Vec<Handle> {
        self.ids.iter().map(|(id, _)| id).collect()
    }

    pub fn is_sending(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Notifies all identifiers that the device was removed.
    pub fn notify_removed(&mut self) {
        for id in self.ids() {
            self.notify_id(id, CmEventKind::Removed, 0, PrivateData::default());
        }
    }
}

/// Returns true if a listener on `listening` accepts requests to `address`. The IPv6 wildcard includes IPv4.
fn matches_address(listening: IpAddr, address: IpAddr) -> bool {
    listening == address || listening.is_unspecified() && (listening.is_ipv6() || address.is_ipv4())
}

/// Returns true if the first `prefix` bits of two addresses of one family are equal.
fn shares_prefix(one: IpAddr, other: IpAddr, prefix: u8) -> bool {
    // IPv4 addresses are mapped into a prefix of 96 bits.
    let prefix = u32::from(prefix) + if one.is_ipv4() { 96 } else { 0 };
    let differing = u128::from_be_bytes(gid_of(one)) ^ u128::from_be_bytes(gid_of(other));
    differing.leading_zeros() >= prefix
}
