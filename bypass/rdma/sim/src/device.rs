//! Simulated devices: configuration and attributes.

use super::completion::Waker;
use super::fabric::{Fabric, Mode};
use super::faults::CallFault;
use super::world::{World, errno};
use linerate_rdma_provider::{
    AsyncEvent, AtomicCap, DeviceLimits, Gid, GidKind, Handle, LinkLayer, Mtu, Port, PortState, QpCap, TransportKind,
};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::RawFd;

/// Configuration of a simulated device.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// Address of its only port.
    pub address: IpAddr,
    /// Limits.
    pub limits: DeviceLimits,
    /// Maximum inline size in bytes.
    pub inline: u32,
    /// Maximum message size in bytes.
    pub message: u32,
    /// MTU.
    pub mtu: Mtu,
    /// Completions of a destroyed or reset queue pair can still be polled. Drivers of hardware remove them; others
    /// keep them.
    pub keeps_completions: bool,
    /// A failing queue pair holds a shared buffer for a message in progress. The buffer is flushed before the
    /// last-WQE-reached event. If the queue pair is destroyed or reset before, the buffer is lost without a
    /// completion and its place is free.
    pub holds_shared: bool,
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
            limits,
            inline: 256,
            message: 1 << 30,
            mtu: Mtu::Mtu1024,
            keeps_completions: false,
            holds_shared: false,
            reports_last_wqe: true,
        }
    }

    /// Returns the configuration of an iWARP device: no windows, no atomic operations, one element per READ.
    pub fn iwarp(address: IpAddr) -> Self {
        let mut config = DeviceConfig::roce(address);
        config.limits.transport = TransportKind::Iwarp;
        config.limits.mws = 0;
        config.limits.mw_type_2 = false;
        config.limits.read_sges = 1;
        config.limits.atomics = AtomicCap::None;
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

/// State of a device.
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
    pub is_port_up: bool,
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
            is_port_up: true,
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

    /// Returns true if its packets are carried.
    pub fn carries(&self) -> bool {
        self.is_port_up && self.health == Health::Well
    }

    /// Returns a key index that was never used before, so that stale keys are detected.
    pub fn new_index(&mut self, handle: Handle) -> u32 {
        self.next_index += 1;
        self.keys.insert(self.next_index, handle);
        self.next_index
    }

    pub fn gid(&self) -> [u8; 16] {
        raw_gid(self.config.address)
    }

    fn link_local(&self) -> [u8; 16] {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, self.node).octets()
    }

    /// Returns true if the device owns the GID.
    pub fn has_gid(&self, raw: [u8; 16]) -> bool {
        raw == self.gid() || raw == self.link_local()
    }

    /// Returns the GID table, as Linux fills it for RoCE: each address in both versions.
    pub fn gids(&self) -> Vec<Gid> {
        let link_local = self.link_local();
        let kinds: &[_] = if self.is_iwarp() { &[GidKind::InfiniBand] } else { &[GidKind::RoceV1, GidKind::RoceV2] };
        let raws: &[_] = if self.is_iwarp() { &[link_local] } else { &[link_local, self.gid()] };
        let all = raws.iter().flat_map(|&raw| kinds.iter().map(move |&kind| (raw, kind)));
        all.enumerate()
            .map(|(index, (raw, kind))| Gid { port: 1, index: index as u8, raw, kind, interface: 1 })
            .collect()
    }

    pub fn port(&self, port: u8) -> io::Result<Port> {
        if port != 1 {
            return Err(errno(libc::EINVAL));
        }
        Ok(Port {
            state: if self.is_port_up { PortState::Active } else { PortState::Down },
            max_mtu: self.config.mtu,
            mtu: self.config.mtu,
            message: self.config.message,
            lid: 0,
            link: LinkLayer::Ethernet,
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
