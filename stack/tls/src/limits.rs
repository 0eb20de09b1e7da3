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
/// Time of a turn after which no further handshake takes a step, so that open connections do not wait for more than one
/// long or a few short signatures.
const TURN: Duration = Duration::from_micros(250);
/// Unfinished handshakes from which a source, an IPv4 address or an IPv6 /64, displaces none of others.
pub const MAX_HANDSHAKES_PER_SOURCE: u32 = 512;
/// Share of the time of a worker for handshakes that are not completed, while it serves others: `SHARE` in `WHOLE`. It
/// does not include accepting and closing their connections.
const SHARE: u32 = 3;
const WHOLE: u32 = 25;
/// Time for handshakes of new clients, which are not completed yet, in advance of the share.
const BURST: Duration = Duration::from_millis(15);
/// Time without data of others after which handshakes are not limited.
const ALONE: Duration = Duration::from_millis(100);

/// Handshakes of a worker, and the time that they may take.
#[derive(Default)]
pub struct Limits {
    unfinished: usize,
    /// Unfinished handshakes by source, without sources that have none.
    sources: HashMap<u64, u32>,
    /// Time spent on handshakes in this turn.
    turn: Duration,
    /// Beginning of this turn.
    now: Instant,
    /// Time spent on handshakes that have not been completed, less the share of the time since.
    wasted: Duration,
    /// Time until which handshakes are limited because an open connection has received data.
    served_until: Instant,
}

impl Limits {
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

    /// Counts time spent on a handshake.
    pub fn spend(&mut self, spent: Duration) {
        self.turn += spent;
        self.wasted += spent;
    }

    /// Limits handshakes because an open connection has received data.
    #[inline]
    pub fn serve(&mut self) {
        self.served_until = self.now + ALONE;
    }

    pub fn begin_turn(&mut self, now: Instant) {
        self.turn = Duration::ZERO;
        if !self.wasted.is_zero() {
            let share = now.since(self.now) * SHARE / WHOLE;
            self.wasted = if now < self.served_until { self.wasted.saturating_sub(share) } else { Duration::ZERO };
        }
        self.now = now;
    }

    /// Returns whether a handshake may take its next step in this turn.
    pub fn may_step(&self) -> bool {
        self.turn < TURN && !self.is_exhausted()
    }

    /// Returns the time after which waiting handshakes may take steps in a further turn.
    pub fn wait(&self) -> Duration {
        let rest = self.served_until.since(self.now).min(self.wasted.saturating_sub(BURST) * WHOLE / SHARE);
        if self.is_exhausted() { rest.max(Duration::from_micros(1)) } else { Duration::ZERO }
    }

    fn is_exhausted(&self) -> bool {
        self.wasted >= BURST && self.now < self.served_until
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
