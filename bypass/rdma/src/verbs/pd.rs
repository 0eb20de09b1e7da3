//! Protection domains, and the memory that they open to a device.

use super::{Error, destroyed};
use crate::provider::{Access, Handle, Keys, Provider, Sge};
use linerate_bypass::arena::ArenaMut;
use linerate_bypass::{Arena, Bytes};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A protection domain: what is made in one can be used together, and with nothing else.
pub struct Pd<C: Provider>(pub(super) Arc<PdInner<C>>);

pub(super) struct PdInner<C: Provider> {
    pub provider: Arc<C>,
    pub handle: Handle,
}

impl<C: Provider> Pd<C> {
    /// A domain of the device behind `provider`.
    pub fn new(provider: &Arc<C>) -> Result<Self, Error> {
        let handle = provider.alloc_pd().map_err(Error::new("make a protection domain"))?;
        Ok(Pd(Arc::new(PdInner { provider: provider.clone(), handle })))
    }

    /// The device.
    pub fn provider(&self) -> &Arc<C> {
        &self.0.provider
    }

    /// What is readable when the device has an asynchronous event.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the device, which `self` keeps, has it open.
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
        // SAFETY: made in `new`; whoever made something in it has a clone of it.
        destroyed("protection domain", unsafe { self.provider.dealloc_pd(self.handle) });
    }
}

/// The memory of arenas, open to the device. It stays so, and mapped, while anyone has a clone.
pub struct Mr<C: Provider>(Arc<MrInner<C>>);

struct MrInner<C: Provider> {
    parts: Vec<MrPart<C>>,
    pd: Pd<C>,
}

/// One arena's memory, or that of one slice.
pub(super) struct MrPart<C: Provider> {
    pd: Pd<C>,
    pub handle: Handle,
    pub keys: Keys,
    pub range: Range<usize>,
    _kept: Kept,
}

/// What keeps registered memory mapped.
#[expect(dead_code, reason = "it is there to be dropped after the memory is deregistered")]
enum Kept {
    Arena(Arena),
    Slice(Bytes),
    Block(ArenaMut),
}

impl<C: Provider> Mr<C> {
    /// Registers all memory of `arenas`. The peers may do nothing with it but through a [`Mw`].
    ///
    /// With `reads_are_writes`, peers may write it who know its key: what iWARP asks of the memory that a READ fills.
    pub fn new(pd: &Pd<C>, arenas: &[Arena], reads_are_writes: bool) -> Result<Self, Error> {
        let access = Access { local_write: true, bind: true, remote_write: reads_are_writes, ..Access::default() };
        let part = |arena: &Arena| {
            let range = arena.regions().next().expect("an arena has a region");
            // SAFETY: the domain is live, and the memory stays mapped as long as the arena, which is kept until after the
            // region is deregistered. The arena's blocks are bytes that a device may read and write; it is told to write
            // only those that were handed over to be written.
            let registered = unsafe { pd.0.provider.reg_mr(pd.0.handle, range.start as *mut u8, range.len(), access) };
            let (handle, keys) = registered.map_err(Error::new("register memory"))?;
            Ok(MrPart { pd: pd.clone(), handle, keys, range, _kept: Kept::Arena(arena.clone()) })
        };
        let parts = arenas.iter().map(part).collect::<Result<_, Error>>()?;
        Ok(Mr(Arc::new(MrInner { parts, pd: pd.clone() })))
    }

    /// The domain.
    pub fn pd(&self) -> &Pd<C> {
        &self.0.pd
    }

    /// Whether `bytes` lie in it.
    #[inline]
    pub fn contains(&self, bytes: &[u8]) -> bool {
        self.part(bytes).is_some()
    }

    /// Registers `bytes` once more, for themselves: what is bound to that cannot reach beyond them. Peers may do nothing with
    /// them but through a [`Mw`].
    pub(super) fn alone(&self, bytes: &Bytes) -> Result<MrPart<C>, Error> {
        let pd = self.pd();
        let start = bytes.as_ptr().cast_mut();
        let access = Access { bind: true, ..Access::default() };
        // SAFETY: the domain is live, and the bytes stay where they are as long as there is a clone, which is kept until after
        // the region is deregistered. Nobody writes them, and the device is not let to.
        let registered = unsafe { pd.0.provider.reg_mr(pd.0.handle, start, bytes.len(), access) };
        let (handle, keys) = registered.map_err(Error::new("register a slice"))?;
        let range = start.addr()..start.addr() + bytes.len();
        Ok(MrPart { pd: pd.clone(), handle, keys, range, _kept: Kept::Slice(bytes.clone()) })
    }

    /// Registers `block` once more, for itself, as memory that a peer writes whenever it likes through a [`Mw`] on it.
    pub(super) fn written_by_peer(&self, mut block: ArenaMut) -> Result<MrPart<C>, Error> {
        let pd = self.pd();
        let range = block.as_mut_ptr_range();
        let access = Access { local_write: true, bind: true, ..Access::default() };
        // SAFETY: the domain is live, and the block, which nobody else has, stays where it is until after the region is
        // deregistered. From here on there is no reference to its bytes: it is only kept.
        let registered = unsafe { pd.0.provider.reg_mr(pd.0.handle, range.start, block.len(), access) };
        let (handle, keys) = registered.map_err(Error::new("register a ring"))?;
        let range = range.start.addr()..range.end.addr();
        Ok(MrPart { pd: pd.clone(), handle, keys, range, _kept: Kept::Block(block) })
    }

    #[inline]
    pub(super) fn part(&self, bytes: &[u8]) -> Option<&MrPart<C>> {
        let start = bytes.as_ptr().addr();
        self.0.parts.iter().find(|part| part.range.start <= start && start + bytes.len() <= part.range.end)
    }

    /// `bytes`, as a device is told of them; `None` if they lie elsewhere.
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

impl<C: Provider> Drop for MrPart<C> {
    fn drop(&mut self) {
        // SAFETY: made in `Mr`. A queue pair, a shared queue or a window that names it has a clone of the region, and what is
        // opened by a window on a slice alone goes after the window was closed, or with it.
        destroyed("memory region", unsafe { self.pd.0.provider.dereg_mr(self.handle) });
    }
}

impl<C: Provider> std::fmt::Debug for Mw<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({:#x})", self.key)
    }
}

/// A memory window of type 2: while it is bound, a peer may read a piece of a region through it.
pub struct Mw<C: Provider> {
    mr: Mr<C>,
    pub(super) handle: Handle,
    pub(super) key: u32,
}

impl<C: Provider> Mw<C> {
    /// A window on parts of `mr`, bound to none.
    pub fn new(mr: &Mr<C>) -> Result<Self, Error> {
        let pd = mr.pd();
        // SAFETY: the domain is live.
        let made = unsafe { pd.0.provider.alloc_mw(pd.0.handle) };
        let (handle, key) = made.map_err(Error::new("make a memory window"))?;
        Ok(Mw { mr: mr.clone(), handle, key })
    }

    /// The key that the next binding has: the same window, another lowest byte, so that the old key opens nothing.
    pub(super) fn next_key(&self) -> u32 {
        self.key & !0xff | (self.key + 1) & 0xff
    }
}

impl<C: Provider> Drop for Mw<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`; requests that bind it keep it.
        destroyed("memory window", unsafe { self.mr.pd().0.provider.dealloc_mw(self.handle) });
    }
}
