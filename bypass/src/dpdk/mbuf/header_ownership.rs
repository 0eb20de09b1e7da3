//! Exclusive bytes of a shared segment: the headers in front of retained payload.
//!
//! Drivers write the headers of a frame with offloads, in `rte_eth_tx_prepare` and while sending. The headers must be
//! exclusive to the packet then. They are if the packet holds the only reference to its buffer. They also are if the
//! payload was [retained](crate::Packet::retain): a dynamic field of the mbuf then contains the end of the exclusive
//! bytes, counted from the start of the buffer, and a dynamic flag states that the field is valid.
//!
//! While the flag is set, no [`Bytes`](linerate_service::Bytes) and no other packet covers a byte in front of that end:
//! - `retain` alone sets the flag, on a segment with its bytes in its own buffer and without any other reference. At
//!   that time there are no `Bytes` and no clones, and the new `Bytes` start at the end.
//! - Later references to the buffer come from these `Bytes` (clones and slices, which never extend to the front), from
//!   `retain`, which moves the end to the front where necessary, or from `try_clone`, which clears the flag in both
//!   segments. `into_bytes` creates `Bytes` and ends the packet, and no packet is created from a segment with `Bytes`.
//! - Moving the packet's ends has no effect, because the end is counted from the start of the buffer.
//! - A stale flag in a segment that was freed and reused does no harm: the flag is read in shared segments only, and
//!   every operation that shares the new packet's segment sets or clears it.

use super::segment::Segment;
use crate::dpdk::mbuf_fields::{end_offset, flag};

/// Returns the end of the exclusive bytes, from the start of the buffer, if it is known.
#[inline]
pub(crate) fn end(segment: Segment) -> Option<usize> {
    (segment.flags() & flag() != 0).then(|| usize::from(segment.get::<u16>(end_offset())))
}

/// Returns whether the first `n` bytes of the segment's data are exclusive to the packet.
#[inline]
pub(crate) fn is_exclusive(segment: Segment, n: usize) -> bool {
    segment.is_direct() && (segment.is_sole() || end(segment).is_some_and(|end| segment.data_off() + n <= end))
}

/// Sets the end of the exclusive bytes, or clears it. The caller owns the segment.
#[inline]
pub(crate) fn set_end(segment: Segment, end: Option<usize>) {
    let flag = flag();
    let other_flags = segment.flags() & !flag;
    match end {
        Some(end) => {
            debug_assert!(end <= usize::from(u16::MAX));
            segment.set(end_offset(), end as u16);
            segment.set_flags(other_flags | flag);
        }
        None => segment.set_flags(other_flags),
    }
}
