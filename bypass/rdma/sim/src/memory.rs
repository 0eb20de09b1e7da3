//! Keys and memory access.

use super::world::World;
use linerate_rdma_provider::{Access, Handle, Sge};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Access that a request needs and a region or window must permit (IBA 10.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Read by a local request.
    Read,
    /// Write by a local request.
    Write,
    /// Write of READ data over iWARP, which arrives as a write of the peer.
    Sink,
    /// Read by the peer.
    RemoteRead,
    /// Write by the peer.
    RemoteWrite,
    /// Atomic operation of the peer.
    RemoteAtomic,
}

impl Need {
    fn is_met(self, access: Access) -> bool {
        match self {
            Need::Read => true,
            Need::Write => access.local_write,
            Need::Sink => access.local_write && access.remote_write,
            Need::RemoteRead => access.remote_read,
            Need::RemoteWrite => access.remote_write,
            Need::RemoteAtomic => access.remote_atomic,
        }
    }
}

/// Accessible memory: in a region that covers it, or of an inline request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    start: *mut u8,
    len: usize,
}

/// Access denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Denied;

/// Returns true if `len` bytes at `address` are within `whole` bytes at `start`.
pub(super) fn covers(start: u64, whole: u64, address: u64, len: u64) -> bool {
    address >= start
        && address.checked_add(len).is_some_and(|end| start.checked_add(whole).is_some_and(|limit| end <= limit))
}

impl World {
    fn region_by_key(&self, pd: Handle, key: u32) -> Option<Handle> {
        let device = &self.devices[self.pds.device(pd)];
        let &handle = device.keys.get(&(key >> 8))?;
        let mr = self.mrs.get(handle)?;
        (mr.key == key && mr.pd == pd).then_some(handle)
    }

    /// Returns the window with this key that is bound to this queue pair, in its domain.
    pub fn window_by_key(&self, qp: Handle, key: u32) -> Option<Handle> {
        let device = &self.devices[self.qps.device(qp)];
        let &handle = device.keys.get(&(key >> 8))?;
        let mw = self.mws.get(handle)?;
        let is_ours = mw.pd == self.qps[qp].pd && mw.bound.is_some_and(|bound| bound.qp == qp);
        (mw.key == key && is_ours).then_some(handle)
    }

    /// Checks and returns a part of a region.
    fn span(&self, mr: Handle, address: u64, len: u64, need: Need) -> Result<Span, Denied> {
        let mr = &self.mrs[mr];
        if !need.is_met(mr.access) || !covers(mr.start as u64, mr.len as u64, address, len) {
            return Err(Denied);
        }
        Ok(Span { start: ptr::with_exposed_provenance_mut(address as usize), len: len as usize })
    }

    /// Returns the memory of local scatter/gather elements. Empty elements name none.
    pub fn local_spans(&self, pd: Handle, sges: &[Sge], need: Need) -> Result<Vec<Span>, Denied> {
        let parts = sges.iter().filter(|sge| sge.len > 0);
        parts
            .map(|sge| {
                let mr = self.region_by_key(pd, sge.lkey).ok_or(Denied)?;
                self.span(mr, sge.address, u64::from(sge.len), need)
            })
            .collect()
    }

    /// Returns the local memory that a peer's request names by the key of a region or window. The key is not checked
    /// for zero bytes (IBA 9.7.4.1.5).
    pub fn remote_span(&self, qp: Handle, address: u64, len: u64, key: u32, need: Need) -> Result<Vec<Span>, Denied> {
        if len == 0 {
            return Ok(Vec::new());
        }
        if let Some(mr) = self.region_by_key(self.qps[qp].pd, key) {
            return Ok(vec![self.span(mr, address, len, need)?]);
        }
        let bound = self.window_by_key(qp, key).and_then(|mw| self.mws[mw].bound).ok_or(Denied)?;
        if !need.is_met(bound.access) || !covers(bound.address, bound.len, address, len) {
            return Err(Denied);
        }
        // The rights of the window were checked against the region at bind; the region's own remote rights do not
        // apply.
        Ok(vec![self.span(bound.mr, address, len, Need::Read)?])
    }
}

/// Replaces the number in an aligned span of eight bytes with the result of `change`, if any. Returns the old number.
pub(super) fn atomic(span: Span, change: impl Fn(u64) -> Option<u64>) -> u64 {
    assert!(span.len == 8 && span.start.addr().is_multiple_of(8), "not an aligned word: {span:?}");
    // SAFETY: the span is eight aligned bytes of a region registered for atomic operations, whose memory the owner
    // keeps mapped and accesses with atomic operations only.
    let number = unsafe { AtomicU64::from_ptr(span.start.cast()) };
    number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).unwrap_or_else(|was| was)
}

pub(super) fn read(spans: &[Span]) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::with_capacity(spans.iter().map(|span| span.len).sum());
    for span in spans {
        let at = bytes.len();
        // SAFETY: the span lies in a registered region, whose memory the owner keeps mapped and does not write while
        // a request names it, or belongs to the caller that posts a request inline. `bytes` has room for all spans.
        unsafe {
            ptr::copy_nonoverlapping(span.start, bytes.as_mut_ptr().add(at), span.len);
            bytes.set_len(at + span.len);
        }
    }
    bytes
}

/// Copies `bytes` into spans, as far as they reach.
pub(super) fn write(spans: &[Span], mut bytes: &[u8]) {
    for span in spans {
        let len = span.len.min(bytes.len());
        // SAFETY: the span lies in a region registered for writing, whose memory the owner keeps mapped and does not
        // use while a request names it, or knowingly shares with the peer. `bytes` is memory of the simulator.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), span.start, len) };
        bytes = &bytes[len..];
    }
}

/// Returns the bytes of scatter/gather elements of an inline request, which need no region.
///
/// # Safety
/// The elements are memory of the caller.
pub(super) unsafe fn read_inline(sges: &[Sge]) -> Vec<u8> {
    let spans = sges
        .iter()
        .filter(|sge| sge.len > 0)
        .map(|sge| Span { start: ptr::with_exposed_provenance_mut(sge.address as usize), len: sge.len as usize });
    read(&spans.collect::<Vec<_>>())
}
