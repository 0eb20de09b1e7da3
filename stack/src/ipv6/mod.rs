//! What one worker does about IPv6 on the link, for all workers of the port: its addresses are tried, formed of what routers advertise,
//! and their groups told.

pub(crate) mod dad;

mod advertisement;
mod autoconf;
mod listener;
mod network;
mod solicitation;

pub(crate) use listener::QUERY as LISTENER_QUERY;
pub(crate) use network::Network;

use crate::addresses::Addresses;
use crate::arp_ndp::receive::NeighborInfo;
use crate::arp_ndp::solicited_node;
use crate::config::Config;
use crate::drop_stats::DropCause;
use crate::egress::Egress;
use crate::ipv6::dad::{Dad, DuplicateAddress};
use crate::rng;
use advertisement::Advertisement;
use autoconf::Autoconf;
use linerate_bypass::Nic;
use linerate_bypass::time::Instant;
use listener::Listener;
use std::net::{IpAddr, Ipv6Addr};

/// Addresses that routers' prefixes may bring, beside the link-local one.
pub(crate) const FORMED: usize = autoconf::ADDRESSES;

/// IPv6 on the link.
pub(crate) struct Six {
    /// Addresses from the start that are not used yet.
    dad: Option<Dad>,
    autoconf: Option<Autoconf>,
    listener: Listener,
    link_up: bool,
    /// When there is something to do next.
    due: Option<Instant>,
}

/// What came of doing what was due.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The addresses from the start are ours now.
    pub is_verified: bool,
    /// Routers have advertised something else than before.
    pub network: Option<Network>,
}

impl Six {
    /// Of a host that has or tries `addresses`; `None` where there is no IPv6. `dad` are those that are not used yet.
    pub fn new<N: Nic>(
        config: &Config,
        addresses: &Addresses,
        dad: Option<Dad>,
        egress: &Egress<N>,
        now: Instant,
    ) -> Option<Self> {
        addresses.link_local()?;
        let seed = |name| rng::draw(config.seed, name, 0);
        let autoconf = config
            .slaac
            .then(|| Autoconf::new(egress.mac(), egress.mtu(), config.dad_transmits, seed("autoconfiguration")));
        Some(Six { dad, autoconf, listener: Listener::new(seed("listener")), link_up: false, due: Some(now) })
    }

    /// The link is up or down from now on.
    pub fn set_link(&mut self, up: bool, now: Instant) {
        if self.link_up == up {
            return;
        }
        self.link_up = up;
        if let Some(dad) = &mut self.dad {
            dad.set_link(up, now);
        }
        if let Some(autoconf) = &mut self.autoconf {
            autoconf.set_link(up && self.dad.is_none(), now);
        }
        self.listener.set_link(up, now);
        self.due = Some(now);
    }

    /// Hears a message of neighbour discovery. Returns what it says against an address of ours from the start, and what it taught.
    pub fn hear<N: Nic>(
        &mut self,
        frame: &[u8],
        egress: &mut Egress<N>,
        now: Instant,
    ) -> (Option<DuplicateAddress>, Option<NeighborInfo>) {
        let duplicate = self.dad.as_ref().and_then(|dad| dad.hear(frame, egress.mac()));
        let Some(autoconf) = &mut self.autoconf else { return (duplicate, None) };
        if let Some(found) = autoconf.object(frame) {
            tracing::warn!("SLAAC: {found}; it is not used");
        }
        let mut learnt = None;
        match Advertisement::parse(frame) {
            Ok(Some(said)) => {
                if !autoconf.hear(&said, now) {
                    egress.count_drop(DropCause::Beyond);
                }
                let known = said.station().filter(|_| autoconf.has_router(said.router));
                learnt = known.map(|mac| NeighborInfo { ip: said.router.into(), mac, new: true });
                self.due = Some(now);
            }
            Ok(None) => {}
            Err(cause) => egress.count_drop(cause),
        }
        (duplicate, learnt)
    }

    /// Hears who asks which groups we listen to.
    pub fn hear_query(&mut self, frame: &[u8], now: Instant) {
        self.listener.hear(frame, now);
        self.due = Some(now);
    }

    /// Nobody answered when `ip` was asked where it is.
    pub fn neighbor_unreachable(&mut self, ip: IpAddr, now: Instant) {
        if let Some(autoconf) = &mut self.autoconf {
            autoconf.neighbor_unreachable(ip);
            self.due = Some(now);
        }
    }

    /// Does what is due.
    pub fn tend<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(autoconf) = &mut self.autoconf {
            autoconf.expire(now);
        }
        // RFC 4862 §5.4.2: groups are joined before anybody is asked, so that the answer is heard.
        self.join(egress.addresses(), now);
        self.listener.tend(egress, now);
        if self.dad.as_mut().is_some_and(|dad| dad.tend(egress, now)) {
            self.dad = None;
            outcome.is_verified = true;
        }
        outcome.network = self.autoconf.as_mut().and_then(|autoconf| autoconf.tend(egress, now));
        self.renew_due(now);
        outcome
    }

    /// The addresses in `addresses` are ours from now on, those from the start among them.
    pub fn verified(&mut self, addresses: &Addresses, now: Instant) {
        if let Some(autoconf) = &mut self.autoconf {
            autoconf.set_link(true, now);
        }
        self.join(addresses, now);
        self.listener.tell_again(now);
        self.due = Some(now);
    }

    /// Listens to the groups of our addresses and of those that are tried.
    fn join(&mut self, addresses: &Addresses, now: Instant) {
        let tried = self.dad.iter().flat_map(|dad| dad.tentative()).copied();
        let tentative = self.autoconf.iter().flat_map(|autoconf| autoconf.tentative(now));
        let mut groups = [Ipv6Addr::UNSPECIFIED; 2 * Config::MAX_ADDRESSES];
        let mut count = 0;
        for ip in addresses.own_v6().chain(tried).chain(tentative) {
            let group = solicited_node(ip);
            if count < groups.len() && !groups[..count].contains(&group) {
                groups[count] = group;
                count += 1;
            }
        }
        self.listener.set_groups(groups[..count].iter().copied(), now);
    }

    fn renew_due(&mut self, now: Instant) {
        let dad = self.dad.as_ref().and_then(Dad::next_deadline);
        let autoconf = self.autoconf.as_ref().and_then(|autoconf| autoconf.next_deadline(now));
        self.due = [dad, autoconf, self.listener.next_deadline()].into_iter().flatten().min();
    }

    /// When [`tend`](Self::tend) has something to do next.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.due
    }
}
