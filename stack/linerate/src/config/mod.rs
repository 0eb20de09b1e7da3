//! Configuration of a network, and the checks between its fields.

mod checks;
mod port_range;
mod rdma;
#[cfg(feature = "serde")]
mod text;

pub(crate) use checks::check_interface;
pub use port_range::{InvalidPortRange, PortRange};
pub use rdma::{RdmaConfig, RdmaConnect, RdmaMode, RendezvousMin};

use crate::capture::CaptureConfig;
#[cfg(feature = "clap")]
use crate::cli::{at_least_one, idle, ranged};
use crate::cores::CoreList;
use crate::error::Error;
#[cfg(feature = "clap")]
use crate::units::{parse_duration, parse_duration_or_none, parse_size};
use checks::{bits, check_ranges, first_given, host_fault};
use linerate_bypass::{MacAddr, Via};
use linerate_service::ConnId;
use linerate_stack::congestion::Algorithm;
use linerate_stack::{Config, Idle, IpCidr, VlanId};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Listening addresses.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Listen {
    /// TCP addresses.
    pub tcp: Vec<SocketAddr>,
    /// UDP addresses.
    pub udp: Vec<SocketAddr>,
    /// TCP addresses of the first worker. Each further worker listens on the next port, and each worker accepts the
    /// connections to its own port. Not for RDMA devices.
    pub by_worker: Vec<SocketAddr>,
}

impl Listen {
    /// Returns all TCP addresses of `workers` workers.
    pub fn all_tcp(&self, workers: usize) -> Result<Vec<SocketAddr>, Error> {
        let mut all = self.tcp.clone();
        for first in &self.by_worker {
            for worker in 0..workers {
                let port = u16::try_from(usize::from(first.port()) + worker).ok().filter(|_| first.port() > 0);
                let port = port.ok_or(Error::PortOfWorker { first: *first, worker })?;
                all.push(SocketAddr::new(first.ip(), port));
            }
        }
        Ok(all)
    }
}

/// Configuration of a network. The default is one worker on kernel sockets.
///
/// An option that is `None` has the default of the network that [`via`](Self::via) names. The documentation
/// of a field is the text of its option of the command `linerate`. With the feature `serde`, fields have the names of
/// this type in kebab case, and values are those of the command line: `"10.0.0.2/24"`, `"500ms"`, `"64k"`.
#[derive(Debug, Default, Clone)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default, rename_all = "kebab-case", deny_unknown_fields)
)]
#[allow(rustdoc::broken_intra_doc_links, reason = "defaults are in brackets, as on the command line")]
#[non_exhaustive]
pub struct NetConfig {
    /// Network: kernel, rdma:DEVICE, pci:ADDRESS, af_xdp:INTERFACE or, with the interface shared with the kernel,
    /// af_xdp:INTERFACE,share, tap:INTERFACE, virtio-user:SOCKET, vhost:SOCKET, memif:SOCKET or memif:SOCKET,server,
    /// roce: and one of these, or eal with EAL's arguments after --
    #[cfg_attr(feature = "clap", arg(long, value_name = "NET", default_value_t, display_order = 0))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::value"))]
    pub via: Via,
    /// Number of workers, each pinned to a core, preferably of the device's NUMA node; servers take the first cores,
    /// loads the last [default: 1]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "N", conflicts_with = "cores", value_parser = at_least_one, help_heading = "Network")
    )]
    pub workers: Option<usize>,
    /// Cores to pin workers to, one each: 2,3,4 or 2-4
    #[cfg_attr(feature = "clap", arg(long, value_name = "LIST", help_heading = "Network"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::option"))]
    pub cores: Option<CoreList>,
    /// Threading of services: inline, on the threads of their workers; or split, on a separate thread next to each
    /// worker, so that a computing service does not delay connections
    #[cfg_attr(
        feature = "clap",
        arg(
            long,
            value_enum,
            value_name = "HOW",
            default_value_t,
            env = "LINERATE_THREADING",
            help_heading = "Network"
        )
    )]
    pub threading: ThreadingMode,
    /// Core of the service of each worker with --threading split [default: cores without a worker; if there are too
    /// few, the cores of the workers]
    #[cfg_attr(feature = "clap", arg(long, value_name = "LIST", help_heading = "Network"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::option"))]
    pub service_cores: Option<CoreList>,
    /// Behaviour of an idle worker: poll, or wait (sleep until a packet arrives) [default: poll]
    #[cfg_attr(feature = "clap", arg(long, value_name = "HOW", value_parser = idle(), help_heading = "Network"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::idle"))]
    pub idle: Option<Idle>,
    /// Poll sockets without sleeping (--via kernel only)
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Network"))]
    pub spin: bool,
    /// Use the interface even if it carries this host's default route
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Network"))]
    pub force: bool,
    /// Largest IP packet in bytes, if less than the port's maximum
    #[cfg_attr(feature = "clap", arg(long, value_name = "BYTES", value_parser = ranged::<u16>(i64::from(MIN_MTU)..), help_heading = "Network"))]
    pub mtu: Option<u16>,
    /// VLAN ID, from 1 to 4094: sent frames are tagged with it, and received frames without this tag are dropped and
    /// counted
    #[cfg_attr(feature = "clap", arg(long, value_name = "ID", help_heading = "Network"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::option"))]
    pub vlan: Option<VlanId>,
    /// Reassemble fragmented IPv4 UDP datagrams; without this, fragments are dropped and counted
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Network"))]
    pub fragments: bool,
    /// Send each frame as one buffer, copied if necessary: for a device that does not support chains although its
    /// driver does, such as QEMU's packed rings
    #[cfg_attr(feature = "clap", arg(id = "no-multi-segment", long, help_heading = "Network"))]
    pub single_segment: bool,
    /// Local address and prefix, such as 10.0.0.2/24 or fd00::2/64; repeatable; without it, an interface that is shared
    /// with the kernel has the addresses of the kernel
    #[cfg_attr(feature = "clap", arg(long, value_name = "CIDR", help_heading = "Addresses"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::list"))]
    pub ip: Vec<IpCidr>,
    /// Local address of outgoing connections; several are used in turn [default: the address on the peer's link]
    #[cfg_attr(feature = "clap", arg(long, value_name = "ADDR", help_heading = "Addresses"))]
    pub from: Vec<IpAddr>,
    /// Local ports of outgoing connections; with the kernel's addresses, outside the kernel's range of local ports
    /// [default: 1024-65535; with the kernel's addresses 61000-65535 for a load, and none for a server]
    #[cfg_attr(feature = "clap", arg(long, value_name = "FIRST-LAST", help_heading = "Addresses"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::option"))]
    pub outgoing_ports: Option<PortRange>,
    /// Default router; once for IPv4, once for IPv6
    #[cfg_attr(feature = "clap", arg(long, value_name = "ADDR", help_heading = "Addresses"))]
    pub gateway: Vec<IpAddr>,
    /// Get an IPv4 address and gateway from a DHCP server
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Addresses"))]
    pub dhcp: bool,
    /// Form IPv6 addresses, and take the default router and MTU, from router advertisements (SLAAC)
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Addresses"))]
    pub slaac: bool,
    /// Use IPv6 addresses at once, without duplicate address detection, which takes a second
    #[cfg_attr(feature = "clap", arg(id = "no-dad", long, help_heading = "Addresses"))]
    pub skip_dad: bool,
    /// Ethernet address [default: the port's own]
    #[cfg_attr(feature = "clap", arg(long, value_name = "MAC", help_heading = "Addresses"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::option"))]
    pub mac: Option<MacAddr>,
    /// TCP engine: native sends and receives without copying, smoltcp is the reference (not with --via kernel)
    /// [default: native]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME", help_heading = "TCP"))]
    pub engine: Option<TcpEngine>,
    /// Maximum number of connections of a worker, at 256 bytes each while idle; a SYN beyond it is dropped [default:
    /// 131072, and more for a load with more connections]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP"))]
    pub max_connections: Option<usize>,
    /// Limit of connections from one source to a worker; a source is an IPv4 address or an IPv6 /64 [default: none]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP"))]
    pub max_connections_per_source: Option<usize>,
    /// Limit of half-open connections from one source to a worker; further SYNs are answered with SYN cookies [default:
    /// none]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP"))]
    pub max_half_open_per_source: Option<usize>,
    /// Reset connections on which no data moved in either direction for this long, such as 5m (native engine or --via
    /// kernel) [default: never]
    #[cfg_attr(feature = "clap", arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "TCP"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::duration"))]
    pub idle_timeout: Option<Duration>,
    /// Send and receive buffer of each connection, such as 256k [default: receive 64k, growing to 4m, and send 1m; 256k
    /// with --via kernel; 64k with --engine smoltcp]
    #[cfg_attr(feature = "clap", arg(long, value_name = "BYTES", value_parser = parse_size, help_heading = "TCP"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::size"))]
    pub buffer: Option<usize>,
    /// Options of the native TCP engine.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub native: NativeTcpConfig,
    /// Capture of the port's frames.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub capture: Option<CaptureConfig>,
    /// Options of RDMA devices.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub rdma: RdmaConfig,
    /// Arguments for EAL, after a lone --
    #[cfg_attr(feature = "clap", arg(last = true, value_name = "EAL ARGS"))]
    pub eal: Vec<String>,
    /// Bytes that will be requested from [`Network::arena`](crate::Network::arena). DPDK ports take them into account
    /// when they choose their memory.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub arena: usize,
}

/// Smallest MTU that can be configured, in bytes: every IPv4 host accepts datagrams of this size (RFC 791).
pub const MIN_MTU: u16 = 576;

/// Options of the native TCP engine.
#[derive(Debug, Default, Clone)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default, rename_all = "kebab-case", deny_unknown_fields)
)]
#[allow(rustdoc::broken_intra_doc_links, reason = "defaults are in brackets, as on the command line")]
#[non_exhaustive]
pub struct NativeTcpConfig {
    /// Congestion control of the native engine: cubic, newreno or dctcp [default: cubic]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME", help_heading = "TCP"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::option"))]
    pub congestion: Option<Algorithm>,
    /// Network profile: internet; or datacenter, for short round trips and prompt acknowledgements, where losses are
    /// repaired within milliseconds [default: internet]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME", help_heading = "TCP"))]
    pub profile: Option<Profile>,
    /// Spread segments over the round trip instead of sending bursts, for paths with short queues
    #[cfg_attr(feature = "clap", arg(long, help_heading = "TCP"))]
    pub pacing: bool,
    /// Negotiate explicit congestion notification (RFC 3168); with --via roce, control the rate by DCQCN
    #[cfg_attr(feature = "clap", arg(long, help_heading = "TCP"))]
    pub ecn: bool,
    /// Time limit for a closed connection to deliver queued data before it is reset, such as 2s; 0 resets it at once
    /// [default: none while the peer answers]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = parse_duration_or_none, help_heading = "TCP")
    )]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::duration"))]
    pub linger: Option<Duration>,
    /// Reset connections in FIN-WAIT-2 (closed here, not by the peer) that receive no data for this long; 0 disables
    /// the limit [default: 60s]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = parse_duration_or_none, help_heading = "TCP")
    )]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::duration"))]
    pub fin_timeout: Option<Duration>,
    /// Reset connections with data to send whose peer acknowledges no data for this long, even if it answers; 0
    /// disables the limit [default: 5m]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = parse_duration_or_none, help_heading = "TCP")
    )]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::duration"))]
    pub stall_timeout: Option<Duration>,
    /// Probe the peer of a connection that has been idle for this long, such as 2h, and reset it after nine probes at
    /// intervals of 75s without an answer; 0 disables probes [default: 5m for servers, 0 for loads]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "TIME", value_parser = parse_duration_or_none, help_heading = "TCP")
    )]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::duration"))]
    pub keepalive: Option<Duration>,
    /// Packets that all connections of a worker may hold: two for each connection with a request in flight, at 2.3 KB
    /// of hugepages each [default: 14336, and more for a load with many connections]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP"))]
    pub max_packets: Option<usize>,
    /// Packets that one connection may hold in each direction [default: one for every 256 bytes of its buffer]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP"))]
    pub max_packets_per_connection: Option<usize>,
}

/// TCP engine (`--engine`).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum TcpEngine {
    /// Zero-copy TCP of this project.
    #[default]
    Native,
    /// smoltcp's sockets.
    Smoltcp,
}

/// Threads of workers and services (`--threading`).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum ThreadingMode {
    /// Services run to completion on their workers' threads.
    #[default]
    Inline,
    /// A worker and its service run on a thread each.
    Split,
}

/// Network profile (`--profile`).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Profile {
    /// No assumption about the network.
    #[default]
    Internet,
    /// Short round trips, prompt acknowledgements.
    Datacenter,
}

/// Default number of packets that the connections of a worker may hold, unless packets are long: seven eighths of the
/// worker's share of the port's pool.
pub(crate) const DEFAULT_PACKETS: usize = 14_336;

impl NativeTcpConfig {
    /// Returns the name of the first setting that is given.
    fn given(&self) -> Option<&'static str> {
        first_given!(
            self, "native.";
            congestion profile pacing ecn linger fin_timeout stall_timeout keepalive max_packets
            max_packets_per_connection
        )
    }
}

impl NetConfig {
    /// Returns the name of the first given setting that applies to the stack with either engine.
    fn stack_given(&self) -> Option<&'static str> {
        first_given!(
            self, "";
            ip from outgoing_ports gateway dhcp slaac skip_dad mac mtu vlan fragments single_segment engine capture
            max_connections max_connections_per_source max_half_open_per_source eal
        )
    }

    fn check_ranges(&self) -> Result<(), Error> {
        let count = |count: Option<usize>| (count.map(|count| count as u64), 1..=u64::MAX);
        let counts = [
            ("workers", self.workers),
            ("max_connections_per_source", self.max_connections_per_source),
            ("max_half_open_per_source", self.max_half_open_per_source),
            ("buffer", self.buffer),
            ("native.max_packets", self.native.max_packets),
            ("native.max_packets_per_connection", self.native.max_packets_per_connection),
        ];
        for (setting, value) in counts {
            let (value, range) = count(value);
            check_ranges(&[(setting, value, range)])?;
        }
        check_ranges(&[
            ("mtu", self.mtu.map(u64::from), MIN_MTU.into()..=u16::MAX.into()),
            ("max_connections", self.max_connections.map(|n| n as u64), 1..=ConnId::MAX_SLOTS as u64),
        ])
    }

    /// Checks the fields against each other, before anything is opened.
    pub fn check(&self, listen: &Listen) -> Result<(), Error> {
        self.check_ranges()?;
        if !self.via.is_rdma()
            && let Some(setting) = self.rdma.given()
        {
            return Err(Error::OnlyWith { setting, with: "`via` rdma:DEVICE or roce:NETWORK" });
        }
        if self.threading == ThreadingMode::Inline && self.service_cores.is_some() {
            return Err(Error::OnlyWith { setting: "service_cores", with: "`threading` split" });
        }
        let refuse =
            |via, given: Option<&'static str>| given.map_or(Ok(()), |setting| Err(Error::NotWith { setting, via }));
        match self.via {
            Via::Kernel => {
                refuse("kernel", self.stack_given().or(self.native.given()).or(first_given!(self, ""; idle)))
            }
            #[cfg(not(feature = "rdma"))]
            Via::Rdma { .. } | Via::Roce { .. } => {
                Err(Error::NotInThisBuild { via: self.via.clone(), feature: "rdma" })
            }
            #[cfg(feature = "rdma")]
            Via::Rdma { .. } => {
                let others = first_given!(self, ""; idle_timeout spin);
                refuse("rdma", self.stack_given().or(self.native.given()).or(others))?;
                if !listen.by_worker.is_empty() {
                    return Err(Error::NotWith { setting: "listen.by_worker", via: "rdma" });
                }
                self.rdma.check()
            }
            #[cfg(feature = "rdma")]
            Via::Roce { ref port } => {
                let others = first_given!(self, ""; idle_timeout spin dhcp slaac);
                let native = NativeTcpConfig { ecn: false, ..self.native.clone() };
                refuse("roce", native.given().or(others))?;
                if self.ip.is_empty() {
                    return Err(Error::RoceNeedsAddress);
                }
                let workers = self.worker_count();
                if workers > 1 {
                    return Err(Error::RoceWorkers { workers });
                }
                if !listen.by_worker.is_empty() {
                    return Err(Error::NotWith { setting: "listen.by_worker", via: "roce" });
                }
                self.rdma.check()?;
                NetConfig { via: (**port).clone(), ..self.clone() }.check_stack(listen)
            }
            _ => self.check_stack(listen),
        }
    }

    /// Checks the fields of a network that the stack runs on.
    fn check_stack(&self, listen: &Listen) -> Result<(), Error> {
        check_interface(&self.via)?;
        if self.spin {
            return Err(Error::OnlyWith { setting: "spin", with: "`via` kernel" });
        }
        if let Via::AfXdp { shared: true, .. } = self.via {
            // The kernel receives DHCP replies, router advertisements and frames with tags.
            let given = first_given!(self, ""; dhcp slaac vlan);
            // Routes, verified addresses and fragments are the kernel's, too.
            let with_kernel_addresses = first_given!(self, ""; gateway skip_dad fragments);
            let given = given.or(with_kernel_addresses.filter(|_| self.uses_kernel_addresses()));
            if let Some(setting) = given {
                return Err(Error::NotWith { setting, via: "af_xdp:INTERFACE,share" });
            }
        }
        let is_smoltcp = self.engine == Some(TcpEngine::Smoltcp);
        if is_smoltcp && let Some(setting) = first_given!(self, ""; idle_timeout).or(self.native.given()) {
            return Err(Error::OnlyWith { setting, with: "`engine` native" });
        }
        if is_smoltcp && !cfg!(feature = "smoltcp-engine") {
            return Err(Error::NoSmoltcpEngine);
        }
        if self.ip.is_empty() && !self.dhcp && !self.slaac && !self.uses_kernel_addresses() {
            return Err(Error::NoAddress(self.via.clone()));
        }
        let (addresses, dhcp, slaac) = (self.ip.clone(), self.dhcp, self.slaac);
        let count = Config { addresses, dhcp, slaac, ..Config::default() }.count_addresses();
        if count > Config::MAX_ADDRESSES {
            return Err(Error::TooManyAddresses { count, most: Config::MAX_ADDRESSES });
        }
        if let Some(from) = self.from.iter().find(|from| !self.is_local(**from)) {
            return Err(Error::SourceNotLocal { address: *from, own: self.ip.clone() });
        }
        for family in [IpAddr::is_ipv4, IpAddr::is_ipv6] {
            if let Some(second) = self.gateway.iter().filter(|ip| family(ip)).nth(1) {
                return Err(Error::SecondGateway(*second));
            }
        }
        self.check_addresses()?;
        listen
            .tcp
            .iter()
            .chain(&listen.by_worker)
            .chain(&listen.udp)
            .try_for_each(|address| self.check_listen(*address))
    }

    /// Checks that the local addresses and the gateways are those of hosts, and that the gateways are on the link.
    fn check_addresses(&self) -> Result<(), Error> {
        if let Some((own, reason)) = self.ip.iter().find_map(|own| Some((*own, host_fault(own)?))) {
            return Err(Error::NotAHostAddress { own, reason });
        }
        for gateway in &self.gateway {
            let own = || self.ip.iter().filter(|own| own.address().is_ipv4() == gateway.is_ipv4());
            let may_be_given = if gateway.is_ipv4() { self.dhcp } else { self.slaac };
            let link_local = matches!(gateway, IpAddr::V6(ip) if ip.is_unicast_link_local());
            // A host with a prefix of one address has its router outside of the prefix.
            let reaches = |own: &IpCidr| link_local || own.contains(*gateway) || own.prefix() == bits(*gateway);
            let prefix = own().find(|own| own.contains(*gateway)).map_or(bits(*gateway), IpCidr::prefix);
            let reason = match IpCidr::new(*gateway, prefix) {
                Err(_) => Some("not a unicast address"),
                Ok(cidr) => host_fault(&cidr),
            };
            if let Some(reason) = reason {
                return Err(Error::NotARouter { gateway: *gateway, reason });
            }
            if own().any(|own| own.address() == *gateway) {
                return Err(Error::NotARouter { gateway: *gateway, reason: "an address of this host" });
            }
            if !may_be_given && !own().any(reaches) {
                return Err(Error::GatewayNotOnLink { gateway: *gateway, own: self.ip.clone() });
            }
        }
        Ok(())
    }

    fn check_listen(&self, address: SocketAddr) -> Result<(), Error> {
        if address.port() == 0 {
            return Err(Error::PortZero(address));
        }
        if address.ip().is_loopback() {
            let own = self.ip.iter().map(|own| SocketAddr::new(own.address(), address.port()).to_string());
            let instead = own.into_iter().next().unwrap_or_else(|| "ADDRESS:PORT".to_owned());
            return Err(Error::Loopback { setting: "listen", address, instead });
        }
        let local = address.ip().is_unspecified() || self.is_local(address.ip());
        if local { Ok(()) } else { Err(Error::NotLocal { address, own: self.ip.clone() }) }
    }

    /// Returns whether `ip` is or may become a local address.
    fn is_local(&self, ip: IpAddr) -> bool {
        // Addresses from the kernel, DHCP or router advertisements are not known yet.
        let may_be_given = self.uses_kernel_addresses() || if ip.is_ipv4() { self.dhcp } else { self.slaac };
        may_be_given || self.ip.iter().any(|own| own.address() == ip)
    }

    /// Returns the local ports of outgoing connections; `None` for RDMA, or if the range of the kernel cannot be read.
    pub fn local_ports(&self) -> Option<PortRange> {
        match self.via {
            Via::Rdma { .. } | Via::Roce { .. } => None,
            Via::Kernel => PortRange::of_kernel(),
            _ if self.uses_kernel_addresses() => Some(self.outgoing_ports.unwrap_or(PortRange::SHARED)),
            _ => Some(self.outgoing_ports.unwrap_or(PortRange::STACK)),
        }
    }

    /// Returns whether the network uses the kernel's addresses of an interface that is shared with the kernel.
    pub fn uses_kernel_addresses(&self) -> bool {
        matches!(self.via, Via::AfXdp { shared: true, .. }) && self.ip.is_empty()
    }

    /// Returns the configuration of a client with up to `connections` connections. Options that are not given are sized
    /// for this number: the memory that an RDMA device registers, the connection limit of a worker, and the packets of
    /// a port, for a request on each connection.
    pub fn for_client(&self, connections: u32) -> NetConfig {
        let mut config = self.clone();
        match config.via {
            Via::Rdma { .. } | Via::Roce { .. } => {
                config.rdma.connections.get_or_insert(connections);
            }
            Via::Kernel => {}
            _ => {
                let of_worker = (connections as usize).div_ceil(config.workers.unwrap_or(1).max(1));
                if of_worker > Config::MAX_CONNECTIONS {
                    config.max_connections.get_or_insert(of_worker);
                }
                // Two packets per connection: packets run low when four sevenths of the limit are held, and requests
                // hold half.
                let held = of_worker.saturating_mul(2);
                if held > DEFAULT_PACKETS && config.engine.unwrap_or_default() == TcpEngine::Native {
                    config.native.max_packets.get_or_insert(held);
                }
            }
        }
        config
    }

    /// Checks that connecting to `remote` is possible.
    pub fn check_remote(&self, remote: SocketAddr) -> Result<(), Error> {
        if remote.port() == 0 {
            return Err(Error::PortZero(remote));
        }
        if remote.ip().is_unspecified() || remote.ip().is_multicast() {
            return Err(Error::NotAHost(remote));
        }
        let has_loopback = self.via.has_loopback();
        if remote.ip().is_loopback() && !has_loopback {
            let instead = "ADDRESS:PORT of the server".to_owned();
            return Err(Error::Loopback { setting: "connect", address: remote, instead });
        }
        let same_family = |own: &IpCidr| own.address().is_ipv4() == remote.is_ipv4();
        if has_loopback
            || self.uses_kernel_addresses()
            || if remote.is_ipv4() { self.dhcp } else { self.slaac }
            || self.ip.iter().any(same_family)
        {
            Ok(())
        } else {
            Err(Error::NoAddressFor(remote))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_may_hold_two_packets_for_each_connection() {
        let link = NetConfig { via: "virtio-user:/s".parse().unwrap(), ..NetConfig::default() };
        let max_packets = |config: &NetConfig, connections| config.for_client(connections).native.max_packets;
        assert_eq!(max_packets(&link, 7_168), None, "the default suffices");
        assert_eq!(max_packets(&link, 10_000), Some(20_000));
        assert_eq!(max_packets(&NetConfig { workers: Some(2), ..link.clone() }, 60_001), Some(60_002), "per worker");
        assert_eq!(max_packets(&NetConfig { engine: Some(TcpEngine::Smoltcp), ..link.clone() }, 60_000), None);
        assert_eq!(max_packets(&NetConfig::default(), 60_000), None);
        let given = NativeTcpConfig { max_packets: Some(100), ..NativeTcpConfig::default() };
        assert_eq!(max_packets(&NetConfig { native: given, ..link }, 60_000), Some(100));
    }

    #[test]
    fn worker_of_a_client_keeps_its_connections() {
        let link = NetConfig { via: "virtio-user:/s".parse().unwrap(), ..NetConfig::default() };
        let most = |config: &NetConfig, connections| config.for_client(connections).max_connections;
        assert_eq!(most(&link, 131_072), None, "the default suffices");
        assert_eq!(most(&link, 1_000_000), Some(1_000_000));
        assert_eq!(most(&NetConfig { workers: Some(3), ..link.clone() }, 1_000_000), Some(333_334), "per worker");
        assert_eq!(most(&NetConfig { engine: Some(TcpEngine::Smoltcp), ..link.clone() }, 200_000), Some(200_000));
        assert_eq!(most(&NetConfig::default(), 1_000_000), None);
        assert_eq!(most(&NetConfig { max_connections: Some(100), ..link }, 1_000_000), Some(100));
    }
}
