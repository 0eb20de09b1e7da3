//! Conversions of libibverbs types.

use crate::provider::{
    Access, AtomicCap, DeviceLimits, Gid, GidKind, LinkLayer, Mtu, Port, PortState, QpCap, QpState, SendFlags,
    TransportKind,
};
use rdma_mummy_sys as sys;
use std::ffi::{c_char, c_int, c_uint};
use std::io;

fn count(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn small(number: c_int) -> u8 {
    u8::try_from(number.max(0)).unwrap_or(u8::MAX)
}

fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&char| char.cast_unsigned()).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn transport(kind: sys::ibv_transport_type::Type) -> TransportKind {
    match kind {
        sys::ibv_transport_type::IBV_TRANSPORT_IB => TransportKind::InfiniBand,
        sys::ibv_transport_type::IBV_TRANSPORT_IWARP => TransportKind::Iwarp,
        sys::ibv_transport_type::IBV_TRANSPORT_USNIC | sys::ibv_transport_type::IBV_TRANSPORT_USNIC_UDP => {
            TransportKind::Usnic
        }
        sys::ibv_transport_type::IBV_TRANSPORT_UNSPECIFIED => TransportKind::Unspecified,
        _ => TransportKind::Other,
    }
}

pub(super) fn limits(attributes: &sys::ibv_device_attr, transport: TransportKind) -> DeviceLimits {
    let mw_type_2 = sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A
        | sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    DeviceLimits {
        transport,
        firmware: text(&attributes.fw_ver),
        vendor: attributes.vendor_id,
        part: attributes.vendor_part_id,
        ports: attributes.phys_port_cnt,
        mr_bytes: attributes.max_mr_size,
        mrs: count(attributes.max_mr),
        mws: count(attributes.max_mw),
        mw_type_2: attributes.device_cap_flags & mw_type_2.0 != 0,
        pds: count(attributes.max_pd),
        qps: count(attributes.max_qp),
        qp_wrs: count(attributes.max_qp_wr),
        sges: count(attributes.max_sge),
        read_sges: count(attributes.max_sge_rd),
        cqs: count(attributes.max_cq),
        cqes: count(attributes.max_cqe),
        srqs: count(attributes.max_srq),
        srq_wrs: count(attributes.max_srq_wr),
        srq_sges: count(attributes.max_srq_sge),
        responder_resources: small(attributes.max_qp_rd_atom),
        initiator_depth: small(attributes.max_qp_init_rd_atom),
        atomics: match attributes.atomic_cap {
            sys::ibv_atomic_cap::IBV_ATOMIC_NONE => AtomicCap::None,
            sys::ibv_atomic_cap::IBV_ATOMIC_GLOB => AtomicCap::Global,
            _ => AtomicCap::Device,
        },
    }
}

/// Converts an MTU (IBA 14.2.5.6).
pub(super) fn mtu(number: sys::ibv_mtu::Type) -> io::Result<Mtu> {
    Ok(match number {
        sys::ibv_mtu::IBV_MTU_256 => Mtu::Mtu256,
        sys::ibv_mtu::IBV_MTU_512 => Mtu::Mtu512,
        sys::ibv_mtu::IBV_MTU_1024 => Mtu::Mtu1024,
        sys::ibv_mtu::IBV_MTU_2048 => Mtu::Mtu2048,
        sys::ibv_mtu::IBV_MTU_4096 => Mtu::Mtu4096,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the port has an unknown MTU: {number}"))),
    })
}

pub(super) fn mtu_number(mtu: Mtu) -> sys::ibv_mtu::Type {
    match mtu {
        Mtu::Mtu256 => sys::ibv_mtu::IBV_MTU_256,
        Mtu::Mtu512 => sys::ibv_mtu::IBV_MTU_512,
        Mtu::Mtu1024 => sys::ibv_mtu::IBV_MTU_1024,
        Mtu::Mtu2048 => sys::ibv_mtu::IBV_MTU_2048,
        Mtu::Mtu4096 => sys::ibv_mtu::IBV_MTU_4096,
    }
}

pub(super) fn port(attributes: &sys::ibv_port_attr) -> io::Result<Port> {
    Ok(Port {
        state: match attributes.state {
            sys::ibv_port_state::IBV_PORT_ACTIVE | sys::ibv_port_state::IBV_PORT_ACTIVE_DEFER => PortState::Active,
            sys::ibv_port_state::IBV_PORT_INIT | sys::ibv_port_state::IBV_PORT_ARMED => PortState::Coming,
            _ => PortState::Down,
        },
        max_mtu: mtu(attributes.max_mtu)?,
        mtu: mtu(attributes.active_mtu)?,
        message: attributes.max_msg_sz,
        lid: attributes.lid,
        link: match attributes.link_layer {
            sys::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            // Releases before RoCE left the field unspecified.
            _ => LinkLayer::InfiniBand,
        },
        speed: speed(attributes),
    })
}

/// Returns the link rate: lanes times lane rate, as in `/sys/class/infiniband/*/ports/*/rate`.
fn speed(attributes: &sys::ibv_port_attr) -> Option<u64> {
    let lanes = match attributes.active_width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    let lane = match attributes.active_speed_ex.max(u32::from(attributes.active_speed)) {
        1 => 2_500_000_000,
        2 => 5_000_000_000,
        4 | 8 => 10_000_000_000,
        16 => 14_000_000_000,
        32 => 25_000_000_000,
        64 => 50_000_000_000,
        128 => 100_000_000_000,
        256 => 200_000_000_000,
        _ => return None,
    };
    Some(lanes * lane)
}

/// Converts a GID table entry; `None` if its index exceeds the 8 bits of an address vector.
pub(super) fn gid(entry: &sys::ibv_gid_entry) -> Option<Gid> {
    Some(Gid {
        port: u8::try_from(entry.port_num).ok()?,
        index: u8::try_from(entry.gid_index).ok()?,
        // SAFETY: both members of the union are 16 bytes of any value.
        raw: unsafe { entry.gid.raw },
        kind: match entry.gid_type {
            sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            sys::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::InfiniBand,
        },
        interface: entry.ndev_ifindex,
    })
}

pub(super) fn access(access: Access) -> c_uint {
    let Access { local_write, remote_read, remote_write, remote_atomic, bind, relaxed } = access;
    [
        (local_write, sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE),
        (remote_read, sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ),
        (remote_write, sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
        (remote_atomic, sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC),
        (bind, sys::ibv_access_flags::IBV_ACCESS_MW_BIND),
        (relaxed, sys::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING),
    ]
    .into_iter()
    .fold(0, |all, (is, flag)| if is { all | flag.0 } else { all })
}

pub(super) fn send_flags(flags: SendFlags) -> c_uint {
    let signalled = if flags.is_signalled() { sys::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
    let inline = if flags.is_inline() { sys::ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
    signalled | inline
}

pub(super) fn cap(wanted: &QpCap) -> sys::ibv_qp_cap {
    sys::ibv_qp_cap {
        max_send_wr: wanted.sends,
        max_recv_wr: wanted.receives,
        max_send_sge: wanted.send_sges,
        max_recv_sge: wanted.recv_sges,
        max_inline_data: wanted.inline,
    }
}

pub(super) fn given(given: &sys::ibv_qp_cap) -> QpCap {
    QpCap {
        sends: given.max_send_wr,
        receives: given.max_recv_wr,
        send_sges: given.max_send_sge,
        recv_sges: given.max_recv_sge,
        inline: given.max_inline_data,
    }
}

pub(super) fn state_number(state: QpState) -> sys::ibv_qp_state::Type {
    match state {
        QpState::Reset => sys::ibv_qp_state::IBV_QPS_RESET,
        QpState::Init => sys::ibv_qp_state::IBV_QPS_INIT,
        QpState::Rtr => sys::ibv_qp_state::IBV_QPS_RTR,
        QpState::Rts => sys::ibv_qp_state::IBV_QPS_RTS,
        QpState::Sqd => sys::ibv_qp_state::IBV_QPS_SQD,
        QpState::Sqe => sys::ibv_qp_state::IBV_QPS_SQE,
        QpState::Error => sys::ibv_qp_state::IBV_QPS_ERR,
    }
}

pub(super) fn state(number: sys::ibv_qp_state::Type) -> io::Result<QpState> {
    Ok(match number {
        sys::ibv_qp_state::IBV_QPS_RESET => QpState::Reset,
        sys::ibv_qp_state::IBV_QPS_INIT => QpState::Init,
        sys::ibv_qp_state::IBV_QPS_RTR => QpState::Rtr,
        sys::ibv_qp_state::IBV_QPS_RTS => QpState::Rts,
        sys::ibv_qp_state::IBV_QPS_SQD => QpState::Sqd,
        sys::ibv_qp_state::IBV_QPS_SQE => QpState::Sqe,
        sys::ibv_qp_state::IBV_QPS_ERR => QpState::Error,
        _ => {
            let message = format!("the queue pair is in an unknown state: {number}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::zeroed;

    fn port_of(width: u8, speed: u8, extended: u32) -> Port {
        // SAFETY: plain numbers.
        let mut attributes: sys::ibv_port_attr = unsafe { zeroed() };
        attributes.state = 4;
        attributes.max_mtu = 5;
        attributes.active_mtu = 3;
        attributes.link_layer = 2;
        attributes.active_width = width;
        attributes.active_speed = speed;
        attributes.active_speed_ex = extended;
        port(&attributes).unwrap()
    }

    #[test]
    fn all_device_attributes_are_converted() {
        // SAFETY: plain numbers.
        let mut attributes: sys::ibv_device_attr = unsafe { zeroed() };
        for (to, byte) in attributes.fw_ver.iter_mut().zip(b"1.2.3\0xyz") {
            *to = byte.cast_signed();
        }
        attributes.max_qp = 7;
        attributes.max_sge = -1;
        attributes.max_qp_rd_atom = 1000;
        attributes.max_qp_init_rd_atom = 16;
        attributes.device_cap_flags = 1 << 24;
        attributes.atomic_cap = 1;
        let read = limits(&attributes, TransportKind::InfiniBand);
        assert_eq!((read.firmware.as_str(), read.qps, read.sges), ("1.2.3", 7, 0));
        assert_eq!((read.responder_resources, read.initiator_depth), (255, 16));
        assert!(read.mw_type_2 && read.atomics == AtomicCap::Device);
        let atomics = [0, 2].map(|cap| {
            attributes.atomic_cap = cap;
            limits(&attributes, TransportKind::InfiniBand).atomics
        });
        assert_eq!(atomics, [AtomicCap::None, AtomicCap::Global]);
        // IBV_DEVICE_MEM_WINDOW: type 1 windows.
        attributes.device_cap_flags = 1 << 17;
        assert!(!limits(&attributes, TransportKind::InfiniBand).mw_type_2);
        attributes.fw_ver = [b'a'.cast_signed(); 64];
        assert_eq!(limits(&attributes, TransportKind::Other).firmware.len(), 64);
    }

    #[test]
    fn port_attributes_are_converted() {
        let port = port_of(2, 32, 0);
        assert_eq!(
            (port.state, port.link, port.mtu, port.max_mtu),
            (PortState::Active, LinkLayer::Ethernet, Mtu::Mtu1024, Mtu::Mtu4096)
        );
        assert_eq!(port.speed, Some(100_000_000_000));
        assert_eq!(port_of(1, 1, 0).speed, Some(2_500_000_000));
        assert_eq!(port_of(16, 128, 256).speed, Some(400_000_000_000));
        assert_eq!([port_of(3, 1, 0).speed, port_of(1, 3, 0).speed], [None; 2]);
    }

    #[test]
    fn mtus_round_trip_and_unknown_ones_are_errors() {
        for number in 1..=5 {
            assert_eq!(mtu_number(mtu(number).unwrap()), number);
            assert_eq!(mtu(number).unwrap().bytes(), 128 << number);
        }
        assert!(mtu(0).is_err() && mtu(6).is_err());
    }

    #[test]
    fn states_round_trip_and_unknown_ones_are_errors() {
        for number in 0..=6 {
            assert_eq!(state_number(state(number).unwrap()), number);
        }
        assert!(state(sys::ibv_qp_state::IBV_QPS_UNKNOWN).is_err());
    }

    #[test]
    fn gids_beyond_index_255_are_skipped() {
        let raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1];
        let mut entry = sys::ibv_gid_entry {
            gid: sys::ibv_gid { raw },
            gid_index: 1,
            port_num: 1,
            gid_type: sys::IBV_GID_TYPE_ROCE_V2,
            ndev_ifindex: 3,
        };
        let read = gid(&entry).unwrap();
        assert_eq!((read.index, read.kind, read.interface), (1, GidKind::RoceV2, 3));
        assert_eq!(read.ip().to_string(), "10.9.0.1");
        entry.gid_index = 256;
        assert_eq!(gid(&entry), None);
    }

    #[test]
    fn access_and_send_flags_match_library_bits() {
        let all = Access {
            local_write: true,
            remote_read: true,
            remote_write: true,
            remote_atomic: true,
            bind: true,
            relaxed: false,
        };
        assert_eq!(access(all), 0b11111);
        assert_eq!(access(Access { relaxed: true, ..Access::default() }), 1 << 20);
        assert_eq!(access(Access { remote_read: true, ..Access::default() }), 4);
        assert_eq!(access(Access { remote_write: true, ..Access::default() }), 2);
        assert_eq!(access(Access { bind: true, ..Access::default() }), 16);
        assert_eq!(send_flags(SendFlags::INLINE.with_signal(true)), 10);
        assert_eq!(send_flags(SendFlags::SIGNALLED), 2);
        assert_eq!(send_flags(SendFlags::INLINE), 8);
    }

    #[test]
    fn capacities_round_trip() {
        let wanted = QpCap { sends: 1, receives: 2, send_sges: 3, recv_sges: 4, inline: 5 };
        assert_eq!(given(&cap(&wanted)), wanted);
    }
}
