//! Eviction policies.

use crate::store::Store;
use crate::store::memory::Location;
use crate::store::memory::item::Item;
use linerate_bypass::prefetch_slice;

/// Number of candidates compared for one eviction.
const SAMPLE: usize = 16;
/// Number of samples drawn to find an item with an expiry time.
const TRIES: usize = 8;
/// log2 of the milliseconds in one step of the LRU clock: 4 s, so that 16 bits wrap after three days.
const AGE_BITS: u32 = 12;
/// log2 of the milliseconds after which a use counter loses one: about a minute.
const DECAY_BITS: u32 = 16;
/// Use counter of a new item. It is above zero, so that a new item is not evicted first.
const NEW: u8 = 5;
/// Slowness of counter growth: a counter of 255 stands for about a million uses.
const SLOWNESS: u64 = 10;

/// Eviction policy at the memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// Evict nothing: refuse writes.
    None,
    /// Evict any candidate.
    Random(Evictable),
    /// Evict the least recently used candidate.
    Lru(Evictable),
    /// Evict the least frequently used candidate.
    Lfu(Evictable),
    /// Evict the item that expires soonest.
    Ttl,
}

/// Items that may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evictable {
    AllKeys,
    /// Items with an expiry time.
    Volatile,
}

const NAMES: [(&str, EvictionPolicy); 8] = [
    ("none", EvictionPolicy::None),
    ("random", EvictionPolicy::Random(Evictable::AllKeys)),
    ("lru", EvictionPolicy::Lru(Evictable::AllKeys)),
    ("lfu", EvictionPolicy::Lfu(Evictable::AllKeys)),
    ("ttl", EvictionPolicy::Ttl),
    ("volatile-random", EvictionPolicy::Random(Evictable::Volatile)),
    ("volatile-lru", EvictionPolicy::Lru(Evictable::Volatile)),
    ("volatile-lfu", EvictionPolicy::Lfu(Evictable::Volatile)),
];

impl EvictionPolicy {
    /// Returns the policy with the name `none`, `random`, `lru`, `lfu`, `ttl`, `volatile-random`, `volatile-lru` or
    /// `volatile-lfu`.
    pub fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(its, _)| *its == name).map(|(_, evict)| *evict)
    }

    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, evict)| *evict == self).expect("every policy has a name").0
    }

    /// Returns the access field of an item after a use at `now`. `before` is the previous field, or `None` for a new
    /// item.
    #[inline]
    pub(in crate::store) fn updated_access(self, before: Option<u16>, now: u64, random: u64) -> u16 {
        match (self, before) {
            (EvictionPolicy::Lfu(_), None) => u16::from(decay_clock(now)) << 8 | u16::from(NEW),
            (EvictionPolicy::Lfu(_), Some(before)) => {
                let uses = uses(before, now);
                // The higher the counter, the rarer an increment (Morris, "Counting large numbers of events in small
                // registers", 1978).
                let grows = random.is_multiple_of(u64::from(uses.saturating_sub(NEW)) * SLOWNESS + 1);
                u16::from(decay_clock(now)) << 8 | u16::from(uses.saturating_add(grows.into()))
            }
            _ => (now >> AGE_BITS) as u16,
        }
    }

    /// Records a use of `item`, whose access field is `before`.
    #[inline(always)]
    pub(in crate::store) fn record_use(
        self,
        mut item: Item<&mut [u8]>,
        before: u16,
        now: u64,
        random: &mut fastrand::Rng,
    ) {
        let random = if matches!(self, EvictionPolicy::Lfu(_)) { random.u64(..) } else { 0 };
        let access = self.updated_access(Some(before), now, random);
        // An unchanged cache line need not be written back.
        if access != before {
            item.set_access(access);
        }
    }

    /// Returns the seconds since the last recorded use.
    pub(in crate::store) fn idle(self, noted: u16, now: u64) -> u64 {
        match self {
            EvictionPolicy::Lfu(_) => u64::from(decay_clock(now).wrapping_sub((noted >> 8) as u8)) << DECAY_BITS,
            _ => u64::from(((now >> AGE_BITS) as u16).wrapping_sub(noted)) << AGE_BITS,
        }
        .div_euclid(1000)
    }

    /// Returns the use counter under LFU, otherwise 0.
    pub(in crate::store) fn frequency(self, noted: u16, now: u64) -> u8 {
        if matches!(self, EvictionPolicy::Lfu(_)) { uses(noted, now) } else { 0 }
    }

    /// Returns the eviction score: the item with the highest score is evicted first.
    fn eviction_score(self, noted: u16, now: u64) -> u16 {
        match self {
            EvictionPolicy::Lfu(_) => u16::from(u8::MAX - uses(noted, now)),
            _ => ((now >> AGE_BITS) as u16).wrapping_sub(noted),
        }
    }
}

fn decay_clock(now: u64) -> u8 {
    (now >> DECAY_BITS) as u8
}

/// Returns the use counter at `now`, after decay.
fn uses(noted: u16, now: u64) -> u8 {
    let passed = decay_clock(now).wrapping_sub((noted >> 8) as u8);
    (noted as u8).saturating_sub(passed)
}

impl Store {
    /// Evicts one item. Returns false if no item may be evicted.
    pub(in crate::store) fn evict_one(&mut self, now: u64) -> bool {
        /// The pinned item is rarely the best victim twice in a row.
        const TRIES: usize = 4;
        for attempt in 0..TRIES {
            let Some(victim) = self.pick_victim(now, attempt) else { return false };
            if self.pinned.is_none() || self.pinned != Some(self.hash_at(victim)) {
                self.stats.add_evicted(u64::from(!self.keyspaces.is_flushed(self.item(victim).space())));
                self.reclaim_item(victim);
                return true;
            }
        }
        false
    }

    fn pick_victim(&mut self, now: u64, attempt: usize) -> Option<Location> {
        let (from, compared) = match self.evict {
            EvictionPolicy::None => return None,
            EvictionPolicy::Ttl if attempt == 0 => return self.wheel.soonest(),
            EvictionPolicy::Ttl => (Evictable::Volatile, 1),
            EvictionPolicy::Random(from) => (from, 1),
            EvictionPolicy::Lru(from) | EvictionPolicy::Lfu(from) => (from, SAMPLE),
        };
        let mut sampled = [None; SAMPLE];
        for sample in &mut sampled[..compared] {
            let location = self.sample(from)?;
            // Prefetch all candidates before comparing the first.
            prefetch_slice(self.heap.at(location));
            *sample = Some(location);
        }
        // Of equal scores, `max_by_key` returns the last, so reversing picks the first.
        let eviction_score = |location: &Location| self.evict.eviction_score(self.item(*location).access(), now);
        sampled.into_iter().flatten().rev().max_by_key(eviction_score)
    }

    /// Returns a random item that may be evicted.
    fn sample(&mut self, from: Evictable) -> Option<Location> {
        match from {
            Evictable::AllKeys => self.index.sample(self.rng.u64(..)),
            // If few items have an expiry time, take one from the wheel.
            Evictable::Volatile => (0..TRIES)
                .filter_map(|_| self.index.sample(self.rng.u64(..)))
                .find(|location| Item(self.heap.slot(*location)).expires())
                .or_else(|| self.wheel.sample(self.rng.u64(..))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LFU: EvictionPolicy = EvictionPolicy::Lfu(Evictable::AllKeys);
    const LRU: EvictionPolicy = EvictionPolicy::Lru(Evictable::AllKeys);

    /// LFU access field: minutes of the decay clock, and uses.
    fn noted(minutes: u16, uses: u16) -> u16 {
        minutes << 8 | uses
    }

    /// Time at which the decay clock is at `minutes`.
    fn at(minutes: u64) -> u64 {
        minutes << DECAY_BITS
    }

    #[test]
    fn policies_are_found_by_name() {
        for (name, evict) in NAMES {
            assert_eq!((EvictionPolicy::from_name(name), evict.name()), (Some(evict), name));
        }
        assert_eq!(EvictionPolicy::from_name("allkeys-lru"), None);
    }

    #[test]
    fn lfu_counter_starts_at_five_and_grows_more_slowly_the_higher_it_is() {
        assert_eq!(LFU.updated_access(None, at(3), 0), noted(3, 5));
        assert_eq!(LFU.updated_access(Some(noted(3, 5)), at(3), 1), noted(3, 6));
        // At seven uses, one use in 21 counts.
        let after = [13, 19, 20, 21, 22, 42].map(|random| LFU.updated_access(Some(noted(3, 7)), at(3), random));
        assert_eq!(after, [7, 7, 7, 8, 7, 8].map(|uses| noted(3, uses)));
        assert_eq!(LFU.updated_access(Some(noted(3, 255)), at(3), 0), noted(3, 255));
    }

    #[test]
    fn lfu_counter_decays_by_one_in_a_minute() {
        assert_eq!(LFU.frequency(noted(3, 9), at(5)), 7);
        assert_eq!(LFU.frequency(noted(3, 9), at(5) - 1), 8);
        assert_eq!(LFU.frequency(noted(3, 9), at(100)), 0);
        assert_eq!(LFU.updated_access(Some(noted(3, 7)), at(5), 0), noted(5, 6));
        assert_eq!(LRU.frequency(noted(3, 9), at(5)), 0);
    }

    #[test]
    fn idle_time_counts_from_last_use() {
        assert_eq!(LRU.updated_access(None, 7 << AGE_BITS, 0), 7);
        assert_eq!(LRU.updated_access(Some(3), 7 << AGE_BITS, 0), 7);
        // 3 steps of 4.096 s each, and 2 of 65.536 s each.
        assert_eq!(LRU.idle(7, 10 << AGE_BITS), 12);
        assert_eq!(LFU.idle(noted(3, 9), at(5)), 131);
    }

    #[test]
    fn eviction_score_is_age_or_rarity_of_use() {
        assert_eq!(LRU.eviction_score(7, 10 << AGE_BITS), 3);
        // The clock wrapped around since the use.
        assert_eq!(LRU.eviction_score(u16::MAX, 1 << AGE_BITS), 2);
        assert_eq!(LFU.eviction_score(noted(3, 9), at(5)), 255 - 7);
    }
}
