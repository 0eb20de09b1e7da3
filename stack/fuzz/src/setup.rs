//! Configuration of the endpoint and its link, chosen by the first bytes of an input.

use arbitrary::Arbitrary;
use linerate_bypass::memory_nic::LinkConfig;
use linerate_service::time::Duration;
use linerate_stack::congestion::Algorithm;
use linerate_stack::{Config, Keepalive};

/// Number of input bytes that [`Setup::read`] takes.
pub const LEN: usize = 6;

/// Choices of one bit or a few bits each.
#[derive(Debug, Clone, Copy, Default, Arbitrary)]
pub struct Setup {
    /// Bits of the network and the endpoint; see the methods.
    pub bits: u32,
    /// Window scale of the peer in the lower half, base of its sequence numbers in the upper half.
    pub peer: u8,
    /// Behaviour of the endpoint's service, and the end of the run.
    pub habits: u8,
}

impl Setup {
    /// Reads the choices at the beginning of `data` and returns the rest.
    pub fn read(data: &[u8]) -> (Setup, &[u8]) {
        let Some((&[a, b, c, d, peer, habits], rest)) = data.split_first_chunk::<LEN>() else {
            return (Setup::default(), &[]);
        };
        (Setup { bits: u32::from_le_bytes([a, b, c, d]), peer, habits }, rest)
    }

    /// Bit: the endpoint sends keepalive probes.
    pub const KEEPALIVE: u32 = 1 << 25;
    /// Habit: the service reads only on request.
    pub const HOLDS: u8 = 1;
    /// Habit: the service echoes the data it reads.
    pub const ECHOES: u8 = 2;
    /// Habit: the peer becomes silent before the end.
    pub const SILENCE: u8 = 16;

    /// Habit: the service answers with as many bytes of its own.
    pub const ANSWERS: u8 = 32;
    /// Habit: the service answers before it reads.
    pub const ANSWERS_FIRST: u8 = 64;
    /// Habit: the service reserves more than it writes.
    pub const RESERVES: u8 = 128;

    fn bit(self, n: u32) -> bool {
        self.bits >> n & 1 != 0
    }

    /// Returns true if the first flow is IPv6.
    pub fn six(self) -> bool {
        self.bit(0)
    }

    /// Returns true if the peer's SYN has timestamps.
    pub fn timestamps(self) -> bool {
        !self.bit(1)
    }

    /// Returns true if the peer's SYN permits SACK.
    pub fn sack(self) -> bool {
        !self.bit(2)
    }

    /// Returns the window scale of the peer.
    pub fn window_scale(self) -> Option<u8> {
        (!self.bit(3)).then_some(self.peer & 15)
    }

    /// Returns true if the peer requests ECN.
    pub fn ecn(self) -> bool {
        self.bit(4)
    }

    /// Returns the peer's initial sequence number, in some runs just before a wrap.
    pub fn isn(self) -> u32 {
        match self.peer >> 4 {
            0..4 => 1000,
            4..8 => u32::MAX - 3,
            8..12 => (1 << 31) - 2,
            n => u32::from(n) << 28,
        }
    }

    /// Returns true if the service reads only on request.
    pub fn holds(self) -> bool {
        self.habits & Self::HOLDS != 0
    }

    /// Returns true if the service echoes the data it reads.
    pub fn echoes(self) -> bool {
        self.habits & Self::ECHOES != 0
    }

    /// Returns true if the service answers with as many bytes of its own.
    pub fn answers(self) -> bool {
        self.habits & Self::ANSWERS != 0
    }

    /// Returns true if the service answers before it reads.
    pub fn answers_first(self) -> bool {
        self.habits & Self::ANSWERS_FIRST != 0
    }

    /// Returns true if the service reserves more than it writes. Without this habit and
    /// [`ANSWERS_FIRST`](Self::ANSWERS_FIRST) it answers in one call.
    pub fn reserves(self) -> bool {
        self.habits & Self::RESERVES != 0
    }

    /// Returns the number of connections that the service opens at start.
    pub fn dials(self) -> u8 {
        self.habits >> 2 & 3
    }

    /// Returns true if the peer is silent before the run ends, until all waiting connections time out.
    pub fn ends_in_silence(self) -> bool {
        self.habits & Self::SILENCE != 0
    }

    pub fn link(self) -> LinkConfig {
        let multi_segment = !self.bit(8);
        let checksum_offload = self.bit(9);
        LinkConfig {
            mtu: if self.bit(10) { 576 } else { 1500 },
            pool: if self.bit(11) { 96 } else { 400 },
            checksum_offload,
            multi_segment,
            tso: (multi_segment && checksum_offload && self.bit(12)).then_some(65_000),
            ..LinkConfig::default()
        }
    }

    /// Returns the endpoint: `10.0.0.2` and `fd00::2`, listening on port 7.
    pub fn endpoint(self) -> Config {
        let any = |port| vec![format!("0.0.0.0:{port}").parse(), format!("[::]:{port}").parse()];
        let listen = |port| any(port).into_iter().map(|address| address.expect("an address")).collect();
        Config {
            addresses: ["10.0.0.2/24", "fd00::2/64"].map(|cidr| cidr.parse().expect("an address")).to_vec(),
            mac: Some(super::frames::ENDPOINT_MAC),
            dad_transmits: 0,
            listen: listen(7),
            listen_udp: if self.bit(13) { listen(7) } else { Vec::new() },
            max_connections: if self.bit(14) { 3 } else { 32 },
            max_half_open: if self.bit(15) { 1 } else { 8 },
            max_time_wait: if self.bit(15) { 1 } else { 64 },
            user_timeout: USER_TIMEOUT,
            rx_buffer: [None, Some(4 << 10), Some(64 << 10), Some(1 << 20)][self.bits as usize >> 16 & 3],
            tx_buffer: [None, Some(4 << 10), Some(64 << 10), Some(16 << 10)][self.bits as usize >> 18 & 3],
            congestion: Algorithm::ALL[(self.bits as usize >> 20 & 3) % 3],
            nagle: self.bit(23),
            ecn: self.bit(24),
            keepalive: (self.bits & Self::KEEPALIVE != 0).then_some(KEEPALIVE),
            seed: u128::from(self.bits >> 26),
            ..Config::default()
        }
    }
}

/// Maximum time for which a peer may leave data unacknowledged.
pub const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// Keepalive of a silent peer.
const KEEPALIVE: Keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(5), probes: 3 };
