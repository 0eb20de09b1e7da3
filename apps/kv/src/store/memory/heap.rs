//! The memory that items lie in.

use crate::store::index::Location;
use linerate_bypass::arena::{Arena, Pieces};
use std::num::NonZeroU32;

/// Bytes of a page.
pub(crate) const PAGE: usize = Pieces::PAGE;
/// Locations count in these.
const UNIT: usize = 8;
/// Bytes of the smallest slot and of the largest.
const SMALLEST: usize = 16;
pub(crate) const LARGEST: usize = 8 << 10;
/// Up to here slots differ by a unit; beyond, there are this many sizes to each doubling.
const FINE: usize = 128;
const STEPS: usize = 8;
const CLASSES: usize = (FINE - SMALLEST) / UNIT + 1 + STEPS * (LARGEST / FINE).ilog2() as usize;
/// Pages of a class that are looked at for the one with the fewest items.
const LOOKED_AT: usize = 16;
/// In a free slot: no slot.
const NONE: u16 = u16::MAX;

/// Memory in pages of an arena, each cut into slots of one size.
///
/// Sizes are an eighth apart at most. A page whose slots are all free goes back, to be used again for anything; when many slots
/// of a size are free in many pages, whoever has the items moves those of one page elsewhere
/// ([`sparse_page`](Self::sparse_page)). So memory finds its way from one size to another.
///
/// The third byte of a slot says whether it is taken: it is 0 in those that are free, and nothing else may be there in others.
pub(crate) struct Heap {
    /// The memory, of which what is too long for a slot is taken directly.
    pub pieces: Pieces,
    /// By the pages' numbers.
    pages: Vec<Page>,
    classes: [Class; CLASSES],
    /// The page whose items are being moved, and the next slot to be looked at.
    emptied: Option<(u32, u16)>,
    released: u32,
    /// Empty between calls.
    opened: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Page {
    class: u8,
    /// Bytes of its slots.
    size: u16,
    /// Slots taken, and slots that have been at some time.
    taken: u16,
    fresh: u16,
    /// The first free slot of those, which leads to the next by its first two bytes.
    first: u16,
    /// Where in its class's list it is, if it is there.
    listed: u32,
}

/// What is not an open page.
const CLOSED: Page = Page { class: 0, size: 0, taken: 0, fresh: 0, first: NONE, listed: UNLISTED };
/// A page that is in no list.
const UNLISTED: u32 = u32::MAX;

#[derive(Default, Clone)]
struct Class {
    /// Pages that have free slots.
    roomy: Vec<u32>,
    /// Free slots in them.
    free: usize,
}

impl Heap {
    /// A heap in the memory of `arena`.
    pub fn new(arena: Arena) -> Self {
        // As many as there may ever be, so that they are never moved.
        let most = arena.stats().capacity / Pieces::PAGE;
        Heap {
            pieces: Pieces::new(arena),
            pages: Vec::with_capacity(most),
            classes: std::array::from_fn(|_| Class::default()),
            emptied: None,
            released: 0,
            opened: Vec::new(),
        }
    }

    /// Bytes of memory that it takes.
    #[inline]
    pub fn used(&self) -> usize {
        self.pieces.used() + self.pages.len() * size_of::<Page>()
    }

    /// Whether there is a free slot for `len` bytes.
    #[inline]
    pub fn has_slot(&self, len: usize) -> bool {
        self.classes[class_of(len)].free > 0
    }

    /// Bytes by which what it takes grows at most with `count` pages more.
    pub fn growth(&self, count: usize) -> usize {
        let most = (self.pieces.chunks() + count.div_ceil(Pieces::PAGES)) * Pieces::PAGES;
        count * PAGE + most.saturating_sub(self.pages.len()) * size_of::<Page>()
    }

    /// Gets a page for slots of `len` bytes, if there is one.
    pub fn add_page(&mut self, len: usize) -> bool {
        self.open(class_of(len)).is_some()
    }

    /// Whether there are `count` more pages.
    pub fn has_pages(&mut self, count: usize) -> bool {
        self.opened.extend(std::iter::from_fn(|| self.pieces.open_page()).take(count));
        let has_all = self.opened.len() == count;
        self.opened.drain(..).for_each(|page| self.pieces.close_page(page));
        has_all
    }

    /// A slot for `len` bytes, [`LARGEST`] at most, if there is one.
    pub fn allocate(&mut self, len: usize) -> Option<Location> {
        let class = class_of(len);
        let page = match self.classes[class].roomy.last() {
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
            let bytes = &self.pieces.page(page)[slot as usize * size..];
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

    /// How often a slot was given back, as long as that is known.
    #[inline(always)]
    pub fn released(&self) -> u32 {
        self.released
    }

    /// Gives the slot at `location` back.
    pub fn release(&mut self, location: Location) {
        self.released = self.released.wrapping_add(1);
        let (page, slot, size) = self.place(location);
        let at = &mut self.pages[page as usize];
        let class = at.class as usize;
        let bytes = &mut self.pieces.page_mut(page)[slot as usize * size..];
        bytes[..2].copy_from_slice(&at.first.to_le_bytes());
        bytes[2] = 0;
        at.first = slot;
        at.taken -= 1;
        let (is_empty, slots) = (at.taken == 0, PAGE / size);
        if self.emptied.is_some_and(|(emptied, _)| emptied == page) {
            // Its free slots are no longer counted, and nothing gets them.
            if is_empty {
                self.emptied = None;
                self.close(page);
            }
            return;
        }
        self.classes[class].free += 1;
        if at.listed == UNLISTED {
            at.listed = self.classes[class].roomy.len() as u32;
            self.classes[class].roomy.push(page);
        }
        if is_empty {
            self.unlist(page);
            self.classes[class].free -= slots;
            self.close(page);
        }
    }

    /// The slot at `location`.
    #[inline]
    pub fn slot(&self, location: Location) -> &[u8] {
        &self.at(location)[..self.slot_at(location)]
    }

    /// Asks for the slot at `location`: all of it, if it is not long.
    #[inline(always)]
    pub fn prefetch(&self, location: Location) {
        /// Where more is read, the processor sees that by itself.
        const MOST: usize = 256;
        self.pieces.prefetch(start_of(location), self.slot_at(location).min(MOST));
    }

    /// Bytes of the slot at `location`.
    #[inline]
    pub fn slot_at(&self, location: Location) -> usize {
        self.pages[start_of(location) / PAGE].size.into()
    }

    /// The slot at `location`.
    #[inline]
    pub fn slot_mut(&mut self, location: Location) -> &mut [u8] {
        let len = self.slot_at(location);
        &mut self.at_mut(location)[..len]
    }

    /// The slot at `to` holds the first `len` bytes of that at `from`.
    pub fn copy(&mut self, from: Location, to: Location, len: usize) {
        let mut copy = [0; LARGEST];
        copy[..len].copy_from_slice(&self.at(from)[..len]);
        self.at_mut(to)[..len].copy_from_slice(&copy[..len]);
    }

    /// From `location` on, to be read by whoever knows how long it is, or fetched ahead.
    #[inline(always)]
    pub fn at(&self, location: Location) -> &[u8] {
        let start = start_of(location);
        &self.pieces.page((start / PAGE) as u32)[start % PAGE..]
    }

    /// As [`at`](Self::at), to be changed.
    #[inline(always)]
    pub fn at_mut(&mut self, location: Location) -> &mut [u8] {
        let start = start_of(location);
        &mut self.pieces.page_mut((start / PAGE) as u32)[start % PAGE..]
    }

    /// Bytes of the slot that `len` bytes get.
    pub fn slot_len(len: usize) -> usize {
        size_of_class(class_of(len))
    }

    /// Some taken slots, at most `most`, of a page whose items would fit into other pages with slots of the same size, with a
    /// page's worth of them to spare: appended to `slots`, to be moved there at once. When all have been, the page is free.
    /// Returns whether there is such a page.
    pub fn sparse_page(&mut self, most: usize, slots: &mut Vec<Location>) -> bool {
        if self.emptied.is_none() {
            self.emptied = self.begin_page();
        }
        let Some((page, slot)) = self.emptied else { return false };
        let Page { class, fresh, .. } = self.pages[page as usize];
        let size = size_of_class(class.into());
        let bytes = self.pieces.page(page);
        let mut slot = slot;
        while slot < fresh && slots.len() < most {
            if bytes[slot as usize * size + 2] != 0 {
                slots.push(location(page as usize * PAGE + slot as usize * size));
            }
            slot += 1;
        }
        self.emptied = Some((page, slot));
        true
    }

    /// A page to be emptied, which nothing is put into any more.
    fn begin_page(&mut self) -> Option<(u32, u16)> {
        let class = (0..CLASSES).find(|class| {
            let slots = PAGE / size_of_class(*class);
            // More than a page's worth of free slots, so that moving brings a page at once, and two in a row seldom the same.
            self.classes[*class].free > slots + slots / 4 && self.classes[*class].roomy.len() > 1
        })?;
        let looked_at = self.classes[class].roomy.iter().rev().take(LOOKED_AT);
        let page = *looked_at.min_by_key(|page| self.pages[**page as usize].taken)?;
        self.unlist(page);
        let slots = PAGE / size_of_class(class);
        self.classes[class].free -= slots - usize::from(self.pages[page as usize].taken);
        Some((page, 0))
    }

    /// Gives up emptying a page: there is no room for its items.
    pub fn keep_page(&mut self) {
        let Some((page, _)) = self.emptied.take() else { return };
        let Page { class, taken, .. } = self.pages[page as usize];
        let class = usize::from(class);
        let free = PAGE / size_of_class(class) - usize::from(taken);
        if free > 0 {
            self.pages[page as usize].listed = self.classes[class].roomy.len() as u32;
            self.classes[class].roomy.push(page);
            self.classes[class].free += free;
        }
    }

    /// Cuts a page into slots of `class`.
    #[cold]
    fn open(&mut self, class: usize) -> Option<u32> {
        let page = self.pieces.open_page()?;
        let roomy = &mut self.classes[class].roomy;
        if self.pages.len() <= page as usize {
            self.pages.resize(page as usize + 1, CLOSED);
        }
        self.pages[page as usize] =
            Page { class: class as u8, size: size_of_class(class) as u16, listed: roomy.len() as u32, ..CLOSED };
        roomy.push(page);
        self.classes[class].free += PAGE / size_of_class(class);
        Some(page)
    }

    fn close(&mut self, page: u32) {
        self.pages[page as usize] = CLOSED;
        self.pieces.close_page(page);
    }

    fn unlist(&mut self, page: u32) {
        let Page { class, listed, .. } = self.pages[page as usize];
        self.pages[page as usize].listed = UNLISTED;
        let roomy = &mut self.classes[class as usize].roomy;
        roomy.swap_remove(listed as usize);
        if let Some(moved) = roomy.get(listed as usize) {
            self.pages[*moved as usize].listed = listed;
        }
    }

    /// The page of `location`, the number of its slot there, and the size of slots there.
    fn place(&self, location: Location) -> (u32, u16, usize) {
        let start = start_of(location);
        let size = usize::from(self.pages[start / PAGE].size);
        ((start / PAGE) as u32, (start % PAGE / size) as u16, size)
    }
}

/// The class of slots for `len` bytes.
#[inline]
fn class_of(len: usize) -> usize {
    if len <= FINE {
        return len.max(SMALLEST).div_ceil(UNIT) - SMALLEST / UNIT;
    }
    // len - 1 is in [2ⁿ, 2ⁿ⁺¹), which is divided into eight.
    let power = (len - 1).ilog2();
    let step = ((len - 1) >> (power - STEPS.ilog2())) & (STEPS - 1);
    (FINE - SMALLEST) / UNIT + 1 + (power - FINE.ilog2()) as usize * STEPS + step
}

/// Bytes of a slot of `class`.
#[inline]
fn size_of_class(class: usize) -> usize {
    let fine = (FINE - SMALLEST) / UNIT + 1;
    match class.checked_sub(fine) {
        None => SMALLEST + class * UNIT,
        Some(coarse) => ((STEPS + 1 + coarse % STEPS) * (FINE / STEPS)) << (coarse / STEPS),
    }
}

/// One more than the unit in which it begins, so that it is never 0.
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
    fn a_slot_has_room_and_wastes_an_eighth_at_most() {
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

    /// Takes a slot and fills it with `n`.
    fn put(heap: &mut Heap, len: usize, n: u8) -> Option<Location> {
        let location = heap.allocate(len)?;
        heap.slot_mut(location).fill(n);
        Some(location)
    }

    proptest! {
        /// Slots do not overlap, and whatever is written stays until the slot is given back.
        #[test]
        fn items_stay_as_they_are(operations in prop::collection::vec((0..=LARGEST, any::<prop::sample::Index>(), 0..5u8), 1..400)) {
            let mut heap = heap(40);
            let mut items: BTreeMap<Location, (usize, u8)> = BTreeMap::new();
            for (n, (len, which, what)) in operations.into_iter().enumerate() {
                let n = (n % 255) as u8 + 1;
                match what {
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
            prop_assert_eq!(heap.pieces.used(), 0);
        }
    }

    #[test]
    fn memory_goes_from_one_size_to_another_through_sparse_pages() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut heap = heap(64);
        let mut small: Vec<Location> = std::iter::from_fn(|| put(&mut heap, 100, 1)).collect();
        assert!(small.len() * 104 > 63 * PAGE);
        assert_eq!(put(&mut heap, 3000, 2), None);
        // Three quarters of them go, here and there, so that no page is empty.
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
        assert!(heap.pieces.used() <= 20 * PAGE, "{} pages", heap.pieces.used() / PAGE);
        assert!(moved < 20_000, "{moved}");
        assert!(put(&mut heap, 3000, 2).is_some());
        assert!(kept.iter().all(|location| heap.slot(*location).iter().all(|byte| *byte == 1)));
    }

    #[test]
    fn page_is_emptied_when_more_than_a_page_and_a_quarter_of_its_slots_are_free() {
        let mut heap = heap(64);
        let slots = PAGE / Heap::slot_len(1000);
        let mut items: Vec<Location> = (0..3 * slots).map(|_| put(&mut heap, 1000, 1).unwrap()).collect();
        // All of one page but a slot, then some of another.
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
        // Given up, its free slots are taken before another page is.
        let used = heap.used();
        heap.keep_page();
        let mut free = 0;
        while heap.has_slot(1000) {
            heap.allocate(1000).unwrap();
            free += 1;
        }
        assert_eq!((free, heap.used()), (slots + slots / 4 + 1, used));
    }

    #[test]
    fn growth_bounds_what_pages_take() {
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
