//! What the scripts take for granted where a specification leaves the engine a choice, and the names of settings.

use super::segment::SEG;
use linerate_bypass::ConnId;
use linerate_bypass::time::Duration;
use linerate_stack::Config;

/// The engine under test. This is the one place that names it.
pub type Engine = linerate_stack::NativeEngine<linerate_bypass::memory_nic::MemoryPacket>;

/// Panics unless everything holds that must hold in the engine after every turn.
pub fn assert_consistent(engine: &Engine) {
    engine.assert_consistent();
}

/// Whether `conn` is a connection whose ends take turns, which has an exchange in place of buffers.
pub fn is_exchanging(engine: &Engine, conn: ConnId) -> bool {
    engine.in_rr_mode(conn)
}

/// Whether the engine under test is the native one, which every script is written for.
pub const NATIVE: bool = true;

/// Ends the script here when the engine under test is not the native one: a behaviour that smoltcp's sockets do not have.
///
/// The environment variable `LINERATE_SCRIPTS_ALL` runs them all the same, to see which of these marks are due.
macro_rules! native_only {
    () => {
        if !$crate::scripts::harness::runs_native_scripts() {
            return;
        }
    };
}
pub(crate) use native_only;

/// Whether scripts marked with `native_only!` run.
pub fn runs_native_scripts() -> bool {
    NATIVE || std::env::var_os("LINERATE_SCRIPTS_ALL").is_some()
}

/// `n` milliseconds.
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// `n` seconds.
pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The longest that an acknowledgement is delayed. RFC 9293 §3.8.6.3: less than 500 ms.
pub const DELAYED_ACK: Duration = ms(40);
/// The retransmission time-out before there is a round-trip time. RFC 6298 §2.1.
pub const INITIAL_RTO: Duration = secs(1);
/// The least retransmission time-out of an unknown peer. RFC 6298 §2.4 says a second, and that less is being tried.
pub const RTO_FLOOR: Duration = ms(200);
/// The least once the peer's delay of acknowledgements has been learnt.
pub const LEARNT_RTO_FLOOR: Duration = ms(5);
/// The most. RFC 6298 §2.5: at least a minute.
pub const RTO_CEILING: Duration = secs(120);
/// Segments of the initial window. RFC 6928 §2.
pub const INITIAL_WINDOW: i64 = 10;
/// Challenge ACKs of one connection in [`CHALLENGE_PERIOD`], at most. RFC 5961 §7.
pub const CHALLENGES: usize = 10;
/// See [`CHALLENGES`]; after so long without any, the next is answered.
pub const CHALLENGE_PERIOD: Duration = secs(5);
/// How long TIME-WAIT lasts. RFC 9293 §3.4.2 leaves it to the implementation within reason.
pub const TIME_WAIT: Duration = secs(60);
/// Ticks of the timestamp clock in a second. RFC 7323 §5.4: one tick is between 1 ms and 1 s.
pub const TIMESTAMP_HZ: u64 = 1000;
/// The MTU below which path MTU discovery does not go. RFC 1191 §3 allows 68; common systems stop here, and an attacker
/// gains less (RFC 5927 §7).
pub const MIN_PMTU: u16 = 552;

/// How far from its time a timer may fire: the wheel's tick, and what a clock of milliseconds rounds.
pub fn tolerance(of: Duration) -> Duration {
    ms(4).max(of / 50)
}

/// The retransmission time-out after a single measurement of the round-trip time. RFC 6298 §2.2, §2.4.
pub fn rto_after(rtt: Duration) -> Duration {
    (3 * rtt).max(RTO_FLOOR)
}

/// A peer of scripts: what its SYN says, and how far away it is.
#[derive(Debug, Clone)]
pub struct Peer {
    /// None: no option. Unless set, what makes segments carry [`SEG`] bytes.
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub sack: bool,
    pub timestamps: bool,
    pub ecn: bool,
    /// The window field of all its segments, unless they say otherwise.
    pub window: u16,
    /// How long it takes to answer during the handshake.
    pub rtt: Duration,
    pub ipv6: bool,
}

/// A peer with nothing but a maximum segment size of [`SEG`], right here.
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
    /// With SACK-permitted.
    pub fn sack(self) -> Self {
        Peer { sack: true, ..self }
    }

    /// With timestamps, and room for them beside [`SEG`] bytes (RFC 6691 §2).
    pub fn timestamps(self) -> Self {
        Peer { timestamps: true, mss: self.mss.map(|mss| mss + 12), ..self }
    }

    /// With this maximum segment size, the room for timestamps included.
    pub fn mss(self, mss: u16) -> Self {
        Peer { mss: Some(mss), ..self }
    }

    /// With this window scale.
    pub fn window_scale(self, shift: u8) -> Self {
        Peer { window_scale: Some(shift), ..self }
    }

    /// Asking for ECN.
    pub fn ecn(self) -> Self {
        Peer { ecn: true, ..self }
    }

    /// With this in the window field.
    pub fn window(self, window: u16) -> Self {
        Peer { window, ..self }
    }

    /// Answering after this time.
    pub fn rtt(self, rtt: Duration) -> Self {
        Peer { rtt, ..self }
    }

    /// Over IPv6.
    pub fn ipv6(self) -> Self {
        Peer { ipv6: true, ..self }
    }
}

/// Settings of the configuration, by what they mean.
pub mod settings {
    use super::*;
    use linerate_stack::Keepalive;
    use linerate_stack::congestion::Algorithm;

    /// Delays small segments while data is in flight (Nagle's algorithm).
    pub fn nagle(config: &mut Config) {
        config.nagle = true;
    }

    /// Asks for and grants ECN.
    pub fn ecn(config: &mut Config) {
        config.ecn = true;
    }

    /// Congestion control by NewReno.
    pub fn newreno(config: &mut Config) {
        config.congestion = Algorithm::NewReno;
    }

    /// Congestion control by DCTCP, with ECN.
    pub fn dctcp(config: &mut Config) {
        config.congestion = Algorithm::Dctcp;
    }

    /// Keepalive probes after `idle`, every `interval`, at most `count` unanswered.
    pub fn keepalive(config: &mut Config, idle: Duration, interval: Duration, count: u32) {
        config.keepalive = Some(Keepalive { idle, interval, probes: count as u8 });
    }

    /// How long our own connection attempts may take.
    pub fn connect_timeout(config: &mut Config, timeout: Duration) {
        config.half_open_timeout = timeout;
    }

    /// How long data may go unacknowledged.
    pub fn user_timeout(config: &mut Config, timeout: Duration) {
        config.user_timeout = timeout;
        config.stall_timeout = None;
    }

    /// The largest receive window.
    pub fn receive_buffer(config: &mut Config, bytes: usize) {
        config.rx_buffer = Some(bytes);
    }

    /// The bytes that the service may write before the peer acknowledges any.
    pub fn send_buffer(config: &mut Config, bytes: usize) {
        config.tx_buffer = Some(bytes);
    }

    /// The least retransmission time-out.
    pub fn rto_floor(config: &mut Config, floor: Duration) {
        config.rto_floor = floor;
    }
}
