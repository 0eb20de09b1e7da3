//! Dynamic flag and fields of mbufs, which EAL registers and packets use.

use dpdk_sys as sys;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Mask of the flag.
static FLAG: AtomicU64 = AtomicU64::new(0);
/// Offset of the end field in an mbuf.
static END_FIELD: AtomicU32 = AtomicU32::new(0);
/// Offset of the [`Bytes`](linerate_service::Bytes) handle count in an mbuf.
static HANDLES: AtomicU32 = AtomicU32::new(0);

/// Registers the flag and the fields, after EAL has started and before packets exist. Returns `false` if DPDK has none
/// left.
pub(crate) fn register() -> bool {
    let (mut flag, mut end, mut handles) = (0, 0, 0);
    // SAFETY: the pointers are valid for the three values.
    let reserved = unsafe { sys::lr_reserve_own(&mut flag, &mut end, &mut handles) } == 0;
    FLAG.store(flag, Ordering::Relaxed);
    END_FIELD.store(end, Ordering::Relaxed);
    HANDLES.store(handles, Ordering::Relaxed);
    reserved
}

/// Returns the mask of the flag for the end of exclusive bytes, which offload requests must preserve.
#[inline]
pub(crate) fn flag() -> u64 {
    FLAG.load(Ordering::Relaxed)
}

/// Returns the offset of the end of exclusive bytes in an mbuf.
#[inline]
pub(crate) fn end_offset() -> u32 {
    END_FIELD.load(Ordering::Relaxed)
}

/// Returns the offset of the [`Bytes`](linerate_service::Bytes) handle count in an mbuf.
#[inline]
pub(crate) fn handles_offset() -> u32 {
    HANDLES.load(Ordering::Relaxed)
}
