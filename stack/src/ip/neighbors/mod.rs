//! Neighbour table: Ethernet addresses of on-link hosts, learnt from ARP (RFC 826) and NDP (RFC 4861).
//!
//! smoltcp's table is not used: it has few entries and limits resolution for all neighbours together. Packets for a
//! neighbour that is being resolved wait here; entries and packets are bounded.
//!
//! Any station on the link can send ARP requests and neighbour solicitations from forged addresses (RFC 6583 §4). The
//! table resists exhaustion as follows:
//!
//! - Each address family has its own limits.
//! - A token bucket limits the entries that unsolicited messages create. A message beyond the rate is counted and
//!   creates no entry; the host is resolved when the first packet is sent to it.
//! - An entry that an unsolicited message created is unprotected until a packet is sent to the neighbour. Such entries
//!   have a small quota, and the oldest of them is replaced first.
//! - An entry to which packets are sent is replaced only after a [scan](Neighbors::scan) has found that no connection
//!   needs it. The scan runs only while a family's share of the table is nearly full, and makes reference counts
//!   unnecessary.
//! - The entry of a gateway is never replaced.

mod rate_limit;
mod resolving;

use hashbrown::HashMap;
use linerate_bypass::MacAddr;
use linerate_service::time::{Duration, Instant};
use rate_limit::RateLimit;
pub(crate) use resolving::PendingResolutions;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

/// Maximum entries of one address family.
const MAX_NEIGHBORS: usize = 1 << 14;
/// Maximum entries of one family that unsolicited messages created and no packet has used.
const MAX_UNUSED: usize = 1 << 10;
/// Burst of unsolicited messages of one family that create entries after a quiet period. After a restart of a server,
/// this many hosts may resolve its address at once.
const UNSOLICITED_BURST: u32 = 1024;
/// Number of entries of one family at which a scan for replaceable entries starts, so that it ends before the table is
/// full.
const NEARLY_FULL: usize = MAX_NEIGHBORS - MAX_NEIGHBORS / 8;
/// Minimum time between the starts of two scans, which bounds their cost.
const SCAN_PERIOD: Duration = Duration::from_secs(1);
/// Maximum neighbours of one family in resolution. Packets for further ones are dropped.
const MAX_PENDING: usize = 1 << 10;
/// Maximum packets that wait for one neighbour: the first segments of a burst of new connections. A dropped one is
/// retransmitted only after a second.
const MAX_PARKED: usize = 256;
/// Maximum packets that wait for all neighbours of one family. Beyond it, one packet per neighbour may wait (RFC 4861
/// §7.2.2: at least one).
const MAX_PARKED_IN_ALL: usize = 1024;
/// Interval between solicitations, unless routers advertise another, and their number (RFC 4861 §10: RETRANS_TIMER,
/// MAX_MULTICAST_SOLICIT).
const RETRY: Duration = Duration::from_secs(1);
const TRIES: u8 = 3;
/// Time for which a confirmed neighbour is reachable, unless routers advertise another (RFC 4861 §10: REACHABLE_TIME).
const REACHABLE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    Known(MacAddr),
    /// The address is known but needs confirmation: send the solicitation.
    Confirm(MacAddr, Solicitation),
    /// Park the packet and send a solicitation.
    Solicit,
    /// Park the packet; a solicitation is outstanding.
    Pending,
    /// Drop the packet: too many neighbours in resolution, or no replaceable entry.
    Refused,
}

/// ARP request or neighbour solicitation to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Solicitation {
    /// IP address to resolve.
    pub ip: IpAddr,
    /// Destination: the last known address of the neighbour, or all stations.
    pub to: Option<MacAddr>,
}

/// Result of [`Neighbors::learn`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Update<P> {
    /// The entry exists. `parked` are the packets that waited for it. `changed` is true if frames were or may have been
    /// sent to another Ethernet address.
    Known { parked: Vec<P>, changed: bool },
    /// An entry was created.
    Created,
    /// There is no entry, and the message creates none.
    Ignored,
    /// There is no entry, and the rate of unsolicited messages is exceeded.
    Limited,
}

struct Entry<P> {
    mac: Option<MacAddr>,
    created: Instant,
    /// Time of the last message, or of the first solicitation before any.
    confirmed: Instant,
    /// Time of the last lookup for a packet or a link header.
    used: Option<Instant>,
    /// True if the running scan has found a connection that needs the entry.
    in_use: bool,
    /// True if another station may have the IP address, so that confirmation is multicast.
    multicast_confirm: bool,
    pending: Option<PendingSolicitation>,
    parked: Vec<P>,
}

#[derive(Clone, Copy)]
struct PendingSolicitation {
    tries: u8,
    again: Instant,
}

impl<P> Entry<P> {
    /// Returns whether the entry was created at `at` and no packet has used it.
    fn is_unused_since(&self, at: Instant) -> bool {
        self.used.is_none() && self.created == at
    }

    fn solicitation(&self, ip: IpAddr) -> Solicitation {
        Solicitation { ip, to: self.mac.filter(|_| !self.multicast_confirm) }
    }
}

/// Key of the table: an IP address.
#[derive(PartialEq, Eq)]
struct Key(IpAddr);

impl Hash for Key {
    /// Hashes each half of the address, which stations choose, as the lower half of a foldhash word pair, as
    /// [`Tuple`](crate::wire::tuple::Tuple) does: foldhash protects the upper half only by a public constant.
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
    entries: usize,
    /// Number of entries with `used: None`.
    unused: usize,
    /// Unused entries with their creation time, oldest first. A used or removed one stays until it reaches the front or
    /// the queue is compacted.
    oldest: VecDeque<(IpAddr, Instant)>,
    /// Entries that the last scan found replaceable, least recently used last.
    replaceable: Vec<IpAddr>,
    /// Start of the last scan.
    scanned: Instant,
    /// Rate limit of entries that unsolicited messages create.
    unsolicited: RateLimit,
    /// Entries with `pending`, which [`Neighbors::poll`] visits.
    pending: Vec<IpAddr>,
    /// Number of waiting packets.
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
            pending: Vec::new(),
            parked: 0,
            reachable: REACHABLE,
            retry: RETRY,
        }
    }
}

/// Pass over all connections that marks the neighbours in use.
#[derive(Clone, Copy)]
struct Scan {
    began: Instant,
    /// Number of connection slots covered.
    slots: usize,
}

/// Neighbours by IP address, with waiting packets of type `P`.
pub(crate) struct Neighbors<P> {
    entries: HashMap<Key, Entry<P>, foldhash::fast::FixedState>,
    v4: Family,
    v6: Family,
    gateways: Vec<IpAddr>,
    scan: Option<Scan>,
    /// Time of the next [`poll`](Self::poll) or earlier.
    due: Option<Instant>,
}

/// Accesses the family of `$ip`. A macro keeps the borrows of other fields separate.
macro_rules! family {
    ($table:expr, $ip:expr) => {
        if $ip.is_ipv4() { &mut $table.v4 } else { &mut $table.v6 }
    };
}

impl<P> Neighbors<P> {
    /// Creates an empty table. `seed` keys the hash.
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

    /// Sets the reachable time and the solicitation interval of IPv6.
    pub fn set_times(&mut self, reachable: Option<Duration>, retry: Option<Duration>) {
        self.v6.reachable = reachable.unwrap_or(REACHABLE);
        self.v6.retry = retry.unwrap_or(RETRY);
    }

    /// Sets the gateways, whose entries are never replaced.
    pub fn set_gateways(&mut self, gateways: Vec<IpAddr>) {
        self.gateways = gateways;
    }

    pub fn known(&self, ip: IpAddr) -> Option<MacAddr> {
        self.entries.get(&Key(ip)).and_then(|entry| entry.mac)
    }

    /// Looks up `ip` for a packet.
    #[inline]
    pub fn look_up(&mut self, ip: IpAddr, now: Instant) -> Lookup {
        let family = family!(self, ip);
        if let Some(entry) = self.entries.get_mut(&Key(ip)) {
            if entry.used.replace(now).is_none() {
                family.unused -= 1;
            }
            match (entry.mac, entry.pending) {
                (Some(mac), None) if now.since(entry.confirmed) < family.reachable && !entry.multicast_confirm => {
                    return Lookup::Known(mac);
                }
                (Some(mac), Some(_)) => return Lookup::Known(mac),
                (Some(mac), None) if family.pending.len() >= MAX_PENDING => return Lookup::Known(mac),
                (Some(mac), None) => {
                    let again = now + family.retry;
                    entry.pending = Some(PendingSolicitation { tries: 1, again });
                    family.pending.push(ip);
                    let solicitation = entry.solicitation(ip);
                    self.is_due_by(again);
                    return Lookup::Confirm(mac, solicitation);
                }
                (None, _) => return Lookup::Pending,
            }
        }
        if family.pending.len() >= MAX_PENDING || !self.make_room(ip, now) {
            return Lookup::Refused;
        }
        let family = family!(self, ip);
        let again = now + family.retry;
        family.pending.push(ip);
        family.entries += 1;
        let pending = Some(PendingSolicitation { tries: 1, again });
        let used = Some(now);
        let entry = Entry {
            mac: None,
            created: now,
            confirmed: now,
            used,
            in_use: false,
            multicast_confirm: false,
            pending,
            parked: Vec::new(),
        };
        self.entries.insert(Key(ip), entry);
        self.is_due_by(again);
        Lookup::Solicit
    }

    /// Parks `packet` until `ip` is resolved. Returns a packet to drop: the oldest for the neighbour if too many wait,
    /// or `packet` if `ip` has no entry.
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

    /// Records that `ip` has `mac`. Without an entry, one is created only if `new` (RFC 826: the message solicits a
    /// local address) and within the rate of unsolicited messages, which does not apply to gateways.
    pub fn learn(&mut self, ip: IpAddr, mac: MacAddr, new: bool, now: Instant) -> Update<P> {
        let family = family!(self, ip);
        if let Some(entry) = self.entries.get_mut(&Key(ip)) {
            let changed = entry.mac.is_some_and(|old| old != mac);
            entry.mac = Some(mac);
            entry.confirmed = now;
            entry.multicast_confirm = false;
            let was_pending = entry.pending.take().is_some();
            if was_pending {
                family.pending.retain(|pending| *pending != ip);
            }
            family.parked -= entry.parked.len();
            let parked = std::mem::take(&mut entry.parked);
            if was_pending {
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
        let entry = Entry {
            mac,
            created: now,
            confirmed: now,
            used,
            in_use: false,
            multicast_confirm: false,
            pending: None,
            parked,
        };
        self.entries.insert(Key(ip), entry);
        Update::Created
    }

    /// Makes the next [`poll`](Self::poll) give up `ip`.
    pub fn give_up(&mut self, ip: IpAddr) {
        let Some(entry) = self.entries.get_mut(&Key(ip)) else { return };
        let family = family!(self, ip);
        if entry.used.is_none() {
            entry.used = Some(entry.confirmed);
            family.unused -= 1;
        }
        if entry.pending.replace(PendingSolicitation { tries: TRIES, again: Instant::ZERO }).is_none() {
            family.pending.push(ip);
        }
        self.is_due_by(Instant::ZERO);
    }

    /// Repeats unanswered solicitations and gives up after the last. Calls `solicit` for each solicitation to send, and
    /// `lost` for each unreachable neighbour with its waiting packets.
    pub fn poll(&mut self, now: Instant, mut solicit: impl FnMut(Solicitation), mut lost: impl FnMut(IpAddr, Vec<P>)) {
        let entries = &mut self.entries;
        for family in [&mut self.v4, &mut self.v6] {
            let Family { pending, parked, retry, entries: count, .. } = family;
            pending.retain(|ip| {
                let Some(entry) = entries.get_mut(&Key(*ip)) else { return false };
                let Some(pending) = &mut entry.pending else { return false };
                if now < pending.again {
                    return true;
                }
                if pending.tries >= TRIES {
                    if let Some(entry) = entries.remove(&Key(*ip)) {
                        // A lookup created the entry, so it does not count as unused.
                        *count -= 1;
                        *parked -= entry.parked.len();
                        lost(*ip, entry.parked);
                    }
                    return false;
                }
                *pending = PendingSolicitation { tries: pending.tries + 1, again: now + *retry };
                solicit(entry.solicitation(*ip));
                true
            });
        }
        self.renew_due();
    }

    /// Requires confirmation of all entries on next use (RFC 4861 §7.3.3, but multicast, since the station may have
    /// changed). Their addresses stay in use meanwhile.
    pub fn require_confirmation(&mut self) {
        for entry in self.entries.values_mut().filter(|entry| entry.mac.is_some()) {
            entry.multicast_confirm = true;
            entry.pending = None;
        }
        let entries = &self.entries;
        for family in [&mut self.v4, &mut self.v6] {
            family.pending.retain(|ip| entries.get(&Key(*ip)).is_some_and(|entry| entry.pending.is_some()));
        }
        self.renew_due();
    }

    /// Returns the time of the next [`poll`](Self::poll); at once while a [scan](Self::scan) runs.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Makes [`next_deadline`](Self::next_deadline) `at` or earlier.
    pub fn is_due_by(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn renew_due(&mut self) {
        let again =
            |ip: &IpAddr| self.entries.get(&Key(*ip)).and_then(|entry| entry.pending).map(|pending| pending.again);
        let scan = self.scan.map(|_| Instant::ZERO);
        self.due = self.v4.pending.iter().chain(&self.v6.pending).filter_map(again).chain(scan).min();
    }

    /// Returns the number of connection slots that the running scan has covered; `None` without a scan.
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

    /// Records that the scan has covered the first `slots` connection slots, and ends the scan if these are `all`.
    /// Entries that no connection needs and no lookup has used since the scan began then become replaceable. A
    /// connection opened in a slot that the scan had already covered has looked up its neighbour.
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

    /// Makes room for an entry of the family of `ip` for a packet. Returns whether it succeeded.
    fn make_room(&mut self, ip: IpAddr, now: Instant) -> bool {
        self.scan_if_nearly_full(ip, now);
        family!(self, ip).entries < MAX_NEIGHBORS || self.replace_unused(ip) || self.replace_idle(ip)
    }

    /// Makes room for an unused entry of the family of `ip`. Returns whether it succeeded. At the quota of unused
    /// entries one of them is replaced, so a flood of unsolicited messages replaces no others.
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

    /// Starts a scan if the share of the family of `ip` is nearly full and the last scan left no replaceable entry.
    fn scan_if_nearly_full(&mut self, ip: IpAddr, now: Instant) {
        let family = family!(self, ip);
        let is_wanted = family.entries >= NEARLY_FULL && family.replaceable.is_empty();
        if is_wanted && self.scan.is_none() && now.since(family.scanned) >= SCAN_PERIOD {
            self.scan = Some(Scan { began: now, slots: 0 });
            self.due = Some(Instant::ZERO);
        }
    }

    /// Removes the oldest unused entry of the family of `ip`. Returns whether there was one.
    fn replace_unused(&mut self, ip: IpAddr) -> bool {
        let family = family!(self, ip);
        while let Some((ip, at)) = family.oldest.pop_front() {
            let Some(entry) = self.entries.get_mut(&Key(ip)).filter(|entry| entry.is_unused_since(at)) else {
                continue;
            };
            if self.gateways.contains(&ip) {
                // The neighbour became a gateway after its message.
                family.unused -= 1;
                entry.used = Some(entry.confirmed);
                continue;
            }
            self.entries.remove(&Key(ip));
            family.unused -= 1;
            family.entries -= 1;
            return true;
        }
        false
    }

    /// Removes the least recently used entry of the family of `ip` that the last scan found replaceable and no lookup
    /// has used since. Returns whether there was one.
    fn replace_idle(&mut self, ip: IpAddr) -> bool {
        let family = family!(self, ip);
        while let Some(ip) = family.replaceable.pop() {
            let Some(entry) = self.entries.get(&Key(ip)) else { continue };
            let is_idle = entry.used.is_some_and(|used| used < family.scanned);
            if entry.pending.is_none() && is_idle && !self.gateways.contains(&ip) {
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
