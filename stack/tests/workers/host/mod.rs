//! Host protocols other than TCP: ARP, NDP, ICMP, UDP, DHCP, SLAAC, VLAN.

mod arp_announce;
mod dhcp;
mod host_network;
mod malformed_frames;
mod martians;
mod neighbor_flood;
mod protocols;
mod slaac;
mod udp;
mod vlan;
