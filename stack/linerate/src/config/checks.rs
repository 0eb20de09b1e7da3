//! Parts of the checks of a configuration.

use super::NetConfig;
use crate::error::Error;
use linerate_bypass::Via;
use linerate_stack::IpCidr;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Setting that differs from its default when it is given.
pub(super) trait Setting {
    fn is_given(&self) -> bool;
}

impl Setting for bool {
    fn is_given(&self) -> bool {
        *self
    }
}

impl<T> Setting for Option<T> {
    fn is_given(&self) -> bool {
        self.is_some()
    }
}

impl<T> Setting for Vec<T> {
    fn is_given(&self) -> bool {
        !self.is_empty()
    }
}

/// Returns the name of the first of some fields of a configuration that is given. `$part` begins the names.
macro_rules! first_given {
    ($config:expr, $part:literal; $($field:ident)*) => {
        [$(($crate::config::checks::Setting::is_given(&$config.$field), concat!($part, stringify!($field)))),*]
            .into_iter()
            .find_map(|(given, name)| given.then_some(name))
    };
}
pub(super) use first_given;

/// Returns an error for the first value outside of its range.
pub(super) fn check_ranges(values: &[(&'static str, Option<u64>, RangeInclusive<u64>)]) -> Result<(), Error> {
    for (setting, value, range) in values {
        if let Some(value) = value.filter(|value| !range.contains(value)) {
            return Err(Error::OutOfRange { setting, value, least: *range.start(), most: *range.end() });
        }
    }
    Ok(())
}

/// Refuses an interface that reaches no other host.
pub(crate) fn check_interface(via: &Via) -> Result<(), Error> {
    match via {
        Via::AfXdp { interface, .. } if interface == "lo" => Err(Error::LoopbackInterface(via.clone())),
        _ => Ok(()),
    }
}

/// Returns the number of bits of `ip`.
pub(super) fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// Returns the reason that `own` is not the address of a host on a link, if it is not.
pub(super) fn host_fault(own: &IpCidr) -> Option<&'static str> {
    match own.address() {
        ip if ip.is_loopback() => Some("a loopback address, which only kernel sockets reach"),
        IpAddr::V4(ip) if matches!(ip.octets()[0], 0 | 224..) => Some("a reserved address"),
        // RFC 3021: a prefix of 31 or 32 bits has neither.
        IpAddr::V4(ip) if own.prefix() < 31 => {
            let mask = u32::MAX >> own.prefix();
            match ip.to_bits() & mask {
                0 => Some("the address of the network itself"),
                host if host == mask => Some("the broadcast address of the network"),
                _ => None,
            }
        }
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => Some("an IPv4-mapped address"),
        _ => None,
    }
}

impl NetConfig {
    /// Returns the number of workers that the options request.
    pub fn worker_count(&self) -> usize {
        self.cores.as_ref().map_or(self.workers.unwrap_or(1), |cores| cores.cores().len())
    }
}
