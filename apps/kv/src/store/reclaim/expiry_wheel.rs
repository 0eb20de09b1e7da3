//! Timing wheel of item expiry.

use crate::store::memory::Location;
use crate::store::memory::heap::Heap;
use crate::store::memory::item::Item;

/// Slots per level, and the bits of a tick that select one.
const SLOTS: usize = 64;
const BITS: u32 = 6;
/// Number of levels. A slot of the last level covers 2³⁰ ticks, half a year. Its last slot takes all later items.
const LEVELS: usize = 6;
/// log2 of the milliseconds per tick.
const TICK_BITS: u32 = 4;

/// Hierarchical timing wheel (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", 1987). Its lists link the
/// items themselves: the wheel of TCP timers takes 12 bytes per token, which items do not have.
///
/// An item is in a slot that comes up no later than the item expires. If its expiry time moves to later, it stays
/// there, and is reinserted when the slot comes up.
pub(crate) struct Wheel {
    /// Ticks before this one have been processed.
    tick: u64,
    heads: [Option<Location>; LEVELS * SLOTS],
    /// Bitmap of the non-empty slots of each level.
    taken: [u64; LEVELS],
}

impl Wheel {
    pub fn new(now: u64) -> Self {
        Wheel { tick: now >> TICK_BITS, heads: [None; LEVELS * SLOTS], taken: [0; LEVELS] }
    }

    pub fn insert(&mut self, location: Location, heap: &mut Heap) {
        let mut item = Item(heap.slot_mut(location));
        let at = item.expires_at().unwrap_or(0);
        // First tick that starts after the expiry, so that the item comes up once.
        let due = at.div_ceil(1 << TICK_BITS).max(self.tick);
        let slot = self.slot_for(due);
        let head = self.heads[slot];
        item.set_wheel_slot(slot as u16);
        item.set_previous(None);
        item.set_next(head);
        if let Some(head) = head {
            Item(heap.slot_mut(head)).set_previous(Some(location));
        }
        self.heads[slot] = Some(location);
        self.taken[slot / SLOTS] |= 1 << (slot % SLOTS);
    }

    pub fn remove(&mut self, location: Location, heap: &mut Heap) {
        let item = Item(heap.slot(location));
        let (slot, [previous, next]) = (item.wheel_slot() as usize, item.neighbours());
        match previous {
            Some(previous) => Item(heap.slot_mut(previous)).set_next(next),
            None => self.set_head(slot, next),
        }
        if let Some(next) = next {
            Item(heap.slot_mut(next)).set_previous(previous);
        }
    }

    /// Returns true if the item at `location` can keep its slot with the new expiry time `at`. Otherwise the caller
    /// removes and reinserts it.
    pub fn may_stay(&self, location: Location, at: u64, heap: &Heap) -> bool {
        Item(heap.slot(location)).expires_at().is_some_and(|before| at >= before)
    }

    /// Updates the links to an item that moved to `location`.
    pub fn moved(&mut self, location: Location, heap: &mut Heap) {
        let item = Item(heap.slot(location));
        let (slot, [previous, next]) = (item.wheel_slot() as usize, item.neighbours());
        match previous {
            Some(previous) => Item(heap.slot_mut(previous)).set_next(Some(location)),
            None => self.heads[slot] = Some(location),
        }
        if let Some(next) = next {
            Item(heap.slot_mut(next)).set_previous(Some(location));
        }
    }

    /// Removes and returns the next item that comes up by `now` milliseconds. It may expire later.
    pub fn next(&mut self, now: u64, heap: &mut Heap) -> Option<Location> {
        let end = now >> TICK_BITS;
        loop {
            // A slot of a higher level is distributed when its first tick starts, which is when the levels below wrap.
            for level in (0..LEVELS).rev() {
                let shift = BITS * level as u32;
                if self.tick & ((1 << shift) - 1) == 0
                    && let slot = level * SLOTS + (self.tick >> shift) as usize % SLOTS
                    && let Some(location) = self.heads[slot]
                {
                    self.remove(location, heap);
                    return Some(location);
                }
            }
            if self.tick >= end {
                return None;
            }
            self.tick = self.next_tick().min(end);
        }
    }

    /// Returns an item of the slot that comes up first.
    pub fn soonest(&self) -> Option<Location> {
        (0..LEVELS).find_map(|level| {
            let now = (self.tick >> (BITS * level as u32)) as u32 % SLOTS as u32;
            let ahead = self.taken[level].rotate_right(now);
            if ahead == 0 {
                return None;
            }
            self.heads[level * SLOTS + (now + ahead.trailing_zeros()) as usize % SLOTS]
        })
    }

    /// Returns the first item of the first non-empty slot from the one that `random` selects.
    pub fn sample(&self, random: u64) -> Option<Location> {
        let start = random as usize % self.heads.len();
        self.heads[start..].iter().chain(&self.heads[..start]).find_map(|head| *head)
    }

    /// Returns the slot for an item due at tick `due`, which is not in the past.
    fn slot_for(&self, due: u64) -> usize {
        // The highest digit that differs selects the level: a slot of that level is not reached before.
        let differ = due ^ self.tick;
        let level = (u64::BITS - 1 - (differ | 1).leading_zeros()) / BITS;
        let level = (level as usize).min(LEVELS - 1);
        let shift = BITS * level as u32;
        // Ticks beyond the last level wait in its slot before the current one, which comes up last.
        let far = due >> shift >= (self.tick >> shift) + SLOTS as u64;
        let digit = if far { (self.tick >> shift) + SLOTS as u64 - 1 } else { due >> shift };
        level * SLOTS + digit as usize % SLOTS
    }

    /// Returns the next tick at which an item may come up.
    fn next_tick(&self) -> u64 {
        let next = |level: usize| {
            let shift = BITS * level as u32;
            let now = self.tick >> shift;
            // Slots after the current one, in order.
            let ahead = self.taken[level].rotate_right((now % SLOTS as u64) as u32) & !1;
            // The current slot comes up again after all others.
            let digits = if ahead != 0 { u64::from(ahead.trailing_zeros()) } else { SLOTS as u64 };
            (self.taken[level] != 0).then(|| (now + digits) << shift)
        };
        (0..LEVELS).filter_map(next).min().unwrap_or(u64::MAX)
    }

    fn set_head(&mut self, slot: usize, head: Option<Location>) {
        self.heads[slot] = head;
        if head.is_none() {
            self.taken[slot / SLOTS] &= !(1 << (slot % SLOTS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::item::{Form, NewItem};
    use linerate_bypass::arena::{Arena, ArenaConfig};
    use proptest::prelude::*;

    struct Bench {
        heap: Heap,
        wheel: Wheel,
        now: u64,
    }

    impl Bench {
        fn new(now: u64) -> Self {
            let arena = Arena::new(ArenaConfig { bytes: 2 << 20, hugepages: false }).unwrap();
            Bench { heap: Heap::new(arena), wheel: Wheel::new(now), now }
        }

        fn add(&mut self, at: u64) -> Location {
            let draft = NewItem { form: Form::Short, space: 0, key: b"k", expires: true, meta: None, len: 0 };
            let location = self.heap.allocate(draft.size()).unwrap();
            draft.write(self.heap.slot_mut(location));
            Item(self.heap.slot_mut(location)).set_expires_at(at);
            self.wheel.insert(location, &mut self.heap);
            location
        }

        /// Advances to `now`. Returns the expiry times of the items removed.
        fn advance(&mut self, now: u64) -> Vec<u64> {
            self.now = now;
            let mut expired = Vec::new();
            while let Some(location) = self.wheel.next(now, &mut self.heap) {
                let at = Item(self.heap.slot(location)).expires_at().unwrap();
                if at <= now {
                    expired.push(at);
                    self.heap.release(location);
                } else {
                    self.wheel.insert(location, &mut self.heap);
                }
            }
            expired
        }
    }

    const YEAR: u64 = 365 * 86_400_000;

    fn delays() -> impl Strategy<Value = u64> {
        prop_oneof![0..100u64, 0..5000u64, 0..10_000_000u64, 0..3 * YEAR, YEAR..200 * YEAR]
    }

    proptest! {
        /// Each item comes up within a tick after it expires, and not before.
        #[test]
        fn items_come_up_on_expiry(
            start in prop_oneof![Just(0), 0..3 * YEAR],
            steps in prop::collection::vec((prop::collection::vec(delays(), 0..8), delays()), 1..30),
        ) {
            let mut bench = Bench::new(start);
            let mut pending: Vec<u64> = Vec::new();
            for (delays, wait) in steps {
                for delay in delays {
                    pending.push(bench.now + delay);
                    bench.add(bench.now + delay);
                }
                let expired = bench.advance(bench.now + wait);
                for at in expired {
                    let found = pending.iter().position(|it| *it == at);
                    prop_assert!(found.is_some());
                    pending.swap_remove(found.unwrap());
                }
                prop_assert!(pending.iter().all(|at| at + (1 << TICK_BITS) > bench.now), "{:?} at {}", pending, bench.now);
            }
        }

        /// Removed items do not come up. Their neighbours do.
        #[test]
        fn removed_items_do_not_come_up(delays in prop::collection::vec((0..2000u64, any::<bool>()), 1..60)) {
            let mut bench = Bench::new(1000);
            let items: Vec<_> = delays.iter().map(|(delay, keeps_value)| (bench.add(1000 + delay), *delay, *keeps_value)).collect();
            let mut stay = Vec::new();
            for (location, delay, keeps_value) in items {
                if keeps_value {
                    stay.push(1000 + delay);
                } else {
                    bench.wheel.remove(location, &mut bench.heap);
                    bench.heap.release(location);
                }
            }
            let mut expired = bench.advance(4000);
            expired.sort();
            stay.sort();
            prop_assert_eq!(expired, stay);
        }
    }

    #[test]
    fn soonest_is_in_first_nonempty_slot() {
        let mut bench = Bench::new(500);
        for delay in [90_000, 4_000_000, 700, 3000, 100 * YEAR] {
            bench.add(500 + delay);
        }
        for expected in [700, 3000, 90_000, 4_000_000, 100 * YEAR] {
            let soonest = bench.wheel.soonest().unwrap();
            assert_eq!(Item(bench.heap.slot(soonest)).expires_at(), Some(500 + expected));
            bench.wheel.remove(soonest, &mut bench.heap);
        }
        assert_eq!(bench.wheel.soonest(), None);
    }

    /// The last slot of the last level is reached after 64 of its slots of 2³⁰ ticks each.
    #[test]
    fn item_beyond_last_level_comes_up_on_expiry() {
        let round = 64 << (30 + TICK_BITS);
        for start in [0, 5 << (30 + TICK_BITS)] {
            for at in [round - 1, round, round + 1, 3 * round] {
                let mut bench = Bench::new(start);
                bench.add(start + at);
                assert_eq!(bench.advance(start), []);
                assert_eq!(bench.advance(start + at - 1), []);
                assert_eq!(bench.advance(start + at + (1 << TICK_BITS)), [start + at]);
            }
        }
    }

    #[test]
    fn item_keeps_slot_if_it_expires_no_earlier() {
        let mut bench = Bench::new(0);
        let location = bench.add(100);
        let may_stay = [99, 100, 101].map(|at| bench.wheel.may_stay(location, at, &bench.heap));
        assert_eq!(may_stay, [false, true, true]);
    }

    #[test]
    fn sample_finds_only_item_from_every_slot() {
        let mut bench = Bench::new(0);
        assert_eq!(bench.wheel.sample(7), None);
        let location = bench.add(1000);
        for random in 0..2 * (LEVELS * SLOTS) as u64 {
            assert_eq!(bench.wheel.sample(random), Some(location));
        }
    }

    #[test]
    fn moved_item_stays_linked() {
        for which in 0..3 {
            let mut bench = Bench::new(0);
            let mut items: Vec<Location> = (0..3).map(|_| bench.add(1000)).collect();
            let new = bench.heap.allocate(bench.heap.slot_at(items[which])).unwrap();
            bench.heap.copy(items[which], new, bench.heap.slot_at(new));
            bench.wheel.moved(new, &mut bench.heap);
            bench.heap.slot_mut(items[which]).fill(0xff);
            items[which] = new;
            items.sort();
            let mut came = Vec::new();
            while let Some(location) = bench.wheel.next(2000, &mut bench.heap) {
                came.push(location);
            }
            came.sort();
            assert_eq!(came, items);
        }
    }

    #[test]
    fn soonest_is_found_at_any_time() {
        let mut random = fastrand::Rng::with_seed(9);
        for _ in 0..1000 {
            let mut bench = Bench::new(random.u64(..1 << 40));
            let start = bench.now;
            bench.add(start + 3 * 3_600_000);
            let first = bench.add(start + 5 * 60_000);
            bench.add(start + 100 * 86_400_000);
            let soonest = bench.wheel.soonest().unwrap();
            let [soonest, first] = [soonest, first].map(|location| Item(bench.heap.slot(location)).wheel_slot());
            assert_eq!(soonest, first);
        }
    }

    #[test]
    fn soonest_is_found_across_end_of_last_level() {
        let slot = 1 << (30 + TICK_BITS);
        let mut bench = Bench::new(60 * slot);
        for slots in [10, 2, 20] {
            bench.add((60 + slots) * slot);
        }
        let soonest = bench.wheel.soonest().unwrap();
        assert_eq!(Item(bench.heap.slot(soonest)).expires_at(), Some(62 * slot));
    }
}
