//! Pool of blocks for copies of received data that a service keeps.

use linerate_bypass::{BufferPool, Bytes};

/// Block size in bytes: enough for a segment of an Ethernet link.
const BLOCK: usize = 2048;
/// Free blocks kept for reuse, and blocks in use beyond which copies are on the heap.
const KEPT: usize = 256;
const HELD: usize = 1 << 14;

/// Pool of recycled blocks.
pub(crate) struct CopyPool(BufferPool);

impl CopyPool {
    pub fn new() -> Self {
        CopyPool(BufferPool::new(BLOCK, KEPT, HELD))
    }

    /// Returns a copy of `bytes`, on the heap if they exceed a block or too many blocks are in use.
    pub fn copy(&self, bytes: &[u8]) -> Bytes {
        match self.0.take() {
            Some(mut block) if bytes.len() <= BLOCK => {
                block[..bytes.len()].copy_from_slice(bytes);
                block.freeze(bytes.len())
            }
            _ => Bytes::from(bytes.to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_for_any_size_and_count() {
        let copies = CopyPool::new();
        let of = |n: usize| (0..n).map(|i| (i * 7) as u8).collect::<Vec<_>>();
        for n in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 9000] {
            assert_eq!(&copies.copy(&of(n))[..], of(n));
        }
        let held: Vec<_> = (0..HELD + 10).map(|n| copies.copy(&n.to_be_bytes())).collect();
        assert!(held.iter().enumerate().all(|(n, bytes)| bytes[..] == n.to_be_bytes()));
        drop(held);
        assert!(copies.0.in_use() == 0);
    }
}
