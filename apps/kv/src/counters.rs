//! Names of the counters that clients change with RDMA atomics.
//!
//! The RDMA device changes the counters on behalf of the clients. This module assigns names to them and reads them. A
//! name keeps its counter until the server ends.

use linerate_bypass::RemoteCounters;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Counters and their names.
#[derive(Debug)]
pub struct CounterNames {
    numbers: Arc<RemoteCounters>,
    /// Locked by the commands that look up a counter, not by increments.
    names: Mutex<HashMap<Box<[u8]>, usize>>,
}

/// Error of an assignment of a counter to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoCounter {
    #[error("counter names have 1 to {} bytes", CounterNames::LONGEST)]
    Name,
    #[error("all {0} counters have names: start the server with a larger kv serve --counters N")]
    Full(usize),
}

impl CounterNames {
    /// Length limit of a name.
    pub const LONGEST: usize = 250;

    /// Creates `count` counters, at least one, all 0.
    pub fn new(count: usize) -> io::Result<Self> {
        Ok(CounterNames { numbers: Arc::new(RemoteCounters::new(count)?), names: Mutex::default() })
    }

    /// Returns the counters, to be registered for remote atomics and nothing else.
    pub fn numbers(&self) -> &Arc<RemoteCounters> {
        &self.numbers
    }

    pub fn len(&self) -> usize {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn capacity(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the offset in bytes of the counter `name`. The first request for a name assigns a counter to it.
    pub fn offset(&self, name: &[u8]) -> Result<u64, NoCounter> {
        if !(1..=CounterNames::LONGEST).contains(&name.len()) {
            return Err(NoCounter::Name);
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let next = names.len();
        let at = match names.get(name) {
            Some(at) => *at,
            None if next == self.capacity() => return Err(NoCounter::Full(next)),
            None => *names.entry(name.into()).or_insert(next),
        };
        Ok((at * size_of::<u64>()) as u64)
    }

    /// Returns the counter `name` as the processor sees it, if it exists.
    pub fn value(&self, name: &[u8]) -> Option<u64> {
        let at = *self.names.lock().unwrap_or_else(PoisonError::into_inner).get(name)?;
        Some(self.numbers.load(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_keeps_its_own_counter() {
        let names = CounterNames::new(3).unwrap();
        assert!(names.is_empty());
        for _ in 0..2 {
            for (at, name) in [&b"a"[..], b"A", b"a\0"].into_iter().enumerate() {
                assert_eq!(names.offset(name), Ok(at as u64 * 8));
                assert_eq!(names.value(name), Some(0));
            }
        }
        assert_eq!((names.len(), names.capacity()), (3, 3));
        assert_eq!(names.offset(b"b"), Err(NoCounter::Full(3)));
        assert_eq!((names.value(b"b"), names.len()), (None, 3));
    }

    #[test]
    fn name_length_is_limited() {
        let names = CounterNames::new(2).unwrap();
        assert_eq!(names.offset(b""), Err(NoCounter::Name));
        assert_eq!(names.offset(&[b'x'; CounterNames::LONGEST + 1]), Err(NoCounter::Name));
        assert_eq!(names.offset(&[0xff; CounterNames::LONGEST]), Ok(0));
    }
}
