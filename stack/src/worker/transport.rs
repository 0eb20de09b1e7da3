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
use crate::worker::ingress::Ingress;
use linerate_bypass::{CpuTime, MacAddr, Nic};
use linerate_service::inspect::{ConnInfo, ConnState, Gauges, Shortages, Snapshot};
use linerate_service::time::{Duration, Instant};
use linerate_service::{
    Bytes, ConnId, Datagram, EventBatch, HostedNet, Keepalive, Silenced, Summary, Transport, Unsent, WriteError,
    respond_in_steps, send_written,
};
use std::net::{IpAddr, SocketAddr};

/// [`Transport`] of a service: the engine and the transmit path.
pub(super) struct Core<N: Nic, E> {
    pub worker: usize,
    pub now: Instant,
    pub engine: E,
    pub egress: Egress<N>,
    pub ingress: Ingress<N::Packet>,
    pub slow: SlowPath,
    /// DHCP lease.
    pub lease: Lease,
    /// Router advertisements.
    pub network: Option<RouterInfo>,
    /// True if the IPv6 addresses have passed DAD.
    pub is_verified: bool,
    pub stopping: bool,
    pub silenced: Silenced,
    /// Turns so far, turns with work, and receive bursts.
    pub turns: u64,
    pub busy_turns: u64,
    pub bursts: u64,
    /// Sleeps, and sleeps after which there was work.
    pub sleeps: u64,
    pub wakeups: u64,
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
    /// Returns the counters so far.
    pub fn summary(&mut self) -> Summary {
        let Core { engine, egress, ingress, turns, busy_turns, bursts, sleeps, wakeups, .. } = self;
        let port = egress.nic().stats();
        let mut summary = Summary {
            rx_frames: port.rx_frames,
            rx_bytes: port.rx_bytes,
            turns: *turns,
            busy_turns: *busy_turns,
            bursts: *bursts,
            sleeps: *sleeps,
            wakeups: *wakeups,
            tx_frames: port.tx_frames,
            tx_bytes: port.tx_bytes,
            misdirected: ingress.misdirected(),
            copied_bytes: port.copied_bytes + egress.copied_bytes(),
            ..Summary::default()
        };
        summary.drop_for("too long for the port", port.tx_dropped);
        egress.drops().summarize(&mut summary);
        engine.summarize(&mut summary);
        summary
    }
}

impl<N: Nic, E: Engine<N>> HostedNet for Core<N, E> {
    #[inline]
    fn take_events(&mut self, events: &mut EventBatch) {
        self.engine.take_events(events);
    }

    #[inline]
    fn has_events(&self) -> bool {
        self.engine.has_events()
    }

    #[inline]
    fn flush(&mut self) {
        self.engine.flush(&mut self.egress, self.now);
    }

    #[inline(always)]
    fn silenced(&mut self) -> &mut Silenced {
        &mut self.silenced
    }

    fn is_open(&self, conn: ConnId) -> bool {
        self.engine.peer_addr(conn).is_some()
    }

    fn is_delivered(&self, conn: ConnId) -> bool {
        let state = self.engine.conn_info(conn.slot()).map(|info| info.state);
        !matches!(state, Some(ConnState::FinWait1 | ConnState::Closing | ConnState::LastAck))
    }

    fn set_deadline(&mut self, conn: ConnId, at: Instant) {
        self.engine.set_timer(conn, Some(at));
    }

    fn release(&mut self, conn: ConnId) {
        self.engine.release(conn, self.now);
    }

    fn snapshot(&mut self) -> Snapshot {
        let summary = Summary { cpu_us: CpuTime::of_thread().micros(), ..self.summary() };
        let Core { worker, engine, egress, .. } = self;
        let mut gauges = Gauges {
            tx_queued: Some(egress.queued() as u64),
            pool_left: egress.nic().pool_left().map(|left| left as u64),
            pool_share: Some(egress.capabilities().pool as u64),
            ..Gauges::default()
        };
        engine.fill_gauges(&mut gauges);
        let port = egress.nic().stats();
        let shortages = Some(Shortages { tx_full: port.tx_full, pool_empty: port.pool_empty });
        // The owner of the port adds its other values.
        Snapshot { worker: *worker, summary, gauges, shortages, ..Snapshot::default() }
    }

    fn slot_count(&self) -> usize {
        self.engine.slot_count()
    }

    fn conn_info(&self, slot: usize) -> Option<ConnInfo> {
        self.engine.conn_info(slot)
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

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        self.engine.send(conn, bytes)
    }

    fn reserve(&mut self, conn: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
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
        linerate_service::lingering_close(self, conn);
    }

    fn abort(&mut self, conn: ConnId) {
        if self.engine.peer_addr(conn).is_some() {
            self.silenced.insert(conn);
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
        self.silenced.rearm(conn);
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

    fn datagram_space(&self) -> usize {
        self.egress.room()
    }

    fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        self.egress.addresses().source_for(remote)
    }

    fn info(&self, conn: ConnId) -> Option<ConnInfo> {
        self.engine.conn_info(conn.slot()).filter(|info| info.conn == conn)
    }

    fn set_keepalive(&mut self, conn: ConnId, keepalive: Option<Keepalive>) {
        self.engine.set_keepalive(conn, keepalive, self.now);
    }

    fn set_user_timeout(&mut self, conn: ConnId, timeout: Option<Duration>) {
        self.engine.set_user_timeout(conn, timeout);
    }

    fn set_corked(&mut self, conn: ConnId, corked: bool) {
        self.engine.set_corked(conn, corked);
    }

    fn drop_datagram(&mut self, _: Datagram) {
        self.egress.count_drop(DropCause::NoPacket);
    }
}
