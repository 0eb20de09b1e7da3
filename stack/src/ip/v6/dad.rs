//! Duplicate address detection (RFC 4862 §5.4).

use crate::ip::addresses::Addresses;
use crate::ip::arp_ndp::{ArpNdpEvent, parse_ndp};
use crate::ip::egress::Egress;
use crate::wire::arp_ndp::Message;
use linerate_bypass::{MacAddr, Nic};
use linerate_service::time::{Duration, Instant};
use std::net::{IpAddr, Ipv6Addr};

/// Interval between probes, and wait after the last (RFC 4861 §10: RETRANS_TIMER).
const RETRY: Duration = Duration::from_secs(1);

/// Tentative local address that another station on the link uses or probes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{address}: the station {station} on this link has this address already: change the address of one of the two")]
pub struct DuplicateAddress {
    /// Duplicate address.
    pub address: Ipv6Addr,
    /// Ethernet address of the other station.
    pub station: MacAddr,
}

/// DAD progress of one address, or of several that are probed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DadProbes {
    /// Remaining probes.
    left: u8,
    /// Time of the next probe, or of completion.
    at: Instant,
    has_probed: bool,
}

/// Result of [`DadProbes::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// No message is due.
    Wait,
    Probe,
    /// No conflict was found.
    Done,
}

impl DadProbes {
    /// Schedules `transmits` probes from `at` on.
    pub fn new(transmits: u8, at: Instant) -> Self {
        DadProbes { left: transmits, at, has_probed: false }
    }

    /// Returns the action due at `now` and schedules the next one.
    pub fn step(&mut self, now: Instant) -> Step {
        if self.at > now {
            return Step::Wait;
        }
        if self.left == 0 {
            return Step::Done;
        }
        self.left -= 1;
        self.has_probed = true;
        self.at = now + RETRY;
        Step::Probe
    }

    /// Returns whether the first probe is due or has been sent.
    pub fn has_begun(&self, now: Instant) -> bool {
        self.has_probed || self.at <= now
    }

    /// Returns the time of the next action.
    pub fn next_deadline(&self) -> Instant {
        self.at
    }
}

/// DAD of the initial addresses, which are probed together.
pub(crate) struct Dad {
    tentative: Vec<Ipv6Addr>,
    /// Probes per address.
    transmits: u8,
    /// Progress, once the link is up.
    probes: Option<DadProbes>,
}

impl Dad {
    /// Creates DAD of the IPv6 addresses in `addresses` with `transmits` probes each; `None` if there is nothing to
    /// probe.
    pub fn new(addresses: &Addresses, transmits: u8) -> Option<Self> {
        let tentative: Vec<_> = addresses.own_v6().collect();
        let is_to_be = transmits > 0 && !tentative.is_empty();
        is_to_be.then_some(Dad { tentative, transmits, probes: None })
    }

    /// Returns the tentative addresses, once the link is up.
    pub fn tentative(&self) -> &[Ipv6Addr] {
        if self.probes.is_some() { &self.tentative } else { &[] }
    }

    /// Sets the link state. Probing restarts when the link comes up.
    pub fn set_link(&mut self, up: bool, now: Instant) {
        match (up, self.probes) {
            (true, None) => self.probes = Some(DadProbes::new(self.transmits, now)),
            (false, _) => self.probes = None,
            (true, Some(_)) => {}
        }
    }

    /// Sends due probes. Returns whether DAD has passed.
    pub fn poll<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) -> bool {
        match self.probes.as_mut().map_or(Step::Wait, |probes| probes.step(now)) {
            Step::Wait => false,
            Step::Probe => {
                self.tentative.iter().for_each(|&ip| egress.send_message(Message::Probe(ip)));
                false
            }
            Step::Done => true,
        }
    }

    /// Returns the time of the next [`poll`](Self::poll).
    pub fn next_deadline(&self) -> Option<Instant> {
        self.probes.as_ref().map(DadProbes::next_deadline)
    }

    /// Returns the conflict that an NDP message received by the local station `mac` shows.
    pub fn find_conflict_in(&self, frame: &[u8], mac: MacAddr) -> Option<DuplicateAddress> {
        find_conflict(frame, |ip| self.tentative.contains(&ip), mac)
    }
}

/// Returns the conflict of an NDP message, received by the local station `mac`, with a tentative address: another
/// station has it (RFC 4862 §5.4.4) or probes for it (§5.4.3).
pub(crate) fn find_conflict(
    frame: &[u8],
    is_tried: impl Fn(Ipv6Addr) -> bool,
    mac: MacAddr,
) -> Option<DuplicateAddress> {
    match parse_ndp(frame, |ip| matches!(ip, IpAddr::V6(ip) if is_tried(ip)), mac) {
        ArpNdpEvent::Claim(IpAddr::V6(address), station) | ArpNdpEvent::Probe(IpAddr::V6(address), station) => {
            Some(DuplicateAddress { address, station })
        }
        _ => None,
    }
}
