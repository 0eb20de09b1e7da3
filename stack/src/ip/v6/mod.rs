//! IPv6 on the link: DAD, SLAAC and MLD. One worker handles it for all workers of the port.

pub(crate) mod dad;
pub(crate) mod mld;

mod router_advert;
mod router_solicit;
mod slaac;

use crate::config::Config;
use crate::ip::addresses::Addresses;
use crate::ip::arp_ndp::NeighborInfo;
use crate::ip::egress::Egress;
use crate::ip::router_info::RouterInfo;
use crate::ip::v6::dad::{Dad, DuplicateAddress};
use crate::rng;
use crate::wire::arp_ndp::solicited_node;
use crate::wire::drop_stats::DropCause;
use linerate_bypass::Nic;
use linerate_service::time::Instant;
use mld::MldListener;
use router_advert::Advertisement;
use slaac::Slaac;
use std::net::{IpAddr, Ipv6Addr};

/// DAD, SLAAC and MLD of the port.
pub(crate) struct Ipv6Control {
    /// DAD of the initial addresses, until it has passed.
    dad: Option<Dad>,
    slaac: Option<Slaac>,
    listener: MldListener,
    link_up: bool,
    /// Time of the next [`poll`](Self::poll).
    due: Option<Instant>,
}

/// Changes found by [`Ipv6Control::poll`].
#[derive(Debug, Default)]
pub(crate) struct Ipv6Changes {
    /// True if the initial addresses have passed DAD.
    pub is_verified: bool,
    /// Changed router information.
    pub network: Option<RouterInfo>,
}

impl Ipv6Control {
    /// Creates the state of a host with `addresses`, of which `dad` are tentative; `None` without IPv6.
    pub fn new<N: Nic>(
        config: &Config,
        addresses: &Addresses,
        dad: Option<Dad>,
        egress: &Egress<N>,
        now: Instant,
    ) -> Option<Self> {
        addresses.link_local()?;
        let seed = |name| rng::draw(config.seed, name, 0);
        let slaac = config
            .slaac
            .then(|| Slaac::new(egress.mac(), egress.mtu(), config.dad_transmits, seed("autoconfiguration")));
        Some(Ipv6Control { dad, slaac, listener: MldListener::new(seed("listener")), link_up: false, due: Some(now) })
    }

    pub fn set_link(&mut self, up: bool, now: Instant) {
        if self.link_up == up {
            return;
        }
        self.link_up = up;
        if let Some(dad) = &mut self.dad {
            dad.set_link(up, now);
        }
        if let Some(slaac) = &mut self.slaac {
            slaac.set_link(up && self.dad.is_none(), now);
        }
        self.listener.set_link(up, now);
        self.due = Some(now);
    }

    /// Processes an NDP message. Returns a conflict with an initial address, and a learnt router.
    pub fn on_ndp<N: Nic>(
        &mut self,
        frame: &[u8],
        egress: &mut Egress<N>,
        now: Instant,
    ) -> (Option<DuplicateAddress>, Option<NeighborInfo>) {
        let duplicate = self.dad.as_ref().and_then(|dad| dad.find_conflict_in(frame, egress.mac()));
        let Some(slaac) = &mut self.slaac else { return (duplicate, None) };
        if let Some(found) = slaac.on_conflict(frame) {
            tracing::warn!("SLAAC: {found}; the address is not used");
        }
        let mut learnt = None;
        match Advertisement::parse(frame) {
            Ok(Some(advert)) => {
                if !slaac.on_advertisement(&advert, now) {
                    egress.count_drop(DropCause::Beyond);
                }
                let known = advert.station().filter(|_| slaac.has_router(advert.router));
                learnt = known.map(|mac| NeighborInfo { ip: advert.router.into(), mac, may_create: true });
                self.due = Some(now);
            }
            Ok(None) => {}
            Err(cause) => egress.count_drop(cause),
        }
        (duplicate, learnt)
    }

    /// Processes an MLD query.
    pub fn on_mld_query(&mut self, frame: &[u8], now: Instant) {
        self.listener.on_query(frame, now);
        self.due = Some(now);
    }

    /// Handles the router or neighbour `ip` becoming unreachable.
    pub fn neighbor_unreachable(&mut self, ip: IpAddr, now: Instant) {
        if let Some(slaac) = &mut self.slaac {
            slaac.neighbor_unreachable(ip);
            self.due = Some(now);
        }
    }

    /// Runs everything that is due.
    pub fn poll<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) -> Ipv6Changes {
        let mut outcome = Ipv6Changes::default();
        if let Some(slaac) = &mut self.slaac {
            slaac.expire(now);
        }
        // RFC 4862 §5.4.2: join the solicited-node groups before probing, in order to receive replies.
        self.join(egress.addresses(), now);
        self.listener.poll(egress, now);
        if self.dad.as_mut().is_some_and(|dad| dad.poll(egress, now)) {
            self.dad = None;
            outcome.is_verified = true;
        }
        outcome.network = self.slaac.as_mut().and_then(|slaac| slaac.poll(egress, now));
        self.renew_due(now);
        outcome
    }

    /// Starts SLAAC and reports groups again after the initial addresses in `addresses` have passed DAD.
    pub fn verified(&mut self, addresses: &Addresses, now: Instant) {
        if let Some(slaac) = &mut self.slaac {
            slaac.set_link(true, now);
        }
        self.join(addresses, now);
        self.listener.report_again(now);
        self.due = Some(now);
    }

    /// Joins the solicited-node groups of local and tentative addresses.
    fn join(&mut self, addresses: &Addresses, now: Instant) {
        let tried = self.dad.iter().flat_map(|dad| dad.tentative()).copied();
        let tentative = self.slaac.iter().flat_map(|slaac| slaac.tentative(now));
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
        let slaac = self.slaac.as_ref().and_then(|slaac| slaac.next_deadline(now));
        self.due = [dad, slaac, self.listener.next_deadline()].into_iter().flatten().min();
    }

    /// Returns the time of the next [`poll`](Self::poll).
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.due
    }
}
