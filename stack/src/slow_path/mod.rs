//! Slow path of a worker, by smoltcp interfaces: ARP, NDP, DHCP, ICMP, and UDP datagrams that [`UdpFastPath`] does not
//! handle.
//!
//! The interface at the Ethernet level replies to ARP and neighbour solicitations and runs DHCP. The interface at the
//! IP level replies to ICMP and carries UDP; its packets leave through the worker's neighbour table. Neither receives
//! TCP segments, since it would reply with a reset.

pub(crate) mod device;
mod dhcp;

use crate::config::Config;
use crate::ip::addresses::Addresses;
use crate::ip::arp_announce::AddressAnnouncer;
use crate::ip::egress::Egress;
use crate::ip::udp::UdpFastPath;
use crate::ip::v6::dad::DuplicateAddress;
use crate::ip::v6::{Ipv6Changes, Ipv6Control};
use crate::rng;
use crate::slow_path::device::{Device, from_smoltcp_time, to_smoltcp_time};
use dhcp::DhcpClient;
pub use dhcp::DhcpLease;
use linerate_bypass::Nic;
use linerate_service::Datagram;
use linerate_service::time::Instant;
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::Medium;
use smoltcp::socket::udp;
use smoltcp::wire::{EthernetAddress, HardwareAddress};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Buffered datagrams, and bytes in them, in each direction of a UDP socket.
const DATAGRAMS: usize = 256;
const DATAGRAM_BYTES: usize = 256 << 10;

struct UdpSocket {
    bound: SocketAddr,
    handle: SocketHandle,
}

impl UdpSocket {
    /// Returns a new socket of `sockets`, or `None` if port 0 is given.
    fn bind(bound: SocketAddr, sockets: &mut SocketSet<'static>) -> Option<Self> {
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; DATAGRAMS], vec![0; DATAGRAM_BYTES]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        let addr = (!bound.ip().is_unspecified()).then(|| bound.ip().into());
        socket.bind(smoltcp::wire::IpListenEndpoint { addr, port: bound.port() }).ok()?;
        Some(UdpSocket { bound, handle: sockets.add(socket) })
    }
}

/// Maximum reports of refused datagrams between two turns. More are dropped.
const REFUSALS: usize = 64;

/// Local and remote address of a datagram whose port the remote host does not serve (RFC 1122 §4.1.3.3).
pub(crate) type Refusal = (SocketAddr, SocketAddr);

/// smoltcp interfaces of one worker, and their sockets.
pub(crate) struct SlowPath {
    ethernet: Interface,
    /// True if the host's kernel handles ARP, NDP and DHCP. The Ethernet interface then has no address.
    by_host: bool,
    ethernet_sockets: SocketSet<'static>,
    dhcp: Option<DhcpClient>,
    ip: Interface,
    udp_sockets: SocketSet<'static>,
    bound_udp: Vec<UdpSocket>,
    pub udp: UdpFastPath,
    refusals: Vec<Refusal>,
    /// Announcement and defence of the local addresses.
    announcer: AddressAnnouncer,
    /// DAD, SLAAC and MLD, on the first worker. Boxed, since it is rarely accessed.
    ipv6: Option<Box<Ipv6Control>>,
    /// Local address for which DAD found a duplicate.
    pub duplicate: Option<DuplicateAddress>,
    ethernet_deadline: Option<Instant>,
    ip_deadline: Option<Instant>,
    /// Time of the next [`poll`](Self::poll), read every turn. Every other method sets it to [`AT_ONCE`].
    due: Option<Instant>,
}

/// DHCP lease; `None` when it has expired.
pub(crate) type Lease = Option<Arc<DhcpLease>>;

/// Deadline that has always passed.
const AT_ONCE: Option<Instant> = Some(Instant::ZERO);

impl SlowPath {
    /// Creates the slow path of one worker. The `first` worker of a port handles DHCP and announcements for all.
    pub fn new<N: Nic>(config: &Config, egress: &mut Egress<N>, first: bool, now: Instant) -> Self {
        let mac = HardwareAddress::Ethernet(EthernetAddress(egress.mac().0));
        let mut interface = |address, medium, n| {
            let mut settings = smoltcp::iface::Config::new(address);
            settings.random_seed = rng::draw(config.seed, "slow path", n);
            Interface::new(settings, &mut Device::new(medium, egress, now), to_smoltcp_time(now))
        };
        let ethernet = interface(mac, Medium::Ethernet, 1);
        let ip = interface(HardwareAddress::Ip, Medium::Ip, 2);
        let mut ethernet_sockets = SocketSet::new(Vec::new());
        let dhcp = (config.dhcp && first).then(|| DhcpClient::new(&mut ethernet_sockets));
        let mut udp_sockets = SocketSet::new(Vec::new());
        let bound_udp =
            config.listen_udp.iter().filter_map(|bound| UdpSocket::bind(*bound, &mut udp_sockets)).collect();
        let udp = UdpFastPath::new(config, egress.capabilities());
        let mut slow = SlowPath {
            ethernet,
            by_host: config.host.is_some(),
            ethernet_sockets,
            dhcp,
            ip,
            udp_sockets,
            bound_udp,
            udp,
            refusals: Vec::new(),
            announcer: AddressAnnouncer::new(first && config.host.is_none()),
            ipv6: None,
            duplicate: None,
            ethernet_deadline: Some(now),
            ip_deadline: None,
            due: AT_ONCE,
        };
        slow.set_addresses(egress.addresses(), now);
        slow
    }

    pub fn set_addresses(&mut self, addresses: &Addresses, now: Instant) {
        self.announcer().set_addresses(addresses.own(), now);
        // Renewal requests to a DHCP server behind a relay use the gateway.
        self.ethernet.routes_mut().remove_default_ipv4_route();
        for gateway in addresses.default_gateways() {
            if let IpAddr::V4(gateway) = *gateway {
                // The table has room for one IPv4 default route.
                let _ = self.ethernet.routes_mut().add_default_ipv4_route(gateway);
            }
        }
        for interface in [&mut self.ethernet, &mut self.ip].into_iter().skip(usize::from(self.by_host)) {
            interface.update_ip_addrs(|own| {
                own.clear();
                for cidr in addresses.own() {
                    // The caller passes at most `Config::MAX_ADDRESSES` addresses, for which there is room.
                    let _ = own.push(smoltcp::wire::IpCidr::new(cidr.address().into(), cidr.prefix()));
                }
            });
        }
    }

    /// Processes an ARP, NDP or DHCP frame.
    pub fn ethernet_frame<N: Nic>(&mut self, frame: &[u8], egress: &mut Egress<N>, now: Instant) {
        let mut device = Device::new(Medium::Ethernet, egress, now).receiving(frame);
        self.ethernet.poll_ingress_single(to_smoltcp_time(now), &mut device, &mut self.ethernet_sockets);
        if let Some(dhcp) = &mut self.dhcp {
            dhcp.update(&mut self.ethernet_sockets, Some(frame));
        }
        (self.ethernet_deadline, self.due) = (Some(now), AT_ONCE);
    }

    /// Processes an IP packet other than TCP. Complete datagrams are appended to `received`.
    pub fn ip_packet<N: Nic>(
        &mut self,
        packet: &[u8],
        egress: &mut Egress<N>,
        received: &mut VecDeque<Datagram>,
        now: Instant,
    ) {
        let mut device = Device::new(Medium::Ip, egress, now).receiving(packet);
        self.ip.poll_ingress_single(to_smoltcp_time(now), &mut device, &mut self.udp_sockets);
        (self.ip_deadline, self.due) = (Some(now), AT_ONCE);
        for UdpSocket { bound, handle } in &self.bound_udp {
            let socket = self.udp_sockets.get_mut::<udp::Socket>(*handle);
            while let Ok((payload, from)) = socket.recv() {
                let ip = from.local_address.map_or(bound.ip(), IpAddr::from);
                received.push_back(Datagram {
                    local: SocketAddr::new(ip, bound.port()),
                    remote: SocketAddr::new(from.endpoint.addr.into(), from.endpoint.port),
                    payload: self.udp.copies.copy(payload),
                });
            }
        }
    }

    /// Begins to receive datagrams to `bound`.
    pub fn listen_udp(&mut self, bound: SocketAddr) {
        self.udp.listen(bound);
        self.bound_udp.extend(UdpSocket::bind(bound, &mut self.udp_sockets));
    }

    /// Stops receiving datagrams to `bound`. Queued datagrams from it may be lost.
    pub fn unlisten_udp(&mut self, bound: SocketAddr) {
        self.udp.unlisten(&bound);
        for ended in self.bound_udp.extract_if(.., |socket| socket.bound == bound) {
            self.udp_sockets.remove(ended.handle);
        }
    }

    /// Records that the host `remote` refused a datagram from `local`.
    pub fn refused(&mut self, local: SocketAddr, remote: SocketAddr) {
        if self.udp.listens(&local) && self.refusals.len() < REFUSALS {
            self.refusals.push((local, remote));
            self.due = AT_ONCE;
        }
    }

    /// Returns the refusals since the last call.
    pub fn take_refusals(&mut self) -> Vec<Refusal> {
        std::mem::take(&mut self.refusals)
    }

    /// Queues a datagram, which [`poll`](Self::poll) sends.
    pub fn send(&mut self, datagram: Datagram, now: Instant) -> Result<(), Datagram> {
        let Datagram { local, remote, .. } = datagram;
        let from = self.bound_udp.iter().find(|socket| {
            socket.bound.port() == local.port()
                && (socket.bound.ip() == local.ip() || socket.bound.ip().is_unspecified())
        });
        let Some(from) = from.filter(|_| local.is_ipv4() == remote.is_ipv4()) else { return Err(datagram) };
        let socket = self.udp_sockets.get_mut::<udp::Socket>(from.handle);
        let to = udp::UdpMetadata {
            endpoint: (remote.ip(), remote.port()).into(),
            local_address: (!local.ip().is_unspecified()).then(|| local.ip().into()),
            meta: Default::default(),
        };
        match socket.send_slice(&datagram.payload, to) {
            Ok(()) => {
                (self.ip_deadline, self.due) = (Some(now), AT_ONCE);
                Ok(())
            }
            Err(_) => Err(datagram),
        }
    }

    pub fn announcer(&mut self) -> &mut AddressAnnouncer {
        self.due = AT_ONCE;
        &mut self.announcer
    }

    /// Returns DAD, SLAAC and MLD, if this worker handles them.
    pub fn ipv6(&mut self) -> Option<&mut Ipv6Control> {
        self.due = AT_ONCE;
        self.ipv6.as_deref_mut()
    }

    /// Makes this worker handle DAD, SLAAC and MLD.
    pub fn set_ipv6(&mut self, ipv6: Ipv6Control) {
        self.ipv6 = Some(Box::new(ipv6));
        self.due = AT_ONCE;
    }

    pub fn set_link(&mut self, up: bool, now: Instant) {
        self.announcer().set_link(up, now);
        if let Some(ipv6) = self.ipv6() {
            ipv6.set_link(up, now);
        }
    }

    /// Runs everything that is due. Returns a change of the DHCP lease, and changes of IPv6.
    pub fn poll<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) -> (Option<Lease>, Ipv6Changes) {
        self.announcer.poll(egress, now);
        let lease = self.poll_interfaces(egress, now);
        let outcome = match &mut self.ipv6 {
            Some(ipv6) if ipv6.next_deadline().is_some_and(|at| at <= now) => ipv6.poll(egress, now),
            _ => Ipv6Changes::default(),
        };
        let ipv6 = self.ipv6.as_ref().and_then(|ipv6| ipv6.next_deadline());
        let deadlines = [self.ip_deadline, self.ethernet_deadline, self.announcer.next_deadline(), ipv6];
        self.due = deadlines.into_iter().flatten().min();
        (lease, outcome)
    }

    /// Polls the smoltcp interfaces. Returns a change of the DHCP lease.
    fn poll_interfaces<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) -> Option<Lease> {
        let at = to_smoltcp_time(now);
        if self.ip_deadline.is_some_and(|deadline| deadline <= now) {
            let mut device = Device::new(Medium::Ip, egress, now);
            self.ip.poll(at, &mut device, &mut self.udp_sockets);
            self.ip_deadline = self.ip.poll_at(at, &self.udp_sockets).map(from_smoltcp_time);
        }
        if self.ethernet_deadline.is_none_or(|deadline| deadline > now) {
            return None;
        }
        let mut device = Device::new(Medium::Ethernet, egress, now);
        self.ethernet.poll(at, &mut device, &mut self.ethernet_sockets);
        self.ethernet_deadline = self.ethernet.poll_at(at, &self.ethernet_sockets).map(from_smoltcp_time);
        let dhcp = self.dhcp.as_mut()?;
        dhcp.update(&mut self.ethernet_sockets, None);
        dhcp.take_change()
    }

    /// Returns the time of the next [`poll`](Self::poll).
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.due
    }
}
