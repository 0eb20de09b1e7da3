//! Stateless address autoconfiguration (RFC 4862) and the other host information in router advertisements (RFC 4861
//! §6.3).
//!
//! All state has a fixed size, so a flood of advertisements takes no memory. An entry is kept for its lifetime: a flood
//! takes free entries only, and displaces no router or address in use.

use super::router_advert::{Advertisement, Preference, Prefix};
use super::router_solicit::{DELAY, Solicitation, random_below};
use crate::ip::addresses::eui64_address;
use crate::ip::egress::Egress;
use crate::ip::router_info::{ADDRESSES, PREFIXES, RouterInfo};
use crate::ip::v6::dad::{DadProbes, DuplicateAddress, Step, find_conflict};
use crate::wire::arp_ndp::Message;
use crate::wire::ip_cidr::IpCidr;
use linerate_bypass::{MacAddr, Nic};
use linerate_service::time::{Duration, Instant};
use std::net::{IpAddr, Ipv6Addr};

/// Number of default routers known at a time. RFC 4861 §6.3.4 requires two. A link has one, or two for redundancy, and
/// twice as many while they are replaced.
const ROUTERS: usize = 4;
/// Remaining lifetime below which an advertisement does not shorten it (RFC 4862 §5.5.3 e), since a forged packet
/// could.
const TWO_HOURS: Duration = Duration::from_secs(7200);
/// Minimum MTU of IPv6 (RFC 8200 §5).
const MIN_MTU: u32 = 1280;
/// Minimum time between two changes passed to workers, each of which has a cost.
const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Accepted range of the reachable time and retransmission timer. Values outside would cause endless solicitations, or
/// none.
const REACHABLE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));
const RETRANSMIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Expiry time; `None` for infinity.
type Until = Option<Instant>;

fn until(lifetime: Option<Duration>, now: Instant) -> Until {
    lifetime.map(|lifetime| now + lifetime)
}

fn is_over(until: Until, now: Instant) -> bool {
    until.is_some_and(|at| at <= now)
}

#[derive(Debug, Clone, Copy)]
struct Router {
    ip: Ipv6Addr,
    preference: Preference,
    until: Instant,
    /// True if the router did not reply to solicitations.
    silent: bool,
}

#[derive(Debug, Clone, Copy)]
struct OnLink {
    cidr: IpCidr,
    until: Until,
}

#[derive(Debug, Clone, Copy)]
struct Address {
    ip: Ipv6Addr,
    cidr: IpCidr,
    valid: Until,
    preferred: Until,
    state: AddressState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressState {
    /// Under DAD.
    Tentative(DadProbes),
    Assigned,
    /// Used by another station. The entry prevents repeated DAD.
    Duplicate,
}

impl Address {
    /// Updates the lifetimes from an advertisement (RFC 4862 §5.5.3 e).
    fn renew(&mut self, prefix: &Prefix, now: Instant) {
        self.preferred = until(prefix.preferred, now);
        let advertised = prefix.valid.unwrap_or(Duration::MAX);
        let remaining = self.valid.map_or(Duration::MAX, |at| at.since(now));
        if advertised > TWO_HOURS || advertised > remaining {
            self.valid = until(prefix.valid, now);
        } else if remaining > TWO_HOURS {
            self.valid = Some(now + TWO_HOURS);
        }
    }
}

/// Autoconfiguration state of the link.
pub(super) struct Slaac {
    mac: MacAddr,
    port_mtu: usize,
    /// DAD probes per address.
    transmits: u8,
    routers: [Option<Router>; ROUTERS],
    on_link: [Option<OnLink>; PREFIXES],
    addresses: [Option<Address>; ADDRESSES],
    mtu: Option<u16>,
    /// Advertised reachable time, and the randomised one.
    reachable: Option<(Duration, Duration)>,
    retransmit: Option<Duration>,
    solicitation: Solicitation,
    link_up: bool,
    random: fastrand::Rng,
    /// Information last passed to workers, and the earliest time of the next change.
    reported: RouterInfo,
    report_at: Instant,
}

impl Slaac {
    /// Creates the state of the station `mac` at a port with the MTU `port_mtu`, with `transmits` DAD probes per
    /// address.
    pub fn new(mac: MacAddr, port_mtu: usize, transmits: u8, seed: u64) -> Self {
        Slaac {
            mac,
            port_mtu,
            transmits,
            routers: [None; ROUTERS],
            on_link: [None; PREFIXES],
            addresses: [None; ADDRESSES],
            mtu: None,
            reachable: None,
            retransmit: None,
            solicitation: Solicitation::default(),
            link_up: false,
            random: fastrand::Rng::with_seed(seed),
            reported: RouterInfo::default(),
            report_at: Instant::ZERO,
        }
    }

    /// Sets the link state. When the link comes up, router solicitation and DAD restart.
    pub fn set_link(&mut self, up: bool, now: Instant) {
        if up && !self.link_up {
            self.solicitation.begin(now, &mut self.random);
            for address in self.addresses.iter_mut().flatten() {
                if let AddressState::Tentative(probes) = &mut address.state {
                    *probes = DadProbes::new(self.transmits, now + random_below(DELAY, &mut self.random));
                }
            }
        } else if !up {
            self.solicitation.end();
        }
        self.link_up = up;
    }

    /// Processes a router advertisement. Returns false if there was no free entry for part of it.
    pub fn on_advertisement(&mut self, advert: &Advertisement, now: Instant) -> bool {
        let mut is_kept = self.process_router(advert, now);
        // RFC 4861 §6.3.4: an MTU outside the bounds is ignored.
        if let Some(mtu) = advert.mtu().filter(|mtu| *mtu >= MIN_MTU && *mtu as usize <= self.port_mtu) {
            self.mtu = Some(mtu as u16);
        }
        if let Some(base) = advert.reachable.map(|time| time.clamp(REACHABLE.0, REACHABLE.1))
            && self.reachable.is_none_or(|(old, _)| old != base)
        {
            // RFC 4861 §6.3.2: a random value between 0.5 and 1.5 times the base value.
            self.reachable = Some((base, base / 2 + random_below(base, &mut self.random)));
        }
        if let Some(time) = advert.retransmit {
            self.retransmit = Some(time.clamp(RETRANSMIT.0, RETRANSMIT.1));
        }
        for prefix in advert.prefixes().filter(is_host_prefix) {
            is_kept &= !prefix.on_link || self.process_on_link(&prefix, now);
            is_kept &= !prefix.autonomous || self.process_autonomous(&prefix, advert.to_all, now);
        }
        is_kept
    }

    /// Returns whether `ip` is a known router.
    pub fn has_router(&self, ip: Ipv6Addr) -> bool {
        self.routers.iter().flatten().any(|router| router.ip == ip)
    }

    fn process_router(&mut self, advert: &Advertisement, now: Instant) -> bool {
        let Advertisement { router: ip, preference, lifetime, .. } = *advert;
        let known = self.routers.iter_mut().find(|entry| entry.is_some_and(|router| router.ip == ip));
        if lifetime.is_zero() {
            if let Some(entry) = known {
                *entry = None;
                self.solicit_routers(now);
            }
            return true;
        }
        self.solicitation.answered();
        let entry = match known {
            Some(entry) => entry,
            None => match self.routers.iter_mut().find(|entry| entry.is_none()) {
                Some(entry) => entry,
                None => return false,
            },
        };
        *entry = Some(Router { ip, preference, until: now + lifetime, silent: false });
        true
    }

    fn process_on_link(&mut self, prefix: &Prefix, now: Instant) -> bool {
        let Ok(cidr) = IpCidr::new(Ipv6Addr::from_bits(prefix.bits).into(), prefix.len) else { return true };
        let ends = prefix.valid.is_some_and(|valid| valid.is_zero());
        let known = self.on_link.iter_mut().find(|entry| entry.is_some_and(|link| link.cidr == cidr));
        let entry = match known {
            Some(entry) => entry,
            None if ends => return true,
            None => match self.on_link.iter_mut().find(|entry| entry.is_none()) {
                Some(entry) => entry,
                None => return false,
            },
        };
        *entry = (!ends).then(|| OnLink { cidr, until: until(prefix.valid, now) });
        true
    }

    /// Processes a prefix with the autonomous flag (RFC 4862 §5.5.3).
    fn process_autonomous(&mut self, prefix: &Prefix, to_all: bool, now: Instant) -> bool {
        let forever = |lifetime: Option<Duration>| lifetime.unwrap_or(Duration::MAX);
        if prefix.len != 64 || forever(prefix.preferred) > forever(prefix.valid) {
            return true;
        }
        let ip = eui64_address(prefix.bits, self.mac);
        if let Some(address) = self.addresses.iter_mut().flatten().find(|address| address.ip == ip) {
            address.renew(prefix, now);
            return true;
        }
        let Ok(cidr) = IpCidr::new(ip.into(), 64) else { return true };
        if prefix.valid.is_some_and(|valid| valid.is_zero()) {
            return true;
        }
        let Some(entry) = self.addresses.iter_mut().find(|entry| entry.is_none()) else { return false };
        // RFC 4862 §5.4.2: hosts that received the same multicast advertisement start at different times.
        let delay = if to_all { random_below(DELAY, &mut self.random) } else { Duration::ZERO };
        let probes = DadProbes::new(self.transmits, now + delay);
        let state = if self.transmits == 0 { AddressState::Assigned } else { AddressState::Tentative(probes) };
        let (valid, preferred) = (until(prefix.valid, now), until(prefix.preferred, now));
        *entry = Some(Address { ip, cidr, valid, preferred, state });
        true
    }

    /// Returns a DAD conflict that an NDP message reveals. The address is not used.
    pub fn on_conflict(&mut self, frame: &[u8]) -> Option<DuplicateAddress> {
        let is_tentative =
            |address: &Address, ip| address.ip == ip && matches!(address.state, AddressState::Tentative(_));
        let addresses = &mut self.addresses;
        let found =
            find_conflict(frame, |ip| addresses.iter().flatten().any(|address| is_tentative(address, ip)), self.mac)?;
        let address = addresses.iter_mut().flatten().find(|address| address.ip == found.address)?;
        address.state = AddressState::Duplicate;
        Some(found)
    }

    /// Marks a router as unreachable, so that another is preferred (RFC 4861 §6.3.6).
    pub fn neighbor_unreachable(&mut self, ip: IpAddr) {
        for router in self.routers.iter_mut().flatten().filter(|router| router.ip == ip) {
            router.silent = true;
        }
    }

    /// Returns the addresses whose DAD has begun, which must receive NDP messages.
    pub fn tentative(&self, now: Instant) -> impl Iterator<Item = Ipv6Addr> + '_ {
        self.addresses.iter().flatten().filter_map(move |address| match address.state {
            AddressState::Tentative(probes) => (probes.has_begun(now) && self.link_up).then_some(address.ip),
            AddressState::Assigned | AddressState::Duplicate => None,
        })
    }

    /// Removes expired entries.
    pub fn expire(&mut self, now: Instant) {
        let had_router = self.routers.iter().any(Option::is_some);
        forget(&mut self.routers, |router| router.until <= now);
        forget(&mut self.on_link, |link| is_over(link.until, now));
        forget(&mut self.addresses, |address| is_over(address.valid, now));
        if had_router {
            self.solicit_routers(now);
        }
    }

    /// Starts router solicitation if no router is known.
    fn solicit_routers(&mut self, now: Instant) {
        if self.link_up && self.routers.iter().all(Option::is_none) {
            self.solicitation.begin(now, &mut self.random);
        }
    }

    /// Sends due solicitations and probes. Returns changed information for the workers.
    pub fn poll<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) -> Option<RouterInfo> {
        if self.link_up {
            for address in self.addresses.iter_mut().flatten() {
                let AddressState::Tentative(probes) = &mut address.state else { continue };
                match probes.step(now) {
                    Step::Wait => {}
                    Step::Probe => egress.send_message(Message::Probe(address.ip)),
                    Step::Done => address.state = AddressState::Assigned,
                }
            }
        }
        if self.solicitation.is_due(now) {
            egress.send_message(Message::SolicitRouters { source: egress.addresses().link_local() });
            if self.solicitation.is_unanswered() {
                tracing::warn!(
                    "SLAAC: no router on this link answers; solicitation continues. Check that a router sends \
                     advertisements here"
                );
            }
        }
        let network = self.router_info(now);
        if network == self.reported || now < self.report_at {
            return None;
        }
        self.reported = network;
        self.report_at = now + MIN_REPORT_INTERVAL;
        Some(network)
    }

    /// Returns the current information.
    fn router_info(&self, now: Instant) -> RouterInfo {
        let own = |address: &Address| (address.cidr, is_over(address.preferred, now));
        let assigned = |address: &Address| (address.state == AddressState::Assigned).then(|| own(address));
        // RFC 4191 §3.2: prefer a reachable router, then the highest preference, then the first received.
        let rank = |router: &&Router| (router.silent, std::cmp::Reverse(router.preference));
        RouterInfo {
            addresses: std::array::from_fn(|at| self.addresses[at].as_ref().and_then(assigned)),
            on_link: std::array::from_fn(|at| self.on_link[at].map(|link| link.cidr)),
            router: self.routers.iter().flatten().min_by_key(rank).map(|router| router.ip),
            mtu: self.mtu,
            reachable: self.reachable.map(|(_, time)| time),
            retransmit: self.retransmit,
        }
    }

    /// Returns the time of the next work. Call it after [`expire`](Self::expire) and [`poll`](Self::poll).
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let routers = self.routers.iter().flatten().map(|router| router.until);
        let on_link = self.on_link.iter().flatten().filter_map(|link| link.until);
        let addresses = self.addresses.iter().flatten().flat_map(|address| {
            let probes = match address.state {
                AddressState::Tentative(probes) if self.link_up => Some(probes.next_deadline()),
                _ => None,
            };
            [address.valid, address.preferred.filter(|at| *at > now), probes].into_iter().flatten()
        });
        let report = (self.router_info(now) != self.reported).then_some(self.report_at);
        let all = routers.chain(on_link).chain(addresses);
        all.chain(self.solicitation.next_deadline()).chain(report).min()
    }
}

/// Returns whether hosts can have addresses in the prefix: not the link-local one, which always exists, multicast, or
/// loopback (RFC 4291 §2.5.3).
fn is_host_prefix(prefix: &Prefix) -> bool {
    let ip = Ipv6Addr::from_bits(prefix.bits);
    !ip.is_unicast_link_local() && !ip.is_multicast() && prefix.bits >> 64 != 0
}

fn forget<T>(entries: &mut [Option<T>], is_over: impl Fn(&T) -> bool) {
    for entry in entries {
        if entry.as_ref().is_some_and(&is_over) {
            *entry = None;
        }
    }
}

#[cfg(test)]
mod tests;
