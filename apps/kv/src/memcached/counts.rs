//! What a worker counts while it runs requests.

use std::ops::{AddAssign, Index, IndexMut, SubAssign};

/// Something that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "memcached's names, which its documentation explains; the others are explained")]
pub enum Count {
    CmdGet,
    CmdSet,
    CmdFlush,
    CmdTouch,
    CmdMeta,
    GetHits,
    GetMisses,
    DeleteMisses,
    DeleteHits,
    IncrMisses,
    IncrHits,
    DecrMisses,
    DecrHits,
    CasMisses,
    CasHits,
    CasBadval,
    TouchHits,
    TouchMisses,
    StoreTooLarge,
    StoreNoMemory,
    TotalItems,
    /// Datagrams with requests that were run.
    UdpRequests,
    /// Datagrams that were no requests, and were not answered.
    UdpIgnored,
    /// Datagrams that there was no room for: requests that were not run, and parts of answers that were not sent.
    UdpDropped,
}

/// How `stats` calls them, in their order.
const NAMES: [&str; Count::UdpDropped as usize + 1] = [
    "cmd_get",
    "cmd_set",
    "cmd_flush",
    "cmd_touch",
    "cmd_meta",
    "get_hits",
    "get_misses",
    "delete_misses",
    "delete_hits",
    "incr_misses",
    "incr_hits",
    "decr_misses",
    "decr_hits",
    "cas_misses",
    "cas_hits",
    "cas_badval",
    "touch_hits",
    "touch_misses",
    "store_too_large",
    "store_no_memory",
    "total_items",
    "udp_requests",
    "udp_ignored",
    "udp_dropped",
];

/// How often each happened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts([u64; NAMES.len()]);

impl Counts {
    /// It happened once more.
    #[inline]
    pub fn add(&mut self, what: Count) {
        self[what] += 1;
    }

    /// Keys that were fetched, stored, deleted and counted up or down, found or not.
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
        each.into_iter().map(|what| self[what]).sum()
    }

    /// All of them, by their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0)
    }
}

impl Index<Count> for Counts {
    type Output = u64;

    fn index(&self, what: Count) -> &u64 {
        &self.0[what as usize]
    }
}

impl IndexMut<Count> for Counts {
    fn index_mut(&mut self, what: Count) -> &mut u64 {
        &mut self.0[what as usize]
    }
}

impl SubAssign for Counts {
    /// Nothing becomes less than 0.
    fn sub_assign(&mut self, other: Counts) {
        self.0.iter_mut().zip(other.0).for_each(|(count, less)| *count = count.saturating_sub(less));
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }
}
