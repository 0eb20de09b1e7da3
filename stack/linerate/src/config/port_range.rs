//! Range of ports.

use linerate_stack::Config;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Range of ports, written as `61000-65535`. It is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// Kernel setting of the local ports of outgoing connections.
const OF_KERNEL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

impl PortRange {
    /// Local ports of the stack's outgoing connections.
    pub const STACK: PortRange = PortRange::new(*Config::OUTGOING_PORTS.start(), *Config::OUTGOING_PORTS.end());
    /// Local ports of the stack's outgoing connections at the kernel's addresses, above the kernel's default range.
    pub const SHARED: PortRange = PortRange::new(61_000, 65_535);

    /// Returns the range from which the kernel selects the ports of outgoing connections, if it can be read.
    pub fn of_kernel() -> Option<Self> {
        let text = std::fs::read_to_string(OF_KERNEL).ok()?;
        let (first, last) = text.trim().split_once(char::is_whitespace)?;
        Some(PortRange::new(first.parse().ok()?, last.trim().parse().ok()?))
    }

    /// Returns the number of ports.
    pub fn count(self) -> usize {
        RangeInclusive::from(self).len()
    }

    /// Creates the range between `first` and `last`, in either order.
    pub const fn new(first: u16, last: u16) -> Self {
        if first <= last { PortRange { first, last } } else { PortRange { first: last, last: first } }
    }

    /// Returns the first port.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// Returns whether the ranges have a port in common.
    pub const fn overlaps(self, other: PortRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl From<PortRange> for RangeInclusive<u16> {
    fn from(range: PortRange) -> Self {
        range.first..=range.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Error for text that is not a range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write the first and the last port from 1 to 65535, such as 61000-65535")]
pub struct InvalidPortRange;

impl FromStr for PortRange {
    type Err = InvalidPortRange;

    fn from_str(text: &str) -> Result<Self, InvalidPortRange> {
        let (first, last) = text.split_once('-').ok_or(InvalidPortRange)?;
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(PortRange { first, last }),
            _ => Err(InvalidPortRange),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_has_a_first_and_a_last_port() {
        let range: PortRange = "61000-65535".parse().unwrap();
        assert_eq!((range, range.to_string()), (PortRange::new(61_000, 65_535), "61000-65535".to_owned()));
        for text in ["61000", "0-5", "5-4", "1-65536", "a-b", "", "1-2-3"] {
            assert_eq!(text.parse::<PortRange>(), Err(InvalidPortRange), "{text}");
        }
        let overlaps = |a: &str, b: &str| a.parse::<PortRange>().unwrap().overlaps(b.parse().unwrap());
        assert!(overlaps("1-5", "5-9") && overlaps("5-9", "1-5") && overlaps("1-9", "3-4"));
        assert!(!overlaps("1-5", "6-9") && !overlaps("6-9", "1-5"));
    }
}
