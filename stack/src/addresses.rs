//! Our addresses and where packets go next.

use crate::config::IpCidr;
use linerate_bypass::MacAddr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of this host on its one link, and its gateways.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    own: Vec<IpCidr>,
    gateways: Vec<IpAddr>,
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
    /// `own` addresses and `gateways`; with an IPv6 address comes a link-local one made of `mac` (RFC 4291 §2.5.6, appendix A).
    pub fn new(own: &[IpCidr], gateways: &[IpAddr], mac: MacAddr) -> Self {
        let mut own = own.to_vec();
        let six = own.iter().filter(|cidr| cidr.address().is_ipv6());
        if six.clone().count() > 0 && !six.clone().any(|cidr| is_link_local(cidr.address())) {
            let [a, b, c, d, e, f] = mac.0;
            let host = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
            let address = Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(u64::from_be_bytes(host)));
            own.extend(IpCidr::new(address.into(), 64));
        }
        let own_v4 = own.iter().filter_map(OwnV4::of).collect();
        let own_v6 = own.iter().filter_map(|cidr| match cidr.address() {
            IpAddr::V6(ip) => Some(ip.to_bits()),
            IpAddr::V4(_) => None,
        });
        Addresses { own_v6: own_v6.collect(), own_v4, own, gateways: gateways.to_vec() }
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
        if is_link_local(destination) || self.own.iter().any(|cidr| cidr.contains(destination)) {
            return Some(destination);
        }
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == destination.is_ipv4())
    }

    /// The address of ours to reach `destination` from: one on the same link if there is one, else the first of its
    /// family that is not confined to the link.
    pub fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        let family = || self.own.iter().filter(|cidr| cidr.address().is_ipv4() == destination.is_ipv4());
        family()
            .find(|cidr| cidr.contains(destination))
            .or_else(|| family().find(|cidr| !is_link_local(cidr.address())))
            .map(IpCidr::address)
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

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
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
