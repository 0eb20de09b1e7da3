//! One owner's part of an arena, in pieces that become larger ones again.

mod block;
mod clearing;
mod return_list;
#[cfg(test)]
mod tests;
mod tree;

pub use block::Piece;
pub use clearing::Clearing;

use crate::Bytes;
use crate::arena::Arena;
use crate::arena::chunk::{CHUNK, Chunk};
use crate::prefetch::prefetch_range;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::refcount::RefCount;
use block::{DEVICE, Entries, Entry, Home, PROCESS};
use return_list::ReturnList;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use tree::{Buddies, ORDERS, UNIT, UNITS};

/// Bytes of a page.
const PAGE: usize = 64 << 10;
const PAGE_ORDER: usize = (PAGE / UNIT).ilog2() as usize;
/// Pages of a chunk.
const PAGES: usize = CHUNK / PAGE;

/// The label of what is lent.
const LENT: u32 = u32::MAX;

/// A part of an arena that one thread at a time cuts into pieces of any power of two from 512 bytes to 1 MiB. Freed
/// ones become larger ones again, so that memory serves any size.
///
/// What it gives out is a [`Piece`], to be written, sent and dropped on any thread: it comes back through a list that
/// any thread adds to without a lock, and that the owner empties. What the owner keeps for itself is in pages, which it
/// reads and writes by their number.
///
/// It takes memory from the arena in chunks of 1 MiB, and gives those back that are all free.
pub struct Pieces {
    /// There until it is dropped.
    inner: Option<Box<Inner>>,
    /// For each chunk, where it is and which of its pages are kept.
    rows: Vec<Row>,
    /// What was in the list and has not been looked at yet.
    returned: u32,
    home: Arc<Home>,
    most: usize,
}

#[derive(Clone, Copy)]
struct Row {
    start: NonNull<u8>,
    /// A bit for each page.
    kept: u16,
}

/// What the memory of pieces is in.
pub(super) struct Inner {
    arena: Arena,
    chunks: Vec<Option<Part>>,
    vacant: Vec<u32>,
    /// For each order, a bit for each chunk that has a free part of it.
    roomy: [Vec<u64>; ORDERS],
    held: usize,
    used: usize,
    /// Bytes of it in pieces that were [lent](Pieces::lend).
    lent: usize,
    details: usize,
    /// Where the search for a sparse page goes on.
    next_sparse: usize,
    /// The page that is being cleared, by its number, and what is free of it: unit and order.
    cleared: Option<usize>,
    hidden: Vec<(usize, usize)>,
}

/// A chunk that the owner has.
struct Part {
    chunk: Chunk,
    buddies: Buddies,
    /// Units of each page that are in use.
    used: [u8; PAGES],
    /// What is to be known of pieces, once there have been any.
    details: Option<Box<Details>>,
}

struct Details {
    /// From a box, and reached by others, so never borrowed alone.
    entries: NonNull<Entries>,
    orders: [u8; UNITS],
    /// What the owner said of the piece that begins there.
    labels: [u32; UNITS],
}

// SAFETY: the owner's memory and what is to be known of it belong to no thread; what others reach of it is atomic.
unsafe impl Send for Pieces {}
// SAFETY: `&Pieces` only reads what the owner keeps.
unsafe impl Sync for Pieces {}
// SAFETY: as for `Pieces`, a part of which it was; nobody does anything with it but drop it.
unsafe impl Send for Inner {}

impl Pieces {
    /// Bytes of a page.
    pub const PAGE: usize = PAGE;
    /// Bytes of the smallest piece.
    pub const SMALLEST: usize = UNIT;
    /// Bytes of the largest piece.
    pub const LARGEST: usize = CHUNK;

    /// Pages of a chunk.
    pub const PAGES: usize = PAGES;

    /// Nothing yet of `arena`.
    pub fn new(arena: Arena) -> Self {
        // As many as there may ever be: moving them all when there are more would take a hundred microseconds.
        let most = arena.stats().capacity / CHUNK;
        let inner = Inner {
            arena,
            chunks: Vec::with_capacity(most),
            vacant: Vec::new(),
            roomy: std::array::from_fn(|_| Vec::new()),
            held: 0,
            used: 0,
            lent: 0,
            details: 0,
            next_sparse: 0,
            cleared: None,
            hidden: Vec::new(),
        };
        Pieces {
            inner: Some(Box::new(inner)),
            rows: Vec::with_capacity(most),
            returned: 0,
            home: Arc::new(Home { returned: ReturnList::new(), left: std::sync::Mutex::new(None) }),
            most: usize::MAX,
        }
    }

    /// It takes no chunk more once it has `bytes` in chunks, without what is lent.
    pub fn set_limit(&mut self, bytes: usize) {
        self.most = (bytes + self.inner().lent).div_ceil(CHUNK);
    }

    /// Bytes in pages and pieces that are neither free nor lent, and what is to be known of them.
    #[inline]
    pub fn used(&self) -> usize {
        let inner = self.inner();
        inner.used - inner.lent + inner.details
    }

    /// Lends the piece that `bytes` lie in, if it is this owner's: until it comes back it is counted by somebody else.
    pub fn lend(&mut self, bytes: &Bytes) {
        let Some((chunk, unit)) = self.place_of(bytes) else { return };
        let inner = self.inner_mut();
        let Some(details) = inner.chunks[chunk].as_mut().and_then(|part| part.details.as_mut()) else { return };
        if details.labels[unit] != LENT {
            details.labels[unit] = LENT;
            inner.lent += UNIT << details.orders[unit];
        }
    }

    /// Chunks that it has had at once: pages have numbers below this times [`PAGES`](Self::PAGES).
    pub fn chunks(&self) -> usize {
        self.rows.len()
    }

    /// Bytes in chunks.
    pub fn held(&self) -> usize {
        self.inner().held * CHUNK
    }

    /// Whether there is a piece of `len` bytes without another chunk.
    pub fn has_free(&self, len: usize) -> bool {
        (order_of(len)..ORDERS).any(|order| self.inner().roomy[order].iter().any(|word| *word != 0))
    }

    /// A piece with room for `len` bytes, [`LARGEST`](Self::LARGEST) at most, if there is one.
    pub fn take(&mut self, len: usize) -> Option<Piece> {
        self.take_within(len, usize::MAX)
    }

    /// As [`take`](Self::take), if what is [used](Self::used) grows by no more than `most` bytes: by the piece, and by
    /// what is to be known of a chunk's pieces if it is the chunk's first.
    pub fn take_within(&mut self, len: usize, most: usize) -> Option<Piece> {
        if len > CHUNK {
            return None;
        }
        let order = order_of(len);
        let details = most.checked_sub(UNIT << order)?;
        let (chunk, unit) = self.take_part(order, details)?;
        let home = Arc::as_ptr(&self.home);
        let inner = self.inner_mut();
        let part = inner.chunks[chunk].as_mut()?;
        let memory = inner.arena.memory();
        if part.details.is_none() {
            part.details = Some(Details::new(home, chunk as u32));
            inner.details += DETAILS;
        }
        let details = part.details.as_mut()?;
        details.orders[unit] = order as u8;
        details.labels[unit] = 0;
        let first: NonNull<Entry> = details.entries.cast();
        // SAFETY: `unit` is one of the chunk's.
        let (entry, start) = unsafe { (first.add(unit), part.chunk.start().add(unit * UNIT)) };
        // SAFETY: the entry is there as long as its chunk is, and nobody else has anything to do with a free piece's.
        let it = unsafe { entry.as_ref() };
        it.holders.restart();
        it.link.store(unit as u32, Ordering::Relaxed);
        // The piece's hold on its home, given back in `Entry::release`.
        std::mem::forget(Arc::clone(&self.home));
        Some(Piece { entry, start, len, memory })
    }

    /// Looks at up to `most` pieces that have come back. Returns whether there were any.
    #[inline]
    pub fn collect(&mut self, most: usize) -> bool {
        if self.returned == 0 {
            if self.home.returned.is_empty() {
                return false;
            }
            self.returned = self.home.returned.take();
        }
        self.collect_some(most);
        true
    }

    fn collect_some(&mut self, most: usize) {
        for _ in 0..most {
            let Some(number) = self.returned.checked_sub(1) else { return };
            let (chunk, unit) = (number as usize / UNITS, number as usize % UNITS);
            let Some(details) = self.inner().chunks[chunk].as_ref().and_then(|part| part.details.as_ref()) else {
                unreachable!("a piece came back to a chunk that is not there")
            };
            let (order, is_lent) = (details.orders[unit].into(), details.labels[unit] == LENT);
            // SAFETY: the entries exist as long as the details. Only the link is borrowed.
            let link = unsafe { &(*details.entries.as_ptr()).entries[unit].link };
            self.returned = link.load(Ordering::Relaxed);
            if is_lent {
                self.inner_mut().lent -= UNIT << order;
            }
            self.give_part(chunk, unit, order);
        }
    }

    /// Keeps a page. Returns its number.
    pub fn open_page(&mut self) -> Option<u32> {
        // A page has no details.
        let (chunk, unit) = self.take_part(PAGE_ORDER, DETAILS)?;
        let page = unit * UNIT / PAGE;
        self.rows[chunk].kept |= 1 << page;
        Some((chunk * PAGES + page) as u32)
    }

    /// Keeps the page with this number no more.
    ///
    /// # Panics
    /// If it is none that is kept.
    pub fn close_page(&mut self, page: u32) {
        let (chunk, bit) = self.kept(page);
        self.rows[chunk].kept &= !bit;
        self.give_part(chunk, page as usize % PAGES * (PAGE / UNIT), PAGE_ORDER);
    }

    /// The bytes of a page that is kept.
    ///
    /// # Panics
    /// If it is none.
    #[inline]
    pub fn page(&self, page: u32) -> &[u8] {
        // SAFETY: it is kept, so it is this owner's alone, and all memory of an arena is initialised.
        unsafe { std::slice::from_raw_parts(self.page_start(page).as_ptr(), PAGE) }
    }

    /// As [`page`](Self::page), to be written.
    ///
    /// # Panics
    /// If it is none that is kept.
    #[inline]
    pub fn page_mut(&mut self, page: u32) -> &mut [u8] {
        // SAFETY: as above, and the owner is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.page_start(page).as_ptr(), PAGE) }
    }

    /// Begins to load `len` bytes of a page, as the bytes of all pages are counted one after the other from `at` on. It
    /// only ever costs or saves time.
    #[inline(always)]
    pub fn prefetch(&self, at: usize, len: usize) {
        if let Some(row) = self.rows.get(at / CHUNK) {
            prefetch_range(row.start.as_ptr().wrapping_add(at % CHUNK), len);
        }
    }

    #[inline(always)]
    fn page_start(&self, page: u32) -> NonNull<u8> {
        let (chunk, _) = self.kept(page);
        // SAFETY: the page lies within its chunk.
        unsafe { self.rows[chunk].start.add(page as usize % PAGES * PAGE) }
    }

    /// The chunk of a page, and the page's bit.
    #[inline(always)]
    fn kept(&self, page: u32) -> (usize, u16) {
        let (chunk, bit) = (page as usize / PAGES, 1 << (page as usize % PAGES));
        assert!(self.rows[chunk].kept & bit != 0, "page {page} is not kept");
        (chunk, bit)
    }

    /// Whether `bytes` lie in a piece of this owner's.
    pub fn owns(&self, bytes: &Bytes) -> bool {
        self.place_of(bytes).is_some()
    }

    /// Notes `label` for the piece that `bytes` lie in, if it is this owner's and not lent; 0 is none.
    pub fn set_label(&mut self, bytes: &Bytes, label: u32) {
        if let Some((chunk, unit)) = self.place_of(bytes)
            && let Some(details) = self.inner_mut().chunks[chunk].as_mut().and_then(|part| part.details.as_mut())
            && details.labels[unit] != LENT
        {
            details.labels[unit] = label;
        }
    }

    /// The chunk and the unit of the piece that `bytes` lie in.
    fn place_of(&self, bytes: &Bytes) -> Option<(usize, usize)> {
        let entry = bytes.owner_of(&PROCESS).or_else(|| bytes.owner_of(&DEVICE))?;
        // SAFETY: the owner of bytes with these tables is an entry, which is there as long as they are.
        let (entries, unit) = unsafe { Entry::place(NonNull::new_unchecked(entry.cast_mut().cast())) };
        // SAFETY: as above. Neither field changes once it has been written.
        let (home, number) = unsafe { ((*entries.as_ptr()).home, (*entries.as_ptr()).number) };
        (home == Arc::as_ptr(&self.home)).then_some((number as usize, unit))
    }

    /// A part of a chunk: of one that has details if there are no `details` bytes for them.
    fn take_part(&mut self, order: usize, details: usize) -> Option<(usize, usize)> {
        self.collect(COLLECTED);
        let found = self.inner().roomy_chunk(order);
        let has_details = |chunk: usize| self.inner().chunks[chunk].as_ref().is_some_and(|part| part.details.is_some());
        if details < DETAILS && !found.is_some_and(has_details) {
            return None;
        }
        let chunk = found.or_else(|| self.take_chunk())?;
        let inner = self.inner_mut();
        let part = inner.chunks[chunk].as_mut()?;
        let unit = part.buddies.take(order)?;
        part.note_used(unit, order, true);
        inner.used += UNIT << order;
        inner.note_room(chunk);
        Some((chunk, unit))
    }

    fn give_part(&mut self, chunk: usize, unit: usize, order: usize) {
        let inner = self.inner_mut();
        let Some(part) = inner.chunks[chunk].as_mut() else { return };
        part.note_used(unit, order, false);
        inner.used -= UNIT << order;
        if inner.cleared == Some(chunk * PAGES + unit * UNIT / PAGE) {
            inner.hidden.push((unit, order));
            return;
        }
        part.buddies.give(unit, order);
        inner.note_room(chunk);
        self.release_if_free(chunk);
    }

    fn take_chunk(&mut self) -> Option<usize> {
        let most = self.most;
        let inner = self.inner_mut();
        if inner.held >= most {
            return None;
        }
        let chunk = Chunk::take(&inner.arena.shared)?;
        let row = Row { start: chunk.start(), kept: 0 };
        let part = Part { chunk, buddies: Buddies::new(), used: [0; PAGES], details: None };
        inner.held += 1;
        let number = match inner.vacant.pop() {
            Some(number) => number as usize,
            None => {
                inner.chunks.push(None);
                inner.chunks.len() - 1
            }
        };
        inner.chunks[number] = Some(part);
        inner.note_room(number);
        match self.rows.get_mut(number) {
            Some(before) => *before = row,
            None => self.rows.push(row),
        }
        Some(number)
    }

    /// Gives the chunk back to the arena if it is all free.
    fn release_if_free(&mut self, chunk: usize) {
        let inner = self.inner_mut();
        let Some(part) = &inner.chunks[chunk] else { return };
        if part.buddies.counts[ORDERS - 1] == 0 {
            return;
        }
        inner.details -= if part.details.is_some() { DETAILS } else { 0 };
        inner.chunks[chunk] = None;
        inner.vacant.push(chunk as u32);
        inner.held -= 1;
        inner.note_room(chunk);
    }

    #[inline(always)]
    fn inner(&self) -> &Inner {
        self.inner.as_ref().expect("it is there until it is dropped")
    }

    #[inline(always)]
    fn inner_mut(&mut self) -> &mut Inner {
        self.inner.as_mut().expect("it is there until it is dropped")
    }
}

/// Bytes of what is to be known of a chunk's pieces.
const DETAILS: usize = size_of::<Details>() + size_of::<Entries>();
/// Pieces that have come back and are looked at when one is taken.
const COLLECTED: usize = 32;

impl Inner {
    /// The first chunk with a free part of the smallest order from `order` on that there is.
    fn roomy_chunk(&self, order: usize) -> Option<usize> {
        self.roomy[order..].iter().find_map(|words| {
            let word = words.iter().position(|word| *word != 0)?;
            Some(word * 64 + words[word].trailing_zeros() as usize)
        })
    }

    /// What is free of `chunk` has changed.
    fn note_room(&mut self, chunk: usize) {
        let counts = self.chunks[chunk].as_ref().map_or([0; ORDERS], |part| part.buddies.counts);
        for (words, count) in self.roomy.iter_mut().zip(counts) {
            if words.len() <= chunk / 64 {
                words.resize(chunk / 64 + 1, 0);
            }
            let bit = 1 << (chunk % 64);
            words[chunk / 64] = words[chunk / 64] & !bit | if count > 0 { bit } else { 0 };
        }
    }
}

impl Part {
    fn note_used(&mut self, unit: usize, order: usize, is_used: bool) {
        const UNITS_OF_PAGE: usize = PAGE / UNIT;
        let each = (1 << order).min(UNITS_OF_PAGE) as u8;
        for used in &mut self.used[unit / UNITS_OF_PAGE..][..(1usize << order).div_ceil(UNITS_OF_PAGE)] {
            *used = if is_used { *used + each } else { *used - each };
        }
    }
}

impl Details {
    fn new(home: *const Home, number: u32) -> Box<Details> {
        let entry = |_| Entry { holders: RefCount::one(), link: AtomicU32::new(0) };
        let entries = Entries { entries: std::array::from_fn(entry), home, number };
        let entries = NonNull::from(Box::leak(Box::new(entries)));
        Box::new(Details { entries, orders: [0; UNITS], labels: [0; UNITS] })
    }
}

impl Drop for Details {
    fn drop(&mut self) {
        // SAFETY: from a box, and no piece of the chunk is taken: the owner gives it back then, or has been left by the
        // last.
        drop(unsafe { Box::from_raw(self.entries.as_ptr()) });
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        // What is elsewhere keeps its home, which keeps its memory.
        let mut left = self.home.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *left = self.inner.take();
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pieces({} bytes in use of {})", self.used(), self.held())
    }
}

/// The order of the smallest part with room for `len` bytes.
fn order_of(len: usize) -> usize {
    len.div_ceil(UNIT).max(1).next_power_of_two().trailing_zeros() as usize
}
