//! Ethernet header.

use linerate_bypass::MacAddr;
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol};

pub(crate) const ETHERNET_HEADER: usize = 14;

/// Writes an Ethernet header into the first bytes of `header`.
pub(crate) fn write_header(header: &mut [u8], to: MacAddr, from: MacAddr, protocol: EthernetProtocol) {
    let mut header = EthernetFrame::new_unchecked(header);
    header.set_dst_addr(EthernetAddress(to.0));
    header.set_src_addr(EthernetAddress(from.0));
    header.set_ethertype(protocol);
}
