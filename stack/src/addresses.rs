//! Our addresses and where packets go next.

use crate::config::IpCidr;
use crate::ipv6::Network;
use crate::tcp::tuple::Tuple;
use linerate_bypass::MacAddr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of this host on its one link, and its gateways.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    own: Vec<IpCidr>,
    gateways: Vec<IpAddr>,
    /// What is on the link with us.
    on_link: Vec<IpCidr>,
    /// Addresses of ours that nothing new is to be sent from, if there is another (RFC 4862 §5.5.4).
    deprecated: Vec<IpAddr>,
    /// What is asked for every packet, of the IPv4 addresses in `own`.
    own_v4: Vec<OwnV4>,
    /// The IPv6 addresses in `own`.
    own_v6: Vec<u128>,
}

/// One of our IPv4 addresses, as a number, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnV4 {
    /// Longer than addresses are, so that none equals what stands for none.
    address: u64,
    /// Its link's broadcast address; on a link that has none, that of all links.
    broadcast: u32,
}

impl Addresses {
    /// `own` addresses and `gateways`; with an IPv6 address comes a link-local one made of `mac`.
    pub fn new(own: &[IpCidr], gateways: &[IpAddr], mac: MacAddr) -> Self {
        let has_six = own.iter().any(|cidr| cidr.address().is_ipv6());
        let addresses = Addresses {
            own: own.to_vec(),
            gateways: gateways.to_vec(),
            on_link: own.to_vec(),
            deprecated: Vec::new(),
            own_v4: Vec::new(),
            own_v6: Vec::new(),
        };
        if has_six { addresses.with_link_local(mac) } else { addresses.indexed() }
    }

    /// These, and a link-local address made of `mac`, unless there is one.
    pub fn with_link_local(mut self, mac: MacAddr) -> Self {
        if !self.own.iter().any(|cidr| is_link_local(cidr.address())) {
            let own = IpCidr::new(from_mac(0xfe80 << 112, mac).into(), 64);
            self.own.extend(own.clone());
            self.on_link.extend(own);
        }
        self.indexed()
    }

    /// These, and what routers have advertised. An address that is there already stays as it is; what is given comes first.
    pub fn with_network(mut self, network: &Network) -> Self {
        for (cidr, is_deprecated) in network.addresses() {
            if !self.is_ours(cidr.address()) {
                self.own.push(cidr);
                self.deprecated.extend(is_deprecated.then_some(cidr.address()));
            }
        }
        self.on_link.extend(network.on_link());
        self.gateways.extend(network.router().map(IpAddr::V6));
        self.indexed()
    }

    /// With the lists that are looked into for every packet.
    fn indexed(mut self) -> Self {
        self.own_v4 = self.own.iter().filter_map(OwnV4::of).collect();
        self.own_v6 = self.own_v6().map(Ipv6Addr::to_bits).collect();
        self
    }

    /// Our IPv6 addresses.
    pub fn own_v6(&self) -> impl Iterator<Item = Ipv6Addr> + '_ {
        self.own.iter().filter_map(|cidr| match cidr.address() {
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        })
    }

    /// Our link-local address.
    pub fn link_local(&self) -> Option<Ipv6Addr> {
        self.own_v6().find(Ipv6Addr::is_unicast_link_local)
    }

    /// Whether one of them is of use beyond the link.
    pub fn reach_beyond_link(&self) -> bool {
        self.own.iter().any(|cidr| !is_link_local(cidr.address()))
    }

    /// Our addresses with their prefixes.
    pub fn own(&self) -> &[IpCidr] {
        &self.own
    }

    /// Our gateways.
    pub fn gateways(&self) -> &[IpAddr] {
        &self.gateways
    }

    /// Whether `ip` is one of our addresses.
    #[inline]
    pub fn is_ours(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|cidr| cidr.address() == ip)
    }

    /// Whether `ip` is the broadcast address of one of our links.
    #[inline]
    pub fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        ip == Ipv4Addr::BROADCAST || self.own_v4.iter().any(|own| own.broadcast == ip.to_bits())
    }

    /// Returns true if no packet on the link can have the IPv4 source address `source`: it is not that of a host (RFC 1122
    /// §3.2.1.3, RFC 6890 §2.2.2), or it is ours. A reply would go to many hosts, to nobody, or to us.
    #[inline]
    pub fn is_martian_v4(&self, source: u32) -> bool {
        !is_host_v4(source) || self.own_v4.iter().any(|own| own.address == source.into() || own.broadcast == source)
    }

    /// Returns true if no packet on the link can have the IPv6 source address `source` (RFC 4291 §2.5.3, §2.5.5.2, §2.7), or
    /// it is ours. The unspecified address is one that neighbour discovery has (RFC 4861 §4.3).
    #[inline]
    pub fn is_martian_v6(&self, source: Ipv6Addr) -> bool {
        !can_send_v6(source) || self.is_our_v6(source.to_bits())
    }

    /// Returns true if no segment of `tuple` can come from a peer: see [`is_martian_v4`](Self::is_martian_v4).
    #[inline]
    pub fn is_martian_peer(&self, tuple: &Tuple) -> bool {
        match tuple.remote_v4() {
            Some(ip) => self.is_martian_v4(ip.to_bits()),
            None => self.is_martian_v6(tuple.remote_v6()),
        }
    }

    /// Returns true if `ip` can be the address of another host, which a connection can be made to.
    pub fn can_be_remote(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => !self.is_martian_v4(ip.to_bits()),
            IpAddr::V6(ip) => !ip.is_unspecified() && !self.is_martian_v6(ip),
        }
    }

    /// Whether the IPv4 address `ip` is one of ours.
    #[inline]
    pub fn is_our_v4(&self, ip: u32) -> bool {
        self.own_v4.iter().any(|own| own.address == ip.into())
    }

    /// Whether a packet can be from the IPv4 address `source` to us: `destination` is one of our addresses, and `source`
    /// is not the broadcast address of one of our links.
    #[inline]
    pub fn are_v4_ends(&self, source: u32, destination: u32) -> bool {
        self.own_v4.iter().any(|own| own.address == destination.into())
            && !self.own_v4.iter().any(|own| own.broadcast == source)
    }

    /// Our only IPv4 address, if we have just one.
    #[inline]
    pub fn only_v4(&self) -> OwnV4 {
        if let [only] = self.own_v4[..] { only } else { OwnV4::NONE }
    }

    /// Whether the IPv6 address `ip` is one of ours.
    #[inline]
    pub fn is_our_v6(&self, ip: u128) -> bool {
        self.own_v6.contains(&ip)
    }

    /// The neighbour to hand a packet for `destination` to: itself if it is on the link, else a gateway.
    #[inline]
    pub fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        if is_link_local(destination) || self.on_link.iter().any(|cidr| cidr.contains(destination)) {
            return Some(destination);
        }
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == destination.is_ipv4())
    }

    /// The address of ours to reach `destination` from: of its family, and not confined to the link where the destination is not; not a
    /// deprecated one if there is another; one on the same link if there is one; over IPv6 the one that has most in common with it
    /// (RFC 6724 §5, rules 2, 3 and 8); the first of these.
    pub fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
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

impl OwnV4 {
    const NONE: Self = OwnV4 { address: u64::MAX, broadcast: 0 };

    /// Whether a packet can be from the IPv4 address `source` to this address of ours, which is our only one.
    #[inline]
    pub fn are_ends(self, source: u32, destination: u32) -> bool {
        self.address == destination.into() && self.broadcast != source
    }

    fn of(cidr: &IpCidr) -> Option<Self> {
        let IpAddr::V4(own) = cidr.address() else { return None };
        let address = own.to_bits();
        // RFC 3021 §2.1: a link of two addresses or one has no broadcast address.
        let host_bits = if cidr.prefix() < 31 { u32::MAX >> cidr.prefix() } else { u32::MAX };
        Some(OwnV4 { address: address.into(), broadcast: address | host_bits })
    }
}

/// The address of the station `mac` with the 64 bits of `prefix` (RFC 4291 §2.5.6, appendix A; RFC 2464 §4).
pub(crate) fn from_mac(prefix: u128, mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let host = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    Ipv6Addr::from_bits(prefix | u128::from(u64::from_be_bytes(host)))
}

/// Returns true if `ip` is in a range of IPv4 addresses of single hosts on networks: above 0.0.0.0/8, below 224.0.0.0/3, and
/// not in 127.0.0.0/8.
#[inline]
fn is_host_v4(ip: u32) -> bool {
    (0x0100_0000..0xe000_0000).contains(&ip) && ip >> 24 != 127
}

/// Returns true unless `ip` is a multicast, loopback or IPv4-mapped address.
#[inline]
pub(crate) fn can_send_v6(ip: Ipv6Addr) -> bool {
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
    fn ipv6_brings_a_link_local_address() {
        assert!(addresses().is_ours(ip("fe80::ff:fe00:7")));
        let four = Addresses::new(&["10.0.0.2/24".parse().unwrap()], &[], MacAddr::default());
        assert_eq!(four.own().len(), 1);
    }

    #[test]
    fn what_is_on_the_link_is_its_own_next_hop() {
        let addresses = addresses();
        assert_eq!(addresses.next_hop(ip("10.0.0.77")), Some(ip("10.0.0.77")));
        assert_eq!(addresses.next_hop(ip("198.51.100.1")), Some(ip("10.0.0.1")));
        assert_eq!(addresses.next_hop(ip("fe80::1")), Some(ip("fe80::1")));
        assert_eq!(addresses.next_hop(ip("2001:db8::1")), None);
    }

    #[test]
    fn the_source_is_of_the_destination_s_link() {
        let addresses = addresses();
        assert_eq!(addresses.source_for(ip("192.0.2.10")), Some(ip("192.0.2.9")));
        assert_eq!(addresses.source_for(ip("198.51.100.1")), Some(ip("10.0.0.2")));
        assert_eq!(addresses.source_for(ip("2001:db8::1")), Some(ip("fd00::2")));
        assert_eq!(addresses.source_for(ip("fe80::1")), Some(ip("fe80::ff:fe00:7")));
    }

    /// What routers have advertised: two addresses, the first of them deprecated, and a prefix on the link.
    fn network() -> Network {
        let of = |text: &str, deprecated| Some((text.parse().unwrap(), deprecated));
        let addresses = [of("2001:db8:1::2/64", true), of("2001:db8:2::2/64", false), of("fd00::2/64", false), None];
        let mut on_link = [None; 8];
        on_link[3] = Some("2001:db8:2::/64".parse().unwrap());
        let router = Some("fe80::1".parse().unwrap());
        Network { addresses, on_link, router, ..Network::default() }
    }

    #[test]
    fn what_routers_advertise_comes_behind_what_is_given() {
        let mac = "02:00:00:00:00:07".parse().unwrap();
        let addresses = addresses().with_network(&network());
        assert_eq!(addresses.own().iter().filter(|cidr| cidr.address() == ip("fd00::2")).count(), 1, "it was there");
        assert!(addresses.is_our_v6(ip6("2001:db8:1::2").to_bits()));
        assert_eq!(addresses.next_hop(ip("2001:db8:2::9")), Some(ip("2001:db8:2::9")), "on the link");
        assert_eq!(
            addresses.next_hop(ip("2001:db8:1::9")),
            Some(ip("fe80::1")),
            "an address does not make its prefix be"
        );
        assert_eq!(addresses.next_hop(ip("198.51.100.1")), Some(ip("10.0.0.1")));
        let given = Addresses::new(&["fd00::2/64".parse().unwrap()], &[ip("fd00::1")], mac).with_network(&network());
        assert_eq!(given.next_hop(ip("2001:db8:1::9")), Some(ip("fd00::1")));
        let local = Addresses::new(&[], &[], mac).with_link_local(mac);
        assert_eq!((local.link_local(), local.reach_beyond_link()), (Some(ip6("fe80::ff:fe00:7")), false));
        assert!(local.with_network(&network()).reach_beyond_link());
    }

    /// RFC 6724 §5, rules 2, 3 and 8.
    #[test]
    fn a_deprecated_address_is_the_last_resort_and_the_longest_common_prefix_decides() {
        let addresses = addresses().with_network(&network());
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
        let only = Addresses::new(&[], &[], mac).with_link_local(mac).with_network(&only);
        assert_eq!(only.source_for(ip("2001:db8:7::9")), Some(ip("2001:db8:1::2")));
    }

    #[test]
    fn broadcast_addresses_are_those_of_our_links() {
        let addresses = addresses();
        for (text, expected) in
            [("255.255.255.255", true), ("10.0.0.255", true), ("192.0.2.11", true), ("10.0.1.255", false)]
        {
            let ip: Ipv4Addr = text.parse().unwrap();
            assert_eq!(addresses.is_broadcast(ip), expected, "{text}");
            let from_a_link = expected && ip != Ipv4Addr::BROADCAST;
            assert_eq!(addresses.are_v4_ends(ip.to_bits(), 0x0a00_0002), !from_a_link, "{text}");
        }
    }

    #[test]
    fn our_addresses_are_ours_as_numbers_too() {
        let addresses = addresses();
        for text in ["10.0.0.2", "192.0.2.9", "fd00::2", "fe80::ff:fe00:7", "10.0.0.3", "0.0.0.0", "fd00::3", "::"] {
            let found = match ip(text) {
                IpAddr::V4(ip) => addresses.are_v4_ends(0x0a00_0001, ip.to_bits()),
                IpAddr::V6(ip) => addresses.is_our_v6(ip.to_bits()),
            };
            assert_eq!(found, addresses.is_ours(ip(text)), "{text}");
        }
    }

    #[test]
    fn martian_sources_are_those_of_no_other_host() {
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
    fn a_link_of_two_addresses_or_one_has_no_broadcast_address() {
        for (cidr, other) in [("192.0.2.2/31", "192.0.2.3"), ("192.0.2.2/32", "192.0.2.2")] {
            let addresses = Addresses::new(&[cidr.parse().unwrap()], &[], MacAddr::default());
            assert!(!addresses.is_broadcast(other.parse().unwrap()), "{cidr}");
            assert!(addresses.is_broadcast(Ipv4Addr::BROADCAST), "{cidr}");
        }
        let all = Addresses::new(&["192.0.2.2/0".parse().unwrap()], &[], MacAddr::default());
        assert!(all.is_broadcast(Ipv4Addr::BROADCAST) && !all.is_broadcast(Ipv4Addr::new(192, 0, 2, 255)));
    }
}
