//! Filling: each worker's share of the keys to set before measuring.

use super::plan::Keyspace;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Keys that a worker takes at a time.
const CHUNK: u64 = 256;
/// Target number of outstanding SETs on all connections, and bounds per connection.
const TOGETHER: usize = 4096;
const EACH_AT_LEAST: usize = 8;
const EACH_AT_MOST: usize = 256;

/// Keys that one worker has taken from the remaining ones.
#[derive(Debug)]
pub struct Filling {
    /// Keys taken and not yet sent, and keys whose SET was lost with its connection.
    chunk: Range<u64>,
    retries: Vec<u64>,
    outstanding: u64,
    depth: usize,
}

impl Filling {
    /// Creates the state without any keys taken.
    pub fn new(space: &Keyspace) -> Self {
        let per_connection = (TOGETHER / space.plan.connections.max(1)).clamp(EACH_AT_LEAST, EACH_AT_MOST);
        let depth = per_connection.max(space.plan.depth);
        Filling { chunk: 0..0, retries: Vec::new(), outstanding: 0, depth }
    }

    /// Returns the outstanding SETs per connection.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the next key to set.
    pub fn next(&mut self, space: &Keyspace) -> Option<u64> {
        let number = self.retries.pop().or_else(|| {
            if self.chunk.is_empty() && space.to_fill.load(Relaxed) < space.plan.keys {
                let from = space.to_fill.fetch_add(CHUNK, Relaxed).min(space.plan.keys);
                self.chunk = from..(from + CHUNK).min(space.plan.keys);
            }
            self.chunk.next()
        })?;
        self.outstanding += 1;
        Some(number)
    }

    /// Counts a SET that was answered or given up.
    pub fn answered(&mut self) {
        self.outstanding -= 1;
    }

    /// Schedules the SETs of `numbers` retries: they were lost with their connection.
    pub fn lost(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let before = self.retries.len();
        self.retries.extend(numbers);
        self.outstanding -= (self.retries.len() - before) as u64;
    }

    /// Returns whether all taken keys have been answered and none remain.
    pub fn is_done(&self, space: &Keyspace) -> bool {
        let nothing_left = self.chunk.is_empty() && self.retries.is_empty();
        nothing_left && self.outstanding == 0 && space.to_fill.load(Relaxed) >= space.plan.keys
    }
}
