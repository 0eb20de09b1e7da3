//! Sequences of segments and of what happens beside them, by a grammar: everything is said relative to what the endpoint
//! knows at the time.

use super::frames::{self, ACK, SYN, Segment};
use super::probe::Op;
use super::raw::pause;
use super::rig::{Delivery, Rig, timestamp};
use super::setup::Setup;
use arbitrary::{Arbitrary, Unstructured};

/// Steps that are taken.
const MOST_STEPS: usize = 64;
/// Bytes of payload of one segment at most.
const MOST_PAYLOAD: usize = 20_000;

/// One thing that happens.
#[derive(Debug, Clone, Arbitrary)]
pub enum Step {
    /// The peer sends a segment.
    Send(Shape),
    /// It sends what an ordinary peer would: the next so many bytes, acknowledging everything.
    Next {
        /// Which flow.
        flow: u8,
        /// How many bytes.
        len: u16,
        /// Flags beside ACK.
        flags: u8,
    },
    /// It opens a flow.
    Open(u8),
    /// The service is asked for something; several things in one turn, if this says so.
    Ask(u8, Op, bool),
    /// Time passes.
    Pass(u8),
    /// Frames sent since the last time arrive in one burst.
    Settle,
    /// An ICMP message about what the endpoint sent last on a flow.
    Icmp {
        /// Which flow.
        flow: u8,
        /// The message's type and code.
        kind: Kind,
        /// The second word of its header: what the next hop's MTU is in.
        word: u32,
        /// The number of the segment that it quotes.
        seq: Place,
    },
}

/// ICMP messages.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Kind {
    /// Destination unreachable, with a code.
    Unreachable(u8),
    /// Fragmentation needed, or packet too big.
    TooBig,
    /// Any.
    Other(u8, u8),
}

/// A number relative to what the endpoint expects or has sent.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Place {
    /// What comes next.
    Next,
    /// A little before or behind that.
    Near(i8),
    /// Farther.
    Far(i16),
    /// The number of the oldest byte that is not acknowledged, or of the window's right edge, and so much more.
    Other(i16),
    /// Any number.
    Any(u32),
}

/// A segment's fields.
#[derive(Debug, Clone, Arbitrary)]
pub struct Shape {
    /// Which flow.
    pub flow: u8,
    /// Its number.
    pub seq: Place,
    /// What it acknowledges.
    pub ack: Place,
    /// Its flags.
    pub flags: Flags,
    /// The window.
    pub window: u16,
    /// Bytes of payload.
    pub len: u16,
    /// Its options.
    pub options: Options,
    /// The ECN field, and whether it comes in pieces, vouched for, twice.
    pub how: u8,
}

/// A segment's flags.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Flags {
    /// ACK alone.
    Ack,
    /// ACK and FIN.
    Fin,
    /// RST.
    Reset,
    /// SYN.
    Syn,
    /// SYN and ACK.
    SynAck,
    /// Any.
    Any(u8),
}

/// A segment's options.
#[derive(Debug, Clone, Arbitrary)]
pub enum Options {
    /// What an ordinary segment has.
    Ordinary,
    /// None.
    None,
    /// A timestamp with these differences to ordinary ones, and SACK blocks at these places in what is not acknowledged.
    Sack(i8, i8, [(Place, u16); 3]),
    /// What an ordinary SYN has, with this window scale and segment size.
    Syn(u8, u16),
    /// Any bytes.
    Any([u8; 12]),
}

/// An input as the grammar reads it.
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
        Step::Ask(flow, op, together) => {
            let tuple = rig.tuple(flow);
            if let Some(conn) = rig.conn(&tuple) {
                rig.ask(conn, op);
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
                Kind::Unreachable(code) => (if ipv4 { 3 } else { 1 }, code),
                Kind::TooBig => {
                    if ipv4 {
                        (3, 4)
                    } else {
                        (2, 0)
                    }
                }
                Kind::Other(kind, code) => (kind, code),
            };
            rig.push(frames::icmp(&tuple, kind, code, word, seq), true, Delivery::default());
        }
    }
}

/// The number at `place` of the stream to the endpoint, or from it.
fn number(rig: &mut Rig, flow: u8, place: Place, to_endpoint: bool) -> u32 {
    let tuple = rig.tuple(flow);
    let known = rig.flow(tuple);
    let numbers = known.numbers();
    let next = if to_endpoint { known.ack } else { known.nxt };
    match place {
        Place::Next => next,
        Place::Near(n) => next.wrapping_add_signed(n.into()),
        Place::Far(n) => next.wrapping_add_signed(n.into()),
        Place::Other(n) => {
            let other = numbers.map(|numbers| if to_endpoint { numbers.rcv_edge } else { numbers.una });
            other.unwrap_or(next).wrapping_add_signed(n.into())
        }
        Place::Any(n) => n,
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
    let delivery = Delivery { cut, vouched: shape.how & 8 != 0 };
    for _ in 0..1 + usize::from(shape.how & 16 != 0) {
        rig.send(&tuple, &segment, delivery);
    }
    if shape.how & 32 == 0 {
        rig.settle();
    }
}

/// Options of a SYN, as the setup has them.
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
