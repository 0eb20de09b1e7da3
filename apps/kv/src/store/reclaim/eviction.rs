//! What goes when memory is full.

use crate::store::Store;
use crate::store::index::Location;
use crate::store::memory::item::Item;
use linerate_bypass::prefetch_slice;

/// Items that are compared for one to go.
const SAMPLE: usize = 16;
/// Items that are looked at for one that expires.
const TRIES: usize = 8;
/// Milliseconds of a step of the clock by which items are old, as a power of two: 4 s, so that it goes round in three days.
const AGE_BITS: u32 = 12;
/// Milliseconds after which a counter of uses is less by one: a minute, nearly.
const DECAY_BITS: u32 = 16;
/// The counter of an item that is new, so that it is not the first to go.
const NEW: u8 = 5;
/// How slowly counters grow: one of 255 stands for about a million uses.
const SLOWNESS: u64 = 10;

/// Which items go when memory is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evict {
    /// None: what needs memory is refused.
    None,
    /// Any.
    Random(From),
    /// Those that were used longest ago.
    Lru(From),
    /// Those that are used least often.
    Lfu(From),
    /// Those that expire soonest.
    Ttl,
}

/// Which items may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// All.
    All,
    /// Those that expire some time.
    Volatile,
}

/// The policies, by name.
const NAMES: [(&str, Evict); 8] = [
    ("none", Evict::None),
    ("random", Evict::Random(From::All)),
    ("lru", Evict::Lru(From::All)),
    ("lfu", Evict::Lfu(From::All)),
    ("ttl", Evict::Ttl),
    ("volatile-random", Evict::Random(From::Volatile)),
    ("volatile-lru", Evict::Lru(From::Volatile)),
    ("volatile-lfu", Evict::Lfu(From::Volatile)),
];

impl Evict {
    /// The policy called `none`, `random`, `lru`, `lfu` or `ttl`; of those that expire, `volatile-random`, `volatile-lru` or
    /// `volatile-lfu`.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(its, _)| *its == name).map(|(_, evict)| *evict)
    }

    /// What is noted of a use of an item at `now` milliseconds, `before` having been noted last, or nothing yet.
    #[inline]
    pub(in crate::store) fn note(self, before: Option<u16>, now: u64, random: u64) -> u16 {
        match (self, before) {
            (Evict::Lfu(_), None) => u16::from(decay_clock(now)) << 8 | u16::from(NEW),
            (Evict::Lfu(_), Some(before)) => {
                let uses = uses(before, now);
                // The more there were, the less one more says (Morris, "Counting large numbers of events in small registers",
                // 1978).
                let grows = random.is_multiple_of(u64::from(uses.saturating_sub(NEW)) * SLOWNESS + 1);
                u16::from(decay_clock(now)) << 8 | u16::from(uses.saturating_add(grows.into()))
            }
            _ => (now >> AGE_BITS) as u16,
        }
    }

    /// Notes a use of `item`, `before` having been noted last.
    #[inline(always)]
    pub(in crate::store) fn note_use(
        self,
        mut item: Item<&mut [u8]>,
        before: u16,
        now: u64,
        random: &mut fastrand::Rng,
    ) {
        let random = if matches!(self, Evict::Lfu(_)) { random.u64(..) } else { 0 };
        let access = self.note(Some(before), now, random);
        // A line of memory that is only read need not be written back.
        if access != before {
            item.set_access(access);
        }
    }

    /// Seconds since the last use that was noted.
    pub(in crate::store) fn idle(self, noted: u16, now: u64) -> u64 {
        match self {
            Evict::Lfu(_) => u64::from(decay_clock(now).wrapping_sub((noted >> 8) as u8)) << DECAY_BITS,
            _ => u64::from(((now >> AGE_BITS) as u16).wrapping_sub(noted)) << AGE_BITS,
        }
        .div_euclid(1000)
    }

    /// The counter of uses, if there is one.
    pub(in crate::store) fn frequency(self, noted: u16, now: u64) -> u8 {
        if matches!(self, Evict::Lfu(_)) { uses(noted, now) } else { 0 }
    }

    /// How much rather an item of which `noted` was noted goes than others.
    fn badness(self, noted: u16, now: u64) -> u16 {
        match self {
            Evict::Lfu(_) => u16::from(u8::MAX - uses(noted, now)),
            _ => ((now >> AGE_BITS) as u16).wrapping_sub(noted),
        }
    }
}

fn decay_clock(now: u64) -> u8 {
    (now >> DECAY_BITS) as u8
}

/// The counter of uses at `now`.
fn uses(noted: u16, now: u64) -> u8 {
    let passed = decay_clock(now).wrapping_sub((noted >> 8) as u8);
    (noted as u8).saturating_sub(passed)
}

impl Store {
    /// Lets an item go. Returns whether there was one that may.
    pub(in crate::store) fn evict_one(&mut self, now: u64) -> bool {
        /// The one that may not go is seldom the worst twice.
        const TRIES: usize = 4;
        for attempt in 0..TRIES {
            let Some(victim) = self.victim(now, attempt) else { return false };
            if self.pinned.is_none() || self.pinned != Some(self.hash_at(victim)) {
                self.stats.add_evicted(u64::from(!self.spaces.is_flushed(self.item(victim).space())));
                self.discard(victim);
                return true;
            }
        }
        false
    }

    fn victim(&mut self, now: u64, attempt: usize) -> Option<Location> {
        let (from, compared) = match self.evict {
            Evict::None => return None,
            Evict::Ttl if attempt == 0 => return self.wheel.soonest(),
            Evict::Ttl => (From::Volatile, 1),
            Evict::Random(from) => (from, 1),
            Evict::Lru(from) | Evict::Lfu(from) => (from, SAMPLE),
        };
        let mut sampled = [None; SAMPLE];
        for sample in &mut sampled[..compared] {
            let location = self.sample(from)?;
            // All of them are on their way before the first is looked at.
            prefetch_slice(self.heap.at(location));
            *sample = Some(location);
        }
        // The first of those that are worst.
        let badness = |location: &Location| self.evict.badness(self.item(*location).access(), now);
        sampled.into_iter().flatten().rev().max_by_key(badness)
    }

    /// An item that may go.
    fn sample(&mut self, from: From) -> Option<Location> {
        match from {
            From::All => self.index.sample(self.random.u64(..)),
            // Where few expire, the wheel knows some of them.
            From::Volatile => (0..TRIES)
                .filter_map(|_| self.index.sample(self.random.u64(..)))
                .find(|location| Item(self.heap.slot(*location)).expires())
                .or_else(|| self.wheel.sample(self.random.u64(..))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LFU: Evict = Evict::Lfu(From::All);
    const LRU: Evict = Evict::Lru(From::All);

    /// What LFU notes: minutes of the decay clock, and uses.
    fn noted(minutes: u16, uses: u16) -> u16 {
        minutes << 8 | uses
    }

    /// The time at which the decay clock is at `minutes`.
    fn at(minutes: u64) -> u64 {
        minutes << DECAY_BITS
    }

    #[test]
    fn policies_have_names() {
        for (name, evict) in NAMES {
            assert_eq!(Evict::named(name), Some(evict));
        }
        assert_eq!(Evict::named("allkeys-lru"), None);
    }

    #[test]
    fn lfu_counter_starts_at_five_and_grows_more_slowly_the_higher_it_is() {
        assert_eq!(LFU.note(None, at(3), 0), noted(3, 5));
        assert_eq!(LFU.note(Some(noted(3, 5)), at(3), 1), noted(3, 6));
        // With seven uses, one use in 21 counts.
        let after = [13, 19, 20, 21, 22, 42].map(|random| LFU.note(Some(noted(3, 7)), at(3), random));
        assert_eq!(after, [7, 7, 7, 8, 7, 8].map(|uses| noted(3, uses)));
        assert_eq!(LFU.note(Some(noted(3, 255)), at(3), 0), noted(3, 255));
    }

    #[test]
    fn lfu_counter_decays_by_one_in_a_minute() {
        assert_eq!(LFU.frequency(noted(3, 9), at(5)), 7);
        assert_eq!(LFU.frequency(noted(3, 9), at(5) - 1), 8);
        assert_eq!(LFU.frequency(noted(3, 9), at(100)), 0);
        assert_eq!(LFU.note(Some(noted(3, 7)), at(5), 0), noted(5, 6));
        assert_eq!(LRU.frequency(noted(3, 9), at(5)), 0);
    }

    #[test]
    fn idle_time_is_that_since_the_last_use() {
        assert_eq!(LRU.note(None, 7 << AGE_BITS, 0), 7);
        assert_eq!(LRU.note(Some(3), 7 << AGE_BITS, 0), 7);
        // 3 steps of 4.096 s each, and 2 of 65.536 s each.
        assert_eq!(LRU.idle(7, 10 << AGE_BITS), 12);
        assert_eq!(LFU.idle(noted(3, 9), at(5)), 131);
    }

    #[test]
    fn badness_is_age_or_rarity_of_use() {
        assert_eq!(LRU.badness(7, 10 << AGE_BITS), 3);
        // The clock has wrapped around between the use and now.
        assert_eq!(LRU.badness(u16::MAX, 1 << AGE_BITS), 2);
        assert_eq!(LFU.badness(noted(3, 9), at(5)), 255 - 7);
    }
}
