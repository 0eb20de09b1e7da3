//! Neighbours that other workers are asking for, and the limit on what is forwarded to them beside the answers.
//!
//! A port delivers ARP and neighbour discovery to whichever worker its steering chooses, so an answer may arrive at a worker
//! that did not ask. A flood of such messages must fill neither the mailboxes of the workers nor keep answers from them.

use super::Key;
use super::rate_limit::RateLimit;
use hashbrown::HashMap;
use linerate_bypass::time::{Duration, Instant};
use std::net::IpAddr;

/// Neighbours at most.
const MAX: usize = 4096;
/// Other messages that are forwarded at once after a quiet time: a part of what the mailbox of a worker that is busy can hold.
const BURST: u32 = 256;
/// How long an answer is waited for: until the last solicitation has been given up.
const WAIT: Duration = Duration::from_secs(4);

/// Neighbours that other workers are asking for.
pub(crate) struct PendingResolutions {
    /// By address, with the time of the last solicitation that this worker was told of.
    asked: HashMap<Key, Instant, foldhash::fast::FixedState>,
    others: RateLimit,
}

impl PendingResolutions {
    /// None yet; the hash is keyed by `seed`.
    pub fn new(seed: u64) -> Self {
        let asked = HashMap::with_hasher(foldhash::fast::FixedState::with_seed(seed));
        PendingResolutions { asked, others: RateLimit::new(BURST) }
    }

    /// Notes that another worker is asking for `ip`.
    pub fn insert(&mut self, ip: IpAddr, now: Instant) {
        if self.asked.len() >= MAX {
            self.asked.retain(|_, at| now.since(*at) < WAIT);
        }
        if self.asked.len() < MAX {
            self.asked.insert(Key(ip), now);
        }
    }

    /// Returns true if a message about `ip` is to be forwarded to the other workers: it answers a solicitation of theirs, or is
    /// within the rate for other messages.
    pub fn forwards(&mut self, ip: IpAddr, now: Instant) -> bool {
        let is_answer = self.asked.remove(&Key(ip)).is_some_and(|at| now.since(at) < WAIT);
        is_answer || self.others.allows(now)
    }
}
