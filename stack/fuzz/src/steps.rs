//! Sequences of segments and other events by a grammar. Numbers are relative to the state of the endpoint.

use super::frames::{self, ACK, SYN, Segment};
use super::probe::Op;
use super::raw::pause;
use super::rig::{Delivery, Rig, timestamp};
use super::setup::Setup;
use arbitrary::{Arbitrary, Unstructured};

const MOST_STEPS: usize = 64;
/// Maximum payload of one segment in bytes.
const MOST_PAYLOAD: usize = 20_000;

#[derive(Debug, Clone, Arbitrary)]
pub enum Step {
    /// The peer sends a segment.
    Send(Shape),
    /// The peer sends an ordinary segment: the next bytes, with an acknowledgement of everything.
    Next {
        flow: u8,
        len: u16,
        /// Flags in addition to ACK.
        flags: u8,
    },
    /// The peer opens a flow.
    Open(u8),
    /// The service runs an operation; with `true` the next one follows in the same turn.
    Run(u8, Op, bool),
    Pass(u8),
    /// Queued frames arrive in one burst.
    Settle,
    /// An ICMP message about the last segment of the endpoint on a flow.
    Icmp {
        flow: u8,
        /// Type and code of the message.
        kind: IcmpKind,
        /// Second word of its header, which holds the next-hop MTU.
        word: u32,
        /// Sequence number of the quoted segment.
        seq: SeqChoice,
    },
}

/// Kind of ICMP message.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum IcmpKind {
    /// Destination unreachable, with a code.
    Unreachable(u8),
    /// Fragmentation needed, or packet too big.
    TooBig,
    /// Any type and code.
    Other(u8, u8),
}

/// Sequence number relative to the endpoint's state.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum SeqChoice {
    /// Next expected number.
    Next,
    /// Near the next expected number.
    Near(i8),
    /// Farther away.
    Far(i16),
    /// Offset from the oldest unacknowledged byte, or from the right edge of the window.
    Other(i16),
    /// Absolute number.
    Any(u32),
}

/// Fields of a segment.
#[derive(Debug, Clone, Arbitrary)]
pub struct Shape {
    pub flow: u8,
    pub seq: SeqChoice,
    pub ack: SeqChoice,
    pub flags: Flags,
    pub window: u16,
    pub len: u16,
    pub options: Options,
    /// ECN field, and flags for division, verified checksums and duplication.
    pub how: u8,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Flags {
    Ack,
    /// FIN and ACK.
    Fin,
    /// RST.
    Reset,
    Syn,
    SynAck,
    Any(u8),
}

#[derive(Debug, Clone, Arbitrary)]
pub enum Options {
    Ordinary,
    None,
    /// Timestamps with offsets from the ordinary ones, and SACK blocks at offsets in the unacknowledged data.
    Sack(i8, i8, [(SeqChoice, u16); 3]),
    /// Options of an ordinary SYN, with this window scale and MSS.
    Syn(u8, u16),
    /// Arbitrary bytes.
    Any([u8; 12]),
}

/// Input parsed by the grammar.
#[derive(Debug, Clone, Arbitrary)]
struct Sequence {
    setup: Setup,
    steps: Vec<Step>,
}

/// Plays a sequence of steps on an endpoint with one connection.
pub fn sequences(data: &[u8]) {
    let Ok(Sequence { setup, steps }) = Sequence::arbitrary_take_rest(Unstructured::new(data)) else { return };
    play(setup, &steps);
}

/// Plays `steps` on an endpoint with one connection.
pub fn play(setup: Setup, steps: &[Step]) {
    let mut rig = Rig::new(setup);
    rig.open(0);
    for step in steps.iter().take(MOST_STEPS) {
        take(&mut rig, step);
    }
    rig.settle();
    rig.finish();
}

fn take(rig: &mut Rig, step: &Step) {
    match *step {
        Step::Send(ref shape) => send(rig, shape),
        Step::Next { flow, len, flags } => {
            let tuple = rig.tuple(flow);
            let segment = rig.next(&tuple, ACK | flags & (frames::FIN | frames::PSH), usize::from(len) % 1400);
            rig.send(&tuple, &segment, Delivery::default());
            rig.settle();
        }
        Step::Open(flow) => {
            rig.open(flow & 3);
        }
        Step::Run(flow, op, together) => {
            let tuple = rig.tuple(flow);
            if let Some(conn) = rig.conn(&tuple) {
                rig.run_op(conn, op);
                if !together {
                    rig.settle();
                }
            }
        }
        Step::Pass(byte) => rig.pass(pause(byte)),
        Step::Settle => rig.settle(),
        Step::Icmp { flow, kind, word, seq } => {
            let tuple = rig.tuple(flow);
            let seq = number(rig, flow, seq, false);
            let ipv4 = tuple.local.is_ipv4();
            let (kind, code) = match kind {
                IcmpKind::Unreachable(code) => (if ipv4 { 3 } else { 1 }, code),
                IcmpKind::TooBig => {
                    if ipv4 {
                        (3, 4)
                    } else {
                        (2, 0)
                    }
                }
                IcmpKind::Other(kind, code) => (kind, code),
            };
            rig.push(frames::icmp(&tuple, kind, code, word, seq), true, Delivery::default());
        }
    }
}

/// Returns the sequence number at `choice` of the stream to the endpoint, or from it.
fn number(rig: &mut Rig, flow: u8, choice: SeqChoice, to_endpoint: bool) -> u32 {
    let tuple = rig.tuple(flow);
    let known = rig.flow(tuple);
    let numbers = known.numbers();
    let next = if to_endpoint { known.ack } else { known.nxt };
    match choice {
        SeqChoice::Next => next,
        SeqChoice::Near(n) => next.wrapping_add_signed(n.into()),
        SeqChoice::Far(n) => next.wrapping_add_signed(n.into()),
        SeqChoice::Other(n) => {
            let other = numbers.map(|numbers| if to_endpoint { numbers.rcv_edge } else { numbers.una });
            other.unwrap_or(next).wrapping_add_signed(n.into())
        }
        SeqChoice::Any(n) => n,
    }
}

fn send(rig: &mut Rig, shape: &Shape) {
    let tuple = rig.tuple(shape.flow);
    let flags = match shape.flags {
        Flags::Ack => ACK,
        Flags::Fin => ACK | frames::FIN,
        Flags::Reset => frames::RST,
        Flags::Syn => SYN,
        Flags::SynAck => SYN | ACK,
        Flags::Any(flags) => flags,
    };
    let ordinary = rig.next(&tuple, ACK, 0).options;
    let options = match shape.options {
        Options::Ordinary if flags & SYN != 0 => syn_options(rig, 0, 1460),
        Options::Ordinary => ordinary,
        Options::None => Vec::new(),
        Options::Sack(value, echo, blocks) => {
            let ts = rig.flow(tuple).ts;
            let timestamps = rig.setup.timestamps();
            let mut options = Vec::new();
            if timestamps {
                let value = 2u32.wrapping_add_signed(value.into());
                options = timestamp(value, ts.wrapping_add_signed(echo.into()));
            }
            let n = 1 + usize::from(shape.how >> 6) % 3;
            options.extend_from_slice(&[1, 1, 5, 2 + 8 * n as u8]);
            for (left, len) in &blocks[..n] {
                let left = number(rig, shape.flow, *left, false);
                options.extend_from_slice(&left.to_be_bytes());
                options.extend_from_slice(&left.wrapping_add(u32::from(*len)).to_be_bytes());
            }
            options
        }
        Options::Syn(scale, mss) => syn_options(rig, scale, mss),
        Options::Any(bytes) => bytes.to_vec(),
    };
    let segment = Segment {
        seq: number(rig, shape.flow, shape.seq, true),
        ack: number(rig, shape.flow, shape.ack, false),
        flags,
        window: shape.window,
        urgent: 0,
        options,
        len: usize::from(shape.len) % MOST_PAYLOAD,
        ecn: shape.how & 3,
    };
    let cut = (shape.how & 4 != 0).then_some(64 + usize::from(shape.len & 0xff));
    let delivery = Delivery { cut, verified: shape.how & 8 != 0 };
    for _ in 0..1 + usize::from(shape.how & 16 != 0) {
        rig.send(&tuple, &segment, delivery);
    }
    if shape.how & 32 == 0 {
        rig.settle();
    }
}

/// Returns the options of a SYN according to the setup.
fn syn_options(rig: &Rig, scale: u8, mss: u16) -> Vec<u8> {
    let mut options = vec![2, 4];
    options.extend_from_slice(&mss.to_be_bytes());
    if rig.setup.sack() {
        options.extend_from_slice(&[1, 1, 4, 2]);
    }
    if rig.setup.timestamps() {
        options.extend(timestamp(1, 0));
    }
    options.extend_from_slice(&[1, 3, 3, scale]);
    options
}
