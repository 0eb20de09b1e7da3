//! The neighbour table: Ethernet addresses of the hosts on the link, learnt from ARP (RFC 826) and NDP (RFC 4861).
//!
//! Ours rather than smoltcp's, which holds a handful and limits resolution for all neighbours together. Packets for a
//! neighbour that is being resolved wait here; both are bounded.

use hashbrown::HashMap;
use linerate_bypass::MacAddr;
use linerate_bypass::time::{Duration, Instant};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

/// Neighbours known or being resolved at once. What is learnt beyond replaces what has been silent longest.
const MAX_NEIGHBORS: usize = 1 << 14;
/// Neighbours being asked at once; more are not asked, and packets for them are dropped.
const MAX_ASKED: usize = 1 << 10;
/// Packets that wait for one neighbour: the first segments of a burst of new connections, which would otherwise be
/// sent again only after a second.
const MAX_PARKED: usize = 256;
/// Packets that wait for all neighbours together; beyond, one for each still may (RFC 4861 §7.2.2: at least one).
const MAX_PARKED_IN_ALL: usize = 1024;
/// Between questions, unless routers say otherwise, and how many (RFC 4861 §10: RETRANS_TIMER, MAX_MULTICAST_SOLICIT).
const RETRY: Duration = Duration::from_secs(1);
const TRIES: u8 = 3;
/// How long a confirmed neighbour is believed before it is asked again, unless routers say otherwise (RFC 4861 §10: REACHABLE_TIME).
const REACHABLE: Duration = Duration::from_secs(30);

/// What to do to reach a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Its address is known.
    Known(MacAddr),
    /// Its address is known; put the question whether it still is.
    Confirm(MacAddr, Question),
    /// Park the packet, and ask who has it.
    Ask,
    /// Park the packet; it has been asked.
    Asked,
    /// Too many are being asked: drop the packet.
    Refused,
}

/// A question to be put on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question {
    /// Whose address is wanted.
    pub ip: IpAddr,
    /// Where to send it: the neighbour's last known address, or to all.
    pub to: Option<MacAddr>,
}

struct Entry<P> {
    mac: Option<MacAddr>,
    /// When it was last heard of; when it was first asked if never.
    heard: Instant,
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
    fn question(&self, ip: IpAddr) -> Question {
        Question { ip, to: self.mac.filter(|_| !self.doubted) }
    }
}

/// An address to be looked up.
#[derive(PartialEq, Eq)]
struct Key(IpAddr);

impl Hash for Key {
    /// Each half of the address, which whoever is on the link may choose, goes in as a lower half of what foldhash takes at
    /// a time, as in a [`Tuple`](crate::tuple::Tuple)'s hash: the upper is hidden only behind a constant that everybody knows.
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

/// Neighbours by IP address, with packets of type `P` waiting for them.
pub(crate) struct Neighbors<P> {
    entries: HashMap<Key, Entry<P>, foldhash::fast::FixedState>,
    /// Those with `asked`: what [`tend`](Self::tend) looks at.
    asked: Vec<IpAddr>,
    /// Packets that wait.
    parked: usize,
    /// No neighbour was old enough to be replaced: not to be looked for again before this.
    full_until: Instant,
    /// The times of neighbours over IPv6.
    reachable_v6: Duration,
    retry_v6: Duration,
}

impl<P> Neighbors<P> {
    /// An empty table whose hash is keyed by `seed`.
    pub fn new(seed: u64) -> Self {
        Neighbors {
            entries: HashMap::with_hasher(foldhash::fast::FixedState::with_seed(seed)),
            asked: Vec::new(),
            parked: 0,
            full_until: Instant::ZERO,
            reachable_v6: REACHABLE,
            retry_v6: RETRY,
        }
    }

    /// Goes by these times over IPv6 from now on: how long a neighbour is believed, and the time between questions.
    pub fn set_times(&mut self, reachable: Option<Duration>, retry: Option<Duration>) {
        self.reachable_v6 = reachable.unwrap_or(REACHABLE);
        self.retry_v6 = retry.unwrap_or(RETRY);
    }

    /// The address of `ip`, if it is known.
    pub fn known(&self, ip: IpAddr) -> Option<MacAddr> {
        self.entries.get(&Key(ip)).and_then(|entry| entry.mac)
    }

    /// The way to `ip`.
    #[inline]
    pub fn look_up(&mut self, ip: IpAddr, now: Instant) -> Lookup {
        let (reachable, retry) = if ip.is_ipv4() { (REACHABLE, RETRY) } else { (self.reachable_v6, self.retry_v6) };
        if let Some(entry) = self.entries.get_mut(&Key(ip)) {
            match (entry.mac, entry.asked) {
                (Some(mac), None) if now.since(entry.heard) < reachable && !entry.doubted => return Lookup::Known(mac),
                (Some(mac), Some(_)) => return Lookup::Known(mac),
                (Some(mac), None) if self.asked.len() >= MAX_ASKED => return Lookup::Known(mac),
                (Some(mac), None) => {
                    entry.asked = Some(Asked { tries: 1, again: now + retry });
                    self.asked.push(ip);
                    return Lookup::Confirm(mac, entry.question(ip));
                }
                (None, _) => return Lookup::Asked,
            }
        }
        if self.asked.len() >= MAX_ASKED || !self.make_room(now) {
            return Lookup::Refused;
        }
        let asked = Some(Asked { tries: 1, again: now + retry });
        self.entries.insert(Key(ip), Entry { mac: None, heard: now, doubted: false, asked, parked: Vec::new() });
        self.asked.push(ip);
        Lookup::Ask
    }

    /// Lets `packet` wait for `ip`; the oldest that waits gives way when there are too many. Returns what will not be
    /// sent.
    pub fn park(&mut self, ip: IpAddr, packet: P) -> Option<P> {
        let Some(entry) = self.entries.get_mut(&Key(ip)) else { return Some(packet) };
        let all = entry.parked.len();
        entry.parked.push(packet);
        if all == 0 || all < MAX_PARKED && self.parked < MAX_PARKED_IN_ALL {
            self.parked += 1;
            return None;
        }
        Some(entry.parked.remove(0))
    }

    /// Notes that `ip` has `mac`, and returns what waited for it. A neighbour that nobody here asked for is noted
    /// only if `new` says so (RFC 826: when it asked for us).
    pub fn learn(&mut self, ip: IpAddr, mac: MacAddr, new: bool, now: Instant) -> Vec<P> {
        if let Some(entry) = self.entries.get_mut(&Key(ip)) {
            entry.mac = Some(mac);
            entry.heard = now;
            entry.doubted = false;
            if entry.asked.take().is_some() {
                self.asked.retain(|asked| *asked != ip);
            }
            self.parked -= entry.parked.len();
            return std::mem::take(&mut entry.parked);
        }
        if new && self.make_room(now) {
            let entry = Entry { mac: Some(mac), heard: now, doubted: false, asked: None, parked: Vec::new() };
            self.entries.insert(Key(ip), entry);
        }
        Vec::new()
    }

    /// Repeats questions that have not been answered and gives up those asked often enough: `ask` gets what to put on
    /// the link, `lost` each neighbour that did not answer with the packets that waited for it.
    pub fn tend(&mut self, now: Instant, mut ask: impl FnMut(Question), mut lost: impl FnMut(IpAddr, Vec<P>)) {
        let (entries, parked, retry_v6) = (&mut self.entries, &mut self.parked, self.retry_v6);
        self.asked.retain(|ip| {
            let Some(entry) = entries.get_mut(&Key(*ip)) else { return false };
            let Some(asked) = &mut entry.asked else { return false };
            if now < asked.again {
                return true;
            }
            if asked.tries >= TRIES {
                if let Some(entry) = entries.remove(&Key(*ip)) {
                    *parked -= entry.parked.len();
                    lost(*ip, entry.parked);
                }
                return false;
            }
            let retry = if ip.is_ipv4() { RETRY } else { retry_v6 };
            *asked = Asked { tries: asked.tries + 1, again: now + retry };
            ask(entry.question(*ip));
            true
        });
    }

    /// Whoever is on the link now may be another: each address is used until there is an answer, and asked for anew when it is
    /// (RFC 4861 §7.3.3, but of all, since nobody may have the old one any more).
    pub fn doubt(&mut self) {
        for entry in self.entries.values_mut().filter(|entry| entry.mac.is_some()) {
            entry.doubted = true;
            entry.asked = None;
        }
        let entries = &self.entries;
        self.asked.retain(|ip| entries.get(&Key(*ip)).is_some_and(|entry| entry.asked.is_some()));
    }

    /// When [`tend`](Self::tend) has something to do next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let again = |ip: &IpAddr| self.entries.get(&Key(*ip)).and_then(|entry| entry.asked).map(|asked| asked.again);
        self.asked.iter().filter_map(again).min()
    }

    /// Room for one more: if there is none, the neighbour silent for longest goes, unless it is still being asked.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.entries.len() < MAX_NEIGHBORS {
            return true;
        }
        if now < self.full_until {
            return false;
        }
        let oldest = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.asked.is_none() && now.since(entry.heard) >= REACHABLE)
            .min_by_key(|(_, entry)| entry.heard)
            .map(|(Key(ip), _)| *ip);
        match oldest {
            Some(ip) => self.entries.remove(&Key(ip)).is_some(),
            None => {
                self.full_until = now + RETRY;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn ip(n: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + n).to_be_bytes())
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn tend(table: &mut Neighbors<u32>, now: Instant) -> (Vec<Question>, Vec<(IpAddr, Vec<u32>)>) {
        let (mut asked, mut lost) = (Vec::new(), Vec::new());
        table.tend(now, |question| asked.push(question), |ip, parked| lost.push((ip, parked)));
        (asked, lost)
    }

    #[test]
    fn packets_wait_for_the_answer_and_the_oldest_give_way() {
        let mut table = Neighbors::new(0);
        assert_eq!(table.look_up(ip(1), at(0)), Lookup::Ask);
        assert_eq!(table.park(ip(1), 0), None);
        for n in 1..=MAX_PARKED as u32 {
            assert_eq!(table.look_up(ip(1), at(0)), Lookup::Asked);
            assert_eq!(table.park(ip(1), n), (n == MAX_PARKED as u32).then_some(0));
        }
        assert_eq!(table.learn(ip(1), MAC, false, at(0)), (1..=MAX_PARKED as u32).collect::<Vec<_>>());
        assert_eq!(table.look_up(ip(1), at(1)), Lookup::Known(MAC));
    }

    #[test]
    fn packets_that_wait_are_bounded_in_all_and_one_may_always_wait() {
        let mut table = Neighbors::new(0);
        let wait = |table: &mut Neighbors<u32>, neighbor, packet| {
            table.look_up(ip(neighbor), at(0));
            table.park(ip(neighbor), packet)
        };
        for n in 0..MAX_PARKED_IN_ALL as u32 {
            assert_eq!(wait(&mut table, n / MAX_PARKED as u32, n), None);
        }
        assert_eq!(wait(&mut table, 100, 0), None);
        assert_eq!(wait(&mut table, 100, 1), Some(0));
        // Whether they are sent or given up, their places are free again.
        assert_eq!(table.learn(ip(0), MAC, false, at(0)).len(), MAX_PARKED);
        assert_eq!(wait(&mut table, 100, 2), None);
        for seconds in 1..=3 {
            tend(&mut table, at(seconds));
        }
        assert_eq!(table.parked, 0);
    }

    #[test]
    fn an_unanswered_question_is_repeated_and_given_up() {
        let mut table = Neighbors::new(0);
        table.look_up(ip(1), at(0));
        table.park(ip(1), 7);
        assert_eq!(tend(&mut table, at(0)), (vec![], vec![]));
        let question = vec![Question { ip: ip(1), to: None }];
        assert_eq!(tend(&mut table, at(1)), (question.clone(), vec![]));
        assert_eq!(tend(&mut table, at(2)), (question, vec![]));
        assert_eq!(tend(&mut table, at(3)), (vec![], vec![(ip(1), vec![7])]));
        assert_eq!(table.next_deadline(), None);
        assert_eq!(table.look_up(ip(1), at(4)), Lookup::Ask);
    }

    #[test]
    fn an_old_neighbour_is_used_while_it_is_asked_again() {
        let mut table = Neighbors::<u32>::new(0);
        table.learn(ip(1), MAC, true, at(0));
        assert_eq!(table.look_up(ip(1), at(29)), Lookup::Known(MAC));
        let question = Question { ip: ip(1), to: Some(MAC) };
        assert_eq!(table.look_up(ip(1), at(30)), Lookup::Confirm(MAC, question));
        assert_eq!(table.look_up(ip(1), at(30)), Lookup::Known(MAC));
        assert_eq!(tend(&mut table, at(31)).0, [question]);
        table.learn(ip(1), MAC, false, at(31));
        assert_eq!(table.look_up(ip(1), at(60)), Lookup::Known(MAC));
    }

    #[test]
    fn times_that_routers_say_are_of_ipv6() {
        let mut table = Neighbors::<u32>::new(0);
        let six = IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1]);
        for ip in [ip(1), six] {
            table.learn(ip, MAC, true, at(0));
        }
        table.set_times(Some(Duration::from_secs(10)), Some(Duration::from_secs(5)));
        assert_eq!(table.look_up(ip(1), at(12)), Lookup::Known(MAC));
        assert!(matches!(table.look_up(six, at(12)), Lookup::Confirm(..)));
        assert_eq!(table.next_deadline(), Some(at(17)));
        table.set_times(None, None);
        table.learn(six, MAC, true, at(13));
        assert_eq!(table.look_up(six, at(42)), Lookup::Known(MAC));
    }

    #[test]
    fn who_is_doubted_is_asked_for_among_all_and_sent_to_meanwhile() {
        let other = MacAddr([2, 0, 0, 0, 0, 8]);
        let [first, second] = [1, 2].map(|n| Question { ip: ip(n), to: None });
        let mut table = Neighbors::new(0);
        table.learn(ip(1), MAC, true, at(0));
        table.learn(ip(2), MAC, true, at(0));
        // One of them is being asked where it was.
        assert!(matches!(table.look_up(ip(2), at(30)), Lookup::Confirm(MAC, Question { to: Some(MAC), .. })));
        assert_eq!(table.look_up(ip(3), at(30)), Lookup::Ask);
        table.park(ip(3), 7);
        table.doubt();
        assert_eq!(table.look_up(ip(1), at(30)), Lookup::Confirm(MAC, first));
        assert_eq!(table.look_up(ip(2), at(30)), Lookup::Confirm(MAC, second));
        assert_eq!(table.look_up(ip(1), at(30)), Lookup::Known(MAC));
        assert_eq!(table.look_up(ip(3), at(30)), Lookup::Asked);
        let mut questions = tend(&mut table, at(31)).0;
        questions.sort_by_key(|question| question.ip);
        assert_eq!(questions, [first, second, Question { ip: ip(3), to: None }]);
        table.learn(ip(1), other, false, at(31));
        assert_eq!(table.look_up(ip(1), at(31)), Lookup::Known(other));
        assert_eq!(table.learn(ip(3), MAC, false, at(31)), [7]);
        // Whoever does not answer is gone.
        (32..=33).for_each(|second| _ = tend(&mut table, at(second)));
        assert_eq!(table.look_up(ip(2), at(34)), Lookup::Ask);
    }

    #[test]
    fn what_nobody_asked_for_is_learnt_only_on_request() {
        let mut table = Neighbors::<u32>::new(0);
        table.learn(ip(1), MAC, false, at(0));
        assert_eq!(table.look_up(ip(1), at(0)), Lookup::Ask);
        table.learn(ip(2), MAC, true, at(0));
        assert_eq!(table.look_up(ip(2), at(0)), Lookup::Known(MAC));
    }

    #[test]
    fn the_table_is_bounded_and_a_flood_does_not_push_out_who_is_in_use() {
        let mut table = Neighbors::<u32>::new(0);
        for n in 0..2 * MAX_NEIGHBORS as u32 {
            table.learn(ip(n), MAC, true, at(0));
        }
        assert_eq!(table.entries.len(), MAX_NEIGHBORS);
        assert_eq!(table.look_up(ip(0), at(1)), Lookup::Known(MAC));
        assert_eq!(table.look_up(ip(1 << 20), at(1)), Lookup::Refused);
        assert_eq!(table.look_up(ip(1 << 20), at(40)), Lookup::Ask);
        assert_eq!(table.entries.len(), MAX_NEIGHBORS);
    }

    /// Half of an address may be free to choose: the prefix on the link is as short as the user has it.
    #[test]
    fn no_address_of_a_neighbour_makes_the_hash_forget_the_rest() {
        use std::collections::HashSet;
        use std::hash::BuildHasher;
        // What foldhash hides the upper of two words behind, of an integer and of bytes.
        const PUBLIC: [u64; 2] = [0xc0ac_29b7_c97c_50dd, 0x3f84_d5b5_b547_0917];
        let state = foldhash::fast::FixedState::with_seed(5);
        let hash = |high: u64, low: u64| {
            state.hash_one(Key(std::net::Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)).into()))
        };
        for word in PUBLIC.into_iter().flat_map(|word| [word, word.swap_bytes()]) {
            assert_eq!((0..1000).map(|n| hash(n, word)).collect::<HashSet<_>>().len(), 1000);
            assert_eq!((0..1000).map(|n| hash(word, n)).collect::<HashSet<_>>().len(), 1000);
        }
    }

    #[test]
    fn questions_are_bounded() {
        let mut table = Neighbors::<u32>::new(0);
        for n in 0..MAX_ASKED as u32 {
            assert_eq!(table.look_up(ip(n), at(0)), Lookup::Ask);
        }
        assert_eq!(table.look_up(ip(1 << 20), at(0)), Lookup::Refused);
    }
}
