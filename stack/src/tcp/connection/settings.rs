//! Settings of the engine, derived from the configuration and the port.

use crate::config::Config;
use crate::config::fast_paths::FastPaths;
use crate::ip::egress::Egress;
use crate::tcp::clock::tick::Tick;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::recovery::Limits;
use crate::tcp::tcb::conn_buffers::CROWDED;
use crate::wire::tcp::header::Offload;
use crate::wire::tuple::Tuple;
use linerate_bypass::{BURST, Capabilities, Nic};
use linerate_service::time::Duration;
use linerate_service::{ConnId, Keepalive};
use std::net::{IpAddr, SocketAddr};

/// Time until the first retransmission of a SYN (RFC 6298 §2.1).
pub(crate) const SYN_TIMEOUT: Duration = Duration::from_secs(1);

/// Initial receive window in bytes, before tuning.
const FIRST_WINDOW: usize = 64 << 10;

/// Heap limit of queues relative to the capacity of the packets.
const HEAP_PER_POOL: usize = 4;

/// Default buffer sizes in bytes.
const RX_BUFFER: usize = 4 << 20;
const TX_BUFFER: usize = 1 << 20;

#[derive(PartialEq, Eq)]
pub(crate) struct Listener {
    ipv4: bool,
    /// Address, IPv4 in mapped form; `None` for any address.
    ip: Option<u128>,
    port: u16,
}

impl Listener {
    pub fn new(listen: &SocketAddr) -> Self {
        let (ip, ipv4) = match listen.ip() {
            IpAddr::V4(ip) => (ip.to_ipv6_mapped(), true),
            IpAddr::V6(ip) => (ip, false),
        };
        let ip = (!listen.ip().is_unspecified()).then_some(ip.to_bits());
        Listener { ipv4, ip, port: listen.port() }
    }

    /// Returns whether a connection on `tuple` is for this listener.
    #[inline]
    pub fn is_for(&self, tuple: &Tuple) -> bool {
        self.port == tuple.local_port()
            && self.ipv4 == tuple.is_ipv4()
            && self.ip.is_none_or(|ip| ip == tuple.local_v6().to_bits())
    }
}

/// Settings, most of which are constant while the engine runs.
pub(crate) struct Settings {
    pub listen: Vec<Listener>,
    pub connections: usize,
    pub half_open: usize,
    pub half_open_timeout: Duration,
    /// Time until the first retransmission of a SYN, or until it is given up.
    pub first_syn_timeout: Duration,
    pub user_timeout: Duration,
    pub linger: Option<Duration>,
    pub keepalive: Option<Keepalive>,
    /// True if connections may have keepalive.
    pub may_keep_alive: bool,
    pub fin_timeout: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    pub stall_timeout: Option<Duration>,
    /// True if a timer watches established connections without data in flight.
    pub has_inactivity_timers: bool,
    /// Initial and maximum size of the receive queue in bytes.
    pub rx_initial: u32,
    pub rx_max: u32,
    /// Shift of the local window field.
    pub rx_scale: u8,
    /// Packets that the receive queue of a connection may hold.
    pub rx_packets: usize,
    /// Packets that the reassembly queue of a connection may hold in addition.
    pub rx_out_of_order: usize,
    /// Packets that all queues and services may hold. The rest of the pool receives acknowledgements, without which no
    /// packet would be released, and carries headers.
    packet_limit: usize,
    /// Packets that queues may hold, given the packets held by services.
    pub packets: usize,
    /// Number of packets held at which nothing more is written for transmission and no out-of-order data is accepted.
    /// The rest is for data that fills gaps and is consumed.
    pub packets_in_advance: usize,
    /// Number of unread packets at which a connection may queue only its minimum share of packets. The rest is for
    /// responses: a service may leave a request in place until it has answered.
    pub packets_received: usize,
    /// Number of packets held at which packets run low and windows are not extended. Also the number of unread packets
    /// at which no out-of-order data is accepted.
    pub pressure: usize,
    /// Bytes of queues that may be on the heap: [`HEAP_PER_POOL`] times the capacity of the packets.
    pub heap_limit: usize,
    pub tx_buffer: usize,
    /// Send buffer of a connection while no queued data is on the heap, in bytes.
    pub tx_buffer_max: usize,
    /// Chunks that the send queue of a connection may hold.
    pub tx_chunks: usize,
    pub ack_delay: Duration,
    pub nagle: bool,
    pub pacing: bool,
    pub ecn: bool,
    /// True if SYNs to other than listening addresses are not answered.
    pub ignore_syns: bool,
    pub exact_ecn_echo: bool,
    pub limits: Limits,
    /// Minimum retransmission timeout for restarts after idleness and for zero-window probes.
    pub rto_floor: Duration,
    /// Maximum segment size before TCP options are deducted (RFC 6691), of IPv4 and of IPv6.
    mss: [u16; 2],
    pub offload: Offload,
    /// True if headers may be written in front of retained payload: the port accepts chains, which retransmission then
    /// requires.
    pub headers_in_place: bool,
    /// Maximum payload of a TSO packet.
    pub tso: Option<usize>,
    /// Fast paths in use.
    pub fast_paths: FastPaths,
}

/// Returns a keepalive with times that timers can measure.
pub(crate) fn within_reach(keepalive: Keepalive) -> Keepalive {
    let Keepalive { idle, interval, probes } = keepalive;
    Keepalive { idle: idle.min(Tick::REACH), interval: interval.min(Tick::REACH), probes }
}

impl Settings {
    pub fn new<N: Nic>(config: &Config, control: &impl CongestionControl, egress: &Egress<N>) -> Self {
        let port = egress.capabilities();
        let rx_max = config.rx_buffer.unwrap_or(RX_BUFFER).clamp(1 << 12, 1 << 30);
        let tx_buffer = config.tx_buffer.unwrap_or(TX_BUFFER).clamp(1 << 12, 1 << 30);
        let packets =
            config.max_packets.map_or(usize::MAX, |packets| packets.max(BURST)).min(port.pool - port.pool / 8);
        let per_connection = config.max_packets_per_connection.map(|packets| packets.max(CROWDED));
        let mut settings = Settings {
            listen: config.listen.iter().map(Listener::new).collect(),
            connections: config.max_connections.min(ConnId::MAX_SLOTS),
            half_open: config.max_half_open,
            half_open_timeout: config.half_open_timeout,
            first_syn_timeout: SYN_TIMEOUT.min(config.half_open_timeout),
            user_timeout: config.user_timeout,
            linger: config.linger,
            keepalive: config.keepalive.map(within_reach),
            may_keep_alive: config.keepalive.is_some(),
            fin_timeout: config.fin_timeout.map(|timeout| timeout.min(Tick::REACH)),
            idle_timeout: config.idle_timeout.map(|timeout| timeout.min(Tick::REACH)),
            stall_timeout: config.stall_timeout,
            has_inactivity_timers: config.keepalive.is_some() || config.idle_timeout.is_some(),
            rx_initial: rx_max.min(FIRST_WINDOW) as u32,
            rx_max: rx_max as u32,
            rx_scale: scale_for(rx_max),
            rx_packets: per_connection.unwrap_or((rx_max / 256).max(256)),
            rx_out_of_order: per_connection.map_or((rx_max / 512).max(64), |packets| packets / 2),
            packet_limit: packets,
            packets,
            packets_in_advance: packets,
            packets_received: packets,
            pressure: packets,
            heap_limit: packets.saturating_mul(port.data_room).saturating_mul(HEAP_PER_POOL),
            tx_buffer,
            tx_buffer_max: tx_buffer,
            tx_chunks: per_connection.unwrap_or((tx_buffer / 256).max(64)),
            ack_delay: config.ack_delay,
            nagle: config.nagle,
            pacing: config.pacing,
            ecn: config.ecn || control.wants_ecn(),
            ignore_syns: config.ignore_syns,
            exact_ecn_echo: control.exact_ecn_echo(),
            limits: Limits::of(config),
            rto_floor: config.rto_floor,
            mss: [mss(egress.mtu(), 40), mss(egress.mtu_v6(), 60)],
            offload: Offload::of(port),
            headers_in_place: port.multi_segment_tx,
            tso: port.tso.filter(|_| port.multi_segment_tx),
            fast_paths: config.fast_paths(),
        };
        settings.set_app_held(0);
        settings
    }

    /// Updates the packet limits for `kept` packets held by services outside of queues.
    pub fn set_app_held(&mut self, kept: usize) {
        let most = self.packet_limit;
        self.packets = most.saturating_sub(kept);
        self.packets_in_advance = (most - most / 7).saturating_sub(kept);
        self.packets_received = (most - most / 7 * 2).saturating_sub(kept);
        self.pressure = (most - most / 7 * 3).saturating_sub(kept);
    }

    #[inline]
    pub fn update_tso(&mut self, port: &Capabilities) {
        self.tso = port.tso.filter(|_| port.multi_segment_tx);
    }

    /// Sets the IPv6 MTU.
    pub fn set_mtu_v6(&mut self, mtu: usize) {
        self.mss[1] = mss(mtu, 60);
    }

    /// Returns the maximum segment size of an address family, before TCP options are deducted (RFC 6691).
    #[inline]
    pub fn mss(&self, ipv4: bool) -> u16 {
        self.mss[usize::from(!ipv4)]
    }
}

/// Returns the maximum segment size for an MTU of `mtu` and headers of `headers` bytes.
fn mss(mtu: usize, headers: usize) -> u16 {
    mtu.saturating_sub(headers).clamp(64, 65_495) as u16
}

/// Returns the smallest shift with which 16 bits express a window of `bytes` (RFC 7323 §2.2).
fn scale_for(bytes: usize) -> u8 {
    (0..14).find(|scale| bytes >> scale <= 65_535).unwrap_or(14)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_scale_is_the_smallest_possible() {
        for (bytes, scale) in [(65_535, 0), (65_536, 1), (1 << 20, 5), (4 << 20, 7), (1 << 30, 14)] {
            assert_eq!(scale_for(bytes), scale, "{bytes}");
        }
    }

    #[test]
    fn listener_matches_its_address_port_and_family() {
        let is_for = |listen: &str, local: &str| {
            let remote = if local.starts_with('[') { "[fd00::9]:7" } else { "10.0.0.9:7" };
            Listener::new(&listen.parse().unwrap()).is_for(&Tuple::new(local.parse().unwrap(), remote.parse().unwrap()))
        };
        for (listen, local) in [
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("0.0.0.0:80", "10.0.0.1:80"),
            ("[fd00::1]:80", "[fd00::1]:80"),
            ("[::]:80", "[fd00::1]:80"),
        ] {
            assert!(is_for(listen, local), "{listen} {local}");
        }
        for (listen, local) in [
            ("10.0.0.1:80", "10.0.0.2:80"),
            ("10.0.0.1:80", "10.0.0.1:81"),
            ("0.0.0.0:80", "10.0.0.1:81"),
            ("0.0.0.0:80", "[fd00::1]:80"),
            ("[fd00::1]:80", "[fd00::2]:80"),
            ("[::]:80", "10.0.0.1:80"),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
        ] {
            assert!(!is_for(listen, local), "{listen} {local}");
        }
    }
}
