//! Queue pairs and their state transitions.

use super::answer::{done, made, object};
use super::values;
use crate::provider::{AhAttr, Handle, QpAttr, QpCap, QpInitAttr, QpOptions, QpState, Transition};
use rdma_mummy_sys as sys;
use rdma_mummy_sys::ibv_qp_attr_mask as given;
use std::io;
use std::mem::zeroed;
use std::ptr::null_mut;

/// # Safety
/// The protection domain and the objects that `config` names are live.
pub(super) unsafe fn create(
    qp_type: sys::ibv_qp_type::Type,
    pd: Handle,
    config: &QpInitAttr,
) -> io::Result<(Handle, u32, QpCap)> {
    let mut attributes = sys::ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: object(config.send_cq),
        recv_cq: object(config.recv_cq),
        srq: config.srq.map_or(null_mut(), object),
        cap: values::cap(&config.cap),
        qp_type,
        sq_sig_all: 0,
    };
    // SAFETY: the protection domain and all named objects are live; the structure outlives the call.
    let qp = unsafe { sys::ibv_create_qp(object(pd), &mut attributes) };
    let handle = made(qp)?;
    // SAFETY: the queue pair was created above.
    let number = unsafe { (*qp).qp_num };
    Ok((handle, number, values::given(&attributes.cap)))
}

/// Returns the attributes of a transition and their mask (IBA table 96).
pub(super) fn attributes(transition: &Transition) -> (sys::ibv_qp_attr, given) {
    // SAFETY: numbers and a byte array, for which zero is valid.
    let mut to: sys::ibv_qp_attr = unsafe { zeroed() };
    let which = match *transition {
        Transition::Init { port, partition, access } => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
            to.port_num = port;
            to.pkey_index = partition;
            to.qp_access_flags = values::access(access);
            given::IBV_QP_PORT | given::IBV_QP_PKEY_INDEX | given::IBV_QP_ACCESS_FLAGS
        }
        Transition::Rtr { mtu, qp, psn, responder_resources, min_rnr_timer, path } => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
            to.path_mtu = values::mtu_number(mtu);
            to.dest_qp_num = qp;
            to.rq_psn = psn;
            to.max_dest_rd_atomic = responder_resources;
            to.min_rnr_timer = min_rnr_timer;
            to.ah_attr = address(&path);
            given::IBV_QP_AV
                | given::IBV_QP_PATH_MTU
                | given::IBV_QP_DEST_QPN
                | given::IBV_QP_RQ_PSN
                | given::IBV_QP_MAX_DEST_RD_ATOMIC
                | given::IBV_QP_MIN_RNR_TIMER
        }
        Transition::Rts { psn, timeout, retries, rnr_retries, initiator_depth } => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
            to.sq_psn = psn;
            to.timeout = timeout;
            to.retry_cnt = retries;
            to.rnr_retry = rnr_retries;
            to.max_rd_atomic = initiator_depth;
            given::IBV_QP_SQ_PSN
                | given::IBV_QP_TIMEOUT
                | given::IBV_QP_RETRY_CNT
                | given::IBV_QP_RNR_RETRY
                | given::IBV_QP_MAX_QP_RD_ATOMIC
        }
        Transition::InitUd { port, partition, key } => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
            to.port_num = port;
            to.pkey_index = partition;
            to.qkey = key;
            given::IBV_QP_PORT | given::IBV_QP_PKEY_INDEX | given::IBV_QP_QKEY
        }
        Transition::RtrUd => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
            given(0)
        }
        Transition::RtsUd { psn } => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
            to.sq_psn = psn;
            given::IBV_QP_SQ_PSN
        }
        Transition::Error => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
            given(0)
        }
        Transition::Reset => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_RESET;
            given(0)
        }
    };
    (to, which | given::IBV_QP_STATE)
}

/// Converts an address vector. Without a LID, as on Ethernet, packets need a GRH. With a LID, the GRH is omitted, which
/// saves 40 bytes per packet.
pub(super) fn address(path: &AhAttr) -> sys::ibv_ah_attr {
    sys::ibv_ah_attr {
        grh: sys::ibv_global_route {
            dgid: sys::ibv_gid { raw: path.gid },
            flow_label: 0,
            sgid_index: path.source,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        },
        dlid: path.lid,
        sl: path.service_level,
        src_path_bits: 0,
        static_rate: 0,
        is_global: u8::from(path.lid == 0),
        port_num: path.port,
    }
}

/// # Safety
/// As for [`Provider::modify_qp_by_cm`](crate::provider::Provider::modify_qp_by_cm).
pub(super) unsafe fn modify_qp_by_cm(qp: Handle, id: Handle, state: QpState, options: &QpOptions) -> io::Result<()> {
    if state == QpState::Rtr {
        // The peer's rights were unknown when the queue pair entered INIT. The transition is repeated, as librdmacm
        // does for its own queue pairs.
        // SAFETY: guaranteed by the caller.
        unsafe { step_by(qp, id, QpState::Init, options)? };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { step_by(qp, id, state, options) }
}

/// # Safety
/// As for [`modify_qp_by_cm`].
unsafe fn step_by(qp: Handle, id: Handle, state: QpState, options: &QpOptions) -> io::Result<()> {
    // SAFETY: numbers and a byte array, for which zero is valid.
    let mut attributes: sys::ibv_qp_attr = unsafe { zeroed() };
    attributes.qp_state = values::state_number(state);
    let mut which = 0;
    // SAFETY: the identifier is live; the call writes both values.
    done(unsafe { sys::rdma_init_qp_attr(object(id), &mut attributes, &mut which) })?;
    if which == 0 {
        // The iWARP driver changes the state itself when connecting.
        return Ok(());
    }
    // Without their mask bits, the values are ignored.
    let QpOptions { retry, path } = options;
    (attributes.timeout, attributes.retry_cnt) = (retry.timeout, retry.retries);
    (attributes.rnr_retry, attributes.min_rnr_timer) = (retry.rnr_retries, retry.min_rnr_timer);
    // The connection manager has a traffic class and a service level of its own.
    if path.traffic_class > 0 {
        attributes.ah_attr.grh.traffic_class = path.traffic_class;
    }
    if path.service_level > 0 {
        attributes.ah_attr.sl = path.service_level;
    }
    if path.pkey_index > 0 {
        attributes.pkey_index = path.pkey_index;
    }
    // SAFETY: the queue pair is live; the structure outlives the call.
    done(unsafe { sys::ibv_modify_qp(object(qp), &mut attributes, which) })
}

/// # Safety
/// As for [`Provider::query_qp`](crate::provider::Provider::query_qp).
pub(super) unsafe fn query(qp: Handle) -> io::Result<QpAttr> {
    // SAFETY: numbers and a byte array, for which zero is valid.
    let mut attributes: sys::ibv_qp_attr = unsafe { zeroed() };
    // SAFETY: numbers and pointers, for which zero is valid.
    let mut made_of: sys::ibv_qp_init_attr = unsafe { zeroed() };
    let wanted = (given::IBV_QP_STATE | given::IBV_QP_CAP).0.cast_signed();
    // SAFETY: the queue pair is live; the call writes both structures.
    done(unsafe { sys::ibv_query_qp(object(qp), &mut attributes, wanted, &mut made_of) })?;
    Ok(QpAttr { state: values::state(attributes.qp_state)?, cap: values::given(&attributes.cap) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{Access, Mtu};

    const PATH: AhAttr =
        AhAttr { gid: [7; 16], lid: 0, source: 1, port: 2, hop_limit: 64, traffic_class: 104, service_level: 3 };

    #[test]
    fn transitions_give_the_specified_attributes() {
        let access = Access { remote_read: true, ..Access::default() };
        let (to, which) = attributes(&Transition::Init { port: 2, partition: 3, access });
        assert_eq!((to.qp_state, to.port_num, to.pkey_index, to.qp_access_flags), (1, 2, 3, 4));
        assert_eq!(which.0, 1 | 8 | 16 | 32);

        let (to, which) = attributes(&Transition::Rtr {
            mtu: Mtu::Mtu1024,
            qp: 17,
            psn: 5,
            responder_resources: 6,
            min_rnr_timer: 12,
            path: PATH,
        });
        assert_eq!((to.qp_state, to.path_mtu, to.dest_qp_num, to.rq_psn), (2, 3, 17, 5));
        assert_eq!((to.max_dest_rd_atomic, to.min_rnr_timer), (6, 12));
        assert_eq!(which.0, 1 | 128 | 256 | 4096 | 32768 | 131_072 | 1_048_576);

        let (to, which) =
            attributes(&Transition::Rts { psn: 9, timeout: 14, retries: 7, rnr_retries: 6, initiator_depth: 4 });
        assert_eq!((to.qp_state, to.sq_psn, to.timeout), (3, 9, 14));
        assert_eq!((to.retry_cnt, to.rnr_retry, to.max_rd_atomic), (7, 6, 4));
        assert_eq!(which.0, 1 | 512 | 1024 | 2048 | 8192 | 65536);

        let (to, which) = attributes(&Transition::InitUd { port: 2, partition: 3, key: 0x1234_5678 });
        assert_eq!((to.qp_state, to.port_num, to.pkey_index, to.qkey), (1, 2, 3, 0x1234_5678));
        assert_eq!(which.0, 1 | 16 | 32 | 64);
        let (to, which) = attributes(&Transition::RtrUd);
        assert_eq!((to.qp_state, which.0), (2, 1));
        let (to, which) = attributes(&Transition::RtsUd { psn: 9 });
        assert_eq!((to.qp_state, to.sq_psn, which.0), (3, 9, 1 | 65536));

        for (transition, number) in [(Transition::Error, 6), (Transition::Reset, 0)] {
            let (to, which) = attributes(&transition);
            assert_eq!((to.qp_state, which.0), (number, 1));
        }
    }

    #[test]
    fn path_over_ethernet_has_grh() {
        let to = address(&PATH);
        assert_eq!((to.grh.traffic_class, to.sl), (104, 3));
        assert_eq!((to.is_global, to.grh.sgid_index, to.grh.hop_limit, to.port_num), (1, 1, 64, 2));
        // SAFETY: both members are 16 bytes.
        assert_eq!(unsafe { to.grh.dgid.raw }, [7; 16]);
        let to = address(&AhAttr { lid: 5, ..PATH });
        assert_eq!((to.is_global, to.dlid), (0, 5));
    }
}
