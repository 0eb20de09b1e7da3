//! Counters of the memcached protocol.

use std::ops::{AddAssign, Index, SubAssign};
use std::sync::atomic::{AtomicU64, Ordering};

/// Defines the counters with their names in the reply to `stats`.
macro_rules! counters {
    ($($(#[$doc:meta])* $count:ident = $name:literal,)*) => {
        /// Counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "names of memcached, explained in its documentation; the others have comments")]
        pub enum Count {
            $($(#[$doc])* $count,)*
        }

        const NAMES: [&str; [$($name),*].len()] = [$($name),*];
    };
}

counters! {
    CmdGet = "cmd_get",
    CmdSet = "cmd_set",
    CmdFlush = "cmd_flush",
    CmdTouch = "cmd_touch",
    CmdMeta = "cmd_meta",
    GetHits = "get_hits",
    GetMisses = "get_misses",
    DeleteMisses = "delete_misses",
    DeleteHits = "delete_hits",
    IncrMisses = "incr_misses",
    IncrHits = "incr_hits",
    DecrMisses = "decr_misses",
    DecrHits = "decr_hits",
    CasMisses = "cas_misses",
    CasHits = "cas_hits",
    CasBadval = "cas_badval",
    TouchHits = "touch_hits",
    TouchMisses = "touch_misses",
    StoreTooLarge = "store_too_large",
    StoreNoMemory = "store_no_memory",
    TotalItems = "total_items",
    /// Datagrams whose requests were run.
    UdpRequests = "udp_requests",
    /// Datagrams without valid requests, which get no reply.
    UdpIgnored = "udp_ignored",
    /// Datagrams dropped during a pause or for lack of room, and replies cut off for lack of room.
    UdpDropped = "udp_dropped",
}

/// Counter values.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts([u64; NAMES.len()]);

impl Counts {
    /// Returns the counters with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0)
    }
}

impl Index<Count> for Counts {
    type Output = u64;

    fn index(&self, count: Count) -> &u64 {
        &self.0[count as usize]
    }
}

/// Counters of one worker, which every worker can read at any time.
///
/// Only the worker writes, so an update is a load and a store without a locked instruction. The alignment keeps the
/// counters of two workers out of one pair of cache lines that a processor fetches together.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerCounts([AtomicU64; NAMES.len()]);

impl WorkerCounts {
    #[inline]
    pub fn add(&self, count: Count) {
        let counter = &self.0[count as usize];
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub fn values(&self) -> Counts {
        Counts(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }

    /// Returns the number of keys fetched, stored, deleted, incremented or decremented, found or not.
    pub fn keys(&self) -> u64 {
        let each = [
            Count::CmdGet,
            Count::CmdSet,
            Count::DeleteHits,
            Count::DeleteMisses,
            Count::IncrHits,
            Count::IncrMisses,
            Count::DecrHits,
            Count::DecrMisses,
        ];
        each.into_iter().map(|count| self.0[count as usize].load(Ordering::Relaxed)).sum()
    }
}

impl SubAssign for Counts {
    /// Saturates at 0.
    fn sub_assign(&mut self, other: Counts) {
        self.0.iter_mut().zip(other.0).for_each(|(count, less)| *count = count.saturating_sub(less));
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }
}
