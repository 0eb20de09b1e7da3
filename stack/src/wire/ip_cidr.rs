//! Address with a prefix length, as in `10.0.0.2/24`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Local address and the prefix that is on the link with it: `10.0.0.2/24`, `fd00::2/64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpCidr {
    address: IpAddr,
    prefix: u8,
}

impl IpCidr {
    /// Creates `address` with a prefix of `prefix` bits.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, InvalidCidr> {
        let invalid = |reason| InvalidCidr { text: format!("{address}/{prefix}"), reason };
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix > bits {
            return Err(invalid("the prefix is longer than the address"));
        }
        if address.is_unspecified() || address.is_multicast() || address == IpAddr::from([255; 4]) {
            return Err(invalid("not a unicast host address"));
        }
        Ok(IpCidr { address, prefix })
    }

    /// Returns the address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the prefix length in bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Returns whether `other` is in this prefix, and so on the link.
    pub fn contains(&self, other: IpAddr) -> bool {
        share_prefix(self.address, other, self.prefix)
    }
}

/// Returns whether two addresses of one family have the same first `prefix` bits. A `prefix` beyond the length of an
/// address compares whole addresses.
#[inline]
pub(crate) fn share_prefix(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let differ = u32::from(a) ^ u32::from(b);
            differ.checked_shr(32_u32.saturating_sub(prefix.into())).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let differ = u128::from(a) ^ u128::from(b);
            differ.checked_shr(128_u32.saturating_sub(prefix.into())).unwrap_or(0) == 0
        }
        _ => false,
    }
}

impl fmt::Display for IpCidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Error for text that is not an address with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not an address with a prefix, such as 10.0.0.2/24 or fd00::2/64: {reason}")]
pub struct InvalidCidr {
    text: String,
    reason: &'static str,
}

impl FromStr for IpCidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, InvalidCidr> {
        let invalid = |reason| InvalidCidr { text: text.to_owned(), reason };
        let (address, prefix) = text.split_once('/').ok_or_else(|| invalid("the prefix is missing"))?;
        let address = address.parse().map_err(|_| invalid("the part before '/' is not an IP address"))?;
        let prefix = prefix.parse().map_err(|_| invalid("the part after '/' is not a number of bits"))?;
        IpCidr::new(address, prefix).map_err(|InvalidCidr { reason, .. }| invalid(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> IpCidr {
        text.parse().unwrap()
    }

    #[test]
    fn prefix_contains_only_its_hosts() {
        assert!(cidr("10.0.0.2/24").contains("10.0.0.254".parse().unwrap()));
        assert!(!cidr("10.0.0.2/24").contains("10.0.1.2".parse().unwrap()));
        assert!(!cidr("10.0.0.2/24").contains("fd00::1".parse().unwrap()));
        assert!(cidr("10.0.0.2/0").contains("192.0.2.1".parse().unwrap()));
        assert!(!cidr("10.0.0.2/32").contains("10.0.0.3".parse().unwrap()));
        assert!(cidr("fd00::2/64").contains("fd00::ffff".parse().unwrap()));
        assert!(!cidr("fd00::2/64").contains("fd00:0:0:1::2".parse().unwrap()));
        assert!(cidr("fd00::2/0").contains("2001:db8::1".parse().unwrap()));
    }

    #[test]
    fn invalid_host_address_is_rejected_with_the_reason() {
        for (text, reason) in [
            ("10.0.0.2", "the prefix is missing"),
            ("10.0.0/24", "not an IP address"),
            ("10.0.0.2/x", "not a number"),
            ("10.0.0.2/33", "longer than the address"),
            ("0.0.0.0/0", "not a unicast host address"),
            ("224.0.0.1/24", "not a unicast host address"),
            ("ff02::1/64", "not a unicast host address"),
        ] {
            let error = text.parse::<IpCidr>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
