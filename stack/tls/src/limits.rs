//! Limits of handshakes: in number, for each source, and in their share of a worker.

use linerate_service::time::{Duration, Instant};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, SocketAddr};

/// Time limit of a handshake.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Maximum number of unfinished handshakes of a worker. A further one displaces the oldest, unless its source has
/// [`MAX_HANDSHAKES_PER_SOURCE`].
pub const MAX_HANDSHAKES: usize = 4096;
/// Handshake steps of a worker in one turn. Others wait for the next turn, so that connections with keys do not wait
/// for more than a few signatures.
const STEPS: usize = 4;
/// Unfinished handshakes from which a source, an IPv4 address or an IPv6 /64, displaces none of others.
pub const MAX_HANDSHAKES_PER_SOURCE: u32 = 512;
/// Interval in which a worker spends at most [`WASTED`] on handshakes that are not completed, if it serves others.
const WINDOW: Duration = Duration::from_millis(100);
/// Time for handshakes that are not completed. Further ones wait for the next [`WINDOW`].
const WASTED: Duration = Duration::from_millis(15);

/// Handshakes of a worker, and the time that they may take.
#[derive(Default)]
pub struct Limits {
    unfinished: usize,
    /// Unfinished handshakes by source, without sources that have none.
    sources: HashMap<u64, u32>,
    /// Remaining steps of the turn.
    pub steps: usize,
    /// End of the current [`WINDOW`].
    window_end: Instant,
    /// Time spent in the window on handshakes that have not been completed.
    pub wasted: Duration,
    /// True if an open connection has received data in the window.
    pub has_served: bool,
}

impl Limits {
    pub fn new() -> Self {
        Limits { steps: STEPS, ..Limits::default() }
    }

    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Adds a handshake. Returns false beyond the limit of its source.
    pub fn add(&mut self, source: u64) -> bool {
        let of_source = self.sources.entry(source).or_default();
        if self.unfinished >= MAX_HANDSHAKES && *of_source >= MAX_HANDSHAKES_PER_SOURCE {
            return false;
        }
        *of_source += 1;
        self.unfinished += 1;
        true
    }

    /// Removes an unfinished handshake.
    pub fn remove(&mut self, source: u64) {
        self.unfinished -= 1;
        if let Entry::Occupied(mut count) = self.sources.entry(source) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Removes a handshake that has been completed in the time `spent`.
    pub fn complete(&mut self, source: u64, spent: Duration) {
        self.wasted = self.wasted.saturating_sub(spent);
        self.remove(source);
    }

    pub fn begin_turn(&mut self) {
        self.steps = STEPS;
    }

    /// Returns whether a handshake may take its next step in this turn.
    pub fn may_step(&mut self, now: Instant) -> bool {
        if now >= self.window_end {
            self.window_end = now + WINDOW;
            (self.wasted, self.has_served) = (Duration::ZERO, false);
        }
        self.steps > 0 && (!self.has_served || self.wasted < WASTED)
    }

    /// Returns the time after which waiting handshakes may take steps in a further turn.
    pub fn wait(&self, now: Instant) -> Duration {
        if self.has_served && self.wasted >= WASTED { self.window_end.since(now) } else { Duration::ZERO }
    }
}

/// Returns the source of a connection for the limit per source.
pub fn source_of(peer: Option<SocketAddr>) -> u64 {
    match peer.map(|peer| peer.ip().to_canonical()) {
        Some(IpAddr::V6(ip)) => (ip.to_bits() >> 64) as u64,
        Some(IpAddr::V4(ip)) => ip.to_bits().into(),
        None => 0,
    }
}
