//! Duplicate address detection (RFC 4862 §5.4): no IPv6 address is used before it is known that nobody else on the link has it.

use crate::addresses::Addresses;
use crate::arp_ndp::Message;
use crate::arp_ndp::receive::{Heard, hear_ndp};
use crate::egress::Egress;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{MacAddr, Nic};
use std::net::{IpAddr, Ipv6Addr};

/// Between probes, and from the last to the end (RFC 4861 §10: RETRANS_TIMER).
const RETRY: Duration = Duration::from_secs(1);

/// An address of ours that another station on the link has, or is about to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{address}: the station {station} on this link has this address already: give one of the two another")]
pub struct DuplicateAddress {
    /// The address.
    pub address: Ipv6Addr,
    /// Who has it.
    pub station: MacAddr,
}

/// How far the trial of an address, or of several together, has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trial {
    /// Probes to come.
    left: u8,
    /// When the next is due, or the end.
    at: Instant,
    has_asked: bool,
}

/// What a trial that is due has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing yet.
    Waits,
    /// It is time to ask.
    Ask,
    /// Nobody has said anything against it.
    Passed,
}

impl Trial {
    /// By so many probes, from `at` on.
    pub fn new(transmits: u8, at: Instant) -> Self {
        Trial { left: transmits, at, has_asked: false }
    }

    /// What is to be done by now.
    pub fn step(&mut self, now: Instant) -> Step {
        if self.at > now {
            return Step::Waits;
        }
        if self.left == 0 {
            return Step::Passed;
        }
        self.left -= 1;
        self.has_asked = true;
        self.at = now + RETRY;
        Step::Ask
    }

    /// Whether it is time for its first probe, or was.
    pub fn has_begun(&self, now: Instant) -> bool {
        self.has_asked || self.at <= now
    }

    /// When [`step`](Self::step) has something to do next.
    pub fn next_deadline(&self) -> Instant {
        self.at
    }
}

/// The addresses that are being tried from the start, all together.
pub(crate) struct Dad {
    tentative: Vec<Ipv6Addr>,
    /// Probes for each of them.
    transmits: u8,
    /// Nothing before the link is up.
    trial: Option<Trial>,
}

impl Dad {
    /// Tries the IPv6 addresses in `addresses` by so many probes each; `None` if there is nothing to try.
    pub fn new(addresses: &Addresses, transmits: u8) -> Option<Self> {
        let tentative: Vec<_> = addresses.own_v6().collect();
        let is_to_be = transmits > 0 && !tentative.is_empty();
        is_to_be.then_some(Dad { tentative, transmits, trial: None })
    }

    /// Those that are being tried, once the link is up.
    pub fn tentative(&self) -> &[Ipv6Addr] {
        if self.trial.is_some() { &self.tentative } else { &[] }
    }

    /// The link is up or down from now on: when it comes up, all begins anew.
    pub fn set_link(&mut self, up: bool, now: Instant) {
        match (up, self.trial) {
            (true, None) => self.trial = Some(Trial::new(self.transmits, now)),
            (false, _) => self.trial = None,
            (true, Some(_)) => {}
        }
    }

    /// Does what is due; whether the addresses are ours now.
    pub fn tend<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) -> bool {
        match self.trial.as_mut().map_or(Step::Waits, |trial| trial.step(now)) {
            Step::Waits => false,
            Step::Ask => {
                self.tentative.iter().for_each(|&ip| egress.say(Message::Probe(ip)));
                false
            }
            Step::Passed => true,
        }
    }

    /// When [`tend`](Self::tend) has something to do next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.trial.as_ref().map(Trial::next_deadline)
    }

    /// What a message of neighbour discovery, heard by the station `mac`, which is ours, says against one of the addresses.
    pub fn hear(&self, frame: &[u8], mac: MacAddr) -> Option<DuplicateAddress> {
        objection(frame, |ip| self.tentative.contains(&ip), mac)
    }
}

/// What a message of neighbour discovery, heard by the station `mac`, which is ours, says against an address that is tried: somebody
/// has it (RFC 4862 §5.4.4), or is trying it, too (§5.4.3).
pub(crate) fn objection(frame: &[u8], is_tried: impl Fn(Ipv6Addr) -> bool, mac: MacAddr) -> Option<DuplicateAddress> {
    match hear_ndp(frame, |ip| matches!(ip, IpAddr::V6(ip) if is_tried(ip)), mac) {
        Heard::Claim(IpAddr::V6(address), station) | Heard::Probe(IpAddr::V6(address), station) => {
            Some(DuplicateAddress { address, station })
        }
        _ => None,
    }
}
