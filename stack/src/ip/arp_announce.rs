//! Announcement and defence of local addresses.
//!
//! Addresses are announced when the link comes up and when they are new. Switches and neighbours that associate an
//! address with another station update at once.

use crate::ip::egress::Egress;
use crate::wire::arp_ndp::Message;
use crate::wire::drop_stats::DropCause;
use crate::wire::ip_cidr::IpCidr;
use linerate_bypass::{MacAddr, Nic};
use linerate_service::time::{Duration, Instant};
use std::net::IpAddr;

/// Announcements of an IPv4 address, and their interval (RFC 5227 §1.1: ANNOUNCE_NUM, ANNOUNCE_INTERVAL).
const ARP: (u8, Duration) = (2, Duration::from_secs(2));
/// Announcements of an IPv6 address, and their interval (RFC 4861 §10: MAX_NEIGHBOR_ADVERTISEMENT, RETRANS_TIMER).
const NDP: (u8, Duration) = (3, Duration::from_secs(1));
/// Minimum interval between defences of an address (RFC 5227 §1.1: DEFEND_INTERVAL), and between log lines about it.
const DEFENCE: Duration = Duration::from_secs(10);

/// Announcement state of a local address.
struct Address {
    ip: IpAddr,
    /// Remaining announcements.
    left: u8,
    /// Time of the next announcement.
    at: Instant,
    /// Time of the last defence.
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

/// Announcement state of the local addresses of one worker.
pub(crate) struct AddressAnnouncer {
    addresses: Vec<Address>,
    /// True if this worker announces, on behalf of all workers of the port.
    announces: bool,
    link_up: bool,
}

impl AddressAnnouncer {
    /// Creates the state of a worker without addresses, on a link that is down.
    pub fn new(announces: bool) -> Self {
        AddressAnnouncer { addresses: Vec::new(), announces, link_up: false }
    }

    /// Sets the local addresses to `own` and announces new ones.
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

    /// Sets the link state. All addresses are announced when the link comes up.
    pub fn set_link(&mut self, up: bool, now: Instant) {
        if up && !self.link_up && self.announces {
            self.addresses.iter_mut().for_each(|address| address.announce(now));
        }
        self.link_up = up;
    }

    /// Sends the announcements that are due.
    pub fn poll<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) {
        if !self.link_up {
            return;
        }
        for address in self.addresses.iter_mut().filter(|address| address.left > 0 && address.at <= now) {
            egress.send_message(Message::Announce(address.ip));
            address.left -= 1;
            address.at = now + if address.ip.is_ipv4() { ARP.1 } else { NDP.1 };
        }
    }

    /// Returns the time of the next [`poll`](Self::poll).
    pub fn next_deadline(&self) -> Option<Instant> {
        let pending = self.addresses.iter().filter(|address| self.link_up && address.left > 0);
        pending.map(|address| address.at).min()
    }

    /// Defends the local address `ip` against the station `mac`. The address stays in use, as RFC 5227 §2.4 (c)
    /// permits, and RFC 4862 §5.4.4 for IPv6; otherwise any host on the link could end all connections of a server with
    /// one message.
    pub fn defend<N: Nic>(&mut self, ip: IpAddr, mac: MacAddr, egress: &mut Egress<N>, now: Instant) {
        egress.count_drop(DropCause::Claimed);
        let Some(address) = self.addresses.iter_mut().find(|address| address.ip == ip) else { return };
        if address.defended.is_some_and(|at| now.since(at) < DEFENCE) {
            return;
        }
        address.defended = Some(now);
        tracing::warn!("{ip}: the station {mac} uses this local address too: change the address of one of the two");
        egress.send_message(Message::Announce(ip));
    }
}
