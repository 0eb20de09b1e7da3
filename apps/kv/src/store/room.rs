//! Making room, at once and in the background.

use super::heap::Heap;
use super::index::Location;
use super::item::{Form, Item};
use super::{Error, Key, Store, heap};
use linerate_bypass::arena::Pieces;

/// Places of the index that are looked at together for flushed items.
const SWEPT: usize = 256;
/// Bytes that are left when a page or a long value is taken, by which the index and the lists may grow next.
pub(super) const SLACK: usize = 16 << 10;
/// Pieces of work that are done by the way when memory is nearly full: so many when the reserve is, more the less there is of it.
const PIECES: usize = 3;
const MORE_PIECES: usize = 12;
/// The part of memory that is kept free, so that there is some when much is needed.
const RESERVED: usize = 64;
/// Items that are moved together to free a page.
const MOVED: usize = 16;

impl Store {
    /// Does a piece of what is done in the background, of about `budget` items: those go that have expired by `now` or were
    /// flushed, and some if memory is nearly full. Returns whether there is more to be done at once.
    pub fn tick(&mut self, now: u64, budget: usize) -> bool {
        let all_expired = self.expire(now, budget);
        if self.spaces.flushed() > 0 {
            self.sweep_some(budget);
        }
        self.bury(budget);
        let has_more = self.heap.pieces.collect(budget);
        // A piece may be the move of some items.
        let is_short = self.make_up(budget / 8, now);
        !all_expired || has_more || is_short || self.spaces.flushed() > 0 || !self.doomed.is_empty()
    }

    /// Makes room for `items`, each of so many bytes of a key or a field and of a value. If there is, none of them is refused when
    /// they are put in next; what is taken for granted is more than they need.
    pub fn make_room_for(&mut self, items: impl Iterator<Item = (usize, usize)>, now: u64) -> Result<(), Error> {
        /// Bytes of an item beside its key and value, at most.
        const BESIDE: usize = 48;
        /// Bytes of the list of a long value's pieces, as many as there are seldom more of.
        const LIST: usize = 2 << 10;
        /// Slots of different sizes that the parts of a hash pass through.
        const SIZES: usize = 32;
        let (mut count, mut short, mut long, mut longs) = (0, 0, 0, 0);
        for (name, value) in items {
            let is_long = value >= self.long;
            count += 1;
            short += Heap::slot_len((BESIDE + name + if is_long { 0 } else { value }).min(heap::LARGEST));
            // Of pieces, an eighth may be wasted.
            long += if is_long { value + value / 8 + 2 * Pieces::SMALLEST } else { 0 };
            longs += usize::from(is_long);
        }
        let pages = short.div_ceil(heap::PAGE - heap::LARGEST) + (count + 1).min(SIZES);
        let lists = self.longs.growth(longs) + longs * LIST + self.tables.growth(1);
        let needed = self.heap.growth(pages) + long + lists + self.index.growth(count) + SLACK;
        loop {
            let has_bytes = self.used() + needed <= self.memory;
            self.heap.pieces.set_limit(self.chunks());
            if has_bytes && self.heap.has_pages(pages) {
                return Ok(());
            }
            if has_bytes && (0..pages).any(|_| self.clear_page() && self.heap.has_pages(pages)) {
                return Ok(());
            }
            if !self.clear_some(now) {
                return Err(Error::Full);
            }
        }
    }

    /// Lets up to `most` items expire whose time has come by `now`, and fewer where one makes the index shrink. Returns whether
    /// all have.
    pub(super) fn expire(&mut self, now: u64, most: usize) -> bool {
        let shrunk = self.index.shrunk();
        for _ in 0..most {
            if self.index.shrunk() != shrunk {
                return false;
            }
            let Some(location) = self.wheel.next(now, &mut self.heap) else { return true };
            // Put in again, to be taken out by whoever lets it go.
            self.wheel.insert(location, &mut self.heap);
            let item = self.item(location);
            if item.expires_at().is_some_and(|at| at <= now) {
                self.stats.add_expired(u64::from(!self.spaces.is_flushed(item.space())));
                self.discard(location);
            }
        }
        false
    }

    /// Looks at about `most` places of the index for flushed items, which go.
    pub(super) fn sweep_some(&mut self, most: usize) {
        let mut found = std::mem::take(&mut self.found);
        let mut left = most;
        while left > 0 && self.spaces.flushed() > 0 {
            let places = left.min(SWEPT);
            left -= places;
            self.sweep = self.index.scan(self.sweep, places, |location| {
                if self.spaces.is_flushed(Item(self.heap.at(location)).space()) {
                    found.push(location);
                }
            });
            found.drain(..).for_each(|location| self.discard(location));
        }
        self.found = found;
    }

    /// Whether there is room for `count` items of at most `size` bytes, and for the entry of `key` in the index. There is no more
    /// of it before the next item.
    #[inline]
    pub(super) fn has_room(&mut self, size: usize, count: usize, key: Option<&Key>) -> bool {
        let used = self.used() + key.map_or(0, |key| self.entry_growth(key));
        if count == 1 && self.heap.has_slot(size) {
            return used <= self.memory;
        }
        if used + self.heap.growth(count) + SLACK > self.memory {
            return false;
        }
        self.heap.pieces.set_limit(self.chunks());
        if count == 1 { self.heap.add_page(size) } else { self.heap.has_pages(count) }
    }

    /// Bytes in chunks of the arena that it may have.
    pub(super) fn chunks(&self) -> usize {
        self.memory.saturating_sub(self.index.bytes()) + Pieces::LARGEST
    }

    /// The most bytes by which the index grows for an item of `key`.
    fn entry_growth(&self, key: &Key) -> usize {
        match self.index.growth_under(key.hash) {
            0 => 0,
            _ if self.find_any(key).is_some() => 0,
            growth => growth,
        }
    }

    /// Makes room for `count` items of at most `size` bytes, and for the entry of `key` in the index.
    #[inline]
    pub(super) fn make_room(&mut self, size: usize, count: usize, key: Option<&Key>, now: u64) -> Result<(), Error> {
        if count == 1 && self.heap.has_slot(size) && self.used() + self.reserve() <= self.memory {
            return Ok(());
        }
        self.clear_room(size, count, key, now)
    }

    /// Makes room for `bytes` that are not in items.
    pub(super) fn make_room_beside(&mut self, bytes: usize, now: u64) -> Result<(), Error> {
        while bytes > 0 && self.used() + bytes > self.memory {
            if !self.clear_some(now) {
                return Err(Error::Full);
            }
        }
        Ok(())
    }

    /// Bytes that are kept free when there is anything that may go, so that no call has to wait for a page's worth of items to
    /// go: each lets a few go instead.
    #[inline]
    fn reserve(&self) -> usize {
        (self.memory / RESERVED).max(SLACK)
    }

    /// Bytes of the [`reserve`](Self::reserve) that are not free.
    fn missing(&self) -> usize {
        (self.used() + self.reserve()).saturating_sub(self.memory)
    }

    /// Does up to `most` pieces of work towards the [`reserve`](Self::reserve). Returns whether there is more of it to be done.
    pub(super) fn make_up(&mut self, most: usize, now: u64) -> bool {
        for _ in 0..most {
            if self.missing() == 0 || !self.clear_some(now) {
                return false;
            }
        }
        self.missing() > 0
    }

    #[cold]
    fn clear_room(&mut self, size: usize, count: usize, key: Option<&Key>, now: u64) -> Result<(), Error> {
        let more = self.missing().min(self.reserve()) * (MORE_PIECES - PIECES) / self.reserve();
        self.make_up(PIECES + more, now);
        while !self.has_room(size, count, key) {
            // Where bytes are free, but no page is, what is in the way is moved.
            let is_scattered = self.used() + self.heap.growth(count) + SLACK <= self.memory;
            // A page that is free already must not be taken for progress when several are needed.
            if is_scattered && (0..count).any(|_| self.clear_page() && self.has_room(size, count, key)) {
                return Ok(());
            }
            if !self.clear_some(now) {
                return Err(Error::Full);
            }
        }
        Ok(())
    }

    /// Lets a little go of what may go, or moves something to free memory. Returns whether there was anything.
    pub(super) fn clear_some(&mut self, now: u64) -> bool {
        /// Items of what is nobody's that go before somebody's.
        const SOME: usize = 16;
        self.heap.pieces.collect(SOME)
            || self.bury(SOME)
            || self.drop_nobodys(SOME, now)
            || self.compact(MOVED)
            || self.evict_one(now)
    }

    /// Lets about `most` items go that have expired or were flushed. Returns whether any did.
    fn drop_nobodys(&mut self, most: usize, now: u64) -> bool {
        let before = self.index.len();
        self.expire(now, most);
        self.sweep_some(most);
        self.index.len() < before
    }

    /// Does `what` while what is under `key` may not be evicted.
    pub(super) fn with_pinned<T>(&mut self, key: &Key, what: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.pinned.replace(key.hash);
        let result = what(self);
        self.pinned = before;
        result
    }

    /// Moves up to `most` items of a page whose items have room in others. Returns whether there were any.
    fn compact(&mut self, most: usize) -> bool {
        let mut slots = std::mem::take(&mut self.found);
        self.heap.sparse_page(most, &mut slots);
        let moved = slots.iter().take_while(|old| self.move_item(**old)).count();
        if moved < slots.len() {
            self.heap.keep_page();
        }
        slots.clear();
        self.found = slots;
        moved > 0
    }

    /// Moves an item to another page. Returns whether there was room.
    fn move_item(&mut self, old: Location) -> bool {
        let item = self.item(old);
        let (form, size, expires) = (item.form(), item.size(), item.expires());
        if !self.heap.has_slot(size) {
            return false;
        }
        let Some(new) = self.heap.allocate(size) else { return false };
        self.heap.copy(old, new, size);
        if form == Form::Bucket {
            self.bucket_moved(old, new);
        } else {
            if expires {
                self.wheel.moved(new, &mut self.heap);
            }
            self.index.relocate(self.hash_at(new), old, new);
        }
        self.heap.release(old);
        true
    }

    /// Moves parts of long values so that a page is free. Returns whether it is.
    fn clear_page(&mut self) -> bool {
        let mut labels = std::mem::take(&mut self.labels);
        let most = self.memory.saturating_sub(self.used() - self.heap.pieces.used());
        if let Some(clearing) = self.heap.pieces.begin_clearing(&mut labels) {
            for label in labels.drain(..) {
                if let Some(long) = label.checked_sub(1).and_then(|number| self.longs.get_mut(number)) {
                    long.leave(&clearing, label, &mut self.heap.pieces, most);
                }
            }
            self.heap.pieces.collect(usize::MAX);
            self.heap.pieces.end_clearing();
        }
        self.labels = labels;
        self.heap.pieces.has_free(heap::PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Counts, Evict, Expiry, From};
    use super::*;

    fn store(memory: usize) -> Store {
        Store::new(&Config { key: *b"0123456789abcdef", ..Config::new(memory) }, 0)
    }

    #[test]
    fn reserve_is_a_64th_of_memory_but_no_less_than_the_slack() {
        let mut store = store(1 << 20);
        for (memory, reserve) in [(0, SLACK), (1 << 20, SLACK), (4 << 20, 64 << 10), (1 << 30, 16 << 20)] {
            store.set_memory(memory);
            assert_eq!(store.reserve(), reserve);
        }
        let used = store.used();
        for (memory, missing) in [(used, SLACK), (used + SLACK - 1, 1), (used + SLACK, 0), (used + 2 * SLACK, 0)] {
            store.set_memory(memory);
            assert_eq!(store.missing(), missing);
        }
    }

    #[test]
    fn room_is_all_memory_to_the_last_byte() {
        let mut store = store(4 << 20);
        store.set(&store.key(0, b"key"), b"value", Expiry::Never, 0).unwrap();
        // A slot of a page that is there.
        let used = store.used();
        for (memory, has_room) in [(used - 1, false), (used, true), (used + 1, true)] {
            store.set_memory(memory);
            assert_eq!(store.has_room(16, 1, None), has_room);
        }
        // Pages.
        for count in [1, 3] {
            let needed = store.used() + store.heap.growth(count) + SLACK;
            for (memory, has_room) in [(needed - 1, false), (needed, true)] {
                store.set_memory(memory);
                assert_eq!(store.has_room(heap::LARGEST, count, None), has_room, "{count} pages");
            }
        }
        // Bytes beside the heap, where nothing may go.
        let used = store.used();
        for (memory, result) in [(used + 99, Err(Error::Full)), (used + 100, Ok(())), (used + 101, Ok(()))] {
            store.set_memory(memory);
            assert_eq!(store.make_room_beside(100, 0), result);
        }
        store.set_memory(used - 1);
        assert_eq!(store.make_room_beside(0, 0), Ok(()));
    }

    #[test]
    fn room_is_needed_for_the_entry_of_a_new_key_only() {
        let mut store = store(4 << 20);
        let mut names = (0..u32::MAX).map(u32::to_le_bytes);
        let grows = loop {
            let name = names.next().unwrap();
            store.set(&store.key(0, &name), b"value", Expiry::Never, 0).unwrap();
            let there = store.key(0, &name);
            let growth = store.index.growth_under(there.hash);
            if growth > 0 {
                assert_eq!(store.entry_growth(&there), 0);
                break growth;
            }
        };
        let hash = store.key(0, &names.next().unwrap()).hash;
        let new = names
            .find(|name| store.index.growth_under(store.key(0, name).hash) == grows && store.key(0, name).hash != hash)
            .unwrap();
        let new = store.keys().key(0, &new);
        assert_eq!(store.entry_growth(&new), grows);
        for (missing, has_room) in [(0, true), (1, false)] {
            store.set_memory(store.used() + grows - missing);
            assert_eq!(store.has_room(17, 1, Some(&new)), has_room);
        }
    }

    #[test]
    fn make_up_works_until_the_reserve_is_free() {
        let mut store = Store::new(&Config { evict: Evict::Lru(From::All), ..Config::new(4 << 20) }, 0);
        for n in 0..20_000u32 {
            store.set(&store.key(0, &n.to_le_bytes()), &[0; 100], Expiry::Never, 0).unwrap();
        }
        assert_eq!(store.missing(), 0);
        assert!(!store.make_up(10, 0) && !store.make_up(0, 0));
        assert_eq!(store.counts().evicted, 0);
        store.set_memory(store.used() - (256 << 10));
        assert!(store.make_up(0, 0) && store.make_up(1, 0));
        while store.make_up(5, 0) {}
        assert_eq!(store.missing(), 0);
        assert!(store.missing() == 0 && store.used() + store.reserve() <= store.memory());
        // No more than a page is cleared in vain.
        assert!(store.used() + store.reserve() + (128 << 10) > store.memory());
        store.set_evict(Evict::None);
        store.set_memory(store.used() / 2);
        while store.make_up(100, 0) {}
        assert!(store.missing() > 0 && !store.make_up(100, 0), "nothing may go");
    }

    #[test]
    fn tick_has_more_to_do_until_nothing_is_left() {
        let mut store = store(8 << 20);
        assert!(!store.tick(0, 10));
        for n in 0..100u32 {
            store.set(&store.key(0, &n.to_le_bytes()), b"value", Expiry::At(100), 0).unwrap();
            store.hset(&store.key(1, b"hash"), &n.to_le_bytes(), &[0; 400], 0).unwrap();
        }
        assert!(!store.tick(99, 10) && store.len(0) == 100);
        // Ten at a time, and fewer where the index shrinks.
        let mut left = vec![100];
        while store.tick(1000, 10) {
            left.push(store.len(0));
        }
        assert!(left.windows(2).all(|of| of[0] - of[1] <= 10) && left.windows(2).any(|of| of[0] - of[1] == 10));
        assert_eq!((store.len(0), store.counts().expired), (0, 100));
        // The buckets of a large hash.
        assert!(store.remove(&store.key(1, b"hash"), 1000));
        assert!(!store.doomed.is_empty() && store.tick(1000, 10));
        while store.tick(1000, 10) {}
        assert_eq!((store.doomed.len(), store.beside, store.tables.len()), (0, 0, 0));
        // Pieces of long values.
        for n in 0..20u32 {
            store.set(&store.key(2, &n.to_le_bytes()), &[0; 5000], Expiry::Never, 1000).unwrap();
        }
        (0..20u32).for_each(|n| assert!(store.remove(&store.key(2, &n.to_le_bytes()), 1000)));
        assert!(store.tick(1000, 1));
        while store.tick(1000, 1) {}
        assert!(!store.heap.pieces.collect(1));
        // Flushed items.
        for n in 0..1000u32 {
            store.set(&store.key(0, &n.to_le_bytes()), b"value", Expiry::Never, 1000).unwrap();
        }
        store.flush(0);
        assert!(store.tick(1000, 10) && store.spaces.flushed() > 900);
        while store.tick(1000, 10) {}
        assert_eq!((store.spaces.flushed(), store.index.len()), (0, 0));
        assert_eq!(store.counts(), Counts { expired: 100, evicted: 0 });
        // The reserve.
        store.set_evict(Evict::Lru(From::All));
        for n in 0..10_000u32 {
            store.set(&store.key(0, &n.to_le_bytes()), &[0; 100], Expiry::Never, 1000).unwrap();
        }
        store.set_memory(store.used());
        assert!(store.tick(1000, 80));
        while store.tick(1000, 80) {}
        assert_eq!(store.missing(), 0);
    }

    #[test]
    fn items_for_which_room_was_made_are_not_refused() {
        let mut random = fastrand::Rng::with_seed(8);
        let mut refused = 0;
        for round in 0..60 {
            let mut store = store((1 << 20) + random.usize(..2 << 20));
            let (count, longest) = [(300, 30), (300, 600), (200, 4000), (20, 50_000)][round % 4];
            let lens: Vec<usize> = (0..random.usize(1..count)).map(|_| random.usize(..longest)).collect();
            let name = |n: usize| (n as u32).to_le_bytes().repeat([1, 40][round / 4 % 2]);
            let items = || lens.iter().enumerate().map(|(n, len)| (name(n).len(), *len));
            // Other items take all but a part of memory.
            let most = random.usize(..store.memory());
            for n in 0u32.. {
                let result = store.set(&store.key(0, &n.to_le_bytes()), &[1; 900], Expiry::Never, 0);
                if result.is_err() || store.used() > most {
                    break;
                }
            }
            if store.make_room_for(items(), 0).is_err() {
                refused += 1;
                continue;
            }
            for (n, len) in lens.iter().enumerate() {
                let result = store.set(&store.key(1, &name(n)), &vec![2; *len][..], Expiry::Never, 0);
                assert_eq!(result, Ok(()), "item {n} of {lens:?}");
            }
            assert!(store.used() <= store.memory());
        }
        assert!((5..50).contains(&refused), "{refused}");
    }

    #[test]
    fn room_for_more_than_memory_is_refused() {
        let mut store = store(48 << 20);
        // Items in slots, items with long names, long values, and many long values.
        for (count, name, value) in [(12_000, 4, 4000), (13_000, 3900, 4), (1, 4, 49 << 20), (700, 4, 70_000)] {
            let fewer = count * 2 / 3;
            assert_eq!(
                store.make_room_for((0..count).map(|_| (name, value)), 0),
                Err(Error::Full),
                "{count} of {value}"
            );
            assert_eq!(store.make_room_for((0..fewer).map(|_| (name, value)), 0), Ok(()), "{fewer} of {value}");
        }
    }

    #[test]
    fn expired_and_flushed_items_go_before_any_is_refused_or_evicted() {
        for evict in [Evict::None, Evict::Lru(From::All)] {
            for is_flushed in [false, true] {
                let mut store = Store::new(&Config { evict, ..Config::new(1 << 20) }, 0);
                let mut count = 0u32;
                while store.counts().evicted == 0
                    && store.set(&store.key(0, &count.to_le_bytes()), &[0; 100], Expiry::At(10), 0).is_ok()
                {
                    count += 1;
                }
                let evicted = store.counts().evicted;
                if is_flushed {
                    store.flush(0);
                }
                let now = if is_flushed { 0 } else { 100 };
                for n in 0..count / 2 {
                    assert_eq!(store.set(&store.key(1, &n.to_le_bytes()), &[0; 100], Expiry::Never, now), Ok(()));
                }
                assert_eq!((store.len(1), store.counts().evicted), (count as usize / 2, evicted));
            }
        }
    }

    #[test]
    fn items_of_a_bucket_are_found_wherever_they_were_moved() {
        let mut store = store(16 << 20);
        let key = store.keys().key(0, b"hash");
        let names: Vec<[u8; 4]> = (0..600u32).map(u32::to_le_bytes).collect();
        for name in &names {
            store.hset(&key, name, &name.repeat(800)[..], 0).unwrap();
        }
        let mut moved = [0; 3];
        for bucket in 0..store.tables.get(0).unwrap().buckets() {
            for (depth, moved) in moved.iter_mut().enumerate() {
                // Each item begins with the location of the next one.
                let mut at = store.tables.get(0).unwrap().head(bucket);
                for _ in 0..depth {
                    let next = at.and_then(|at| store.item(at).value().first_chunk().copied());
                    at = next.and_then(|next| std::num::NonZeroU32::new(u32::from_le_bytes(next))).map(Location);
                }
                if let Some(at) = at {
                    *moved += usize::from(store.move_item(at));
                }
            }
        }
        assert!(moved.iter().all(|count| *count > 0), "{moved:?}");
        for name in &names {
            assert!(store.hget(&key, name, 0).unwrap().unwrap() == name.repeat(800)[..]);
        }
    }
}
