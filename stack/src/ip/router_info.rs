//! Information from router advertisements, as passed to all workers.

use crate::wire::ip_cidr::IpCidr;
use linerate_service::time::Duration;
use std::net::Ipv6Addr;

/// Number of addresses formed. A link has one prefix, or a provider's and a local one (RFC 4193), and twice as many
/// during renumbering.
pub(crate) const ADDRESSES: usize = 4;
/// Number of on-link prefixes known: [`ADDRESSES`], and as many prefixes from which no address is formed.
pub(crate) const PREFIXES: usize = 8;

/// Link parameters from router advertisements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RouterInfo {
    /// Local addresses, and whether each is deprecated (RFC 4862 §5.5.4).
    pub addresses: [Option<(IpCidr, bool)>; ADDRESSES],
    /// On-link prefixes (RFC 4861 §6.3.4).
    pub on_link: [Option<IpCidr>; PREFIXES],
    /// Default router (RFC 4861 §6.3.6).
    pub router: Option<Ipv6Addr>,
    /// MTU for IPv6.
    pub mtu: Option<u16>,
    /// Reachable time of a neighbour, and the interval between solicitations.
    pub reachable: Option<Duration>,
    pub retransmit: Option<Duration>,
}

impl RouterInfo {
    /// Returns the local addresses and whether each is deprecated, preferred ones first.
    pub fn addresses(&self) -> impl Iterator<Item = (IpCidr, bool)> + '_ {
        let of = |wanted| self.addresses.iter().copied().flatten().filter(move |(_, deprecated)| *deprecated == wanted);
        of(false).chain(of(true))
    }

    /// Returns the on-link prefixes.
    pub fn on_link(&self) -> impl Iterator<Item = IpCidr> + '_ {
        self.on_link.iter().copied().flatten()
    }

    /// Returns the default router.
    pub fn router(&self) -> Option<Ipv6Addr> {
        self.router
    }

    /// Logs the differences from `old`.
    pub fn log(&self, old: &RouterInfo) {
        let state =
            |network: &RouterInfo, cidr| network.addresses().find(|(own, _)| *own == cidr).map(|(_, state)| state);
        for (cidr, deprecated) in self.addresses() {
            match (state(old, cidr), deprecated) {
                (None, _) => tracing::info!("SLAAC: {cidr}"),
                (Some(false), true) => {
                    tracing::info!("SLAAC: {cidr} is deprecated: no new connections are made from it")
                }
                (Some(true), false) => tracing::info!("SLAAC: {cidr} is preferred again"),
                _ => {}
            }
        }
        for (cidr, _) in old.addresses().filter(|(cidr, _)| state(self, *cidr).is_none()) {
            tracing::warn!("SLAAC: {cidr} has expired")
        }
        if self.router != old.router {
            match self.router {
                Some(router) => tracing::info!("SLAAC: router {router}"),
                None => tracing::warn!("SLAAC: no router"),
            }
        }
        if let Some(mtu) = self.mtu.filter(|_| self.mtu != old.mtu) {
            tracing::info!("SLAAC: the MTU over IPv6 is {mtu}");
        }
    }
}
