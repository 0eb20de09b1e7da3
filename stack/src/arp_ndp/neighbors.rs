//! The neighbour table: Ethernet addresses of the hosts on the link, learnt from ARP (RFC 826) and NDP (RFC 4861).
//!
//! Ours rather than smoltcp's, which holds a handful and limits resolution for all neighbours together. Packets for a
//! neighbour that is being resolved wait here; both are bounded.
//!
//! Any station on the link can send ARP requests and neighbour solicitations from addresses that it makes up (RFC 6583 §4).
//! The table resists exhaustion by such stations as follows:
//!
//! - Each address family has its own limits.
//! - A token bucket limits the entries that unsolicited messages create. A message beyond the rate is counted and creates no
//!   entry; the host is resolved when the first packet is sent to it.
//! - An entry that an unsolicited message created has no protection until a packet is sent to the neighbour. Such entries have
//!   a small quota, and the oldest of them is replaced first.
//! - An entry to which packets are sent is replaced only after a [scan](Neighbors::scan) of the connections has found that no
//!   connection needs it. The scan runs only while a family's share of the table is nearly full, so connections need not be
//!   counted when they begin and end.
//! - The entry of a gateway is never replaced.

mod rate_limit;
mod resolving;

use hashbrown::HashMap;
use linerate_bypass::MacAddr;
use linerate_bypass::time::{Duration, Instant};
use rate_limit::RateLimit;
pub(crate) use resolving::PendingResolutions;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

/// Entries of one address family at most.
const MAX_NEIGHBORS: usize = 1 << 14;
/// Entries of one family that unsolicited messages created and that no packet was sent to yet, at most.
const MAX_UNUSED: usize = 1 << 10;
/// Unsolicited messages of one family that create entries at once after a quiet time: as many hosts may look for a server that
/// was started again.
const UNSOLICITED_BURST: u32 = 1024;
/// Entries of one family from which on a scan looks for those that can be replaced, so that it ends before the last is taken.
const NEARLY_FULL: usize = MAX_NEIGHBORS - MAX_NEIGHBORS / 8;
/// The time between the beginnings of two scans, which bounds their share of the worker's time.
const SCAN_PERIOD: Duration = Duration::from_secs(1);
/// Neighbours of one family being asked at once; more are not asked, and packets for them are dropped.
const MAX_ASKED: usize = 1 << 10;
/// Packets that wait for one neighbour: the first segments of a burst of new connections, which would otherwise be
/// sent again only after a second.
const MAX_PARKED: usize = 256;
/// Packets that wait for all neighbours of one family together; beyond, one for each still may (RFC 4861 §7.2.2: at least
/// one).
const MAX_PARKED_IN_ALL: usize = 1024;
/// Between solicitations, unless routers say otherwise, and how many (RFC 4861 §10: RETRANS_TIMER, MAX_MULTICAST_SOLICIT).
const RETRY: Duration = Duration::from_secs(1);
const TRIES: u8 = 3;
/// How long a confirmed neighbour is believed before it is asked again, unless routers say otherwise (RFC 4861 §10: REACHABLE_TIME).
const REACHABLE: Duration = Duration::from_secs(30);

/// What to do to reach a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Its address is known.
    Known(MacAddr),
    /// Its address is known; put the solicitation whether it still is.
    Confirm(MacAddr, Solicitation),
    /// Park the packet, and ask who has it.
    Solicit,
    /// Park the packet; it has been asked.
    Pending,
    /// Too many are being asked, or no entry can be replaced: drop the packet.
    Refused,
}

/// A solicitation to be put on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Solicitation {
    /// Whose address is wanted.
    pub ip: IpAddr,
    /// Where to send it: the neighbour's last known address, or to all.
    pub to: Option<MacAddr>,
}

/// The outcome of [`Neighbors::learn`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Update<P> {
    /// The entry exists. `parked` are the packets that waited for it. `changed` is true if frames were or may have been sent
    /// to another Ethernet address.
    Known { parked: Vec<P>, changed: bool },
    /// An entry was created.
    Created,
    /// There is no entry, and the message does not create one.
    Ignored,
    /// There is no entry, and unsolicited messages have created as many as they may.
    Limited,
}

struct Entry<P> {
    mac: Option<MacAddr>,
    created: Instant,
    /// When it was last heard of; when it was first asked if never.
    heard: Instant,
    /// Last lookup of the entry for a packet or for a link header; `None` if there was none.
    used: Option<Instant>,
    /// The running scan has found a connection that needs the entry.
    in_use: bool,
    /// Another may have its IP address by now: it is asked for among all.
    doubted: bool,
    asked: Option<Asked>,
    parked: Vec<P>,
}

#[derive(Clone, Copy)]
struct Asked {
    tries: u8,
    again: Instant,
}

impl<P> Entry<P> {
    /// Returns true if the entry was created at `at` and no packet was sent to it.
    fn is_unused_since(&self, at: Instant) -> bool {
        self.used.is_none() && self.created == at
    }

    fn solicitation(&self, ip: IpAddr) -> Solicitation {
        Solicitation { ip, to: self.mac.filter(|_| !self.doubted) }
    }
}

/// An address to be looked up.
#[derive(PartialEq, Eq)]
struct Key(IpAddr);

impl Hash for Key {
    /// Each half of the address, which whoever is on the link may choose, goes in as a lower half of what foldhash takes at
    /// a time, as in a [`Tuple`](crate::tcp::tuple::Tuple)'s hash: the upper is hidden only behind a constant that everybody knows.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let bits = match self.0 {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => ip.to_bits(),
        };
        state.write_u128(bits & u128::from(u64::MAX));
        state.write_u128(bits >> 64);
    }
}

/// Limits and times of one address family.
struct Family {
    /// Entries in the table.
    entries: usize,
    /// Entries with `used: None`.
    unused: usize,
    /// Unused entries in the order of their creation, with the time of it. One that was used or removed since stays until it
    /// is at the front, or until the queue is compacted.
    oldest: VecDeque<(IpAddr, Instant)>,
    /// Entries that can be replaced by the last scan, the least recently used one last.
    replaceable: Vec<IpAddr>,
    /// Beginning of the last scan.
    scanned: Instant,
    /// Rate at which unsolicited messages may create entries.
    unsolicited: RateLimit,
    /// Those with `asked`: what [`Neighbors::tend`] looks at.
    asked: Vec<IpAddr>,
    /// Packets that wait.
    parked: usize,
    reachable: Duration,
    retry: Duration,
}

impl Family {
    fn new() -> Self {
        Family {
            entries: 0,
            unused: 0,
            oldest: VecDeque::new(),
            replaceable: Vec::new(),
            scanned: Instant::ZERO,
            unsolicited: RateLimit::new(UNSOLICITED_BURST),
            asked: Vec::new(),
            parked: 0,
            reachable: REACHABLE,
            retry: RETRY,
        }
    }
}

/// A pass over all connections, which marks the neighbours that they need.
#[derive(Clone, Copy)]
struct Scan {
    began: Instant,
    /// Number of connection slots that have been looked at.
    slots: usize,
}

/// Neighbours by IP address, with packets of type `P` waiting for them.
pub(crate) struct Neighbors<P> {
    entries: HashMap<Key, Entry<P>, foldhash::fast::FixedState>,
    v4: Family,
    v6: Family,
    gateways: Vec<IpAddr>,
    scan: Option<Scan>,
    /// When [`tend`](Self::tend) has something to do next, or earlier.
    due: Option<Instant>,
}

/// Limits and times of the family of `$ip`. A macro, so that other fields of the table can be borrowed beside them.
macro_rules! family {
    ($table:expr, $ip:expr) => {
        if $ip.is_ipv4() { &mut $table.v4 } else { &mut $table.v6 }
    };
}

impl<P> Neighbors<P> {
    /// An empty table whose hash is keyed by `seed`.
    pub fn new(seed: u64) -> Self {
        Neighbors {
            entries: HashMap::with_hasher(foldhash::fast::FixedState::with_seed(seed)),
            v4: Family::new(),
            v6: Family::new(),
            gateways: Vec::new(),
            scan: None,
            due: None,
        }
    }

    /// Goes by these times over IPv6 from now on: how long a neighbour is believed, and the time between solicitations.
    pub fn set_times(&mut self, reachable: Option<Duration>, retry: Option<Duration>) {
        self.v6.reachable = reachable.unwrap_or(REACHABLE);
        self.v6.retry = retry.unwrap_or(RETRY);
    }

    /// Protects the entries of `gateways` from now on, and no longer those of earlier ones.
    pub fn set_gateways(&mut self, gateways: &[IpAddr]) {
        self.gateways.clear();
        self.gateways.extend_from_slice(gateways);
    }

    /// The address of `ip`, if it is known.
    pub fn known(&self, ip: IpAddr) -> Option<MacAddr> {
        self.entries.get(&Key(ip)).and_then(|entry| entry.mac)
    }

    /// The way to `ip`.
    #[inline]
    pub fn look_up(&mut self, ip: IpAddr, now: Instant) -> Lookup {
        let family = family!(self, ip);
        if let Some(entry) = self.entries.get_mut(&Key(ip)) {
            if entry.used.replace(now).is_none() {
                family.unused -= 1;
            }
            match (entry.mac, entry.asked) {
                (Some(mac), None) if now.since(entry.heard) < family.reachable && !entry.doubted => {
                    return Lookup::Known(mac);
                }
                (Some(mac), Some(_)) => return Lookup::Known(mac),
                (Some(mac), None) if family.asked.len() >= MAX_ASKED => return Lookup::Known(mac),
                (Some(mac), None) => {
                    let again = now + family.retry;
                    entry.asked = Some(Asked { tries: 1, again });
                    family.asked.push(ip);
                    let solicitation = entry.solicitation(ip);
                    self.is_due_by(again);
                    return Lookup::Confirm(mac, solicitation);
                }
                (None, _) => return Lookup::Pending,
            }
        }
        if family.asked.len() >= MAX_ASKED || !self.make_room(ip, now) {
            return Lookup::Refused;
        }
        let family = family!(self, ip);
        let again = now + family.retry;
        family.asked.push(ip);
        family.entries += 1;
        let asked = Some(Asked { tries: 1, again });
        let used = Some(now);
        let entry = Entry {
            mac: None,
            created: now,
            heard: now,
            used,
            in_use: false,
            doubted: false,
            asked,
            parked: Vec::new(),
        };
        self.entries.insert(Key(ip), entry);
        self.is_due_by(again);
        Lookup::Solicit
    }

    /// Lets `packet` wait for `ip`; the oldest that waits gives way when there are too many. Returns what will not be
    /// sent.
    pub fn park(&mut self, ip: IpAddr, packet: P) -> Option<P> {
        let Some(entry) = self.entries.get_mut(&Key(ip)) else { return Some(packet) };
        let family = family!(self, ip);
        let all = entry.parked.len();
        entry.parked.push(packet);
        if all == 0 || all < MAX_PARKED && family.parked < MAX_PARKED_IN_ALL {
            family.parked += 1;
            return None;
        }
        Some(entry.parked.remove(0))
    }

    /// Notes that `ip` has `mac`. A neighbour that was not asked for gets an entry only if `new` (RFC 826: it asked for an
    /// address of ours) and within the rate for unsolicited messages, which gateways are exempt from.
    pub fn learn(&mut self, ip: IpAddr, mac: MacAddr, new: bool, now: Instant) -> Update<P> {
        let family = family!(self, ip);
        if let Some(entry) = self.entries.get_mut(&Key(ip)) {
            let changed = entry.mac.is_some_and(|old| old != mac);
            entry.mac = Some(mac);
            entry.heard = now;
            entry.doubted = false;
            let was_asked = entry.asked.take().is_some();
            if was_asked {
                family.asked.retain(|asked| *asked != ip);
            }
            family.parked -= entry.parked.len();
            let parked = std::mem::take(&mut entry.parked);
            if was_asked {
                self.renew_due();
            }
            return Update::Known { parked, changed };
        }
        if !new {
            return Update::Ignored;
        }
        let is_gateway = self.gateways.contains(&ip);
        if is_gateway {
            if !self.make_room(ip, now) {
                return Update::Limited;
            }
        } else if !family.unsolicited.allows(now) || !self.make_room_unused(ip, now) {
            return Update::Limited;
        }
        let family = family!(self, ip);
        family.entries += 1;
        if !is_gateway {
            family.unused += 1;
            family.oldest.push_back((ip, now));
        }
        let used = is_gateway.then_some(now);
        let (mac, parked) = (Some(mac), Vec::new());
        let entry = Entry { mac, created: now, heard: now, used, in_use: false, doubted: false, asked: None, parked };
        self.entries.insert(Key(ip), entry);
        Update::Created
    }

    /// Repeats solicitations that have not been answered and gives up those asked often enough: `ask` gets what to put on
    /// the link, `lost` each neighbour that did not answer with the packets that waited for it.
    pub fn tend(&mut self, now: Instant, mut ask: impl FnMut(Solicitation), mut lost: impl FnMut(IpAddr, Vec<P>)) {
        let entries = &mut self.entries;
        for family in [&mut self.v4, &mut self.v6] {
            let Family { asked, parked, retry, entries: count, .. } = family;
            asked.retain(|ip| {
                let Some(entry) = entries.get_mut(&Key(*ip)) else { return false };
                let Some(asked) = &mut entry.asked else { return false };
                if now < asked.again {
                    return true;
                }
                if asked.tries >= TRIES {
                    if let Some(entry) = entries.remove(&Key(*ip)) {
                        // It was asked for by a lookup, so it is not unused.
                        *count -= 1;
                        *parked -= entry.parked.len();
                        lost(*ip, entry.parked);
                    }
                    return false;
                }
                *asked = Asked { tries: asked.tries + 1, again: now + *retry };
                ask(entry.solicitation(*ip));
                true
            });
        }
        self.renew_due();
    }

    /// Whoever is on the link now may be another: each address is used until there is an answer, and asked for anew when it is
    /// (RFC 4861 §7.3.3, but of all, since nobody may have the old one any more).
    pub fn doubt(&mut self) {
        for entry in self.entries.values_mut().filter(|entry| entry.mac.is_some()) {
            entry.doubted = true;
            entry.asked = None;
        }
        let entries = &self.entries;
        for family in [&mut self.v4, &mut self.v6] {
            family.asked.retain(|ip| entries.get(&Key(*ip)).is_some_and(|entry| entry.asked.is_some()));
        }
        self.renew_due();
    }

    /// When [`tend`](Self::tend) has something to do next; at once while a [scan](Self::scan) runs.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Makes [`next_deadline`](Self::next_deadline) `at` or earlier.
    pub fn is_due_by(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn renew_due(&mut self) {
        let again = |ip: &IpAddr| self.entries.get(&Key(*ip)).and_then(|entry| entry.asked).map(|asked| asked.again);
        let scan = self.scan.map(|_| Instant::ZERO);
        self.due = self.v4.asked.iter().chain(&self.v6.asked).filter_map(again).chain(scan).min();
    }

    /// Number of connection slots that the running scan has looked at; `None` if no scan runs.
    #[inline]
    pub fn scan(&self) -> Option<usize> {
        self.scan.map(|scan| scan.slots)
    }

    /// Marks the entry of `ip` as needed by a connection, for the running scan.
    pub fn mark_in_use(&mut self, ip: IpAddr) {
        if let Some(entry) = self.entries.get_mut(&Key(ip)) {
            entry.in_use = true;
        }
    }

    /// Notes that the scan has looked at the first `slots` connection slots, which are `all` of them or not. When they are,
    /// each entry can be replaced that no connection needs and that was not used since the scan began: a connection that is
    /// newer than its slot's turn looks its neighbour up when it begins.
    pub fn scanned(&mut self, slots: usize, all: bool) {
        let Some(Scan { began, .. }) = self.scan else { return };
        if !all {
            self.scan = Some(Scan { began, slots });
            return;
        }
        self.scan = None;
        self.renew_due();
        let mut idle = Vec::new();
        for (Key(ip), entry) in &mut self.entries {
            let is_needed = std::mem::take(&mut entry.in_use) || self.gateways.contains(ip);
            if let Some(used) = entry.used.filter(|used| !is_needed && *used < began) {
                idle.push((used, *ip));
            }
        }
        idle.sort_unstable_by_key(|(used, _)| std::cmp::Reverse(*used));
        for family in [&mut self.v4, &mut self.v6] {
            family.replaceable.clear();
            family.scanned = began;
        }
        for (_, ip) in idle {
            family!(self, ip).replaceable.push(ip);
        }
    }

    /// Makes room for an entry of the family of `ip` that a packet is to be sent to; returns false if every entry is needed.
    fn make_room(&mut self, ip: IpAddr, now: Instant) -> bool {
        self.scan_if_nearly_full(ip, now);
        family!(self, ip).entries < MAX_NEIGHBORS || self.replace_unused(ip) || self.replace_idle(ip)
    }

    /// Makes room for an unused entry of the family of `ip`; returns false if every entry is needed. Where there are as many
    /// unused entries as there may be, one of them is replaced, so a flood of unsolicited messages replaces no others.
    fn make_room_unused(&mut self, ip: IpAddr, now: Instant) -> bool {
        self.scan_if_nearly_full(ip, now);
        let family = family!(self, ip);
        if family.oldest.len() >= 2 * MAX_UNUSED {
            let entries = &self.entries;
            family.oldest.retain(|(ip, at)| entries.get(&Key(*ip)).is_some_and(|entry| entry.is_unused_since(*at)));
        }
        let has_room = family.unused < MAX_UNUSED && family.entries < MAX_NEIGHBORS;
        has_room || self.replace_unused(ip) || self.replace_idle(ip)
    }

    /// Begins a scan if the share of the family of `ip` is nearly full and the last scan left no entry to replace.
    fn scan_if_nearly_full(&mut self, ip: IpAddr, now: Instant) {
        let family = family!(self, ip);
        let is_wanted = family.entries >= NEARLY_FULL && family.replaceable.is_empty();
        if is_wanted && self.scan.is_none() && now.since(family.scanned) >= SCAN_PERIOD {
            self.scan = Some(Scan { began: now, slots: 0 });
            self.due = Some(Instant::ZERO);
        }
    }

    /// Removes the oldest unused entry of the family of `ip`; returns false if there is none.
    fn replace_unused(&mut self, ip: IpAddr) -> bool {
        let family = family!(self, ip);
        while let Some((ip, at)) = family.oldest.pop_front() {
            let Some(entry) = self.entries.get_mut(&Key(ip)).filter(|entry| entry.is_unused_since(at)) else {
                continue;
            };
            if self.gateways.contains(&ip) {
                // It became a gateway after its message.
                family.unused -= 1;
                entry.used = Some(entry.heard);
                continue;
            }
            self.entries.remove(&Key(ip));
            family.unused -= 1;
            family.entries -= 1;
            return true;
        }
        false
    }

    /// Removes the least recently used entry of the family of `ip` among those that the last scan found replaceable and that
    /// were not used since; returns false if there is none.
    fn replace_idle(&mut self, ip: IpAddr) -> bool {
        let family = family!(self, ip);
        while let Some(ip) = family.replaceable.pop() {
            let Some(entry) = self.entries.get(&Key(ip)) else { continue };
            let is_idle = entry.used.is_some_and(|used| used < family.scanned);
            if entry.asked.is_none() && is_idle && !self.gateways.contains(&ip) {
                self.entries.remove(&Key(ip));
                family.entries -= 1;
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;
