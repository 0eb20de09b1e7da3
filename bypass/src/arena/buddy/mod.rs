//! Buddy allocator for one owner, on chunks of an arena.

mod block;
mod evacuation;
mod return_list;
#[cfg(test)]
mod tests;
mod tree;

pub use block::BuddyMut;
pub use evacuation::Evacuation;

use crate::arena::Arena;
use crate::arena::chunk::{CHUNK, Chunk};
use crate::prefetch::prefetch_range;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::refcount::RefCount;
use block::{DEVICE, Entries, Entry, Home, PROCESS};
use linerate_service::Bytes;
use return_list::ReturnList;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use tree::{BuddyTree, ORDERS, UNIT, UNITS};

const PAGE: usize = 64 << 10;
const PAGE_ORDER: usize = (PAGE / UNIT).ilog2() as usize;
/// Pages per chunk.
const PAGES: usize = CHUNK / PAGE;

const EXCLUDED: u32 = u32::MAX;

/// Buddy allocator in an arena, for one thread at a time. Blocks are any power of two from 512 bytes to 1 MiB. Free
/// blocks merge with their tree, so memory moves between sizes.
///
/// A block is a [`BuddyMut`], which may be written, sent and dropped on any thread. It returns through a lock-free
/// list, which the owner collects. Memory for the owner's own use is allocated in pages, which are accessed by number.
///
/// The allocator takes chunks of 1 MiB from the arena, and returns a chunk that is entirely free.
pub struct BuddyArena {
    /// Present until dropped.
    inner: Option<Box<Inner>>,
    /// Start and allocated pages of each chunk.
    pages: Vec<ChunkPages>,
    /// Head of a returned list that has not been collected completely.
    returned: u32,
    home: Arc<Home>,
    max_chunks: usize,
}

#[derive(Clone, Copy)]
struct ChunkPages {
    start: NonNull<u8>,
    /// Bit set of allocated pages.
    allocated: u16,
}

pub(super) struct Inner {
    arena: Arena,
    chunks: Vec<Option<UsedChunk>>,
    vacant: Vec<u32>,
    /// For each order, the bit set of chunks that have a free block of it.
    with_free: [Vec<u64>; ORDERS],
    held: usize,
    used: usize,
    /// Bytes in [excluded](BuddyArena::exclude) blocks.
    excluded: usize,
    table: usize,
    /// Chunk at which the next search for a sparse page starts.
    next_sparse: usize,
    /// Page being evacuated, and the free blocks withheld in it (unit and order).
    evacuated: Option<usize>,
    withheld: Vec<(usize, usize)>,
}

struct UsedChunk {
    chunk: Chunk,
    tree: BuddyTree,
    used: [u8; PAGES],
    /// Block table, from the first block of the chunk on.
    table: Option<Box<BlockTable>>,
}

struct BlockTable {
    /// From a box. Other threads access the table, so it is never borrowed exclusively.
    entries: NonNull<Entries>,
    orders: [u8; UNITS],
    labels: [u32; UNITS],
}

// SAFETY: the owner's state belongs to no thread, and other threads access atomics only.
unsafe impl Send for BuddyArena {}
// SAFETY: `&BuddyArena` only reads the owner's state.
unsafe impl Sync for BuddyArena {}
// SAFETY: as for `BuddyArena`, whose drop leaves it behind. It is only dropped afterwards.
unsafe impl Send for Inner {}

impl BuddyArena {
    /// Length of a page.
    pub const PAGE: usize = PAGE;
    /// Length of the smallest block.
    pub const SMALLEST: usize = UNIT;
    /// Length of the largest block.
    pub const LARGEST: usize = CHUNK;

    /// Pages per chunk.
    pub const PAGES: usize = PAGES;

    /// Creates an allocator without memory.
    pub fn new(arena: Arena) -> Self {
        // The maximum: a reallocation at run time would take about 100 µs.
        let most = arena.stats().capacity / CHUNK;
        let inner = Inner {
            arena,
            chunks: Vec::with_capacity(most),
            vacant: Vec::new(),
            with_free: std::array::from_fn(|_| Vec::new()),
            held: 0,
            used: 0,
            excluded: 0,
            table: 0,
            next_sparse: 0,
            evacuated: None,
            withheld: Vec::new(),
        };
        BuddyArena {
            inner: Some(Box::new(inner)),
            pages: Vec::with_capacity(most),
            returned: 0,
            home: Arc::new(Home { returned: ReturnList::new(), left: std::sync::Mutex::new(None) }),
            max_chunks: usize::MAX,
        }
    }

    /// Limits the memory in chunks to `bytes`, excluded blocks not counted.
    pub fn set_limit(&mut self, bytes: usize) {
        self.max_chunks = (bytes + self.inner().excluded).div_ceil(CHUNK);
    }

    /// Returns the bytes in pages and blocks in use, excluded blocks not counted, and in block tables.
    #[inline]
    pub fn used(&self) -> usize {
        let inner = self.inner();
        inner.used - inner.excluded + inner.table
    }

    /// Excludes the block of `bytes` from [`used`](Self::used) until it returns, if it belongs to this allocator.
    pub fn exclude(&mut self, bytes: &Bytes) {
        let Some((chunk, unit)) = self.block_of(bytes) else { return };
        let inner = self.inner_mut();
        let Some(table) = inner.chunks[chunk].as_mut().and_then(|part| part.table.as_mut()) else { return };
        if table.labels[unit] != EXCLUDED {
            table.labels[unit] = EXCLUDED;
            inner.excluded += UNIT << table.orders[unit];
        }
    }

    /// Returns the maximum number of chunks so far. Page numbers are below this number times [`PAGES`](Self::PAGES).
    pub fn chunks(&self) -> usize {
        self.pages.len()
    }

    /// Returns the bytes in chunks.
    pub fn chunk_bytes(&self) -> usize {
        self.inner().held * CHUNK
    }

    /// Returns whether a block of `len` bytes can be allocated without another chunk.
    pub fn has_free(&self, len: usize) -> bool {
        (order_of(len)..ORDERS).any(|order| self.inner().with_free[order].iter().any(|word| *word != 0))
    }

    /// Allocates a block for `len` bytes, at most [`LARGEST`](Self::LARGEST).
    pub fn alloc(&mut self, len: usize) -> Option<BuddyMut> {
        self.alloc_within(len, usize::MAX)
    }

    /// Allocates a block as [`alloc`](Self::alloc) does, if [`used`](Self::used) grows by at most `most` bytes: the
    /// block, and the block table if the block is the first of its chunk.
    pub fn alloc_within(&mut self, len: usize, most: usize) -> Option<BuddyMut> {
        if len > CHUNK {
            return None;
        }
        let order = order_of(len);
        let table = most.checked_sub(UNIT << order)?;
        let (chunk, unit) = self.alloc_block(order, table)?;
        let home = Arc::as_ptr(&self.home);
        let inner = self.inner_mut();
        let part = inner.chunks[chunk].as_mut()?;
        let memory = inner.arena.memory();
        if part.table.is_none() {
            part.table = Some(BlockTable::new(home, chunk as u32));
            inner.table += TABLE_SIZE;
        }
        let table = part.table.as_mut()?;
        table.orders[unit] = order as u8;
        table.labels[unit] = 0;
        let first: NonNull<Entry> = table.entries.cast();
        // SAFETY: `unit` is a unit of the chunk.
        let (entry, start) = unsafe { (first.add(unit), part.chunk.start().add(unit * UNIT)) };
        // SAFETY: the entry lives as long as its chunk, and no one else accesses the entry of a free block.
        let it = unsafe { entry.as_ref() };
        it.refs.restart();
        it.link.store(unit as u32, Ordering::Relaxed);
        // The block's reference to `home`, released in `Entry::release`.
        std::mem::forget(Arc::clone(&self.home));
        Some(BuddyMut { entry, start, len, memory })
    }

    /// Collects up to `most` returned blocks. Returns whether there were any.
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
            let Some(table) = self.inner().chunks[chunk].as_ref().and_then(|part| part.table.as_ref()) else {
                unreachable!("a block returned to a chunk that does not exist")
            };
            let (order, is_excluded) = (table.orders[unit].into(), table.labels[unit] == EXCLUDED);
            // SAFETY: the entries live as long as the table. Only the link is borrowed.
            let link = unsafe { &(*table.entries.as_ptr()).entries[unit].link };
            self.returned = link.load(Ordering::Relaxed);
            if is_excluded {
                self.inner_mut().excluded -= UNIT << order;
            }
            self.free_block(chunk, unit, order);
        }
    }

    /// Allocates a page. Returns its number.
    pub fn alloc_page(&mut self) -> Option<u32> {
        // A page needs no block table.
        let (chunk, unit) = self.alloc_block(PAGE_ORDER, TABLE_SIZE)?;
        let page = unit * UNIT / PAGE;
        self.pages[chunk].allocated |= 1 << page;
        Some((chunk * PAGES + page) as u32)
    }

    /// Frees a page.
    ///
    /// # Panics
    /// If the page is not allocated.
    pub fn free_page(&mut self, page: u32) {
        let (chunk, bit) = self.allocated(page);
        self.pages[chunk].allocated &= !bit;
        self.free_block(chunk, page as usize % PAGES * (PAGE / UNIT), PAGE_ORDER);
    }

    /// Returns the bytes of an allocated page.
    ///
    /// # Panics
    /// If the page is not allocated.
    #[inline]
    pub fn page(&self, page: u32) -> &[u8] {
        // SAFETY: the page is allocated, so it is exclusive to this owner. All memory of an arena is initialised.
        unsafe { std::slice::from_raw_parts(self.page_start(page).as_ptr(), PAGE) }
    }

    /// Returns the bytes of an allocated page for modification.
    ///
    /// # Panics
    /// If the page is not allocated.
    #[inline]
    pub fn page_mut(&mut self, page: u32) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.page_start(page).as_ptr(), PAGE) }
    }

    /// Prefetches `len` bytes at offset `at`, counted over all pages in order. Affects performance only.
    #[inline(always)]
    pub fn prefetch(&self, at: usize, len: usize) {
        if let Some(pages_of_chunk) = self.pages.get(at / CHUNK) {
            prefetch_range(pages_of_chunk.start.as_ptr().wrapping_add(at % CHUNK), len);
        }
    }

    #[inline(always)]
    fn page_start(&self, page: u32) -> NonNull<u8> {
        let (chunk, _) = self.allocated(page);
        // SAFETY: the page lies within its chunk.
        unsafe { self.pages[chunk].start.add(page as usize % PAGES * PAGE) }
    }

    /// Returns the chunk of an allocated page, and the page's bit.
    #[inline(always)]
    fn allocated(&self, page: u32) -> (usize, u16) {
        let (chunk, bit) = (page as usize / PAGES, 1 << (page as usize % PAGES));
        assert!(self.pages[chunk].allocated & bit != 0, "page {page} is not allocated");
        (chunk, bit)
    }

    /// Returns whether `bytes` lie in a block of this allocator.
    pub fn owns(&self, bytes: &Bytes) -> bool {
        self.block_of(bytes).is_some()
    }

    /// Sets the label of the block of `bytes`, if it belongs to this allocator and is not excluded; 0 is none.
    pub fn set_label(&mut self, bytes: &Bytes, label: u32) {
        if let Some((chunk, unit)) = self.block_of(bytes)
            && let Some(table) = self.inner_mut().chunks[chunk].as_mut().and_then(|part| part.table.as_mut())
            && table.labels[unit] != EXCLUDED
        {
            table.labels[unit] = label;
        }
    }

    /// Returns the chunk and unit of the block of `bytes`.
    fn block_of(&self, bytes: &Bytes) -> Option<(usize, usize)> {
        let entry = bytes.owner_of(&PROCESS).or_else(|| bytes.owner_of(&DEVICE))?;
        // SAFETY: the owner of bytes with these tables is an entry, which lives as long as they do.
        let (entries, unit) = unsafe { Entry::table_and_unit(NonNull::new_unchecked(entry.cast_mut().cast())) };
        // SAFETY: as above. Both fields are constant.
        let (home, number) = unsafe { ((*entries.as_ptr()).home, (*entries.as_ptr()).number) };
        (home == Arc::as_ptr(&self.home)).then_some((number as usize, unit))
    }

    /// Allocates a block of `order`: in a chunk with a block table if `table` is less than the size of a table.
    fn alloc_block(&mut self, order: usize, table: usize) -> Option<(usize, usize)> {
        self.collect(MAX_COLLECTED);
        let found = self.inner().chunk_with_free(order);
        let has_details = |chunk: usize| self.inner().chunks[chunk].as_ref().is_some_and(|part| part.table.is_some());
        if table < TABLE_SIZE && !found.is_some_and(has_details) {
            return None;
        }
        let chunk = found.or_else(|| self.take_chunk())?;
        let inner = self.inner_mut();
        let part = inner.chunks[chunk].as_mut()?;
        let unit = part.tree.alloc(order)?;
        part.note_used(unit, order, true);
        inner.used += UNIT << order;
        inner.update_free(chunk);
        Some((chunk, unit))
    }

    fn free_block(&mut self, chunk: usize, unit: usize, order: usize) {
        let inner = self.inner_mut();
        let Some(part) = inner.chunks[chunk].as_mut() else { return };
        part.note_used(unit, order, false);
        inner.used -= UNIT << order;
        if inner.evacuated == Some(chunk * PAGES + unit * UNIT / PAGE) {
            inner.withheld.push((unit, order));
            return;
        }
        part.tree.free(unit, order);
        inner.update_free(chunk);
        self.release_if_free(chunk);
    }

    fn take_chunk(&mut self) -> Option<usize> {
        let most = self.max_chunks;
        let inner = self.inner_mut();
        if inner.held >= most {
            return None;
        }
        let chunk = Chunk::take(&inner.arena.shared)?;
        let pages_of_chunk = ChunkPages { start: chunk.start(), allocated: 0 };
        let part = UsedChunk { chunk, tree: BuddyTree::new(), used: [0; PAGES], table: None };
        inner.held += 1;
        let number = match inner.vacant.pop() {
            Some(number) => number as usize,
            None => {
                inner.chunks.push(None);
                inner.chunks.len() - 1
            }
        };
        inner.chunks[number] = Some(part);
        inner.update_free(number);
        match self.pages.get_mut(number) {
            Some(before) => *before = pages_of_chunk,
            None => self.pages.push(pages_of_chunk),
        }
        Some(number)
    }

    /// Returns the chunk to the arena if it is entirely free.
    fn release_if_free(&mut self, chunk: usize) {
        let inner = self.inner_mut();
        let Some(part) = &inner.chunks[chunk] else { return };
        if part.tree.counts[ORDERS - 1] == 0 {
            return;
        }
        inner.table -= if part.table.is_some() { TABLE_SIZE } else { 0 };
        inner.chunks[chunk] = None;
        inner.vacant.push(chunk as u32);
        inner.held -= 1;
        inner.update_free(chunk);
    }

    #[inline(always)]
    fn inner(&self) -> &Inner {
        self.inner.as_ref().expect("it is present until the drop")
    }

    #[inline(always)]
    fn inner_mut(&mut self) -> &mut Inner {
        self.inner.as_mut().expect("it is present until the drop")
    }
}

const TABLE_SIZE: usize = size_of::<BlockTable>() + size_of::<Entries>();
/// Maximum number of returned blocks collected per allocation.
const MAX_COLLECTED: usize = 32;

impl Inner {
    /// Returns the first chunk with a free block of the smallest available order from `order` on.
    fn chunk_with_free(&self, order: usize) -> Option<usize> {
        self.with_free[order..].iter().find_map(|words| {
            let word = words.iter().position(|word| *word != 0)?;
            Some(word * 64 + words[word].trailing_zeros() as usize)
        })
    }

    /// Updates the bit sets after a change of the free blocks of `chunk`.
    fn update_free(&mut self, chunk: usize) {
        let counts = self.chunks[chunk].as_ref().map_or([0; ORDERS], |part| part.tree.counts);
        for (words, count) in self.with_free.iter_mut().zip(counts) {
            if words.len() <= chunk / 64 {
                words.resize(chunk / 64 + 1, 0);
            }
            let bit = 1 << (chunk % 64);
            words[chunk / 64] = words[chunk / 64] & !bit | if count > 0 { bit } else { 0 };
        }
    }
}

impl UsedChunk {
    fn note_used(&mut self, unit: usize, order: usize, is_used: bool) {
        const UNITS_OF_PAGE: usize = PAGE / UNIT;
        let each = (1 << order).min(UNITS_OF_PAGE) as u8;
        for used in &mut self.used[unit / UNITS_OF_PAGE..][..(1usize << order).div_ceil(UNITS_OF_PAGE)] {
            *used = if is_used { *used + each } else { *used - each };
        }
    }
}

impl BlockTable {
    fn new(home: *const Home, number: u32) -> Box<BlockTable> {
        let entry = |_| Entry { refs: RefCount::one(), link: AtomicU32::new(0) };
        let entries = Entries { entries: std::array::from_fn(entry), home, number };
        let entries = NonNull::from(Box::leak(Box::new(entries)));
        Box::new(BlockTable { entries, orders: [0; UNITS], labels: [0; UNITS] })
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        // SAFETY: from a box. No block of the chunk is allocated: the owner then returns it, or the last block dropped
        // it.
        drop(unsafe { Box::from_raw(self.entries.as_ptr()) });
    }
}

impl Drop for BuddyArena {
    fn drop(&mut self) {
        // Allocated blocks keep `home` alive, and through it the memory.
        let mut left = self.home.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *left = self.inner.take();
    }
}

impl fmt::Debug for BuddyArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuddyArena({} bytes in use of {})", self.used(), self.chunk_bytes())
    }
}

/// Returns the order of the smallest block for `len` bytes.
fn order_of(len: usize) -> usize {
    len.div_ceil(UNIT).max(1).next_power_of_two().trailing_zeros() as usize
}
