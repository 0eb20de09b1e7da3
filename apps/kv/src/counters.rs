//! Counters that clients count with by themselves, over RDMA: which number is whose.
//!
//! The numbers are a device's, which changes them for its peers; here they are given names, and looked at. A name that has a number
//! keeps it until the server ends.

use linerate_bypass::RemoteCounters;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Numbers, and what they are called.
#[derive(Debug)]
pub struct Names {
    numbers: Arc<RemoteCounters>,
    /// Asked by the commands that find a counter once, and not by who counts.
    names: Mutex<HashMap<Box<[u8]>, usize>>,
}

/// Why a name has no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoCounter {
    /// The name is empty or too long.
    #[error("names of counters have 1 to {} bytes", Names::LONGEST)]
    Name,
    /// All numbers have names.
    #[error("all {0} counters have names: start the server with a larger kv serve --counters N")]
    Full(usize),
}

impl Names {
    /// Bytes of the longest name.
    pub const LONGEST: usize = 250;

    /// Names for so many numbers, one at least, which are all 0.
    pub fn new(count: usize) -> io::Result<Self> {
        Ok(Names { numbers: Arc::new(RemoteCounters::new(count)?), names: Mutex::default() })
    }

    /// The numbers, to be opened to peers who may count with them and do nothing else.
    pub fn numbers(&self) -> &Arc<RemoteCounters> {
        &self.numbers
    }

    /// How many numbers have names.
    pub fn len(&self) -> usize {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many may have.
    pub fn most(&self) -> usize {
        self.numbers.len()
    }

    /// Bytes from the first number to the one called `name`, which one is called from now on.
    pub fn offset(&self, name: &[u8]) -> Result<u64, NoCounter> {
        if !(1..=Names::LONGEST).contains(&name.len()) {
            return Err(NoCounter::Name);
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let next = names.len();
        let at = match names.get(name) {
            Some(at) => *at,
            None if next == self.most() => return Err(NoCounter::Full(next)),
            None => *names.entry(name.into()).or_insert(next),
        };
        Ok((at * size_of::<u64>()) as u64)
    }

    /// The number called `name` as this machine's processor sees it, if one is.
    pub fn value(&self, name: &[u8]) -> Option<u64> {
        let at = *self.names.lock().unwrap_or_else(PoisonError::into_inner).get(name)?;
        Some(self.numbers.load(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_and_no_two_share_one() {
        let names = Names::new(3).unwrap();
        assert!(names.is_empty());
        for _ in 0..2 {
            for (at, name) in [&b"a"[..], b"A", b"a\0"].into_iter().enumerate() {
                assert_eq!(names.offset(name), Ok(at as u64 * 8));
                assert_eq!(names.value(name), Some(0));
            }
        }
        assert_eq!((names.len(), names.most()), (3, 3));
        assert_eq!(names.offset(b"b"), Err(NoCounter::Full(3)));
        assert_eq!((names.value(b"b"), names.len()), (None, 3));
    }

    #[test]
    fn names_have_bounds() {
        let names = Names::new(2).unwrap();
        assert_eq!(names.offset(b""), Err(NoCounter::Name));
        assert_eq!(names.offset(&[b'x'; Names::LONGEST + 1]), Err(NoCounter::Name));
        assert_eq!(names.offset(&[0xff; Names::LONGEST]), Ok(0));
    }
}
