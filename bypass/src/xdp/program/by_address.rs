//! Selection of frames by address.

use super::{Exits, ICMPV6, ICMPV6_TYPE, IPV4_DESTINATION, IPV6_DESTINATION, IPV6_NEXT_HEADER, jump_by_ether_type};
use super::{R0, R2, R5, R7, require};
use crate::xdp::asm::{Assembler, Label, Width};
use std::net::{IpAddr, Ipv6Addr};

/// ICMPv6 type of a neighbour solicitation (RFC 4861 §4.3).
const NEIGHBOR_SOLICITATION: u32 = 135;
// Offsets in a frame.
const ARP_TARGET: i16 = 38;
const SOLICITED_TARGET: i16 = 62;

/// Appends the selection: IP packets to `addresses`, and ARP packets and neighbour solicitations whose target is one of
/// `addresses`.
pub(super) fn select(asm: &mut Assembler, addresses: &[IpAddr], exits: Exits) {
    let Exits { pass, redirect } = exits;
    let [arp, ipv4, ipv6] = [(); 3].map(|()| asm.label());
    jump_by_ether_type(asm, &[(0x0800, ipv4), (0x0806, arp), (0x86dd, ipv6)], pass);

    asm.bind(ipv4);
    asm.load(Width::Word, R5, R2, IPV4_DESTINATION);
    redirect_v4(asm, addresses, redirect);
    asm.jump(pass);

    asm.bind(arp);
    require(asm, ARP_TARGET + 4, pass);
    asm.load(Width::Word, R5, R2, ARP_TARGET);
    redirect_v4(asm, addresses, redirect);
    asm.jump(pass);

    asm.bind(ipv6);
    require(asm, IPV6_DESTINATION + 16, pass);
    redirect_v6(asm, addresses, IPV6_DESTINATION, redirect);
    require(asm, SOLICITED_TARGET + 16, pass);
    for (field, value) in [(IPV6_NEXT_HEADER, ICMPV6), (ICMPV6_TYPE, NEIGHBOR_SOLICITATION)] {
        asm.load(Width::Byte, R5, R2, field);
        asm.jump_unless_word(R5, value, pass);
    }
    redirect_v6(asm, addresses, SOLICITED_TARGET, redirect);
    asm.jump(pass);
}

/// Jumps to `redirect` if register 5 is one of the IPv4 addresses.
fn redirect_v4(asm: &mut Assembler, addresses: &[IpAddr], redirect: Label) {
    for ip in addresses {
        if let IpAddr::V4(ip) = ip {
            asm.jump_if_word(R5, u32::from_ne_bytes(ip.octets()), redirect);
        }
    }
}

/// Jumps to `redirect` if the address at `offset` of the frame is one of the IPv6 addresses.
fn redirect_v6(asm: &mut Assembler, addresses: &[IpAddr], offset: i16, redirect: Label) {
    asm.load(Width::Double, R5, R2, offset);
    asm.load(Width::Double, R0, R2, offset + 8);
    for ip in addresses {
        let IpAddr::V6(ip) = ip else { continue };
        let [upper, lower] = halves(*ip);
        let next = asm.label();
        asm.set_double(R7, upper);
        asm.jump_if_unequal(R5, R7, next);
        asm.set_double(R7, lower);
        asm.jump_if_equal(R0, R7, redirect);
        asm.bind(next);
    }
}

/// Returns the halves of an address as the program loads them from a frame.
fn halves(ip: Ipv6Addr) -> [u64; 2] {
    let octets = ip.octets();
    let half = |from: usize| u64::from_ne_bytes(std::array::from_fn(|at| octets[from + at]));
    [half(0), half(8)]
}

/// Returns the group on which an IPv6 address is solicited (RFC 4291 §2.7.1).
pub(in crate::xdp) fn solicited_node(ip: IpAddr) -> Option<Ipv6Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    let [.., upper, lower] = ip.segments();
    Some(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | upper & 0xff, lower))
}
