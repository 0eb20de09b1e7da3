//! Registered memory: regions, windows, and access to them (IBA 10.6).

use crate::table::{errno, require};
use linerate_rdma_provider::{Access, Handle, Sge};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Access that a request needs and a region or window must permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    LocalRead,
    LocalWrite,
    RemoteRead,
    RemoteWrite,
    RemoteAtomic,
}

impl Need {
    fn is_met(self, access: Access) -> bool {
        match self {
            Need::LocalRead => true,
            Need::LocalWrite => access.local_write,
            Need::RemoteRead => access.remote_read,
            Need::RemoteWrite => access.remote_write,
            Need::RemoteAtomic => access.remote_atomic,
        }
    }
}

/// Access denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Denied;

/// Part of a region, used before the engine processes another call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    start: u64,
    len: usize,
}

impl Span {
    const EMPTY: Span = Span { start: 0, len: 0 };

    /// Copies the bytes from `from` on to `out`, which must not exceed the span.
    pub fn read(self, from: usize, out: &mut [u8]) {
        assert!(from + out.len() <= self.len, "read outside of a span");
        if out.is_empty() {
            return;
        }
        let start: *const u8 = ptr::with_exposed_provenance(self.start as usize + from);
        // SAFETY: the bytes lie in a region, checked when the span was created and above. Its owner keeps the memory
        // mapped until it deregisters the region, which needs the engine that is borrowed meanwhile. `out` is memory
        // of a packet.
        unsafe { ptr::copy_nonoverlapping(start, out.as_mut_ptr(), out.len()) };
    }

    /// Copies `bytes` to the position `from`. They must not exceed the span.
    pub fn write(self, from: usize, bytes: &[u8]) {
        assert!(from + bytes.len() <= self.len, "write outside of a span");
        if bytes.is_empty() {
            return;
        }
        let start: *mut u8 = ptr::with_exposed_provenance_mut(self.start as usize + from);
        // SAFETY: as for `read`. The region permits the write; its owner does not use the memory while a request of its
        // own names it, or knowingly shares it with the peer.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    }

    /// Replaces the aligned number of eight bytes with the result of `change`, if any. Returns the old number.
    pub fn update(self, change: impl Fn(u64) -> Option<u64>) -> u64 {
        assert!(self.len == 8 && self.start.is_multiple_of(8), "not an aligned number");
        // SAFETY: the span is eight aligned bytes of a region for atomic operations, whose memory the owner keeps
        // mapped and accesses with atomic operations only.
        let number = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(self.start as usize)) };
        number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).unwrap_or_else(|was| was)
    }
}

/// Memory that a key names.
#[derive(Debug, Clone, Copy)]
enum Target {
    Region {
        start: u64,
        len: u64,
        access: Access,
    },
    /// Type 2B window, which only one queue pair can use.
    Window {
        bound: Option<Bound>,
    },
}

/// Part of a region that a window opens.
#[derive(Debug, Clone, Copy)]
struct Bound {
    qp: Handle,
    region: u32,
    address: u64,
    len: u64,
    access: Access,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    pd: Handle,
    key: u32,
    target: Target,
}

/// Regions and windows of a device, by the upper 24 bits of their keys.
pub(crate) struct Memory {
    entries: Vec<Option<Entry>>,
    /// Free indices, oldest first, so that the key of a destroyed object is not used again soon.
    free: std::collections::VecDeque<usize>,
    random: fastrand::Rng,
    pub regions: u32,
    pub windows: u32,
}

/// Returns whether `len` bytes at `address` lie within `whole` bytes at `start`.
fn covers(start: u64, whole: u64, address: u64, len: u64) -> bool {
    address.checked_sub(start).is_some_and(|offset| offset <= whole && len <= whole - offset)
}

impl Memory {
    pub fn new(seed: u64) -> Self {
        Memory {
            // Key 0 names nothing.
            entries: vec![None],
            free: std::collections::VecDeque::new(),
            random: fastrand::Rng::with_seed(seed),
            regions: 0,
            windows: 0,
        }
    }

    fn add(&mut self, pd: Handle, target: Target) -> u32 {
        const REUSE_AFTER: usize = 1024;
        let index = if self.free.len() > REUSE_AFTER { self.free.pop_front() } else { None };
        let index = index.unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        let key = (index as u32) << 8 | self.random.u32(0..256);
        self.entries[index] = Some(Entry { pd, key, target });
        key
    }

    fn remove(&mut self, key: u32) -> io::Result<Entry> {
        let index = (key >> 8) as usize;
        let entry = self.entries.get_mut(index).and_then(Option::take).ok_or_else(|| errno(libc::EINVAL))?;
        self.free.push_back(index);
        Ok(entry)
    }

    fn entry(&self, key: u32) -> Result<&Entry, Denied> {
        self.entries.get((key >> 8) as usize).and_then(Option::as_ref).filter(|entry| entry.key == key).ok_or(Denied)
    }

    /// Registers memory. Returns the key.
    pub fn register(&mut self, pd: Handle, start: *mut u8, len: usize, access: Access) -> io::Result<u32> {
        let writes = access.remote_write || access.remote_atomic;
        // Remote write access requires local write access (ibv_reg_mr(3)).
        require(len > 0 && (!writes || access.local_write), libc::EINVAL)?;
        let start = start.expose_provenance() as u64;
        self.regions += 1;
        Ok(self.add(pd, Target::Region { start, len: len as u64, access }))
    }

    /// Deregisters the region with this key, unless a window is bound to it.
    pub fn deregister(&mut self, key: u32) -> io::Result<()> {
        let names =
            |entry: &Entry| matches!(entry.target, Target::Window { bound: Some(bound) } if bound.region == key);
        require(self.windows == 0 || !self.entries.iter().flatten().any(names), libc::EBUSY)?;
        self.remove(key)?;
        self.regions -= 1;
        Ok(())
    }

    /// Allocates an unbound window. Returns its key, whose lower eight bits change with each bind.
    pub fn allocate_window(&mut self, pd: Handle) -> u32 {
        self.windows += 1;
        self.add(pd, Target::Window { bound: None })
    }

    /// Deallocates the window with the index of `key`.
    pub fn deallocate_window(&mut self, key: u32) -> io::Result<()> {
        self.remove(key)?;
        self.windows -= 1;
        Ok(())
    }

    /// Binds a free window to a part of a region of the same domain that permits it, by a key with the window's index.
    #[expect(clippy::too_many_arguments, reason = "fields of the request")]
    pub fn bind(
        &mut self,
        pd: Handle,
        qp: Handle,
        window: u32,
        key: u32,
        region: u32,
        (address, len): (u64, u64),
        access: Access,
    ) -> Result<(), Denied> {
        let base = self.entry(region)?;
        let Target::Region { start, len: whole, access: base_access } = base.target else { return Err(Denied) };
        let writes = access.remote_write || access.remote_atomic;
        let permits = base.pd == pd
            && base_access.bind
            && len > 0
            && (!writes || base_access.local_write)
            && covers(start, whole, address, len);
        let entry = self.entries.get_mut((window >> 8) as usize).and_then(Option::as_mut).ok_or(Denied)?;
        let is_free =
            entry.pd == pd && matches!(entry.target, Target::Window { bound: None }) && key >> 8 == window >> 8;
        if !permits || !is_free {
            return Err(Denied);
        }
        entry.key = key;
        entry.target = Target::Window { bound: Some(Bound { qp, region, address, len, access }) };
        Ok(())
    }

    /// Unbinds the window with this key, which must be bound to `qp`. The key of a region cannot be invalidated.
    pub fn invalidate(&mut self, qp: Handle, key: u32) -> Result<(), Denied> {
        self.entry(key)?;
        let entry = self.entries[(key >> 8) as usize].as_mut().ok_or(Denied)?;
        match entry.target {
            Target::Window { bound: Some(bound) } if bound.qp == qp => {
                entry.target = Target::Window { bound: None };
                Ok(())
            }
            _ => Err(Denied),
        }
    }

    /// Returns whether a window is bound to `qp`.
    pub fn is_bound(&self, qp: Handle) -> bool {
        let names = |entry: &Entry| matches!(entry.target, Target::Window { bound: Some(bound) } if bound.qp == qp);
        self.windows > 0 && self.entries.iter().flatten().any(names)
    }

    /// Unbinds the windows of `qp`.
    pub fn unbind_all(&mut self, qp: Handle) {
        for entry in self.entries.iter_mut().flatten() {
            if matches!(entry.target, Target::Window { bound: Some(bound) } if bound.qp == qp) {
                entry.target = Target::Window { bound: None };
            }
        }
    }

    /// Returns key, address, length and access of each region.
    #[cfg(any(test, feature = "testing"))]
    pub fn registered(&self) -> impl Iterator<Item = (u32, u64, u64, Access)> {
        self.entries.iter().flatten().filter_map(|entry| match entry.target {
            Target::Region { start, len, access } => Some((entry.key, start, len, access)),
            Target::Window { .. } => None,
        })
    }

    /// Returns whether an object of the protection domain exists.
    pub fn uses(&self, pd: Handle) -> bool {
        self.entries.iter().flatten().any(|entry| entry.pd == pd)
    }

    /// Returns the memory of a scatter/gather element.
    pub fn local(&self, pd: Handle, sge: &Sge, need: Need) -> Result<Span, Denied> {
        if sge.len == 0 {
            return Ok(Span::EMPTY);
        }
        let entry = self.entry(sge.lkey)?;
        match entry.target {
            Target::Region { start, len, access }
                if entry.pd == pd && need.is_met(access) && covers(start, len, sge.address, sge.len.into()) =>
            {
                Ok(Span { start: sge.address, len: sge.len as usize })
            }
            _ => Err(Denied),
        }
    }

    /// Returns the memory that a request of the peer names by the key of a region or window. The key is not checked for
    /// zero bytes (IBA 9.7.4.1.5).
    pub fn remote(
        &self,
        pd: Handle,
        qp: Handle,
        key: u32,
        (address, len): (u64, u64),
        need: Need,
    ) -> Result<Span, Denied> {
        if len == 0 {
            return Ok(Span::EMPTY);
        }
        let entry = self.entry(key)?;
        let is_permitted = entry.pd == pd
            && match entry.target {
                Target::Region { start, len: whole, access } => {
                    need.is_met(access) && covers(start, whole, address, len)
                }
                // The rights of the window were checked against the region at bind; the region's own do not apply.
                Target::Window { bound: Some(bound) } => {
                    bound.qp == qp && need.is_met(bound.access) && covers(bound.address, bound.len, address, len)
                }
                Target::Window { bound: None } => false,
            };
        if is_permitted { Ok(Span { start: address, len: len as usize }) } else { Err(Denied) }
    }

    /// Returns whether all elements name accessible memory.
    pub fn check(&self, pd: Handle, sges: &[Sge], need: Need) -> Result<(), Denied> {
        sges.iter().try_for_each(|sge| self.local(pd, sge, need).map(|_| ()))
    }

    /// Copies the bytes of `sges` from position `from` on to `out`.
    pub fn gather(&self, pd: Handle, sges: &[Sge], from: usize, out: &mut [u8]) -> Result<(), Denied> {
        self.each_part(pd, sges, (from, out.len()), Need::LocalRead, |span, at, part| span.read(at, &mut out[part]))
    }

    /// Copies `bytes` to position `from` of `sges`.
    #[inline]
    pub fn scatter(&self, pd: Handle, sges: &[Sge], from: usize, bytes: &[u8]) -> Result<(), Denied> {
        if let [sge] = sges
            && from + bytes.len() <= sge.len as usize
        {
            self.local(pd, sge, Need::LocalWrite)?.write(from, bytes);
            return Ok(());
        }
        self.each_part(pd, sges, (from, bytes.len()), Need::LocalWrite, |span, at, part| span.write(at, &bytes[part]))
    }

    /// Visits the parts of elements that `len` bytes from position `from` on occupy: the element, the offset in it, and
    /// the range of the bytes.
    fn each_part(
        &self,
        pd: Handle,
        sges: &[Sge],
        (mut from, len): (usize, usize),
        need: Need,
        mut visit: impl FnMut(Span, usize, std::ops::Range<usize>),
    ) -> Result<(), Denied> {
        let mut done = 0;
        for sge in sges {
            let size = sge.len as usize;
            if from >= size {
                from -= size;
                continue;
            }
            let part = (size - from).min(len - done);
            visit(self.local(pd, sge, need)?, from, done..done + part);
            done += part;
            from = 0;
            if done == len {
                return Ok(());
            }
        }
        if done == len { Ok(()) } else { Err(Denied) }
    }
}
