//! Received bytes that a service keeps, where the engine has them in a buffer that it needs itself.

use linerate_bypass::{BufferPool, Bytes};

/// Bytes of a block: a segment of an ordinary link fits.
const BLOCK: usize = 2048;
/// Blocks kept for the next copies, and blocks that services may hold on to before copies come from the heap.
const KEPT: usize = 256;
const HELD: usize = 1 << 14;

/// Makes copies in recycled blocks.
pub(crate) struct Copies(BufferPool);

impl Copies {
    pub fn new() -> Self {
        Copies(BufferPool::new(BLOCK, KEPT, HELD))
    }

    /// A copy of `bytes`. What is longer than a block, and what comes when too many blocks are held, is made on the
    /// heap.
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
    fn copies_are_exact_whatever_their_size_and_number() {
        let copies = Copies::new();
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
