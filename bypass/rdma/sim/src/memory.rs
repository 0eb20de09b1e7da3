//! Keys, and the memory behind them.

use super::world::World;
use linerate_rdma_provider::{Access, Handle, Sge};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a request asks of memory, and a region or window must permit (IBA 10.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// To read it for a request of ours.
    Read,
    /// To write it for a request of ours.
    Write,
    /// To write what an iWARP peer answers a READ with: that comes as a write of the peer's.
    Sink,
    /// To read it for the peer.
    RemoteRead,
    /// To write it for the peer.
    RemoteWrite,
    /// To do atomic operations on it for the peer.
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

/// Memory that may be accessed as was asked for: of a region that covers it, or of a request that is sent inline.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    start: *mut u8,
    len: usize,
}

/// A key is void.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Denied;

/// Whether `len` bytes at `address` are within `whole` bytes at `start`.
pub(super) fn covers(start: u64, whole: u64, address: u64, len: u64) -> bool {
    address >= start
        && address.checked_add(len).is_some_and(|end| start.checked_add(whole).is_some_and(|limit| end <= limit))
}

impl World {
    /// The region with this key, if it belongs to the domain.
    fn region_by_key(&self, pd: Handle, key: u32) -> Option<Handle> {
        let device = &self.devices[self.pds.device(pd)];
        let &handle = device.keys.get(&(key >> 8))?;
        let mr = self.mrs.get(handle)?;
        (mr.key == key && mr.pd == pd).then_some(handle)
    }

    /// The window with this key, if it is bound on this queue pair and belongs to its domain.
    pub fn window_by_key(&self, qp: Handle, key: u32) -> Option<Handle> {
        let device = &self.devices[self.qps.device(qp)];
        let &handle = device.keys.get(&(key >> 8))?;
        let mw = self.mws.get(handle)?;
        let is_ours = mw.pd == self.qps[qp].pd && mw.bound.is_some_and(|bound| bound.qp == qp);
        (mw.key == key && is_ours).then_some(handle)
    }

    /// A part of a region, checked.
    fn span(&self, mr: Handle, address: u64, len: u64, need: Need) -> Result<Span, Denied> {
        let mr = &self.mrs[mr];
        if !need.is_met(mr.access) || !covers(mr.start as u64, mr.len as u64, address, len) {
            return Err(Denied);
        }
        Ok(Span { start: ptr::with_exposed_provenance_mut(address as usize), len: len as usize })
    }

    /// The memory of segments of ours. Empty ones name none.
    pub fn local_spans(&self, pd: Handle, sges: &[Sge], need: Need) -> Result<Vec<Span>, Denied> {
        let parts = sges.iter().filter(|sge| sge.len > 0);
        parts
            .map(|sge| {
                let mr = self.region_by_key(pd, sge.lkey).ok_or(Denied)?;
                self.span(mr, sge.address, u64::from(sge.len), need)
            })
            .collect()
    }

    /// The memory of ours that a peer's request of this queue pair names, by a region's key or a window's. Of no bytes the key
    /// is not looked at (IBA 9.7.4.1.5).
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
        // What the window permits was checked against the region when it was bound; a region's own permissions for peers do
        // not matter to a window.
        Ok(vec![self.span(bound.mr, address, len, Need::Read)?])
    }
}

/// Changes the number in a span of eight bytes, at a multiple of eight, to what `change` says, if anything. Returns what it was.
pub(super) fn atomic(span: Span, change: impl Fn(u64) -> Option<u64>) -> u64 {
    assert!(span.len == 8 && span.start.addr().is_multiple_of(8), "no number: {span:?}");
    // SAFETY: the span is eight aligned bytes of a region that is registered for atomic operations, whose memory its owner keeps
    // mapped, and accesses by atomic operations alone.
    let number = unsafe { AtomicU64::from_ptr(span.start.cast()) };
    number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).unwrap_or_else(|was| was)
}

/// The bytes of spans.
pub(super) fn read(spans: &[Span]) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::with_capacity(spans.iter().map(|span| span.len).sum());
    for span in spans {
        let at = bytes.len();
        // SAFETY: the span lies in a region that is registered now, whose memory its owner keeps mapped and does not write while
        // a request names it, or it is the caller's who posts a request inline; `bytes` has room for all spans.
        unsafe {
            ptr::copy_nonoverlapping(span.start, bytes.as_mut_ptr().add(at), span.len);
            bytes.set_len(at + span.len);
        }
    }
    bytes
}

/// Puts bytes into spans, as many as there are.
pub(super) fn write(spans: &[Span], mut bytes: &[u8]) {
    for span in spans {
        let len = span.len.min(bytes.len());
        // SAFETY: the span lies in a region that is registered for being written, whose memory its owner keeps mapped and does
        // not use while a request names it, or shares with the peer knowingly; `bytes` is memory of the model's own.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), span.start, len) };
        bytes = &bytes[len..];
    }
}

/// The bytes of segments whatever region they are in, for a request that is sent inline.
///
/// # Safety
/// The segments are memory of the caller's.
pub(super) unsafe fn read_inline(sges: &[Sge]) -> Vec<u8> {
    let spans = sges
        .iter()
        .filter(|sge| sge.len > 0)
        .map(|sge| Span { start: ptr::with_exposed_provenance_mut(sge.address as usize), len: sge.len as usize });
    read(&spans.collect::<Vec<_>>())
}
