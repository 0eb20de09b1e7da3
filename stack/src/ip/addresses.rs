//! Local addresses and next hops.

use crate::config::Config;
use crate::config::host_network::{HostNetwork, Route};
use crate::ip::router_info::{self, RouterInfo};
use crate::wire::ip_cidr::IpCidr;
use crate::wire::tuple::Tuple;
use linerate_bypass::MacAddr;
use linerate_service::ConnectError;
use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Addresses of this host on its link, and its gateways.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    own: Vec<IpCidr>,
    /// Default gateways.
    gateways: Vec<IpAddr>,
    /// Routes of the DHCP lease.
    leased: Vec<Route>,
    /// Prefixes on the link.
    on_link: Vec<IpCidr>,
    /// Routes, most preferred first: the routes of the host's kernel; or the on-link prefixes, the routes of the DHCP
    /// lease and the gateways, longest prefix first.
    routes: Vec<Route>,
    /// True if a route has a preferred source address.
    routes_have_source: bool,
    /// Deprecated local addresses: not used as source for new connections if there is another (RFC 4862 §5.5.4).
    deprecated: Vec<IpAddr>,
    /// IPv4 addresses of `own`, in the form that each received packet is checked against.
    own_v4: Vec<OwnV4>,
    /// IPv6 addresses of `own`.
    own_v6: Vec<u128>,
}

/// Local IPv4 address as a number, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnV4 {
    /// 64 bits wide, so that no IPv4 address equals the value of [`NONE`](Self::NONE).
    address: u64,
    /// Broadcast address of its subnet, or the limited broadcast address if the subnet has none.
    broadcast: u32,
}

impl Config {
    /// Returns the largest number of local addresses that this configuration can have.
    pub fn count_addresses(&self) -> usize {
        let formed = if self.slaac { router_info::ADDRESSES } else { 0 };
        Addresses::initial(self, MacAddr::default()).own().len() + usize::from(self.dhcp) + formed
    }
}

impl Addresses {
    /// Creates the set of `own` addresses and `gateways`. An IPv6 address adds a link-local one derived from `mac`.
    pub fn new(own: &[IpCidr], gateways: &[IpAddr], mac: MacAddr) -> Self {
        let has_six = own.iter().any(|cidr| cidr.address().is_ipv6());
        let addresses = Addresses {
            own: own.to_vec(),
            gateways: gateways.to_vec(),
            leased: Vec::new(),
            on_link: own.to_vec(),
            routes: Vec::new(),
            routes_have_source: false,
            deprecated: Vec::new(),
            own_v4: Vec::new(),
            own_v6: Vec::new(),
        };
        if has_six { addresses.with_link_local(mac) } else { addresses.indexed() }
    }

    /// Returns the addresses that a host with the Ethernet address `mac` has at start.
    pub fn initial(config: &Config, mac: MacAddr) -> Self {
        if let Some(host) = &config.host {
            return Addresses::of_host(host);
        }
        let addresses = Addresses::new(&config.addresses, &config.gateways, mac);
        if config.slaac { addresses.with_link_local(mac) } else { addresses }
    }

    /// Creates the set of the addresses and routes of the host's kernel.
    pub fn of_host(network: &HostNetwork) -> Self {
        let addresses = Addresses {
            own: network.addresses.clone(),
            gateways: Vec::new(),
            leased: Vec::new(),
            on_link: Vec::new(),
            routes: Vec::new(),
            routes_have_source: false,
            deprecated: network.deprecated.clone(),
            own_v4: Vec::new(),
            own_v6: Vec::new(),
        };
        let routes_have_source = network.routes.iter().any(|route| route.source.is_some());
        Addresses { routes: network.routes.clone(), routes_have_source, ..addresses.indexed() }
    }

    /// Adds a link-local address derived from `mac`, unless there is one.
    pub fn with_link_local(mut self, mac: MacAddr) -> Self {
        if !self.own.iter().any(|cidr| is_link_local(cidr.address())) {
            let own = IpCidr::new(eui64_address(0xfe80 << 112, mac).into(), 64);
            self.own.extend(own.clone());
            self.on_link.extend(own);
        }
        self.indexed()
    }

    /// Adds the routes of a DHCP lease.
    pub fn with_routes(mut self, routes: &[Route]) -> Self {
        self.leased = routes.to_vec();
        self.indexed()
    }

    /// Adds the addresses, prefixes and router in `network`. An existing address stays unchanged, and existing gateways
    /// take precedence.
    pub fn with_router_info(mut self, network: &RouterInfo) -> Self {
        for (cidr, is_deprecated) in network.addresses() {
            if !self.is_local(cidr.address()) {
                self.own.push(cidr);
                self.deprecated.extend(is_deprecated.then_some(cidr.address()));
            }
        }
        self.on_link.extend(network.on_link());
        self.gateways.extend(network.router().map(IpAddr::V6));
        self.indexed()
    }

    /// Rebuilds the routes, and the lists that each received packet is checked against.
    fn indexed(mut self) -> Self {
        let route = |destination, prefix, gateway| Route { destination, prefix, gateway, source: None };
        let on_link = self.on_link.iter().map(|cidr| route(cidr.address(), cidr.prefix(), None));
        let gateways = self.gateways.iter().map(|gateway| route(*gateway, 0, Some(*gateway)));
        self.routes = on_link.chain(self.leased.iter().copied()).chain(gateways).collect();
        self.routes.sort_by_key(|route| Reverse(route.prefix));
        self.own_v4 = self.own.iter().filter_map(OwnV4::of).collect();
        self.own_v6 = self.own_v6().map(Ipv6Addr::to_bits).collect();
        self
    }

    /// Returns the local IPv6 addresses.
    pub fn own_v6(&self) -> impl Iterator<Item = Ipv6Addr> + '_ {
        self.own.iter().filter_map(|cidr| match cidr.address() {
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        })
    }

    pub fn link_local(&self) -> Option<Ipv6Addr> {
        self.own_v6().find(Ipv6Addr::is_unicast_link_local)
    }

    /// Returns whether a local address is usable beyond the link.
    pub fn has_routable(&self) -> bool {
        self.own.iter().any(|cidr| !is_link_local(cidr.address()))
    }

    /// Returns the local addresses with their prefixes.
    pub fn own(&self) -> &[IpCidr] {
        &self.own
    }

    pub fn default_gateways(&self) -> &[IpAddr] {
        &self.gateways
    }

    /// Returns the gateways of all routes.
    pub fn next_hops(&self) -> Vec<IpAddr> {
        let mut gateways: Vec<_> = self.routes.iter().filter_map(|route| route.gateway).collect();
        gateways.sort_unstable();
        gateways.dedup();
        gateways
    }

    #[inline]
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|cidr| cidr.address() == ip)
    }

    /// Returns whether `ip` is the broadcast address of the link.
    #[inline]
    pub fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        ip == Ipv4Addr::BROADCAST || self.own_v4.iter().any(|own| own.broadcast == ip.to_bits())
    }

    /// Returns whether no packet on the link can have the IPv4 source address `source`: it is not a host address (RFC
    /// 1122 §3.2.1.3, RFC 6890 §2.2.2), or it is local. A reply would reach many hosts, none, or this one.
    #[inline]
    pub fn is_martian_v4(&self, source: u32) -> bool {
        !is_host_v4(source) || self.own_v4.iter().any(|own| own.address == source.into() || own.broadcast == source)
    }

    /// Returns whether no packet on the link can have the IPv6 source address `source` (RFC 4291 §2.5.3, §2.5.5.2,
    /// §2.7), or it is local. The unspecified address is valid in NDP (RFC 4861 §4.3).
    #[inline]
    pub fn is_martian_v6(&self, source: Ipv6Addr) -> bool {
        !is_valid_source_v6(source) || self.is_local_v6(source.to_bits())
    }

    /// Returns whether no peer can send a segment of `tuple`: see [`is_martian_v4`](Self::is_martian_v4).
    #[inline]
    pub fn is_martian_peer(&self, tuple: &Tuple) -> bool {
        match tuple.remote_v4() {
            Some(ip) => self.is_martian_v4(ip.to_bits()),
            None => self.is_martian_v6(tuple.remote_v6()),
        }
    }

    /// Checks that a connection to `remote` can be made.
    #[inline]
    pub fn check_remote(&self, remote: SocketAddr) -> Result<(), ConnectError> {
        let unusable = remote.ip().is_unspecified() || remote.ip().is_multicast() || remote.port() == 0;
        if !unusable && !self.can_be_remote(remote.ip()) {
            return Err(ConnectError::InvalidAddress);
        }
        if unusable || self.next_hop(remote.ip()).is_none() {
            return Err(ConnectError::Unreachable);
        }
        Ok(())
    }

    /// Returns whether `ip` can be the address of another host, to which connections can be made.
    pub fn can_be_remote(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => !self.is_martian_v4(ip.to_bits()),
            IpAddr::V6(ip) => !ip.is_unspecified() && !self.is_martian_v6(ip),
        }
    }

    /// Returns whether the IPv4 address `ip` is local.
    #[inline]
    pub fn is_local_v4(&self, ip: u32) -> bool {
        self.own_v4.iter().any(|own| own.address == ip.into())
    }

    /// Returns whether a packet from the IPv4 address `source` to `destination` is acceptable: `destination` is local,
    /// and `source` is not a broadcast address of the link.
    #[inline]
    pub fn accepts_v4(&self, source: u32, destination: u32) -> bool {
        self.own_v4.iter().any(|own| own.address == destination.into())
            && !self.own_v4.iter().any(|own| own.broadcast == source)
    }

    /// Returns the local IPv4 address if there is exactly one.
    #[inline]
    pub fn only_v4(&self) -> OwnV4 {
        if let [only] = self.own_v4[..] { only } else { OwnV4::NONE }
    }

    /// Returns whether the IPv6 address `ip` is local.
    #[inline]
    pub fn is_local_v6(&self, ip: u128) -> bool {
        self.own_v6.contains(&ip)
    }

    /// Returns the next hop for `destination`: itself if it is on the link, else a gateway.
    #[inline]
    pub fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        if is_link_local(destination) {
            return Some(destination);
        }
        let route = self.routes.iter().find(|route| route.contains(destination))?;
        Some(route.gateway.unwrap_or(destination))
    }

    /// Returns the source address for `destination`: of its family, and not link-local unless the destination is on
    /// that link. Among these it prefers an address that is not deprecated, then one on the destination's link, then
    /// the longest common IPv6 prefix (RFC 6724 §5, rules 2, 3 and 8), then the first. A route of the host's kernel may
    /// prefer another.
    pub fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        if self.routes_have_source
            && let Some(source) = self.route_source(destination)
        {
            return Some(source);
        }
        let reaches = |cidr: &&IpCidr| {
            let own = cidr.address();
            own.is_ipv4() == destination.is_ipv4() && (cidr.contains(destination) || !is_link_local(own))
        };
        let rank = |cidr: &&IpCidr| {
            let own = cidr.address();
            let differ = match (own, destination) {
                (IpAddr::V6(own), IpAddr::V6(other)) => 128 - (own.to_bits() ^ other.to_bits()).leading_zeros(),
                _ => 0,
            };
            (self.deprecated.contains(&own), !cidr.contains(destination), differ)
        };
        self.own.iter().filter(reaches).min_by_key(rank).map(IpCidr::address)
    }
}

impl Addresses {
    /// Returns the local address that the route to `destination` prefers.
    fn route_source(&self, destination: IpAddr) -> Option<IpAddr> {
        let route = self.routes.iter().find(|route| route.contains(destination))?;
        route.source.filter(|source| self.is_local(*source) && source.is_ipv4() == destination.is_ipv4())
    }
}

impl OwnV4 {
    const NONE: Self = OwnV4 { address: u64::MAX, broadcast: 0 };

    /// Returns whether a packet from the IPv4 address `source` to `destination` is acceptable, if this is the only
    /// local IPv4 address.
    #[inline]
    pub fn accepts(self, source: u32, destination: u32) -> bool {
        self.address == destination.into() && self.broadcast != source
    }

    /// Returns the address.
    pub fn address(self) -> Option<Ipv4Addr> {
        u32::try_from(self.address).ok().map(Ipv4Addr::from_bits)
    }

    fn of(cidr: &IpCidr) -> Option<Self> {
        let IpAddr::V4(own) = cidr.address() else { return None };
        let address = own.to_bits();
        // RFC 3021 §2.1: a subnet of one or two addresses has no broadcast address.
        let host_bits = if cidr.prefix() < 31 { u32::MAX >> cidr.prefix() } else { u32::MAX };
        Some(OwnV4 { address: address.into(), broadcast: address | host_bits })
    }
}

/// Returns the address with the 64-bit `prefix` and the interface identifier derived from `mac` (RFC 4291 §2.5.6,
/// appendix A; RFC 2464 §4).
pub(crate) fn eui64_address(prefix: u128, mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let host = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    Ipv6Addr::from_bits(prefix | u128::from(u64::from_be_bytes(host)))
}

/// Returns whether `ip` is a unicast host address: outside 0.0.0.0/8, 127.0.0.0/8 and 224.0.0.0/3.
#[inline]
pub(crate) fn is_host_v4(ip: u32) -> bool {
    (0x0100_0000..0xe000_0000).contains(&ip) && ip >> 24 != 127
}

/// Returns whether `ip` is not a multicast, loopback or IPv4-mapped address.
#[inline]
pub(crate) fn is_valid_source_v6(ip: Ipv6Addr) -> bool {
    !ip.is_multicast() && !ip.is_loopback() && ip.to_ipv4_mapped().is_none()
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn ip6(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn addresses() -> Addresses {
        let own = ["10.0.0.2/24", "192.0.2.9/30", "fd00::2/64"].map(|cidr| cidr.parse().unwrap());
        Addresses::new(&own, &[ip("10.0.0.1")], "02:00:00:00:00:07".parse().unwrap())
    }

    #[test]
    fn ipv6_address_adds_a_link_local_address() {
        assert!(addresses().is_local(ip("fe80::ff:fe00:7")));
        let four = Addresses::new(&["10.0.0.2/24".parse().unwrap()], &[], MacAddr::default());
        assert_eq!(four.own().len(), 1);
    }

    #[test]
    fn on_link_destination_is_its_own_next_hop() {
        let addresses = addresses();
        assert_eq!(addresses.next_hop(ip("10.0.0.77")), Some(ip("10.0.0.77")));
        assert_eq!(addresses.next_hop(ip("198.51.100.1")), Some(ip("10.0.0.1")));
        assert_eq!(addresses.next_hop(ip("fe80::1")), Some(ip("fe80::1")));
        assert_eq!(addresses.next_hop(ip("2001:db8::1")), None);
    }

    #[test]
    fn source_is_on_the_link_of_the_destination() {
        let addresses = addresses();
        assert_eq!(addresses.source_for(ip("192.0.2.10")), Some(ip("192.0.2.9")));
        assert_eq!(addresses.source_for(ip("198.51.100.1")), Some(ip("10.0.0.2")));
        assert_eq!(addresses.source_for(ip("2001:db8::1")), Some(ip("fd00::2")));
        assert_eq!(addresses.source_for(ip("fe80::1")), Some(ip("fe80::ff:fe00:7")));
    }

    /// Returns router information with two addresses, the first deprecated, and an on-link prefix.
    fn network() -> RouterInfo {
        let of = |text: &str, deprecated| Some((text.parse().unwrap(), deprecated));
        let addresses = [of("2001:db8:1::2/64", true), of("2001:db8:2::2/64", false), of("fd00::2/64", false), None];
        let mut on_link = [None; 8];
        on_link[3] = Some("2001:db8:2::/64".parse().unwrap());
        let router = Some("fe80::1".parse().unwrap());
        RouterInfo { addresses, on_link, router, ..RouterInfo::default() }
    }

    #[test]
    fn configured_addresses_precede_advertised_ones() {
        let mac = "02:00:00:00:00:07".parse().unwrap();
        let addresses = addresses().with_router_info(&network());
        assert_eq!(addresses.own().iter().filter(|cidr| cidr.address() == ip("fd00::2")).count(), 1, "not added twice");
        assert!(addresses.is_local_v6(ip6("2001:db8:1::2").to_bits()));
        assert_eq!(addresses.next_hop(ip("2001:db8:2::9")), Some(ip("2001:db8:2::9")), "on the link");
        assert_eq!(
            addresses.next_hop(ip("2001:db8:1::9")),
            Some(ip("fe80::1")),
            "an advertised address does not make its prefix on-link"
        );
        assert_eq!(addresses.next_hop(ip("198.51.100.1")), Some(ip("10.0.0.1")));
        let given =
            Addresses::new(&["fd00::2/64".parse().unwrap()], &[ip("fd00::1")], mac).with_router_info(&network());
        assert_eq!(given.next_hop(ip("2001:db8:1::9")), Some(ip("fd00::1")));
        let local = Addresses::new(&[], &[], mac).with_link_local(mac);
        assert_eq!((local.link_local(), local.has_routable()), (Some(ip6("fe80::ff:fe00:7")), false));
        assert!(local.with_router_info(&network()).has_routable());
    }

    /// RFC 6724 §5, rules 2, 3 and 8.
    #[test]
    fn source_selection_avoids_deprecated_and_prefers_longest_common_prefix() {
        let addresses = addresses().with_router_info(&network());
        for (to, from) in [
            ("2001:db8:1::9", "2001:db8:2::2"),
            ("2001:db8:7::9", "2001:db8:2::2"),
            ("fd12::9", "fd00::2"),
            ("fe80::9", "fe80::ff:fe00:7"),
        ] {
            assert_eq!(addresses.source_for(ip(to)), Some(ip(from)), "{to}");
        }
        let mac = MacAddr::default();
        let mut only = network();
        (only.addresses[1], only.addresses[2]) = (None, None);
        let only = Addresses::new(&[], &[], mac).with_link_local(mac).with_router_info(&only);
        assert_eq!(only.source_for(ip("2001:db8:7::9")), Some(ip("2001:db8:1::2")));
    }

    #[test]
    fn broadcast_addresses_belong_to_local_subnets() {
        let addresses = addresses();
        for (text, expected) in
            [("255.255.255.255", true), ("10.0.0.255", true), ("192.0.2.11", true), ("10.0.1.255", false)]
        {
            let ip: Ipv4Addr = text.parse().unwrap();
            assert_eq!(addresses.is_broadcast(ip), expected, "{text}");
            let from_a_link = expected && ip != Ipv4Addr::BROADCAST;
            assert_eq!(addresses.accepts_v4(ip.to_bits(), 0x0a00_0002), !from_a_link, "{text}");
        }
    }

    #[test]
    fn numeric_lookup_agrees_with_address_lookup() {
        let addresses = addresses();
        for text in ["10.0.0.2", "192.0.2.9", "fd00::2", "fe80::ff:fe00:7", "10.0.0.3", "0.0.0.0", "fd00::3", "::"] {
            let found = match ip(text) {
                IpAddr::V4(ip) => addresses.accepts_v4(0x0a00_0001, ip.to_bits()),
                IpAddr::V6(ip) => addresses.is_local_v6(ip.to_bits()),
            };
            assert_eq!(found, addresses.is_local(ip(text)), "{text}");
        }
    }

    #[test]
    fn martian_sources_are_not_addresses_of_other_hosts() {
        let addresses = addresses();
        for (text, is_martian) in [
            ("0.255.255.255", true),
            ("1.0.0.0", false),
            ("126.255.255.255", false),
            ("127.0.0.0", true),
            ("127.255.255.255", true),
            ("128.0.0.0", false),
            ("223.255.255.255", false),
            ("224.0.0.0", true),
            ("240.0.0.0", true),
            ("255.255.255.255", true),
            ("10.0.0.2", true),
            ("10.0.0.3", false),
            ("192.0.2.11", true),
            ("::1", true),
            ("ff02::1", true),
            ("::ffff:1.2.3.4", true),
            ("fd00::2", true),
            ("fe80::ff:fe00:7", true),
            ("fd00::3", false),
            ("2001:db8::1", false),
        ] {
            let local = if text.contains(':') { "[fd00::2]:7" } else { "10.0.0.2:7" };
            let tuple = Tuple::new(local.parse().unwrap(), (ip(text), 7).into());
            if !text.contains("ffff:1") {
                assert_eq!(addresses.is_martian_peer(&tuple), is_martian, "{text}");
            }
            assert_eq!(addresses.can_be_remote(ip(text)), !is_martian, "{text}");
        }
        assert!(!addresses.can_be_remote(ip("::")) && !addresses.is_martian_v6(ip6("::")));
    }

    #[test]
    fn subnet_of_one_or_two_addresses_has_no_broadcast_address() {
        for (cidr, other) in [("192.0.2.2/31", "192.0.2.3"), ("192.0.2.2/32", "192.0.2.2")] {
            let addresses = Addresses::new(&[cidr.parse().unwrap()], &[], MacAddr::default());
            assert!(!addresses.is_broadcast(other.parse().unwrap()), "{cidr}");
            assert!(addresses.is_broadcast(Ipv4Addr::BROADCAST), "{cidr}");
        }
        let all = Addresses::new(&["192.0.2.2/0".parse().unwrap()], &[], MacAddr::default());
        assert!(all.is_broadcast(Ipv4Addr::BROADCAST) && !all.is_broadcast(Ipv4Addr::new(192, 0, 2, 255)));
    }
}
