//! Flow steering: a symmetric Toeplitz hash of the 4-tuple and a table from hashes to workers.
//!
//! Both ends of a link compute the same owner for a connection. Between two stacks with equally many workers, each of
//! which sends on its own queue, every frame therefore arrives at its owner. A port with RSS is programmed with
//! [`RSS_KEY`] and the same table.

use crate::wire::tuple::Tuple;
use std::net::SocketAddr;

/// RSS key: `6d 5a` repeated, as long as the longest key of any port (52 bytes).
///
/// A key of period 16 bits makes the hash depend only on the exclusive or of the tuple's 16-bit words, hence
/// symmetric (Woo and Park, "Scalable TCP Session Monitoring with Symmetric Receive-side Scaling", 2012).
pub const RSS_KEY: [u8; 52] = {
    let mut key = [0x6d; 52];
    let mut i = 1;
    while i < key.len() {
        key[i] = 0x5a;
        i += 2;
    }
    key
};

/// Entries of the redirection table: entry `i` is worker `i % workers`. A port with a longer table repeats it.
pub const TABLE_ENTRIES: usize = 128;

/// Toeplitz hash of each byte followed by a zero byte, under the first 16 bits of [`RSS_KEY`] repeated.
///
/// The key at bit `i` is the key rotated left by `i`. A byte eight bits later therefore has the same hash, rotated by
/// eight.
static BYTE_HASHES: [u16; 256] = {
    let key = (RSS_KEY[0] as u16) << 8 | RSS_KEY[1] as u16;
    let mut hashes = [0; 256];
    let mut byte = 0;
    while byte < hashes.len() {
        let mut bit = 0;
        while bit < 8 {
            if byte & (0x80 >> bit) != 0 {
                hashes[byte] ^= key.rotate_left(bit);
            }
            bit += 1;
        }
        byte += 1;
    }
    hashes
};

/// Returns the Toeplitz hash of `tuple` under [`RSS_KEY`], as a port computes it (Microsoft, "RSS hashing types":
/// source address, destination address, source port, destination port in network order; this key makes the order
/// irrelevant).
#[inline]
pub fn toeplitz(tuple: &Tuple) -> u32 {
    let [high, low] = tuple.fold().to_be_bytes();
    let hash = BYTE_HASHES[usize::from(high)] ^ BYTE_HASHES[usize::from(low)].rotate_left(8);
    // The key window has 32 bits with equal halves.
    u32::from(hash) << 16 | u32::from(hash)
}

/// Returns the worker among `workers` that owns the flow with this hash.
#[inline]
pub fn owner(hash: u32, workers: usize) -> usize {
    // There are at most as many owners as entries. A 32-bit division is much faster than a 64-bit one.
    let workers = workers.min(TABLE_ENTRIES) as u32;
    (hash % TABLE_ENTRIES as u32 % workers) as usize
}

/// Assignment of TCP flows to workers: by their local port if it belongs to a worker, otherwise by their hash.
#[derive(Debug, Clone)]
pub(crate) struct Steering {
    workers: usize,
    /// Addresses of the first worker, [`Config::listen_by_worker`](crate::Config::listen_by_worker).
    by_worker: Vec<SocketAddr>,
}

impl Steering {
    pub fn new(workers: usize, by_worker: &[SocketAddr]) -> Self {
        Steering { workers, by_worker: by_worker.to_vec() }
    }

    /// Returns true if some ports belong to workers.
    pub fn has_ports(&self) -> bool {
        !self.by_worker.is_empty()
    }

    /// Returns the worker to which the local port of `tuple` belongs.
    pub fn by_port(&self, tuple: &Tuple) -> Option<usize> {
        let local = tuple.local();
        self.by_worker.iter().find_map(|first| {
            let is_address = match first.ip().is_unspecified() {
                true => first.is_ipv4() == local.is_ipv4(),
                false => first.ip() == local.ip(),
            };
            let worker = usize::from(local.port().checked_sub(first.port())?);
            (is_address && worker < self.workers).then_some(worker)
        })
    }

    /// Returns the worker that owns the flow with the hash `hash`, unless [its port](Self::by_port) belongs to one.
    #[inline]
    pub fn by_hash(&self, hash: u32) -> usize {
        owner(hash, self.workers)
    }

    /// Returns the worker that owns the flow.
    pub fn owner(&self, tuple: &Tuple) -> usize {
        self.by_port(tuple).unwrap_or_else(|| self.by_hash(toeplitz(tuple)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

    /// Computes the hash by definition: for each set bit of the input, exclusive or with the 32 key bits from that
    /// position.
    fn toeplitz_by_definition(key: &[u8], input: &[u8]) -> u32 {
        let mut hash = 0;
        for bit in 0..input.len() * 8 {
            if input[bit / 8] & (0x80 >> (bit % 8)) != 0 {
                let window = (0..32).fold(0u32, |w, i| {
                    let at = bit + i;
                    w << 1 | u32::from(key[at / 8] >> (7 - at % 8) & 1)
                });
                hash ^= window;
            }
        }
        hash
    }

    fn input(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
        let octets = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        [
            octets(source.ip()),
            octets(destination.ip()),
            source.port().to_be_bytes().to_vec(),
            destination.port().to_be_bytes().to_vec(),
        ]
        .concat()
    }

    #[test]
    fn definition_agrees_with_published_examples() {
        // "Verifying the RSS hash calculation", Microsoft: the 40-byte example key, 66.9.149.187:2794 to
        // 161.142.100.80:1766.
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
            0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
            0xbe, 0xac, 0x01, 0xfa,
        ];
        let input = input("66.9.149.187:2794".parse().unwrap(), "161.142.100.80:1766".parse().unwrap());
        assert_eq!(toeplitz_by_definition(&key, &input), 0x51cc_c178);
    }

    proptest! {
        #[test]
        fn hash_is_toeplitz_under_the_key_and_symmetric(
            v4: (u32, u32), v6: (u128, u128), ports: (u16, u16), six: bool
        ) {
            let (a, b) = if six {
                (IpAddr::from(v6.0.to_be_bytes()), IpAddr::from(v6.1.to_be_bytes()))
            } else {
                (IpAddr::from(v4.0.to_be_bytes()), IpAddr::from(v4.1.to_be_bytes()))
            };
            let (a, b) = (SocketAddr::new(a, ports.0), SocketAddr::new(b, ports.1));
            let hash = toeplitz(&Tuple::new(a, b));
            prop_assert_eq!(hash, toeplitz_by_definition(&RSS_KEY, &input(a, b)));
            prop_assert_eq!(hash, toeplitz(&Tuple::new(b, a)));
        }
    }

    #[test]
    fn local_ports_of_workers_precede_the_hash() {
        let first = ["10.0.0.2:7000", "[::]:7100"].map(|address| address.parse().unwrap());
        let steering = Steering::new(3, &first);
        let tuple = |local: &str, remote: &str| Tuple::new(local.parse().unwrap(), remote.parse().unwrap());
        for (local, worker) in [
            ("10.0.0.2:7000", Some(0)),
            ("10.0.0.2:7002", Some(2)),
            ("10.0.0.2:7003", None),
            ("10.0.0.2:6999", None),
            ("10.0.0.3:7001", None),
            ("10.0.0.2:7101", None),
            ("[fd00::2]:7101", Some(1)),
            ("[fd00::2]:7001", None),
        ] {
            for port in 1024..1100 {
                let remote =
                    if local.starts_with('[') { format!("[fd00::9]:{port}") } else { format!("10.0.0.9:{port}") };
                let tuple = tuple(local, &remote);
                assert_eq!(steering.by_port(&tuple), worker, "{local}");
                assert_eq!(steering.owner(&tuple), worker.unwrap_or_else(|| owner(toeplitz(&tuple), 3)));
            }
        }
        // The port of the peer has no owner.
        assert_eq!(steering.by_port(&tuple("10.0.0.9:1024", "10.0.0.2:7000")), None);
    }

    #[test]
    fn flows_are_spread_evenly_over_workers() {
        for workers in 2..=8 {
            let mut flows = vec![0u32; workers];
            for port in 1024..=65535 {
                let tuple = Tuple::new("10.0.0.1:7".parse().unwrap(), SocketAddr::from(([10, 0, 0, 2], port)));
                flows[owner(toeplitz(&tuple), workers)] += 1;
            }
            let (least, most) = (flows.iter().min().unwrap(), flows.iter().max().unwrap());
            assert!(f64::from(*most) / f64::from(*least) < 1.1, "{workers}: {flows:?}");
        }
    }
}
