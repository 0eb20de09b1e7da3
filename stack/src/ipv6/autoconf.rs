//! Stateless address autoconfiguration (RFC 4862) and what else hosts take from router advertisements (RFC 4861 §6.3).
//!
//! Everything is in places that are there from the start, so that no flood of advertisements takes memory. Who is in a place keeps
//! it for as long as it was promised: a flood takes those that are free, and no router or address away that is in use.

use super::router_advert::{Advertisement, Preference, Prefix};
use super::router_info::RouterInfo;
use super::router_solicit::{DELAY, Solicitation, by_chance};
use crate::addresses::eui64_address;
use crate::arp_ndp::Message;
use crate::config::IpCidr;
use crate::egress::Egress;
use crate::ipv6::dad::{DadProbes, DuplicateAddress, Step, find_conflict};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{MacAddr, Nic};
use std::net::{IpAddr, Ipv6Addr};

/// Default routers that are known at a time. RFC 4861 §6.3.4 asks for two at least; links have one, or two for when one fails, and
/// twice as many while these are replaced.
const ROUTERS: usize = 4;
/// Addresses that are formed. Links have a prefix, or one of the provider's and one of their own (RFC 4193), and twice as many while
/// they are renumbered.
pub(crate) const ADDRESSES: usize = 4;
/// Prefixes on the link that are known: those, and as many that no address is formed of.
pub(crate) const PREFIXES: usize = 8;

/// Below, an advertisement does not bring the end of an address nearer (RFC 4862 §5.5.3 e): it takes no more than a forged packet.
const TWO_HOURS: Duration = Duration::from_secs(7200);
/// The least MTU of IPv6 (RFC 8200 §5).
const LEAST_MTU: u32 = 1280;
/// Between two changes that workers are told of: each costs them something.
const CHANGES: Duration = Duration::from_secs(1);
/// Between which times of neighbour discovery are believed; beyond, neighbours would be asked without end, or never again.
const REACHABLE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));
const RETRANSMIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Until when something is so; `None`: for ever.
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
    /// It was asked where it is, and did not answer.
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
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is being tried.
    Tried(DadProbes),
    Ours,
    /// Another station has it. It is remembered, so as not to be tried over and over.
    Taken,
}

impl Address {
    /// Goes by what an advertisement says now (RFC 4862 §5.5.3 e).
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

/// What is known of the link, and what is done to know it.
pub(super) struct Autoconf {
    mac: MacAddr,
    /// The most that the port takes.
    port_mtu: usize,
    /// Probes for an address.
    transmits: u8,
    routers: [Option<Router>; ROUTERS],
    on_link: [Option<OnLink>; PREFIXES],
    addresses: [Option<Address>; ADDRESSES],
    mtu: Option<u16>,
    /// What was advertised, and what that is with chance.
    reachable: Option<(Duration, Duration)>,
    retransmit: Option<Duration>,
    solicitation: Solicitation,
    link_up: bool,
    random: fastrand::Rng,
    /// What workers were told, and when they may be told something else.
    told: RouterInfo,
    tell_at: Instant,
}

impl Autoconf {
    /// Of the station `mac` at a port of that MTU; addresses are tried by so many probes.
    pub fn new(mac: MacAddr, port_mtu: usize, transmits: u8, seed: u64) -> Self {
        Autoconf {
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
            told: RouterInfo::default(),
            tell_at: Instant::ZERO,
        }
    }

    /// The link is up from now on, or down. When it comes up routers are asked, and addresses that are tried are tried anew.
    pub fn set_link(&mut self, up: bool, now: Instant) {
        if up && !self.link_up {
            self.solicitation.begin(now, &mut self.random);
            for address in self.addresses.iter_mut().flatten() {
                if let State::Tried(trial) = &mut address.state {
                    *trial = DadProbes::new(self.transmits, now + by_chance(DELAY, &mut self.random));
                }
            }
        } else if !up {
            self.solicitation.end();
        }
        self.link_up = up;
    }

    /// Takes in what a router says; `false` if there was no place for something of it.
    pub fn on_advertisement(&mut self, said: &Advertisement, now: Instant) -> bool {
        let mut is_kept = self.hear_router(said, now);
        // RFC 4861 §6.3.4: one that is out of bounds does not count.
        if let Some(mtu) = said.mtu().filter(|mtu| *mtu >= LEAST_MTU && *mtu as usize <= self.port_mtu) {
            self.mtu = Some(mtu as u16);
        }
        if let Some(base) = said.reachable.map(|time| time.clamp(REACHABLE.0, REACHABLE.1))
            && self.reachable.is_none_or(|(old, _)| old != base)
        {
            // RFC 4861 §6.3.2: a half of it to three halves.
            self.reachable = Some((base, base / 2 + by_chance(base, &mut self.random)));
        }
        if let Some(time) = said.retransmit {
            self.retransmit = Some(time.clamp(RETRANSMIT.0, RETRANSMIT.1));
        }
        for prefix in said.prefixes().filter(is_of_hosts) {
            is_kept &= !prefix.on_link || self.hear_on_link(&prefix, now);
            is_kept &= !prefix.autonomous || self.hear_autonomous(&prefix, said.to_all, now);
        }
        is_kept
    }

    /// Whether `ip` is a router that is known.
    pub fn has_router(&self, ip: Ipv6Addr) -> bool {
        self.routers.iter().flatten().any(|router| router.ip == ip)
    }

    fn hear_router(&mut self, said: &Advertisement, now: Instant) -> bool {
        let Advertisement { router: ip, preference, lifetime, .. } = *said;
        let known = self.routers.iter_mut().find(|place| place.is_some_and(|router| router.ip == ip));
        if lifetime.is_zero() {
            if let Some(place) = known {
                *place = None;
                self.look_for_router(now);
            }
            return true;
        }
        self.solicitation.answered();
        let place = match known {
            Some(place) => place,
            None => match self.routers.iter_mut().find(|place| place.is_none()) {
                Some(place) => place,
                None => return false,
            },
        };
        *place = Some(Router { ip, preference, until: now + lifetime, silent: false });
        true
    }

    fn hear_on_link(&mut self, prefix: &Prefix, now: Instant) -> bool {
        let Ok(cidr) = IpCidr::new(Ipv6Addr::from_bits(prefix.bits).into(), prefix.len) else { return true };
        let ends = prefix.valid.is_some_and(|valid| valid.is_zero());
        let known = self.on_link.iter_mut().find(|place| place.is_some_and(|link| link.cidr == cidr));
        let place = match known {
            Some(place) => place,
            None if ends => return true,
            None => match self.on_link.iter_mut().find(|place| place.is_none()) {
                Some(place) => place,
                None => return false,
            },
        };
        *place = (!ends).then(|| OnLink { cidr, until: until(prefix.valid, now) });
        true
    }

    /// RFC 4862 §5.5.3.
    fn hear_autonomous(&mut self, prefix: &Prefix, to_all: bool, now: Instant) -> bool {
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
        let Some(place) = self.addresses.iter_mut().find(|place| place.is_none()) else { return false };
        // RFC 4862 §5.4.2: all hosts that heard the same begin at different moments.
        let delay = if to_all { by_chance(DELAY, &mut self.random) } else { Duration::ZERO };
        let trial = DadProbes::new(self.transmits, now + delay);
        let state = if self.transmits == 0 { State::Ours } else { State::Tried(trial) };
        let (valid, preferred) = (until(prefix.valid, now), until(prefix.preferred, now));
        *place = Some(Address { ip, cidr, valid, preferred, state });
        true
    }

    /// What a message of neighbour discovery says against an address that is tried, which then will not be used.
    pub fn on_conflict(&mut self, frame: &[u8]) -> Option<DuplicateAddress> {
        let is_tried = |address: &Address, ip| address.ip == ip && matches!(address.state, State::Tried(_));
        let addresses = &mut self.addresses;
        let found =
            find_conflict(frame, |ip| addresses.iter().flatten().any(|address| is_tried(address, ip)), self.mac)?;
        let address = addresses.iter_mut().flatten().find(|address| address.ip == found.address)?;
        address.state = State::Taken;
        Some(found)
    }

    /// No answer came from `ip` when it was asked where it is: another router is better, if there is one (RFC 4861 §6.3.6).
    pub fn neighbor_unreachable(&mut self, ip: IpAddr) {
        for router in self.routers.iter_mut().flatten().filter(|router| router.ip == ip) {
            router.silent = true;
        }
    }

    /// Addresses whose trial has begun: what is said to them is to be heard.
    pub fn tentative(&self, now: Instant) -> impl Iterator<Item = Ipv6Addr> + '_ {
        self.addresses.iter().flatten().filter_map(move |address| match address.state {
            State::Tried(trial) => (trial.has_begun(now) && self.link_up).then_some(address.ip),
            State::Ours | State::Taken => None,
        })
    }

    /// Forgets what is over.
    pub fn expire(&mut self, now: Instant) {
        let had_router = self.routers.iter().any(Option::is_some);
        forget(&mut self.routers, |router| router.until <= now);
        forget(&mut self.on_link, |link| is_over(link.until, now));
        forget(&mut self.addresses, |address| is_over(address.valid, now));
        if had_router {
            self.look_for_router(now);
        }
    }

    /// Asks for a router, if there is none any more.
    fn look_for_router(&mut self, now: Instant) {
        if self.link_up && self.routers.iter().all(Option::is_none) {
            self.solicitation.begin(now, &mut self.random);
        }
    }

    /// Asks what is to be asked by now, and returns what workers are to be told.
    pub fn poll<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) -> Option<RouterInfo> {
        if self.link_up {
            for address in self.addresses.iter_mut().flatten() {
                let State::Tried(trial) = &mut address.state else { continue };
                match trial.step(now) {
                    Step::Wait => {}
                    Step::Probe => egress.send_message(Message::Probe(address.ip)),
                    Step::Done => address.state = State::Ours,
                }
            }
        }
        if self.solicitation.is_due(now) {
            egress.send_message(Message::SolicitRouters { source: egress.addresses().link_local() });
            if self.solicitation.is_in_vain() {
                tracing::warn!(
                    "SLAAC: no router on this link answers, and it is asked on: does one advertise itself here?"
                );
            }
        }
        let network = self.network(now);
        if network == self.told || now < self.tell_at {
            return None;
        }
        self.told = network;
        self.tell_at = now + CHANGES;
        Some(network)
    }

    /// What holds now.
    fn network(&self, now: Instant) -> RouterInfo {
        let own = |address: &Address| (address.cidr, is_over(address.preferred, now));
        let ours = |address: &Address| (address.state == State::Ours).then(|| own(address));
        // RFC 4191 §3.2: one that can be reached, and then one that wants it most; the first that was heard of these.
        let rank = |router: &&Router| (router.silent, std::cmp::Reverse(router.preference));
        RouterInfo {
            addresses: std::array::from_fn(|at| self.addresses[at].as_ref().and_then(ours)),
            on_link: std::array::from_fn(|at| self.on_link[at].map(|link| link.cidr)),
            router: self.routers.iter().flatten().min_by_key(rank).map(|router| router.ip),
            mtu: self.mtu,
            reachable: self.reachable.map(|(_, time)| time),
            retransmit: self.retransmit,
        }
    }

    /// When there is something to do next. To be asked after [`expire`](Self::expire) and [`poll`](Self::poll).
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let routers = self.routers.iter().flatten().map(|router| router.until);
        let on_link = self.on_link.iter().flatten().filter_map(|link| link.until);
        let addresses = self.addresses.iter().flatten().flat_map(|address| {
            let trial = match address.state {
                State::Tried(trial) if self.link_up => Some(trial.next_deadline()),
                _ => None,
            };
            [address.valid, address.preferred.filter(|at| *at > now), trial].into_iter().flatten()
        });
        let tell = (self.network(now) != self.told).then_some(self.tell_at);
        let all = routers.chain(on_link).chain(addresses);
        all.chain(self.solicitation.next_deadline()).chain(tell).min()
    }
}

/// Prefixes that hosts have addresses of: not the link-local one, which is there anyway, groups, or the one of loopback (RFC 4291 §2.5.3).
fn is_of_hosts(prefix: &Prefix) -> bool {
    let ip = Ipv6Addr::from_bits(prefix.bits);
    !ip.is_unicast_link_local() && !ip.is_multicast() && prefix.bits >> 64 != 0
}

fn forget<T>(places: &mut [Option<T>], is_over: impl Fn(&T) -> bool) {
    for place in places {
        if place.as_ref().is_some_and(&is_over) {
            *place = None;
        }
    }
}

#[cfg(test)]
mod tests;
