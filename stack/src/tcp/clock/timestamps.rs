//! Timestamp clock (RFC 7323 §5.4).

use linerate_service::time::Instant;

/// Tick of the timestamp clock in nanoseconds: the finest that RFC 7323 §5.4 permits.
pub(crate) const TIMESTAMP_TICK: u64 = 1_000_000;

/// Returns the timestamp clock in milliseconds, without an offset. To be read once per burst (RFC 7323 §5.4).
#[inline]
pub(crate) fn timestamp_clock(now: Instant) -> u32 {
    (now.as_nanos() / TIMESTAMP_TICK) as u32
}
