//! The 4-tuple that names a TCP connection.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Our address and port and the peer's: the name of a connection (RFC 9293 §3.3.1).
///
/// IPv4 addresses are held in IPv4-mapped form, so that equality and hashing are a few words of arithmetic. An IPv6
/// packet from or to such an address must therefore never get here; none is legitimate on a link, and the
/// demultiplexer drops them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    local: u128,
    remote: u128,
    ports: u32,
}

impl Tuple {
    /// The connection between our `local` and the peer's `remote`.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Tuple {
            local: widen(local.ip()),
            remote: widen(remote.ip()),
            ports: u32::from(local.port()) << 16 | u32::from(remote.port()),
        }
    }

    /// Our address and port.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(narrow(self.local), (self.ports >> 16) as u16)
    }

    /// The peer's address and port.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(narrow(self.remote), self.ports as u16)
    }

    /// All 16-bit words of the tuple combined by exclusive or: what a hash that treats every word alike depends on.
    /// IPv4's mapping prefix is the same at both ends and cancels out.
    pub(crate) fn fold(&self) -> u16 {
        let x = self.local ^ self.remote;
        let x = (x >> 64) as u64 ^ x as u64;
        let x = (x >> 32) as u32 ^ x as u32 ^ self.ports;
        (x >> 16) as u16 ^ x as u16
    }
}

fn widen(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn narrow(bits: u128) -> IpAddr {
    let ip = Ipv6Addr::from_bits(bits);
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
}

impl Hash for Tuple {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.local);
        state.write_u128(self.remote);
        state.write_u32(self.ports);
    }
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.local(), self.remote())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_read_back() {
        for (local, remote) in [("10.0.0.1:7", "192.0.2.255:65535"), ("[fd00::1]:1", "[2001:db8::ffff]:32768")] {
            let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
            let tuple = Tuple::new(local, remote);
            assert_eq!((tuple.local(), tuple.remote()), (local, remote));
        }
    }
}
