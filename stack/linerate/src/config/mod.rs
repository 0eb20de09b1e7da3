//! Configuration of a network, and the checks between its fields.

mod port_range;
mod rdma;
#[cfg(feature = "serde")]
mod text;

pub use port_range::{InvalidPortRange, PortRange};
pub use rdma::{RdmaConfig, RdmaConnect, RdmaMode, RendezvousMin};

use crate::capture::CaptureConfig;
use crate::cores::CoreList;
use crate::error::Error;
use linerate_bypass::{MacAddr, Via};
use linerate_service::ConnId;
use linerate_stack::congestion::Algorithm;
use linerate_stack::{Config, Idle, IpCidr, VlanId};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
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
/// An option that is `None` has the default of the network that [`via`](Self::via) names. Errors name options as the
/// command line does. With the feature `serde`, fields have the names of this type in kebab case, and values are those
/// of the command line: `"10.0.0.2/24"`, `"500ms"`, `"64k"`.
#[derive(Debug, Default, Clone)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default, rename_all = "kebab-case", deny_unknown_fields)
)]
#[non_exhaustive]
pub struct NetConfig {
    /// Network to open.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::value"))]
    pub via: Via,
    /// Number of workers, each pinned to a core; 1 if `None`. Has no effect with `cores`.
    pub workers: Option<usize>,
    /// Cores of the workers. `None` places them by [`CorePlacement`](crate::CorePlacement).
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::option"))]
    pub cores: Option<CoreList>,
    /// Threads that services run on.
    pub threading: ThreadingMode,
    /// Core of the service of each worker with [`ThreadingMode::Split`]. `None` selects cores without a worker or, if
    /// there are too few, those of the workers.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::option"))]
    pub service_cores: Option<CoreList>,
    /// Behaviour of an idle worker; polling if `None`. Not for kernel sockets.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::idle"))]
    pub idle: Option<Idle>,
    /// Polls kernel sockets without sleeping.
    pub spin: bool,
    /// Uses an interface that carries the default route of this host.
    pub force: bool,
    /// Largest IP packet in bytes, at least [`MIN_MTU`]; the port's maximum if `None`.
    pub mtu: Option<u16>,
    /// VLAN of all frames.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::option"))]
    pub vlan: Option<VlanId>,
    /// Reassembles fragmented IPv4 UDP datagrams.
    pub fragments: bool,
    /// Sends each frame as one buffer, copied if necessary.
    pub single_segment: bool,
    /// Local addresses with their prefixes. If empty, a shared interface has the addresses of the kernel.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::list"))]
    pub ip: Vec<IpCidr>,
    /// Local addresses of outgoing connections, used in turn. If empty, the address on the peer's link.
    pub from: Vec<IpAddr>,
    /// Local ports of outgoing connections. If `None`, all from 1024 on; on a shared interface with the kernel's
    /// addresses, 61000 to 65535 if the network does not listen, and otherwise none. There, they must be outside of the
    /// kernel's own range (`net.ipv4.ip_local_port_range`).
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::option"))]
    pub outgoing_ports: Option<PortRange>,
    /// Default routers, at most one of each family.
    pub gateway: Vec<IpAddr>,
    /// Gets an IPv4 address and router from a DHCP server.
    pub dhcp: bool,
    /// Forms IPv6 addresses, and takes the router and MTU, from router advertisements.
    pub slaac: bool,
    /// Uses IPv6 addresses without duplicate address detection.
    pub skip_dad: bool,
    /// Ethernet address; the port's own if `None`.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::option"))]
    pub mac: Option<MacAddr>,
    /// TCP engine of the stack; the native one if `None`.
    pub engine: Option<TcpEngine>,
    /// Maximum connections of a worker, at 256 bytes each while idle; 131 072 if `None`.
    pub max_connections: Option<usize>,
    /// Limit of connections from one source to a worker; unlimited if `None`.
    pub max_connections_per_source: Option<usize>,
    /// Limit of half-open connections from one source to a worker; unlimited if `None`.
    pub max_half_open_per_source: Option<usize>,
    /// Send and receive buffer of each connection in bytes.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::size"))]
    pub buffer: Option<usize>,
    /// Time without data in either direction after which a connection is reset; unlimited if `None`. Native engine and
    /// kernel sockets only.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::duration"))]
    pub idle_timeout: Option<Duration>,
    /// Options of the native TCP engine.
    pub native: NativeTcpConfig,
    /// Capture of the port's frames.
    pub capture: Option<CaptureConfig>,
    /// Options of RDMA devices.
    pub rdma: RdmaConfig,
    /// Arguments for EAL.
    pub eal: Vec<String>,
    /// Bytes that will be requested from [`Network::arena`](crate::Network::arena). DPDK ports take them into account
    /// when they choose their memory.
    pub arena: usize,
}

/// Smallest MTU that can be configured, in bytes: every IPv4 host accepts datagrams of this size (RFC 791).
pub const MIN_MTU: u16 = 576;

/// Options of the native TCP engine.
#[derive(Debug, Default, Clone)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default, rename_all = "kebab-case", deny_unknown_fields)
)]
#[non_exhaustive]
pub struct NativeTcpConfig {
    /// Congestion control; CUBIC if `None`.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::option"))]
    pub congestion: Option<Algorithm>,
    /// Network profile; [`Profile::Internet`] if `None`.
    pub profile: Option<Profile>,
    /// Spreads segments over the round trip.
    pub pacing: bool,
    /// Negotiates explicit congestion notification (RFC 3168).
    pub ecn: bool,
    /// Time limit for a closed connection to deliver queued data. Zero resets it at once; `None` sets no limit while
    /// the peer answers.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::duration"))]
    pub linger: Option<Duration>,
    /// Time limit without data in FIN-WAIT-2. Zero disables it; 60 seconds if `None`.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::duration"))]
    pub fin_timeout: Option<Duration>,
    /// Time limit for data to be acknowledged. Zero disables it; 5 minutes if `None`.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::duration"))]
    pub stall_timeout: Option<Duration>,
    /// Idle time before keepalive probes. Zero disables them; if `None`, 5 minutes for networks that listen, and no
    /// probes for others.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::duration"))]
    pub keepalive: Option<Duration>,
    /// Packets that all connections of a worker may hold; 14 336 if `None`, or fewer if packets are long. The pool of
    /// the port is sized for them.
    pub max_packets: Option<usize>,
    /// Packets that one connection may hold in each direction; one for every 256 bytes of its buffer if `None`.
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

/// Returns the first option that is given.
fn first_given(options: &[(&'static str, bool)]) -> Option<&'static str> {
    options.iter().find(|(_, given)| *given).map(|(option, _)| *option)
}

/// Returns an error for the first value outside of its range.
fn check_ranges(values: &[(&'static str, Option<u64>, RangeInclusive<u64>)]) -> Result<(), Error> {
    for (option, value, range) in values {
        if let Some(value) = value.filter(|value| !range.contains(value)) {
            return Err(Error::OutOfRange { option, value, least: *range.start(), most: *range.end() });
        }
    }
    Ok(())
}

/// Refuses an interface that reaches no other host.
pub(crate) fn check_interface(via: &Via) -> Result<(), Error> {
    match via {
        Via::AfXdp { interface, .. } if interface == "lo" => Err(Error::LoopbackInterface(via.clone())),
        _ => Ok(()),
    }
}

/// Returns the number of bits of `ip`.
fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// Returns the reason why `own` is not the address of a host on a link, if it is not.
fn host_fault(own: &IpCidr) -> Option<&'static str> {
    match own.address() {
        ip if ip.is_loopback() => Some("a loopback address, which only kernel sockets reach"),
        IpAddr::V4(ip) if matches!(ip.octets()[0], 0 | 224..) => Some("a reserved address"),
        // RFC 3021: a prefix of 31 or 32 bits has neither.
        IpAddr::V4(ip) if own.prefix() < 31 => {
            let mask = u32::MAX >> own.prefix();
            match ip.to_bits() & mask {
                0 => Some("the address of the network itself"),
                host if host == mask => Some("the broadcast address of the network"),
                _ => None,
            }
        }
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => Some("an IPv4-mapped address"),
        _ => None,
    }
}

/// Default number of packets that the connections of a worker may hold, unless packets are long: seven eighths of the
/// worker's share of the port's pool.
pub(crate) const DEFAULT_PACKETS: usize = 14_336;

impl NativeTcpConfig {
    /// Returns the name of the first option that is given.
    fn given(&self) -> Option<&'static str> {
        first_given(&[
            ("--congestion", self.congestion.is_some()),
            ("--profile", self.profile.is_some()),
            ("--pacing", self.pacing),
            ("--ecn", self.ecn),
            ("--linger", self.linger.is_some()),
            ("--fin-timeout", self.fin_timeout.is_some()),
            ("--stall-timeout", self.stall_timeout.is_some()),
            ("--keepalive", self.keepalive.is_some()),
            ("--max-packets", self.max_packets.is_some()),
            ("--max-packets-per-connection", self.max_packets_per_connection.is_some()),
        ])
    }
}

impl NetConfig {
    /// Returns the name of the first given option that applies to the stack with either engine.
    fn stack_given(&self) -> Option<&'static str> {
        first_given(&[
            ("--ip", !self.ip.is_empty()),
            ("--from", !self.from.is_empty()),
            ("--outgoing-ports", self.outgoing_ports.is_some()),
            ("--gateway", !self.gateway.is_empty()),
            ("--dhcp", self.dhcp),
            ("--slaac", self.slaac),
            ("--no-dad", self.skip_dad),
            ("--mac", self.mac.is_some()),
            ("--mtu", self.mtu.is_some()),
            ("--vlan", self.vlan.is_some()),
            ("--fragments", self.fragments),
            ("--no-multi-segment", self.single_segment),
            ("--engine", self.engine.is_some()),
            ("--pcap", self.capture.is_some()),
            ("--max-connections", self.max_connections.is_some()),
            ("--max-connections-per-source", self.max_connections_per_source.is_some()),
            ("--max-half-open-per-source", self.max_half_open_per_source.is_some()),
            ("EAL's arguments", !self.eal.is_empty()),
        ])
    }

    fn check_ranges(&self) -> Result<(), Error> {
        let count = |count: Option<usize>| (count.map(|count| count as u64), 1..=u64::MAX);
        let counts = [
            ("--workers", self.workers),
            ("--max-connections-per-source", self.max_connections_per_source),
            ("--max-half-open-per-source", self.max_half_open_per_source),
            ("--buffer", self.buffer),
            ("--max-packets", self.native.max_packets),
            ("--max-packets-per-connection", self.native.max_packets_per_connection),
        ];
        for (option, value) in counts {
            let (value, range) = count(value);
            check_ranges(&[(option, value, range)])?;
        }
        check_ranges(&[
            ("--mtu", self.mtu.map(u64::from), MIN_MTU.into()..=u16::MAX.into()),
            ("--max-connections", self.max_connections.map(|n| n as u64), 1..=ConnId::MAX_SLOTS as u64),
        ])
    }

    /// Checks the fields against each other, before anything is opened.
    pub fn check(&self, listen: &Listen) -> Result<(), Error> {
        self.check_ranges()?;
        if !matches!(self.via, Via::Rdma { .. })
            && let Some(option) = self.rdma.given()
        {
            return Err(Error::OnlyWith { option, with: "--via rdma:DEVICE" });
        }
        if self.threading == ThreadingMode::Inline && self.service_cores.is_some() {
            return Err(Error::OnlyWith { option: "--service-cores", with: "--threading split" });
        }
        let refuse =
            |via, given: Option<&'static str>| given.map_or(Ok(()), |option| Err(Error::NotWith { option, via }));
        match self.via {
            Via::Kernel => {
                let idle = self.idle.map(|_| "--idle");
                refuse("kernel", self.stack_given().or(self.native.given()).or(idle))
            }
            #[cfg(not(feature = "rdma"))]
            Via::Rdma { .. } => Err(Error::NotInThisBuild { via: self.via.clone(), feature: "rdma" }),
            #[cfg(feature = "rdma")]
            Via::Rdma { .. } => {
                let others = [("--idle-timeout", self.idle_timeout.is_some()), ("--spin", self.spin)];
                refuse("rdma", self.stack_given().or(self.native.given()).or(first_given(&others)))?;
                if !listen.by_worker.is_empty() {
                    return Err(Error::NotWith { option: "a port for each worker", via: "rdma" });
                }
                self.rdma.check()
            }
            _ => self.check_stack(listen),
        }
    }

    /// Checks the fields of a network that the stack runs on.
    fn check_stack(&self, listen: &Listen) -> Result<(), Error> {
        check_interface(&self.via)?;
        if self.spin {
            return Err(Error::OnlyWith { option: "--spin", with: "--via kernel" });
        }
        if let Via::AfXdp { shared: true, .. } = self.via {
            let given = first_given(&[
                // The kernel receives DHCP replies and router advertisements.
                ("--dhcp", self.dhcp),
                ("--slaac", self.slaac),
                // The kernel receives frames with tags.
                ("--vlan", self.vlan.is_some()),
            ]);
            // Routes, verified addresses and fragments are the kernel's, too.
            let with_kernel_addresses = first_given(&[
                ("--gateway", !self.gateway.is_empty()),
                ("--no-dad", self.skip_dad),
                ("--fragments", self.fragments),
            ]);
            let given = given.or(with_kernel_addresses.filter(|_| self.uses_kernel_addresses()));
            if let Some(option) = given {
                return Err(Error::NotWith { option, via: "af_xdp:INTERFACE,share" });
            }
        }
        if self.engine == Some(TcpEngine::Smoltcp) {
            let idle_timeout = self.idle_timeout.map(|_| "--idle-timeout");
            if let Some(option) = idle_timeout.or(self.native.given()) {
                return Err(Error::OnlyWith { option, with: "--engine native" });
            }
            #[cfg(not(feature = "smoltcp-engine"))]
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
            return Err(Error::Loopback { option: "--listen", address, instead });
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
            Via::Rdma { .. } => None,
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
            Via::Rdma { .. } => {
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
            return Err(Error::Loopback { option: "--connect", address: remote, instead });
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
