//! IP: addresses, next hops, neighbours, transmission, and the control protocols of the link.

pub(crate) mod addresses;
pub(crate) mod arp_announce;
pub(crate) mod arp_ndp;
pub(crate) mod egress;
pub(crate) mod neighbors;
pub(crate) mod router_info;
pub(crate) mod udp;
pub(crate) mod v6;
