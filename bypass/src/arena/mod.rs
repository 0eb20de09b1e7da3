//! Arena: bounded memory shared by devices and applications, allocated in blocks.
//!
//! A block is written by one owner ([`ArenaMut`]) and then shared as [`Bytes`](linerate_service::Bytes), which a port
//! sends in place. Block sizes are an eighth apart. Each size class has a lock-free list of free blocks for all
//! threads. If a list is empty, more blocks of its size are carved from the remaining memory. Carved memory keeps its
//! size class; if a class has no block, a block up to twice as large is allocated instead. A [`BuddyArena`] serves
//! owners whose memory must move between sizes; it takes chunks of memory that is not carved.
//!
//! ```
//! use linerate_bypass::arena::{Arena, ArenaConfig};
//!
//! let arena = Arena::new(ArenaConfig { bytes: 1 << 20, hugepages: false })?;
//! let mut block = arena.alloc(5).expect("nothing was allocated yet");
//! block.copy_from_slice(b"value");
//! let value = block.freeze();
//! let sent = value.clone();
//! assert_eq!(sent.as_ptr(), value.as_ptr());
//! # Ok::<(), linerate_bypass::arena::ArenaError>(())
//! ```

mod block;
mod buddy;
mod chunk;
mod class;
pub(crate) mod hugepages;
mod region;

pub use block::ArenaMut;
pub use buddy::{BuddyArena, BuddyMut, Evacuation};
pub use hugepages::NoHugepages;
pub use region::Backing;
pub(crate) use region::Region;

use crate::sync::free_list::FreeList;
use block::Header;
use chunk::{CHUNK, Taken};
use class::{CLASSES, HEADER, class_of, stride_of};
use linerate_service::Memory;
use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Granularity of block numbers in bytes.
const UNIT: usize = 16;
/// Maximum size of an arena: a [`BuddyArena`] has 32-bit numbers for its smallest blocks.
const MAX_BYTES: usize = 1 << 40;
/// Size of the part of an arena in which blocks are carved: blocks have 32-bit numbers, one of which means none. The
/// part after it serves chunks.
const MAX_CARVED: usize = (u32::MAX as usize) * UNIT;
/// Alignment of the bytes of blocks of 500 bytes or more, which lets devices write whole cache lines.
const LINE: usize = 64;
/// Bytes that are carved into small blocks at once.
const SPAN: usize = 64 << 10;
/// Number of larger classes from which a class without blocks allocates: up to twice the size.
const LARGER: usize = 8;

/// Configuration of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaConfig {
    /// Size in bytes, including 16 bytes of header per block.
    pub bytes: usize,
    /// Uses hugepages if enough are free. Otherwise ordinary pages are used, with a warning.
    pub hugepages: bool,
}

impl Default for ArenaConfig {
    fn default() -> Self {
        ArenaConfig { bytes: 256 << 20, hugepages: true }
    }
}

/// Reason that an arena could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum ArenaError {
    #[error("invalid arena size {0}: use 4096 bytes to 1 TiB")]
    Size(usize),
    #[error("cannot map {bytes} bytes for an arena ({error}): use a smaller arena, or add memory")]
    Map { bytes: usize, error: io::Error },
}

/// Handle to an arena. Clones refer to the same arena. The memory exists until the last handle and the last block have
/// been dropped.
#[derive(Clone)]
pub struct Arena {
    shared: Arc<SharedArena>,
}

struct SharedArena {
    region: Region,
    memory: Memory,
    /// Start of the blocks in the region, aligned to 64 bytes.
    base: NonNull<u8>,
    len: usize,
    taken: Taken,
    /// Chunks that were taken and returned.
    free_chunks: FreeList,
    chunk_links: Box<[AtomicU32]>,
    classes: [Class; CLASSES],
}

/// Size class, aligned to a cache line, so that threads that use different classes share none.
#[repr(align(64))]
struct Class {
    free: FreeList,
    carved: AtomicUsize,
    used: AtomicUsize,
}

// SAFETY: mutable state of `SharedArena` is atomic, except the region's release function, which is `Send` and is called
// once, by the thread that drops the region. The memory belongs to the owners of the blocks.
unsafe impl Send for SharedArena {}
// SAFETY: as above.
unsafe impl Sync for SharedArena {}

impl Arena {
    /// Maximum length of a block: 1 MiB.
    pub const MAX_LEN: usize = 1 << 20;

    /// Creates an arena in memory of this process, which DPDK ports cannot access.
    pub fn new(config: ArenaConfig) -> Result<Arena, ArenaError> {
        let ArenaConfig { bytes, hugepages } = config;
        if !(4096..=MAX_BYTES).contains(&bytes) {
            return Err(ArenaError::Size(bytes));
        }
        let map = Region::new(bytes, hugepages, "the arena");
        let region = map.map_err(|error| ArenaError::Map { bytes, error })?;
        Arena::in_region(region, Memory::Process)
    }

    /// Creates an arena in memory provided by the caller, such as EAL's for an arena from which ports send. `release`
    /// frees the memory when the last handle and the last block have been dropped, on any thread. It is also called if
    /// this function fails.
    ///
    /// # Safety
    /// - `start` must be valid for reads and writes of `len` initialised bytes, which no one else uses until `release`
    ///   is called.
    /// - With [`Memory::Device`], the bytes must lie in memory that EAL allocated. Blocks may cross page boundaries.
    pub unsafe fn from_region(
        start: NonNull<u8>,
        len: usize,
        memory: Memory,
        release: impl FnOnce() + Send + 'static,
    ) -> Result<Arena, ArenaError> {
        Arena::in_region(Region::external(start, len, Box::new(release)), memory)
    }

    fn in_region(region: Region, memory: Memory) -> Result<Arena, ArenaError> {
        let skip = region.start.align_offset(64);
        let len = region.len.saturating_sub(skip);
        // A region may exceed the requested size, because it consists of whole pages.
        if len < stride_of(0) || len > MAX_BYTES {
            return Err(ArenaError::Size(region.len));
        }
        // SAFETY: `skip` is less than the region's length.
        let base = unsafe { region.start.add(skip) };
        let class = |_| Class { free: FreeList::new(), carved: AtomicUsize::new(0), used: AtomicUsize::new(0) };
        let classes = std::array::from_fn(class);
        let shared = SharedArena {
            region,
            memory,
            base,
            len,
            taken: Taken::nothing(),
            free_chunks: FreeList::new(),
            chunk_links: (0..len / CHUNK).map(|_| AtomicU32::new(0)).collect(),
            classes,
        };
        Ok(Arena { shared: Arc::new(shared) })
    }

    /// Allocates a block of `len` bytes with unspecified contents. Returns `None` if there is no memory, or `len`
    /// exceeds [`MAX_LEN`](Self::MAX_LEN).
    pub fn alloc(&self, len: usize) -> Option<ArenaMut> {
        if len > Arena::MAX_LEN {
            return None;
        }
        let shared = &*self.shared;
        let wanted = class_of(len);
        let larger =
            || (wanted + 1..(wanted + 1 + LARGER).min(CLASSES)).find_map(|class| Some((shared.pop(class)?, class)));
        let own = || Some((shared.pop(wanted).or_else(|| SharedArena::carve(&self.shared, wanted))?, wanted));
        let (header, class) = own().or_else(larger)?;
        shared.classes[class].used.fetch_add(1, Ordering::Relaxed);
        // SAFETY: just popped or carved from this arena, in a class whose blocks have room for `len` bytes.
        Some(unsafe { ArenaMut::take(header, &self.shared, class, len) })
    }

    /// Returns the kind of pages.
    pub fn backing(&self) -> Backing {
        self.shared.region.backing
    }

    /// Returns whether devices can access the memory.
    pub fn memory(&self) -> Memory {
        self.shared.memory
    }

    /// Returns the address ranges of the memory, for registration with a device.
    pub fn regions(&self) -> impl Iterator<Item = Range<usize>> {
        let Region { start, len, .. } = self.shared.region;
        std::iter::once(start.addr().get()..start.addr().get() + len)
    }

    /// Returns the memory in use. The numbers are inconsistent while other threads allocate and free.
    pub fn stats(&self) -> ArenaStats {
        let shared = &*self.shared;
        let classes = shared.classes.iter().enumerate().map(|(class, counts)| ClassStats {
            block: stride_of(class) - HEADER,
            blocks: counts.carved.load(Ordering::Relaxed),
            used: counts.used.load(Ordering::Relaxed),
        });
        let (front, chunks) = shared.taken.get();
        let classes: Vec<_> = classes.filter(|class| class.blocks > 0).collect();
        ArenaStats {
            capacity: shared.len,
            carved: front + chunks * CHUNK,
            used: classes.iter().map(|class| class.used * (class.block + HEADER)).sum(),
            classes,
        }
    }
}

impl SharedArena {
    /// Returns the header of a block.
    ///
    /// # Safety
    /// The block with this number exists.
    unsafe fn header(&self, number: u32) -> NonNull<Header> {
        // SAFETY: the block lies within the region.
        unsafe { self.base.add(number as usize * UNIT).cast() }
    }

    fn number(&self, header: NonNull<Header>) -> u32 {
        ((header.addr().get() - self.base.addr().get()) / UNIT) as u32
    }

    fn link(&self, number: u32) -> &AtomicU32 {
        // SAFETY: the free lists contain numbers of carved blocks only. A header never moves, and its link is always an
        // atomic.
        unsafe { &self.header(number).as_ref().link }
    }

    fn pop(&self, class: usize) -> Option<NonNull<Header>> {
        let number = self.classes[class].free.pop(|number| self.link(number))?;
        // SAFETY: the number was in the free list.
        Some(unsafe { self.header(number) })
    }

    /// Carves blocks of `class`. Returns the first, and adds the others to the free list.
    fn carve(this: &Arc<SharedArena>, class: usize) -> Option<NonNull<Header>> {
        let stride = stride_of(class);
        let start = |carved: usize| (carved + HEADER).next_multiple_of(LINE) - HEADER;
        let blocks = |carved: usize, chunks: usize| {
            (this.front_end(chunks).saturating_sub(start(carved)) / stride).min((SPAN / stride).max(1))
        };
        let more = |carved: usize, chunks: usize| {
            let blocks = blocks(carved, chunks);
            (blocks > 0).then(|| (start(carved) + blocks * stride, chunks))
        };
        let (carved, chunks) = this.taken.update(more)?;
        let blocks = blocks(carved, chunks);
        let number = |block: usize| ((start(carved) + block * stride) / UNIT) as u32;
        for block in 0..blocks {
            // SAFETY: the block lies within the region, and no other thread carves there. Strides are multiples of 16,
            // so it is aligned. The link of the last block is set when the list is pushed.
            unsafe { this.header(number(block)).write(Header::new(Arc::as_ptr(this), number(block + 1))) };
        }
        let counts = &this.classes[class];
        counts.carved.fetch_add(blocks, Ordering::Relaxed);
        if blocks > 1 {
            counts.free.push_chain(number(1), number(blocks - 1), |number| this.link(number));
        }
        // SAFETY: carved above.
        Some(unsafe { this.header(number(0)) })
    }

    /// Adds a block without references to its free list.
    fn free(&self, header: NonNull<Header>, class: usize) {
        let counts = &self.classes[class];
        counts.used.fetch_sub(1, Ordering::Relaxed);
        counts.free.push(self.number(header), |number| self.link(number));
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} bytes of {})", self.shared.len, self.backing())
    }
}

/// Memory in use of an arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaStats {
    /// Total bytes.
    pub capacity: usize,
    /// Bytes carved into blocks, used or free, or taken as chunks. Blocks of any size can be carved from the rest.
    pub carved: usize,
    /// Bytes in used blocks, headers and unused tails included.
    pub used: usize,
    /// Size classes with blocks, smallest first.
    pub classes: Vec<ClassStats>,
}

/// Blocks of one size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassStats {
    /// Maximum length of a block in bytes.
    pub block: usize,
    /// Number of blocks, used or free.
    pub blocks: usize,
    /// Number of used blocks.
    pub used: usize,
}

#[cfg(test)]
mod tests;
