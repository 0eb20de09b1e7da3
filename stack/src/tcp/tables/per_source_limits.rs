//! Per-source connection limits (`--max-connections-per-source`, `--max-half-open-per-source`).
//!
//! A source is an IPv4 address or an IPv6 /64, the prefix that one host or customer usually controls (RFC 6177 §2, RFC
//! 7934 §5.1). An entry exists only while the source has connections, so entries never outnumber connections.

use crate::config::Config;
use crate::wire::drop_stats::DropCause;
use crate::wire::tuple::Tuple;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::hash::{Hash, Hasher};

/// Limits of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum half-open connections.
    pub half_open: usize,
    /// Maximum established connections.
    pub connections: usize,
}

/// Decision for a received SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SynVerdict {
    /// Create a half-open connection.
    Accept,
    /// Reply with a SYN cookie and keep no state: a SYN does not prove its source address.
    Cookie,
    /// Drop: the source has reached its connection limit.
    Drop,
}

impl SynVerdict {
    /// Returns the drop cause of a rejected SYN.
    pub fn cause(self) -> DropCause {
        match self {
            SynVerdict::Drop => DropCause::TooManyPerSource,
            SynVerdict::Accept | SynVerdict::Cookie => DropCause::HalfOpenPerSource,
        }
    }
}

/// Key of a source: the upper 64 bits of an IPv6 address, or an IPv4 address in a range that no IPv6 prefix uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SourceKey(u64);

impl SourceKey {
    fn of(tuple: &Tuple) -> Self {
        let bits = tuple.remote_v6().to_bits();
        SourceKey(if tuple.is_ipv4() { bits as u64 & 0xffff_ffff_ffff } else { (bits >> 64) as u64 })
    }
}

impl Hash for SourceKey {
    /// Hashes the key as the lower half of a foldhash word pair, as [`Tuple`] does: foldhash protects the upper half
    /// only by a public constant, and sources choose their addresses.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.0.into());
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    half_open: u32,
    all: u32,
}

pub(crate) struct PerSourceLimits {
    limits: Limits,
    counts: HashMap<SourceKey, Counts, foldhash::fast::FixedState>,
}

impl PerSourceLimits {
    /// Creates an empty table. `seed` keys the hash.
    pub fn new(limits: Limits, seed: u64) -> Self {
        PerSourceLimits { limits, counts: HashMap::with_hasher(foldhash::fast::FixedState::with_seed(seed)) }
    }

    /// Creates the table if `config` sets at least one limit. `seed` keys the hash.
    pub fn from_config(config: &Config, seed: u64) -> Option<Box<Self>> {
        let (half_open, connections) = (config.max_half_open_per_source, config.max_connections_per_source);
        let limits =
            Limits { half_open: half_open.unwrap_or(usize::MAX), connections: connections.unwrap_or(usize::MAX) };
        (half_open.is_some() || connections.is_some()).then(|| Box::new(PerSourceLimits::new(limits, seed)))
    }

    /// Returns the decision for a SYN from the peer of `tuple`.
    pub fn check_syn(&self, tuple: &Tuple) -> SynVerdict {
        let Counts { half_open, all } = self.counts.get(&SourceKey::of(tuple)).copied().unwrap_or_default();
        let Limits { half_open: most_half_open, connections: most } = self.limits;
        if (all - half_open) as usize >= most {
            SynVerdict::Drop
        } else if half_open as usize >= most_half_open || all as usize >= most {
            SynVerdict::Cookie
        } else {
            SynVerdict::Accept
        }
    }

    /// Returns whether the peer of `tuple` has reached its limit of established connections.
    pub fn is_full(&self, tuple: &Tuple) -> bool {
        self.check_syn(tuple) == SynVerdict::Drop
    }

    /// Counts a new connection of the peer of `tuple`.
    pub fn add(&mut self, tuple: &Tuple, is_half_open: bool) {
        let counts = self.counts.entry(SourceKey::of(tuple)).or_default();
        counts.all += 1;
        counts.half_open += u32::from(is_half_open);
    }

    /// Moves a connection from half-open to established.
    pub fn establish(&mut self, tuple: &Tuple) {
        if let Some(counts) = self.counts.get_mut(&SourceKey::of(tuple)) {
            counts.half_open -= 1;
        }
    }

    /// Removes an established connection.
    pub fn remove(&mut self, tuple: &Tuple) {
        if let Entry::Occupied(mut entry) = self.counts.entry(SourceKey::of(tuple)) {
            let counts = entry.get_mut();
            counts.all -= 1;
            if counts.all == 0 {
                entry.remove();
            }
        }
    }

    /// Returns whether every source is within its limits.
    pub fn are_within_limits(&self) -> bool {
        let Limits { half_open, connections } = self.limits;
        let is_within =
            |has: &Counts| has.half_open as usize <= half_open && (has.all - has.half_open) as usize <= connections;
        self.counts.values().all(is_within)
    }

    /// Returns half-open connections, all connections, and sources.
    pub fn totals(&self) -> (usize, usize, usize) {
        let sum = |of: fn(&Counts) -> u32| self.counts.values().map(|counts| of(counts) as usize).sum();
        (sum(|counts| counts.half_open), sum(|counts| counts.all), self.counts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    fn tuple(remote: &str) -> Tuple {
        let remote: std::net::SocketAddr = remote.parse().unwrap();
        Tuple::new(if remote.is_ipv4() { "10.0.0.1:7" } else { "[fd00::1]:7" }.parse().unwrap(), remote)
    }

    fn sources(half_open: usize, connections: usize) -> PerSourceLimits {
        PerSourceLimits::new(Limits { half_open, connections }, 1)
    }

    #[test]
    fn source_is_an_ipv4_address_or_an_ipv6_64() {
        let same = [("10.0.0.2:1", "10.0.0.2:2"), ("[2001:db8::1]:1", "[2001:db8::ffff:0:0:1]:1")];
        let others = [
            ("10.0.0.2:1", "10.0.0.3:1"),
            ("[2001:db8::1]:1", "[2001:db8:0:1::1]:1"),
            ("10.0.0.2:1", "[::1:0:0:1]:1"),
            ("10.0.0.2:1", "[0:0:a00:2::]:1"),
        ];
        let is_same = |(a, b)| SourceKey::of(&tuple(a)) == SourceKey::of(&tuple(b));
        assert!(same.into_iter().all(is_same));
        assert!(!others.into_iter().any(is_same));
    }

    #[test]
    fn source_gets_cookies_beyond_half_open_limit_and_drops_beyond_connection_limit() {
        let (one, other) = (tuple("10.0.0.2:1"), tuple("10.0.0.3:1"));
        let mut sources = sources(2, 4);
        for _ in 0..2 {
            assert_eq!(sources.check_syn(&one), SynVerdict::Accept);
            sources.add(&one, true);
        }
        assert_eq!((sources.check_syn(&one), sources.check_syn(&other)), (SynVerdict::Cookie, SynVerdict::Accept));
        // Two connections by SYN cookie.
        (0..2).for_each(|_| sources.add(&one, false));
        sources.establish(&one);
        assert_eq!(sources.check_syn(&one), SynVerdict::Cookie);
        sources.establish(&one);
        assert_eq!((sources.check_syn(&one), sources.check_syn(&other)), (SynVerdict::Drop, SynVerdict::Accept));
        sources.remove(&one);
        assert_eq!(sources.check_syn(&one), SynVerdict::Accept);
        (0..3).for_each(|_| sources.remove(&one));
        assert_eq!(sources.totals(), (0, 0, 0));
    }

    #[test]
    fn hash_of_chosen_sources_does_not_collide() {
        // Public constants that foldhash combines with the upper word.
        const PUBLIC: [u64; 2] = [0xc0ac_29b7_c97c_50dd, 0x3f84_d5b5_b547_0917];
        let state = foldhash::fast::FixedState::with_seed(5);
        for word in PUBLIC.into_iter().flat_map(|word| [word, word.swap_bytes(), 0]) {
            let hashes: HashSet<u64> = (0..1000).map(|n| state.hash_one(SourceKey(word ^ n))).collect();
            assert_eq!(hashes.len(), 1000);
        }
    }

    proptest! {
        /// An entry exists exactly for the sources that have connections.
        #[test]
        fn one_entry_exists_per_source_with_connections(
            steps in prop::collection::vec((0u8..20, 0u8..4), 1..300)
        ) {
            let mut sources = sources(3, 5);
            let mut has = [[0_u32; 2]; 20];
            for (peer, step) in steps {
                let tuple = tuple(&format!("10.0.0.{peer}:1"));
                let [half_open, open] = &mut has[usize::from(peer)];
                match step {
                    0 if sources.check_syn(&tuple) == SynVerdict::Accept => {
                        sources.add(&tuple, true);
                        *half_open += 1;
                    }
                    1 if !sources.is_full(&tuple) => {
                        sources.add(&tuple, false);
                        *open += 1;
                    }
                    2 if *half_open > 0 => {
                        sources.establish(&tuple);
                        *half_open -= 1;
                        *open += 1;
                    }
                    3 if *open > 0 => {
                        sources.remove(&tuple);
                        *open -= 1;
                    }
                    _ => {}
                }
                prop_assert!(*half_open <= 3);
            }
            let sum = |of: fn(&[u32; 2]) -> u32| has.iter().map(of).sum::<u32>() as usize;
            let peers = has.iter().filter(|[half_open, open]| half_open + open > 0).count();
            prop_assert_eq!(sources.totals(), (sum(|has| has[0]), sum(|has| has[0] + has[1]), peers));
        }
    }
}
