//! What routers have advertised, as all workers go by it.

use super::autoconf::{ADDRESSES, PREFIXES};
use crate::config::IpCidr;
use linerate_bypass::time::Duration;
use std::net::Ipv6Addr;

/// What the link is like by what routers say of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Network {
    /// Addresses of ours, and whether they are deprecated (RFC 4862 §5.5.4).
    pub addresses: [Option<(IpCidr, bool)>; ADDRESSES],
    /// Prefixes that are on the link (RFC 4861 §6.3.4).
    pub on_link: [Option<IpCidr>; PREFIXES],
    /// The router for what is not (RFC 4861 §6.3.6).
    pub router: Option<Ipv6Addr>,
    /// The largest IPv6 packet.
    pub mtu: Option<u16>,
    /// How long a neighbour is believed that was heard of, and the time between questions.
    pub reachable: Option<Duration>,
    pub retransmit: Option<Duration>,
}

impl Network {
    /// Addresses of ours, and whether they are deprecated; those that are not first.
    pub fn addresses(&self) -> impl Iterator<Item = (IpCidr, bool)> + '_ {
        let of = |wanted| self.addresses.iter().copied().flatten().filter(move |(_, deprecated)| *deprecated == wanted);
        of(false).chain(of(true))
    }

    /// Prefixes that are on the link.
    pub fn on_link(&self) -> impl Iterator<Item = IpCidr> + '_ {
        self.on_link.iter().copied().flatten()
    }

    /// The router for what is not on the link.
    pub fn router(&self) -> Option<Ipv6Addr> {
        self.router
    }

    /// Says in the log what is not as in `old`.
    pub fn log(&self, old: &Network) {
        let state = |network: &Network, cidr| network.addresses().find(|(own, _)| *own == cidr).map(|(_, state)| state);
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
            tracing::warn!("SLAAC: {cidr} is ours no more");
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
