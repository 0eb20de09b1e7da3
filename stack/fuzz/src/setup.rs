//! What the endpoint and its link are like: the first bytes of an input choose it.

use arbitrary::Arbitrary;
use linerate_bypass::memory_nic::LinkConfig;
use linerate_bypass::time::Duration;
use linerate_stack::congestion::Algorithm;
use linerate_stack::{Config, Keepalive};

/// Bytes of an input that [`Setup::read`] takes.
pub const LEN: usize = 6;

/// Choices, a bit or a few each.
#[derive(Debug, Clone, Copy, Default, Arbitrary)]
pub struct Setup {
    /// The network and the endpoint, see the methods.
    pub bits: u32,
    /// The peer's window scale in its lower half, the beginning of its sequence numbers in the upper.
    pub peer: u8,
    /// What the endpoint's service does unasked, and how the run ends.
    pub habits: u8,
}

impl Setup {
    /// The choices at the beginning of `data`, and the rest of it.
    pub fn read(data: &[u8]) -> (Setup, &[u8]) {
        let Some((&[a, b, c, d, peer, habits], rest)) = data.split_first_chunk::<LEN>() else {
            return (Setup::default(), &[]);
        };
        (Setup { bits: u32::from_le_bytes([a, b, c, d]), peer, habits }, rest)
    }

    /// The endpoint asks silent peers for a sign of life; a bit.
    pub const KEEPALIVE: u32 = 1 << 25;
    /// The service reads nothing unless it is told to; a habit.
    pub const HOLDS: u8 = 1;
    /// The service sends back what it reads; a habit.
    pub const ECHOES: u8 = 2;
    /// The peer falls silent before the end; a habit.
    pub const SILENCE: u8 = 16;

    /// The service answers what it reads with as many bytes of its own; a habit.
    pub const ANSWERS: u8 = 32;
    /// It does so before it reads; a habit.
    pub const ANSWERS_FIRST: u8 = 64;
    /// It reserves more than it writes; a habit.
    pub const RESERVES: u8 = 128;

    fn bit(self, n: u32) -> bool {
        self.bits >> n & 1 != 0
    }

    /// The first flow is of IPv6.
    pub fn six(self) -> bool {
        self.bit(0)
    }

    /// The peer's SYN has timestamps.
    pub fn timestamps(self) -> bool {
        !self.bit(1)
    }

    /// The peer's SYN permits SACK.
    pub fn sack(self) -> bool {
        !self.bit(2)
    }

    /// The peer scales its windows.
    pub fn window_scale(self) -> Option<u8> {
        (!self.bit(3)).then_some(self.peer & 15)
    }

    /// The peer asks for ECN.
    pub fn ecn(self) -> bool {
        self.bit(4)
    }

    /// The peer's first sequence number: in some runs just before numbers wrap.
    pub fn isn(self) -> u32 {
        match self.peer >> 4 {
            0..4 => 1000,
            4..8 => u32::MAX - 3,
            8..12 => (1 << 31) - 2,
            n => u32::from(n) << 28,
        }
    }

    /// The service reads nothing unless it is told to.
    pub fn holds(self) -> bool {
        self.habits & Self::HOLDS != 0
    }

    /// The service sends back what it reads.
    pub fn echoes(self) -> bool {
        self.habits & Self::ECHOES != 0
    }

    /// The service answers what it reads with as many bytes of its own.
    pub fn answers(self) -> bool {
        self.habits & Self::ANSWERS != 0
    }

    /// It does so before it reads.
    pub fn answers_first(self) -> bool {
        self.habits & Self::ANSWERS_FIRST != 0
    }

    /// It reserves more than it writes. Neither of both: it answers in one step.
    pub fn reserves(self) -> bool {
        self.habits & Self::RESERVES != 0
    }

    /// Connections that the service asks for when it starts.
    pub fn dials(self) -> u8 {
        self.habits >> 2 & 3
    }

    /// Before the run ends, the peer is silent for so long that whatever waits for it is given up.
    pub fn ends_in_silence(self) -> bool {
        self.habits & Self::SILENCE != 0
    }

    /// The link.
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

    /// The endpoint: `10.0.0.2` and `fd00::2`, listening on port 7.
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

/// How long a peer may leave data unanswered.
pub const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// Signs of life that a silent peer is asked for.
const KEEPALIVE: Keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(5), probes: 3 };
