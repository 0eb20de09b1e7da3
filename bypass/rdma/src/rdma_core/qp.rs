//! Queue pairs and their states.

use super::answer::{done, made, object};
use super::values;
use crate::calls::{
    ACK_TIMEOUT, Capacities, Handle, Path, QueuePairAttributes, QueuePairConfig, QueuePairState, Transition,
};
use rdma_mummy_sys as sys;
use rdma_mummy_sys::ibv_qp_attr_mask as given;
use std::io;
use std::mem::zeroed;
use std::ptr::null_mut;

/// # Safety
/// As [`Calls::create_pair`](crate::calls::Calls::create_pair).
pub(super) unsafe fn create(domain: Handle, config: &QueuePairConfig) -> io::Result<(Handle, u32, Capacities)> {
    // SAFETY: as the caller says.
    unsafe { create_of(sys::ibv_qp_type::IBV_QPT_RC, domain, config) }
}

/// # Safety
/// As [`Calls::create_datagrams`](crate::calls::Calls::create_datagrams).
pub(super) unsafe fn create_datagrams(
    domain: Handle,
    config: &QueuePairConfig,
) -> io::Result<(Handle, u32, Capacities)> {
    // SAFETY: as the caller says.
    unsafe { create_of(sys::ibv_qp_type::IBV_QPT_UD, domain, config) }
}

/// # Safety
/// The domain, and what `config` names, are live.
unsafe fn create_of(
    qp_type: sys::ibv_qp_type::Type,
    domain: Handle,
    config: &QueuePairConfig,
) -> io::Result<(Handle, u32, Capacities)> {
    let mut attributes = sys::ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: object(config.send_queue),
        recv_cq: object(config.receive_queue),
        srq: config.shared.map_or(null_mut(), object),
        cap: values::capacities(&config.capacities),
        qp_type,
        sq_sig_all: 0,
    };
    // SAFETY: the domain and what the structure names are live, and it lives through the call.
    let pair = unsafe { sys::ibv_create_qp(object(domain), &mut attributes) };
    let handle = made(pair)?;
    // SAFETY: it was made just now.
    let number = unsafe { (*pair).qp_num };
    Ok((handle, number, values::given(&attributes.cap)))
}

/// # Safety
/// As [`Calls::destroy_pair`](crate::calls::Calls::destroy_pair).
pub(super) unsafe fn destroy(pair: Handle) -> io::Result<()> {
    // SAFETY: it is a live queue pair.
    done(unsafe { sys::ibv_destroy_qp(object(pair)) })
}

/// # Safety
/// As [`Calls::modify`](crate::calls::Calls::modify).
pub(super) unsafe fn modify(pair: Handle, transition: &Transition) -> io::Result<()> {
    let (mut attributes, which) = attributes(transition);
    // SAFETY: the queue pair is live, and the structure lives through the call.
    done(unsafe { sys::ibv_modify_qp(object(pair), &mut attributes, which.0.cast_signed()) })
}

/// What a transition needs, and which of it is given (IBA table 96).
fn attributes(transition: &Transition) -> (sys::ibv_qp_attr, given) {
    // SAFETY: numbers and an array of bytes, for which zero is a value.
    let mut to: sys::ibv_qp_attr = unsafe { zeroed() };
    let which = match *transition {
        Transition::Init { port, partition, access } => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
            to.port_num = port;
            to.pkey_index = partition;
            to.qp_access_flags = values::access(access);
            given::IBV_QP_PORT | given::IBV_QP_PKEY_INDEX | given::IBV_QP_ACCESS_FLAGS
        }
        Transition::ReadyToReceive { mtu, pair, first_packet, reads_answered, not_ready_timer, path } => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
            to.path_mtu = values::mtu_number(mtu);
            to.dest_qp_num = pair;
            to.rq_psn = first_packet;
            to.max_dest_rd_atomic = reads_answered;
            to.min_rnr_timer = not_ready_timer;
            to.ah_attr = address(&path);
            given::IBV_QP_AV
                | given::IBV_QP_PATH_MTU
                | given::IBV_QP_DEST_QPN
                | given::IBV_QP_RQ_PSN
                | given::IBV_QP_MAX_DEST_RD_ATOMIC
                | given::IBV_QP_MIN_RNR_TIMER
        }
        Transition::ReadyToSend { first_packet, timeout, retries, not_ready_retries, reads_asked } => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
            to.sq_psn = first_packet;
            to.timeout = timeout;
            to.retry_cnt = retries;
            to.rnr_retry = not_ready_retries;
            to.max_rd_atomic = reads_asked;
            given::IBV_QP_SQ_PSN
                | given::IBV_QP_TIMEOUT
                | given::IBV_QP_RETRY_CNT
                | given::IBV_QP_RNR_RETRY
                | given::IBV_QP_MAX_QP_RD_ATOMIC
        }
        Transition::InitDatagrams { port, partition, key } => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
            to.port_num = port;
            to.pkey_index = partition;
            to.qkey = key;
            given::IBV_QP_PORT | given::IBV_QP_PKEY_INDEX | given::IBV_QP_QKEY
        }
        Transition::ReceiveDatagrams => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
            given(0)
        }
        Transition::SendDatagrams { first_packet } => {
            to.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
            to.sq_psn = first_packet;
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

/// Ethernet has no LIDs; where there is one, it leads to the peer without the global header, which is 40 bytes a packet.
pub(super) fn address(path: &Path) -> sys::ibv_ah_attr {
    sys::ibv_ah_attr {
        grh: sys::ibv_global_route {
            dgid: sys::ibv_gid { raw: path.gid },
            flow_label: 0,
            sgid_index: path.source,
            hop_limit: path.hop_limit,
            traffic_class: 0,
        },
        dlid: path.lid,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: u8::from(path.lid == 0),
        port_num: path.port,
    }
}

/// # Safety
/// As [`Calls::modify_by`](crate::calls::Calls::modify_by).
pub(super) unsafe fn modify_by(pair: Handle, id: Handle, state: QueuePairState) -> io::Result<()> {
    if state == QueuePairState::ReadyToReceive {
        // What the peer may do is known now and was not when the queue pair went to `Init`: it goes there once more, as
        // librdmacm brings its own ones.
        // SAFETY: as the caller says.
        unsafe { step_by(pair, id, QueuePairState::Init)? };
    }
    // SAFETY: as the caller says.
    unsafe { step_by(pair, id, state) }
}

/// # Safety
/// As [`modify_by`].
unsafe fn step_by(pair: Handle, id: Handle, state: QueuePairState) -> io::Result<()> {
    // SAFETY: numbers and an array of bytes, for which zero is a value.
    let mut attributes: sys::ibv_qp_attr = unsafe { zeroed() };
    attributes.qp_state = values::state_number(state);
    let mut which = 0;
    // SAFETY: the identifier is live, and both are written.
    done(unsafe { sys::rdma_init_qp_attr(object(id), &mut attributes, &mut which) })?;
    if which == 0 {
        // iWARP's driver does it when it is connected.
        return Ok(());
    }
    // What is not said here is not looked at.
    attributes.timeout = attributes.timeout.min(ACK_TIMEOUT);
    // SAFETY: the queue pair is live, and the structure lives through the call.
    done(unsafe { sys::ibv_modify_qp(object(pair), &mut attributes, which) })
}

/// # Safety
/// As [`Calls::query_pair`](crate::calls::Calls::query_pair).
pub(super) unsafe fn query(pair: Handle) -> io::Result<QueuePairAttributes> {
    // SAFETY: numbers and an array of bytes, for which zero is a value.
    let mut attributes: sys::ibv_qp_attr = unsafe { zeroed() };
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut made_of: sys::ibv_qp_init_attr = unsafe { zeroed() };
    let wanted = (given::IBV_QP_STATE | given::IBV_QP_CAP).0.cast_signed();
    // SAFETY: the queue pair is live, and both structures are written.
    done(unsafe { sys::ibv_query_qp(object(pair), &mut attributes, wanted, &mut made_of) })?;
    Ok(QueuePairAttributes { state: values::state(attributes.qp_state)?, capacities: values::given(&attributes.cap) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{Access, Mtu};

    const PATH: Path = Path { gid: [7; 16], lid: 0, source: 1, port: 2, hop_limit: 64 };

    #[test]
    fn each_transition_gives_what_the_specification_asks_for() {
        let access = Access { remote_read: true, ..Access::default() };
        let (to, which) = attributes(&Transition::Init { port: 2, partition: 3, access });
        assert_eq!((to.qp_state, to.port_num, to.pkey_index, to.qp_access_flags), (1, 2, 3, 4));
        assert_eq!(which.0, 1 | 8 | 16 | 32);

        let (to, which) = attributes(&Transition::ReadyToReceive {
            mtu: Mtu::Mtu1024,
            pair: 17,
            first_packet: 5,
            reads_answered: 6,
            not_ready_timer: 12,
            path: PATH,
        });
        assert_eq!((to.qp_state, to.path_mtu, to.dest_qp_num, to.rq_psn), (2, 3, 17, 5));
        assert_eq!((to.max_dest_rd_atomic, to.min_rnr_timer), (6, 12));
        assert_eq!(which.0, 1 | 128 | 256 | 4096 | 32768 | 131_072 | 1_048_576);

        let (to, which) = attributes(&Transition::ReadyToSend {
            first_packet: 9,
            timeout: 14,
            retries: 7,
            not_ready_retries: 6,
            reads_asked: 4,
        });
        assert_eq!((to.qp_state, to.sq_psn, to.timeout), (3, 9, 14));
        assert_eq!((to.retry_cnt, to.rnr_retry, to.max_rd_atomic), (7, 6, 4));
        assert_eq!(which.0, 1 | 512 | 1024 | 2048 | 8192 | 65536);

        let (to, which) = attributes(&Transition::InitDatagrams { port: 2, partition: 3, key: 0x1234_5678 });
        assert_eq!((to.qp_state, to.port_num, to.pkey_index, to.qkey), (1, 2, 3, 0x1234_5678));
        assert_eq!(which.0, 1 | 16 | 32 | 64);
        let (to, which) = attributes(&Transition::ReceiveDatagrams);
        assert_eq!((to.qp_state, which.0), (2, 1));
        let (to, which) = attributes(&Transition::SendDatagrams { first_packet: 9 });
        assert_eq!((to.qp_state, to.sq_psn, which.0), (3, 9, 1 | 65536));

        for (transition, number) in [(Transition::Error, 6), (Transition::Reset, 0)] {
            let (to, which) = attributes(&transition);
            assert_eq!((to.qp_state, which.0), (number, 1));
        }
    }

    #[test]
    fn a_path_over_ethernet_is_global() {
        let to = address(&PATH);
        assert_eq!((to.is_global, to.grh.sgid_index, to.grh.hop_limit, to.port_num), (1, 1, 64, 2));
        // SAFETY: both members are 16 bytes.
        assert_eq!(unsafe { to.grh.dgid.raw }, [7; 16]);
        let to = address(&Path { lid: 5, ..PATH });
        assert_eq!((to.is_global, to.dlid), (0, 5));
    }
}
