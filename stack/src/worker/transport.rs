//! [`Transport`] of the worker's service, and the selection of local addresses.

use crate::config::Config;
use crate::engine::Engine;
use crate::ip::addresses::Addresses;
use crate::ip::egress::Egress;
use crate::ip::router_info::RouterInfo;
use crate::ip::udp::SendResult;
use crate::slow_path::{DhcpLease, Lease, SlowPath};
use crate::wire::drop_stats::DropCause;
use crate::wire::ip_cidr::IpCidr;
use hashbrown::{HashMap, HashSet};
use linerate_bypass::{MacAddr, Nic};
use linerate_service::inspect::ConnState;
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, ConnId, Datagram, LINGER_TIME, Linger, Transport, respond_in_steps, send_written};
use std::net::SocketAddr;

/// [`Transport`] of a service: the engine and the transmit path.
pub(super) struct Core<N: Nic, E> {
    pub worker: usize,
    pub now: Instant,
    pub engine: E,
    pub egress: Egress<N>,
    pub slow: SlowPath,
    /// DHCP lease.
    pub lease: Lease,
    /// Router advertisements.
    pub network: Option<RouterInfo>,
    /// True if the IPv6 addresses have passed DAD.
    pub is_verified: bool,
    pub stopping: bool,
    pub silenced: Silenced,
}

/// Connections whose service receives only `closed`, and timer events to suppress.
#[derive(Default)]
pub(super) struct Silenced {
    /// Connections that the service aborted (`None`) or closed with a lingering close, until `closed` is delivered.
    conns: HashMap<ConnId, Option<Linger>, foldhash::fast::FixedState>,
    /// Connections whose timer was set after the expired timers were collected. Their expiry is out of date.
    rearmed: HashSet<ConnId, foldhash::fast::FixedState>,
    /// True if expired timers may await delivery.
    pub timers_pending: bool,
}

impl Silenced {
    /// Returns whether no connection is silenced, in which case events need no lookup.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// Returns whether `conn` is silenced.
    pub fn has(&self, conn: ConnId) -> bool {
        !self.is_empty() && self.conns.contains_key(&conn)
    }

    /// Removes `conn` when its `closed` event is delivered.
    pub fn forget(&mut self, conn: ConnId) {
        if !self.is_empty() {
            self.conns.remove(&conn);
        }
    }

    /// Records that all expired timers have been delivered.
    #[inline(always)]
    pub fn end_timers(&mut self) {
        self.timers_pending = false;
        if !self.rearmed.is_empty() {
            self.rearmed.clear();
        }
    }
}

/// Returns the usable addresses with this lease and router information; IPv6 addresses only after DAD.
pub(super) fn addresses_of(
    config: &Config,
    lease: Option<&DhcpLease>,
    network: Option<&RouterInfo>,
    is_verified: bool,
    mac: MacAddr,
) -> Addresses {
    if let Some(host) = &config.host {
        return Addresses::of_host(host);
    }
    let given = config.addresses.iter().filter(|cidr| is_verified || cidr.address().is_ipv4());
    let own: Vec<_> = given.copied().chain(lease.map(|lease| lease.address)).collect();
    let gateways = config.gateways.iter().copied().chain(lease.and_then(|lease| lease.gateway));
    let routes = lease.map(|lease| &lease.routes[..]).unwrap_or_default();
    let addresses = Addresses::new(&own, &gateways.collect::<Vec<_>>(), mac).with_routes(routes);
    let addresses = if config.slaac && is_verified { addresses.with_link_local(mac) } else { addresses };
    match network.filter(|_| is_verified) {
        Some(network) => addresses.with_router_info(network),
        None => addresses,
    }
}

impl<N: Nic, E: Engine<N>> Core<N, E> {
    /// Applies a new DHCP lease, or its loss.
    pub fn set_lease(&mut self, config: &Config, lease: Lease) {
        self.lease = lease;
        self.update_addresses(config);
    }

    /// Applies new router information.
    pub fn set_router_info(&mut self, config: &Config, network: RouterInfo) {
        let old = self.network.replace(network).unwrap_or_default();
        if self.worker == 0 {
            network.log(&old);
        }
        self.egress.apply_router_info(&network);
        if old.mtu != network.mtu {
            self.engine.set_mtu_v6(self.egress.mtu_v6());
        }
        self.update_addresses(config);
    }

    /// Recomputes the local addresses.
    pub fn update_addresses(&mut self, config: &Config) {
        if let Some(mac) = config.host_mac() {
            self.egress.set_mac(mac);
        }
        let lease = self.lease.as_deref();
        let addresses = addresses_of(config, lease, self.network.as_ref(), self.is_verified, self.egress.mac());
        let lost = |cidr: &&IpCidr| !addresses.is_local(cidr.address());
        for lost in self.egress.addresses().own().iter().filter(lost) {
            self.engine.address_removed(lost.address());
        }
        self.slow.set_addresses(&addresses, self.now);
        self.egress.set_addresses(addresses);
    }
}

impl<N: Nic, E: Engine<N>> Core<N, E> {
    /// Returns whether `conn` has data for its service. Discards the data of a silenced connection, and resets it when
    /// a lingering close has discarded too much.
    #[cold]
    pub fn delivers_readable(&mut self, conn: ConnId) -> bool {
        let Some(silenced) = self.silenced.conns.get_mut(&conn) else { return true };
        let received = self.engine.received(conn);
        self.engine.consume(conn, received);
        if silenced.as_mut().is_some_and(|linger| !linger.discard(received)) {
            self.abort(conn);
        }
        false
    }

    /// Returns whether the expired timer of `conn` is for its service. The timer of a lingering close resets the
    /// connection instead.
    pub fn delivers_timer(&mut self, conn: ConnId) -> bool {
        match self.silenced.conns.get(&conn) {
            None => !self.silenced.rearmed.contains(&conn),
            Some(None) => false,
            Some(Some(linger)) => {
                let state = self.engine.conn_info(conn.slot()).map(|info| info.state);
                let is_delivered =
                    !matches!(state, Some(ConnState::FinWait1 | ConnState::Closing | ConnState::LastAck));
                match linger.extend(self.now, is_delivered) {
                    Some(delay) => self.engine.set_timer(conn, Some(self.now + delay)),
                    None => self.abort(conn),
                }
                false
            }
        }
    }
}

impl<N: Nic, E: Engine<N>> Transport for Core<N, E> {
    fn now(&self) -> Instant {
        self.now
    }

    fn worker(&self) -> usize {
        self.worker
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.engine.local_addr(conn)
    }

    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.engine.peer_addr(conn)
    }

    fn received(&self, conn: ConnId) -> usize {
        self.engine.received(conn)
    }

    fn peek(&mut self, conn: ConnId) -> &[u8] {
        self.engine.peek(conn)
    }

    #[inline]
    fn front(&mut self, conn: ConnId) -> (&[u8], usize) {
        self.engine.front(conn)
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        self.engine.consume(conn, n);
    }

    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes> {
        self.engine.take(conn, max)
    }

    fn send_space(&mut self, conn: ConnId) -> usize {
        self.engine.send_space(conn)
    }

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Bytes> {
        self.engine.send(conn, bytes)
    }

    fn reserve(&mut self, conn: ConnId, max: usize) -> Option<&mut [u8]> {
        self.engine.reserve(conn, max, &mut self.egress)
    }

    fn commit(&mut self, conn: ConnId, n: usize) {
        self.engine.commit(conn, n);
    }

    fn respond(&mut self, conn: ConnId, request: usize, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        match self.engine.respond(conn, (request, len), write, &mut self.egress, self.now) {
            Ok(()) => true,
            Err(write) => respond_in_steps(self, conn, request, len, write),
        }
    }

    fn forward(&mut self, from: ConnId, to: ConnId) -> usize {
        self.engine.forward(from, to, &mut self.egress, self.now)
    }

    fn close(&mut self, conn: ConnId) {
        self.engine.close(conn);
    }

    fn lingering_close(&mut self, conn: ConnId) {
        if self.engine.peer_addr(conn).is_none() || self.silenced.has(conn) {
            return;
        }
        self.engine.close(conn);
        self.engine.set_timer(conn, Some(self.now + LINGER_TIME));
        self.silenced.conns.insert(conn, Some(Linger::new(self.now)));
        self.delivers_readable(conn);
    }

    fn abort(&mut self, conn: ConnId) {
        if self.engine.peer_addr(conn).is_some() {
            self.silenced.conns.insert(conn, None);
            self.engine.abort(conn);
            // smoltcp's sockets keep received data after an abort.
            let received = self.engine.received(conn);
            self.engine.consume(conn, received);
        }
    }

    fn set_timer(&mut self, conn: ConnId, delay: Option<Duration>) {
        if self.silenced.has(conn) {
            return;
        }
        if self.silenced.timers_pending {
            self.silenced.rearmed.insert(conn);
        }
        self.engine.set_timer(conn, delay.map(|delay| self.now + delay));
    }

    fn connect(&mut self, remote: SocketAddr, token: u64) {
        if !self.stopping {
            self.engine.connect(remote, token, &mut self.egress, self.now);
        }
    }

    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        match self.slow.udp.send(&datagram, &mut self.egress, self.now) {
            SendResult::Sent => Ok(()),
            SendResult::Full => Err(datagram),
            SendResult::NotHandled => self.slow.send(datagram, self.now),
        }
    }

    fn write_datagram(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        match self.slow.udp.write(&local, &remote, len, write, &mut self.egress, self.now) {
            Ok(result) => result == SendResult::Sent,
            Err(write) => send_written(self, local, remote, len, write),
        }
    }

    fn drop_datagram(&mut self, _: Datagram) {
        self.egress.count_drop(DropCause::NoPacket);
    }
}
