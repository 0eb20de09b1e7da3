//! Simulated devices: configuration and attributes.

use super::completion::Waker;
use super::fabric::{Fabric, Mode};
use super::faults::CallFault;
use super::world::{World, errno};
use linerate_rdma_provider::{
    AsyncEvent, AtomicCap, DeviceLimits, Gid, GidKind, Handle, LinkLayer, Mtu, Port, PortState, QpCap, TransportKind,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::RawFd;

/// Configuration of a simulated device.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// Address of port 1.
    pub address: IpAddr,
    /// Addresses of further ports, from port 2 on.
    pub more_addresses: Vec<IpAddr>,
    /// Link layer of all ports. Over InfiniBand, ports have LIDs, their GIDs are no IP addresses, and the addresses
    /// above belong to IPoIB interfaces.
    pub link: LinkLayer,
    pub limits: DeviceLimits,
    /// Maximum inline size in bytes.
    pub inline: u32,
    /// Maximum message size in bytes.
    pub message: u32,
    pub mtu: Mtu,
    /// Completions of a destroyed or reset queue pair can still be polled. Drivers of hardware remove them; Soft-RoCE
    /// keeps them.
    pub keeps_completions: bool,
    /// A failing queue pair holds a shared buffer for a message in progress. The buffer is flushed before the
    /// last-WQE-reached event. If the queue pair is destroyed or reset before, the buffer is lost without a completion
    /// and its slot is free.
    pub holds_shared: bool,
    /// Announced type 2 memory windows can be allocated. Some drivers announce windows but lack the call.
    pub allocates_windows: bool,
    /// The driver has thread domains and parent domains.
    pub thread_domains: bool,
    /// The number of a destroyed queue pair is used again at once, last in, first out.
    pub recycles_numbers: bool,
    /// A failing device flushes the requests of its queue pairs. Removed hardware does not.
    pub flushes_on_fatal: bool,
    /// A reset queue pair keeps its posted buffers as empty ones, as with Soft-RoCE.
    pub keeps_reset_buffers: bool,
    /// Number of completion vectors.
    pub comp_vectors: u32,
    /// Steps until the device sees a posted buffer. A message that arrives before is answered by receiver-not-ready.
    pub post_delay: u64,
    /// A failed queue pair generates the last-WQE-reached event. Soft-RoCE does since Linux 6.5.
    pub reports_last_wqe: bool,
}

impl DeviceConfig {
    /// Returns the configuration of a RoCE device.
    pub fn roce(address: IpAddr) -> Self {
        let limits = DeviceLimits {
            transport: TransportKind::InfiniBand,
            firmware: "1.0".into(),
            vendor: 0,
            part: 0,
            ports: 1,
            mr_bytes: 1 << 40,
            mrs: 4096,
            mws: 4096,
            mw_type_2: true,
            pds: 256,
            qps: 4096,
            qp_wrs: 4096,
            sges: 16,
            read_sges: 16,
            cqs: 1024,
            cqes: 65_536,
            srqs: 64,
            srq_wrs: 16_384,
            srq_sges: 16,
            responder_resources: 16,
            initiator_depth: 16,
            atomics: AtomicCap::Device,
        };
        DeviceConfig {
            address,
            more_addresses: Vec::new(),
            link: LinkLayer::Ethernet,
            limits,
            inline: 256,
            message: 1 << 30,
            mtu: Mtu::Mtu1024,
            keeps_completions: false,
            holds_shared: false,
            allocates_windows: true,
            thread_domains: true,
            recycles_numbers: false,
            flushes_on_fatal: true,
            keeps_reset_buffers: false,
            comp_vectors: 4,
            post_delay: 0,
            reports_last_wqe: true,
        }
    }

    pub fn with_port(mut self, address: IpAddr) -> Self {
        self.more_addresses.push(address);
        self.limits.ports += 1;
        self
    }

    /// Returns the configuration of an InfiniBand device, whose port has an IPoIB interface with this address.
    pub fn infiniband(address: IpAddr) -> Self {
        DeviceConfig { link: LinkLayer::InfiniBand, ..DeviceConfig::roce(address) }
    }

    /// Returns the configuration of an iWARP device: no windows, no atomic operations, one element per READ.
    pub fn iwarp(address: IpAddr) -> Self {
        let mut config = DeviceConfig::roce(address);
        config.limits.transport = TransportKind::Iwarp;
        config.limits.mws = 0;
        config.limits.mw_type_2 = false;
        config.limits.read_sges = 1;
        config.limits.atomics = AtomicCap::None;
        config.thread_domains = false;
        config
    }
}

/// Simulated device, opened by one simulated process.
pub struct SimDevice {
    pub(super) fabric: Fabric,
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) async_fd: RawFd,
}

impl std::fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({:?})", self.name)
    }
}

impl SimDevice {
    /// Performs a call. With [`Mode::Auto`], all pending events occur before and after it.
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.fabric.world();
        if world.config.mode == Mode::Stepped {
            return call(&mut world);
        }
        world.now += 1;
        world.settle();
        let result = call(&mut world);
        world.settle();
        result
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Well,
    /// Failed: objects can be destroyed, and completions polled.
    Fatal,
    /// The process is gone with all its objects.
    Vanished,
}

pub(super) struct Device {
    pub config: DeviceConfig,
    pub health: Health,
    /// Ethernet address.
    pub mac: u32,
    /// Ports that carry no packets.
    pub down: BTreeSet<u8>,
    /// Numbers of destroyed queue pairs, to be used again.
    pub free_numbers: Vec<u32>,
    pub events: Waker<AsyncEvent>,
    /// Regions and windows by the upper 24 bits of their keys.
    pub keys: BTreeMap<u32, Handle>,
    pub next_index: u32,
    /// Suffix of its link-local address.
    pub node: u16,
    pub call_faults: Vec<CallFault>,
    /// Addresses resolve to another device of the process.
    pub is_elsewhere: bool,
}

impl Device {
    pub fn new(config: DeviceConfig, next_index: u32) -> Self {
        Device {
            config,
            health: Health::Well,
            mac: 0,
            down: BTreeSet::new(),
            free_numbers: Vec::new(),
            events: Waker::new(),
            keys: BTreeMap::new(),
            next_index,
            node: next_index as u16 | 1,
            call_faults: Vec::new(),
            is_elsewhere: false,
        }
    }

    pub fn is_iwarp(&self) -> bool {
        self.config.limits.transport == TransportKind::Iwarp
    }

    pub fn carries(&self, port: u8) -> bool {
        !self.down.contains(&port) && self.health == Health::Well
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        std::iter::once(self.config.address).chain(self.config.more_addresses.iter().copied())
    }

    pub fn address(&self, port: u8) -> IpAddr {
        self.addresses().nth(usize::from(port) - 1).unwrap_or(self.config.address)
    }

    pub fn set_address(&mut self, port: u8, address: IpAddr) {
        match port {
            1 => self.config.address = address,
            _ => self.config.more_addresses[usize::from(port) - 2] = address,
        }
    }

    pub fn port_of(&self, address: IpAddr) -> Option<u8> {
        Some(self.addresses().position(|own| own == address)? as u8 + 1)
    }

    /// Returns the port that reaches an address: the port in the same /24, or port 1.
    pub fn port_to(&self, remote: IpAddr) -> u8 {
        let is_near = |own: IpAddr| raw_gid(own)[..15] == raw_gid(remote)[..15];
        self.addresses().position(is_near).map_or(1, |index| index as u8 + 1)
    }

    pub fn has_port(&self, port: u8) -> bool {
        (1..=self.config.limits.ports).contains(&port)
    }

    /// Returns a key index that was never used before, so that stale keys are detected.
    pub fn new_index(&mut self, handle: Handle) -> u32 {
        self.next_index += 1;
        self.keys.insert(self.next_index, handle);
        self.next_index
    }

    /// Returns the GID that connections of a port use.
    pub fn gid(&self, port: u8) -> [u8; 16] {
        if self.is_infiniband() { self.link_local(port) } else { raw_gid(self.address(port)) }
    }

    fn is_infiniband(&self) -> bool {
        self.config.link == LinkLayer::InfiniBand
    }

    fn link_local(&self, port: u8) -> [u8; 16] {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, u16::from(port) - 1, self.node).octets()
    }

    pub fn has_gid(&self, port: u8, raw: [u8; 16]) -> bool {
        raw == self.gid(port) || raw == self.link_local(port)
    }

    /// Returns the GID table of a port, as Linux fills it: for RoCE, each address in both versions.
    pub fn gids(&self, port: u8) -> Vec<Gid> {
        let link_local = self.link_local(port);
        let is_roce = !self.is_iwarp() && !self.is_infiniband();
        let kinds: &[_] = if is_roce { &[GidKind::RoceV1, GidKind::RoceV2] } else { &[GidKind::InfiniBand] };
        let raws: &[_] = if is_roce { &[link_local, self.gid(port)] } else { &[link_local] };
        let all = raws.iter().flat_map(|&raw| kinds.iter().map(move |&kind| (raw, kind)));
        all.enumerate()
            .map(|(index, (raw, kind))| Gid { port, index: index as u8, raw, kind, interface: port.into() })
            .collect()
    }

    pub fn port(&self, port: u8) -> io::Result<Port> {
        if !self.has_port(port) {
            return Err(errno(libc::EINVAL));
        }
        Ok(Port {
            state: if self.down.contains(&port) { PortState::Down } else { PortState::Active },
            max_mtu: self.config.mtu,
            mtu: self.config.mtu,
            message: self.config.message,
            lid: if self.is_infiniband() { self.node & 0x3fff | u16::from(port) << 14 } else { 0 },
            link: self.config.link,
            speed: Some(100_000_000_000),
        })
    }

    /// Returns the capacities granted for `requested`, or `EINVAL` above the limits. With a shared receive queue, the
    /// queue pair has no receive queue.
    pub fn grant(&self, requested: &QpCap, is_shared: bool) -> io::Result<QpCap> {
        let limits = &self.config.limits;
        let granted = if is_shared { QpCap { receives: 0, recv_sges: 0, ..*requested } } else { *requested };
        let fits = granted.sends.max(granted.receives) <= limits.qp_wrs
            && granted.send_sges.max(granted.recv_sges) <= limits.sges
            && granted.inline <= self.config.inline;
        if fits { Ok(granted) } else { Err(errno(libc::EINVAL)) }
    }
}

/// Returns the RoCE GID of an address: IPv4 is mapped into IPv6.
pub(super) fn raw_gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
