//! The slow path of a worker: everything that is not TCP, by smoltcp's interfaces; of UDP, what [`Direct`] leaves.
//!
//! Two of them. One at the Ethernet level answers ARP and neighbour solicitations and speaks DHCP. The other, at the
//! IP level, answers ICMP and carries UDP; what it sends finds its neighbour in our own table. Neither ever sees a TCP
//! segment: they would answer with a reset.

pub(crate) mod copy_pool;
pub(crate) mod device;

use crate::addresses::Addresses;
use crate::arp_ndp::arp_announce::Presence;
use crate::config::{Config, IpCidr};
use crate::egress::Egress;
use crate::ipv6::dad::DuplicateAddress;
use crate::ipv6::{Outcome, Six};
use crate::rng;
use crate::slow_path::copy_pool::Copies;
use crate::slow_path::device::{Device, our_time, smoltcp_time};
use crate::udp::Direct;
use linerate_bypass::time::Instant;
use linerate_bypass::{Datagram, Nic};
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::Medium;
use smoltcp::socket::{dhcpv4, udp};
use smoltcp::wire::{EthernetAddress, HardwareAddress};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// Datagrams, and bytes in them, that wait in each direction of a UDP socket.
const DATAGRAMS: usize = 256;
const DATAGRAM_BYTES: usize = 256 << 10;

/// An address that a DHCP server gave, and the router it named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DhcpLease {
    /// Our address and the prefix of the link.
    pub address: IpCidr,
    /// The default gateway.
    pub gateway: Option<IpAddr>,
}

struct UdpSocket {
    bound: SocketAddr,
    handle: SocketHandle,
}

/// The interfaces of one worker and their sockets.
pub(crate) struct SlowPath {
    ethernet: Interface,
    ethernet_sockets: SocketSet<'static>,
    dhcp: Option<SocketHandle>,
    ip: Interface,
    udp_sockets: SocketSet<'static>,
    udp: Vec<UdpSocket>,
    /// UDP as it nearly always is.
    pub direct: Direct,
    copies: Copies,
    /// How our addresses are seen on the link.
    presence: Presence,
    /// IPv6 on the link, on the worker that speaks for all. Apart, since it is seldom looked at.
    six: Option<Box<Six>>,
    /// One of them that another station has.
    pub duplicate: Option<DuplicateAddress>,
    ethernet_deadline: Option<Instant>,
    ip_deadline: Option<Instant>,
    /// When there is something to do next, which every turn asks for: at once, after whatever happened here.
    due: Option<Instant>,
}

/// What is due at whatever time.
const AT_ONCE: Option<Instant> = Some(Instant::ZERO);

impl SlowPath {
    /// Those of one worker; the `first` of a port also speaks for all of them: with DHCP servers, and of our addresses.
    pub fn new<N: Nic>(config: &Config, egress: &mut Egress<N>, first: bool, now: Instant) -> Self {
        let mac = HardwareAddress::Ethernet(EthernetAddress(egress.mac().0));
        let mut interface = |address, medium, n| {
            let mut settings = smoltcp::iface::Config::new(address);
            settings.random_seed = rng::draw(config.seed, "slow path", n);
            Interface::new(settings, &mut Device::new(medium, egress, now), smoltcp_time(now))
        };
        let ethernet = interface(mac, Medium::Ethernet, 1);
        let ip = interface(HardwareAddress::Ip, Medium::Ip, 2);
        let mut ethernet_sockets = SocketSet::new(Vec::new());
        let dhcp = (config.dhcp && first).then(|| ethernet_sockets.add(dhcpv4::Socket::new()));
        let mut udp_sockets = SocketSet::new(Vec::new());
        let udp = config.listen_udp.iter().filter_map(|&bound| {
            let buffer =
                || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; DATAGRAMS], vec![0; DATAGRAM_BYTES]);
            let mut socket = udp::Socket::new(buffer(), buffer());
            let addr = (!bound.ip().is_unspecified()).then(|| bound.ip().into());
            socket.bind(smoltcp::wire::IpListenEndpoint { addr, port: bound.port() }).ok()?;
            Some(UdpSocket { bound, handle: udp_sockets.add(socket) })
        });
        let udp = udp.collect();
        let direct = Direct::new(config, egress.capabilities());
        let mut slow = SlowPath {
            ethernet,
            ethernet_sockets,
            dhcp,
            ip,
            udp_sockets,
            udp,
            direct,
            copies: Copies::new(),
            presence: Presence::new(first),
            six: None,
            duplicate: None,
            ethernet_deadline: Some(now),
            ip_deadline: None,
            due: AT_ONCE,
        };
        slow.set_addresses(egress.addresses(), now);
        slow
    }

    /// Answers for `addresses` from now on.
    pub fn set_addresses(&mut self, addresses: &Addresses, now: Instant) {
        self.presence().set_addresses(addresses.own(), now);
        // DHCP servers behind a relay are asked to renew by way of the gateway.
        self.ethernet.routes_mut().remove_default_ipv4_route();
        for gateway in addresses.gateways() {
            if let IpAddr::V4(gateway) = *gateway {
                // There is room for one.
                let _ = self.ethernet.routes_mut().add_default_ipv4_route(gateway);
            }
        }
        for interface in [&mut self.ethernet, &mut self.ip] {
            interface.update_ip_addrs(|own| {
                own.clear();
                for cidr in addresses.own() {
                    // It holds `Config::MAX_ADDRESSES`, which the caller has seen to.
                    let _ = own.push(smoltcp::wire::IpCidr::new(cidr.address().into(), cidr.prefix()));
                }
            });
        }
    }

    /// ARP, NDP or DHCP.
    pub fn ethernet_frame<N: Nic>(&mut self, frame: &[u8], egress: &mut Egress<N>, now: Instant) {
        let mut device = Device::new(Medium::Ethernet, egress, now).receiving(frame);
        self.ethernet.poll_ingress_single(smoltcp_time(now), &mut device, &mut self.ethernet_sockets);
        (self.ethernet_deadline, self.due) = (Some(now), AT_ONCE);
    }

    /// An IP packet that is not TCP. The datagrams it completes go to `received`.
    pub fn ip_packet<N: Nic>(
        &mut self,
        packet: &[u8],
        egress: &mut Egress<N>,
        received: &mut VecDeque<Datagram>,
        now: Instant,
    ) {
        let mut device = Device::new(Medium::Ip, egress, now).receiving(packet);
        self.ip.poll_ingress_single(smoltcp_time(now), &mut device, &mut self.udp_sockets);
        (self.ip_deadline, self.due) = (Some(now), AT_ONCE);
        for UdpSocket { bound, handle } in &self.udp {
            let socket = self.udp_sockets.get_mut::<udp::Socket>(*handle);
            while let Ok((payload, from)) = socket.recv() {
                let ip = from.local_address.map_or(bound.ip(), IpAddr::from);
                received.push_back(Datagram {
                    local: SocketAddr::new(ip, bound.port()),
                    remote: SocketAddr::new(from.endpoint.addr.into(), from.endpoint.port),
                    payload: self.copies.copy(payload),
                });
            }
        }
    }

    /// Queues a datagram; [`tend`](Self::tend) sends it.
    pub fn send(&mut self, datagram: Datagram, now: Instant) -> Result<(), Datagram> {
        let Datagram { local, remote, .. } = datagram;
        let from = self.udp.iter().find(|socket| {
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

    /// How our addresses are seen on the link.
    pub fn presence(&mut self) -> &mut Presence {
        self.due = AT_ONCE;
        &mut self.presence
    }

    /// IPv6 on the link, if this worker sees to it.
    pub fn six(&mut self) -> Option<&mut Six> {
        self.due = AT_ONCE;
        self.six.as_deref_mut()
    }

    /// This worker sees to IPv6 from now on.
    pub fn set_six(&mut self, six: Six) {
        self.six = Some(Box::new(six));
        self.due = AT_ONCE;
    }

    /// The link is up from now on, or down.
    pub fn set_link(&mut self, up: bool, now: Instant) {
        self.presence().set_link(up, now);
        if let Some(six) = self.six() {
            six.set_link(up, now);
        }
    }

    /// Does what is due, and returns what DHCP came to (`Some(None)` is a lease that has run out), and IPv6.
    pub fn tend<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) -> (Option<Option<DhcpLease>>, Outcome) {
        self.presence.tend(egress, now);
        let lease = self.poll(egress, now);
        let outcome = match &mut self.six {
            Some(six) if six.next_deadline().is_some_and(|at| at <= now) => six.tend(egress, now),
            _ => Outcome::default(),
        };
        let six = self.six.as_ref().and_then(|six| six.next_deadline());
        let deadlines = [self.ip_deadline, self.ethernet_deadline, self.presence.next_deadline(), six];
        self.due = deadlines.into_iter().flatten().min();
        (lease, outcome)
    }

    /// Lets smoltcp's interfaces do what is due.
    fn poll<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) -> Option<Option<DhcpLease>> {
        let at = smoltcp_time(now);
        if self.ip_deadline.is_some_and(|deadline| deadline <= now) {
            let mut device = Device::new(Medium::Ip, egress, now);
            self.ip.poll(at, &mut device, &mut self.udp_sockets);
            self.ip_deadline = self.ip.poll_at(at, &self.udp_sockets).map(our_time);
        }
        if self.ethernet_deadline.is_none_or(|deadline| deadline > now) {
            return None;
        }
        let mut device = Device::new(Medium::Ethernet, egress, now);
        self.ethernet.poll(at, &mut device, &mut self.ethernet_sockets);
        self.ethernet_deadline = self.ethernet.poll_at(at, &self.ethernet_sockets).map(our_time);
        match self.ethernet_sockets.get_mut::<dhcpv4::Socket>(self.dhcp?).poll()? {
            dhcpv4::Event::Configured(lease) => {
                let address = IpCidr::new(lease.address.address().into(), lease.address.prefix_len());
                let gateway = lease.router.map(IpAddr::from);
                address.ok().map(|address| Some(DhcpLease { address, gateway }))
            }
            dhcpv4::Event::Deconfigured => Some(None),
        }
    }

    /// When [`tend`](Self::tend) has something to do next.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.due
    }
}
