//! Counters that peers update with atomic operations.

use super::pd::Registration;
use super::{Error, Pd};
use crate::provider::{Access, Provider};
use linerate_bypass as bypass;
use std::sync::Arc;

/// Counters on which peers can do atomic operations only: an operation returns the old value, and nothing else reads
/// or writes them. Locally they can only be [loaded](Self::load); see [`linerate_bypass::RemoteCounters`] for the
/// ordering.
///
/// Clones share the counters, which stay registered until the last one is dropped.
pub struct Counters<C: Provider>(Arc<Registration<C, Arc<bypass::RemoteCounters>>>);

impl<C: Provider> Counters<C> {
    /// Registers `memory`. A peer that guesses the R_Key can count, too.
    pub fn open(pd: &Pd<C>, memory: Arc<bypass::RemoteCounters>) -> Result<Self, Error> {
        let access = Access { local_write: true, remote_atomic: true, ..Access::default() };
        // SAFETY: the memory stays mapped as long as `memory`. The program uses atomic loads only, so that the device
        // may change whole words at any time.
        let mr = unsafe { Registration::new(pd, memory.range(), access, memory, "register counters") };
        Ok(Counters(Arc::new(mr?)))
    }

    /// Returns the address of the first counter. The others follow, eight bytes each.
    pub fn address(&self) -> u64 {
        self.0.range.start as u64
    }

    /// Returns the R_Key.
    pub fn rkey(&self) -> u32 {
        self.0.keys.remote
    }

    /// Loads counter `at`, counted from 0.
    ///
    /// # Panics
    /// If there are fewer counters.
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        self.0.kept.load(at)
    }
}

impl<C: Provider> Clone for Counters<C> {
    fn clone(&self) -> Self {
        Counters(self.0.clone())
    }
}
