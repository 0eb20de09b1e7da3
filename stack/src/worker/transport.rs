//! What services act on, and by which addresses.

use crate::addresses::Addresses;
use crate::config::{Config, IpCidr};
use crate::egress::Egress;
use crate::engine::Engine;
use crate::six::Network;
use crate::slow::{Lease, SlowPath};
use crate::udp::Outcome;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{Bytes, ConnId, Datagram, MacAddr, Nic, Transport, answer_in_steps};
use std::net::SocketAddr;

/// What a service acts on: the engine and the way out, in a burst of events.
pub(super) struct Core<N: Nic, E> {
    pub worker: usize,
    pub now: Instant,
    pub engine: E,
    pub egress: Egress<N>,
    pub slow: SlowPath,
    /// What DHCP came to.
    pub lease: Option<Lease>,
    /// What routers have advertised.
    pub network: Option<Network>,
    /// Our IPv6 addresses are known to be nobody else's.
    pub is_verified: bool,
    pub stopping: bool,
}

/// The addresses that may be used with this lease and on this network, those of IPv6 only when they have been verified.
pub(super) fn addresses_of(
    config: &Config,
    lease: Option<Lease>,
    network: Option<&Network>,
    is_verified: bool,
    mac: MacAddr,
) -> Addresses {
    let given = config.addresses.iter().filter(|cidr| is_verified || cidr.address().is_ipv4());
    let own: Vec<_> = given.copied().chain(lease.map(|lease| lease.address)).collect();
    let gateways = config.gateways.iter().copied().chain(lease.and_then(|lease| lease.gateway));
    let addresses = Addresses::new(&own, &gateways.collect::<Vec<_>>(), mac);
    let addresses = if config.slaac && is_verified { addresses.with_link_local(mac) } else { addresses };
    match network.filter(|_| is_verified) {
        Some(network) => addresses.with_network(network),
        None => addresses,
    }
}

impl<N: Nic, E: Engine<N>> Core<N, E> {
    /// Goes by what DHCP says from now on.
    pub fn take_lease(&mut self, config: &Config, lease: Option<Lease>) {
        match lease {
            Some(Lease { address, .. }) if self.worker == 0 => tracing::info!("DHCP: {address}"),
            None if self.worker == 0 => tracing::warn!("DHCP: no address"),
            _ => {}
        }
        self.lease = lease;
        self.renew_addresses(config);
    }

    /// Goes by what routers have advertised from now on.
    pub fn take_network(&mut self, config: &Config, network: Network) {
        let old = self.network.replace(network).unwrap_or_default();
        if self.worker == 0 {
            network.log(&old);
        }
        self.egress.set_link(&network);
        if old.mtu != network.mtu {
            self.engine.set_mtu_v6(self.egress.mtu_v6());
        }
        self.renew_addresses(config);
    }

    /// Has the addresses from now on that we may use.
    pub fn renew_addresses(&mut self, config: &Config) {
        let addresses = addresses_of(config, self.lease, self.network.as_ref(), self.is_verified, self.egress.mac());
        let lost = |cidr: &&IpCidr| !addresses.is_ours(cidr.address());
        for lost in self.egress.addresses().own().iter().filter(lost) {
            self.engine.address_lost(lost.address());
        }
        self.slow.set_addresses(&addresses, self.now);
        self.egress.set_addresses(addresses);
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

    fn consume(&mut self, conn: ConnId, n: usize) {
        self.engine.consume(conn, n);
    }

    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes> {
        self.engine.take(conn, max)
    }

    fn room(&mut self, conn: ConnId) -> usize {
        self.engine.room(conn)
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

    fn answer(&mut self, conn: ConnId, request: usize, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        match self.engine.answer_at_once(conn, (request, len), write, &mut self.egress, self.now) {
            Ok(()) => true,
            Err(write) => answer_in_steps(self, conn, request, len, write),
        }
    }

    fn forward(&mut self, from: ConnId, to: ConnId) -> usize {
        self.engine.forward(from, to, &mut self.egress, self.now)
    }

    fn close(&mut self, conn: ConnId) {
        self.engine.close(conn);
    }

    fn abort(&mut self, conn: ConnId) {
        self.engine.abort(conn);
    }

    fn set_timer(&mut self, conn: ConnId, delay: Option<Duration>) {
        self.engine.set_timer(conn, delay.map(|delay| self.now + delay));
    }

    fn connect(&mut self, remote: SocketAddr, token: u64) {
        if !self.stopping {
            self.engine.connect(remote, token, &mut self.egress, self.now);
        }
    }

    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        match self.slow.direct.send(&datagram, &mut self.egress, self.now) {
            Outcome::Sent => Ok(()),
            Outcome::Full => Err(datagram),
            Outcome::Other => self.slow.send(datagram, self.now),
        }
    }
}
