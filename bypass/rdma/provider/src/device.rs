//! Attributes of devices and ports, and asynchronous events.

use super::Handle;
use std::net::IpAddr;

/// Transport of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    /// InfiniBand transport, over InfiniBand links or RoCE.
    InfiniBand,
    /// iWARP, over TCP.
    Iwarp,
    /// Cisco usNIC, which has datagrams only.
    Usnic,
    /// Transport without a name in rdma-core, such as the SRD transport of Amazon EFA.
    Unspecified,
    /// Any other transport.
    Other,
}

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet.
    Ethernet,
}

/// Device attributes and limits (`struct ibv_device_attr`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Transport.
    pub transport: TransportKind,
    /// Firmware version, as the device reports it.
    pub firmware: String,
    /// Vendor identifier.
    pub vendor: u32,
    /// Part identifier, assigned by the vendor.
    pub part: u32,
    /// Number of ports.
    pub ports: u8,
    /// Maximum size of a memory region in bytes.
    pub mr_bytes: u64,
    /// Maximum number of memory regions.
    pub mrs: u32,
    /// Maximum number of memory windows.
    pub mws: u32,
    /// Type 2 memory windows are supported (`IBV_DEVICE_MEM_WINDOW_TYPE_2A` or `2B`).
    pub mw_type_2: bool,
    /// Maximum number of protection domains.
    pub pds: u32,
    /// Maximum number of queue pairs.
    pub qps: u32,
    /// Maximum work requests of a send or receive queue.
    pub qp_wrs: u32,
    /// Maximum scatter/gather elements of a work request.
    pub sges: u32,
    /// Maximum scatter/gather elements of a READ.
    pub read_sges: u32,
    /// Maximum number of completion queues.
    pub cqs: u32,
    /// Maximum entries of a completion queue.
    pub cqes: u32,
    /// Maximum number of shared receive queues.
    pub srqs: u32,
    /// Maximum work requests of a shared receive queue.
    pub srq_wrs: u32,
    /// Maximum scatter/gather elements of a shared receive request.
    pub srq_sges: u32,
    /// Maximum outstanding READ and atomic operations that a queue pair accepts.
    pub responder_resources: u8,
    /// Maximum outstanding READ and atomic operations that a queue pair initiates.
    pub initiator_depth: u8,
    /// Scope of atomic operations.
    pub atomics: AtomicCap,
}

/// Scope of a device's atomic operations (`enum ibv_atomic_cap`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicCap {
    /// Not supported.
    None,
    /// Atomic with respect to operations of the same device.
    Device,
    /// Atomic with respect to CPUs and all devices.
    Global,
}

impl AtomicCap {
    /// Returns true if atomic operations are supported.
    pub fn any(self) -> bool {
        self != AtomicCap::None
    }
}

/// State of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// Packets are carried.
    Active,
    /// No packets are carried.
    Down,
    /// In transition to active.
    Coming,
}

/// Path MTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes.
    Mtu4096,
}

impl Mtu {
    /// Returns the MTU in bytes.
    pub fn bytes(self) -> u32 {
        256 << self as u32
    }
}

/// Port attributes (`struct ibv_port_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// State.
    pub state: PortState,
    /// Maximum supported MTU.
    pub max_mtu: Mtu,
    /// Active MTU.
    pub mtu: Mtu,
    /// Maximum message size in bytes.
    pub message: u32,
    /// Local identifier, on an InfiniBand link.
    pub lid: u16,
    /// Link layer.
    pub link: LinkLayer,
    /// Rate in bits per second, if the port reports it.
    pub speed: Option<u64>,
}

/// Type of a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1, within one Ethernet broadcast domain.
    RoceV1,
    /// RoCE version 2, in UDP datagrams.
    RoceV2,
}

/// Entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// Port number.
    pub port: u8,
    /// Index in the port's GID table.
    pub index: u8,
    /// Bytes of the GID.
    pub raw: [u8; 16],
    /// Type.
    pub kind: GidKind,
    /// Index of the associated network interface, or 0.
    pub interface: u32,
}

impl Gid {
    /// Returns the IP address of a RoCE version 2 GID. IPv4 addresses are mapped into IPv6.
    pub fn ip(&self) -> IpAddr {
        std::net::Ipv6Addr::from(self.raw).to_canonical()
    }
}

/// Asynchronous event (`ibv_get_async_event(3)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran. It and its queue pairs are unusable.
    CqError(Handle),
    /// A queue pair entered the error state.
    QpFatal(Handle),
    /// A queue pair received an invalid request.
    QpRequestError(Handle),
    /// A queue pair received a request without the required access.
    QpAccessError(Handle),
    /// The first message arrived before the connection manager's event.
    CommEstablished(Handle),
    /// A shared receive queue failed.
    SrqError(Handle),
    /// A queue pair in the error state has consumed its last buffer of a shared receive queue.
    LastWqeReached(Handle),
    /// A port became active.
    PortActive(u8),
    /// A port is no longer active.
    PortError(u8),
    /// The GID table of a port changed.
    GidChange(u8),
    /// The device failed or is being removed.
    DeviceFatal,
    /// Any other event, by its number.
    Other(u32),
}

/// Counts of packets since a device was opened.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct PacketCounts {
    /// Packets sent again because they may be lost.
    pub repeated: u64,
    /// Received packets that were discarded, by cause.
    pub dropped: Vec<(&'static str, u64)>,
    /// Packets of explicit congestion notification, by kind.
    pub congestion: Vec<(&'static str, u64)>,
}
