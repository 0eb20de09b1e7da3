//! When items expire.

use crate::store::index::Location;
use crate::store::memory::heap::Heap;
use crate::store::memory::item::Item;

/// Slots of a level, and how many bits of a tick choose one.
const SLOTS: usize = 64;
const BITS: u32 = 6;
/// The last level's slots are 2³⁰ ticks each, half a year: the last of them takes whatever is later.
const LEVELS: usize = 6;
/// Milliseconds of a tick, as a power of two.
const TICK_BITS: u32 = 4;

/// A hierarchical timing wheel (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", 1987) whose lists go through the
/// items themselves.
///
/// An item lies where it will come up no later than it expires. When it is to expire later than before, it stays where it is,
/// and is put where it belongs when it comes up.
pub(crate) struct Wheel {
    /// Everything before it has come up.
    tick: u64,
    heads: [Option<Location>; LEVELS * SLOTS],
    /// Which slots of a level have items.
    taken: [u64; LEVELS],
}

impl Wheel {
    /// A wheel that begins at `now`, in milliseconds.
    pub fn new(now: u64) -> Self {
        Wheel { tick: now >> TICK_BITS, heads: [None; LEVELS * SLOTS], taken: [0; LEVELS] }
    }

    /// Puts the item at `location` in, which expires at the time that it says.
    pub fn insert(&mut self, location: Location, heap: &mut Heap) {
        let mut item = Item(heap.slot_mut(location));
        let at = item.expires_at().unwrap_or(0);
        // The first tick that begins when it has expired, so that it comes up once.
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

    /// Takes the item at `location` out.
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

    /// The item at `location`, which expires at `at` now, stays in its place if that is early enough. Otherwise it has to be
    /// taken out and put in again.
    pub fn may_stay(&self, location: Location, at: u64, heap: &Heap) -> bool {
        Item(heap.slot(location)).expires_at().is_some_and(|before| at >= before)
    }

    /// The item that is at `location` now lay elsewhere, and its neighbours do not know.
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

    /// The next item that comes up by `now` milliseconds, taken out; whether it has expired, it says itself.
    pub fn next(&mut self, now: u64, heap: &mut Heap) -> Option<Location> {
        let end = now >> TICK_BITS;
        loop {
            // Slots of higher levels are spread out when their time begins, which is when those below them wrap.
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

    /// One of those that expire soonest.
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

    /// One of those in the first slot with items from the one that `random` leads to.
    pub fn sample(&self, random: u64) -> Option<Location> {
        let start = random as usize % self.heads.len();
        self.heads[start..].iter().chain(&self.heads[..start]).find_map(|head| *head)
    }

    /// The slot for what is due at tick `due`, now or later.
    fn slot_for(&self, due: u64) -> usize {
        // The highest digit in which it differs says which level: below that, the level's slot is not reached before.
        let differ = due ^ self.tick;
        let level = (u64::BITS - 1 - (differ | 1).leading_zeros()) / BITS;
        let level = (level as usize).min(LEVELS - 1);
        let shift = BITS * level as u32;
        // What is beyond the last level waits in its slot before the present one, the last to come.
        let far = due >> shift >= (self.tick >> shift) + SLOTS as u64;
        let digit = if far { (self.tick >> shift) + SLOTS as u64 - 1 } else { due >> shift };
        level * SLOTS + digit as usize % SLOTS
    }

    /// The next tick at which anything may come up.
    fn next_tick(&self) -> u64 {
        let next = |level: usize| {
            let shift = BITS * level as u32;
            let now = self.tick >> shift;
            // Slots behind the present one, in the order in which they come.
            let ahead = self.taken[level].rotate_right((now % SLOTS as u64) as u32) & !1;
            // The present one comes again after all others.
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
    use crate::store::memory::item::{Draft, Form};
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
            let draft = Draft { form: Form::Short, space: 0, key: b"k", expires: true, tag: None, len: 0 };
            let location = self.heap.allocate(draft.size()).unwrap();
            draft.write(self.heap.slot_mut(location));
            Item(self.heap.slot_mut(location)).set_expires_at(at);
            self.wheel.insert(location, &mut self.heap);
            location
        }

        /// What has expired by `now`.
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
        fn items_come_up_when_they_expire(
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
                    let place = pending.iter().position(|it| *it == at);
                    prop_assert!(place.is_some());
                    pending.swap_remove(place.unwrap());
                }
                prop_assert!(pending.iter().all(|at| at + (1 << TICK_BITS) > bench.now), "{:?} at {}", pending, bench.now);
            }
        }

        /// What is taken out does not come up, and what lay before and behind it does.
        #[test]
        fn items_are_taken_out(delays in prop::collection::vec((0..2000u64, any::<bool>()), 1..60)) {
            let mut bench = Bench::new(1000);
            let items: Vec<_> = delays.iter().map(|(delay, stays)| (bench.add(1000 + delay), *delay, *stays)).collect();
            let mut stay = Vec::new();
            for (location, delay, stays) in items {
                if stays {
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
    fn the_soonest_is_one_of_those_that_expire_first() {
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

    /// The last slot of the last level is reached after 64 of its slots, which are 2³⁰ ticks each.
    #[test]
    fn item_that_expires_beyond_the_last_level_waits_for_its_time() {
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
    fn item_may_stay_if_it_expires_no_earlier_than_before() {
        let mut bench = Bench::new(0);
        let location = bench.add(100);
        let may_stay = [99, 100, 101].map(|at| bench.wheel.may_stay(location, at, &bench.heap));
        assert_eq!(may_stay, [false, true, true]);
    }

    #[test]
    fn sample_finds_the_only_item_from_every_slot() {
        let mut bench = Bench::new(0);
        assert_eq!(bench.wheel.sample(7), None);
        let location = bench.add(1000);
        for random in 0..2 * (LEVELS * SLOTS) as u64 {
            assert_eq!(bench.wheel.sample(random), Some(location));
        }
    }

    #[test]
    fn moved_item_keeps_its_place_among_its_neighbours() {
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
    fn soonest_is_found_whatever_the_time() {
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
    fn soonest_is_found_across_the_end_of_the_last_level() {
        let slot = 1 << (30 + TICK_BITS);
        let mut bench = Bench::new(60 * slot);
        for slots in [10, 2, 20] {
            bench.add((60 + slots) * slot);
        }
        let soonest = bench.wheel.soonest().unwrap();
        assert_eq!(Item(bench.heap.slot(soonest)).expires_at(), Some(62 * slot));
    }
}
