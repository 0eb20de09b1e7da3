//! Plans of the two services of a connection.

use crate::dice::Dice;
use linerate_bypass::memory_nic::End;
use linerate_service::time::Duration;

/// Data that an end sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Nothing,
    /// This many bytes of its own stream.
    Bulk(u64),
    /// The data it receives.
    Echo(Echo),
    /// The data received by its partner connection on the same worker.
    Relay,
}

/// Transport calls of an echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    Forward,
    TakeAndSend,
    PeekAndWrite,
    PeekAndAnswer,
}

/// Transport calls that send, and their maximum sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writing {
    /// `reserve` and `commit`, at times of fewer bytes than reserved, or none.
    Reserve(usize),
    Write(usize),
    /// `send` of static bytes.
    Static(usize),
    /// `send` of heap bytes, in part slices of one vector.
    Heap(usize),
    /// One of the other variants for each call, selected at random.
    Mixed(usize),
}

/// Transport calls that read, and their maximum sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Consume(usize),
    Take(usize),
    /// Taken and kept for a time, at most this many slices at once.
    Hold {
        slices: usize,
        length: Duration,
    },
}

/// Read or write rate of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As fast as possible.
    Eager,
    /// This many bytes at a time.
    Portions { bytes: u64, every: Duration },
    /// One pause, after this many bytes.
    Pause { after: u64, length: Duration },
}

/// Condition on which an end closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    WhenSent,
    /// All data is sent, and this much is received.
    WhenReceived(u64),
    /// All data is sent, and the peer has closed.
    WhenPeerHas,
    /// All data is sent, and this time has passed since the connection opened.
    After(Duration),
}

/// Condition on which an end aborts an open connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    AtOpen,
    Sent(u64),
    Received(u64),
    After(Duration),
    WhenPeerHasClosed,
    WhenClosed(Duration),
}

#[derive(Debug, Clone)]
pub struct EndPlan {
    pub source: Source,
    pub writing: Writing,
    /// Minimum bytes per call, if that many are left.
    pub chunk: usize,
    pub writing_pace: Pace,
    pub reading: Reading,
    pub reading_pace: Pace,
    pub finish: Finish,
    pub abort: Option<Abort>,
    /// Seed of this end's choices.
    pub seed: u64,
}

#[derive(Debug, Clone)]
pub struct Plan {
    /// Connecting host.
    pub from: End,
    pub ipv6: bool,
    pub client: EndPlan,
    pub server: EndPlan,
}

/// Limits on the plans of a scenario.
pub struct Bounds {
    /// Maximum bytes of one stream.
    pub bytes: u64,
    /// Smaller of the send buffers.
    pub buffer: usize,
    /// Maximum received slices that one end keeps.
    pub slices: usize,
    /// Minimum bytes per call: small chunks become small packets at the receiver.
    pub chunk: usize,
    /// True if ends abort.
    pub aborts: bool,
    /// Hosts that send cookies as servers.
    pub cookies: [bool; 2],
    /// True if ends read and write slowly.
    pub slow: bool,
    pub ipv6: bool,
    pub both_connect: bool,
    /// True if a client must send first: with a SYN cookie the server keeps no state before.
    pub client_speaks: bool,
}

const MILLISECOND: Duration = Duration::from_millis(1);

impl Plan {
    pub fn draw(dice: &mut Dice, bounds: &Bounds) -> Plan {
        let bytes = dice.log_uniform(0, bounds.bytes);
        let back = dice.log_uniform(0, bounds.bytes);
        let echo = Source::Echo(dice.pick(&if bounds.chunk > 1 {
            [Echo::Forward, Echo::PeekAndWrite, Echo::PeekAndWrite, Echo::PeekAndAnswer]
        } else {
            [Echo::Forward, Echo::TakeAndSend, Echo::PeekAndWrite, Echo::PeekAndAnswer]
        }));
        let first = if bounds.client_speaks { Source::Bulk(1) } else { Source::Nothing };
        let after = Finish::After(dice.time(MILLISECOND, 500 * MILLISECOND));
        // At least one of the two ends closes without waiting for the other.
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
            // A server that resets a cookie connection accepts the same ACK again if the reset is lost: a cookie does
            // not record its use (RFC 4987 §3.6).
            server.abort = None;
        }
        Plan { from, ipv6: bounds.ipv6 && dice.chance(0.4), client, server }
    }

    pub fn of(&self, end: End) -> &EndPlan {
        if end == self.from { &self.client } else { &self.server }
    }
}

impl EndPlan {
    fn draw(dice: &mut Dice, bounds: &Bounds, source: Source, finish: Finish, aborts: bool, bytes: u64) -> EndPlan {
        let size = |dice: &mut Dice| dice.log_uniform(1, bounds.buffer as u64) as usize;
        let (write, read) = (size(dice), size(dice).max(16));
        let writing = match dice.0.u32(..5) {
            0 => Writing::Reserve(write),
            1 => Writing::Write(write),
            2 => Writing::Static(write),
            3 => Writing::Heap(write),
            _ => Writing::Mixed(write),
        };
        // A small kept buffer per received byte would only take more virtual time.
        let writing = if (bytes as usize) < 1000 * write { writing } else { Writing::Mixed(bounds.buffer) };
        let reading = match dice.0.u32(..4) {
            0 => Reading::Consume(usize::MAX),
            1 => Reading::Consume(if (bytes as usize) < 1000 * read { read } else { usize::MAX }),
            2 => Reading::Take(if (bytes as usize) < 1000 * read { read } else { usize::MAX }),
            _ => {
                let slices = dice.0.usize(1..=bounds.slices);
                // The whole stream passes within about one virtual minute.
                let most = 60_000 * slices as u64 / (bytes / bounds.chunk.min(100) as u64).max(1);
                let length = dice.time(MILLISECOND, Duration::from_millis(most.clamp(2, 5_000)));
                Reading::Hold { slices, length }
            }
        };
        let abort = aborts.then(|| match dice.0.u32(..12) {
            0 => Abort::AtOpen,
            1..4 => Abort::Sent(dice.log_uniform(0, bytes)),
            4..7 => Abort::Received(dice.log_uniform(0, bytes)),
            7..9 => Abort::After(dice.time(MILLISECOND, 3_000 * MILLISECOND)),
            9 => Abort::WhenPeerHasClosed,
            _ => Abort::WhenClosed(dice.time(Duration::ZERO, 200 * MILLISECOND)),
        });
        let writing_pace = Pace::draw(dice, bounds, bytes);
        let reading_pace = Pace::draw(dice, bounds, bytes);
        let chunk = bounds.chunk;
        EndPlan { source, writing, chunk, writing_pace, reading, reading_pace, finish, abort, seed: dice.0.u64(..) }
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
                Pace::Pause { after: dice.log_uniform(0, bytes), length: dice.time(MILLISECOND, 20_000 * MILLISECOND) }
            }
            _ => Pace::Eager,
        }
    }
}
