//! XDP program that redirects the frames of an interface, or a part of them, and counts and passes the others.

mod by_address;
mod by_endpoint;

pub(super) use by_address::solicited_node;
pub(super) use by_endpoint::{ANY_PORT, Key};

use super::asm::{Assembler, Label, Reg, Width};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};

/// Result for a selected frame on a queue without a socket, as an XDP action.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fallback {
    /// Drop, until a process opens a socket.
    Drop = 1,
    /// Reception by the kernel.
    Pass = 2,
    /// Drop with a trace event, by which tests distinguish redirected frames.
    #[cfg(test)]
    Abort = 0,
}

/// Selection of the frames to redirect.
pub(super) enum Selection<'a> {
    All,
    /// A part of the frames. The others are counted in the array `passed`.
    Some {
        /// Frames to redirect.
        frames: Frames<'a>,
        /// Counter of passed frames.
        passed: &'a OwnedFd,
    },
}

/// Part of an interface's frames.
pub(super) enum Frames<'a> {
    /// IP packets to these addresses, and ARP packets and neighbour solicitations whose target is one of these
    /// addresses.
    Addresses(&'a [IpAddr]),
    /// TCP segments and UDP datagrams to the keys of the map, and ICMP errors about packets from a key.
    Endpoints {
        /// Map of [`Key`]s.
        keys: &'a OwnedFd,
        /// All ports of the map, if no others are added.
        ports: Option<BTreeSet<u16>>,
        /// TCP ports that the map contains as [`ANY_PORT`].
        outgoing: Option<RangeInclusive<u16>>,
    },
}

const R0: Reg = Reg(0);
const R1: Reg = Reg(1);
const R2: Reg = Reg(2);
const R3: Reg = Reg(3);
const R4: Reg = Reg(4);
const R5: Reg = Reg(5);
const R6: Reg = Reg(6);
const R7: Reg = Reg(7);
const R8: Reg = Reg(8);
/// Frame pointer.
const FP: Reg = Reg(10);

/// Helper functions `bpf_map_lookup_elem` and `bpf_redirect_map`.
const LOOK_UP: i32 = 1;
const REDIRECT_MAP: i32 = 51;
/// Next header of ICMPv6.
const ICMPV6: u32 = 58;

// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

// Offsets in a frame.
const ETHER_TYPE: i16 = 12;
const IPV4_DESTINATION: i16 = 30;
const IPV6_NEXT_HEADER: i16 = 20;
const IPV6_DESTINATION: i16 = 38;
const ICMPV6_TYPE: i16 = 54;

/// Offset on the stack of the key of the counter.
const COUNTER_KEY: i16 = -4;
/// Offsets on the stack of the fields of a VLAN tag.
const VLAN_PROTOCOL: i16 = -4;
const VLAN_TCI: i16 = -8;

/// Positions in the program to which the parts jump.
#[derive(Clone, Copy)]
struct Exits {
    pass: Label,
    redirect: Label,
}

/// Assembles the program, which redirects selected frames through the map `sockets`. All others, those with VLAN tags
/// included, pass to the kernel. The function `vlan_tag` of the kernel shows tags that are not in the frames.
pub(super) fn assemble(
    selection: &Selection,
    sockets: &OwnedFd,
    vlan_tag: Option<i32>,
    fallback: Fallback,
) -> Vec<u64> {
    let mut asm = Assembler::default();
    asm.copy(R6, R1);
    if let Some(function) = vlan_tag {
        let untagged = asm.label();
        // The protocol and the identifier of the tag are not used.
        for (result, at) in [(R2, VLAN_PROTOCOL), (R3, VLAN_TCI)] {
            asm.store_immediate(Width::Word, FP, at, 0);
            asm.copy(result, FP);
            asm.add(result, at.into());
        }
        asm.call_kernel(function);
        asm.jump_unless_word(R0, 0, untagged);
        asm.set(R0, Fallback::Pass as i32);
        asm.exit();
        asm.bind(untagged);
        asm.copy(R1, R6);
    }
    if let Selection::Some { frames, passed } = selection {
        let redirect = asm.label();
        select(&mut asm, frames, passed, redirect);
        asm.bind(redirect);
    }
    asm.load(Width::Word, R2, R6, RX_QUEUE_INDEX);
    asm.set_map(R1, sockets.as_raw_fd());
    asm.set(R3, fallback as i32);
    asm.call(REDIRECT_MAP);
    asm.exit();
    asm.finish()
}

/// Appends the selection, which jumps to `redirect`, or counts and passes the frame.
fn select(asm: &mut Assembler, frames: &Frames, passed: &OwnedFd, redirect: Label) {
    let exits = Exits { pass: asm.label(), redirect };
    asm.load(Width::Word, R2, R1, DATA);
    asm.load(Width::Word, R3, R1, DATA_END);
    require(asm, IPV4_DESTINATION + 4, exits.pass);
    asm.load(Width::Half, R5, R2, ETHER_TYPE);
    match frames {
        Frames::Addresses(addresses) => by_address::select(asm, addresses, exits),
        Frames::Endpoints { keys, ports, outgoing } => {
            by_endpoint::select(asm, keys, ports.as_ref(), outgoing.as_ref(), exits);
        }
    }

    asm.bind(exits.pass);
    let uncounted = asm.label();
    asm.store_immediate(Width::Word, FP, COUNTER_KEY, 0);
    asm.set_map(R1, passed.as_raw_fd());
    asm.copy(R2, FP);
    asm.add(R2, COUNTER_KEY.into());
    asm.call(LOOK_UP);
    asm.jump_if_null(R0, uncounted);
    // Each processor has its own counter.
    asm.load(Width::Double, R1, R0, 0);
    asm.add(R1, 1);
    asm.store(Width::Double, R0, 0, R1);
    asm.bind(uncounted);
    asm.set(R0, Fallback::Pass as i32);
    asm.exit();
}

/// Jumps to the label of the frame's protocol by its EtherType in register 5, or to `other`.
fn jump_by_ether_type(asm: &mut Assembler, targets: &[(u16, Label)], other: Label) {
    for (ether_type, at) in targets {
        asm.jump_if_word(R5, ether_type.to_be().into(), *at);
    }
    asm.jump(other);
}

/// Jumps to `shorter` unless the frame has `length` bytes.
fn require(asm: &mut Assembler, length: i16, shorter: Label) {
    asm.copy(R4, R2);
    asm.add(R4, length.into());
    asm.jump_if_greater(R4, R3, shorter);
}
