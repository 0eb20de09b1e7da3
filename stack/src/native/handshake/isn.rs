//! Numbers that a peer sees and must not be able to continue: initial sequence numbers and timestamps.

use crate::native::segment::seq::Seq;
use crate::rng;
use crate::tcp::tuple::{HashKey, Tuple};
use linerate_bypass::time::Instant;
use siphasher::sip::{SipHasher13, SipHasher24};
use std::fmt;
use std::hash::Hasher;

/// Nanoseconds of a tick of the clock of initial sequence numbers (RFC 9293 §3.4.1, MUST-8).
const ISN_TICK: u64 = 4_000;

/// Nanoseconds of a tick of the timestamp clock: as fine as RFC 7323 §5.4 allows.
pub(crate) const TIMESTAMP_TICK: u64 = 1_000_000;

/// How far beyond an old connection a new one begins at least, where the clock has not got there.
const GAP: u32 = 1 << 16;

/// The bits of what is added to that at random.
const GAP_MASK: u32 = (1 << 24) - 1;

/// The secret keys of the stack, all from one seed, one for each use: what one use shows says nothing of the others.
///
/// They are the same on every worker, so that the numbers of a pair of addresses go on where they were when a flow moves from
/// one worker to another, and a peer that compares connections of several workers sees one clock.
#[derive(Clone)]
pub(crate) struct Secrets {
    isn: SipHasher24,
    timestamps: SipHasher13,
    cookies: SipHasher24,
    tables: HashKey,
    /// That of the last connection: the next is often of the same.
    latest: AddressPair,
}

/// A pair of addresses, and what the numbers of its connections have in common.
#[derive(Clone)]
struct AddressPair {
    /// With ports of zero.
    addresses: Tuple,
    timestamp_offset: u32,
    /// The hash of initial sequence numbers as far as the addresses go.
    isn: SipHasher24,
}

impl Secrets {
    /// The keys that follow from `seed`, which is to be taken from the system's generator.
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

    /// The key of [`Tuple::hash_with`] for the tables.
    pub fn table_key(&self) -> HashKey {
        self.tables
    }

    /// The initial sequence number of a connection `tuple` that begins at `now`: `M + F(tuple, secret)`, where `M` ticks
    /// every 4 µs and `F` is SipHash-2-4 (RFC 6528 §3, RFC 9293 §3.4.1).
    pub fn isn(&self, tuple: &Tuple, now: Instant) -> Seq {
        Seq(hash(&self.isn, tuple, [])) + isn_clock(now)
    }

    /// The initial sequence number of a connection that takes the place of one in TIME-WAIT, whose next sequence number
    /// would have been `floor`: not before it, so that it is larger than all that the old connection has used
    /// (RFC 9293 §3.6.1, MAY-2).
    ///
    /// Whoever had the old connection knows `floor`, and need not be who has the new one: behind one address there may
    /// be many. So what is added to it is secret as well.
    pub fn isn_after(&self, tuple: &Tuple, now: Instant, floor: Seq) -> Seq {
        let isn = self.isn(tuple, now);
        if isn.at_or_after(floor) {
            return isn;
        }
        floor + GAP + (hash(&self.isn, tuple, [floor.0.into(), now.as_nanos()]) & GAP_MASK)
    }

    /// What the timestamps of `tuple` differ by from [`timestamp_clock`]: to be worked out once for each connection.
    ///
    /// It depends on the pair of addresses and not on the ports. RFC 6191 §3 wants timestamps to increase from one connection
    /// to the next for a SYN to get through to a peer in TIME-WAIT; with one clock for each pair of addresses they do so not
    /// only where a port is used again, but also behind a translator that gives the old port to another of our
    /// connections. An observer learns how connections of one pair follow each other, and nothing of other pairs, nor
    /// for how long we have been up (RFC 7323 §5.4 and §7).
    pub fn timestamp_offset(&self, tuple: &Tuple) -> u32 {
        AddressPair::of(tuple, &self.isn, &self.timestamps).timestamp_offset
    }

    /// The [initial sequence number](Self::isn) of a connection `tuple` that begins at `now`, and its
    /// [timestamps' offset](Self::timestamp_offset).
    #[inline(always)]
    pub fn isn_and_offset(&mut self, tuple: &Tuple, now: Instant) -> (Seq, u32) {
        if self.latest.addresses != tuple.without_ports() {
            self.switch_pair(tuple);
        }
        let AddressPair { timestamp_offset, isn, .. } = &self.latest;
        (Seq(with_ports(isn, tuple)) + isn_clock(now), *timestamp_offset)
    }

    /// The connections that begin now are between the addresses of `tuple`.
    #[inline(never)]
    fn switch_pair(&mut self, tuple: &Tuple) {
        self.latest = AddressPair::of(tuple, &self.isn, &self.timestamps);
    }

    /// Our clock as the peer of `tuple` sees it (TSval).
    pub fn timestamp(&self, now: Instant, tuple: &Tuple) -> u32 {
        timestamp_clock(now).wrapping_add(self.timestamp_offset(tuple))
    }

    /// The keyed hash of SYN cookies: of `tuple` and of `more`.
    pub(crate) fn cookie_hash(&self, tuple: &Tuple, more: [u64; 2]) -> u32 {
        hash(&self.cookies, tuple, more)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

/// The timestamp clock without an offset, in milliseconds: to be read once in a burst (RFC 7323 §5.4).
#[inline]
pub(crate) fn timestamp_clock(now: Instant) -> u32 {
    (now.as_nanos() / TIMESTAMP_TICK) as u32
}

/// The hash of the addresses of `tuple`, ours before the peer's, and of `more`, to which something may follow. IPv4's addresses
/// take less, and messages of different lengths have nothing to do with each other.
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

/// The hash of the addresses and ports of `tuple` and of `more`.
#[inline]
fn hash<const N: usize>(key: &SipHasher24, tuple: &Tuple, more: [u64; N]) -> u32 {
    with_ports(&addresses(*key, tuple, more), tuple)
}

/// The hash of what has been hashed and of the ports of `tuple`.
#[inline]
fn with_ports(hash: &SipHasher24, tuple: &Tuple) -> u32 {
    // At once, and not written and finished: of whole words before it, this is one word, and no buffer is looked after.
    hash.hash(&tuple.sent_ports()) as u32
}

/// The clock of initial sequence numbers.
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
    use linerate_bypass::time::Duration;
    use std::collections::HashSet;
    use std::net::SocketAddr;

    fn tuple(local: &str, remote: &str) -> Tuple {
        Tuple::new(local.parse().unwrap(), remote.parse().unwrap())
    }

    /// A tuple of each family, and some that differ in one thing.
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
    fn initial_sequence_numbers_of_a_tuple_follow_the_clock() {
        let secrets = Secrets::from_seed(1);
        for tuple in tuples() {
            let first = secrets.isn(&tuple, HOUR);
            let after = |time| secrets.isn(&tuple, HOUR + time) - first;
            assert_eq!(after(Duration::from_micros(4)), 1);
            assert_eq!(after(Duration::from_secs(1)), 250_000);
            assert_eq!(after(Duration::from_micros(4 << 32)), 0);
        }
    }

    /// RFC 9293 §3.4.1, MUST-9: F is of the whole tuple and of the secret.
    #[test]
    fn initial_sequence_numbers_of_different_tuples_and_seeds_have_nothing_in_common() {
        let isns: HashSet<_> = (0..100)
            .map(Secrets::from_seed)
            .flat_map(|secrets| tuples().into_iter().map(move |tuple| secrets.isn(&tuple, HOUR)))
            .collect();
        assert_eq!(isns.len(), 100 * tuples().len());
        // The upper four bits of neighbours' numbers are all as frequent: 4096 in each place, deviation 62.
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
    fn a_connection_that_follows_another_begins_beyond_it() {
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
            assert_eq!(seen.len(), 4, "what is added is not to be foreseen");
        }
    }

    /// RFC 7323 §5.4: between 1 ms and 1 s for a tick.
    #[test]
    fn the_timestamp_clock_ticks_every_millisecond_and_wraps() {
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

    /// RFC 6191 §3: increasing from one connection to the next between the same addresses.
    #[test]
    fn timestamps_go_on_from_connection_to_connection_of_a_pair_of_addresses() {
        let offset = |local, remote| Secrets::from_seed(5).timestamp_offset(&tuple(local, remote));
        assert_eq!(offset("10.0.0.1:7", "10.0.0.2:1024"), offset("10.0.0.1:8", "10.0.0.2:1025"));
        assert_eq!(offset("[fd00::1]:7", "[fd00::2]:1"), offset("[fd00::1]:8", "[fd00::2]:2"));
        assert_ne!(offset("10.0.0.1:7", "10.0.0.2:1024"), offset("10.0.0.1:7", "10.0.0.3:1024"));
        assert_ne!(offset("10.0.0.1:7", "10.0.0.2:1024"), offset("10.0.0.4:7", "10.0.0.2:1024"));
        assert_ne!(offset("[fd00::1]:7", "[fd00::2]:1"), offset("[fd00::1]:7", "[fd00:0:0:1::2]:1"));
    }

    #[test]
    fn the_numbers_of_the_addresses_before_are_not_taken_for_others() {
        let mut secrets = Secrets::from_seed(7);
        for tuple in tuples().iter().chain(tuples().iter().rev()) {
            let expected = (secrets.isn(tuple, HOUR), secrets.timestamp_offset(tuple));
            assert_eq!(secrets.isn_and_offset(tuple, HOUR), expected, "{tuple:?}");
        }
    }

    #[test]
    fn the_uses_of_a_seed_show_nothing_of_each_other() {
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
