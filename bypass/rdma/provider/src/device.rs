//! What a device, its ports and their addresses say about themselves.

use super::Handle;
use std::net::IpAddr;

/// What a device's packets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    /// InfiniBand's, over its own links or RoCE.
    InfiniBand,
    /// iWARP: over TCP.
    Iwarp,
    /// Something else.
    Other,
}

/// What is below a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet.
    Ethernet,
}

/// What a device can do (`struct ibv_device_attr`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceLimits {
    /// What its packets are.
    pub transport: TransportKind,
    /// Its firmware's version, as it says it.
    pub firmware: String,
    /// Its vendor's number.
    pub vendor: u32,
    /// The vendor's number for this kind.
    pub part: u32,
    /// Ports.
    pub ports: u8,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Regions.
    pub regions: u32,
    /// Windows.
    pub windows: u32,
    /// Whether windows of type 2 can be bound (`IBV_DEVICE_MEM_WINDOW_TYPE_2A` or `2B`).
    pub windows_type_2: bool,
    /// Domains.
    pub domains: u32,
    /// Queue pairs.
    pub pairs: u32,
    /// Requests of a queue.
    pub requests: u32,
    /// Segments of a request.
    pub segments: u32,
    /// Segments of a READ.
    pub read_segments: u32,
    /// Completion queues.
    pub queues: u32,
    /// Completions of a queue.
    pub completions: u32,
    /// Shared receive queues.
    pub shared: u32,
    /// Buffers of a shared receive queue.
    pub shared_buffers: u32,
    /// Segments of such a buffer.
    pub shared_segments: u32,
    /// READs and atomics that a queue pair answers at a time.
    pub reads_answered: u8,
    /// READs and atomics that a queue pair asks for at a time.
    pub reads_asked: u8,
    /// Towards what its atomic operations are atomic.
    pub atomics: Atomics,
}

/// Towards what a device's atomic operations are atomic (`enum ibv_atomic_cap`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomics {
    /// It does none.
    None,
    /// Towards other such operations by the same device.
    Device,
    /// Towards processors and all devices, too.
    Global,
}

impl Atomics {
    /// Whether there are any.
    pub fn any(self) -> bool {
        self != Atomics::None
    }
}

/// A port's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// It carries packets.
    Active,
    /// It does not.
    Down,
    /// On its way to be active.
    Coming,
}

/// The longest packet of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1 024 bytes.
    Mtu1024,
    /// 2 048 bytes.
    Mtu2048,
    /// 4 096 bytes.
    Mtu4096,
}

impl Mtu {
    /// In bytes.
    pub fn bytes(self) -> u32 {
        256 << self as u32
    }
}

/// What a port says about itself (`struct ibv_port_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Its state.
    pub state: PortState,
    /// The longest packet that it can have.
    pub max_mtu: Mtu,
    /// The longest packet that it has.
    pub mtu: Mtu,
    /// The longest message.
    pub message: u32,
    /// Its address, with InfiniBand below.
    pub lid: u16,
    /// What is below.
    pub link: LinkLayer,
    /// Bits in a second, as far as it says.
    pub speed: Option<u64>,
}

/// What kind of an address one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand's.
    InfiniBand,
    /// RoCE version 1: on one Ethernet.
    RoceV1,
    /// RoCE version 2: in UDP datagrams.
    RoceV2,
}

/// An address of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// Its port.
    pub port: u8,
    /// Its place in the port's table.
    pub index: u8,
    /// The address.
    pub raw: [u8; 16],
    /// Its kind.
    pub kind: GidKind,
    /// The network interface that it belongs to, by its index; 0 where there is none.
    pub interface: u32,
}

impl Gid {
    /// The IP address that it stands for, as RoCE version 2 has it: IPv4 ones are mapped into IPv6.
    pub fn ip(&self) -> IpAddr {
        std::net::Ipv6Addr::from(self.raw).to_canonical()
    }
}

/// An asynchronous event (`ibv_get_async_event(3)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran; it is unusable, and so is what has it.
    QueueError(Handle),
    /// A queue pair went to the error state.
    PairFatal(Handle),
    /// A queue pair got a request that makes no sense.
    PairRequest(Handle),
    /// A queue pair got a request that it denied.
    PairAccess(Handle),
    /// The first message came before the connection manager said that it may.
    Established(Handle),
    /// A shared receive queue has fewer buffers than its limit.
    SharedLimit(Handle),
    /// A shared receive queue failed.
    SharedError(Handle),
    /// A queue pair that was in the error state has taken its last buffer of a shared receive queue.
    LastBuffer(Handle),
    /// A port began to carry packets.
    PortActive(u8),
    /// A port ceased to.
    PortDown(u8),
    /// The addresses of a port changed.
    GidsChanged(u8),
    /// The device is out of order, or is being removed.
    Fatal,
    /// Another one, by its number.
    Other(u32),
}
