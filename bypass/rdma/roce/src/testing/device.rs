//! Devices of a fabric: configuration, attributes, and the state that the engine does not have.

use super::call::{self, Call, CallFault};
use super::{Fabric, Live, Node};
use crate::Device;
use crate::counters::Counters;
use crate::table::{errno, require};
use crate::waker::Waker;
use linerate_rdma_provider::{
    AhAttr, AsyncEvent, AtomicCap, DeviceLimits, Gid, GidKind, Handle, LinkLayer, Mtu, Port, PortState, RecvWr, Sge,
    TransportKind, WcStatus,
};
use linerate_service::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::RawFd;
use std::sync::Arc;

/// Configuration of a device.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// Address of port 1.
    pub address: IpAddr,
    /// Addresses of further ports, from port 2 on.
    pub more_addresses: Vec<IpAddr>,
    /// Link layer of all ports. Over InfiniBand, ports have LIDs, their GIDs are no IP addresses, and the addresses
    /// above belong to IPoIB interfaces.
    pub link: LinkLayer,
    /// Attributes.
    pub limits: DeviceLimits,
    /// Maximum inline size in bytes.
    pub inline: u32,
    /// Path MTU.
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
    /// Time until the device sees a posted buffer. A message that arrives before is answered by receiver-not-ready.
    pub post_delay: Duration,
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
            mtu: Mtu::Mtu1024,
            keeps_completions: false,
            holds_shared: false,
            allocates_windows: true,
            thread_domains: true,
            recycles_numbers: false,
            flushes_on_fatal: true,
            keeps_reset_buffers: false,
            comp_vectors: 4,
            post_delay: Duration::ZERO,
            reports_last_wqe: true,
        }
    }

    /// Adds a port.
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

    fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        std::iter::once(self.address).chain(self.more_addresses.iter().copied())
    }

    /// Returns the addresses with their prefix lengths.
    pub(super) fn prefixes(&self) -> Vec<(IpAddr, u8)> {
        self.addresses().map(|address| (address, 24)).collect()
    }

    pub(super) fn is_iwarp(&self) -> bool {
        self.limits.transport == TransportKind::Iwarp
    }
}

/// Device of a [`Fabric`], opened by one process.
pub struct SimDevice {
    pub(super) fabric: Fabric,
    pub(super) index: usize,
    pub(super) device: Arc<Device<Node>>,
    pub(super) async_fd: RawFd,
}

impl std::fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimDevice({})", self.index)
    }
}

impl SimDevice {
    /// Enables explicit congestion notification.
    pub fn enable_ecn(&self) {
        self.device.driver().engine.enable_ecn();
    }

    /// Returns the statistics of the engine.
    pub fn counters(&self) -> Counters {
        self.device.driver().engine.counters()
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

/// Queue pair, as its driver knows it.
#[derive(Default)]
pub(super) struct SimQp {
    pub number: u32,
    /// Position in the order of creation.
    pub nth: usize,
    /// Port and P_Key index, from INIT on.
    pub port: u8,
    pub partition: u16,
    /// Traffic class and service level.
    pub classes: (u8, u8),
    /// Slots of the send queue.
    pub sends: usize,
    /// Requests that occupy slots, with their signalled flags.
    pub posted: VecDeque<(u64, bool)>,
    /// Requests to fail: the number of successful ones before, and the status.
    pub faults: Vec<(u64, WcStatus)>,
    /// Event of the peer that has caused a scheduled failure.
    pub peer_event: Option<fn(Handle) -> AsyncEvent>,
    /// Identifier of an iWARP connection, and whether it was requested by the peer.
    pub iwarp: Option<(Handle, bool)>,
}

/// Posted buffer that the device does not see yet.
pub(super) struct LateBuffer {
    due: Instant,
    pub is_shared: bool,
    pub queue: Handle,
    id: u64,
    sges: Vec<Sge>,
}

/// Device, with the state that its engine does not have.
pub(super) struct Site {
    pub config: DeviceConfig,
    pub device: Arc<Device<Node>>,
    pub health: Health,
    /// Ports that carry no packets.
    pub down: BTreeSet<u8>,
    pub events: Waker<AsyncEvent>,
    pub call_faults: Vec<CallFault>,
    /// Queue pairs, and classes of address handles, by handle.
    pub qps: BTreeMap<usize, SimQp>,
    pub classes: BTreeMap<usize, (u8, u8)>,
    /// Completion vectors of completion queues.
    pub vectors: Vec<(Handle, u32)>,
    pub late: VecDeque<LateBuffer>,
    /// Time of the next turn of the engine, after the last call or packet.
    pub next_turn: Option<Instant>,
    /// Suffix of its link-local address.
    node: u16,
}

impl Site {
    pub fn new(config: DeviceConfig, device: Arc<Device<Node>>, index: usize) -> Self {
        Site {
            config,
            device,
            health: Health::Well,
            down: BTreeSet::new(),
            events: Waker::new().expect("an eventfd"),
            call_faults: Vec::new(),
            qps: BTreeMap::new(),
            classes: BTreeMap::new(),
            vectors: Vec::new(),
            late: VecDeque::new(),
            next_turn: None,
            node: index as u16 + 1,
        }
    }

    /// Checks the state of the device, and scheduled failures, at the start of a call.
    pub fn enter(&mut self, call: Call) -> io::Result<()> {
        require(self.health == Health::Well, libc::EIO)?;
        call::check(&mut self.call_faults, call)
    }

    /// Returns whether packets from and to a local address are carried.
    pub fn carries(&self, address: IpAddr) -> bool {
        self.health == Health::Well && self.port_of(address).is_some_and(|port| !self.down.contains(&port))
    }

    pub fn add_live(&self, live: &mut Live) {
        if self.health != Health::Vanished {
            self.device.driver().engine.add_live(live);
        }
    }

    /// Returns the time from which on a turn of the device has an effect.
    pub fn next_turn(&self) -> Option<Instant> {
        let late = self.late.front().map(|late| late.due);
        let next = [late, self.next_turn].into_iter().flatten().min();
        next.filter(|_| self.health == Health::Well)
    }

    /// Keeps a buffer until the device sees it.
    pub fn delay(&mut self, is_shared: bool, queue: Handle, request: &RecvWr<'_>, now: Instant) {
        let due = now + self.config.post_delay;
        self.late.push_back(LateBuffer { due, is_shared, queue, id: request.id, sges: request.sges.to_vec() });
    }

    /// Posts the buffers that the device sees by now. Those of destroyed queues are lost.
    pub fn post_late(&mut self, now: Instant) {
        let count = self.late.iter().take_while(|late| late.due <= now).count();
        for LateBuffer { is_shared, queue, id, sges, .. } in self.late.drain(..count) {
            let engine = &mut self.device.driver().engine;
            let requests = [RecvWr { id, sges: &sges }];
            _ = if is_shared { engine.post_srq_recv(queue, &requests) } else { engine.post_recv(queue, &requests) };
        }
    }

    fn address(&self, port: u8) -> IpAddr {
        self.config.addresses().nth(usize::from(port) - 1).unwrap_or(self.config.address)
    }

    pub fn set_address(&mut self, port: u8, address: IpAddr) {
        match port {
            1 => self.config.address = address,
            _ => self.config.more_addresses[usize::from(port) - 2] = address,
        }
    }

    pub fn port_of(&self, address: IpAddr) -> Option<u8> {
        Some(self.config.addresses().position(|own| own == address)? as u8 + 1)
    }

    pub fn check_port(&self, port: u8) -> io::Result<()> {
        require((1..=self.config.limits.ports).contains(&port), libc::EINVAL)
    }

    fn is_infiniband(&self) -> bool {
        self.config.link == LinkLayer::InfiniBand
    }

    /// Returns the GID that connections of a port use.
    pub fn gid(&self, port: u8) -> [u8; 16] {
        if self.is_infiniband() { self.link_local(port) } else { raw_gid(self.address(port)) }
    }

    fn link_local(&self, port: u8) -> [u8; 16] {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, u16::from(port) - 1, self.node).octets()
    }

    /// Returns the address of the port that has a link-local GID.
    pub fn address_of(&self, gid: [u8; 16]) -> Option<[u8; 16]> {
        let port = (1..=self.config.limits.ports).find(|&port| self.link_local(port) == gid)?;
        Some(raw_gid(self.address(port)))
    }

    /// Returns the GID table of a port, as Linux fills it: for RoCE, each address in both versions.
    pub fn gids(&self, port: u8) -> io::Result<Vec<Gid>> {
        self.check_port(port)?;
        let link_local = self.link_local(port);
        let is_roce = !self.config.is_iwarp() && !self.is_infiniband();
        let kinds: &[_] = if is_roce { &[GidKind::RoceV1, GidKind::RoceV2] } else { &[GidKind::InfiniBand] };
        let raws: &[_] = if is_roce { &[link_local, self.gid(port)] } else { &[link_local] };
        let all = raws.iter().flat_map(|&raw| kinds.iter().map(move |&kind| (raw, kind)));
        let gids = all.enumerate().map(|(index, (raw, kind))| {
            let index = index as u8;
            Gid { port, index, raw, kind, interface: port.into() }
        });
        Ok(gids.collect())
    }

    pub fn port(&self, port: u8) -> io::Result<Port> {
        self.check_port(port)?;
        Ok(Port {
            state: if self.down.contains(&port) { PortState::Down } else { PortState::Active },
            max_mtu: self.config.mtu,
            mtu: self.config.mtu,
            message: 1 << 30,
            lid: if self.is_infiniband() { self.node & 0x3fff | u16::from(port) << 14 } else { 0 },
            link: self.config.link,
            speed: Some(100_000_000_000),
        })
    }

    /// Returns an address vector as the engine has it: all addresses are those of its only port.
    pub fn to_engine(&self, path: &AhAttr) -> io::Result<AhAttr> {
        let gids = self.gids(path.port)?;
        gids.get(usize::from(path.source)).ok_or_else(|| errno(libc::EINVAL))?;
        Ok(AhAttr { source: path.port - 1, port: 1, ..*path })
    }
}

/// Returns the RoCE GID of an address: IPv4 is mapped into IPv6.
fn raw_gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
