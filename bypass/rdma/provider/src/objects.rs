//! What objects of a device are made of.

use super::device::{Gid, Mtu};

/// An object of a device, for whoever made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub usize);

/// The keys of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// What our requests name it by.
    pub local: u32,
    /// What the peer's requests name it by.
    pub remote: u32,
}

/// What may be done with a region or a window besides reading it locally.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Our requests may write it.
    pub local_write: bool,
    /// The peer may read it.
    pub remote_read: bool,
    /// The peer may write it; asks for `local_write`.
    pub remote_write: bool,
    /// The peer may do atomic operations on it; asks for `local_write`.
    pub remote_atomic: bool,
    /// Windows may be bound to it.
    pub bind: bool,
}

/// How much of something a queue pair holds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Capacities {
    /// Requests of the send queue.
    pub sends: u32,
    /// Buffers of the receive queue.
    pub receives: u32,
    /// Segments of a request.
    pub send_segments: u32,
    /// Segments of a buffer.
    pub receive_segments: u32,
    /// Bytes of a request that is sent inline.
    pub inline: u32,
}

/// What a queue pair is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairConfig {
    /// Where completions of requests go.
    pub send_queue: Handle,
    /// Where completions of received messages go.
    pub receive_queue: Handle,
    /// Where buffers are taken from, instead of a receive queue of its own.
    pub shared: Option<Handle>,
    /// What it is to hold.
    pub capacities: Capacities,
}

/// What a shared receive queue is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedConfig {
    /// Buffers that it holds.
    pub buffers: u32,
    /// Segments of a buffer.
    pub segments: u32,
}

/// The states of a queue pair (IBA 10.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePairState {
    /// New.
    Reset,
    /// Buffers can be posted.
    Init,
    /// Messages are received.
    ReadyToReceive,
    /// Requests are done.
    ReadyToSend,
    /// Its send queue is being drained.
    SendQueueDrained,
    /// A request failed; the receive queue goes on.
    SendQueueError,
    /// All that is posted is flushed.
    Error,
}

/// The way to the peer's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Path {
    /// The peer's port, where there is Ethernet below.
    pub gid: [u8; 16],
    /// The peer's port, where there is InfiniBand below.
    pub lid: u16,
    /// Our address, by its place in the table of our port.
    pub source: u8,
    /// Our port.
    pub port: u8,
    /// Routers on the way, at most.
    pub hop_limit: u8,
}

impl Path {
    /// The way from `source` to the address `gid` of a peer.
    pub fn to(gid: [u8; 16], lid: u16, source: &Gid) -> Self {
        Path { gid, lid, source: source.index, port: source.port, hop_limit: 64 }
    }
}

/// How long an answer may take before a packet is sent again: 4.096 µs times two to the power of this (IBA 9.9.2.4.1), a quarter of a
/// second. Linux' rdma_cm took 19 for RoCE for long, two seconds for each packet that gets lost.
pub const ACK_TIMEOUT: u8 = 16;

/// What brings a queue pair into another state (IBA 11.2.5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// From `Reset`.
    Init {
        /// The port that it goes by.
        port: u8,
        /// The partition, by its place in the port's table.
        partition: u16,
        /// What the peer may do.
        access: Access,
    },
    /// From `Init`.
    ReadyToReceive {
        /// Bytes of a packet, at most.
        mtu: Mtu,
        /// The number of the peer's queue pair.
        pair: u32,
        /// The number of the first packet from there.
        first_packet: u32,
        /// READs and atomics of the peer's that we answer at a time.
        reads_answered: u8,
        /// What the peer is told when no buffer is posted, how long to wait: an index (IBA table 45).
        not_ready_timer: u8,
        /// The way there.
        path: Path,
    },
    /// From `ReadyToReceive`.
    ReadyToSend {
        /// The number of our first packet.
        first_packet: u32,
        /// How long an answer may take: 4.096 µs times two to the power of this.
        timeout: u8,
        /// How often it is asked again when there is none.
        retries: u8,
        /// How often when the peer has no buffer; 7 is for ever.
        not_ready_retries: u8,
        /// READs and atomics that we ask for at a time.
        reads_asked: u8,
    },
    /// Of a queue pair of datagrams, from `Reset`.
    InitDatagrams {
        /// The port that it goes by.
        port: u8,
        /// The partition, by its place in the port's table.
        partition: u16,
        /// What a datagram has to name for being received (Q_Key). With the highest bit set, it is for privileged programs.
        key: u32,
    },
    /// Of a queue pair of datagrams, from `Init`.
    ReceiveDatagrams,
    /// Of a queue pair of datagrams, from `ReadyToReceive`.
    SendDatagrams {
        /// The number of our first packet.
        first_packet: u32,
    },
    /// From any.
    Error,
    /// From any.
    Reset,
}

/// What a queue pair says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairAttributes {
    /// Its state.
    pub state: QueuePairState,
    /// What it holds.
    pub capacities: Capacities,
}
