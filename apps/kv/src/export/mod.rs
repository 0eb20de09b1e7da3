//! Strings that peers read by themselves, with READs of RDMA: an index and a log in memory that is theirs to read.
//!
//! | file | what is in it |
//! |------|---------------|
//! | `format.rs` | how it lies in memory, byte by byte |
//! | `writer.rs` | a shard's part, kept in step with the shard |
//! | `reader.rs` | what a peer makes of the bytes that it has read |
//!
//! It is a cache of the store, and forgets: what was written long ago, what is long, and what has no place in its bucket. Who does
//! not find a key there asks for it as ever. What is found is what the key had when its bucket was read.

mod format;
mod reader;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

pub use format::Layout;
pub use reader::{Candidate, Extent, Next, Search};
pub use writer::Writer;

use linerate_bypass::Published;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The memory that peers may read, and how what they look for lies in it.
#[derive(Debug)]
pub struct Export {
    memory: Arc<Published>,
    layout: Layout,
    /// The shards that have a writer.
    written: Box<[AtomicBool]>,
}

impl Export {
    /// Nothing yet, laid out as `layout` says, in hugepages if there are.
    pub fn new(layout: Layout, hugepages: bool) -> io::Result<Self> {
        let bytes = usize::try_from(layout.bytes()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let memory = Arc::new(Published::new(bytes, hugepages)?);
        Ok(Export { memory, layout, written: (0..layout.shards()).map(|_| AtomicBool::new(false)).collect() })
    }

    /// The memory, to be opened to peers who may read it and do nothing else with it.
    pub fn memory(&self) -> &Arc<Published> {
        &self.memory
    }

    /// What peers must be told beside where the memory is.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The one who writes the part of `shard`.
    ///
    /// # Panics
    /// If there is one, or no such shard.
    pub fn writer(&self, shard: usize) -> Writer {
        assert!(!self.written[shard].swap(true, Ordering::Relaxed), "shard {shard} has two writers");
        Writer::new(self.memory.clone(), self.layout, shard)
    }
}
