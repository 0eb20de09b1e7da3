//! What the two services of a connection are to do.

use crate::dice::Dice;
use linerate_bypass::memory_nic::End;
use linerate_bypass::time::Duration;

/// What an end sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Nothing,
    /// So many bytes of its own.
    Bulk(u64),
    /// What it receives.
    Echo(Echo),
    /// What its partner connection of the same worker receives.
    Relay,
}

/// By which operations of the transport an echo is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    Forward,
    TakeAndSend,
    PeekAndWrite,
    PeekAndAnswer,
}

/// By which operations bytes are sent, and in what sizes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writing {
    /// `reserve` and `commit`, of less than was reserved now and then, or not at all.
    Reserve(usize),
    Write(usize),
    /// `send` of bytes that live as long as the program.
    Static(usize),
    /// `send` of bytes on the heap, slices of one vector among them.
    Heap(usize),
    /// One after the other.
    Mixed(usize),
}

/// By which operations bytes are read, and in what sizes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Consume(usize),
    Take(usize),
    /// Taken and kept for a while: so many slices at a time at most.
    Hold {
        slices: usize,
        length: Duration,
    },
}

/// How fast an end reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Whenever it can.
    Eager,
    /// So many bytes at a time.
    Portions { bytes: u64, every: Duration },
    /// Stops once, after so many bytes.
    Pause { after: u64, length: Duration },
}

/// When an end closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// When it has sent everything.
    WhenSent,
    /// When it has sent everything and received so much.
    WhenReceived(u64),
    /// When it has sent everything and the peer has closed.
    WhenPeerHas,
    /// So long after it was opened, when it has sent everything.
    After(Duration),
}

/// When an end aborts, if the connection is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    AtOpen,
    Sent(u64),
    Received(u64),
    After(Duration),
    WhenPeerHasClosed,
    /// After it has closed itself.
    WhenClosed(Duration),
}

/// What one end of a connection does.
#[derive(Debug, Clone)]
pub struct EndPlan {
    pub source: Source,
    pub writing: Writing,
    /// Bytes that are handed over in one piece at least, if there are so many.
    pub piece: usize,
    pub writing_pace: Pace,
    pub reading: Reading,
    pub reading_pace: Pace,
    pub finish: Finish,
    pub abort: Option<Abort>,
    /// Where this end's own choices come from.
    pub seed: u64,
}

/// What becomes of one connection.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Who connects.
    pub from: End,
    pub ipv6: bool,
    pub client: EndPlan,
    pub server: EndPlan,
}

/// What limits the plans of one scenario.
pub struct Bounds {
    /// Bytes of one stream at most.
    pub bytes: u64,
    /// The smaller send buffer.
    pub buffer: usize,
    /// Slices of received bytes that one end may keep at most.
    pub slices: usize,
    /// Bytes that are handed over in one piece at least: pieces of a few bytes are packets of a few bytes to the receiver.
    pub piece: usize,
    /// Whether ends abort.
    pub aborts: bool,
    /// Which hosts send cookies, as servers.
    pub cookies: [bool; 2],
    /// Whether ends take their time.
    pub slow: bool,
    pub ipv6: bool,
    /// Whether both hosts connect.
    pub both_connect: bool,
    /// A client must say something before its server is bound to know it: SYN cookies keep nothing.
    pub client_speaks: bool,
}

const MILLISECOND: Duration = Duration::from_millis(1);

impl Plan {
    pub fn draw(dice: &mut Dice, bounds: &Bounds) -> Plan {
        let bytes = dice.spread(0, bounds.bytes);
        let back = dice.spread(0, bounds.bytes);
        let echo = Source::Echo(dice.pick(&if bounds.piece > 1 {
            [Echo::Forward, Echo::PeekAndWrite, Echo::PeekAndWrite, Echo::PeekAndAnswer]
        } else {
            [Echo::Forward, Echo::TakeAndSend, Echo::PeekAndWrite, Echo::PeekAndAnswer]
        }));
        let first = if bounds.client_speaks { Source::Bulk(1) } else { Source::Nothing };
        let after = Finish::After(dice.time(MILLISECOND, 500 * MILLISECOND));
        // Of the two ends, one closes without waiting for the other.
        let (sources, finishes) = match dice.0.u32(..16) {
            0..5 => {
                let finish = dice.pick(&[Finish::WhenSent, Finish::WhenReceived(bytes), after]);
                ((Source::Bulk(bytes), echo), (finish, Finish::WhenPeerHas))
            }
            5..7 => {
                let finish = dice.pick(&[Finish::WhenPeerHas, Finish::WhenSent, after]);
                ((Source::Bulk(bytes.max(1)), Source::Nothing), (Finish::WhenSent, finish))
            }
            7..9 => {
                let finish = dice.pick(&[Finish::WhenPeerHas, Finish::WhenSent, after]);
                ((first, Source::Bulk(back)), (finish, Finish::WhenSent))
            }
            9..13 => {
                let finishes = [
                    (Finish::WhenSent, Finish::WhenSent),
                    (Finish::WhenSent, Finish::WhenPeerHas),
                    (Finish::WhenPeerHas, Finish::WhenSent),
                    (Finish::WhenReceived(back), Finish::WhenSent),
                    (Finish::WhenSent, Finish::WhenReceived(bytes.max(1))),
                ];
                ((Source::Bulk(bytes.max(1)), Source::Bulk(back)), dice.pick(&finishes))
            }
            13..15 => ((Source::Bulk(bytes.max(1)), Source::Relay), (Finish::WhenSent, Finish::WhenPeerHas)),
            _ => ((first, Source::Nothing), (Finish::WhenSent, dice.pick(&[Finish::WhenPeerHas, Finish::WhenSent]))),
        };
        let mut sources = sources;
        if bounds.client_speaks && matches!(sources.0, Source::Nothing | Source::Bulk(0)) {
            sources.0 = first;
        }
        let aborts = bounds.aborts && dice.chance(0.2);
        let by_client = dice.chance(0.5);
        let client = EndPlan::draw(dice, bounds, sources.0, finishes.0, aborts && by_client, bytes.max(back));
        let mut server = EndPlan::draw(dice, bounds, sources.1, finishes.1, aborts && !by_client, bytes.max(back));
        let from = if bounds.both_connect && dice.chance(0.4) { End::B } else { End::A };
        if bounds.cookies[from.other() as usize] {
            // Who has answered with a cookie and reset the connection answers the same acknowledgement with another, if the
            // reset was lost: a cookie does not say that it was taken back before (RFC 4987 §3.6).
            server.abort = None;
        }
        Plan { from, ipv6: bounds.ipv6 && dice.chance(0.4), client, server }
    }

    /// The plan of one of the ends.
    pub fn of(&self, end: End) -> &EndPlan {
        if end == self.from { &self.client } else { &self.server }
    }
}

impl EndPlan {
    fn draw(dice: &mut Dice, bounds: &Bounds, source: Source, finish: Finish, aborts: bool, bytes: u64) -> EndPlan {
        let size = |dice: &mut Dice| dice.spread(1, bounds.buffer as u64) as usize;
        let (write, read) = (size(dice), size(dice).max(16));
        let writing = match dice.0.u32(..5) {
            0 => Writing::Reserve(write),
            1 => Writing::Write(write),
            2 => Writing::Static(write),
            3 => Writing::Heap(write),
            _ => Writing::Mixed(write),
        };
        // A service that keeps one buffer for each byte it is sent gets little; the rest is a matter of patience.
        let writing = if (bytes as usize) < 1000 * write { writing } else { Writing::Mixed(bounds.buffer) };
        let reading = match dice.0.u32(..4) {
            0 => Reading::Consume(usize::MAX),
            1 => Reading::Consume(if (bytes as usize) < 1000 * read { read } else { usize::MAX }),
            2 => Reading::Take(if (bytes as usize) < 1000 * read { read } else { usize::MAX }),
            _ => {
                let slices = dice.0.usize(1..=bounds.slices);
                // So that the whole stream passes within a virtual minute or so.
                let most = 60_000 * slices as u64 / (bytes / bounds.piece.min(100) as u64).max(1);
                let length = dice.time(MILLISECOND, Duration::from_millis(most.clamp(2, 5_000)));
                Reading::Hold { slices, length }
            }
        };
        let abort = aborts.then(|| match dice.0.u32(..12) {
            0 => Abort::AtOpen,
            1..4 => Abort::Sent(dice.spread(0, bytes)),
            4..7 => Abort::Received(dice.spread(0, bytes)),
            7..9 => Abort::After(dice.time(MILLISECOND, 3_000 * MILLISECOND)),
            9 => Abort::WhenPeerHasClosed,
            _ => Abort::WhenClosed(dice.time(Duration::ZERO, 200 * MILLISECOND)),
        });
        let writing_pace = Pace::draw(dice, bounds, bytes);
        let reading_pace = Pace::draw(dice, bounds, bytes);
        let piece = bounds.piece;
        EndPlan { source, writing, piece, writing_pace, reading, reading_pace, finish, abort, seed: dice.0.u64(..) }
    }
}

impl Pace {
    fn draw(dice: &mut Dice, bounds: &Bounds, bytes: u64) -> Pace {
        match dice.0.u32(..10) {
            0 if bounds.slow => Pace::Portions {
                bytes: (bytes / dice.0.u64(2..60)).max(1),
                every: dice.time(MILLISECOND / 10, 500 * MILLISECOND),
            },
            1 if bounds.slow => {
                Pace::Pause { after: dice.spread(0, bytes), length: dice.time(MILLISECOND, 20_000 * MILLISECOND) }
            }
            _ => Pace::Eager,
        }
    }
}
