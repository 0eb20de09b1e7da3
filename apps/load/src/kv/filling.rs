//! Which keys a worker still sets before the load begins.

use super::plan::Keyspace;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Keys that a worker takes at a time.
const CHUNK: u64 = 256;
/// SETs on the way on all connections together, and on each at least.
const TOGETHER: usize = 4096;
const EACH_AT_LEAST: usize = 8;
/// And at most.
const EACH_AT_MOST: usize = 256;

/// The keys of one worker, which takes them from all that are left.
#[derive(Debug)]
pub struct Filling {
    /// Keys that were taken, and keys whose SET was lost with its connection.
    chunk: Range<u64>,
    again: Vec<u64>,
    on_the_way: u64,
    depth: usize,
}

impl Filling {
    /// Nothing has been taken yet.
    pub fn new(space: &Keyspace) -> Self {
        let per_connection = (TOGETHER / space.plan.connections.max(1)).clamp(EACH_AT_LEAST, EACH_AT_MOST);
        let depth = per_connection.max(space.plan.depth);
        Filling { chunk: 0..0, again: Vec::new(), on_the_way: 0, depth }
    }

    /// SETs on the way on each connection.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// A key that is to be set.
    pub fn next(&mut self, space: &Keyspace) -> Option<u64> {
        let number = self.again.pop().or_else(|| {
            if self.chunk.is_empty() && space.to_fill.load(Relaxed) < space.plan.keys {
                let from = space.to_fill.fetch_add(CHUNK, Relaxed).min(space.plan.keys);
                self.chunk = from..(from + CHUNK).min(space.plan.keys);
            }
            self.chunk.next()
        })?;
        self.on_the_way += 1;
        Some(number)
    }

    /// One SET has been answered, or is given up.
    pub fn answered(&mut self) {
        self.on_the_way -= 1;
    }

    /// The SETs of `numbers` have been lost with their connection, and are to be done again.
    pub fn lost(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let before = self.again.len();
        self.again.extend(numbers);
        self.on_the_way -= (self.again.len() - before) as u64;
    }

    /// Whether all that was taken has been answered, and nothing is left to take.
    pub fn is_done(&self, space: &Keyspace) -> bool {
        let nothing_left = self.chunk.is_empty() && self.again.is_empty();
        nothing_left && self.on_the_way == 0 && space.to_fill.load(Relaxed) >= space.plan.keys
    }
}
