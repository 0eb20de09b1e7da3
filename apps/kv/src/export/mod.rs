//! RDMA-readable copy of short strings: an index and a log in memory that clients read with RDMA READ.
//!
//! | file | contents |
//! |------|----------|
//! | `format.rs` | memory format |
//! | `writer.rs` | part of one shard, updated with the shard |
//! | `reader.rs` | client side: evaluation of the bytes read |
//!
//! The export is a cache of the store. It omits old and long strings, and strings without room in their bucket. A
//! client that does not find a key sends a request for it. A value found is the one that the key had when its bucket
//! was read.

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

/// Exported memory and its layout.
#[derive(Debug)]
pub struct Export {
    memory: Arc<Published>,
    layout: Layout,
    /// Shards that have a writer.
    written: Box<[AtomicBool]>,
}

impl Export {
    /// Creates an empty export with this layout, in hugepages if available.
    pub fn new(layout: Layout, hugepages: bool) -> io::Result<Self> {
        let bytes = usize::try_from(layout.bytes()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let memory = Arc::new(Published::new(bytes, hugepages)?);
        Ok(Export { memory, layout, written: (0..layout.shards()).map(|_| AtomicBool::new(false)).collect() })
    }

    /// Returns the memory, to be registered for remote reads and nothing else.
    pub fn memory(&self) -> &Arc<Published> {
        &self.memory
    }

    /// Returns the layout, which clients need in addition to the address.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the writer of the part of `shard`.
    ///
    /// # Panics
    /// Panics if the shard has a writer already, or does not exist.
    pub fn writer(&self, shard: usize) -> Writer {
        assert!(!self.written[shard].swap(true, Ordering::Relaxed), "shard {shard} has two writers");
        Writer::new(self.memory.clone(), self.layout, shard)
    }
}
