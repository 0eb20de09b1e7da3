//! The 4-tuple that names a TCP connection.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Our address and port and the peer's: the name of a connection (RFC 9293 §3.3.1).
///
/// IPv4 addresses are held in IPv4-mapped form, so that equality and hashing are a few words of arithmetic. An IPv6
/// packet from or to such an address must therefore never get here; none is legitimate on a link, and the
/// demultiplexer drops them.
#[derive(Clone, Copy)]
pub struct Tuple {
    local: Address,
    remote: Address,
    ports: u32,
}

/// An IPv6 address as two numbers. A `u128` would align the tuple to 16 bytes, and make it 48 long instead of 40.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    high: u64,
    low: u64,
}

/// What precedes the IPv4 address in the low half of a mapped one (RFC 4291 §2.5.5.2).
const MAPPED: u64 = 0xffff << 32;

impl Tuple {
    /// The connection between our `local` and the peer's `remote`.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Tuple {
            local: Address::new(local.ip()),
            remote: Address::new(remote.ip()),
            ports: u32::from(local.port()) << 16 | u32::from(remote.port()),
        }
    }

    /// The connection that a received IPv4 segment from `source` to `destination` is of; `ports` are the first four bytes of
    /// its TCP header.
    #[inline]
    pub fn received_v4(source: u32, destination: u32, ports: u32) -> Self {
        Tuple { local: Address::v4(destination), remote: Address::v4(source), ports: ports.rotate_left(16) }
    }

    /// The connection that a received IPv6 segment is of. `addresses` are those of its IP header, source and destination
    /// (bytes 8 to 39, RFC 8200 §3); `ports` are the first four bytes of its TCP header.
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

    /// The same connection seen from the other end. A segment that we have sent, read as if it had been received, is of
    /// the reverse: what an ICMP error quotes, for one.
    #[inline]
    pub fn reversed(&self) -> Self {
        Tuple { local: self.remote, remote: self.local, ports: self.ports.rotate_left(16) }
    }

    /// Our address and port.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local.ip(), self.local_port())
    }

    /// The peer's address and port.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote.ip(), self.remote_port())
    }

    /// Our port.
    #[inline]
    pub fn local_port(&self) -> u16 {
        (self.ports >> 16) as u16
    }

    /// The peer's port.
    #[inline]
    pub fn remote_port(&self) -> u16 {
        self.ports as u16
    }

    /// Whether the addresses are IPv4's. Both ends of a connection are of one family.
    #[inline]
    pub fn is_ipv4(&self) -> bool {
        self.remote.is_ipv4()
    }

    /// Our address, if it is IPv4's.
    #[inline]
    pub fn local_v4(&self) -> Option<Ipv4Addr> {
        self.local.is_ipv4().then_some(Ipv4Addr::from_bits(self.local.low as u32))
    }

    /// The peer's address, if it is IPv4's.
    #[inline]
    pub fn remote_v4(&self) -> Option<Ipv4Addr> {
        self.remote.is_ipv4().then_some(Ipv4Addr::from_bits(self.remote.low as u32))
    }

    /// Our address as an IPv6 one: the mapped form of an IPv4 address.
    #[inline]
    pub fn local_v6(&self) -> Ipv6Addr {
        self.local.mapped()
    }

    /// The peer's address as an IPv6 one: the mapped form of an IPv4 address.
    #[inline]
    pub fn remote_v6(&self) -> Ipv6Addr {
        self.remote.mapped()
    }

    /// The addresses of the IPv4 header of a segment that we send, source and destination: bytes 12 to 19. Without
    /// meaning unless [`is_ipv4`](Self::is_ipv4).
    #[inline]
    pub fn sent_v4(&self) -> [u8; 8] {
        (self.local.low << 32 | self.remote.low & 0xffff_ffff).to_be_bytes()
    }

    /// The addresses of the IPv6 header of a segment that we send, source and destination: bytes 8 to 39.
    #[inline]
    pub fn sent_v6(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let words = [self.local.high, self.local.low, self.remote.high, self.remote.low];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// The first four bytes of the TCP header of a segment that we send: source and destination port.
    #[inline]
    pub fn sent_ports(&self) -> [u8; 4] {
        self.ports.to_be_bytes()
    }

    /// The keyed hash that the native engine's tables go by.
    ///
    /// NH (Black, Halevi, Krawczyk, Krovetz and Rogaway, "UMAC: Fast and Secure Message Authentication", 1999) over the lower
    /// halves of the addresses with the ports, and the upper halves, which are zero in IPv4, each times a number of its own:
    /// for whoever does not know the key, two tuples agree in the 128 bits of the sum with a probability of 2⁻⁶³ at most,
    /// however they were chosen. A last folded multiplication spreads the sum over 64 bits.
    ///
    /// The ports share a word with *our* address, which the remote party cannot choose freely; IPv4's does not reach where
    /// they are. With the peer's address there would be two freely chosen numbers in one word, and countless tuples alike.
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

    /// Our address, the peer's, and the ports, ours in the upper half.
    #[inline]
    pub(crate) fn parts(&self) -> (Address, Address, u32) {
        (self.local, self.remote, self.ports)
    }

    /// The pair of addresses, with ports of zero.
    #[inline]
    pub(crate) fn without_ports(&self) -> Self {
        Tuple { ports: 0, ..*self }
    }

    /// The tuple of these [`parts`](Self::parts).
    #[inline]
    pub(crate) fn from_parts(local: Address, remote: Address, ports: u32) -> Self {
        Tuple { local, remote, ports }
    }

    /// All 16-bit words of the tuple combined by exclusive or: what a hash that treats every word alike depends on.
    /// IPv4's mapping prefix is the same at both ends and cancels out.
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

/// Without a branch: the tuples that are compared are nearly always equal, or differ somewhere unpredictable.
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
    /// Each word that the remote party chooses goes in beside one of ours, in the lower half. foldhash multiplies what it was
    /// given before, which is secret, with the upper half, which it only hides behind a constant that everybody knows:
    /// whoever could choose that could make the product nothing.
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

/// The secret of [`Tuple::hash_with`]. Remote parties choose tuples; without a secret they could choose many that meet
/// in one place of a table.
#[derive(Clone, Copy)]
pub struct HashKey([u64; 6]);

impl HashKey {
    /// A key of words that `random` gives, which must be uniform and unknown to remote parties.
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
    fn a_tuple_is_forty_bytes() {
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
            assert_eq!(tuple.local_v4().map(IpAddr::V4), Some(local.ip()).filter(IpAddr::is_ipv4));
            assert_eq!(tuple.remote_v4().map(IpAddr::V4), Some(remote.ip()).filter(IpAddr::is_ipv4));
            assert_eq!(tuple.local_v6().to_canonical(), local.ip());
            assert_eq!(tuple.remote_v6().to_canonical(), remote.ip());
        }
    }

    #[test]
    fn an_ipv6_address_that_only_begins_like_a_mapped_one_is_not_ipv4() {
        let tuple = |ip: &str| Tuple::new(format!("[{ip}]:1").parse().unwrap(), format!("[{ip}]:2").parse().unwrap());
        for ip in ["::10.0.0.1", "::1:ffff:10.0.0.1", "::fffe:10.0.0.1", "1::ffff:10.0.0.1"] {
            assert!(!tuple(ip).is_ipv4(), "{ip}");
            assert_eq!(tuple(ip).local_v4(), None);
        }
    }

    proptest! {
        /// RFC 791 §3.1, RFC 8200 §3: source before destination; RFC 9293 §3.1: source port before destination port.
        #[test]
        fn headers_are_read_and_written_in_their_order(local: u128, remote: u128, ports: (u16, u16), four: bool) {
            let ip = |bits: u128| if four { IpAddr::from((bits as u32).to_be_bytes()) } else { bits.to_be_bytes().into() };
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

    /// What a table of 2¹⁷ places sees of a hash, its upper bits, must be as good as random for tuples that count upwards,
    /// be it in the ports or the addresses, and under every key.
    #[test]
    fn tuples_in_a_row_are_spread_like_random_ones() {
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
                let places: HashSet<u64> = (0..TUPLES).map(|i| tuple(i).hash_with(&key) >> 47).collect();
                // 2¹⁷ (1 − e^(−1/2)) = 51 573 for random ones, with a standard deviation of 110.
                assert!((51_000..52_200).contains(&places.len()), "kind {kind}, seed {seed}: {}", places.len());
            }
        }
    }

    /// A port and the peer's address are both free to choose: no change to one makes up for one to the other.
    #[test]
    fn addresses_and_ports_that_differ_alike_do_not_meet() {
        let key = key(3);
        let hashes: HashSet<u64> =
            (0..1u32 << 16).map(|i| v4(1, 7, 0x0a00_0000 ^ i, i as u16).hash_with(&key)).collect();
        assert_eq!(hashes.len(), 1 << 16);
    }

    /// The smoltcp engine's table is hashbrown's with foldhash, of which only the seed is secret: each second word is hidden
    /// behind a constant of the crate. A peer whose address holds that constant must not be hashed to nothing.
    #[test]
    fn no_address_of_a_peer_makes_foldhash_forget_the_rest() {
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
