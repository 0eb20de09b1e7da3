//! XDP program that redirects the frames of some addresses.

use super::asm::{Assembler, Label, Reg, Width};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

/// Result for a frame of the addresses on a queue without a socket, as an XDP action.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fallback {
    /// Reception by the kernel.
    Pass = 2,
    /// Drop with a trace event, by which tests distinguish redirected frames.
    #[cfg(test)]
    Abort = 0,
}

const R0: Reg = Reg(0);
const R1: Reg = Reg(1);
const R2: Reg = Reg(2);
const R3: Reg = Reg(3);
const R4: Reg = Reg(4);
const R5: Reg = Reg(5);
const R6: Reg = Reg(6);
const R7: Reg = Reg(7);

/// Helper function `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// Next header of ICMPv6.
const ICMPV6: u32 = 58;
/// ICMPv6 type of a neighbour solicitation (RFC 4861 §4.3).
const NEIGHBOR_SOLICITATION: u32 = 135;

// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

// Offsets in a frame.
const ETHER_TYPE: i16 = 12;
const ARP_TARGET: i16 = 38;
const IPV4_DESTINATION: i16 = 30;
const IPV6_NEXT_HEADER: i16 = 20;
const IPV6_DESTINATION: i16 = 38;
const ICMPV6_TYPE: i16 = 54;
const SOLICITED_TARGET: i16 = 62;

/// Assembles the program, which redirects through the map of sockets `map`: IP packets to one of `addresses`, ARP with
/// one as the target, and neighbour solicitations for one. All other frames, those with VLAN tags included, pass to the
/// kernel.
pub(super) fn assemble(addresses: &[IpAddr], map: &OwnedFd, fallback: Fallback) -> Vec<u64> {
    let mut asm = Assembler::default();
    let [pass, redirect, arp, ipv4, ipv6] = [(); 5].map(|()| asm.label());
    asm.copy(R6, R1);
    asm.load(Width::Word, R2, R1, DATA);
    asm.load(Width::Word, R3, R1, DATA_END);
    require(&mut asm, IPV4_DESTINATION + 4, pass);
    asm.load(Width::Half, R5, R2, ETHER_TYPE);
    for (ether_type, at) in [(0x0800_u16, ipv4), (0x0806, arp), (0x86dd, ipv6)] {
        asm.jump_if_word(R5, u16::from_be(ether_type).into(), at);
    }
    asm.jump(pass);

    asm.bind(ipv4);
    asm.load(Width::Word, R5, R2, IPV4_DESTINATION);
    redirect_v4(&mut asm, addresses, redirect);
    asm.jump(pass);

    asm.bind(arp);
    require(&mut asm, ARP_TARGET + 4, pass);
    asm.load(Width::Word, R5, R2, ARP_TARGET);
    redirect_v4(&mut asm, addresses, redirect);
    asm.jump(pass);

    asm.bind(ipv6);
    require(&mut asm, IPV6_DESTINATION + 16, pass);
    redirect_v6(&mut asm, addresses, IPV6_DESTINATION, redirect);
    require(&mut asm, SOLICITED_TARGET + 16, pass);
    for (field, value) in [(IPV6_NEXT_HEADER, ICMPV6), (ICMPV6_TYPE, NEIGHBOR_SOLICITATION)] {
        asm.load(Width::Byte, R5, R2, field);
        asm.jump_unless_word(R5, value, pass);
    }
    redirect_v6(&mut asm, addresses, SOLICITED_TARGET, redirect);

    asm.bind(pass);
    asm.set(R0, Fallback::Pass as i32);
    asm.exit();

    asm.bind(redirect);
    asm.load(Width::Word, R2, R6, RX_QUEUE_INDEX);
    asm.set_map(R1, map.as_raw_fd());
    asm.set(R3, fallback as i32);
    asm.call(REDIRECT_MAP);
    asm.exit();
    asm.finish()
}

/// Jumps to `shorter` unless the frame has `length` bytes.
fn require(asm: &mut Assembler, length: i16, shorter: Label) {
    asm.copy(R4, R2);
    asm.add(R4, length.into());
    asm.jump_if_greater(R4, R3, shorter);
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

/// Returns the halves of an address as a load reads them.
fn halves(ip: Ipv6Addr) -> [u64; 2] {
    let octets = ip.octets();
    let half = |from: usize| u64::from_ne_bytes(std::array::from_fn(|at| octets[from + at]));
    [half(0), half(8)]
}

/// Returns the group on which an IPv6 address is solicited (RFC 4291 §2.7.1).
pub(super) fn solicited_node(ip: IpAddr) -> Option<Ipv6Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    let [.., upper, lower] = ip.segments();
    Some(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | upper & 0xff, lower))
}
