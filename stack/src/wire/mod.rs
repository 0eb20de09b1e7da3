//! Formats of frames, packets and segments, and identifiers in them.

pub(crate) mod arp_ndp;
pub(crate) mod checksum;
pub(crate) mod drop_stats;
pub(crate) mod ethernet;
pub(crate) mod icmp;
pub(crate) mod ip_cidr;
pub(crate) mod steering;
pub(crate) mod tcp;
pub(crate) mod tuple;
pub(crate) mod udp;
pub(crate) mod vlan;
