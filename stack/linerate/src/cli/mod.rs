//! Command-line arguments from which [`NetConfig`] and [`FramePortConfig`] are parsed.

mod rdma;

use crate::capture::CaptureConfig;
use crate::config::{MIN_MTU, NativeTcpConfig, NetConfig, PortRange, Profile, TcpEngine, ThreadingMode};
use crate::cores::CoreList;
use crate::raw::FramePortConfig;
use crate::units::{parse_bytes, parse_duration, parse_duration_or_none, parse_size};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use linerate_bypass::{MacAddr, Via};
use linerate_stack::congestion::Algorithm;
use linerate_stack::{Idle, IpCidr, VlanId};
use rdma::RdmaArgs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Implements [`Args`] for a configuration through a type of arguments that converts to it.
macro_rules! parse_as {
    ($config:ty, $args:ty) => {
        impl FromArgMatches for $config {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
                <$args>::from_arg_matches(matches).map(Into::into)
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }

        impl Args for $config {
            fn augment_args(command: Command) -> Command {
                <$args>::augment_args(command)
            }

            fn augment_args_for_update(command: Command) -> Command {
                <$args>::augment_args_for_update(command)
            }
        }
    };
}

parse_as!(NetConfig, NetArgs);
parse_as!(FramePortConfig, PortArgs);

/// Network arguments of every command that serves or connects.
#[derive(Debug, clap::Args)]
struct NetArgs {
    /// Network: kernel, rdma:DEVICE, pci:ADDRESS, af_xdp:INTERFACE or, with the interface shared with the kernel,
    /// af_xdp:INTERFACE,share, tap:INTERFACE, virtio-user:SOCKET, vhost:SOCKET, memif:SOCKET or memif:SOCKET,server, or
    /// eal with EAL's arguments after --
    #[arg(long, value_name = "NET", default_value_t, display_order = 0)]
    via: Via,

    /// Number of workers, each pinned to a core, preferably of the device's NUMA node; servers take the first cores,
    /// loads the last [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "cores", value_parser = at_least_one, help_heading = "Network")]
    workers: Option<usize>,

    /// Cores to pin workers to, one each: 2,3,4 or 2-4
    #[arg(long, value_name = "LIST", help_heading = "Network")]
    cores: Option<CoreList>,

    /// Threading of services: inline, on the threads of their workers; or split, on a separate thread beside each
    /// worker, so that a computing service does not delay connections
    #[arg(long, value_enum, value_name = "HOW", default_value_t, env = "LINERATE_THREADING", help_heading = "Network")]
    threading: ThreadingMode,

    /// Core of the service of each worker with --threading split [default: cores without a worker; if there are too
    /// few, the cores of the workers]
    #[arg(long, value_name = "LIST", help_heading = "Network")]
    service_cores: Option<CoreList>,

    /// Behaviour of an idle worker: poll, or backoff (sleep for increasing times) [default: poll]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Network")]
    idle: Option<IdleArg>,

    /// Poll sockets without sleeping (--via kernel only)
    #[arg(long, help_heading = "Network")]
    spin: bool,

    /// Use the interface even if it carries this host's default route
    #[arg(long, help_heading = "Network")]
    force: bool,

    /// Largest IP packet in bytes, if less than the port's maximum
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(i64::from(MIN_MTU)..), help_heading = "Network")]
    mtu: Option<u16>,

    /// VLAN ID, from 1 to 4094: sent frames are tagged with it, and received frames without this tag are dropped and
    /// counted
    #[arg(long, value_name = "ID", help_heading = "Network")]
    vlan: Option<VlanId>,

    /// Reassemble fragmented IPv4 UDP datagrams; without this, fragments are dropped and counted
    #[arg(long, help_heading = "Network")]
    fragments: bool,

    /// Send each frame as one buffer, copied if necessary: for a device that does not support chains although its
    /// driver does, such as QEMU's packed rings
    #[arg(long, help_heading = "Network")]
    no_multi_segment: bool,

    /// Local address and prefix, such as 10.0.0.2/24 or fd00::2/64; repeatable; without it, an interface that is shared
    /// with the kernel has the addresses of the kernel
    #[arg(long, value_name = "CIDR", help_heading = "Addresses")]
    ip: Vec<IpCidr>,

    /// Local address of outgoing connections; several are used in turn [default: the address on the peer's link]
    #[arg(long, value_name = "ADDR", help_heading = "Addresses")]
    from: Vec<IpAddr>,

    /// Local ports of outgoing connections; with the kernel's addresses, outside the kernel's range of local ports
    /// [default: 1024-65535; with the kernel's addresses 61000-65535 for a load, and none for a server]
    #[arg(long, value_name = "FIRST-LAST", help_heading = "Addresses")]
    outgoing_ports: Option<PortRange>,

    /// Default router; once for IPv4, once for IPv6
    #[arg(long, value_name = "ADDR", help_heading = "Addresses")]
    gateway: Vec<IpAddr>,

    /// Get an IPv4 address and gateway from a DHCP server
    #[arg(long, help_heading = "Addresses")]
    dhcp: bool,

    /// Form IPv6 addresses, and take the default router and MTU, from router advertisements (SLAAC)
    #[arg(long, help_heading = "Addresses")]
    slaac: bool,

    /// Use IPv6 addresses at once, without duplicate address detection, which takes a second
    #[arg(long, help_heading = "Addresses")]
    no_dad: bool,

    /// Ethernet address [default: the port's own]
    #[arg(long, value_name = "MAC", help_heading = "Addresses")]
    mac: Option<MacAddr>,

    /// TCP engine: native sends and receives without copying, smoltcp is the reference (not with --via kernel)
    /// [default: native]
    #[arg(long, value_enum, value_name = "NAME", help_heading = "TCP")]
    engine: Option<TcpEngine>,

    /// Maximum number of connections of a worker, at 256 bytes each while idle; a SYN beyond it is dropped [default:
    /// 131072, and more for a load with more connections]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP")]
    max_connections: Option<usize>,

    /// Limit of connections from one source to a worker; a source is an IPv4 address or an IPv6 /64 [default: none]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP")]
    max_connections_per_source: Option<usize>,

    /// Limit of half-open connections from one source to a worker; further SYNs are answered with SYN cookies [default:
    /// none]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP")]
    max_half_open_per_source: Option<usize>,

    /// Congestion control of the native engine: cubic, newreno or dctcp [default: cubic]
    #[arg(long, value_name = "NAME", help_heading = "TCP")]
    congestion: Option<Algorithm>,

    /// Network profile: internet; or datacenter, for short round trips and prompt acknowledgements, where losses are
    /// repaired within milliseconds [default: internet]
    #[arg(long, value_enum, value_name = "NAME", help_heading = "TCP")]
    profile: Option<Profile>,

    /// Spread segments over the round trip instead of sending bursts, for paths with short queues
    #[arg(long, help_heading = "TCP")]
    pacing: bool,

    /// Negotiate explicit congestion notification (RFC 3168)
    #[arg(long, help_heading = "TCP")]
    ecn: bool,

    /// Time limit for a closed connection to deliver queued data before it is reset, such as 2s; 0 resets it at once
    /// [default: none while the peer answers]
    #[arg(long, value_name = "TIME", value_parser = parse_duration_or_none, help_heading = "TCP")]
    linger: Option<Duration>,

    /// Reset connections in FIN-WAIT-2 (closed here, not by the peer) that receive no data for this long; 0 disables
    /// the limit [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration_or_none, help_heading = "TCP")]
    fin_timeout: Option<Duration>,

    /// Reset connections with data to send whose peer acknowledges no data for this long, even if it answers; 0
    /// disables the limit [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = parse_duration_or_none, help_heading = "TCP")]
    stall_timeout: Option<Duration>,

    /// Probe the peer of a connection that has been idle for this long, such as 2h, and reset it after nine probes at
    /// intervals of 75s without an answer; 0 disables probes [default: 5m for servers, 0 for loads]
    #[arg(long, value_name = "TIME", value_parser = parse_duration_or_none, help_heading = "TCP")]
    keepalive: Option<Duration>,

    /// Reset connections on which no data moved in either direction for this long, such as 5m (native engine or --via
    /// kernel) [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "TCP")]
    idle_timeout: Option<Duration>,

    /// Send and receive buffer of each connection, such as 256k [default: receive 64k, growing to 4m, and send 1m; 256k
    /// with --via kernel; 64k with --engine smoltcp]
    #[arg(long, value_name = "BYTES", value_parser = parse_size, help_heading = "TCP")]
    buffer: Option<usize>,

    /// Packets that all connections of a worker may hold: two for each connection with a request in flight, at 2.3 KB
    /// of hugepages each [default: 14336, and more for a load with many connections]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP")]
    max_packets: Option<usize>,

    /// Packets that one connection may hold in each direction [default: one for every 256 bytes of its buffer]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "TCP")]
    max_packets_per_connection: Option<usize>,

    /// Capture of the port's frames.
    #[command(flatten)]
    capture: CaptureArgs,

    /// RDMA options.
    #[command(flatten)]
    rdma: RdmaArgs,

    /// Arguments for EAL, after a lone --
    #[arg(last = true, value_name = "EAL ARGS")]
    eal: Vec<String>,
}

/// Capture options of every command that opens a port.
#[derive(Debug, clap::Args)]
struct CaptureArgs {
    /// Write the port's frames to FILE in pcapng format, which tcpdump and Wireshark read
    #[arg(long, value_name = "FILE", help_heading = "Capture")]
    pcap: Option<PathBuf>,

    /// Write only frames that match FILTER, in pcap-filter(7) syntax: 'tcp port 7 and host 10.0.0.1'
    #[arg(long, value_name = "FILTER", requires = "pcap", help_heading = "Capture")]
    pcap_filter: Option<String>,

    /// Largest number of bytes written of each frame [default: a frame of the port's MTU]
    #[arg(long, value_name = "BYTES", requires = "pcap", value_parser = parse_size, help_heading = "Capture")]
    pcap_snap: Option<usize>,

    /// Largest size of FILE, after which capturing stops: 64m, 4g [default: 1g]
    #[arg(long, value_name = "BYTES", requires = "pcap", value_parser = parse_bytes, help_heading = "Capture")]
    pcap_size: Option<u64>,
}

/// Command-line arguments that open a port for raw frames.
#[derive(Debug, clap::Args)]
struct PortArgs {
    /// The DPDK port: pci:ADDRESS, af_xdp:INTERFACE, tap:INTERFACE, virtio-user:SOCKET, vhost:SOCKET, memif:SOCKET or
    /// memif:SOCKET,server, or eal with EAL's arguments after --
    #[arg(long, value_name = "NET", display_order = 0)]
    via: Via,

    /// Core of the worker [default: the first core for a reflector, the last for a load]
    #[arg(long, value_name = "CORE", help_heading = "Network")]
    cores: Option<CoreList>,

    /// Largest frame payload in bytes, if less than the port's maximum
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(i64::from(MIN_MTU)..), help_heading = "Network")]
    mtu: Option<u16>,

    /// Use the interface even if it carries this host's default route
    #[arg(long, help_heading = "Network")]
    force: bool,

    /// Capture of the port's frames.
    #[command(flatten)]
    capture: CaptureArgs,

    /// Arguments for EAL, after a lone --
    #[arg(last = true, value_name = "EAL ARGS")]
    eal: Vec<String>,
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

impl From<CaptureArgs> for Option<CaptureConfig> {
    fn from(args: CaptureArgs) -> Self {
        let CaptureArgs { pcap, pcap_filter: filter, pcap_snap: snap, pcap_size } = args;
        pcap.map(|file| CaptureConfig { filter, snap, size: pcap_size.unwrap_or(CaptureConfig::SIZE), file })
    }
}

impl From<PortArgs> for FramePortConfig {
    fn from(args: PortArgs) -> FramePortConfig {
        let PortArgs { via, cores, mtu, force, capture, eal } = args;
        FramePortConfig { via, cores, mtu, force, capture: capture.into(), eal }
    }
}

impl From<NetArgs> for NetConfig {
    fn from(args: NetArgs) -> NetConfig {
        NetConfig {
            via: args.via,
            workers: args.workers,
            cores: args.cores,
            threading: args.threading,
            service_cores: args.service_cores,
            spin: args.spin,
            force: args.force,
            mtu: args.mtu,
            vlan: args.vlan,
            fragments: args.fragments,
            single_segment: args.no_multi_segment,
            ip: args.ip,
            from: args.from,
            outgoing_ports: args.outgoing_ports,
            gateway: args.gateway,
            dhcp: args.dhcp,
            slaac: args.slaac,
            skip_dad: args.no_dad,
            mac: args.mac,
            engine: args.engine,
            max_connections: args.max_connections,
            max_connections_per_source: args.max_connections_per_source,
            max_half_open_per_source: args.max_half_open_per_source,
            idle_timeout: args.idle_timeout,
            buffer: args.buffer,
            eal: args.eal,
            idle: args.idle.map(Into::into),
            native: NativeTcpConfig {
                congestion: args.congestion,
                profile: args.profile,
                pacing: args.pacing,
                ecn: args.ecn,
                linger: args.linger,
                fin_timeout: args.fin_timeout,
                stall_timeout: args.stall_timeout,
                keepalive: args.keepalive,
                max_packets: args.max_packets,
                max_packets_per_connection: args.max_packets_per_connection,
            },
            capture: args.capture.into(),
            rdma: args.rdma.into(),
            ..NetConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Listen;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        net: NetConfig,
    }

    fn config(text: &str) -> NetConfig {
        Cli::try_parse_from(std::iter::once("linerate").chain(text.split_whitespace())).unwrap().net
    }

    fn check(text: &str, listen: &[&str]) -> String {
        let tcp = listen.iter().map(|address| address.parse().unwrap()).collect();
        config(text)
            .check(&Listen { tcp, ..Listen::default() })
            .map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn consistent_arguments_are_accepted() {
        assert_eq!(check("--via kernel --spin --workers 2", &["127.0.0.1:0"]), "");
        let stack = "--via tap:lr0 --ip 10.0.0.2/24 --ip fd00::2/64 --gateway 10.0.0.1 --gateway fd00::1 -- -l 1";
        assert_eq!(check(stack, &["10.0.0.2:7", "[fd00::2]:7", "0.0.0.0:8", "[::]:8"]), "");
        assert_eq!(config(stack).eal, ["-l", "1"]);
        let several = "--via tap:lr0 --ip 10.0.0.2/24 --ip 10.0.0.3/24 --from 10.0.0.3 --from 10.0.0.2";
        assert_eq!(check(several, &["10.0.0.2:7", "10.0.0.3:7"]), "");
        for addresses in [
            // RFC 3021.
            "--ip 10.0.0.2/31 --gateway 10.0.0.3",
            "--ip 10.0.0.3/31 --gateway 10.0.0.2",
            "--ip 10.0.0.2/32 --gateway 10.9.0.1",
            "--ip 10.0.0.2/32 --ip 10.1.0.2/24 --gateway 10.1.0.1",
            "--ip fd00::2/128 --gateway fd01::1",
            "--ip fd00::2/64 --gateway fe80::1",
            "--ip 10.0.0.2/24 --dhcp --gateway 10.9.0.1",
            "--ip fd00::2/64 --slaac --gateway fd01::1",
            "--ip 10.0.1.0/23",
        ] {
            assert_eq!(check(&format!("--via tap:lr0 {addresses}"), &["0.0.0.0:7"]), "", "{addresses}");
        }
        assert_eq!(check("--via tap:lr0 --dhcp", &["10.0.0.2:7"]), "");
        assert_eq!(check("--via tap:lr0 --slaac", &["[2001:db8::2]:7", "[::]:8"]), "");
        assert_eq!(check("--via tap:lr0 --slaac --dhcp --ip 10.0.0.2/24 --ip fd00::2/64", &["[::]:8"]), "");
        for text in ["--via kernel", "--via tap:lr0 --ip 10.0.0.2/24 --fin-timeout 0"] {
            assert_eq!(check(&format!("{text} --idle-timeout 5m"), &["10.0.0.2:7"]), "");
        }
        for (text, time) in [("0", Duration::ZERO), ("2s", Duration::from_secs(2))] {
            let lingering = format!("--via tap:lr0 --ip 10.0.0.2/24 --linger {text}");
            assert_eq!(check(&lingering, &["10.0.0.2:7"]), "");
            assert_eq!(config(&lingering).native.linger, Some(time));
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
            ("--via tap:lr0 --ip 10.0.0.2/24", "127.0.0.1:7007", "give --listen 10.0.0.2:7007"),
            ("--via tap:lr0 --dhcp", "127.0.0.1:7007", "give --listen ADDRESS:PORT"),
            (
                "--ip 10.0.0.2/24",
                "127.0.0.1:7007",
                "--ip has no effect with --via kernel: leave it out, or choose another",
            ),
            ("--via tap:lr0 --dhcp --gateway 10.0.0.1 --gateway 10.0.0.9", "10.0.0.2:7", "10.0.0.9"),
            ("--via tap:lr0 --ip 127.0.0.1/8", "0.0.0.0:7", "--ip 127.0.0.1/8: a loopback address"),
            ("--via tap:lr0 --ip ::1/128", "[::]:7", "--ip ::1/128: a loopback address"),
            ("--via tap:lr0 --ip 10.0.0.0/24", "0.0.0.0:7", "--ip 10.0.0.0/24: the address of the network itself"),
            ("--via tap:lr0 --ip 10.0.0.255/24", "0.0.0.0:7", "--ip 10.0.0.255/24: the broadcast address"),
            ("--via tap:lr0 --ip 240.0.0.1/24", "0.0.0.0:7", "--ip 240.0.0.1/24: a reserved address"),
            ("--via tap:lr0 --ip ::ffff:10.0.0.2/96", "[::]:7", "an IPv4-mapped address"),
            (
                "--via tap:lr0 --ip 10.0.0.2/24 --gateway 10.0.1.1",
                "0.0.0.0:7",
                "--gateway 10.0.1.1: not on the link of a local address (10.0.0.2/24): give a router within",
            ),
            ("--via tap:lr0 --ip 10.0.0.2/24 --gateway fe80::1", "0.0.0.0:7", "--gateway fe80::1: not on the link"),
            ("--via tap:lr0 --ip fd00::2/64 --gateway fd01::1", "[::]:7", "needs --ip ADDRESS/128"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --gateway 10.0.0.2", "0.0.0.0:7", "10.0.0.2: an address of this host"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --gateway 10.0.0.255", "0.0.0.0:7", "the broadcast address"),
            ("--via tap:lr0 --dhcp --gateway 127.0.0.1", "0.0.0.0:7", "--gateway 127.0.0.1: a loopback address"),
            ("--via tap:lr0 --dhcp --gateway 0.0.0.0", "0.0.0.0:7", "--gateway 0.0.0.0: not a unicast address"),
            ("--via af_xdp:lo --ip 10.0.0.2/24", "0.0.0.0:7", "--via af_xdp:lo: the loopback interface"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --engine smoltcp --ecn", "10.0.0.2:7", "--ecn"),
            (
                "--via kernel --threading inline --service-cores 1",
                "10.0.0.2:7",
                "--service-cores has an effect only with --threading split",
            ),
            ("--via kernel --engine native", "10.0.0.2:7", "--engine"),
            ("--via kernel --no-multi-segment", "10.0.0.2:7", "--no-multi-segment"),
            ("--via kernel --vlan 5", "10.0.0.2:7", "--vlan has no effect with --via kernel"),
            ("--via kernel --max-connections 5", "10.0.0.2:7", "--max-connections has no effect"),
            ("--via tap:lr0 --ip 10.0.0.2/24 --max-connections 16777217", "10.0.0.2:7", "--max-connections 16777217"),
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
        let remote = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
        let net = config("--via tap:lr0 --ip 10.0.0.2/24");
        assert!(net.check_remote(remote("192.0.2.1:7")).is_ok());
        for text in ["[fd00::1]:7", "10.0.0.1:0", "0.0.0.0:7", "224.0.0.1:7", "127.0.0.1:7007"] {
            assert!(net.check_remote(remote(text)).is_err(), "{text}");
        }
        let net = config("--via tap:lr0 --slaac");
        assert!(net.check_remote(remote("[fd00::1]:7")).is_ok() && net.check_remote(remote("10.0.0.1:7")).is_err());
    }
}
