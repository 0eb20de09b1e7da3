//! Addresses and routes that the host's kernel determines, for a port that shares an interface with it.
//!
//! The workers then do not run ARP, NDP, DAD, DHCP or SLAAC.

use crate::wire::ip_cidr::{IpCidr, share_prefix};
use linerate_bypass::MacAddr;
use std::fmt;
use std::net::IpAddr;

/// Ethernet address, IP addresses and routes of an interface.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct HostNetwork {
    /// Ethernet address. With `None`, the port's address.
    pub mac: Option<MacAddr>,
    /// Local addresses, at most [`MAX_ADDRESSES`](crate::Config::MAX_ADDRESSES).
    pub addresses: Vec<IpCidr>,
    /// Local addresses that new connections use only if there is no other.
    pub deprecated: Vec<IpAddr>,
    /// Routes, most preferred first: the first route that contains a destination applies.
    pub routes: Vec<Route>,
}

/// Route to a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Address of the prefix.
    pub destination: IpAddr,
    /// Length of the prefix in bits.
    pub prefix: u8,
    /// Next hop; `None` for destinations on the link.
    pub gateway: Option<IpAddr>,
    /// Preferred local address of connections.
    pub source: Option<IpAddr>,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.destination, self.prefix)?;
        self.gateway.map_or(Ok(()), |gateway| write!(f, " via {gateway}"))
    }
}

impl Route {
    /// Returns whether `ip` is in the prefix.
    #[inline]
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        share_prefix(self.destination, ip, self.prefix)
    }
}
