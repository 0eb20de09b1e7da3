//! Our addresses as others on the link see them: announced when the link comes up and when there is a new one, and defended
//! against who claims them too.
//!
//! Switches and neighbours that knew another station by an address learn so, within a moment, that it is here now.

use crate::arp_ndp::Message;
use crate::config::IpCidr;
use crate::drop_stats::DropCause;
use crate::egress::Egress;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{MacAddr, Nic};
use std::net::IpAddr;

/// Announcements of an IPv4 address, and the time between them (RFC 5227 §1.1: ANNOUNCE_NUM, ANNOUNCE_INTERVAL).
const ARP: (u8, Duration) = (2, Duration::from_secs(2));
/// Those of an IPv6 address (RFC 4861 §10: MAX_NEIGHBOR_ADVERTISEMENT, RETRANS_TIMER).
const NDP: (u8, Duration) = (3, Duration::from_secs(1));
/// The time between two defences of one address (RFC 5227 §1.1: DEFEND_INTERVAL), and between two lines about it in the log.
const DEFENCE: Duration = Duration::from_secs(10);

/// What is still to be said of an address of ours, and what was.
struct Address {
    ip: IpAddr,
    /// Announcements to come.
    left: u8,
    /// When the next is due.
    at: Instant,
    /// When it was defended last.
    defended: Option<Instant>,
}

impl Address {
    fn new(ip: IpAddr) -> Self {
        Address { ip, left: 0, at: Instant::ZERO, defended: None }
    }

    fn announce(&mut self, now: Instant) {
        self.left = if self.ip.is_ipv4() { ARP.0 } else { NDP.0 };
        self.at = now;
    }
}

/// What one worker has to do with how our addresses are seen.
pub(crate) struct Presence {
    addresses: Vec<Address>,
    /// This worker announces them, for all workers of the port.
    announces: bool,
    link_up: bool,
}

impl Presence {
    /// Of a worker that is to announce our addresses or not, on a link that is not up yet; there are no addresses yet.
    pub fn new(announces: bool) -> Self {
        Presence { addresses: Vec::new(), announces, link_up: false }
    }

    /// Our addresses are `own` from now on; those that are new are announced.
    pub fn set_addresses(&mut self, own: &[IpCidr], now: Instant) {
        self.addresses.retain(|address| own.iter().any(|cidr| cidr.address() == address.ip));
        for cidr in own {
            if self.addresses.iter().all(|address| address.ip != cidr.address()) {
                let mut address = Address::new(cidr.address());
                if self.announces && self.link_up {
                    address.announce(now);
                }
                self.addresses.push(address);
            }
        }
    }

    /// The link is up or down from now on; when it comes up, all addresses are announced.
    pub fn set_link(&mut self, up: bool, now: Instant) {
        if up && !self.link_up && self.announces {
            self.addresses.iter_mut().for_each(|address| address.announce(now));
        }
        self.link_up = up;
    }

    /// Sends the announcements that are due.
    pub fn tend<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) {
        if !self.link_up {
            return;
        }
        for address in self.addresses.iter_mut().filter(|address| address.left > 0 && address.at <= now) {
            egress.say(Message::Announce(address.ip));
            address.left -= 1;
            address.at = now + if address.ip.is_ipv4() { ARP.1 } else { NDP.1 };
        }
    }

    /// When [`tend`](Self::tend) has something to do next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let pending = self.addresses.iter().filter(|address| self.link_up && address.left > 0);
        pending.map(|address| address.at).min()
    }

    /// The station `mac` says that it has `ip`, an address of ours, which is kept and defended: RFC 5227 §2.4 (c), and the same for
    /// IPv6, where RFC 4862 §5.4.4 leaves it open. A server whose connections end whenever a host on the link says one word
    /// would be worse off.
    pub fn claimed<N: Nic>(&mut self, ip: IpAddr, mac: MacAddr, egress: &mut Egress<N>, now: Instant) {
        egress.count_drop(DropCause::Claimed);
        let Some(address) = self.addresses.iter_mut().find(|address| address.ip == ip) else { return };
        if address.defended.is_some_and(|at| now.since(at) < DEFENCE) {
            return;
        }
        address.defended = Some(now);
        tracing::warn!("{ip}: the station {mac} uses this address of ours too: give one of the two another");
        egress.say(Message::Announce(ip));
    }
}
