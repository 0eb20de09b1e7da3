//! Selection of frames by endpoint: address, protocol and port.

use super::{Exits, FP, ICMPV6, ICMPV6_TYPE, IPV4_DESTINATION, IPV6_DESTINATION, IPV6_NEXT_HEADER, LOOK_UP};
use super::{R0, R1, R2, R5, R7, R8, jump_by_ether_type, require};
use crate::xdp::asm::{Assembler, Reg, Width};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};

/// IP protocol numbers.
const ICMP: u32 = 1;
const TCP: u32 = 6;
const UDP: u32 = 17;

/// First byte of an IPv4 header without options.
const NO_OPTIONS: u32 = 0x45;
/// Bits of the field with the fragment offset: the offset, and "more fragments" (RFC 791 §3.1).
const OFFSET: u16 = 0x1fff;
const MORE: u16 = 0x2000;

/// Types of ICMP errors that concern a connection: destination unreachable, which includes "fragmentation needed" (RFC
/// 792), and in ICMPv6 destination unreachable and "packet too big" (RFC 4443 §3).
const UNREACHABLE: u32 = 3;
const ERRORS_V6: [u32; 2] = [1, 2];

/// Lengths of headers.
const ETHERNET: i16 = 14;
const IPV4: i16 = 20;
const IPV6: i16 = 40;
const ICMP_HEADER: i16 = 8;
/// Length of both ports, with which TCP and UDP begin.
const PORTS: i16 = 4;

/// Offsets of fields in an IPv4 header.
const IPV4_FRAGMENT: i16 = 6;
const IPV4_PROTOCOL: i16 = 9;
const IPV4_SOURCE: i16 = 12;
/// Offset of the source address in an IPv6 header, and of the next header.
const IPV6_SOURCE: i16 = 8;
const IPV6_NEXT: i16 = 6;

/// Offsets on the stack of a [`Key`] and its fields.
const KEY: i16 = -24;
const KEY_PORT: i16 = KEY + 16;
const KEY_PROTOCOL: i16 = KEY + 18;
const KEY_PADDING: i16 = KEY + 19;

/// Maximum number of ports that are compared one by one before the lookup.
const MOST_COMPARED: usize = 16;

/// Port of a key that stands for all ports of outgoing connections.
pub(in crate::xdp) const ANY_PORT: u16 = 0;

/// Key of the map of endpoints: address (IPv4 in mapped form), port in network byte order, protocol, padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::xdp) struct Key([u8; 20]);

impl Key {
    /// Length of a key in the map.
    pub const LEN: u32 = 20;

    pub fn tcp(ip: IpAddr, port: u16) -> Self {
        Key::new(ip, port, TCP as u8)
    }

    pub fn udp(ip: IpAddr, port: u16) -> Self {
        Key::new(ip, port, UDP as u8)
    }

    fn new(ip: IpAddr, port: u16, protocol: u8) -> Self {
        let ip = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut key = [0; 20];
        key[..16].copy_from_slice(&ip.octets());
        key[16..18].copy_from_slice(&port.to_be_bytes());
        key[18] = protocol;
        Key(key)
    }

    pub fn bytes(&self) -> &[u8; 20] {
        &self.0
    }
}

/// Appends the selection: unfragmented TCP segments and UDP datagrams, without IP options or extension headers, whose
/// destination is a key of the map `keys`, and ICMP errors about packets whose source is such a key. The keys have
/// `ports`, or any if there are none, except that TCP ports in `outgoing` are looked up as [`ANY_PORT`].
pub(super) fn select(
    asm: &mut Assembler,
    keys: &OwnedFd,
    ports: Option<&BTreeSet<u16>>,
    outgoing: Option<&RangeInclusive<u16>>,
    exits: Exits,
) {
    let Exits { pass, redirect } = exits;
    let [ipv4, icmpv4, key_v4, ipv6, icmpv6, look_up] = [(); 6].map(|()| asm.label());
    jump_by_ether_type(asm, &[(0x0800, ipv4), (0x86dd, ipv6)], pass);

    asm.bind(ipv4);
    require(asm, ETHERNET + IPV4 + PORTS, pass);
    pass_options_and_fragments(asm, ETHERNET, OFFSET | MORE, exits);
    asm.load(Width::Byte, R7, R2, ETHERNET + IPV4_PROTOCOL);
    asm.load(Width::Word, R5, R2, IPV4_DESTINATION);
    asm.load(Width::Half, R8, R2, ETHERNET + IPV4 + 2);
    for (protocol, at) in [(TCP, key_v4), (UDP, key_v4), (ICMP, icmpv4)] {
        asm.jump_if_word(R7, protocol, at);
    }
    asm.jump(pass);

    asm.bind(icmpv4);
    const QUOTED_V4: i16 = ETHERNET + IPV4 + ICMP_HEADER;
    require(asm, QUOTED_V4 + IPV4 + PORTS, pass);
    asm.load(Width::Byte, R5, R2, ETHERNET + IPV4);
    asm.jump_unless_word(R5, UNREACHABLE, pass);
    pass_options_and_fragments(asm, QUOTED_V4, OFFSET, exits);
    asm.load(Width::Byte, R7, R2, QUOTED_V4 + IPV4_PROTOCOL);
    pass_other_protocols(asm, exits);
    asm.load(Width::Word, R5, R2, QUOTED_V4 + IPV4_SOURCE);
    asm.load(Width::Half, R8, R2, QUOTED_V4 + IPV4);

    asm.bind(key_v4);
    asm.store_immediate(Width::Double, FP, KEY, 0);
    asm.store_immediate(Width::Word, FP, KEY + 8, 0xffff_u32.to_be().cast_signed());
    asm.store(Width::Word, FP, KEY + 12, R5);
    asm.jump(look_up);

    asm.bind(ipv6);
    require(asm, ETHERNET + IPV6 + PORTS, pass);
    asm.load(Width::Byte, R7, R2, IPV6_NEXT_HEADER);
    asm.load(Width::Half, R8, R2, ETHERNET + IPV6 + 2);
    store_v6(asm, IPV6_DESTINATION);
    for (protocol, at) in [(TCP, look_up), (UDP, look_up), (ICMPV6, icmpv6)] {
        asm.jump_if_word(R7, protocol, at);
    }
    asm.jump(pass);

    asm.bind(icmpv6);
    const QUOTED_V6: i16 = ETHERNET + IPV6 + ICMP_HEADER;
    require(asm, QUOTED_V6 + IPV6 + PORTS, pass);
    asm.load(Width::Byte, R5, R2, ICMPV6_TYPE);
    let is_error = asm.label();
    ERRORS_V6.iter().for_each(|error| asm.jump_if_word(R5, *error, is_error));
    asm.jump(pass);
    asm.bind(is_error);
    asm.load(Width::Byte, R7, R2, QUOTED_V6 + IPV6_NEXT);
    pass_other_protocols(asm, exits);
    asm.load(Width::Half, R8, R2, QUOTED_V6 + IPV6);
    store_v6(asm, QUOTED_V6 + IPV6_SOURCE);

    asm.bind(look_up);
    asm.store(Width::Half, FP, KEY_PORT, R8);
    asm.store(Width::Byte, FP, KEY_PROTOCOL, R7);
    asm.store_immediate(Width::Byte, FP, KEY_PADDING, 0);
    let found = asm.label();
    if let Some(outgoing) = outgoing {
        let other = asm.label();
        asm.jump_unless_word(R7, TCP, other);
        asm.copy(R1, R8);
        asm.swap_network_half(R1);
        asm.jump_if_below(R1, (*outgoing.start()).into(), other);
        asm.jump_if_above(R1, (*outgoing.end()).into(), other);
        asm.store_immediate(Width::Half, FP, KEY_PORT, ANY_PORT.into());
        asm.jump(found);
        asm.bind(other);
    }
    // The lookup costs more than the rest of the program, and most frames of the kernel are to other ports.
    if let Some(ports) = ports.filter(|ports| ports.len() <= MOST_COMPARED) {
        ports.iter().for_each(|port| asm.jump_if_word(R8, port.to_be().into(), found));
        asm.jump(pass);
    }
    asm.bind(found);
    asm.set_map(R1, keys.as_raw_fd());
    asm.copy(R2, FP);
    asm.add(R2, KEY.into());
    asm.call(LOOK_UP);
    asm.jump_if_null(R0, pass);
    asm.jump(redirect);
}

/// Passes the frame unless R7 is the number of TCP or UDP.
fn pass_other_protocols(asm: &mut Assembler, exits: Exits) {
    let has_ports = asm.label();
    [TCP, UDP].into_iter().for_each(|protocol| asm.jump_if_word(R7, protocol, has_ports));
    asm.jump(exits.pass);
    asm.bind(has_ports);
}

/// Passes the frame if the IPv4 header at `header` has options, or one of the bits `fragment`.
fn pass_options_and_fragments(asm: &mut Assembler, header: i16, fragment: u16, exits: Exits) {
    const SCRATCH: Reg = R5;
    asm.load(Width::Byte, SCRATCH, R2, header);
    asm.jump_unless_word(SCRATCH, NO_OPTIONS, exits.pass);
    asm.load(Width::Half, SCRATCH, R2, header + IPV4_FRAGMENT);
    asm.jump_if_any(SCRATCH, fragment.to_be().into(), exits.pass);
}

/// Stores the IPv6 address at `offset` of the frame into the key.
fn store_v6(asm: &mut Assembler, offset: i16) {
    for half in [0, 8] {
        asm.load(Width::Double, R5, R2, offset + half);
        asm.store(Width::Double, FP, KEY + half, R5);
    }
}
