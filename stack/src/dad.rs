//! Duplicate address detection (RFC 4862 §5.4): no IPv6 address is used before it is known that nobody else on the link has it.

use crate::addresses::Addresses;
use crate::discovery::Message;
use crate::egress::Egress;
use crate::slow::{Heard, hear_ndp};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{MacAddr, Nic};
use std::net::{IpAddr, Ipv6Addr};

/// Between probes, and from the last to the end (RFC 4861 §10: RETRANS_TIMER).
const RETRY: Duration = Duration::from_secs(1);

/// An address of ours that another station on the link has, or is about to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{address}: the station {station} on this link has this address already: give one of the two another")]
pub struct Duplicate {
    /// The address.
    pub address: Ipv6Addr,
    /// Who has it.
    pub station: MacAddr,
}

/// The addresses that are being tried, all together.
pub(crate) struct Dad {
    tentative: Vec<Ipv6Addr>,
    /// Probes for each of them, and how many of these are to come.
    transmits: u8,
    left: u8,
    /// When something is to be done next; nothing before the link is up.
    at: Option<Instant>,
}

impl Dad {
    /// Tries the IPv6 addresses in `addresses` by so many probes each; `None` if there is nothing to try.
    pub fn new(addresses: &Addresses, transmits: u8) -> Option<Self> {
        let six = |ip: IpAddr| if let IpAddr::V6(ip) = ip { Some(ip) } else { None };
        let tentative: Vec<_> = addresses.own().iter().filter_map(|cidr| six(cidr.address())).collect();
        let is_to_be = transmits > 0 && !tentative.is_empty();
        is_to_be.then_some(Dad { tentative, transmits, left: transmits, at: None })
    }

    /// The link is up or down from now on: when it comes up, all begins anew.
    pub fn set_link(&mut self, up: bool, now: Instant) {
        match (up, self.at) {
            (true, None) => (self.left, self.at) = (self.transmits, Some(now)),
            (false, _) => self.at = None,
            (true, Some(_)) => {}
        }
    }

    /// Does what is due; whether the addresses are ours now.
    pub fn tend<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) -> bool {
        if self.at.is_none_or(|at| at > now) {
            return false;
        }
        if self.left == 0 {
            return true;
        }
        self.tentative.iter().for_each(|&ip| egress.say(Message::Probe(ip)));
        self.left -= 1;
        self.at = Some(now + RETRY);
        false
    }

    /// When [`tend`](Self::tend) has something to do next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.at
    }

    /// What a message of neighbour discovery, heard by the station `mac`, which is ours, says against one of the addresses: somebody
    /// has it (RFC 4862 §5.4.4), or is trying it, too (§5.4.3).
    pub fn hear(&self, frame: &[u8], mac: MacAddr) -> Option<Duplicate> {
        let is_tried = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if self.tentative.contains(&ip));
        match hear_ndp(frame, is_tried, mac) {
            Heard::Claim(IpAddr::V6(address), station) | Heard::Probe(IpAddr::V6(address), station) => {
                Some(Duplicate { address, station })
            }
            _ => None,
        }
    }
}
