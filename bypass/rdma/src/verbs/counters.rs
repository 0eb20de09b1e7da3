//! Counters that peers update with atomic operations.

use super::{Error, Pd, destroyed};
use crate::provider::{Access, Handle, Keys, Provider};
use linerate_bypass as bypass;
use std::sync::Arc;

/// Counters on which peers can do atomic operations only: an operation returns the old value, and nothing else reads
/// or writes them. Locally they can only be [loaded](Self::load); see [`linerate_bypass::RemoteCounters`] for the
/// ordering.
///
/// Clones share the counters, which stay registered until the last one is dropped.
pub struct Counters<C: Provider>(Arc<Inner<C>>);

struct Inner<C: Provider> {
    pd: Pd<C>,
    handle: Handle,
    keys: Keys,
    // Dropped after the memory is deregistered.
    memory: Arc<bypass::RemoteCounters>,
}

impl<C: Provider> Counters<C> {
    /// Registers `memory`. A peer that guesses the R_Key can count, too.
    pub fn open(pd: &Pd<C>, memory: Arc<bypass::RemoteCounters>) -> Result<Self, Error> {
        let range = memory.range();
        let start = std::ptr::with_exposed_provenance_mut(range.start);
        let access = Access { local_write: true, remote_atomic: true, ..Access::default() };
        // SAFETY: the protection domain is live. The memory stays mapped until it is deregistered. The program uses
        // atomic loads only, so that the device may change whole words at any time.
        let registered = unsafe { pd.0.provider.reg_mr(pd.0.handle, start, range.len(), access) };
        let (handle, keys) = registered.map_err(Error::new("register counters"))?;
        Ok(Counters(Arc::new(Inner { pd: pd.clone(), handle, keys, memory })))
    }

    /// Returns the address of the first counter. The others follow, eight bytes each.
    pub fn address(&self) -> u64 {
        self.0.memory.range().start as u64
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
        self.0.memory.load(at)
    }
}

impl<C: Provider> Clone for Counters<C> {
    fn clone(&self) -> Self {
        Counters(self.0.clone())
    }
}

impl<C: Provider> Drop for Inner<C> {
    fn drop(&mut self) {
        // SAFETY: registered in `open`; no local request names the region.
        destroyed("memory region", unsafe { self.pd.0.provider.dereg_mr(self.handle) });
    }
}
