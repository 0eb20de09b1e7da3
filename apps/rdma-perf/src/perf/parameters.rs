//! Test parameters, and their encoding in the connection manager's private data.

use linerate_rdma::provider::{DeviceLimits, TransportKind};
use std::fmt;

/// Maximum message size in bytes.
pub const MOST_BYTES: u32 = 8 << 20;
/// Maximum number of messages, which excludes overflow in sums.
pub const MOST_MESSAGES: u64 = 1 << 40;
/// Minimum number of messages, as in perftest.
pub const LEAST_MESSAGES: u64 = 5;
/// Maximum depth of a queue.
pub const MOST_DEPTH: u16 = 16_384;
/// Maximum requests per post call.
pub const MOST_LIST: u16 = 32;
/// Unmeasured requests: the final message, and a probe.
pub(super) const BESIDE: u32 = 2;

/// Operation that carries the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// SEND into posted buffers.
    Send,
    /// WRITE into memory.
    Write,
    /// READ.
    Read,
    /// Atomic operation.
    Atomic(AtomicKind),
}

/// Type of atomic operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicKind {
    /// FETCH_AND_ADD.
    FetchAdd,
    /// COMPARE_AND_SWAP (CMP_AND_SWP).
    CompareSwap,
}

/// Size of an atomic operand in bytes.
pub(super) const NUMBER: u32 = 8;

/// Measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Round-trip latency.
    Latency,
    /// Bandwidth.
    Bandwidth,
}

/// Test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// Operation.
    pub verb: Verb,
    /// Measured quantity.
    pub kind: Kind,
}

/// Test parameters, named like perftest's options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Test.
    pub test: Test,
    /// `--size`: message size in bytes.
    pub size: u32,
    /// `--iters`: messages of an end.
    pub messages: u64,
    /// `--tx-depth`: outstanding requests.
    pub tx_depth: u16,
    /// `--rx-depth`: posted buffers.
    pub rx_depth: u16,
    /// `--post_list`: requests per post call.
    pub list: u16,
    /// `--cq-mod`: interval of signalled requests.
    pub signal_every: u16,
    /// `--inline_size`: maximum inline size, within the limit of each device.
    pub inline: u16,
    /// `--outs`: outstanding READ or atomic operations, within the limits of both devices.
    pub reads: u8,
    /// `--bidirectional`: both ends send.
    pub bidirectional: bool,
}

/// Reason why a test is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The ends are of different releases.
    #[error("another release of linerate: use the same release at both ends")]
    Version,
    /// The ends were started for different tests.
    #[error("started for `linerate-rdma-perf {0}`: start both ends with the same test")]
    Test(Test),
    /// The message size is out of range.
    #[error("the operation supports messages of 1 to {0} bytes: change -s")]
    Size(u32),
    /// The queue depth exceeds the device's limit.
    #[error("the device has queues of at most {0} requests: reduce -t and -r")]
    Depth(u32),
    /// The device has no atomic operations.
    #[error("the device has no atomic operations: `linerate rdma info` shows which have them")]
    NoAtomics,
    /// Over iWARP, a message without a buffer ends the connection.
    #[error(
        "over iWARP a message without a buffer ends the connection, and nothing paces the sender: use `send lat` or another \
         operation"
    )]
    IwarpSend,
    /// Over iWARP, the client must send first.
    #[error("over iWARP the server cannot send first: remove -b")]
    IwarpBidirectional,
    /// A parameter is invalid.
    #[error("invalid {}", .0.name())]
    Malformed(Malformed),
    /// Another client is being served.
    #[error("another client is being measured: wait until it has finished")]
    Busy,
    /// The address belongs to another device.
    #[error("the address is not on the device: use another address or another -d")]
    Elsewhere,
    /// The server failed to prepare the test.
    #[error("the test could not be prepared: see the log of that end")]
    Failed,
}

/// Invalid parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Number of messages.
    Messages,
    /// Send queue depth.
    TxDepth,
    /// Receive queue depth.
    RxDepth,
    /// List length, with this depth.
    List,
    /// Signal interval, with this depth and list length.
    SignalEvery,
    /// Outstanding READs: none.
    Reads,
    /// Size of atomic operations.
    AtomicSize,
    /// Address.
    Address,
}

impl Malformed {
    const ALL: [Malformed; 8] = [
        Malformed::Messages,
        Malformed::TxDepth,
        Malformed::RxDepth,
        Malformed::List,
        Malformed::SignalEvery,
        Malformed::Reads,
        Malformed::AtomicSize,
        Malformed::Address,
    ];

    fn name(self) -> &'static str {
        match self {
            Malformed::Messages => "-n: at least 5",
            Malformed::TxDepth => "-t: 1 to 16384",
            Malformed::RxDepth => "-r: 1 to 16384",
            Malformed::List => "-l: 1 to 32, and -t must be a multiple of it",
            Malformed::SignalEvery => "-Q: a multiple of -l, and at most -t",
            Malformed::Reads => "-o: at least 1",
            Malformed::AtomicSize => "-s: atomic operations have 8 bytes",
            Malformed::Address => "memory address",
        }
    }
}

impl Test {
    /// Returns true if a server of this test serves `requested`: for atomic tests, any atomic operation.
    pub(super) fn serves(self, requested: Test) -> bool {
        self == requested || self.is_atomic() && requested.is_atomic() && self.kind == requested.kind
    }

    pub(super) fn is_atomic(self) -> bool {
        matches!(self.verb, Verb::Atomic(_))
    }

    /// Returns true if both ends send in turn, regardless of other parameters.
    fn is_ping_pong(self) -> bool {
        self.kind == Kind::Latency && matches!(self.verb, Verb::Send | Verb::Write)
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.verb {
            Verb::Send => "send",
            Verb::Write => "write",
            Verb::Read => "read",
            Verb::Atomic(_) => "atomic",
        };
        let kind = match self.kind {
            Kind::Latency => "lat",
            Kind::Bandwidth => "bw",
        };
        write!(f, "{verb} {kind}")
    }
}

impl Parameters {
    /// Returns perftest's defaults: 2 bytes, one message at a time for latency; 64 kB, 128 messages outstanding for
    /// bandwidth; 8 bytes for atomic operations.
    pub fn new(test: Test) -> Self {
        let is_latency = test.kind == Kind::Latency;
        let is_signalled = is_latency && test.verb != Verb::Send;
        let tx_depth = if is_latency { 50 } else { 128 };
        Parameters {
            test,
            size: match test.verb {
                Verb::Atomic(_) => NUMBER,
                _ if is_latency => 2,
                _ => 65_536,
            },
            messages: if test == (Test { verb: Verb::Write, kind: Kind::Bandwidth }) { 5000 } else { 1000 },
            tx_depth,
            rx_depth: 512,
            list: 1,
            signal_every: if is_signalled { 1 } else { tx_depth.min(100) },
            inline: 0,
            reads: 16,
            bidirectional: false,
        }
    }

    /// Returns true if both ends have measured requests.
    pub(super) fn is_mutual(&self) -> bool {
        self.bidirectional || self.test.is_ping_pong()
    }

    /// Returns the number of messages that an end receives.
    pub(super) fn expected(&self, is_client: bool) -> u64 {
        let is_sent = self.test.verb == Verb::Send && (!is_client || self.is_mutual());
        if is_sent { self.messages } else { 0 }
    }

    /// Returns the number of buffers that an end posts at first, one of which is for the final message.
    pub(super) fn buffers(&self, is_client: bool) -> u32 {
        u64::from(self.rx_depth).min(self.expected(is_client)) as u32 + 1
    }

    /// Checks the parameters against a device's `limits` and maximum message size.
    pub fn check(&self, limits: &DeviceLimits, message: u32) -> Result<(), Refusal> {
        let is_latency = self.test.kind == Kind::Latency;
        let most = message.min(MOST_BYTES);
        if !(1..=most).contains(&self.size) {
            return Err(Refusal::Size(most));
        }
        let is_multiple = |of: u16, by: u16| of.checked_rem(by) == Some(0);
        for (is_sensible, malformed) in [
            ((LEAST_MESSAGES..=MOST_MESSAGES).contains(&self.messages), Malformed::Messages),
            ((1..=MOST_DEPTH).contains(&self.tx_depth), Malformed::TxDepth),
            ((1..=MOST_DEPTH).contains(&self.rx_depth), Malformed::RxDepth),
            (self.list <= MOST_LIST && is_multiple(self.tx_depth, self.list), Malformed::List),
            (!is_latency || self.list == 1, Malformed::List),
            (self.signal_every <= self.tx_depth && is_multiple(self.signal_every, self.list), Malformed::SignalEvery),
            (self.signal_every > 0, Malformed::SignalEvery),
            (self.reads > 0, Malformed::Reads),
            (self.size == NUMBER || !self.test.is_atomic(), Malformed::AtomicSize),
        ] {
            if !is_sensible {
                return Err(Refusal::Malformed(malformed));
            }
        }
        if self.test.is_atomic() && !limits.atomics.any() {
            return Err(Refusal::NoAtomics);
        }
        let depth = (u32::from(self.tx_depth) + BESIDE).max(self.buffers(false));
        if depth > limits.qp_wrs {
            return Err(Refusal::Depth(limits.qp_wrs.saturating_sub(BESIDE)));
        }
        if limits.transport == TransportKind::Iwarp {
            if self.bidirectional {
                return Err(Refusal::IwarpBidirectional);
            }
            if self.test == (Test { verb: Verb::Send, kind: Kind::Bandwidth }) {
                return Err(Refusal::IwarpSend);
            }
        }
        Ok(())
    }
}

/// Memory of an end.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct RemoteMemory {
    pub address: u64,
    pub rkey: u32,
}

/// Request of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TestRequest {
    pub parameters: Parameters,
    pub memory: RemoteMemory,
}

const ASK: [u8; 4] = *b"LRpA";
const ANSWER: [u8; 4] = *b"LRpB";
const REFUSAL: [u8; 4] = *b"LRpC";
const VERSION: u8 = 1;
/// Encoded size in bytes.
const ASK_LEN: usize = 48;
const ANSWER_LEN: usize = 20;
const REFUSAL_LEN: usize = 12;

impl Test {
    fn write(self) -> [u8; 2] {
        let verb = match self.verb {
            Verb::Send => 0,
            Verb::Write => 1,
            Verb::Read => 2,
            Verb::Atomic(AtomicKind::FetchAdd) => 3,
            Verb::Atomic(AtomicKind::CompareSwap) => 4,
        };
        [verb, (self.kind == Kind::Bandwidth).into()]
    }

    fn read([verb, kind]: [u8; 2]) -> Option<Test> {
        let verb = match verb {
            0 => Verb::Send,
            1 => Verb::Write,
            2 => Verb::Read,
            3 => Verb::Atomic(AtomicKind::FetchAdd),
            4 => Verb::Atomic(AtomicKind::CompareSwap),
            _ => return None,
        };
        let kind = match kind {
            0 => Kind::Latency,
            1 => Kind::Bandwidth,
            _ => return None,
        };
        Some(Test { verb, kind })
    }
}

/// Reader of big-endian numbers.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

impl TestRequest {
    pub fn write(&self) -> Vec<u8> {
        let Parameters { size, messages, tx_depth, rx_depth, list, signal_every, inline, reads, .. } = self.parameters;
        let mut bytes = Vec::with_capacity(ASK_LEN);
        bytes.extend(ASK);
        bytes.extend([VERSION, self.parameters.bidirectional.into()]);
        bytes.extend(self.parameters.test.write());
        bytes.extend(size.to_be_bytes());
        bytes.extend(messages.to_be_bytes());
        for number in [tx_depth, rx_depth, list, signal_every, inline] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend([reads, 0, 0, 0]);
        bytes.extend(self.memory.address.to_be_bytes());
        bytes.extend(self.memory.rkey.to_be_bytes());
        bytes.resize(ASK_LEN, 0);
        bytes
    }

    /// Parses a client's request. Returns `None` for another program, and an error for invalid parameters.
    pub fn read(bytes: &[u8]) -> Option<Result<TestRequest, Refusal>> {
        let mut reader = Reader(bytes);
        if reader.take()? != ASK {
            return None;
        }
        let [version, flags] = reader.take()?;
        if version != VERSION {
            return Some(Err(Refusal::Version));
        }
        let test = reader.take().and_then(Test::read)?;
        let parameters = Parameters {
            test,
            size: u32::from_be_bytes(reader.take()?),
            messages: u64::from_be_bytes(reader.take()?),
            tx_depth: u16::from_be_bytes(reader.take()?),
            rx_depth: u16::from_be_bytes(reader.take()?),
            list: u16::from_be_bytes(reader.take()?),
            signal_every: u16::from_be_bytes(reader.take()?),
            inline: u16::from_be_bytes(reader.take()?),
            reads: reader.take::<4>()?[0],
            bidirectional: flags & 1 != 0 && test.kind == Kind::Bandwidth,
        };
        let memory = RemoteMemory::read(&mut reader)?;
        // The device checks that the range is the peer's memory; here only its end must not overflow.
        let is_there = memory.address.checked_add(u64::from(parameters.size)).is_some();
        Some(if is_there {
            Ok(TestRequest { parameters, memory })
        } else {
            Err(Refusal::Malformed(Malformed::Address))
        })
    }
}

impl RemoteMemory {
    fn read(reader: &mut Reader<'_>) -> Option<RemoteMemory> {
        let address = u64::from_be_bytes(reader.take()?);
        Some(RemoteMemory { address, rkey: u32::from_be_bytes(reader.take()?) })
    }

    /// Encodes the server's reply.
    pub fn write_answer(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ANSWER_LEN);
        bytes.extend(ANSWER);
        bytes.extend([VERSION, 0, 0, 0]);
        bytes.extend(self.address.to_be_bytes());
        bytes.extend(self.rkey.to_be_bytes());
        bytes
    }

    /// Parses a server's reply; `None` for another program.
    pub fn read_answer(bytes: &[u8]) -> Option<RemoteMemory> {
        let mut reader = Reader(bytes);
        let is_ours = reader.take()? == ANSWER && reader.take::<4>()?[0] == VERSION;
        if is_ours { RemoteMemory::read(&mut reader) } else { None }
    }
}

impl Refusal {
    pub(super) fn write(self) -> [u8; REFUSAL_LEN] {
        let (code, [a, b], number) = match self {
            Refusal::Version => (0, [0; 2], 0),
            Refusal::Test(test) => (1, test.write(), 0),
            Refusal::Size(most) => (2, [0; 2], most),
            Refusal::Depth(most) => (3, [0; 2], most),
            Refusal::IwarpSend => (4, [0; 2], 0),
            Refusal::IwarpBidirectional => (5, [0; 2], 0),
            Refusal::Malformed(malformed) => (6, [malformed as u8, 0], 0),
            Refusal::Busy => (7, [0; 2], 0),
            Refusal::Elsewhere => (8, [0; 2], 0),
            Refusal::Failed => (9, [0; 2], 0),
            Refusal::NoAtomics => (10, [0; 2], 0),
        };
        let mut bytes = [0; REFUSAL_LEN];
        bytes[..4].copy_from_slice(&REFUSAL);
        bytes[4..8].copy_from_slice(&[code, a, b, 0]);
        bytes[8..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// Parses a refusal; `None` for another program.
    pub(super) fn read(bytes: &[u8]) -> Option<Refusal> {
        let mut reader = Reader(bytes);
        if reader.take()? != REFUSAL {
            return None;
        }
        let [code, a, b, _] = reader.take()?;
        let number = u32::from_be_bytes(reader.take()?);
        Some(match code {
            0 => Refusal::Version,
            1 => Refusal::Test(Test::read([a, b])?),
            2 => Refusal::Size(number),
            3 => Refusal::Depth(number),
            4 => Refusal::IwarpSend,
            5 => Refusal::IwarpBidirectional,
            6 => Refusal::Malformed(*Malformed::ALL.get(usize::from(a))?),
            7 => Refusal::Busy,
            8 => Refusal::Elsewhere,
            9 => Refusal::Failed,
            10 => Refusal::NoAtomics,
            _ => return None,
        })
    }
}
