//! Configuration of a worker of the stack. Each layer reads its part.

mod algorithm;
pub(crate) mod fast_paths;
pub(crate) mod host_network;

pub use algorithm::{Algorithm, UnknownAlgorithm};

use crate::config::fast_paths::FastPaths;
use crate::config::host_network::HostNetwork;
use crate::wire::ip_cidr::IpCidr;
use crate::wire::vlan::VlanId;
use linerate_bypass::MacAddr;
use linerate_service::Keepalive;
use linerate_service::time::Duration;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Idle strategy of a worker.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Keep polling: lowest latency, a whole core.
    #[default]
    Poll,
    /// Sleep until a frame or a message arrives. A port that cannot wake a worker is looked at each millisecond.
    Wait,
}

/// Network settings and limits of a worker. All workers of one port share one value.
#[derive(Debug, Clone)]
pub struct Config {
    /// Local addresses, at most [`MAX_ADDRESSES`](Self::MAX_ADDRESSES). May be empty with [`dhcp`](Self::dhcp) or
    /// [`slaac`](Self::slaac).
    pub addresses: Vec<IpCidr>,
    /// Default gateways, at most one of each address family.
    pub gateways: Vec<IpAddr>,
    /// Local addresses that outgoing connections use in turn. For a family without an entry, the address on the peer's
    /// link is used, or else the first.
    pub connect_from: Vec<IpAddr>,
    /// Addresses and routes of the host's kernel, for a port that shares an interface with the kernel. They replace
    /// [`addresses`](Self::addresses) and [`gateways`](Self::gateways), and the control plane updates them
    /// ([`HostControl`](crate::HostControl)). The worker then does not run ARP, NDP, DAD, DHCP or SLAAC.
    pub host: Option<Arc<HostNetwork>>,
    /// Local ports of outgoing connections. If empty, connections cannot be made.
    pub outgoing_ports: RangeInclusive<u16>,
    /// Number of DAD probes for each IPv6 address, one second apart, the last a second before first use (RFC 4862 §5.1:
    /// DupAddrDetectTransmits). A duplicate ends the worker with an error. With 0, addresses are used at once.
    pub dad_transmits: u8,
    /// Request an IPv4 address, prefix and gateway by DHCP.
    pub dhcp: bool,
    /// Form at most four IPv6 addresses from prefixes in router advertisements, and use the default router (unless
    /// [`gateways`](Self::gateways) has one), on-link prefixes and MTU that they advertise (RFC 4862, RFC 4861).
    pub slaac: bool,
    /// Local Ethernet address. With `None`, the port's address.
    pub mac: Option<MacAddr>,
    /// Largest IP packet in bytes, limited to the port's MTU. With `None`, the port's MTU.
    pub mtu: Option<u16>,
    /// VLAN of the worker (IEEE 802.1Q). Sent frames carry its tag, inserted by the port where it can; frames without
    /// the tag are dropped and counted. With `None`, frames carry no tag or a priority tag. The MTU excludes the tag.
    pub vlan: Option<VlanId>,
    /// Reassemble fragmented IPv4 datagrams (RFC 791 §3.2), four at a time, for up to a minute. Otherwise fragments are
    /// dropped and counted, as TCP and IPv6 fragments always are.
    pub fragments: bool,
    /// TCP addresses to accept connections on. An unspecified address stands for all local addresses.
    pub listen: Vec<SocketAddr>,
    /// TCP addresses of the first worker. The same address with the port number plus *n* belongs to worker *n*. This
    /// worker owns the connections to the address, regardless of the worker to which the port of the device delivers
    /// their frames. The addresses of all workers are in [`listen`](Self::listen), too.
    pub listen_by_worker: Vec<SocketAddr>,
    /// UDP addresses to receive datagrams on. An unspecified address stands for all local addresses.
    pub listen_udp: Vec<SocketAddr>,
    /// Port of [`listen_udp`](Self::listen_udp) for a protocol with its own integrity check, such as RoCEv2: datagrams
    /// to it are delivered by [`Service::raw_datagram`](linerate_service::Service::raw_datagram), and need no checksum
    /// over IPv6 (RFC 6935). Datagrams from it that are written in place have none.
    pub listen_udp_raw: Option<u16>,
    /// Traffic class of these datagrams: DSCP times four, and ECN.
    pub udp_raw_traffic_class: u8,
    /// Maximum connections of one worker, excluding TIME-WAIT. A SYN beyond it is dropped and counted.
    pub max_connections: usize,
    /// Maximum half-open connections of one worker. A SYN beyond it is counted. The native engine replies with a SYN
    /// cookie and keeps no state (RFC 4987 §3.6); the smoltcp engine drops it.
    pub max_half_open: usize,
    /// Maximum half-open connections of one source: an IPv4 address or an IPv6 /64. A SYN beyond it is counted, and the
    /// native engine replies with a SYN cookie and keeps no state (RFC 4987 §3.6). No limit if `None`.
    pub max_half_open_per_source: Option<usize>,
    /// Maximum established connections of one worker with one source. A SYN beyond it is dropped and counted. No limit
    /// if `None`.
    pub max_connections_per_source: Option<usize>,
    /// Maximum connections in TIME-WAIT of one worker of the native engine. A further connection evicts the oldest.
    pub max_time_wait: usize,
    /// Time limit for a handshake.
    pub half_open_timeout: Duration,
    /// Maximum time that sent data may stay unacknowledged before the connection is aborted (RFC 9293 §3.10.1: five
    /// minutes).
    pub user_timeout: Duration,
    /// Time that a connection of the native engine may take to deliver queued data after its service has closed it. If
    /// the peer has not acknowledged all data by then, the connection is reset (RFC 9293 §3.10.5) and ends as
    /// [`Aborted`](linerate_service::CloseReason::Aborted). Zero resets at once, regardless of queued data, as
    /// `SO_LINGER` does. With `None`, only the [`user_timeout`](Self::user_timeout) applies (RFC 9293 §3.10.4).
    pub linger: Option<Duration>,
    /// FIN-WAIT-2 timeout of the native engine: time that a closed connection may wait for data or the peer's FIN after
    /// its own FIN has been acknowledged. A segment with data restarts it, and it does not expire while received data
    /// wait for the service. On expiry the connection is reset and ends as
    /// [`TimedOut`](linerate_service::CloseReason::TimedOut). No limit if `None`.
    pub fin_timeout: Option<Duration>,
    /// Idle timeout of the native engine: an established connection that has sent, received or acknowledged no data for
    /// this time is reset and ends as [`IdleTimeout`](linerate_service::CloseReason::IdleTimeout). Keepalive probes and
    /// their replies do not count as data. A connection with unread or unacknowledged data may last up to a quarter
    /// longer. No limit if `None`.
    pub idle_timeout: Option<Duration>,
    /// Stall timeout of the native engine: a connection with data to send whose peer has acknowledged none for this
    /// time is reset and ends as [`TimedOut`](linerate_service::CloseReason::TimedOut), even if the peer answers window
    /// probes. This bounds the time that a peer that does not read can hold memory (RFC 6429). It expires up to a
    /// second late. No limit if `None`.
    pub stall_timeout: Option<Duration>,
    /// Receive buffer of a connection in bytes, which is the largest window offered. With `None`, the native engine
    /// begins with 64 KB and grows to 4 MB as path and service require; the smoltcp engine has 64 KB.
    pub rx_buffer: Option<usize>,
    /// Send buffer of a connection in bytes: the limit of queued and unacknowledged data. With `None`, 1 MB (smoltcp
    /// engine: 64 KB).
    pub tx_buffer: Option<usize>,
    /// Maximum packets that all connections of a worker of the native engine hold, received or to be sent; at least 32.
    /// Each packet occupies a buffer of the port, regardless of its length. The default and upper limit is seven
    /// eighths of the worker's share of the port's pool; the rest serves the reception of acknowledgements. At four
    /// sevenths of the limit packets run low: a connection may hold its share of them, and a peer is offered a window
    /// of at most one segment beyond the data that the service has read. When received data hold five sevenths, a
    /// connection may add at most four packets. At six sevenths, no data are queued after other data.
    pub max_packets: Option<usize>,
    /// Maximum packets that one connection of the native engine holds in either direction, at least 64; out-of-order
    /// data may hold half as many more. With `None`, one packet per 256 bytes of its buffer.
    pub max_packets_per_connection: Option<usize>,
    /// Congestion control of the native engine, if the engine uses [`Builtin`](crate::tcp::congestion::Builtin).
    pub congestion: Algorithm,
    /// Minimum RTO while the peer's acknowledgement delay is unknown. RFC 6298 §2.4 recommends one second; common
    /// systems use 200 ms.
    pub rto_floor: Duration,
    /// Delay of an acknowledgement (RFC 9293 §3.8.6.3: less than half a second).
    pub ack_delay: Duration,
    /// Delay segments that are not full while data are unacknowledged (Nagle's algorithm, RFC 9293 §3.7.4).
    pub nagle: bool,
    /// Pace transmission over the round trip, in bursts of four segments or of a quarter of a millisecond at the pacing
    /// rate, instead of sending the window at once: for paths with short queues. The rate is
    /// [`pacing_rate`](crate::tcp::congestion::CongestionControl::pacing_rate). Native engine only.
    pub pacing: bool,
    /// Negotiate explicit congestion notification (RFC 3168).
    pub ecn: bool,
    /// Drop SYNs to addresses on which the worker does not listen, instead of refusing them: another process will serve
    /// there when the client sends them again. Native engine only.
    pub ignore_syns: bool,
    /// Keepalive probes of idle connections (RFC 9293 §3.8.4). Disabled if `None`.
    pub keepalive: Option<Keepalive>,
    /// Seed of all randomness: initial sequence numbers, SYN cookies, ports, hash keys. Take it from the system's
    /// generator, except in a reproducible test: an attacker who knows it can forge connections.
    pub seed: u128,
    /// Fast paths in use. Only a test that compares them with the general path disables any.
    #[cfg(feature = "fast-path-switches")]
    #[doc(hidden)]
    pub fast_paths: FastPaths,
}

impl Config {
    /// Maximum number of local addresses. This includes one from DHCP, four from SLAAC and the link-local one of a host
    /// with other IPv6 addresses.
    pub const MAX_ADDRESSES: usize = 8;

    /// Default local ports of outgoing connections: all except the well-known ones (RFC 6056 §3.2).
    pub const OUTGOING_PORTS: RangeInclusive<u16> = 1024..=65535;

    /// Default of [`max_connections`](Self::max_connections).
    pub const MAX_CONNECTIONS: usize = 1 << 17;

    pub(crate) fn fast_paths(&self) -> FastPaths {
        #[cfg(feature = "fast-path-switches")]
        return self.fast_paths;
        #[cfg(not(feature = "fast-path-switches"))]
        FastPaths::ALL
    }

    /// Returns the Ethernet address of the interface that the port shares with the host's kernel.
    pub(crate) fn host_mac(&self) -> Option<MacAddr> {
        self.host.as_ref()?.mac
    }

    /// Returns defaults for a data centre, where all hosts acknowledge promptly: a minimum RTO of 5 ms.
    pub fn datacenter() -> Self {
        Config { rto_floor: Duration::from_millis(5), ack_delay: Duration::from_millis(1), ..Config::default() }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            addresses: Vec::new(),
            gateways: Vec::new(),
            connect_from: Vec::new(),
            host: None,
            outgoing_ports: Config::OUTGOING_PORTS,
            dad_transmits: 1,
            dhcp: false,
            slaac: false,
            mac: None,
            mtu: None,
            vlan: None,
            fragments: false,
            listen: Vec::new(),
            listen_by_worker: Vec::new(),
            listen_udp: Vec::new(),
            listen_udp_raw: None,
            udp_raw_traffic_class: 0,
            max_connections: Config::MAX_CONNECTIONS,
            max_half_open: 4096,
            max_half_open_per_source: None,
            max_connections_per_source: None,
            max_time_wait: 1 << 18,
            half_open_timeout: Duration::from_secs(10),
            user_timeout: Duration::from_secs(300),
            linger: None,
            fin_timeout: Some(Duration::from_secs(60)),
            idle_timeout: None,
            stall_timeout: Some(Duration::from_secs(300)),
            rx_buffer: None,
            tx_buffer: None,
            max_packets: None,
            max_packets_per_connection: None,
            congestion: Algorithm::default(),
            rto_floor: Duration::from_millis(200),
            ack_delay: Duration::from_millis(40),
            nagle: false,
            pacing: false,
            ecn: false,
            ignore_syns: false,
            keepalive: None,
            seed: 0,
            #[cfg(feature = "fast-path-switches")]
            fast_paths: FastPaths::ALL,
        }
    }
}
