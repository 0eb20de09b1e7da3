//! Protection domains, memory regions and memory windows.

use super::sink::Sink;
use super::{Error, destroyed};
use crate::provider::{Access, Handle, Keys, Provider, Sge};
use linerate_bypass::Arena;
use linerate_service::Bytes;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Protection domain. Only objects of the same domain can be used together.
pub struct Pd<C: Provider>(pub(super) Arc<PdInner<C>>);

pub(super) struct PdInner<C: Provider> {
    pub provider: Arc<C>,
    pub handle: Handle,
}

impl<C: Provider> Pd<C> {
    /// Allocates a protection domain on the device of `provider`.
    pub fn new(provider: &Arc<C>) -> Result<Self, Error> {
        let handle = provider.alloc_pd().map_err(Error::new("make a protection domain"))?;
        Ok(Pd(Arc::new(PdInner { provider: provider.clone(), handle })))
    }

    /// Returns the error of allocating a memory window, if any.
    pub(crate) fn window_error(&self) -> Option<Error> {
        // SAFETY: the protection domain is live, and the window is deallocated once.
        let result = unsafe {
            let provider = &self.0.provider;
            provider.alloc_mw(self.0.handle).and_then(|(mw, _)| provider.dealloc_mw(mw))
        };
        result.map_err(Error::new("make a memory window")).err()
    }

    /// Returns the device.
    pub fn provider(&self) -> &Arc<C> {
        &self.0.provider
    }

    /// Returns the file descriptor that is readable while an asynchronous event is pending.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `self` keeps the provider, which keeps the descriptor open.
        unsafe { BorrowedFd::borrow_raw(self.0.provider.async_fd()) }
    }
}

impl<C: Provider> Clone for Pd<C> {
    fn clone(&self) -> Self {
        Pd(self.0.clone())
    }
}

impl<C: Provider> Drop for PdInner<C> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; every object created in the domain holds a clone of this `Arc`.
        destroyed("protection domain", unsafe { self.provider.dealloc_pd(self.handle) });
    }
}

/// Parent domain: the protection domain for the queue pairs of one worker. Their driver omits locks, because one thread
/// uses them.
///
/// Only queue pairs are created there, because their owner passes them on as a whole. A worker's completion queues and
/// shared receive queue are also used by the connector: mlx5 removes the completions of a queue pair that it resets or
/// destroys from its completion queue, and returns their buffers to the shared receive queue.
pub struct ParentDomain<C: Provider>(Arc<ParentDomainInner<C>>);

struct ParentDomainInner<C: Provider> {
    pd: Pd<C>,
    td: Handle,
    handle: Handle,
}

impl<C: Provider> ParentDomain<C> {
    /// Allocates a parent domain of `pd` with a thread domain of its own. Most drivers have none: the error is
    /// `EOPNOTSUPP` or `ENOSYS`.
    pub fn new(pd: &Pd<C>) -> Result<Self, Error> {
        let provider = &pd.0.provider;
        let td = provider.alloc_td().map_err(Error::new("make a thread domain"))?;
        // SAFETY: both domains are live. `Pd` is no parent domain.
        let made = unsafe { provider.alloc_parent_domain(pd.0.handle, td) };
        match made {
            Ok(handle) => Ok(ParentDomain(Arc::new(ParentDomainInner { pd: pd.clone(), td, handle }))),
            Err(error) => {
                // SAFETY: allocated above and not used.
                destroyed("thread domain", unsafe { provider.dealloc_td(td) });
                Err(Error::new("make a parent domain")(error))
            }
        }
    }

    /// Returns the handle for queue pairs of `pd`, unless this is the parent of another domain.
    pub(super) fn of(&self, pd: &Pd<C>) -> Option<Handle> {
        Arc::ptr_eq(&self.0.pd.0, &pd.0).then_some(self.0.handle)
    }
}

impl<C: Provider> Clone for ParentDomain<C> {
    fn clone(&self) -> Self {
        ParentDomain(self.0.clone())
    }
}

impl<C: Provider> Drop for ParentDomainInner<C> {
    fn drop(&mut self) {
        let provider = &self.pd.0.provider;
        // SAFETY: allocated in `new`; queue pairs created there keep a clone of the `Arc`.
        destroyed("parent domain", unsafe { provider.dealloc_pd(self.handle) });
        // SAFETY: allocated in `new`; its only parent domain is gone.
        destroyed("thread domain", unsafe { provider.dealloc_td(self.td) });
    }
}

/// Memory region, with the owner that keeps its memory mapped.
pub(super) struct Registration<C: Provider, K = Kept> {
    pd: Pd<C>,
    pub handle: Handle,
    pub keys: Keys,
    pub range: Range<usize>,
    /// Dropped after the memory is deregistered.
    pub kept: K,
}

impl<C: Provider, K> Registration<C, K> {
    /// Registers `range`. `operation` describes the call in errors.
    ///
    /// # Safety
    /// The memory stays mapped as long as `kept` exists. The program's accesses do not conflict with the accesses of
    /// devices that `access` permits and requests perform.
    pub unsafe fn new(
        pd: &Pd<C>,
        range: Range<usize>,
        access: Access,
        kept: K,
        operation: &'static str,
    ) -> Result<Self, Error> {
        let start = std::ptr::with_exposed_provenance_mut(range.start);
        // SAFETY: the domain is live. The caller guarantees the memory, which `kept` keeps until it is deregistered.
        let registered = unsafe { pd.0.provider.reg_mr(pd.0.handle, start, range.len(), access) };
        let (handle, keys) = registered.map_err(Error::new(operation))?;
        Ok(Registration { pd: pd.clone(), handle, keys, range, kept })
    }
}

impl<C: Provider, K> Drop for Registration<C, K> {
    fn drop(&mut self) {
        // SAFETY: registered in `new`. Queue pairs, shared receive queues and windows that name the region keep it. A
        // registration of one slice is dropped after its window was invalidated, or together with it.
        destroyed("memory region", unsafe { self.pd.0.provider.dereg_mr(self.handle) });
    }
}

/// Registered memory of arenas. It stays registered and mapped until the last clone is dropped.
pub struct Mr<C: Provider>(Arc<MrInner<C>>);

struct MrInner<C: Provider> {
    parts: Vec<Registration<C>>,
    sink: Option<Sink<C>>,
    pd: Pd<C>,
}

/// Owner of registered memory.
#[expect(dead_code, reason = "dropped after the memory is deregistered")]
pub(super) enum Kept {
    Arena(Arena),
    Slice(Bytes),
}

impl<C: Provider> Mr<C> {
    /// Registers all memory of `arenas`. Peers can access it only through a [`Mw`].
    ///
    /// With a `sink`, READs are stored there and copied out: over iWARP, a READ response arrives as a write of the
    /// peer, and the READ announces an R_Key that opens the whole region for writes at any time.
    pub fn new(pd: &Pd<C>, arenas: &[Arena], sink: Option<Arena>) -> Result<Self, Error> {
        let access = Access { local_write: true, bind: true, relaxed: true, ..Access::default() };
        let part = |arena: &Arena| {
            let range = arena.regions().next().expect("an arena has a region");
            let kept = Kept::Arena(arena.clone());
            // SAFETY: the memory stays mapped as long as the arena. Arena blocks are plain bytes; the device writes
            // only those that were handed over for writing.
            unsafe { Registration::new(pd, range, access, kept, "register memory") }
        };
        let parts = arenas.iter().map(part).collect::<Result<_, Error>>()?;
        let sink = sink.map(|sink| Sink::new(pd, sink)).transpose()?;
        Ok(Mr(Arc::new(MrInner { parts, sink, pd: pd.clone() })))
    }

    /// Returns the sink of READs, if they need one.
    #[inline]
    pub(super) fn sink(&self) -> Option<&Sink<C>> {
        self.0.sink.as_ref()
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd<C> {
        &self.0.pd
    }

    /// Returns true if `bytes` lie in the region.
    #[inline]
    pub fn contains(&self, bytes: &[u8]) -> bool {
        self.part(bytes).is_some()
    }

    /// Registers `bytes` alone, so that a window bound to the registration cannot reach beyond them. Peers can access
    /// them only through a [`Mw`].
    pub(super) fn alone(&self, bytes: &Bytes) -> Result<Registration<C>, Error> {
        let access = Access { bind: true, ..Access::default() };
        let start = bytes.as_ptr().expose_provenance();
        let (range, kept) = (start..start + bytes.len(), Kept::Slice(bytes.clone()));
        // SAFETY: the bytes stay in place while a clone exists. Nothing writes them: `Bytes` is immutable and the
        // registration grants no write access.
        unsafe { Registration::new(self.pd(), range, access, kept, "register a slice") }
    }

    #[inline]
    pub(super) fn part(&self, bytes: &[u8]) -> Option<&Registration<C>> {
        let start = bytes.as_ptr().addr();
        self.0.parts.iter().find(|part| part.range.start <= start && start + bytes.len() <= part.range.end)
    }

    /// Returns the scatter/gather element of `bytes`, or `None` if they are not in the region.
    #[inline]
    pub(super) fn sge(&self, bytes: &[u8]) -> Option<Sge> {
        let part = self.part(bytes)?;
        let len = u32::try_from(bytes.len()).ok()?;
        Some(Sge { address: bytes.as_ptr().addr() as u64, len, lkey: part.keys.local })
    }
}

impl<C: Provider> Clone for Mr<C> {
    fn clone(&self) -> Self {
        Mr(self.0.clone())
    }
}

impl<C: Provider> std::fmt::Debug for Mw<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({:#x})", self.key)
    }
}

/// Type 2 memory window. While it is bound, a peer can read a part of a region through it.
pub struct Mw<C: Provider> {
    mr: Mr<C>,
    pub(super) handle: Handle,
    pub(super) key: u32,
}

impl<C: Provider> Mw<C> {
    /// Allocates an unbound window for parts of `mr`.
    pub fn new(mr: &Mr<C>) -> Result<Self, Error> {
        let pd = mr.pd();
        // SAFETY: the protection domain is live.
        let made = unsafe { pd.0.provider.alloc_mw(pd.0.handle) };
        let (handle, key) = made.map_err(Error::new("make a memory window"))?;
        Ok(Mw { mr: mr.clone(), handle, key })
    }

    /// Returns the R_Key of the next bind: the same window index with another lowest byte, so that the old key
    /// becomes invalid.
    pub(super) fn next_key(&self) -> u32 {
        self.key & !0xff | (self.key + 1) & 0xff
    }
}

impl<C: Provider> Drop for Mw<C> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; requests that bind the window own it.
        destroyed("memory window", unsafe { self.mr.pd().0.provider.dealloc_mw(self.handle) });
    }
}
