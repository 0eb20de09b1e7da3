//! Parameters that a specification leaves to the implementation, peers, and configuration settings.

use super::segment::SEG;
use linerate_service::time::Duration;
use linerate_stack::Config;

/// Engine under test.
pub type Engine = linerate_stack::NativeEngine<linerate_bypass::memory_nic::MemoryPacket>;

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Maximum delay of an acknowledgement. RFC 9293 §3.8.6.3 requires less than 500 ms.
pub const DELAYED_ACK: Duration = ms(40);
/// Retransmission timeout before the first RTT sample (RFC 6298 §2.1).
pub const INITIAL_RTO: Duration = secs(1);
/// Minimum retransmission timeout of an unknown peer. RFC 6298 §2.4 recommends 1 s.
pub const RTO_FLOOR: Duration = ms(200);
/// Minimum retransmission timeout once the peer's delayed-ACK time is known.
pub const LEARNT_RTO_FLOOR: Duration = ms(5);
/// Maximum retransmission timeout. RFC 6298 §2.5 requires at least 60 s.
pub const RTO_CEILING: Duration = secs(120);
/// Initial window in segments (RFC 6928 §2).
pub const INITIAL_WINDOW: i64 = 10;
/// Maximum challenge ACKs of one connection per [`CHALLENGE_PERIOD`] (RFC 5961 §7).
pub const CHALLENGES: usize = 10;
/// Period of the challenge ACK limit.
pub const CHALLENGE_PERIOD: Duration = secs(5);
/// Duration of TIME-WAIT. RFC 9293 §3.4.2 permits implementations to choose it.
pub const TIME_WAIT: Duration = secs(60);
/// Ticks of the timestamp clock per second. RFC 7323 §5.4: a tick lasts 1 ms to 1 s.
pub const TIMESTAMP_HZ: u64 = 1000;
/// Lower bound of path MTU discovery. RFC 1191 §3 permits 68. A higher bound limits attacks (RFC 5927 §7).
pub const MIN_PMTU: u16 = 552;

/// Returns the tolerance of a timer: the tick of the timing wheel and the rounding of a millisecond clock.
pub fn tolerance(of: Duration) -> Duration {
    ms(4).max(of / 50)
}

/// Returns the retransmission timeout after one RTT sample (RFC 6298 §2.2, §2.4).
pub fn rto_after(rtt: Duration) -> Duration {
    (3 * rtt).max(RTO_FLOOR)
}

/// Scripted peer: the options of its SYN and its distance.
#[derive(Debug, Clone)]
pub struct Peer {
    /// MSS option. By default it gives segments of [`SEG`] bytes.
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub sack: bool,
    pub timestamps: bool,
    pub ecn: bool,
    /// Window field of its segments, unless the segment sets it.
    pub window: u16,
    /// Delay of its reply during the handshake.
    pub rtt: Duration,
    pub ipv6: bool,
}

/// Returns a peer with an MSS of [`SEG`], no other option, and no delay.
pub fn peer() -> Peer {
    Peer {
        mss: Some(SEG as u16),
        window_scale: None,
        sack: false,
        timestamps: false,
        ecn: false,
        window: 65535,
        rtt: Duration::ZERO,
        ipv6: false,
    }
}

impl Peer {
    pub fn sack(self) -> Self {
        Peer { sack: true, ..self }
    }

    /// Adds timestamps and raises the MSS by their size, so that segments still carry [`SEG`] bytes (RFC 6691 §2).
    pub fn timestamps(self) -> Self {
        Peer { timestamps: true, mss: self.mss.map(|mss| mss + 12), ..self }
    }

    pub fn mss(self, mss: u16) -> Self {
        Peer { mss: Some(mss), ..self }
    }

    pub fn window_scale(self, shift: u8) -> Self {
        Peer { window_scale: Some(shift), ..self }
    }

    pub fn ecn(self) -> Self {
        Peer { ecn: true, ..self }
    }

    pub fn window(self, window: u16) -> Self {
        Peer { window, ..self }
    }

    pub fn rtt(self, rtt: Duration) -> Self {
        Peer { rtt, ..self }
    }

    pub fn ipv6(self) -> Self {
        Peer { ipv6: true, ..self }
    }
}

/// Configuration settings, by purpose.
pub mod settings {
    use super::*;
    use linerate_stack::Keepalive;
    use linerate_stack::congestion::Algorithm;

    /// Enables Nagle's algorithm.
    pub fn nagle(config: &mut Config) {
        config.nagle = true;
    }

    pub fn ecn(config: &mut Config) {
        config.ecn = true;
    }

    /// Selects NewReno.
    pub fn newreno(config: &mut Config) {
        config.congestion = Algorithm::NewReno;
    }

    /// Selects DCTCP, with ECN.
    pub fn dctcp(config: &mut Config) {
        config.congestion = Algorithm::Dctcp;
    }

    /// Sends keepalive probes after `idle`, every `interval`, and closes after `count` unanswered probes.
    pub fn keepalive(config: &mut Config, idle: Duration, interval: Duration, count: u32) {
        config.keepalive = Some(Keepalive { idle, interval, probes: count as u8 });
    }

    /// Sets the timeout of connection attempts.
    pub fn connect_timeout(config: &mut Config, timeout: Duration) {
        config.half_open_timeout = timeout;
    }

    /// Sets the maximum time that data may remain unacknowledged.
    pub fn user_timeout(config: &mut Config, timeout: Duration) {
        config.user_timeout = timeout;
        config.stall_timeout = None;
    }

    /// Sets the maximum receive window.
    pub fn receive_buffer(config: &mut Config, bytes: usize) {
        config.rx_buffer = Some(bytes);
    }

    pub fn send_buffer(config: &mut Config, bytes: usize) {
        config.tx_buffer = Some(bytes);
    }

    /// Sets the minimum retransmission timeout.
    pub fn rto_floor(config: &mut Config, floor: Duration) {
        config.rto_floor = floor;
    }
}
