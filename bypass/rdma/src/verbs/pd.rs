//! Protection domains, and the memory that they open to a device.

use super::{Error, destroyed};
use crate::calls::{Access, Calls, Handle, Keys, Segment};
use linerate_bypass::arena::ArenaMut;
use linerate_bypass::{Arena, Bytes};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A protection domain: what is made in one can be used together, and with nothing else.
pub struct Domain<C: Calls>(pub(super) Arc<DomainInner<C>>);

pub(super) struct DomainInner<C: Calls> {
    pub calls: Arc<C>,
    pub handle: Handle,
}

impl<C: Calls> Domain<C> {
    /// A domain of the device behind `calls`.
    pub fn new(calls: &Arc<C>) -> Result<Self, Error> {
        let handle = calls.alloc_domain().map_err(Error::new("make a protection domain"))?;
        Ok(Domain(Arc::new(DomainInner { calls: calls.clone(), handle })))
    }

    /// The device.
    pub fn calls(&self) -> &Arc<C> {
        &self.0.calls
    }

    /// What is readable when the device has an asynchronous event.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the device, which `self` keeps, has it open.
        unsafe { BorrowedFd::borrow_raw(self.0.calls.async_fd()) }
    }
}

impl<C: Calls> Clone for Domain<C> {
    fn clone(&self) -> Self {
        Domain(self.0.clone())
    }
}

impl<C: Calls> Drop for DomainInner<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`; whoever made something in it has a clone of it.
        destroyed("protection domain", unsafe { self.calls.dealloc_domain(self.handle) });
    }
}

/// The memory of arenas, open to the device. It stays so, and mapped, while anyone has a clone.
pub struct Region<C: Calls>(Arc<RegionInner<C>>);

struct RegionInner<C: Calls> {
    parts: Vec<Registered<C>>,
    domain: Domain<C>,
}

/// One arena's memory, or that of one slice.
pub(super) struct Registered<C: Calls> {
    domain: Domain<C>,
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

impl<C: Calls> Region<C> {
    /// Registers all memory of `arenas`. The peers may do nothing with it but through a [`Window`].
    ///
    /// With `reads_are_writes`, peers may write it who know its key: what iWARP asks of the memory that a READ fills.
    pub fn new(domain: &Domain<C>, arenas: &[Arena], reads_are_writes: bool) -> Result<Self, Error> {
        let access = Access { local_write: true, bind: true, remote_write: reads_are_writes, ..Access::default() };
        let part = |arena: &Arena| {
            let range = arena.regions().next().expect("an arena has a region");
            // SAFETY: the domain is live, and the memory stays mapped as long as the arena, which is kept until after the
            // region is deregistered. The arena's blocks are bytes that a device may read and write; it is told to write
            // only those that were handed over to be written.
            let registered =
                unsafe { domain.0.calls.register(domain.0.handle, range.start as *mut u8, range.len(), access) };
            let (handle, keys) = registered.map_err(Error::new("register memory"))?;
            Ok(Registered { domain: domain.clone(), handle, keys, range, _kept: Kept::Arena(arena.clone()) })
        };
        let parts = arenas.iter().map(part).collect::<Result<_, Error>>()?;
        Ok(Region(Arc::new(RegionInner { parts, domain: domain.clone() })))
    }

    /// The domain.
    pub fn domain(&self) -> &Domain<C> {
        &self.0.domain
    }

    /// Whether `bytes` lie in it.
    #[inline]
    pub fn contains(&self, bytes: &[u8]) -> bool {
        self.part(bytes).is_some()
    }

    /// Registers `bytes` once more, for themselves: what is bound to that cannot reach beyond them. Peers may do nothing with
    /// them but through a [`Window`].
    pub(super) fn alone(&self, bytes: &Bytes) -> Result<Registered<C>, Error> {
        let domain = self.domain();
        let start = bytes.as_ptr().cast_mut();
        let access = Access { bind: true, ..Access::default() };
        // SAFETY: the domain is live, and the bytes stay where they are as long as there is a clone, which is kept until after
        // the region is deregistered. Nobody writes them, and the device is not let to.
        let registered = unsafe { domain.0.calls.register(domain.0.handle, start, bytes.len(), access) };
        let (handle, keys) = registered.map_err(Error::new("register a slice"))?;
        let range = start.addr()..start.addr() + bytes.len();
        Ok(Registered { domain: domain.clone(), handle, keys, range, _kept: Kept::Slice(bytes.clone()) })
    }

    /// Registers `block` once more, for itself, as memory that a peer writes whenever it likes through a [`Window`] on it.
    pub(super) fn written_by_peer(&self, mut block: ArenaMut) -> Result<Registered<C>, Error> {
        let domain = self.domain();
        let range = block.as_mut_ptr_range();
        let access = Access { local_write: true, bind: true, ..Access::default() };
        // SAFETY: the domain is live, and the block, which nobody else has, stays where it is until after the region is
        // deregistered. From here on there is no reference to its bytes: it is only kept.
        let registered = unsafe { domain.0.calls.register(domain.0.handle, range.start, block.len(), access) };
        let (handle, keys) = registered.map_err(Error::new("register a ring"))?;
        let range = range.start.addr()..range.end.addr();
        Ok(Registered { domain: domain.clone(), handle, keys, range, _kept: Kept::Block(block) })
    }

    #[inline]
    pub(super) fn part(&self, bytes: &[u8]) -> Option<&Registered<C>> {
        let start = bytes.as_ptr().addr();
        self.0.parts.iter().find(|part| part.range.start <= start && start + bytes.len() <= part.range.end)
    }

    /// `bytes`, as a device is told of them; `None` if they lie elsewhere.
    #[inline]
    pub(super) fn segment(&self, bytes: &[u8]) -> Option<Segment> {
        let part = self.part(bytes)?;
        let len = u32::try_from(bytes.len()).ok()?;
        Some(Segment { address: bytes.as_ptr().addr() as u64, len, local_key: part.keys.local })
    }
}

impl<C: Calls> Clone for Region<C> {
    fn clone(&self) -> Self {
        Region(self.0.clone())
    }
}

impl<C: Calls> Drop for Registered<C> {
    fn drop(&mut self) {
        // SAFETY: made in `Region`. A queue pair, a shared queue or a window that names it has a clone of the region, and what is
        // opened by a window on a slice alone goes after the window was closed, or with it.
        destroyed("memory region", unsafe { self.domain.0.calls.deregister(self.handle) });
    }
}

impl<C: Calls> std::fmt::Debug for Window<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({:#x})", self.key)
    }
}

/// A memory window of type 2: while it is bound, a peer may read a piece of a region through it.
pub struct Window<C: Calls> {
    region: Region<C>,
    pub(super) handle: Handle,
    pub(super) key: u32,
}

impl<C: Calls> Window<C> {
    /// A window on parts of `region`, bound to none.
    pub fn new(region: &Region<C>) -> Result<Self, Error> {
        let domain = region.domain();
        // SAFETY: the domain is live.
        let made = unsafe { domain.0.calls.alloc_window(domain.0.handle) };
        let (handle, key) = made.map_err(Error::new("make a memory window"))?;
        Ok(Window { region: region.clone(), handle, key })
    }

    /// The key that the next binding has: the same window, another lowest byte, so that the old key opens nothing.
    pub(super) fn next_key(&self) -> u32 {
        self.key & !0xff | (self.key + 1) & 0xff
    }
}

impl<C: Calls> Drop for Window<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`; requests that bind it keep it.
        destroyed("memory window", unsafe { self.region.domain().0.calls.dealloc_window(self.handle) });
    }
}
