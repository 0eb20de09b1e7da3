//! Neighbours that other workers are resolving, and the rate limit of other forwarded messages.
//!
//! A port delivers ARP and NDP to whichever worker its steering selects, so a reply may arrive at a worker that did not
//! solicit it. A flood of such messages must neither fill the workers' mailboxes nor keep replies out of them.

use super::Key;
use super::rate_limit::RateLimit;
use hashbrown::HashMap;
use linerate_service::time::{Duration, Instant};
use std::net::IpAddr;

const MAX: usize = 4096;
/// Burst of other messages that are forwarded after a quiet period: a fraction of the mailbox of a busy worker.
const BURST: u32 = 256;
/// Lifetime of an entry: the duration of a resolution.
const WAIT: Duration = Duration::from_secs(4);

/// Neighbours that other workers are resolving.
pub(crate) struct PendingResolutions {
    /// Time of the last reported solicitation, by address.
    solicited: HashMap<Key, Instant, foldhash::fast::FixedState>,
    others: RateLimit,
}

impl PendingResolutions {
    /// Creates an empty set. `seed` keys the hash.
    pub fn new(seed: u64) -> Self {
        let solicited = HashMap::with_hasher(foldhash::fast::FixedState::with_seed(seed));
        PendingResolutions { solicited, others: RateLimit::new(BURST) }
    }

    /// Records that another worker resolves `ip`.
    pub fn insert(&mut self, ip: IpAddr, now: Instant) {
        if self.solicited.len() >= MAX {
            self.solicited.retain(|_, at| now.since(*at) < WAIT);
        }
        if self.solicited.len() < MAX {
            self.solicited.insert(Key(ip), now);
        }
    }

    /// Returns whether to forward a message about `ip` to the other workers: it replies to a solicitation of theirs, or
    /// is within the rate of other messages.
    pub fn forwards(&mut self, ip: IpAddr, now: Instant) -> bool {
        let is_reply = self.solicited.remove(&Key(ip)).is_some_and(|at| now.since(at) < WAIT);
        is_reply || self.others.allows(now)
    }
}
