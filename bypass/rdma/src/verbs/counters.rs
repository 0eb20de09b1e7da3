//! Numbers that peers count with.

use super::{Error, Pd, destroyed};
use crate::provider::{Access, Handle, Keys, Provider};
use linerate_bypass as bypass;
use std::sync::Arc;

/// Numbers on which peers of the domain's queue pairs may do atomic operations, and nothing else: they can neither read nor write
/// them, but by what an operation tells them the number was. Here they are [looked at](Self::load) alone; see
/// [`linerate_bypass::Counters`] for what may be seen.
///
/// Clones are the same numbers, which stay registered until the last is gone.
pub struct Counters<C: Provider>(Arc<Inner<C>>);

struct Inner<C: Provider> {
    pd: Pd<C>,
    handle: Handle,
    keys: Keys,
    // Gone after it is deregistered.
    memory: Arc<bypass::RemoteCounters>,
}

impl<C: Provider> Counters<C> {
    /// Opens `memory`. Whoever can guess the key can count, too.
    pub fn open(pd: &Pd<C>, memory: Arc<bypass::RemoteCounters>) -> Result<Self, Error> {
        let range = memory.range();
        let start = std::ptr::with_exposed_provenance_mut(range.start);
        let access = Access { local_write: true, remote_atomic: true, ..Access::default() };
        // SAFETY: the domain is live. The memory stays mapped until after it is deregistered, and the program reaches it by atomic
        // loads alone, so that the device may change its words, each as a whole, when it likes.
        let registered = unsafe { pd.0.provider.reg_mr(pd.0.handle, start, range.len(), access) };
        let (handle, keys) = registered.map_err(Error::new("register counters"))?;
        Ok(Counters(Arc::new(Inner { pd: pd.clone(), handle, keys, memory })))
    }

    /// The address of the first, for peers; the others follow, eight bytes each.
    pub fn address(&self) -> u64 {
        self.0.memory.range().start as u64
    }

    /// The key that opens them to peers.
    pub fn rkey(&self) -> u32 {
        self.0.keys.remote
    }

    /// The one of this number, counted from 0.
    ///
    /// # Panics
    /// If there are not as many.
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
        // SAFETY: made in `open`; no request of ours names it.
        destroyed("memory region", unsafe { self.pd.0.provider.dereg_mr(self.handle) });
    }
}
