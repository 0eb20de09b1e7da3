//! Multicast listener discovery (RFC 3810): reports the groups of this host, without which snooping switches withhold
//! neighbour solicitations for local addresses.
//!
//! The groups are solicited-node groups; the all-nodes group is never reported (RFC 3810 §6). A version 1 querier
//! receives version 1 reports (RFC 2710), and version 1 stays in use for a while.

use super::router_solicit::random_below;
use crate::config::Config;
use crate::ip::egress::Egress;
use crate::wire::arp_ndp::{ALL_ROUTERS, group_address};
use crate::wire::checksum;
use crate::wire::ethernet::ETHERNET_HEADER;
use linerate_bypass::{MacAddr, Nic, Packet};
use linerate_service::time::{Duration, Instant};
use smoltcp::wire::EthernetProtocol;
use std::net::Ipv6Addr;

/// Maximum groups: one for each local or tentative address, and as many groups that are being left.
const GROUPS: usize = 2 * Config::MAX_ADDRESSES;
/// Transmissions of a change, since one may be lost, and the maximum interval between them (RFC 3810 §9.1, §9.11).
const ROBUSTNESS: u8 = 2;
const REPEAT: Duration = Duration::from_secs(1);
/// Time for which a version 1 querier is remembered: twice the query interval plus the maximum response delay (RFC 3810
/// §9.12).
const OLD_QUERIER: Duration = Duration::from_secs(2 * 125 + 10);
/// Minimum time between two responses, at any rate of queries.
const MIN_RESPONSE_INTERVAL: Duration = Duration::from_millis(100);

/// All MLDv2-capable routers (RFC 3810 §5.2.14).
const ALL_V2_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// ICMPv6 message types (RFC 2710 §3.1, RFC 3810 §5).
pub(crate) const QUERY: u8 = 130;
const REPORT_V1: u8 = 131;
const DONE_V1: u8 = 132;
const REPORT_V2: u8 = 143;
/// Record types of a version 2 report (RFC 3810 §5.2.12): membership, join, leave.
const IS_EXCLUDE: u8 = 2;
const TO_EXCLUDE: u8 = 4;
const TO_INCLUDE: u8 = 3;

/// Hop-by-hop header with the router alert option (RFC 2711), followed by ICMPv6.
const ROUTER_ALERT: [u8; 8] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
const ICMPV6: u8 = 58;
const IP: usize = 40;
const HEADERS: usize = IP + ROUTER_ALERT.len();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group {
    ip: Ipv6Addr,
    /// Remaining reports of the change, and the time of the next.
    left: u8,
    at: Instant,
    /// True if the group is being left.
    ends: bool,
}

/// MLD state of the host, for all workers.
pub(super) struct MldListener {
    groups: [Option<Group>; GROUPS],
    link_up: bool,
    /// Time of the pending response, and time of the last.
    respond_at: Option<Instant>,
    answered: Option<Instant>,
    /// End of MLDv1 compatibility.
    old_until: Instant,
    random: fastrand::Rng,
}

impl MldListener {
    /// Creates the state without groups.
    pub fn new(seed: u64) -> Self {
        MldListener {
            groups: [None; GROUPS],
            link_up: false,
            respond_at: None,
            answered: None,
            old_until: Instant::ZERO,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Sets the link state. All groups are reported when the link comes up.
    pub fn set_link(&mut self, up: bool, now: Instant) {
        if up && !self.link_up {
            self.report_again(now);
        }
        self.link_up = up;
    }

    /// Reports all groups again, now that there is a source address (RFC 3590 §4).
    pub fn report_again(&mut self, now: Instant) {
        for group in self.groups.iter_mut().flatten().filter(|group| !group.ends) {
            (group.left, group.at) = (ROBUSTNESS, now);
        }
    }

    pub fn set_groups(&mut self, groups: impl Iterator<Item = Ipv6Addr> + Clone, now: Instant) {
        for group in self.groups.iter_mut().flatten() {
            if !group.ends && !groups.clone().any(|ip| ip == group.ip) {
                (group.ends, group.left, group.at) = (true, ROBUSTNESS, now);
            }
        }
        for ip in groups {
            let known = self.groups.iter().position(|entry| entry.is_some_and(|group| group.ip == ip));
            let free = || self.groups.iter().position(Option::is_none);
            // The entry of a group that is being left is reused, even if only one of its reports was sent.
            let left = || self.groups.iter().position(|entry| entry.is_some_and(|group| group.ends));
            let Some(at) = known.or_else(free).or_else(left) else { return };
            if self.groups[at].is_none_or(|group| group.ip != ip || group.ends) {
                self.groups[at] = Some(Group { ip, left: ROBUSTNESS, at: now, ends: false });
            }
        }
    }

    /// Processes `frame` if it is an MLD query (RFC 3810 §5.1, §6.2).
    pub fn on_query(&mut self, frame: &[u8], now: Instant) {
        let Some((version, within, group)) = read_query(frame) else { return };
        if version == 1 {
            self.old_until = now + OLD_QUERIER;
        }
        if !group.is_unspecified() && !self.groups.iter().flatten().any(|own| !own.ends && own.ip == group) {
            return;
        }
        let at = now + random_below(within, &mut self.random);
        let at = self.answered.map_or(at, |last| at.max(last + MIN_RESPONSE_INTERVAL));
        self.respond_at = Some(self.respond_at.map_or(at, |before| before.min(at)));
    }

    /// Sends due reports, from the link-local address if there is one.
    pub fn poll<N: Nic>(&mut self, egress: &mut Egress<N>, now: Instant) {
        if !self.link_up {
            return;
        }
        let source = egress.addresses().link_local().unwrap_or(Ipv6Addr::UNSPECIFIED);
        let is_old = now < self.old_until;
        let is_due = |group: &Group| group.left > 0 && group.at <= now;
        let change = |group: &Group| (if group.ends { TO_INCLUDE } else { TO_EXCLUDE }, group.ip);
        if self.groups.iter().flatten().any(is_due) {
            send_report(egress, source, is_old, self.groups.iter().flatten().filter(|group| is_due(group)).map(change));
            for entry in &mut self.groups {
                let Some(group) = entry.as_mut().filter(|group| is_due(group)) else { continue };
                group.left -= 1;
                group.at = now + random_below(REPEAT, &mut self.random);
                if group.ends && group.left == 0 {
                    *entry = None;
                }
            }
        }
        if self.respond_at.is_some_and(|at| at <= now) {
            self.respond_at = None;
            self.answered = Some(now);
            let listened = self.groups.iter().flatten().filter(|group| !group.ends);
            send_report(egress, source, is_old, listened.map(|group| (IS_EXCLUDE, group.ip)));
        }
    }

    /// Returns the time of the next [`poll`](Self::poll).
    pub fn next_deadline(&self) -> Option<Instant> {
        let changes = self.groups.iter().flatten().filter(|group| group.left > 0).map(|group| group.at);
        changes.chain(self.respond_at).min().filter(|_| self.link_up)
    }
}

/// Sends a report of group states; in version 1, one message per group.
fn send_report<N: Nic>(
    egress: &mut Egress<N>,
    source: Ipv6Addr,
    is_old: bool,
    records: impl Iterator<Item = (u8, Ipv6Addr)> + Clone,
) {
    if !is_old {
        if records.clone().next().is_some() {
            egress.send_with(|packet, _| write_report(packet, source, records));
        }
        return;
    }
    for (kind, group) in records {
        let (kind, to) = if kind == TO_INCLUDE { (DONE_V1, ALL_ROUTERS) } else { (REPORT_V1, group) };
        egress.send_with(|packet, _| {
            let message = packet.append(HEADERS + 24)?;
            message[HEADERS] = kind;
            message[HEADERS + 1..HEADERS + 8].fill(0);
            message[HEADERS + 8..].copy_from_slice(&group.octets());
            finish(message, source, to)
        });
    }
}

/// Writes a version 2 report (RFC 3810 §5.2) into the empty `packet`.
fn write_report(
    packet: &mut impl Packet,
    source: Ipv6Addr,
    records: impl Iterator<Item = (u8, Ipv6Addr)> + Clone,
) -> Option<(MacAddr, EthernetProtocol)> {
    let count = records.clone().count();
    let message = packet.append(HEADERS + 8 + 20 * count)?;
    message[HEADERS..HEADERS + 8].copy_from_slice(&[REPORT_V2, 0, 0, 0, 0, 0, 0, count as u8]);
    for (entry, (kind, group)) in message[HEADERS + 8..].chunks_exact_mut(20).zip(records) {
        entry[..4].copy_from_slice(&[kind, 0, 0, 0]);
        entry[4..].copy_from_slice(&group.octets());
    }
    finish(message, source, ALL_V2_ROUTERS)
}

/// Writes the headers in front of an ICMPv6 message, and its checksum.
fn finish(bytes: &mut [u8], source: Ipv6Addr, to: Ipv6Addr) -> Option<(MacAddr, EthernetProtocol)> {
    let (headers, message) = bytes.split_at_mut(HEADERS);
    let len = message.len();
    let pseudo = checksum::pseudo_header_sum(source.into(), to.into(), ICMPV6, len);
    let sum = !checksum::sum_of([&pseudo.to_be_bytes()[..], message].into_iter());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let payload = u16::try_from(len + ROUTER_ALERT.len()).ok()?.to_be_bytes();
    // Hop limit 1: link-local.
    headers[..8].copy_from_slice(&[0x60, 0, 0, 0, payload[0], payload[1], 0, 1]);
    headers[8..24].copy_from_slice(&source.octets());
    headers[24..40].copy_from_slice(&to.octets());
    headers[40..].copy_from_slice(&ROUTER_ALERT);
    Some((group_address(to.into()), EthernetProtocol::Ipv6))
}

/// Parses an MLD query. Returns its version, the maximum response delay, and the queried group (unspecified for all).
/// `None` for an invalid query: it needs a link-local source and a router alert.
fn read_query(frame: &[u8]) -> Option<(u8, Duration, Ipv6Addr)> {
    let (ip, rest) = frame.get(ETHERNET_HEADER..)?.split_first_chunk::<IP>()?;
    let octets = |at: usize| ip[at..].first_chunk::<16>().copied().map(Ipv6Addr::from);
    let (source, destination) = (octets(8)?, octets(24)?);
    let rest = rest.get(..usize::from(u16::from_be_bytes([ip[4], ip[5]])))?;
    if ip[6] != 0 || ip[7] != 1 || !source.is_unicast_link_local() {
        return None;
    }
    let &[next, units, ..] = rest else { return None };
    let (options, message) = rest.split_at_checked(8 * (usize::from(units) + 1))?;
    if next != ICMPV6 || !has_router_alert(&options[2..]) || message.first() != Some(&QUERY) {
        return None;
    }
    let pseudo = checksum::pseudo_header_sum(source.into(), destination.into(), ICMPV6, message.len());
    if checksum::sum_of([&pseudo.to_be_bytes()[..], message].into_iter()) != 0xffff {
        return None;
    }
    let (header, _) = message.split_first_chunk::<24>()?;
    let code = u16::from_be_bytes([header[4], header[5]]);
    let group = Ipv6Addr::from(*header[8..].first_chunk::<16>()?);
    // RFC 3810 §8.1: queries of other lengths are ignored.
    let (version, within) = match message.len() {
        24 => (1, u64::from(code)),
        28.. => (2, milliseconds(code)),
        _ => return None,
    };
    Some((version, Duration::from_millis(within), group))
}

/// Returns the time that a response code encodes (RFC 3810 §5.1.3).
fn milliseconds(code: u16) -> u64 {
    let code = u64::from(code);
    if code < 0x8000 { code } else { (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3) }
}

/// Returns whether hop-by-hop options contain a router alert (RFC 2711).
fn has_router_alert(mut options: &[u8]) -> bool {
    loop {
        match options {
            // Pad1 has no length byte.
            [0, rest @ ..] => options = rest,
            [5, 2, ..] => return true,
            [_, len, rest @ ..] => match rest.get(usize::from(*len)..) {
                Some(rest) => options = rest,
                None => return false,
            },
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests;
