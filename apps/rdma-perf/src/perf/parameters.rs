//! What is measured, and how: what the client tells the server, and what the server says to that.

use linerate_rdma::provider::{DeviceLimits, TransportKind};
use std::fmt;

/// Bytes of a message, at most.
pub const MOST_BYTES: u32 = 8 << 20;
/// Messages, at most: so many that no sum of them overflows.
pub const MOST_MESSAGES: u64 = 1 << 40;
/// Messages, at least, as perftest has it.
pub const LEAST_MESSAGES: u64 = 5;
/// Requests or buffers of a queue, at most.
pub const MOST_DEPTH: u16 = 16_384;
/// Requests posted by one call, at most.
pub const MOST_LIST: u16 = 32;
/// Requests that are none of those that are measured: the last, and one that asks whether the peer is there.
pub(super) const BESIDE: u32 = 2;

/// What messages are carried by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// SEND, into posted buffers.
    Send,
    /// WRITE, into memory.
    Write,
    /// READ.
    Read,
    /// An atomic operation.
    Atomic(AtomicKind),
}

/// Which atomic operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicKind {
    /// FETCH_AND_ADD.
    FetchAdd,
    /// COMPARE_AND_SWAP, or CMP_AND_SWP.
    CompareSwap,
}

/// Bytes that atomic operations are done with.
pub(super) const NUMBER: u32 = 8;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// How long there and back takes.
    Latency,
    /// How much goes through.
    Bandwidth,
}

/// A test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// What messages are carried by.
    pub verb: Verb,
    /// What is measured.
    pub kind: Kind,
}

/// How it is done: perftest's options of these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// The test.
    pub test: Test,
    /// `--size`: bytes of a message.
    pub size: u32,
    /// `--iters`: messages of an end.
    pub messages: u64,
    /// `--tx-depth`: requests under way at a time.
    pub tx_depth: u16,
    /// `--rx-depth`: buffers posted at a time.
    pub rx_depth: u16,
    /// `--post_list`: requests that are posted by one call.
    pub list: u16,
    /// `--cq-mod`: a completion is asked for at every so many requests.
    pub signal_every: u16,
    /// `--inline_size`: messages up to so many bytes are sent inline, as far as an end can.
    pub inline: u16,
    /// `--outs`: READs or atomic operations that an end has answered at a time, as far as both can.
    pub reads: u8,
    /// `--bidirectional`: both ends at once.
    pub bidirectional: bool,
}

/// Why a test cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The ends are of different releases.
    #[error("it is of another release of linerate: run the same at both ends")]
    Version,
    /// The ends are to do different tests.
    #[error("it was started for `rdma perf {0}`: start both ends with the same")]
    Test(Test),
    /// The size is none.
    #[error("messages have 1 to {0} bytes there: give such a -s")]
    Size(u32),
    /// The device has not as much.
    #[error("its device has queues of {0} requests at most: give less with -t and -r")]
    Depth(u32),
    /// Its device has none.
    #[error("its device does no atomic operations: `linerate rdma info` shows which do")]
    NoAtomics,
    /// Without buffers, iWARP's connections end.
    #[error(
        "over iWARP a message that finds no buffer ends the connection, and nothing keeps a sender from that: `send lat` and the \
         other verbs can be measured"
    )]
    IwarpSend,
    /// Over iWARP, who asked for a connection is the first to send.
    #[error("over iWARP the server may not begin, so that both ends cannot at once: leave -b out")]
    IwarpBidirectional,
    /// It makes no sense, of which this is the name.
    #[error("{} makes no sense", .0.name())]
    Malformed(Malformed),
    /// Another client is being served.
    #[error("another client is being measured: wait until it is through")]
    Busy,
    /// It was asked for by an address of another device.
    #[error("that address is not its device's: give another address, or its -d")]
    Elsewhere,
    /// It could not be prepared.
    #[error("it could not prepare the test, and says there why")]
    Failed,
}

/// What makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Of messages there are too few, or too many.
    Messages,
    /// The depth of the send queue.
    TxDepth,
    /// That of the receive queue.
    RxDepth,
    /// The list's length, with that depth.
    List,
    /// How seldom is signalled, with that depth and that list.
    SignalEvery,
    /// Nothing can be read.
    Reads,
    /// Atomic operations of another size.
    AtomicSize,
    /// An address.
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
            Malformed::Messages => "-n, of 5 at least,",
            Malformed::TxDepth => "-t, of 1 to 16384,",
            Malformed::RxDepth => "-r, of 1 to 16384,",
            Malformed::List => "-l, of 1 to 32, of which -t is a multiple,",
            Malformed::SignalEvery => "-Q, which is a multiple of -l, and at most -t,",
            Malformed::Reads => "-o, of 1 at least,",
            Malformed::AtomicSize => "-s, which is 8 of atomic operations,",
            Malformed::Address => "the address of the memory",
        }
    }
}

impl Test {
    /// Whether a server of this test does `asked`: any atomic operation, if one.
    pub(super) fn serves(self, asked: Test) -> bool {
        self == asked || self.is_atomic() && asked.is_atomic() && self.kind == asked.kind
    }

    pub(super) fn is_atomic(self) -> bool {
        matches!(self.verb, Verb::Atomic(_))
    }

    /// Whether both ends have requests that are measured, whatever else is asked for.
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
    /// What perftest does when it is not told otherwise. For latency that is a message of 2 bytes at a time, for bandwidth as many of
    /// 64 kB as 128. Atomic operations have eight bytes.
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

    /// Whether both ends have requests that are measured.
    pub(super) fn is_mutual(&self) -> bool {
        self.bidirectional || self.test.is_ping_pong()
    }

    /// Messages that come to an end's buffers.
    pub(super) fn expected(&self, is_client: bool) -> u64 {
        let is_sent = self.test.verb == Verb::Send && (!is_client || self.is_mutual());
        if is_sent { self.messages } else { 0 }
    }

    /// Buffers that an end posts before anything comes; one is for the last message, which says that all are through.
    pub(super) fn buffers(&self, is_client: bool) -> u32 {
        u64::from(self.rx_depth).min(self.expected(is_client)) as u32 + 1
    }

    /// Whether a device can do it: of what `limits` says, and for messages of `message` bytes.
    pub fn check(&self, limits: &DeviceLimits, message: u32) -> Result<(), Refusal> {
        let is_latency = self.test.kind == Kind::Latency;
        let most = message.min(MOST_BYTES);
        if !(1..=most).contains(&self.size) {
            return Err(Refusal::Size(most));
        }
        let is_multiple = |of: u16, by: u16| of.checked_rem(by) == Some(0);
        for (is_sensible, what) in [
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
                return Err(Refusal::Malformed(what));
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

/// Where an end's memory is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub address: u64,
    pub rkey: u32,
}

/// What a client asks a server for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    pub parameters: Parameters,
    pub place: Place,
}

const ASK: [u8; 4] = *b"LRpA";
const ANSWER: [u8; 4] = *b"LRpB";
const REFUSAL: [u8; 4] = *b"LRpC";
const VERSION: u8 = 1;
/// Bytes of each.
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

/// Takes numbers off the front of bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

impl Ask {
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
        bytes.extend(self.place.address.to_be_bytes());
        bytes.extend(self.place.rkey.to_be_bytes());
        bytes.resize(ASK_LEN, 0);
        bytes
    }

    /// What somebody asks for; `None`, if it is not a client of ours. What there is of it may make no sense.
    pub fn read(bytes: &[u8]) -> Option<Result<Ask, Refusal>> {
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
        let place = Place::read(&mut reader)?;
        // Whether that is its memory, its device sees; ours is not to count beyond the last address.
        let is_there = place.address.checked_add(u64::from(parameters.size)).is_some();
        Some(if is_there { Ok(Ask { parameters, place }) } else { Err(Refusal::Malformed(Malformed::Address)) })
    }
}

impl Place {
    fn read(reader: &mut Reader<'_>) -> Option<Place> {
        let address = u64::from_be_bytes(reader.take()?);
        Some(Place { address, rkey: u32::from_be_bytes(reader.take()?) })
    }

    /// The server's answer.
    pub fn write_answer(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ANSWER_LEN);
        bytes.extend(ANSWER);
        bytes.extend([VERSION, 0, 0, 0]);
        bytes.extend(self.address.to_be_bytes());
        bytes.extend(self.rkey.to_be_bytes());
        bytes
    }

    /// What a server answers; `None`, if it is not one of ours.
    pub fn read_answer(bytes: &[u8]) -> Option<Place> {
        let mut reader = Reader(bytes);
        let is_ours = reader.take()? == ANSWER && reader.take::<4>()?[0] == VERSION;
        if is_ours { Place::read(&mut reader) } else { None }
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
            Refusal::Malformed(what) => (6, [what as u8, 0], 0),
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

    /// What a server says; `None`, if it is not one of ours.
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
