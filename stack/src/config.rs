//! What a worker of the stack is told about its network.

use crate::addresses::Addresses;
use crate::congestion::Algorithm;
use crate::demux::vlan::VlanId;
use crate::fast_paths::FastPaths;
use crate::ipv6::FORMED;
use linerate_bypass::MacAddr;
use linerate_bypass::time::Duration;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// An address of ours and the prefix that is on the link with it: `10.0.0.2/24`, `fd00::2/64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpCidr {
    address: IpAddr,
    prefix: u8,
}

impl IpCidr {
    /// `address` with a prefix of `prefix` bits.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, InvalidCidr> {
        let invalid = |why| InvalidCidr { text: format!("{address}/{prefix}"), why };
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix > bits {
            return Err(invalid("the prefix is longer than the address"));
        }
        if address.is_unspecified() || address.is_multicast() || address == IpAddr::from([255; 4]) {
            return Err(invalid("not the address of one host"));
        }
        Ok(IpCidr { address, prefix })
    }

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The length of the prefix in bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether `other` is on the link by this prefix.
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = u32::from(own) ^ u32::from(other);
                differ.checked_shr(32 - u32::from(self.prefix)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = u128::from(own) ^ u128::from(other);
                differ.checked_shr(128 - u32::from(self.prefix)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for IpCidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Text that is not an address with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not an address with a prefix, such as 10.0.0.2/24 or fd00::2/64: {why}")]
pub struct InvalidCidr {
    text: String,
    why: &'static str,
}

impl FromStr for IpCidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, InvalidCidr> {
        let invalid = |why| InvalidCidr { text: text.to_owned(), why };
        let (address, prefix) = text.split_once('/').ok_or_else(|| invalid("the prefix is missing"))?;
        let address = address.parse().map_err(|_| invalid("the part before '/' is not an IP address"))?;
        let prefix = prefix.parse().map_err(|_| invalid("the part after '/' is not a number of bits"))?;
        IpCidr::new(address, prefix).map_err(|InvalidCidr { why, .. }| invalid(why))
    }
}

/// What a worker does when nothing arrives.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Poll on: the lowest latency, a whole core.
    #[default]
    Poll,
    /// Sleep for ever longer moments, up to a millisecond, until something arrives.
    Backoff,
}

/// When an idle connection's peer is asked for a sign of life, and when it is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// How long nothing must have come from it: 38 hours at most.
    pub idle: Duration,
    /// Between probes: 38 hours at most.
    pub interval: Duration,
    /// Probes that may go unanswered.
    pub probes: u8,
}

impl Default for Keepalive {
    /// Two hours (RFC 9293 §3.8.4: no less by default), then nine probes 75 s apart, as common systems have it.
    fn default() -> Self {
        Keepalive { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }
}

/// The network and the limits of a worker. All workers of one port share one.
#[derive(Debug, Clone)]
pub struct Config {
    /// Our addresses, [`MAX_ADDRESSES`](Self::MAX_ADDRESSES) at most. With [`dhcp`](Self::dhcp) or [`slaac`](Self::slaac) there may be none
    /// at first.
    pub addresses: Vec<IpCidr>,
    /// Where what is not on the link goes: at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Those of our addresses that connections are made from, in turn. Where there is none of a family, the one that is on the same link
    /// as the peer, or else the first.
    pub connect_from: Vec<IpAddr>,
    /// Probes for each IPv6 address, a second apart and a second before the address is used (RFC 4862 §5.1: DupAddrDetectTransmits). Another
    /// station that has it ends the worker with an error. None, and addresses are used at once, if 0.
    pub dad_transmits: u8,
    /// Ask a DHCP server for an IPv4 address, prefix and gateway.
    pub dhcp: bool,
    /// Form IPv6 addresses of the prefixes that routers advertise, four at most, and go by what else they say (RFC 4862, RFC 4861): the
    /// default router, unless there is one in [`gateways`](Self::gateways), what is on the link, its MTU.
    pub slaac: bool,
    /// Our Ethernet address; the port's own if `None`.
    pub mac: Option<MacAddr>,
    /// The largest IP packet in bytes; the port's own if `None`. Never more than that.
    pub mtu: Option<u16>,
    /// The VLAN that we are in (IEEE 802.1Q): what is sent gets its tag, by the port where it can, and other frames are dropped and
    /// counted. With `None` frames have no tag, or one that tells a priority alone. The MTU is that without the tag.
    pub vlan: Option<VlanId>,
    /// Take datagrams in fragments of IPv4 packets (RFC 791 §3.2), and put together four at a time; what is not whole after a minute is
    /// dropped. Without, fragments are dropped and counted. Those of TCP always are, and those of IPv6.
    pub fragments: bool,
    /// TCP addresses to accept connections on. An unspecified address means all of ours.
    pub listen: Vec<SocketAddr>,
    /// UDP addresses to receive datagrams on. An unspecified address means all of ours.
    pub listen_udp: Vec<SocketAddr>,
    /// Connections of one worker, those in TIME-WAIT not counted. A further SYN is dropped and counted.
    pub max_connections: usize,
    /// Connections of one worker that a peer has begun and not completed. A further SYN is counted; the native engine answers it with
    /// a SYN cookie and keeps nothing of it (RFC 4987 §3.6), the smoltcp engine drops it.
    pub max_half_open: usize,
    /// Of those, connections of one source: an IPv4 address, or the /64 of an IPv6 address. A further SYN is counted, and answered by
    /// the native engine without keeping anything, by a SYN cookie (RFC 4987 §3.6). No limit if `None`.
    pub max_half_open_per_source: Option<usize>,
    /// Connections of one worker with one source that has opened them. A further SYN is dropped and counted. No limit if `None`.
    pub max_connections_per_source: Option<usize>,
    /// Connections in TIME-WAIT of one worker, where the native engine remembers them; for a further one the oldest ends early.
    pub max_time_wait: usize,
    /// How long a peer may take to complete a connection.
    pub half_open_timeout: Duration,
    /// How long a peer may leave our data unanswered before its connection is given up (RFC 9293 §3.10.1: five minutes).
    pub user_timeout: Duration,
    /// How long a connection of the native engine that its service has closed may go on delivering what was queued: when the
    /// peer has not acknowledged all of it by then, it is reset (RFC 9293 §3.10.5) and ends as
    /// [`Aborted`](linerate_bypass::CloseReason::Aborted). Zero resets at once, whatever is queued, as `SO_LINGER` does. For as
    /// long as the peer answers within the [`user_timeout`](Self::user_timeout) if `None` (RFC 9293 §3.10.4).
    pub linger: Option<Duration>,
    /// FIN-WAIT-2 timeout of the native engine: how long a connection whose service has closed may wait for data or the FIN of the peer,
    /// once our FIN has been acknowledged. Each segment with data restarts it, and it does not expire while received data wait for the
    /// service. Then the connection is reset and ends as [`TimedOut`](linerate_bypass::CloseReason::TimedOut). No limit if `None`.
    pub fin_timeout: Option<Duration>,
    /// Idle timeout of the native engine: an established connection on which no data were sent, acknowledged or received for so long is
    /// reset and ends as [`IdleTimeout`](linerate_bypass::CloseReason::IdleTimeout). Keepalive probes and their answers are no data. A
    /// connection with unread or unacknowledged data may last up to a quarter longer. No limit if `None`.
    pub idle_timeout: Option<Duration>,
    /// Stall timeout of the native engine: a connection that has data to send and whose peer has not acknowledged any for so long is reset
    /// and ends as [`TimedOut`](linerate_bypass::CloseReason::TimedOut), even if the peer answers probes of its closed window. This bounds
    /// how long a peer that does not read may hold memory (RFC 6429). It expires up to a second late. No limit if `None`.
    pub stall_timeout: Option<Duration>,
    /// The receive buffer of a connection in bytes: the largest window we offer. The engine's own choice if `None`: the native
    /// engine begins with 64 KB and goes up to 4 MB where path and service take so much; the smoltcp engine has 64 KB.
    pub rx_buffer: Option<usize>,
    /// The send buffer of a connection in bytes: what may be queued and unacknowledged. The engine's own choice if `None`:
    /// 1 MB, 64 KB with smoltcp.
    pub tx_buffer: Option<usize>,
    /// Packets that the connections of a worker of the native engine may hold together, received ones and ones to be sent; 32
    /// at least. Each takes a buffer of the port, however short it is. Seven eighths of the worker's share of the port's pool
    /// if `None`, and never more than that: the rest is for receiving acknowledgements with. When four sevenths of them are
    /// held, packets run low: a connection may hold its share of them, and a peer is offered no more window than a segment beyond what the
    /// service has read. When received data hold five sevenths, a connection may add at most four; when six are held, nothing more is queued to
    /// be sent behind something else.
    pub max_packets: Option<usize>,
    /// Packets that one connection of the native engine may hold in either direction, 64 at least; beyond a gap in what it
    /// has received, half as many more. One for every 256 bytes of its buffer if `None`.
    pub max_packets_per_connection: Option<usize>,
    /// The congestion control of the native engine, where that is [`Builtin`](crate::congestion::Builtin).
    pub congestion: Algorithm,
    /// The least time-out of a retransmission, while nothing is known of how long the peer delays acknowledgements
    /// (RFC 6298 §2.4 asks for a second; common systems have a fifth of it).
    pub rto_floor: Duration,
    /// How long an acknowledgement waits for company (RFC 9293 §3.8.6.3: less than half a second).
    pub ack_delay: Duration,
    /// Hold segments that are not full back while something is unacknowledged (Nagle's algorithm, RFC 9293 §3.7.4).
    pub nagle: bool,
    /// Spread what the congestion window has room for over the round trip, in bursts of four segments or of what the rate makes
    /// in a quarter of a millisecond, instead of sending it at once: for paths whose queues are short. The rate is
    /// [`pacing_rate`](crate::congestion::CongestionControl::pacing_rate). Only the native engine does.
    pub pacing: bool,
    /// Ask for explicit congestion notification, and grant it (RFC 3168).
    pub ecn: bool,
    /// Whether and when to ask a silent peer for a sign of life (RFC 9293 §3.8.4).
    pub keepalive: Option<Keepalive>,
    /// What to do when nothing arrives.
    pub idle: Idle,
    /// The origin of all randomness: initial sequence numbers, SYN cookies, ports, hash keys. Take it from the system's
    /// generator, except in a test that must repeat: whoever knows it can forge connections.
    pub seed: u128,
    /// Fast paths in use: all of them, except in a test that compares them with the general path.
    #[cfg(feature = "fast-path-switches")]
    #[doc(hidden)]
    pub fast_paths: FastPaths,
}

impl Config {
    /// As many addresses as a host may have here, among them one of DHCP's, four of routers' prefixes and, where there are others of IPv6,
    /// the link-local one.
    pub const MAX_ADDRESSES: usize = 8;

    /// Returns the fast paths in use.
    pub(crate) fn fast_paths(&self) -> FastPaths {
        #[cfg(feature = "fast-path-switches")]
        return self.fast_paths;
        #[cfg(not(feature = "fast-path-switches"))]
        FastPaths::ALL
    }

    /// How many addresses there may be.
    pub fn count_addresses(&self) -> usize {
        let formed = if self.slaac { FORMED } else { 0 };
        self.first_addresses(MacAddr::default()).own().len() + usize::from(self.dhcp) + formed
    }

    /// The addresses from the start of the station `mac`.
    pub(crate) fn first_addresses(&self, mac: MacAddr) -> Addresses {
        let addresses = Addresses::new(&self.addresses, &self.gateways, mac);
        if self.slaac { addresses.with_link_local(mac) } else { addresses }
    }

    /// The default within a data centre, between hosts that all acknowledge promptly: time-outs from 5 ms on.
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
            dad_transmits: 1,
            dhcp: false,
            slaac: false,
            mac: None,
            mtu: None,
            vlan: None,
            fragments: false,
            listen: Vec::new(),
            listen_udp: Vec::new(),
            max_connections: 1 << 17,
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
            keepalive: None,
            idle: Idle::Poll,
            seed: 0,
            #[cfg(feature = "fast-path-switches")]
            fast_paths: FastPaths::ALL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> IpCidr {
        text.parse().unwrap()
    }

    #[test]
    fn a_prefix_contains_its_hosts_and_no_others() {
        assert!(cidr("10.0.0.2/24").contains("10.0.0.254".parse().unwrap()));
        assert!(!cidr("10.0.0.2/24").contains("10.0.1.2".parse().unwrap()));
        assert!(!cidr("10.0.0.2/24").contains("fd00::1".parse().unwrap()));
        assert!(cidr("10.0.0.2/0").contains("192.0.2.1".parse().unwrap()));
        assert!(!cidr("10.0.0.2/32").contains("10.0.0.3".parse().unwrap()));
        assert!(cidr("fd00::2/64").contains("fd00::ffff".parse().unwrap()));
        assert!(!cidr("fd00::2/64").contains("fd00:0:0:1::2".parse().unwrap()));
        assert!(cidr("fd00::2/0").contains("2001:db8::1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_host_address_is_refused_with_the_reason() {
        for (text, why) in [
            ("10.0.0.2", "the prefix is missing"),
            ("10.0.0/24", "not an IP address"),
            ("10.0.0.2/x", "not a number"),
            ("10.0.0.2/33", "longer than the address"),
            ("0.0.0.0/0", "not the address of one host"),
            ("224.0.0.1/24", "not the address of one host"),
            ("ff02::1/64", "not the address of one host"),
        ] {
            let error = text.parse::<IpCidr>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
