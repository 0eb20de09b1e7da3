//! Attributes of verbs objects.

use super::device::{Gid, Mtu};

/// Handle of an object of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub usize);

/// Keys of a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// L_Key, for local work requests.
    pub local: u32,
    /// R_Key, for work requests of the peer.
    pub remote: u32,
}

/// Access rights of a memory region or window. Local read access is implied.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Local work requests may write.
    pub local_write: bool,
    /// The peer may read.
    pub remote_read: bool,
    /// The peer may write; requires `local_write`.
    pub remote_write: bool,
    /// The peer may do atomic operations; requires `local_write`.
    pub remote_atomic: bool,
    /// Memory windows may be bound.
    pub bind: bool,
    /// The device may reorder its writes; a completion still follows all writes of its request. Programs must not poll
    /// the memory (`IBV_ACCESS_RELAXED_ORDERING`). The flag has no effect on devices and kernels without support.
    pub relaxed: bool,
}

/// Capacities of a queue pair (`struct ibv_qp_cap`).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct QpCap {
    /// Work requests of the send queue.
    pub sends: u32,
    /// Work requests of the receive queue.
    pub receives: u32,
    /// Scatter/gather elements of a send request.
    pub send_sges: u32,
    /// Scatter/gather elements of a receive request.
    pub recv_sges: u32,
    /// Maximum inline data in bytes.
    pub inline: u32,
}

/// Attributes to create a queue pair with (`struct ibv_qp_init_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpInitAttr {
    /// Completion queue of the send queue.
    pub send_cq: Handle,
    /// Completion queue of the receive queue.
    pub recv_cq: Handle,
    /// Shared receive queue that replaces the receive queue.
    pub srq: Option<Handle>,
    /// Required capacities.
    pub cap: QpCap,
}

/// Attributes to create a shared receive queue with (`struct ibv_srq_init_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqInitAttr {
    /// Receive buffers.
    pub buffers: u32,
    /// Scatter/gather elements of a buffer.
    pub sges: u32,
}

/// State of a queue pair (IBA 10.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QpState {
    /// Reset.
    Reset,
    /// Initialized: buffers can be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained.
    Sqd,
    /// Send queue error: a send request failed; the receive queue still works.
    Sqe,
    /// Error: all posted requests are flushed.
    Error,
}

/// Address vector of a peer port (`struct ibv_ah_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AhAttr {
    /// GID of the peer's port, on Ethernet.
    pub gid: [u8; 16],
    /// LID of the peer's port, on InfiniBand.
    pub lid: u16,
    /// Local GID, by its index in the table of the port.
    pub source: u8,
    /// Local port number.
    pub port: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class of the GRH: over RoCE version 2, DSCP in the upper six bits.
    pub traffic_class: u8,
    /// Service level: over Ethernet, the priority of a VLAN tag.
    pub service_level: u8,
}

impl AhAttr {
    /// Returns the address vector from the local GID `source` to the peer's `gid` or `lid`.
    pub fn to(gid: [u8; 16], lid: u16, source: &Gid) -> Self {
        AhAttr { gid, lid, source: source.index, port: source.port, hop_limit: 64, traffic_class: 0, service_level: 0 }
    }

    /// Returns the address vector with the chosen classes.
    pub fn with(self, path: &PathOptions) -> Self {
        AhAttr { traffic_class: path.traffic_class, service_level: path.service_level, ..self }
    }
}

/// Retransmission parameters of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Local ACK timeout: 4.096 µs times two to this power, at most 31.
    pub timeout: u8,
    /// Retries without an acknowledgement, at most 7.
    pub retries: u8,
    /// Retries after receiver-not-ready; 7 is unlimited.
    pub rnr_retries: u8,
    /// Minimum RNR NAK timer: an index into IBA table 45.
    pub min_rnr_timer: u8,
}

/// Attributes of paths that a program may choose.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PathOptions {
    /// Traffic class of the GRH: over RoCE version 2, DSCP in the upper six bits.
    pub traffic_class: u8,
    /// Service level: over Ethernet, the priority of a VLAN tag.
    pub service_level: u8,
    /// Index in the port's P_Key table.
    pub pkey_index: u16,
}

/// Attributes of a queue pair that the connection manager does not choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpOptions {
    /// Retransmission parameters.
    pub retry: Retry,
    /// Attributes of the path.
    pub path: PathOptions,
}

impl Retry {
    /// Default parameters: a quarter of a second (4.096 µs · 2¹⁶, IBA 9.9.2.4.1) for each of eight attempts, and 0.64
    /// ms for each retry after receiver-not-ready. Linux' rdma_cm long used 2¹⁹ for RoCE, which is two seconds per lost
    /// packet.
    pub const DEFAULT: Retry = Retry { timeout: 16, retries: 7, rnr_retries: 6, min_rnr_timer: 12 };
}

/// State transition of a queue pair, with its attributes (IBA 11.2.5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// RESET → INIT.
    Init {
        /// Port number.
        port: u8,
        /// Index in the port's P_Key table.
        partition: u16,
        /// Access rights of the peer.
        access: Access,
    },
    /// INIT → RTR.
    Rtr {
        /// Path MTU.
        mtu: Mtu,
        /// Queue pair number of the peer.
        qp: u32,
        /// Packet sequence number of the first packet received.
        psn: u32,
        /// Outstanding READ and atomic operations accepted from the peer.
        responder_resources: u8,
        /// Minimum RNR NAK timer: an index into IBA table 45.
        min_rnr_timer: u8,
        /// Address vector of the peer.
        path: AhAttr,
    },
    /// RTR → RTS.
    Rts {
        /// Packet sequence number of the first packet sent.
        psn: u32,
        /// Local ACK timeout: 4.096 µs times two to this power.
        timeout: u8,
        /// Retries without an acknowledgement.
        retries: u8,
        /// Retries after receiver-not-ready; 7 is unlimited.
        rnr_retries: u8,
        /// Outstanding READ and atomic operations initiated locally.
        initiator_depth: u8,
    },
    /// RESET → INIT of a UD queue pair.
    InitUd {
        /// Port number.
        port: u8,
        /// Index in the port's P_Key table.
        partition: u16,
        /// Q_Key that a datagram must carry to be received. Keys with the highest bit set are for privileged programs.
        key: u32,
    },
    /// INIT → RTR of a UD queue pair.
    RtrUd,
    /// RTR → RTS of a UD queue pair.
    RtsUd {
        /// Packet sequence number of the first packet sent.
        psn: u32,
    },
    /// Any state → ERROR.
    Error,
    /// Any state → RESET.
    Reset,
}

/// Attributes of an existing queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAttr {
    /// State.
    pub state: QpState,
    /// Capacities.
    pub cap: QpCap,
}
