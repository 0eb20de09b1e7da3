//! Which bytes of a shared segment are its packet's alone: the headers in front of what was retained.
//!
//! Drivers write into the headers of a frame that asks for offloads, in `rte_eth_tx_prepare` and while sending. Nobody
//! else may see those bytes then, and nobody does when the packet is the only holder of its buffer. A packet whose
//! payload was [retained](crate::Packet::retain) is not; for it a field of the mbuf says how far from the start of the
//! buffer its own bytes reach, and a flag that the field is valid.
//!
//! While the flag is set, no [`Bytes`](crate::Bytes) and no other packet can see a byte in front of that end:
//! - It is set by `retain` only, and only on a segment with its bytes in its own buffer and without any other
//!   reference: there are no earlier `Bytes` and no clones then, and the new `Bytes` begin at the end.
//! - Later references to the buffer are made from these `Bytes` (clones and slices, which never reach further to the
//!   front), by `retain` again, which moves the end to the front where it must, or by `try_clone`, which clears the
//!   flag in both segments. `into_bytes` makes a `Bytes` and ends the packet, and no packet is ever made of a segment
//!   that has `Bytes`.
//! - Moving the packet's ends does not matter: the end is counted from the start of the buffer.
//! - A flag that is left over in a segment that was freed and has become another packet does no harm: it is looked at in
//!   shared segments only, and whatever makes the new packet's segment shared sets it anew or clears it.

use super::segment::Segment;
use dpdk_sys as sys;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The mask of the flag.
static FLAG: AtomicU64 = AtomicU64::new(0);
/// The offset of the field in an mbuf.
static END: AtomicU32 = AtomicU32::new(0);
/// The offset of the field that counts the [`Bytes`](crate::Bytes).
static HOLDERS: AtomicU32 = AtomicU32::new(0);

/// Reserves the flag and the fields; once EAL has been started, before there are packets. `false` if DPDK has none left.
pub(crate) fn reserve() -> bool {
    let (mut flag, mut end, mut holders) = (0, 0, 0);
    // SAFETY: three numbers of ours to fill.
    let reserved = unsafe { sys::lr_reserve_own(&mut flag, &mut end, &mut holders) } == 0;
    FLAG.store(flag, Ordering::Relaxed);
    END.store(end, Ordering::Relaxed);
    HOLDERS.store(holders, Ordering::Relaxed);
    reserved
}

/// The mask of the flag, which must outlive offload requests.
#[inline]
pub(crate) fn flag() -> u64 {
    FLAG.load(Ordering::Relaxed)
}

/// Where the bytes end that are the packet's alone, from the start of the buffer, if that is known.
#[inline]
pub(crate) fn end(segment: Segment) -> Option<usize> {
    (segment.flags() & flag() != 0).then(|| usize::from(segment.get::<u16>(END.load(Ordering::Relaxed))))
}

/// Whether nobody but the packet sees the first `n` bytes of the segment's data.
#[inline]
pub(crate) fn is_own(segment: Segment, n: usize) -> bool {
    segment.is_direct() && (segment.is_sole() || end(segment).is_some_and(|end| segment.data_off() + n <= end))
}

/// Notes where they end; with `None`, that there are none. For who owns the segment.
#[inline]
pub(crate) fn set_end(segment: Segment, end: Option<usize>) {
    let flag = flag();
    let others = segment.flags() & !flag;
    match end {
        Some(end) => {
            debug_assert!(end <= usize::from(u16::MAX));
            segment.set(END.load(Ordering::Relaxed), end as u16);
            segment.set_flags(others | flag);
        }
        None => segment.set_flags(others),
    }
}

/// The offset in an mbuf of the count of [`Bytes`](crate::Bytes) over it.
#[inline]
pub(crate) fn holders() -> u32 {
    HOLDERS.load(Ordering::Relaxed)
}
