//! Connections whose ends take turns: a request, its answer, the next request.
//!
//! As long as that is all that happens, what is on its way is at most one packet that the service has not answered and one
//! that the peer has not, and all that is to be known of them fits into one cache line. A connection that has come to this
//! point gives its [`Buffers`](crate::native::tcb::conn_buffers::Buffers) back and has an [`Exchange`] instead; its next segment has to pass a
//! few comparisons, and its answer needs no more than headers: either the packet that was received goes back, or the service
//! consumes that and writes one of its own. Whatever else happens to it, whether a segment that is not its turn, a timer, or
//! another operation, comes through [`connection`](crate::native::NativeEngine::connection), which makes it an ordinary connection
//! again beforehand.

mod local_turn;
mod peer_turn;

use crate::egress::ETHERNET;
use crate::native::connection::Pinned;
use crate::native::tcb::{Block, NO_BUFFERS, State};
use linerate_bypass::time::Instant;
use linerate_bypass::{Bytes, ConnId, Packet};
use std::num::NonZeroUsize;

/// Of a block's place of buffers: that it is the place of an exchange.
const EXCHANGING: u32 = 1 << 31;

/// Whose turn it is, and what was last said.
enum Turn<P> {
    /// What has been received is to be answered; everything that was sent has been acknowledged.
    Ours(Ours<P>),
    /// This has been sent and not acknowledged; everything that was received has been consumed.
    Theirs(Bytes),
}

/// Our turn.
struct Ours<P> {
    /// What has been received, but for what the service has consumed of it; `None` when that is all.
    received: Option<P>,
    /// What the service has written to answer it.
    written: Option<P>,
    /// The last bytes of that, which the service has not committed yet.
    reserved: u32,
}

/// What is on its way between two ends that take turns.
#[repr(align(64))]
pub(crate) struct Exchange<P> {
    turn: Turn<P>,
    /// When we last had a turn.
    sent_at: Instant,
    /// Turns that the peer has had.
    turns: u32,
    /// The peer's window when it last had one, as it is on the wire.
    window: u16,
    /// The Ethernet header in front of what we send, and when in [`Egress::link_epoch`] it was right.
    link: [u8; ETHERNET],
    link_epoch: u32,
}

/// All exchanges of a worker.
pub(crate) struct Exchanges<P> {
    places: Vec<Exchange<P>>,
    spare: Vec<u32>,
    /// In how many it is our turn.
    ours: usize,
    /// The connections whose turn it has become since the last flush, and whether services have been told.
    news: Vec<ConnId>,
    told: bool,
}

const _: () = assert!(size_of::<Exchange<NonZeroUsize>>() == 64);

impl Block {
    /// Whether the connection has an exchange instead of buffers.
    #[inline(always)]
    pub fn is_exchanging(&self) -> bool {
        self.buffers >= EXCHANGING && self.buffers != NO_BUFFERS
    }
}

impl<P> Exchanges<P> {
    pub fn new() -> Self {
        Exchanges { places: Vec::new(), spare: Vec::new(), ours: 0, news: Vec::new(), told: false }
    }

    /// The exchange of `block`, if it has one.
    #[inline(always)]
    pub fn of(&self, block: &Block) -> Option<&Exchange<P>> {
        // No vector is long enough to have a place that is that of buffers, or none, without the bit.
        self.places.get((block.buffers ^ EXCHANGING) as usize)
    }

    /// The exchange of `block`, if it has one.
    #[inline(always)]
    fn of_mut(&mut self, block: &Block) -> Option<&mut Exchange<P>> {
        self.places.get_mut((block.buffers ^ EXCHANGING) as usize)
    }

    /// Gives `block`, which has no buffers, an exchange in which `sent` has just been sent.
    fn begin(&mut self, block: &mut Block, sent: Bytes, now: Instant) {
        debug_assert!(!block.has_buffers());
        let exchange = Exchange {
            turn: Turn::Theirs(sent),
            sent_at: now,
            turns: 0,
            window: (block.snd_wnd >> block.snd_scale()).min(65_535) as u16,
            link: [0; ETHERNET],
            link_epoch: 0,
        };
        let place = match self.spare.pop() {
            Some(place) => {
                self.places[place as usize] = exchange;
                place
            }
            None => {
                self.places.push(exchange);
                self.places.len() as u32 - 1
            }
        };
        block.buffers = place | EXCHANGING;
    }

    /// Takes the exchange of `block` back. Returns whose turn it was, and when we last had one.
    fn end(&mut self, block: &mut Block) -> Option<(Turn<P>, Instant)> {
        let exchange = self.of_mut(block)?;
        let nothing = Turn::Theirs(Bytes::default());
        let was = (std::mem::replace(&mut exchange.turn, nothing), exchange.sent_at);
        self.ours -= usize::from(matches!(was.0, Turn::Ours(_)));
        self.spare.push(block.buffers ^ EXCHANGING);
        block.buffers = NO_BUFFERS;
        Some(was)
    }

    /// Number of connections with an exchange.
    pub fn len(&self) -> usize {
        self.places.len() - self.spare.len()
    }

    /// Packets sent and not acknowledged: one in each exchange in which it is the peer's turn.
    pub fn sent(&self) -> usize {
        self.len() - self.ours
    }

    /// Whether there are turns that services have to be told of, or have not answered.
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Appends the connections to `readable` whose turn it has become.
    pub fn collect(&mut self, readable: &mut Vec<ConnId>) {
        if !self.told {
            readable.extend_from_slice(&self.news);
            self.told = true;
        }
    }

    /// The service of the connection in `slot` is not to be told any more that it is its turn. Returns whether it was to be.
    fn withdraw(&mut self, slot: u32) -> bool {
        let at = if self.told { None } else { self.news.iter().position(|conn| conn.slot() == slot as usize) };
        at.map(|at| self.news.remove(at)).is_some()
    }
}

impl<P: Packet> Exchanges<P> {
    /// The first bytes received on the connection of `block`, if it has an exchange.
    pub fn peek(&self, block: &Block) -> Option<&[u8]> {
        match &self.of(block)?.turn {
            Turn::Ours(ours) => Some(ours.received.as_ref().map_or(&[], Packet::data)),
            Turn::Theirs(_) => None,
        }
    }

    /// Checks that the exchange of `block`, if it has one, is what the block says; returns the packets that it holds, and
    /// whether it is our turn.
    ///
    /// # Panics
    ///
    /// If something does not agree.
    pub fn assert_consistent(&self, block: &Block) -> Option<(Pinned, bool)> {
        let exchange = self.of(block)?;
        assert!(block.state == State::Established, "takes no turns: {block:?}");
        let len = |packet: &Option<P>| packet.as_ref().map_or(0, |packet| packet.len() as u32);
        let (lens, pinned) = match &exchange.turn {
            Turn::Ours(Ours { received, written, reserved }) => {
                let queued = usize::from(written.is_some());
                let pinned = Pinned { all: usize::from(received.is_some()) + queued, queued };
                ([len(received), len(written) - reserved, 0], pinned)
            }
            Turn::Theirs(bytes) => ([0, 0, bytes.len() as u32], Pinned { all: 1, queued: 0 }),
        };
        assert_eq!(lens, [block.received, block.unsent, block.outstanding()], "{block:?}");
        Some((pinned, matches!(exchange.turn, Turn::Ours(_))))
    }

    /// Panics unless there are as many as `owned` and those that are spare, and it is our turn in `ours`.
    pub fn assert_owned(&self, owned: usize, ours: usize) {
        assert_eq!(ours, self.ours, "our turns, and what was counted");
        assert_eq!(owned + self.spare.len(), self.places.len(), "exchanges owned or spare");
    }
}
