//! Unpredictable numbers: initial sequence numbers, and offsets of timestamps.

use crate::rng;
use crate::tcp::clock::timestamps::timestamp_clock;
use crate::wire::tcp::seq::Seq;
use crate::wire::tuple::{HashKey, Tuple};
use linerate_service::time::Instant;
use siphasher::sip::{SipHasher13, SipHasher24};
use std::fmt;
use std::hash::Hasher;

/// Tick of the ISN clock in nanoseconds (RFC 9293 §3.4.1, MUST-8).
const ISN_TICK: u64 = 4_000;

/// Minimum distance of a new connection's ISN from the old connection's sequence numbers, where the ISN clock is not
/// ahead.
const GAP: u32 = 1 << 16;

/// Mask of the random part of that distance.
const GAP_MASK: u32 = (1 << 24) - 1;

/// Secret keys of the stack, derived from one seed. Each use has its own key, so that one use reveals nothing of
/// another.
///
/// All workers have the same keys. The numbers of a pair of addresses continue when a flow moves to another worker, and
/// a peer that compares connections of several workers observes one clock.
#[derive(Clone)]
pub(crate) struct Secrets {
    isn: SipHasher24,
    timestamps: SipHasher13,
    cookies: SipHasher24,
    tables: HashKey,
    /// Address pair of the last connection. The next connection often has the same pair.
    latest: AddressPair,
}

/// Pair of addresses, and the values that its connections share.
#[derive(Clone)]
struct AddressPair {
    /// Tuple with ports of zero.
    addresses: Tuple,
    timestamp_offset: u32,
    /// Hash state of initial sequence numbers after the addresses.
    isn: SipHasher24,
}

impl Secrets {
    /// Derives the keys from `seed`, which has to come from the operating system's random generator.
    pub fn from_seed(seed: u128) -> Self {
        let mut count = 0;
        let mut next = || {
            count += 1;
            rng::draw(seed, "secrets", count)
        };
        let isn = SipHasher24::new_with_keys(next(), next());
        let timestamps = SipHasher13::new_with_keys(next(), next());
        Secrets {
            cookies: SipHasher24::new_with_keys(next(), next()),
            tables: HashKey::new(next),
            latest: AddressPair::of(&Tuple::received_v4(0, 0, 0), &isn, &timestamps),
            isn,
            timestamps,
        }
    }

    /// Returns the key of [`Tuple::hash_with`] for flow tables.
    pub fn table_key(&self) -> HashKey {
        self.tables
    }

    /// Returns the initial sequence number of a connection on `tuple` at `now`: `M + F(tuple, secret)`, where `M` ticks
    /// every 4 µs and `F` is SipHash-2-4 (RFC 6528 §3, RFC 9293 §3.4.1).
    pub fn isn(&self, tuple: &Tuple, now: Instant) -> Seq {
        Seq(hash(&self.isn, tuple, [])) + isn_clock(now)
    }

    /// Returns the initial sequence number of a connection that replaces one in TIME-WAIT. `floor` is the old
    /// connection's next sequence number; the result is not before it, and so is larger than all sequence numbers of
    /// the old connection (RFC 9293 §3.6.1, MAY-2).
    ///
    /// The old peer knows `floor` and may differ from the new peer: one address may represent many hosts. The distance
    /// from `floor` is therefore secret as well.
    pub fn isn_after(&self, tuple: &Tuple, now: Instant, floor: Seq) -> Seq {
        let isn = self.isn(tuple, now);
        if isn.at_or_after(floor) {
            return isn;
        }
        floor + GAP + (hash(&self.isn, tuple, [floor.0.into(), now.as_nanos()]) & GAP_MASK)
    }

    /// Returns the offset of the timestamps of `tuple` from [`timestamp_clock`]. To be computed once per connection.
    ///
    /// The offset depends on the addresses and not on the ports. RFC 6191 §3 requires timestamps to increase from one
    /// connection to the next for a SYN to be accepted in TIME-WAIT. One clock per address pair achieves this where a
    /// port is reused, and also behind a NAT that assigns the old port to another connection. An observer learns the
    /// order of the connections of one pair, but nothing of other pairs or of the uptime (RFC 7323 §5.4 and §7).
    pub fn timestamp_offset(&self, tuple: &Tuple) -> u32 {
        AddressPair::of(tuple, &self.isn, &self.timestamps).timestamp_offset
    }

    /// Returns the [initial sequence number](Self::isn) of a connection on `tuple` at `now`, and its [timestamp
    /// offset](Self::timestamp_offset).
    #[inline(always)]
    pub fn isn_and_offset(&mut self, tuple: &Tuple, now: Instant) -> (Seq, u32) {
        if self.latest.addresses != tuple.without_ports() {
            self.switch_pair(tuple);
        }
        let AddressPair { timestamp_offset, isn, .. } = &self.latest;
        (Seq(with_ports(isn, tuple)) + isn_clock(now), *timestamp_offset)
    }

    /// Caches the address pair of `tuple`.
    #[inline(never)]
    fn switch_pair(&mut self, tuple: &Tuple) {
        self.latest = AddressPair::of(tuple, &self.isn, &self.timestamps);
    }

    /// Returns the local timestamp (TSval) that the peer of `tuple` observes.
    pub fn timestamp(&self, now: Instant, tuple: &Tuple) -> u32 {
        timestamp_clock(now).wrapping_add(self.timestamp_offset(tuple))
    }

    /// Returns the keyed hash of `tuple` and `more` for SYN cookies.
    pub(crate) fn cookie_hash(&self, tuple: &Tuple, more: [u64; 2]) -> u32 {
        hash(&self.cookies, tuple, more)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

/// Hashes the addresses of `tuple`, local before remote, and `more`. Further input may follow. IPv4 addresses are
/// shorter, and hashes of messages of different lengths are unrelated.
#[inline]
fn addresses<H: Hasher, const N: usize>(mut hash: H, tuple: &Tuple, more: [u64; N]) -> H {
    if tuple.is_ipv4() {
        hash.write(&tuple.sent_v4());
    } else {
        hash.write(&tuple.sent_v6());
    }
    more.iter().for_each(|word| hash.write(&word.to_be_bytes()));
    hash
}

/// Returns the hash of the addresses and ports of `tuple` and of `more`.
#[inline]
fn hash<const N: usize>(key: &SipHasher24, tuple: &Tuple, more: [u64; N]) -> u32 {
    with_ports(&addresses(*key, tuple, more), tuple)
}

/// Returns the hash after the ports of `tuple` are added.
#[inline]
fn with_ports(hash: &SipHasher24, tuple: &Tuple) -> u32 {
    // `hash` instead of `write` and `finish`: the previous input is whole words, so this is one word and needs no
    // buffering.
    hash.hash(&tuple.sent_ports()) as u32
}

#[inline]
fn isn_clock(now: Instant) -> u32 {
    (now.as_nanos() / ISN_TICK) as u32
}

impl AddressPair {
    fn of(tuple: &Tuple, isn: &SipHasher24, timestamps: &SipHasher13) -> Self {
        AddressPair {
            addresses: tuple.without_ports(),
            timestamp_offset: addresses(*timestamps, tuple, []).finish() as u32,
            isn: addresses(*isn, tuple, []),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_service::time::Duration;
    use std::collections::HashSet;
    use std::net::SocketAddr;

    fn tuple(local: &str, remote: &str) -> Tuple {
        Tuple::new(local.parse().unwrap(), remote.parse().unwrap())
    }

    /// Tuples of both families, some of which differ in one field.
    fn tuples() -> Vec<Tuple> {
        [
            ("10.0.0.1:7", "10.0.0.2:1024"),
            ("10.0.0.3:7", "10.0.0.2:1024"),
            ("10.0.0.1:8", "10.0.0.2:1024"),
            ("10.0.0.1:7", "10.0.0.4:1024"),
            ("10.0.0.1:7", "10.0.0.2:1025"),
            ("10.0.0.2:1024", "10.0.0.1:7"),
            ("[fd00::1]:7", "[fd00::2]:1024"),
            ("[fd00::1]:7", "[fd00:0:0:1::2]:1024"),
            ("[fd00:0:0:1::1]:7", "[fd00::2]:1024"),
        ]
        .map(|(local, remote)| tuple(local, remote))
        .into()
    }

    const HOUR: Instant = Instant::from_nanos(3_600_000_000_000);

    /// RFC 9293 §3.4.1, MUST-8; RFC 6528 §3: the clock of one tuple ticks every 4 µs, and wraps after 4.77 hours.
    #[test]
    fn isn_of_a_tuple_follows_the_clock() {
        let secrets = Secrets::from_seed(1);
        for tuple in tuples() {
            let first = secrets.isn(&tuple, HOUR);
            let after = |time| secrets.isn(&tuple, HOUR + time) - first;
            assert_eq!(after(Duration::from_micros(4)), 1);
            assert_eq!(after(Duration::from_secs(1)), 250_000);
            assert_eq!(after(Duration::from_micros(4 << 32)), 0);
        }
    }

    /// RFC 9293 §3.4.1, MUST-9: F depends on the whole tuple and on the secret.
    #[test]
    fn isns_of_different_tuples_and_seeds_are_unrelated() {
        let isns: HashSet<_> = (0..100)
            .map(Secrets::from_seed)
            .flat_map(|secrets| tuples().into_iter().map(move |tuple| secrets.isn(&tuple, HOUR)))
            .collect();
        assert_eq!(isns.len(), 100 * tuples().len());
        // The upper four bits of adjacent ports' numbers are uniform: 4096 in each bucket, deviation 62.
        let secrets = Secrets::from_seed(2);
        let mut frequency = [0u32; 16];
        for port in 0..=u16::MAX {
            let tuple = Tuple::new("10.0.0.1:7".parse().unwrap(), SocketAddr::from(([10, 0, 0, 2], port)));
            frequency[(secrets.isn(&tuple, HOUR).0 >> 28) as usize] += 1;
        }
        assert!(frequency.iter().all(|n| (3750..4450).contains(n)), "{frequency:?}");
    }

    /// RFC 9293 §3.6.1, MAY-2 (1).
    #[test]
    fn isn_after_time_wait_is_beyond_the_old_connection() {
        let secrets = Secrets::from_seed(3);
        for tuple in tuples() {
            let isn = secrets.isn(&tuple, HOUR);
            assert_eq!(secrets.isn_after(&tuple, HOUR, isn), isn);
            assert_eq!(secrets.isn_after(&tuple, HOUR, isn - (1 << 30)), isn);
            let mut seen = HashSet::new();
            for ahead in [1, 1 << 20, 1 << 30, i32::MAX as u32] {
                let floor = isn + ahead;
                let beyond = secrets.isn_after(&tuple, HOUR, floor) - floor;
                assert!((GAP..=GAP + GAP_MASK).contains(&beyond), "{beyond}");
                seen.insert(beyond);
            }
            assert_eq!(seen.len(), 4, "the distances are random");
        }
    }

    /// RFC 7323 §5.4: a tick is between 1 ms and 1 s.
    #[test]
    fn timestamp_clock_ticks_every_millisecond_and_wraps() {
        let (secrets, tuple) = (Secrets::from_seed(4), tuples()[0]);
        let first = secrets.timestamp(HOUR, &tuple);
        let after = |time| secrets.timestamp(HOUR + time, &tuple).wrapping_sub(first);
        assert_eq!(after(Duration::from_micros(999)), 0);
        assert_eq!(after(Duration::from_millis(1)), 1);
        assert_eq!(after(Duration::from_millis(1 << 32)), 0);
        assert_eq!(
            secrets.timestamp(HOUR, &tuple),
            timestamp_clock(HOUR).wrapping_add(secrets.timestamp_offset(&tuple))
        );
    }

    /// RFC 6191 §3: timestamps increase from one connection to the next between the same addresses.
    #[test]
    fn timestamps_continue_across_connections_of_an_address_pair() {
        let offset = |local, remote| Secrets::from_seed(5).timestamp_offset(&tuple(local, remote));
        assert_eq!(offset("10.0.0.1:7", "10.0.0.2:1024"), offset("10.0.0.1:8", "10.0.0.2:1025"));
        assert_eq!(offset("[fd00::1]:7", "[fd00::2]:1"), offset("[fd00::1]:8", "[fd00::2]:2"));
        assert_ne!(offset("10.0.0.1:7", "10.0.0.2:1024"), offset("10.0.0.1:7", "10.0.0.3:1024"));
        assert_ne!(offset("10.0.0.1:7", "10.0.0.2:1024"), offset("10.0.0.4:7", "10.0.0.2:1024"));
        assert_ne!(offset("[fd00::1]:7", "[fd00::2]:1"), offset("[fd00::1]:7", "[fd00:0:0:1::2]:1"));
    }

    #[test]
    fn cached_address_pair_is_replaced() {
        let mut secrets = Secrets::from_seed(7);
        for tuple in tuples().iter().chain(tuples().iter().rev()) {
            let expected = (secrets.isn(tuple, HOUR), secrets.timestamp_offset(tuple));
            assert_eq!(secrets.isn_and_offset(tuple, HOUR), expected, "{tuple:?}");
        }
    }

    #[test]
    fn keys_of_a_seed_differ() {
        let secrets = Secrets::from_seed(6);
        let hash = |key: &SipHasher24| key.hash(b"text");
        let seen = HashSet::from([
            hash(&secrets.isn),
            hash(&secrets.cookies),
            secrets.timestamps.hash(b"text"),
            hash(&SipHasher24::new_with_keys(6, 0)),
        ]);
        assert_eq!(seen.len(), 4);
        assert_eq!(format!("{secrets:?} {:?}", secrets.table_key()), "Secrets HashKey(secret)");
    }
}
