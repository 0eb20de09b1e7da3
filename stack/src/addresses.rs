//! Our addresses and where packets go next.

use crate::config::IpCidr;
use linerate_bypass::MacAddr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of this host on its one link, and its gateways.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    own: Vec<IpCidr>,
    gateways: Vec<IpAddr>,
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
        Addresses { own, gateways: gateways.to_vec() }
    }

    /// Our addresses with their prefixes.
    pub fn own(&self) -> &[IpCidr] {
        &self.own
    }

    /// Whether `ip` is one of our addresses.
    #[inline]
    pub fn is_ours(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|cidr| cidr.address() == ip)
    }

    /// Whether `ip` is the broadcast address of one of our links.
    pub fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        ip == Ipv4Addr::BROADCAST
            || self.own.iter().any(|cidr| match cidr.address() {
                IpAddr::V4(own) if cidr.prefix() < 31 => {
                    let host_bits = u32::MAX.checked_shr(cidr.prefix().into()).unwrap_or(0);
                    ip.to_bits() == own.to_bits() | host_bits
                }
                _ => false,
            })
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
            assert_eq!(addresses.is_broadcast(text.parse().unwrap()), expected, "{text}");
        }
    }
}
