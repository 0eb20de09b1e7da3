//! Idle timeout: resets connections without data for too long.
//!
//! Reads and writes record the time. Each search covers a part of the connections, so that no turn visits all of them.

use super::Net;
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, Stage};

/// Number of parts that cover all connections.
const PARTS: usize = 16;
/// Searches of a part per idle timeout: each connection is found at most a quarter of the timeout late.
const PER_TIMEOUT: u32 = 64;
/// Maximum time between two searches.
const LONGEST: Duration = Duration::from_millis(100);

/// Progress of the search.
pub(super) struct Idle {
    timeout: Duration,
    interval: Duration,
    next: Instant,
    /// Slot at which the next search begins.
    slot: usize,
}

impl Idle {
    pub fn new(timeout: Duration) -> Self {
        let interval = (timeout / PER_TIMEOUT).clamp(Duration::from_millis(1), LONGEST);
        Idle { timeout, interval, next: Instant::ZERO, slot: 0 }
    }

    /// Returns the time at which the next part is due for a search.
    pub fn next(&self) -> Instant {
        self.next
    }
}

impl Net {
    /// Resets the idle connections of one part, if it is time to search it.
    pub(super) fn end_idle(&mut self) {
        let (now, extent) = (self.now, self.table.slots.slot_count());
        let Some(idle) = self.idle.as_mut().filter(|idle| idle.next <= now) else { return };
        idle.next = now + idle.interval;
        let (timeout, first) = (idle.timeout, if idle.slot < extent { idle.slot } else { 0 });
        let end = extent.min(first + extent.div_ceil(PARTS));
        idle.slot = end;
        for slot in first..end {
            let Some(id) = self.table.slots.conn_id(slot) else { continue };
            let is_idle = |stage, moved| stage == Stage::Open && now.since(moved) >= timeout;
            if self.table.slots.get(id).is_some_and(|conn| is_idle(conn.life.stage, conn.moved)) {
                self.summary.drop_for("connection idle for too long", 1);
                self.reset_as(id, CloseReason::IdleTimeout);
            }
        }
    }
}
