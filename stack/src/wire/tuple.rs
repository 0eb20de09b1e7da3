//! 4-tuple that identifies a TCP connection.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Local and remote address and port: the identity of a connection (RFC 9293 §3.3.1).
///
/// IPv4 addresses are stored in IPv4-mapped form, so that comparison and hashing take a few instructions. The
/// demultiplexer drops IPv6 packets with IPv4-mapped addresses, which are never valid on a link.
#[derive(Clone, Copy)]
pub struct Tuple {
    local: Address,
    remote: Address,
    ports: u32,
}

/// IPv6 address as two numbers. A `u128` would align the tuple to 16 bytes and enlarge it from 40 to 48 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    high: u64,
    low: u64,
}

/// Prefix of the IPv4 address in the low half of an IPv4-mapped one (RFC 4291 §2.5.5.2).
const MAPPED: u64 = 0xffff << 32;

impl Tuple {
    /// Creates the tuple of a connection between the local address `local` and the peer's `remote`.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Tuple {
            local: Address::new(local.ip()),
            remote: Address::new(remote.ip()),
            ports: u32::from(local.port()) << 16 | u32::from(remote.port()),
        }
    }

    /// Creates the tuple of an IPv4 segment received from `source` for `destination`. `ports` are the first four bytes
    /// of its TCP header.
    #[inline]
    pub fn received_v4(source: u32, destination: u32, ports: u32) -> Self {
        Tuple { local: Address::v4(destination), remote: Address::v4(source), ports: ports.rotate_left(16) }
    }

    /// Creates the tuple of a received IPv6 segment. `addresses` are the source and destination in its IP header (bytes
    /// 8 to 39, RFC 8200 §3); `ports` are the first four bytes of its TCP header.
    #[inline]
    pub fn received_v6(addresses: &[u8; 32], ports: [u8; 4]) -> Self {
        let (words, _) = addresses.as_chunks::<8>();
        let word = |at: usize| u64::from_be_bytes(words[at]);
        Tuple {
            local: Address { high: word(2), low: word(3) },
            remote: Address { high: word(0), low: word(1) },
            ports: u32::from_be_bytes(ports).rotate_left(16),
        }
    }

    /// Returns the tuple from the peer's perspective. An ICMP error, for example, quotes a sent segment, which read as
    /// a received one has the reversed tuple.
    #[inline]
    pub fn reversed(&self) -> Self {
        Tuple { local: self.remote, remote: self.local, ports: self.ports.rotate_left(16) }
    }

    /// Returns the local address and port.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local.ip(), self.local_port())
    }

    /// Returns the peer's address and port.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote.ip(), self.remote_port())
    }

    /// Returns the local port.
    #[inline]
    pub fn local_port(&self) -> u16 {
        (self.ports >> 16) as u16
    }

    /// Returns the peer's port.
    #[inline]
    pub fn remote_port(&self) -> u16 {
        self.ports as u16
    }

    /// Returns whether both addresses are IPv4. Both ends have the same family.
    #[inline]
    pub fn is_ipv4(&self) -> bool {
        self.remote.is_ipv4()
    }

    /// Returns the peer's IPv4 address.
    #[inline]
    pub fn remote_v4(&self) -> Option<Ipv4Addr> {
        self.remote.is_ipv4().then_some(Ipv4Addr::from_bits(self.remote.low as u32))
    }

    /// Returns the local address as IPv6, with IPv4 in mapped form.
    #[inline]
    pub fn local_v6(&self) -> Ipv6Addr {
        self.local.mapped()
    }

    /// Returns the peer's address as IPv6, with IPv4 in mapped form.
    #[inline]
    pub fn remote_v6(&self) -> Ipv6Addr {
        self.remote.mapped()
    }

    /// Returns source and destination for the IPv4 header of a sent segment (bytes 12 to 19). Meaningless unless
    /// [`is_ipv4`](Self::is_ipv4).
    #[inline]
    pub fn sent_v4(&self) -> [u8; 8] {
        (self.local.low << 32 | self.remote.low & 0xffff_ffff).to_be_bytes()
    }

    /// Returns source and destination for the IPv6 header of a sent segment (bytes 8 to 39).
    #[inline]
    pub fn sent_v6(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let words = [self.local.high, self.local.low, self.remote.high, self.remote.low];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Returns the first four bytes of the TCP header of a sent segment: source and destination port.
    #[inline]
    pub fn sent_ports(&self) -> [u8; 4] {
        self.ports.to_be_bytes()
    }

    /// Returns the keyed hash for the native engine's tables.
    ///
    /// The hash is NH (Black, Halevi, Krawczyk, Krovetz and Rogaway, "UMAC: Fast and Secure Message Authentication",
    /// 1999) over the lower halves of the addresses with the ports, and the upper halves (zero in IPv4), each
    /// multiplied with its own key number. Without knowledge of the key, two tuples collide in the 128-bit sum with a
    /// probability of at most 2⁻⁶³, however they were chosen. A final folded multiplication spreads the sum over 64
    /// bits.
    ///
    /// The ports share a word with the *local* address, which the peer cannot choose freely; an IPv4 address does not
    /// overlap them. With the peer's address instead, a word would combine two freely chosen numbers, which makes
    /// collisions easy.
    #[inline]
    pub fn hash_with(&self, key: &HashKey) -> u64 {
        let [a, b, c, d, e, f] = key.0;
        let product = |x: u64, y: u64| u128::from(x) * u128::from(y);
        let placed = self.local.low ^ u64::from(self.ports) << 32;
        let lower = product(self.remote.low.wrapping_add(a), placed.wrapping_add(b));
        let upper = product(self.remote.high, c).wrapping_add(product(self.local.high, d));
        let sum = lower.wrapping_add(upper);
        let folded = product((sum >> 64) as u64 ^ e, sum as u64 ^ f);
        (folded >> 64) as u64 ^ folded as u64
    }

    /// Returns the local address, the peer's address, and the ports with the local one in the upper half.
    #[inline]
    pub(crate) fn parts(&self) -> (Address, Address, u32) {
        (self.local, self.remote, self.ports)
    }

    /// Returns the tuple with both ports zero.
    #[inline]
    pub(crate) fn without_ports(&self) -> Self {
        Tuple { ports: 0, ..*self }
    }

    /// Creates the tuple from its [`parts`](Self::parts).
    #[inline]
    pub(crate) fn from_parts(local: Address, remote: Address, ports: u32) -> Self {
        Tuple { local, remote, ports }
    }

    /// Returns the exclusive or of all 16-bit words of the tuple, on which a hash that treats all words alike depends.
    /// The IPv4-mapped prefix occurs at both ends and cancels out.
    #[inline]
    pub(crate) fn fold(&self) -> u16 {
        let x = self.local.high ^ self.local.low ^ self.remote.high ^ self.remote.low;
        let x = (x >> 32) as u32 ^ x as u32 ^ self.ports;
        (x >> 16) as u16 ^ x as u16
    }
}

impl Address {
    fn new(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Address::v4(ip.to_bits()),
            IpAddr::V6(ip) => Address { high: (ip.to_bits() >> 64) as u64, low: ip.to_bits() as u64 },
        }
    }

    #[inline]
    fn v4(bits: u32) -> Self {
        Address { high: 0, low: MAPPED | u64::from(bits) }
    }

    #[inline]
    fn is_ipv4(self) -> bool {
        self.high == 0 && self.low >> 32 == MAPPED >> 32
    }

    #[inline]
    fn mapped(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(u128::from(self.high) << 64 | u128::from(self.low))
    }

    fn ip(self) -> IpAddr {
        if self.is_ipv4() { IpAddr::V4(Ipv4Addr::from_bits(self.low as u32)) } else { IpAddr::V6(self.mapped()) }
    }
}

/// Compares without branches: tuples are mostly equal, or differ at an unpredictable position.
impl PartialEq for Tuple {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let differ = (self.remote.low ^ other.remote.low)
            | u64::from(self.ports ^ other.ports)
            | (self.local.low ^ other.local.low)
            | (self.remote.high ^ other.remote.high)
            | (self.local.high ^ other.local.high);
        differ == 0
    }
}

impl Eq for Tuple {}

impl Hash for Tuple {
    /// Combines each word of the peer's choice, as the lower half, with a local word. foldhash multiplies its secret
    /// state with the upper half, which it protects only by a public constant: a peer that chose that half could make
    /// the product zero.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from(self.local.high) << 64 | u128::from(self.remote.high));
        state.write_u128(u128::from(self.local.low) << 64 | u128::from(self.remote.low));
        state.write_u32(self.ports);
    }
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.local(), self.remote())
    }
}

/// Secret key of [`Tuple::hash_with`]. Peers choose tuples; without a secret they could choose many with the same table
/// position.
#[derive(Clone, Copy)]
pub struct HashKey([u64; 6]);

impl HashKey {
    /// Creates a key from `random`, which must be uniform and unknown to peers.
    pub fn new(mut random: impl FnMut() -> u64) -> Self {
        HashKey(std::array::from_fn(|_| random()))
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn key(seed: u64) -> HashKey {
        let mut random = fastrand::Rng::with_seed(seed);
        HashKey::new(|| random.u64(..))
    }

    fn v4(local: u32, local_port: u16, remote: u32, remote_port: u16) -> Tuple {
        let end = |ip, port| SocketAddr::new(Ipv4Addr::from_bits(ip).into(), port);
        Tuple::new(end(local, local_port), end(remote, remote_port))
    }

    #[test]
    fn tuple_is_forty_bytes() {
        assert_eq!(size_of::<Tuple>(), 40);
    }

    #[test]
    fn addresses_of_both_families_read_back() {
        for (local, remote) in [("10.0.0.1:7", "192.0.2.255:65535"), ("[fd00::1]:1", "[2001:db8::ffff]:32768")] {
            let (local, remote): (SocketAddr, SocketAddr) = (local.parse().unwrap(), remote.parse().unwrap());
            let tuple = Tuple::new(local, remote);
            assert_eq!((tuple.local(), tuple.remote()), (local, remote));
            assert_eq!((tuple.local_port(), tuple.remote_port()), (local.port(), remote.port()));
            assert_eq!(tuple.is_ipv4(), local.is_ipv4());
            assert_eq!(tuple.remote_v4().map(IpAddr::V4), Some(remote.ip()).filter(IpAddr::is_ipv4));
            assert_eq!(tuple.local_v6().to_canonical(), local.ip());
            assert_eq!(tuple.remote_v6().to_canonical(), remote.ip());
        }
    }

    #[test]
    fn ipv6_address_similar_to_a_mapped_one_is_not_ipv4() {
        let tuple = |ip: &str| Tuple::new(format!("[{ip}]:1").parse().unwrap(), format!("[{ip}]:2").parse().unwrap());
        for ip in ["::10.0.0.1", "::1:ffff:10.0.0.1", "::fffe:10.0.0.1", "1::ffff:10.0.0.1"] {
            assert!(!tuple(ip).is_ipv4(), "{ip}");
            assert_eq!(tuple(ip).remote_v4(), None);
        }
    }

    proptest! {
        /// RFC 791 §3.1, RFC 8200 §3: source before destination; RFC 9293 §3.1: source port before destination port.
        #[test]
        fn headers_are_read_and_written_in_their_order(local: u128, remote: u128, ports: (u16, u16), four: bool) {
            let v4 = |bits: u128| IpAddr::from((bits as u32).to_be_bytes());
            let ip = |bits: u128| if four { v4(bits) } else { bits.to_be_bytes().into() };
            let tuple = Tuple::new(SocketAddr::new(ip(local), ports.0), SocketAddr::new(ip(remote), ports.1));
            let source_and_destination = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
            prop_assert_eq!(&tuple.sent_ports()[..], source_and_destination);
            let back = if four {
                let addresses = [(local as u32).to_be_bytes(), (remote as u32).to_be_bytes()].concat();
                prop_assert_eq!(&tuple.sent_v4()[..], addresses);
                let [source, destination] = [local as u32, remote as u32];
                Tuple::received_v4(source, destination, u32::from_be_bytes(tuple.sent_ports()))
            } else {
                prop_assert_eq!(&tuple.sent_v6()[..], [local.to_be_bytes(), remote.to_be_bytes()].concat());
                Tuple::received_v6(&tuple.sent_v6(), tuple.sent_ports())
            };
            prop_assert_eq!(back, tuple.reversed());
            prop_assert_eq!(back.reversed(), tuple);
        }

        #[test]
        fn tuples_that_differ_in_one_bit_differ_in_everything(words: [u64; 5], bit in 0usize..288) {
            let tuple = |words: [u64; 5]| Tuple {
                local: Address { high: words[0], low: words[1] },
                remote: Address { high: words[2], low: words[3] },
                ports: words[4] as u32,
            };
            let mut other = words;
            other[bit / 64] ^= 1 << (bit % 64);
            let (one, other) = (tuple(words), tuple(other));
            prop_assert_eq!(one, one);
            prop_assert_ne!(one, other);
                prop_assert_ne!(one.hash_with(&key(1)), other.hash_with(&key(1)));
            prop_assert_ne!(one.hash_with(&key(1)), one.hash_with(&key(2)));
        }
    }

    /// The upper hash bits, which index a table of 2¹⁷ entries, must be as good as random for consecutive ports or
    /// addresses, with every key.
    #[test]
    fn consecutive_tuples_are_spread_like_random_ones() {
        const TUPLES: u32 = 1 << 16;
        let ports = |i: u32| v4(0x0a00_0001, 7, 0x0a00_0002, i as u16);
        let own_ports = |i: u32| v4(0x0a00_0001, i as u16, 0x0a00_0002, 80);
        let addresses = |i: u32| v4(0x0a00_0001, 7, 0x0a00_0000 + i, 1024);
        let networks = |i: u32| {
            let remote = SocketAddr::new(Ipv6Addr::from_bits(u128::from(i) << 64 | 1).into(), 1024);
            Tuple::new("[fd00::1]:7".parse().unwrap(), remote)
        };
        let kinds: [&dyn Fn(u32) -> Tuple; 4] = [&ports, &own_ports, &addresses, &networks];
        for (kind, tuple) in kinds.iter().enumerate() {
            for seed in 0..20 {
                let key = key(seed);
                let buckets: HashSet<u64> = (0..TUPLES).map(|i| tuple(i).hash_with(&key) >> 47).collect();
                // 2¹⁷ (1 − e^(−1/2)) = 51 573 for random ones, with a standard deviation of 110.
                assert!((51_000..52_200).contains(&buckets.len()), "kind {kind}, seed {seed}: {}", buckets.len());
            }
        }
    }

    /// Peers choose port and address freely: no change of one may compensate a change of the other.
    #[test]
    fn equal_changes_of_address_and_port_do_not_collide() {
        let key = key(3);
        let hashes: HashSet<u64> =
            (0..1u32 << 16).map(|i| v4(1, 7, 0x0a00_0000 ^ i, i as u16).hash_with(&key)).collect();
        assert_eq!(hashes.len(), 1 << 16);
    }

    /// The smoltcp engine's table is hashbrown's with foldhash, whose only secret is the seed; every second word is
    /// combined with a public constant. A peer whose address equals that constant must not make the hash zero.
    #[test]
    fn peer_address_cannot_cancel_the_foldhash_state() {
        use std::hash::BuildHasher;
        const PUBLIC: u64 = 0xc0ac_29b7_c97c_50dd;
        let state = foldhash::fast::FixedState::with_seed(5);
        let peer = |high: u64, low: u64| {
            let remote = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
            state.hash_one(Tuple::new("[fd00::1]:7".parse().unwrap(), SocketAddr::new(remote.into(), 1)))
        };
        for hashes in [
            (0..1000).map(|i| peer(PUBLIC, i)).collect::<HashSet<_>>(),
            (0..1000).map(|i| peer(i, PUBLIC)).collect::<HashSet<_>>(),
        ] {
            assert_eq!(hashes.len(), 1000);
        }
    }
}
