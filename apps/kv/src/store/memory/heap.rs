//! Heap of items: pages of the arena, cut into slots.

use crate::store::memory::Location;
use linerate_bypass::arena::{Arena, BuddyArena};
use std::num::NonZeroU32;

/// Bytes left unused by a new page or long value, for the next growth of the index and of lists.
pub(in crate::store) const SLACK: usize = 16 << 10;

pub(crate) const PAGE: usize = BuddyArena::PAGE;
/// Granularity of locations in bytes.
const UNIT: usize = 8;
/// Bytes of the smallest and of the largest slot.
const SMALLEST: usize = 16;
pub(crate) const LARGEST: usize = 8 << 10;
/// Slot sizes up to `FINE` bytes are one unit apart. Above, each doubling has `STEPS` sizes.
const FINE: usize = 128;
const STEPS: usize = 8;
const CLASSES: usize = (FINE - SMALLEST) / UNIT + 1 + STEPS * (LARGEST / FINE).ilog2() as usize;
/// Number of pages compared to find the one with the fewest items.
const LOOKED_AT: usize = 16;
/// Maximum memory of a shard in bytes: that of 32-bit locations.
pub const MAX_SHARD: u64 = (UNIT as u64) << u32::BITS;
const MAX_PAGES: u32 = (MAX_SHARD / PAGE as u64) as u32;
/// End of a page's list of free slots.
const NONE: u16 = u16::MAX;

/// Heap of items in pages of an arena, each cut into slots of one size.
///
/// Adjacent slot sizes differ by at most an eighth. A page without items returns to the arena and can get another slot
/// size. When many slots of one size are free across many pages, the owner of the items moves those of one page to the
/// others ([`sparse_page`](Self::sparse_page)). In this way memory moves between sizes.
///
/// The third byte of a slot marks it as taken. It is 0 in free slots, and items never store 0 there.
pub(crate) struct Heap {
    /// Pages of the arena. Values too long for a slot allocate here directly.
    pub arena: BuddyArena,
    pages: Vec<Page>,
    classes: [Class; CLASSES],
    /// Page being evacuated, and the next slot to examine.
    evacuating: Option<(u32, u16)>,
    released: u32,
    /// Pages from this number on are not used.
    max_pages: u32,
    /// Empty between calls.
    opened: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Page {
    class: u8,
    size: u16,
    /// Number of taken slots, and of slots ever taken.
    taken: u16,
    fresh: u16,
    /// First free slot below `fresh`. The first two bytes of a free slot hold the next one.
    first: u16,
    /// Position in the class's list of pages with free slots.
    list_position: u32,
}

/// Page that is not in use.
const CLOSED: Page = Page { class: 0, size: 0, taken: 0, fresh: 0, first: NONE, list_position: NOT_LISTED };
/// Position of a page that is in no list.
const NOT_LISTED: u32 = u32::MAX;

#[derive(Default, Clone)]
struct Class {
    /// Pages with free slots.
    partial: Vec<u32>,
    /// Free slots in those pages.
    free: usize,
}

impl Heap {
    pub fn new(arena: Arena) -> Self {
        // Reserve the maximum, so that the vector never moves.
        let most = (arena.stats().capacity / BuddyArena::PAGE).min(MAX_PAGES as usize);
        Heap {
            arena: BuddyArena::new(arena),
            pages: Vec::with_capacity(most),
            classes: std::array::from_fn(|_| Class::default()),
            evacuating: None,
            released: 0,
            max_pages: MAX_PAGES,
            opened: Vec::new(),
        }
    }

    #[inline]
    pub fn used(&self) -> usize {
        self.arena.used() + self.pages.len() * size_of::<Page>()
    }

    #[inline]
    pub fn has_slot(&self, len: usize) -> bool {
        self.classes[class_of(len)].free > 0
    }

    /// Returns an upper bound of the bytes added by `count` pages.
    pub fn growth(&self, count: usize) -> usize {
        let most = (self.arena.chunks() + count.div_ceil(BuddyArena::PAGES)) * BuddyArena::PAGES;
        count * PAGE + most.saturating_sub(self.pages.len()) * size_of::<Page>()
    }

    /// Adds a page with slots for `len` bytes. Returns false if the arena has none.
    pub fn add_page(&mut self, len: usize) -> bool {
        self.open(class_of(len)).is_some()
    }

    pub fn has_pages(&mut self, count: usize) -> bool {
        while self.opened.len() < count
            && let Some(page) = self.alloc_page()
        {
            self.opened.push(page);
        }
        let has_all = self.opened.len() == count;
        self.opened.drain(..).for_each(|page| self.arena.free_page(page));
        has_all
    }

    /// Allocates a page of the arena that locations can address. An arena for several heaps may have further pages.
    fn alloc_page(&mut self) -> Option<u32> {
        let page = self.arena.alloc_page()?;
        if page < self.max_pages {
            return Some(page);
        }
        self.arena.free_page(page);
        None
    }

    /// Takes a slot for `len` bytes, at most [`LARGEST`].
    pub fn allocate(&mut self, len: usize) -> Option<Location> {
        let class = class_of(len);
        let page = match self.classes[class].partial.last() {
            Some(page) => *page,
            None => self.open(class)?,
        };
        let size = size_of_class(class);
        let at = &mut self.pages[page as usize];
        let slot = if at.first == NONE {
            at.fresh += 1;
            at.fresh - 1
        } else {
            let slot = at.first;
            let bytes = &self.arena.page(page)[slot as usize * size..];
            at.first = u16::from_le_bytes([bytes[0], bytes[1]]);
            slot
        };
        at.taken += 1;
        let is_full = at.taken as usize == PAGE / size;
        self.classes[class].free -= 1;
        if is_full {
            self.unlist(page);
        }
        Some(location(page as usize * PAGE + slot as usize * size))
    }

    /// Returns the number of freed slots, modulo 2³².
    #[inline(always)]
    pub fn released(&self) -> u32 {
        self.released
    }

    pub fn release(&mut self, location: Location) {
        self.released = self.released.wrapping_add(1);
        let (page, slot, size) = self.slot_of(location);
        let at = &mut self.pages[page as usize];
        let class = at.class as usize;
        let bytes = &mut self.arena.page_mut(page)[slot as usize * size..];
        bytes[..2].copy_from_slice(&at.first.to_le_bytes());
        bytes[2] = 0;
        at.first = slot;
        at.taken -= 1;
        let (is_empty, slots) = (at.taken == 0, PAGE / size);
        if self.evacuating.is_some_and(|(evacuating, _)| evacuating == page) {
            // The free slots of a page being evacuated are neither counted nor reused.
            if is_empty {
                self.evacuating = None;
                self.close(page);
            }
            return;
        }
        self.classes[class].free += 1;
        if at.list_position == NOT_LISTED {
            at.list_position = self.classes[class].partial.len() as u32;
            self.classes[class].partial.push(page);
        }
        if is_empty {
            self.unlist(page);
            self.classes[class].free -= slots;
            self.close(page);
        }
    }

    #[inline]
    pub fn slot(&self, location: Location) -> &[u8] {
        &self.at(location)[..self.slot_at(location)]
    }

    /// Prefetches the slot at `location`, all of it unless it is long.
    #[inline(always)]
    pub fn prefetch(&self, location: Location) {
        /// Beyond this, the hardware prefetcher follows the sequential read.
        const MAX_PREFETCHED: usize = 256;
        self.arena.prefetch(start_of(location), self.slot_at(location).min(MAX_PREFETCHED));
    }

    #[inline]
    pub fn slot_at(&self, location: Location) -> usize {
        self.pages[start_of(location) / PAGE].size.into()
    }

    #[inline]
    pub fn slot_mut(&mut self, location: Location) -> &mut [u8] {
        let len = self.slot_at(location);
        &mut self.at_mut(location)[..len]
    }

    /// Copies the first `len` bytes of the slot at `from` to the slot at `to`.
    pub fn copy(&mut self, from: Location, to: Location, len: usize) {
        let mut copy = [0; LARGEST];
        copy[..len].copy_from_slice(&self.at(from)[..len]);
        self.at_mut(to)[..len].copy_from_slice(&copy[..len]);
    }

    /// Returns the bytes of the page from `location` on. The header of the item determines its length.
    #[inline(always)]
    pub fn at(&self, location: Location) -> &[u8] {
        let start = start_of(location);
        &self.arena.page((start / PAGE) as u32)[start % PAGE..]
    }

    #[inline(always)]
    pub fn at_mut(&mut self, location: Location) -> &mut [u8] {
        let start = start_of(location);
        &mut self.arena.page_mut((start / PAGE) as u32)[start % PAGE..]
    }

    pub fn slot_len(len: usize) -> usize {
        size_of_class(class_of(len))
    }

    /// Appends at most `most` taken slots of a sparsely used page to `slots`. The caller must move their items at once,
    /// to other pages with the same slot size, which have room to spare. The page is free after the last item moves.
    /// Returns false if there is no such page.
    pub fn sparse_page(&mut self, most: usize, slots: &mut Vec<Location>) -> bool {
        if self.evacuating.is_none() {
            self.evacuating = self.pick_sparse_page();
        }
        let Some((page, slot)) = self.evacuating else { return false };
        let Page { class, fresh, .. } = self.pages[page as usize];
        let size = size_of_class(class.into());
        let bytes = self.arena.page(page);
        let mut slot = slot;
        while slot < fresh && slots.len() < most {
            if bytes[slot as usize * size + 2] != 0 {
                slots.push(location(page as usize * PAGE + slot as usize * size));
            }
            slot += 1;
        }
        self.evacuating = Some((page, slot));
        true
    }

    /// Picks a page to evacuate. It gets no new items.
    fn pick_sparse_page(&mut self) -> Option<(u32, u16)> {
        let class = (0..CLASSES).find(|class| {
            let slots = PAGE / size_of_class(*class);
            // More than a page's worth of free slots: evacuating one page then leaves room, and does not soon select
            // another.
            self.classes[*class].free > slots + slots / 4 && self.classes[*class].partial.len() > 1
        })?;
        let looked_at = self.classes[class].partial.iter().rev().take(LOOKED_AT);
        let page = *looked_at.min_by_key(|page| self.pages[**page as usize].taken)?;
        self.unlist(page);
        let slots = PAGE / size_of_class(class);
        self.classes[class].free -= slots - usize::from(self.pages[page as usize].taken);
        Some((page, 0))
    }

    /// Stops the evacuation of a page because other pages have no room for its items.
    pub fn stop_evacuation(&mut self) {
        let Some((page, _)) = self.evacuating.take() else { return };
        let Page { class, taken, .. } = self.pages[page as usize];
        let class = usize::from(class);
        let free = PAGE / size_of_class(class) - usize::from(taken);
        if free > 0 {
            self.pages[page as usize].list_position = self.classes[class].partial.len() as u32;
            self.classes[class].partial.push(page);
            self.classes[class].free += free;
        }
    }

    /// Takes a page of the arena and cuts it into slots of `class`.
    #[cold]
    fn open(&mut self, class: usize) -> Option<u32> {
        let page = self.alloc_page()?;
        let partial = &mut self.classes[class].partial;
        if self.pages.len() <= page as usize {
            self.pages.resize(page as usize + 1, CLOSED);
        }
        self.pages[page as usize] = Page {
            class: class as u8,
            size: size_of_class(class) as u16,
            list_position: partial.len() as u32,
            ..CLOSED
        };
        partial.push(page);
        self.classes[class].free += PAGE / size_of_class(class);
        Some(page)
    }

    fn close(&mut self, page: u32) {
        self.pages[page as usize] = CLOSED;
        self.arena.free_page(page);
    }

    fn unlist(&mut self, page: u32) {
        let Page { class, list_position, .. } = self.pages[page as usize];
        self.pages[page as usize].list_position = NOT_LISTED;
        let partial = &mut self.classes[class as usize].partial;
        partial.swap_remove(list_position as usize);
        if let Some(moved) = partial.get(list_position as usize) {
            self.pages[*moved as usize].list_position = list_position;
        }
    }

    /// Returns the page of `location`, its slot number, and the slot size.
    fn slot_of(&self, location: Location) -> (u32, u16, usize) {
        let start = start_of(location);
        let size = usize::from(self.pages[start / PAGE].size);
        ((start / PAGE) as u32, (start % PAGE / size) as u16, size)
    }
}

#[inline]
fn class_of(len: usize) -> usize {
    if len <= FINE {
        return len.max(SMALLEST).div_ceil(UNIT) - SMALLEST / UNIT;
    }
    // `len - 1` is in [2ⁿ, 2ⁿ⁺¹), which is divided into eight.
    let power = (len - 1).ilog2();
    let step = ((len - 1) >> (power - STEPS.ilog2())) & (STEPS - 1);
    (FINE - SMALLEST) / UNIT + 1 + (power - FINE.ilog2()) as usize * STEPS + step
}

#[inline]
fn size_of_class(class: usize) -> usize {
    let fine = (FINE - SMALLEST) / UNIT + 1;
    match class.checked_sub(fine) {
        None => SMALLEST + class * UNIT,
        Some(coarse) => ((STEPS + 1 + coarse % STEPS) * (FINE / STEPS)) << (coarse / STEPS),
    }
}

/// Returns the location of the bytes at `start`: one plus the unit number, which is never 0.
fn location(start: usize) -> Location {
    Location(NonZeroU32::MIN.saturating_add((start / UNIT) as u32))
}

#[inline(always)]
fn start_of(Location(location): Location) -> usize {
    (location.get() as usize - 1) * UNIT
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::arena::ArenaConfig;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn slot_fits_and_wastes_at_most_an_eighth() {
        for len in 0..=LARGEST {
            let size = Heap::slot_len(len);
            assert!(size >= len && size.is_multiple_of(UNIT), "{len} in {size}");
            assert!(len < SMALLEST || len <= FINE && size - len < UNIT || (size - len) * 8 <= len, "{len} in {size}");
            assert_eq!(class_of(size), class_of(len), "{len}");
        }
        assert_eq!(class_of(LARGEST), CLASSES - 1);
    }

    fn heap(pages: usize) -> Heap {
        let bytes = (pages * PAGE).next_multiple_of(1 << 20);
        Heap::new(Arena::new(ArenaConfig { bytes, hugepages: false }).unwrap())
    }

    #[test]
    fn locations_reach_the_last_slot_of_the_last_page() {
        let end = MAX_PAGES as usize * PAGE;
        assert_eq!(end as u64, MAX_SHARD);
        for start in [0, SMALLEST, 1 << 31, (1 << 34) + 8, end - LARGEST, end - SMALLEST] {
            assert_eq!(start_of(location(start)), start);
        }
    }

    #[test]
    fn pages_without_locations_are_left_to_others() {
        let mut heap = heap(16);
        heap.max_pages = 3;
        assert!(heap.has_pages(3) && !heap.has_pages(4));
        let locations: Vec<_> = std::iter::from_fn(|| heap.allocate(LARGEST)).collect();
        assert_eq!(locations.len(), 3 * PAGE / LARGEST);
        assert!(locations.iter().all(|location| start_of(*location) < 3 * PAGE));
        assert!(!heap.add_page(16) && !heap.has_pages(1));
        // The rest of the arena serves long values.
        assert_eq!(std::iter::from_fn(|| heap.arena.alloc_page()).count(), 13);
        heap.release(locations[0]);
        assert_eq!(heap.allocate(LARGEST), Some(locations[0]));
    }

    /// Takes a slot and fills it with `n`.
    fn put(heap: &mut Heap, len: usize, n: u8) -> Option<Location> {
        let location = heap.allocate(len)?;
        heap.slot_mut(location).fill(n);
        Some(location)
    }

    proptest! {
        /// Slots do not overlap, and their bytes stay until they are freed.
        #[test]
        fn slots_keep_their_bytes(operations in prop::collection::vec((0..=LARGEST, any::<prop::sample::Index>(), 0..5u8), 1..400)) {
            let mut heap = heap(40);
            let mut items: BTreeMap<Location, (usize, u8)> = BTreeMap::new();
            for (n, (len, which, operation)) in operations.into_iter().enumerate() {
                let n = (n % 255) as u8 + 1;
                match operation {
                    0..3 => {
                        if let Some(location) = put(&mut heap, len, n) {
                            prop_assert!(heap.slot(location).len() >= len);
                            prop_assert!(items.insert(location, (len, n)).is_none());
                        }
                    }
                    3 if !items.is_empty() => {
                        let location = *items.keys().nth(which.index(items.len())).unwrap();
                        items.remove(&location);
                        heap.release(location);
                    }
                    _ => {
                        let before = heap.used();
                        let mut sparse = Vec::new();
                        heap.sparse_page(PAGE / SMALLEST, &mut sparse);
                        for old in sparse {
                            let (len, n) = items.remove(&old).unwrap();
                            let new = put(&mut heap, len, n).unwrap();
                            heap.release(old);
                            prop_assert!(items.insert(new, (len, n)).is_none());
                        }
                        prop_assert!(heap.used() <= before);
                    }
                }
            }
            for (location, (_, n)) in &items {
                prop_assert!(heap.slot(*location).iter().all(|byte| byte == n));
            }
            for location in items.keys() {
                heap.release(*location);
            }
            prop_assert_eq!(heap.arena.used(), 0);
        }
    }

    #[test]
    fn evacuation_moves_memory_between_slot_sizes() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut heap = heap(64);
        let mut small: Vec<Location> = std::iter::from_fn(|| put(&mut heap, 100, 1)).collect();
        assert!(small.len() * 104 > 63 * PAGE);
        assert_eq!(put(&mut heap, 3000, 2), None);
        // Free three quarters at random, so that no page becomes empty.
        random.shuffle(&mut small);
        for location in small.drain(small.len() / 4..) {
            heap.release(location);
        }
        let mut kept: std::collections::HashSet<Location> = small.into_iter().collect();
        assert!(heap.used() > 60 * PAGE);
        let mut moved = 0;
        let mut sparse = Vec::new();
        while heap.sparse_page(50, &mut sparse) {
            for old in sparse.drain(..) {
                let new = put(&mut heap, 100, 1).unwrap();
                heap.release(old);
                assert!(kept.remove(&old) && kept.insert(new));
                moved += 1;
            }
        }
        assert!(heap.arena.used() <= 20 * PAGE, "{} pages", heap.arena.used() / PAGE);
        assert!(moved < 20_000, "{moved}");
        assert!(put(&mut heap, 3000, 2).is_some());
        assert!(kept.iter().all(|location| heap.slot(*location).iter().all(|byte| *byte == 1)));
    }

    #[test]
    fn evacuation_starts_with_more_than_a_page_and_a_quarter_of_free_slots() {
        let mut heap = heap(64);
        let slots = PAGE / Heap::slot_len(1000);
        let mut items: Vec<Location> = (0..3 * slots).map(|_| put(&mut heap, 1000, 1).unwrap()).collect();
        // All of one page but one slot, then some of another.
        let mut sparse = Vec::new();
        let kept = items.remove(0);
        for (n, location) in items.drain(..slots + slots / 4).enumerate() {
            assert!(!heap.sparse_page(100, &mut sparse), "{n} of {slots} are free");
            if n + 1 != slots {
                heap.release(location);
            }
        }
        assert!(!heap.sparse_page(100, &mut sparse));
        heap.release(items.pop().unwrap());
        assert!(!heap.sparse_page(100, &mut sparse));
        heap.release(items.pop().unwrap());
        assert!(heap.sparse_page(0, &mut sparse) && sparse.is_empty());
        assert!(heap.sparse_page(100, &mut sparse) && sparse.first() == Some(&kept));
        // After giving up, the page's free slots are used before a new page.
        let used = heap.used();
        heap.stop_evacuation();
        let mut free = 0;
        while heap.has_slot(1000) {
            heap.allocate(1000).unwrap();
            free += 1;
        }
        assert_eq!((free, heap.used()), (slots + slots / 4 + 1, used));
    }

    #[test]
    fn growth_bounds_bytes_of_pages() {
        let mut heap = heap(64);
        for len in [16, 1000, LARGEST, 24] {
            for count in [1, 3] {
                let most = heap.used() + heap.growth(count);
                (0..count).for_each(|_| assert!(heap.add_page(len)));
                assert!(heap.used() <= most);
            }
        }
        let used = heap.used();
        let left = (0..).take_while(|count| heap.has_pages(*count)).count() - 1;
        assert_eq!(heap.used(), used);
        assert!((0..left).all(|_| heap.add_page(100)) && !heap.add_page(100));
        assert!(heap.has_pages(0) && !heap.has_pages(1));
    }
}
