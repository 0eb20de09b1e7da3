//! Command-line arguments that describe a network, and the checks between them.

pub mod rdma;

use crate::capture::CaptureArgs;
use crate::cores::CoreList;
use crate::error::Error;
use crate::network::Listen;
use crate::units::{parse_duration, parse_duration_or_none, parse_size};
use linerate_bypass::{MacAddr, Via};
use linerate_stack::congestion::Algorithm;
use linerate_stack::{Config, Idle, IpCidr, VlanId};
use rdma::RdmaArgs;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Network arguments of every command that serves or connects.
#[derive(Debug, Clone, clap::Args)]
pub struct NetArgs {
    /// Network: kernel, rdma:DEVICE, pci:ADDRESS, af_xdp:INTERFACE, tap:INTERFACE, virtio-user:SOCKET,
    /// vhost:SOCKET, memif:SOCKET or memif:SOCKET,server, or eal with EAL's arguments after --
    #[arg(long, value_name = "NET", display_order = 0)]
    pub via: Via,

    /// Number of workers, each pinned to a core; servers take the first cores, loads the last [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "cores", value_parser = at_least_one, help_heading = "Network")]
    pub workers: Option<usize>,

    /// Cores to pin workers to, one each: 2,3,4 or 2-4
    #[arg(long, value_name = "LIST", help_heading = "Network")]
    pub cores: Option<CoreList>,

    /// Threading of services: inline, on the threads of their workers; or split, on a separate thread beside each
    /// worker, so that a computing service does not delay connections
    #[arg(long, value_enum, value_name = "HOW", default_value_t, env = "LINERATE_THREADING", help_heading = "Network")]
    pub threading: ThreadingArg,

    /// Core of the service of each worker with --threading split [default: cores without a worker; if there are too
    /// few, the cores of the workers]
    #[arg(long, value_name = "LIST", help_heading = "Network")]
    pub service_cores: Option<CoreList>,

    /// Behaviour of an idle worker: poll, or backoff (sleep for increasing times) [default: poll]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Network")]
    pub idle: Option<IdleArg>,

    /// Poll sockets without sleeping (--via kernel only)
    #[arg(long, help_heading = "Network")]
    pub spin: bool,

    /// Use the interface even if it carries this host's default route
    #[arg(long, help_heading = "Network")]
    pub force: bool,

    /// Largest IP packet in bytes, if less than the port's maximum
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(576..), help_heading = "Network")]
    pub mtu: Option<u16>,

    /// VLAN ID, from 1 to 4094: sent frames are tagged with it, and received frames without this tag are dropped and
    /// counted
    #[arg(long, value_name = "ID", help_heading = "Network")]
    pub vlan: Option<VlanId>,

    /// Reassemble fragmented IPv4 UDP datagrams; without this, fragments are dropped and counted
    #[arg(long, help_heading = "Network")]
    pub fragments: bool,

    /// Send each frame as one buffer, copied if necessary: for a device that does not support chains although its
    /// driver does, such as QEMU's packed rings
    #[arg(long, help_heading = "Network")]
    pub no_multi_segment: bool,

    /// Local address and prefix, such as 10.0.0.2/24 or fd00::2/64; repeatable
    #[arg(long, value_name = "CIDR", help_heading = "Addresses")]
    pub ip: Vec<IpCidr>,

    /// Local address of outgoing connections; several are used in turn [default: the address on the peer's link]
    #[arg(long, value_name = "ADDR", help_heading = "Addresses")]
    pub from: Vec<IpAddr>,

    /// Default router; once for IPv4, once for IPv6
    #[arg(long, value_name = "ADDR", help_heading = "Addresses")]
    pub gateway: Vec<IpAddr>,

    /// Get an IPv4 address and gateway from a DHCP server
    #[arg(long, help_heading = "Addresses")]
    pub dhcp: bool,

    /// Form IPv6 addresses, and take the default router and MTU, from router advertisements (SLAAC)
    #[arg(long, help_heading = "Addresses")]
    pub slaac: bool,

    /// Use IPv6 addresses at once, without duplicate address detection, which takes a second
    #[arg(long, help_heading = "Addresses")]
    pub no_dad: bool,

    /// Ethernet address [default: the port's own]
    #[arg(long, value_name = "MAC", help_heading = "Addresses")]
    pub mac: Option<MacAddr>,

    /// TCP engine: native sends and receives without copying, smoltcp is the reference (not with --via kernel)
    /// [default: native]
    #[arg(long, value_enum, value_name = "NAME", help_heading = "TCP")]
    pub engine: Option<EngineArg>,

    /// Limit of connections from one source to a worker; a source is an IPv4 address or an IPv6 /64 [default: none]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP")]
    pub max_connections_per_source: Option<usize>,

    /// Limit of half-open connections from one source to a worker; further SYNs are answered with SYN cookies [default:
    /// none]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP")]
    pub max_half_open_per_source: Option<usize>,

    /// Congestion control of the native engine: cubic, newreno or dctcp [default: cubic]
    #[arg(long, value_name = "NAME", help_heading = "TCP")]
    pub congestion: Option<Algorithm>,

    /// Network profile: internet; or datacenter, for short round trips and prompt acknowledgements, where losses are
    /// repaired within milliseconds [default: internet]
    #[arg(long, value_enum, value_name = "NAME", help_heading = "TCP")]
    pub profile: Option<ProfileArg>,

    /// Spread segments over the round trip instead of sending bursts, for paths with short queues
    #[arg(long, help_heading = "TCP")]
    pub pacing: bool,

    /// Negotiate explicit congestion notification (RFC 3168)
    #[arg(long, help_heading = "TCP")]
    pub ecn: bool,

    /// Time limit for a closed connection to deliver queued data before it is reset, such as 2s; 0 resets it at once
    /// [default: none while the peer answers]
    #[arg(long, value_name = "TIME", value_parser = parse_duration_or_none, help_heading = "TCP")]
    pub linger: Option<Duration>,

    /// Reset connections in FIN-WAIT-2 (closed here, not by the peer) that receive no data for this long; 0 disables
    /// the limit [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration_or_none, help_heading = "TCP")]
    pub fin_timeout: Option<Duration>,

    /// Reset connections with data to send whose peer acknowledges no data for this long, even if it answers; 0
    /// disables the limit [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = parse_duration_or_none, help_heading = "TCP")]
    pub stall_timeout: Option<Duration>,

    /// Probe the peer of a connection that has been idle for this long, such as 2h, and reset it after nine probes at
    /// intervals of 75s without an answer; 0 disables probes [default: 5m for servers, 0 for loads]
    #[arg(long, value_name = "TIME", value_parser = parse_duration_or_none, help_heading = "TCP")]
    pub keepalive: Option<Duration>,

    /// Reset connections on which no data moved in either direction for this long, such as 5m (native engine or --via
    /// kernel) [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "TCP")]
    pub idle_timeout: Option<Duration>,

    /// Send and receive buffer of each connection, such as 256k [default: receive 64k, growing to 4m, and send 1m; 256k
    /// with --via kernel; 64k with --engine smoltcp]
    #[arg(long, value_name = "BYTES", value_parser = parse_size, help_heading = "TCP")]
    pub buffer: Option<usize>,

    /// Packets that all connections of a worker may hold [default: seven eighths of its share of the port's packets]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP")]
    pub max_packets: Option<usize>,

    /// Packets that one connection may hold in each direction [default: one for every 256 bytes of its buffer]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP")]
    pub max_packets_per_connection: Option<usize>,

    /// Capture of the port's frames.
    #[command(flatten)]
    pub capture: CaptureArgs,

    /// RDMA options.
    #[command(flatten)]
    pub rdma: RdmaArgs,

    /// Arguments for EAL, after a lone --
    #[arg(last = true, value_name = "EAL ARGS")]
    pub eal: Vec<String>,
}

/// `--engine`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineArg {
    /// Zero-copy TCP of this project.
    #[default]
    Native,
    /// smoltcp's sockets.
    Smoltcp,
}

/// `--threading`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ThreadingArg {
    /// Services run to completion on their workers' threads.
    #[default]
    Inline,
    /// A worker and its service run on a thread each.
    Split,
}

/// `--profile`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ProfileArg {
    /// No assumption about the network.
    #[default]
    Internet,
    /// Short round trips, prompt acknowledgements.
    Datacenter,
}

/// `--idle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum IdleArg {
    /// Keep polling.
    Poll,
    /// Sleep for increasing times.
    Backoff,
}

impl From<IdleArg> for Idle {
    fn from(arg: IdleArg) -> Idle {
        match arg {
            IdleArg::Poll => Idle::Poll,
            IdleArg::Backoff => Idle::Backoff,
        }
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "write a number of at least 1".to_owned())
}

impl NetArgs {
    /// Checks the arguments against each other, before anything is opened.
    pub fn check(&self, listen: &Listen) -> Result<(), Error> {
        if !matches!(self.via, Via::Rdma { .. })
            && let Some(what) = self.rdma.given()
        {
            return Err(Error::OnlyWith { what, with: "--via rdma:DEVICE" });
        }
        if self.threading == ThreadingArg::Inline && self.service_cores.is_some() {
            return Err(Error::OnlyWith { what: "--service-cores", with: "--threading split" });
        }
        let of_stack = [
            ("--ip", !self.ip.is_empty()),
            ("--from", !self.from.is_empty()),
            ("--gateway", !self.gateway.is_empty()),
            ("--dhcp", self.dhcp),
            ("--slaac", self.slaac),
            ("--no-dad", self.no_dad),
            ("--mac", self.mac.is_some()),
            ("--mtu", self.mtu.is_some()),
            ("--vlan", self.vlan.is_some()),
            ("--fragments", self.fragments),
            ("--no-multi-segment", self.no_multi_segment),
            ("--engine", self.engine.is_some()),
            ("--pcap", self.capture.is_given()),
            ("--max-connections-per-source", self.max_connections_per_source.is_some()),
            ("--max-half-open-per-source", self.max_half_open_per_source.is_some()),
            ("EAL's arguments", !self.eal.is_empty()),
        ];
        let of_native = [
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
        ];
        let none = |via, given: &[(&'static str, bool)]| match given.iter().find(|(_, given)| *given) {
            Some((what, _)) => Err(Error::NotWith { what, via }),
            None => Ok(()),
        };
        match self.via {
            Via::Kernel => {
                none("kernel", &of_stack)?;
                none("kernel", &of_native)?;
                none("kernel", &[("--idle", self.idle.is_some())])
            }
            #[cfg(not(feature = "rdma"))]
            Via::Rdma { .. } => Err(Error::NotInThisBuild { via: self.via.clone(), feature: "rdma" }),
            #[cfg(feature = "rdma")]
            Via::Rdma { .. } => {
                none("rdma", &of_stack)?;
                none("rdma", &of_native)?;
                none("rdma", &[("--idle-timeout", self.idle_timeout.is_some())])?;
                none("rdma", &[("--spin", self.spin)])?;
                self.rdma.check()
            }
            _ => {
                if self.spin {
                    return Err(Error::OnlyWith { what: "--spin", with: "--via kernel" });
                }
                if self.engine == Some(EngineArg::Smoltcp) && self.idle_timeout.is_some() {
                    return Err(Error::OnlyWith { what: "--idle-timeout", with: "--engine native" });
                }
                if self.engine == Some(EngineArg::Smoltcp)
                    && let Some((what, _)) = of_native.iter().find(|(_, given)| *given)
                {
                    return Err(Error::OnlyWith { what, with: "--engine native" });
                }
                #[cfg(not(feature = "smoltcp-engine"))]
                if self.engine == Some(EngineArg::Smoltcp) {
                    return Err(Error::NoSmoltcpEngine);
                }
                if self.ip.is_empty() && !self.dhcp && !self.slaac {
                    return Err(Error::NoAddress(self.via.clone()));
                }
                let (addresses, dhcp, slaac) = (self.ip.clone(), self.dhcp, self.slaac);
                let count = Config { addresses, dhcp, slaac, ..Config::default() }.count_addresses();
                if count > Config::MAX_ADDRESSES {
                    return Err(Error::TooManyAddresses { count, most: Config::MAX_ADDRESSES });
                }
                for from in &self.from {
                    if !self.is_local(*from) {
                        return Err(Error::SourceNotLocal { address: *from, own: self.ip.clone() });
                    }
                }
                for family in [IpAddr::is_ipv4, IpAddr::is_ipv6] {
                    if let [_, second, ..] = self.gateway.iter().filter(|ip| family(ip)).collect::<Vec<_>>()[..] {
                        return Err(Error::SecondGateway(*second));
                    }
                }
                listen.tcp.iter().chain(&listen.udp).try_for_each(|address| self.check_listen(*address))
            }
        }
    }

    fn check_listen(&self, address: SocketAddr) -> Result<(), Error> {
        if address.port() == 0 {
            return Err(Error::PortZero(address));
        }
        let local = address.ip().is_unspecified() || self.is_local(address.ip());
        if local { Ok(()) } else { Err(Error::NotLocal { address, own: self.ip.clone() }) }
    }

    /// Returns whether `ip` is or may become a local address.
    fn is_local(&self, ip: IpAddr) -> bool {
        // Addresses from DHCP or router advertisements are not known yet.
        let may_be_given = if ip.is_ipv4() { self.dhcp } else { self.slaac };
        may_be_given || self.ip.iter().any(|own| own.address() == ip)
    }

    /// Returns arguments with only `--via`.
    #[cfg(feature = "rdma")]
    pub fn with_via(via: Via) -> NetArgs {
        NetArgs {
            via,
            ip: Vec::new(),
            from: Vec::new(),
            gateway: Vec::new(),
            dhcp: false,
            slaac: false,
            no_dad: false,
            mac: None,
            mtu: None,
            vlan: None,
            fragments: false,
            no_multi_segment: false,
            workers: None,
            cores: None,
            threading: ThreadingArg::default(),
            service_cores: None,
            idle: None,
            spin: false,
            force: false,
            engine: None,
            max_connections_per_source: None,
            max_half_open_per_source: None,
            congestion: None,
            profile: None,
            pacing: false,
            ecn: false,
            linger: None,
            fin_timeout: None,
            stall_timeout: None,
            keepalive: None,
            idle_timeout: None,
            buffer: None,
            max_packets: None,
            max_packets_per_connection: None,
            capture: CaptureArgs::default(),
            rdma: RdmaArgs::default(),
            eal: Vec::new(),
        }
    }

    /// Returns the arguments for a client of up to `connections` connections: an RDMA device registers memory for no
    /// more.
    pub fn for_client(&self, connections: u32) -> NetArgs {
        let mut args = self.clone();
        if matches!(args.via, Via::Rdma { .. }) {
            args.rdma.rdma_connections.get_or_insert(connections);
        }
        args
    }

    /// Checks that connecting to `remote` is possible.
    pub fn check_remote(&self, remote: SocketAddr) -> Result<(), Error> {
        if remote.port() == 0 {
            return Err(Error::PortZero(remote));
        }
        if remote.ip().is_unspecified() || remote.ip().is_multicast() {
            return Err(Error::NotAHost(remote));
        }
        let same_family = |own: &IpCidr| own.address().is_ipv4() == remote.is_ipv4();
        if matches!(self.via, Via::Kernel | Via::Rdma { .. })
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
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        net: NetArgs,
    }

    fn args(text: &str) -> NetArgs {
        Cli::try_parse_from(std::iter::once("linerate").chain(text.split_whitespace())).unwrap().net
    }

    fn check(text: &str, listen: &[&str]) -> String {
        let tcp = listen.iter().map(|address| address.parse().unwrap()).collect();
        args(text).check(&Listen { tcp, udp: Vec::new() }).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn consistent_arguments_are_accepted() {
        assert_eq!(check("--via kernel --spin --workers 2", &["127.0.0.1:0"]), "");
        let stack = "--via tap:lr0 --ip 10.0.0.2/24 --ip fd00::2/64 --gateway 10.0.0.1 --gateway fd00::1 -- -l 1";
        assert_eq!(check(stack, &["10.0.0.2:7", "[fd00::2]:7", "0.0.0.0:8", "[::]:8"]), "");
        assert_eq!(args(stack).eal, ["-l", "1"]);
        let several = "--via tap:lr0 --ip 10.0.0.2/24 --ip 10.0.0.3/24 --from 10.0.0.3 --from 10.0.0.2";
        assert_eq!(check(several, &["10.0.0.2:7", "10.0.0.3:7"]), "");
        assert_eq!(check("--via tap:lr0 --dhcp", &["10.0.0.2:7"]), "");
        assert_eq!(check("--via tap:lr0 --slaac", &["[2001:db8::2]:7", "[::]:8"]), "");
        assert_eq!(check("--via tap:lr0 --slaac --dhcp --ip 10.0.0.2/24 --ip fd00::2/64", &["[::]:8"]), "");
        for text in ["--via kernel", "--via tap:lr0 --ip 10.0.0.2/24 --fin-timeout 0"] {
            assert_eq!(check(&format!("{text} --idle-timeout 5m"), &["10.0.0.2:7"]), "");
        }
        for (text, time) in [("0", Duration::ZERO), ("2s", Duration::from_secs(2))] {
            let lingering = format!("--via tap:lr0 --ip 10.0.0.2/24 --linger {text}");
            assert_eq!(check(&lingering, &["10.0.0.2:7"]), "");
            assert_eq!(args(&lingering).linger, Some(time));
        }
    }

    #[test]
    fn inconsistent_arguments_are_refused_with_the_remedy() {
        for (text, listen, part) in [
            ("--via kernel --ip 10.0.0.2/24", "10.0.0.2:7", "--ip has no effect with --via kernel: leave it out"),
            ("--via kernel -- --no-huge", "10.0.0.2:7", "EAL's arguments"),
            ("--via tap:lr0", "10.0.0.2:7", "give --ip"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --spin", "10.0.0.2:7", "--spin"),
            ("--via tap:lr0 --ip 10.0.0.2/24", "10.0.0.3:7", "10.0.0.3:7: not a local address"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --dhcp", "[fd00::3]:7", "not a local address"),
            ("--via tap:lr0 --ip 10.0.0.2/24", "10.0.0.2:0", "port"),
            ("--via tap:lr0 --dhcp --gateway 10.0.0.1 --gateway 10.0.0.9", "10.0.0.2:7", "10.0.0.9"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --engine smoltcp --ecn", "10.0.0.2:7", "--ecn"),
            (
                "--via kernel --threading inline --service-cores 1",
                "10.0.0.2:7",
                "--service-cores has an effect only with --threading split",
            ),
            ("--via kernel --engine native", "10.0.0.2:7", "--engine"),
            ("--via kernel --no-multi-segment", "10.0.0.2:7", "--no-multi-segment"),
            ("--via kernel --vlan 5", "10.0.0.2:7", "--vlan has no effect with --via kernel"),
            ("--via kernel --max-connections-per-source 5", "10.0.0.2:7", "--max-connections-per-source has no effect"),
            ("--via kernel --from 10.0.0.2", "10.0.0.2:7", "--from has no effect with --via kernel"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --from 10.0.0.3", "10.0.0.2:7", "--from 10.0.0.3: not a local address"),
            (
                "--via tap:lr0 --ip 10.0.0.2/24 --ip 10.0.0.3/24 --ip 10.0.0.4/24 --ip 10.0.0.5/24 --ip 10.0.0.6/24 --ip 10.0.0.7/24 \
                 --ip 10.0.0.8/24 --ip fd00::2/64",
                "10.0.0.2:7",
                "--ip: 9 addresses",
            ),
            ("--via kernel --slaac", "10.0.0.2:7", "--slaac has no effect with --via kernel"),
            ("--via tap:lr0 --slaac", "10.0.0.2:7", "10.0.0.2:7: not a local address"),
            (
                "--via tap:lr0 --slaac --dhcp --ip 10.0.0.2/24 --ip fd00::2/64 --ip fd00::3/64",
                "10.0.0.2:7",
                "--ip: 9 addresses",
            ),
            ("--via kernel --no-dad", "10.0.0.2:7", "--no-dad has no effect with --via kernel"),
            ("--via kernel --fragments", "10.0.0.2:7", "--fragments has no effect with --via kernel"),
            ("--via kernel --pacing", "10.0.0.2:7", "--pacing"),
            ("--via kernel --linger 2s", "10.0.0.2:7", "--linger"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --engine smoltcp --linger 0", "10.0.0.2:7", "--linger"),
            ("--via kernel --fin-timeout 5s", "10.0.0.2:7", "--fin-timeout has no effect with --via kernel"),
            ("--via kernel --stall-timeout 5s", "10.0.0.2:7", "--stall-timeout has no effect with --via kernel"),
            ("--via kernel --keepalive 5s", "10.0.0.2:7", "--keepalive has no effect with --via kernel"),
            (
                "--via rdma:rxe0 --idle-timeout 5s",
                "10.0.0.2:7",
                if cfg!(feature = "rdma") { "--idle-timeout" } else { "" },
            ),
            (
                "--via tap:lr0 --ip 10.0.0.2/24 --engine smoltcp --idle-timeout 5s",
                "10.0.0.2:7",
                "--idle-timeout has an effect only with --engine native",
            ),
            ("--via kernel --max-packets 100", "10.0.0.2:7", "--max-packets"),
            ("--via kernel --idle poll", "10.0.0.2:7", "--idle"),
            ("--via kernel --srq 64", "10.0.0.2:7", "--srq has an effect only with --via rdma:DEVICE: leave it out"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --rdma-inline 0", "10.0.0.2:7", "--rdma-inline"),
            (
                "--via tap:lr0 --ip 10.0.0.2/24 --engine smoltcp --max-packets-per-connection 100",
                "10.0.0.2:7",
                "native",
            ),
        ] {
            let error = check(text, &[listen]);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn peer_needs_a_local_address_of_its_family() {
        let remote = |text: &str| text.parse().unwrap();
        let net = args("--via tap:lr0 --ip 10.0.0.2/24");
        assert!(net.check_remote(remote("192.0.2.1:7")).is_ok());
        for text in ["[fd00::1]:7", "10.0.0.1:0", "0.0.0.0:7", "224.0.0.1:7"] {
            assert!(net.check_remote(remote(text)).is_err(), "{text}");
        }
        let net = args("--via tap:lr0 --slaac");
        assert!(net.check_remote(remote("[fd00::1]:7")).is_ok() && net.check_remote(remote("10.0.0.1:7")).is_err());
    }
}
