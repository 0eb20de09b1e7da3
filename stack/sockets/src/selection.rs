//! Options of a program whose sockets the stack carries, for the program that starts it and the library in it.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Selection of sockets, and their report.
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct SocketOptions {
    /// Ports on which the stack listens, such as 80,8000-8999, or none; the kernel keeps the others [default: all]
    #[cfg_attr(feature = "clap", arg(long, value_name = "LIST", help_heading = "Sockets"))]
    pub listen_ports: Option<PortList>,
    /// Ports to which the stack connects, such as 5432,6000-6999, or none; the kernel connects to the others [default:
    /// all]
    #[cfg_attr(feature = "clap", arg(long, value_name = "LIST", help_heading = "Sockets"))]
    pub connect_ports: Option<PortList>,
    /// Print the calls on sockets of the stack with their errors, calls and options without effect, and the sockets
    /// that the kernel carries, when the program exits
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Sockets"))]
    pub explain: bool,
}

impl SocketOptions {
    /// Returns whether the stack listens on `port`. Port 0, which the system replaces, is in no list.
    pub fn listens_on(&self, port: u16) -> bool {
        self.listen_ports.as_ref().is_none_or(|ports| ports.contains(port))
    }

    /// Returns whether the stack connects to `port`.
    pub fn connects_to(&self, port: u16) -> bool {
        self.connect_ports.as_ref().is_none_or(|ports| ports.contains(port))
    }
}

/// List of ports and ranges of ports, written as `80,8000-8999`, or `none`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortList(Vec<RangeInclusive<u16>>);

impl PortList {
    /// Returns whether the list has `port`.
    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
    }
}

/// Error for text that is not a list of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidPortList;

impl fmt::Display for InvalidPortList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write ports from 1 to 65535 and ranges, such as 80,8000-8999, or none")
    }
}

impl std::error::Error for InvalidPortList {}

impl FromStr for PortList {
    type Err = InvalidPortList;

    fn from_str(text: &str) -> Result<Self, InvalidPortList> {
        if text == "none" {
            return Ok(PortList::default());
        }
        let range = |item: &str| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let range = first.parse().ok()?..=last.parse().ok()?;
            (*range.start() > 0 && !range.is_empty()).then_some(range)
        };
        text.split(',').map(range).collect::<Option<_>>().map(PortList).ok_or(InvalidPortList)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_ports_and_ranges() {
        let list: PortList = "80,8000-8002".parse().unwrap();
        let contained = [0, 79, 80, 81, 7999, 8000, 8002, 8003].map(|port| list.contains(port));
        assert_eq!(contained, [false, false, true, false, false, true, true, false]);
        assert_eq!("none".parse(), Ok(PortList::default()));
        for text in ["", "0", "80,", "9-8", "65536", "a", "1-2-3", "80 81"] {
            assert_eq!(text.parse::<PortList>(), Err(InvalidPortList), "{text}");
        }
    }

    #[test]
    fn absent_list_has_all_ports() {
        let all = SocketOptions::default();
        assert!(all.listens_on(0) && all.listens_on(80) && all.connects_to(1));
        let some = SocketOptions { listen_ports: Some("80".parse().unwrap()), ..all };
        assert!(some.listens_on(80) && !some.listens_on(0) && !some.listens_on(81) && some.connects_to(81));
    }
}
