//! The memory that devices and applications share: one bounded piece of it, cut into blocks.
//!
//! A block is written by one owner ([`ArenaMut`]) and then shared as [`Bytes`](crate::Bytes), which a port sends
//! from where they lie. Blocks come in sizes an eighth apart; each size has a list of free blocks that any thread
//! takes from and gives back to without a lock. When a list is empty, more blocks of its size are carved from what
//! is left of the memory. What was carved keeps its size: memory does not move from one size to another, except
//! that a block up to twice as large is given out when there is no other. Whoever needs memory that does is the owner
//! of [`Pieces`], which have all that is not in blocks.
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
mod region;

pub use block::ArenaMut;
pub use buddy::{Clearing, Piece, Pieces};
pub use region::Backing;
pub(crate) use region::Region;

use crate::Memory;
use crate::sync::free_list::FreeList;
use block::Header;
use chunk::{CHUNK, Taken};
use class::{CLASSES, HEADER, class_of, stride_of};
use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Blocks are numbered by how many of these lie before them.
const UNIT: usize = 16;
/// The most memory whose blocks have numbers of 32 bits, one of which means none.
const MAX_BYTES: usize = (u32::MAX as usize) * UNIT;
/// Small blocks are carved together, as many as fit into this many bytes.
const SPAN: usize = 64 << 10;
/// A class gives out blocks of this many classes above it when it has none: up to twice the size.
const LARGER: usize = 8;

/// What an arena is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaConfig {
    /// How much memory it has, the blocks' headers of 16 bytes included.
    pub bytes: usize,
    /// Take hugepages if there are enough; else ordinary pages, and a warning says so.
    pub hugepages: bool,
}

impl Default for ArenaConfig {
    fn default() -> Self {
        ArenaConfig { bytes: 256 << 20, hugepages: true }
    }
}

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// It would have no room for a block, or more memory than its blocks can be numbered in.
    #[error("an arena cannot have {0} bytes: give it 4096 at least and 64 GiB at most")]
    Size(usize),
    /// The system did not give the memory.
    #[error("cannot map {bytes} bytes for an arena ({error}): give it less, or the machine more")]
    Map {
        /// How much was asked for.
        bytes: usize,
        /// What the system said.
        error: io::Error,
    },
}

/// The owner of the memory that devices and applications share. Clones are handles on the same arena; the memory
/// stays until the last handle and the last block are gone.
#[derive(Clone)]
pub struct Arena {
    shared: Arc<Shared>,
}

struct Shared {
    region: Region,
    memory: Memory,
    /// The part of the region that blocks lie in: from the first address that is a multiple of 64.
    base: NonNull<u8>,
    len: usize,
    taken: Taken,
    /// Chunks that have been taken, and are not.
    free_chunks: FreeList,
    chunk_links: Box<[AtomicU32]>,
    classes: [Class; CLASSES],
}

/// The blocks of one size. Aligned, so that threads that use different sizes do not disturb each other.
#[repr(align(64))]
struct Class {
    free: FreeList,
    carved: AtomicUsize,
    used: AtomicUsize,
}

// SAFETY: what changes in `Shared` is atomic, except the function that releases the region: that is called once, by
// whichever thread drops it, and may be (`Send`). The memory belongs to the owners of the blocks.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Arena {
    /// The longest block that can be asked for: 1 MiB.
    pub const MAX_LEN: usize = 1 << 20;

    /// An arena in memory of this process, which no DPDK port reaches.
    pub fn new(config: ArenaConfig) -> Result<Arena, ArenaError> {
        let ArenaConfig { bytes, hugepages } = config;
        if !(4096..=MAX_BYTES).contains(&bytes) {
            return Err(ArenaError::Size(bytes));
        }
        let map = Region::new(bytes, hugepages, "the arena");
        let region = map.map_err(|error| ArenaError::Map { bytes, error })?;
        Arena::in_region(region, Memory::Process)
    }

    /// An arena in memory that the caller has: EAL's, for one that ports send from. `release` gives the memory back
    /// when the last handle and the last block are gone, on whichever thread that happens; it is called also when
    /// this fails.
    ///
    /// # Safety
    /// - `start` must be valid for reads and writes of `len` bytes, which are initialised and which nobody else uses
    ///   until `release` is called.
    /// - With [`Memory::Device`] they must lie in memory that EAL allocated. Blocks lie anywhere in it: across the
    ///   border of two pages, too.
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
        // A region may be somewhat longer than what was asked for, as pages are.
        if len < stride_of(0) || len > MAX_BYTES {
            return Err(ArenaError::Size(region.len));
        }
        // SAFETY: `skip` is less than the region's length.
        let base = unsafe { region.start.add(skip) };
        let class = |_| Class { free: FreeList::new(), carved: AtomicUsize::new(0), used: AtomicUsize::new(0) };
        let classes = std::array::from_fn(class);
        let shared = Shared {
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

    /// A block of `len` bytes, which hold whatever was there; `None` when no memory is left for it, or it is
    /// longer than [`MAX_LEN`](Self::MAX_LEN).
    pub fn alloc(&self, len: usize) -> Option<ArenaMut> {
        if len > Arena::MAX_LEN {
            return None;
        }
        let shared = &*self.shared;
        let wanted = class_of(len);
        let larger =
            || (wanted + 1..(wanted + 1 + LARGER).min(CLASSES)).find_map(|class| Some((shared.pop(class)?, class)));
        let own = || Some((shared.pop(wanted).or_else(|| Shared::carve(&self.shared, wanted))?, wanted));
        let (header, class) = own().or_else(larger)?;
        shared.classes[class].used.fetch_add(1, Ordering::Relaxed);
        // SAFETY: popped or carved just now, from this arena, in a class whose blocks have room for `len` bytes.
        Some(unsafe { ArenaMut::take(header, &self.shared, class, len) })
    }

    /// Where its memory is from.
    pub fn backing(&self) -> Backing {
        self.shared.region.backing
    }

    /// Who reaches its memory.
    pub fn memory(&self) -> Memory {
        self.shared.memory
    }

    /// The addresses of its memory, for a device that must be told before it may reach it.
    pub fn regions(&self) -> impl Iterator<Item = Range<usize>> {
        let Region { start, len, .. } = self.shared.region;
        std::iter::once(start.addr().get()..start.addr().get() + len)
    }

    /// How much of it is in use. While other threads allocate and free, the numbers need not add up.
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

impl Shared {
    /// The header of the block with this number.
    ///
    /// # Safety
    /// There is such a block.
    unsafe fn header(&self, number: u32) -> NonNull<Header> {
        // SAFETY: the block lies within the region.
        unsafe { self.base.add(number as usize * UNIT).cast() }
    }

    fn number(&self, header: NonNull<Header>) -> u32 {
        ((header.addr().get() - self.base.addr().get()) / UNIT) as u32
    }

    fn link(&self, number: u32) -> &AtomicU32 {
        // SAFETY: only numbers of blocks that were carved are in the free lists. A header stays where it is, and
        // its link is an atomic at all times.
        unsafe { &self.header(number).as_ref().link }
    }

    fn pop(&self, class: usize) -> Option<NonNull<Header>> {
        let number = self.classes[class].free.pop(|number| self.link(number))?;
        // SAFETY: it was in the free list.
        Some(unsafe { self.header(number) })
    }

    /// Makes blocks of `class` from memory that is none yet, and returns the first; the others are free.
    fn carve(this: &Arc<Shared>, class: usize) -> Option<NonNull<Header>> {
        let stride = stride_of(class);
        let blocks = |carved: usize, chunks: usize| {
            (this.front_end(chunks).saturating_sub(carved) / stride).min((SPAN / stride).max(1))
        };
        let more = |carved: usize, chunks: usize| {
            let blocks = blocks(carved, chunks);
            (blocks > 0).then(|| (carved + blocks * stride, chunks))
        };
        let (carved, chunks) = this.taken.update(more)?;
        let blocks = blocks(carved, chunks);
        let number = |block: usize| ((carved + block * stride) / UNIT) as u32;
        for block in 0..blocks {
            // SAFETY: the block lies within the region and nobody else carves there. Strides are multiples of 16,
            // so it is aligned. The last one's link is set when it is pushed.
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

    /// Takes a block back that nobody holds any more.
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

/// How much of an arena is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaStats {
    /// Bytes that there are.
    pub capacity: usize,
    /// Bytes that blocks have been made of, used or free, and that owners of pieces have had; of the rest, blocks of
    /// any size can be made.
    pub carved: usize,
    /// Bytes in blocks that are in use, with their headers and what their users left of them.
    pub used: usize,
    /// The sizes of which there are blocks, the smallest first.
    pub classes: Vec<ClassStats>,
}

/// The blocks of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassStats {
    /// Bytes that a block has room for.
    pub block: usize,
    /// Blocks of this size, free or not.
    pub blocks: usize,
    /// Blocks that are in use.
    pub used: usize,
}

#[cfg(test)]
mod tests;
