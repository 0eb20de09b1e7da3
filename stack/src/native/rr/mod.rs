//! Connections whose ends take turns: a request, its answer, the next request.
//!
//! As long as that is all that happens, what is on its way is at most one packet that the service has not answered and one
//! that the peer has not, and all that is to be known of them fits into one cache line. A connection that has come to this
//! point gives its [`ConnBuffers`](crate::native::tcb::conn_buffers::ConnBuffers) back and has an [`RrState`] instead; its next segment has to pass a
//! few comparisons, and its answer needs no more than headers: either the packet that was received goes back, or the service
//! consumes that and writes one of its own. Whatever else happens to it, whether a segment that is not its turn, a timer, or
//! another operation, comes through [`connection`](crate::native::NativeEngine::connection), which makes it an ordinary connection
//! again beforehand.

mod local_turn;
mod peer_turn;

use crate::egress::ETHERNET;
use crate::native::connection::MbufsHeld;
use crate::native::tcb::{NO_BUFFERS, State, Tcb};
use linerate_bypass::time::Instant;
use linerate_bypass::{Bytes, ConnId, Packet};
use std::num::NonZeroUsize;

/// Of a block's place of buffers: that it is the place of an exchange.
const RR_BIT: u32 = 1 << 31;

/// Whose turn it is, and what was last said.
enum Turn<P> {
    /// What has been received is to be answered; everything that was sent has been acknowledged.
    Local(LocalTurn<P>),
    /// This has been sent and not acknowledged; everything that was received has been consumed.
    Peer(Bytes),
}

/// Our turn.
struct LocalTurn<P> {
    /// What has been received, but for what the service has consumed of it; `None` when that is all.
    request: Option<P>,
    /// What the service has written to answer it.
    response: Option<P>,
    /// The last bytes of that, which the service has not committed yet.
    reserved: u32,
}

/// What is on its way between two ends that take turns.
#[repr(align(64))]
pub(crate) struct RrState<P> {
    turn: Turn<P>,
    /// When we last had a turn.
    sent_at: Instant,
    /// Turns that the peer has had.
    peer_turns: u32,
    /// The peer's window when it last had one, as it is on the wire.
    window: u16,
    /// The Ethernet header in front of what we send, and when in [`Egress::link_epoch`] it was right.
    link: [u8; ETHERNET],
    link_epoch: u32,
}

/// All exchanges of a worker.
pub(crate) struct RrPool<P> {
    places: Vec<RrState<P>>,
    spare: Vec<u32>,
    /// In how many it is our turn.
    local_turns: usize,
    /// The connections whose turn it has become since the last flush, and whether services have been told.
    readable: Vec<ConnId>,
    readable_reported: bool,
}

const _: () = assert!(size_of::<RrState<NonZeroUsize>>() == 64);

impl Tcb {
    /// Whether the connection has an exchange instead of buffers.
    #[inline(always)]
    pub fn in_rr_mode(&self) -> bool {
        self.buffers >= RR_BIT && self.buffers != NO_BUFFERS
    }
}

impl<P> RrPool<P> {
    pub fn new() -> Self {
        RrPool { places: Vec::new(), spare: Vec::new(), local_turns: 0, readable: Vec::new(), readable_reported: false }
    }

    /// The exchange of `tcb`, if it has one.
    #[inline(always)]
    pub fn of(&self, tcb: &Tcb) -> Option<&RrState<P>> {
        // No vector is long enough to have a place that is that of buffers, or none, without the bit.
        self.places.get((tcb.buffers ^ RR_BIT) as usize)
    }

    /// The exchange of `tcb`, if it has one.
    #[inline(always)]
    fn of_mut(&mut self, tcb: &Tcb) -> Option<&mut RrState<P>> {
        self.places.get_mut((tcb.buffers ^ RR_BIT) as usize)
    }

    /// Gives `tcb`, which has no buffers, an exchange in which `sent` has just been sent.
    fn attach(&mut self, tcb: &mut Tcb, sent: Bytes, now: Instant) {
        debug_assert!(!tcb.has_buffers());
        let rr = RrState {
            turn: Turn::Peer(sent),
            sent_at: now,
            peer_turns: 0,
            window: (tcb.snd_wnd >> tcb.snd_scale()).min(65_535) as u16,
            link: [0; ETHERNET],
            link_epoch: 0,
        };
        let place = match self.spare.pop() {
            Some(place) => {
                self.places[place as usize] = rr;
                place
            }
            None => {
                self.places.push(rr);
                self.places.len() as u32 - 1
            }
        };
        tcb.buffers = place | RR_BIT;
    }

    /// Takes the exchange of `tcb` back. Returns whose turn it was, and when we last had one.
    fn detach(&mut self, tcb: &mut Tcb) -> Option<(Turn<P>, Instant)> {
        let rr = self.of_mut(tcb)?;
        let nothing = Turn::Peer(Bytes::default());
        let was = (std::mem::replace(&mut rr.turn, nothing), rr.sent_at);
        self.local_turns -= usize::from(matches!(was.0, Turn::Local(_)));
        self.spare.push(tcb.buffers ^ RR_BIT);
        tcb.buffers = NO_BUFFERS;
        Some(was)
    }

    /// Number of connections with an exchange.
    pub fn len(&self) -> usize {
        self.places.len() - self.spare.len()
    }

    /// Packets sent and not acknowledged: one in each exchange in which it is the peer's turn.
    pub fn packets_in_flight(&self) -> usize {
        self.len() - self.local_turns
    }

    /// Whether there are turns that services have to be told of, or have not answered.
    pub fn has_unanswered(&self) -> bool {
        !self.readable.is_empty()
    }

    /// Appends the connections to `readable` whose turn it has become.
    pub fn collect(&mut self, readable: &mut Vec<ConnId>) {
        if !self.readable_reported {
            readable.extend_from_slice(&self.readable);
            self.readable_reported = true;
        }
    }

    /// The service of the connection in `slot` is not to be told any more that it is its turn. Returns whether it was to be.
    fn cancel_readable(&mut self, slot: u32) -> bool {
        let at = if self.readable_reported {
            None
        } else {
            self.readable.iter().position(|conn| conn.slot() == slot as usize)
        };
        at.map(|at| self.readable.remove(at)).is_some()
    }
}

impl<P: Packet> RrPool<P> {
    /// The first bytes received on the connection of `tcb`, if it has an exchange.
    pub fn peek(&self, tcb: &Tcb) -> Option<&[u8]> {
        match &self.of(tcb)?.turn {
            Turn::Local(turn) => Some(turn.request.as_ref().map_or(&[], Packet::data)),
            Turn::Peer(_) => None,
        }
    }

    /// Checks that the exchange of `tcb`, if it has one, is what the block says; returns the packets that it holds, and
    /// whether it is our turn.
    ///
    /// # Panics
    ///
    /// If something does not agree.
    pub fn assert_consistent(&self, tcb: &Tcb) -> Option<(MbufsHeld, bool)> {
        let rr = self.of(tcb)?;
        assert!(tcb.state == State::Established, "takes no turns: {tcb:?}");
        let len = |packet: &Option<P>| packet.as_ref().map_or(0, |packet| packet.len() as u32);
        let (lens, mbufs_held) = match &rr.turn {
            Turn::Local(LocalTurn { request, response, reserved }) => {
                let queued = usize::from(response.is_some());
                let mbufs_held = MbufsHeld { all: usize::from(request.is_some()) + queued, queued };
                ([len(request), len(response) - reserved, 0], mbufs_held)
            }
            Turn::Peer(bytes) => ([0, 0, bytes.len() as u32], MbufsHeld { all: 1, queued: 0 }),
        };
        assert_eq!(lens, [tcb.received, tcb.unsent, tcb.outstanding()], "{tcb:?}");
        Some((mbufs_held, matches!(rr.turn, Turn::Local(_))))
    }

    /// Panics unless there are as many as `owned` and those that are spare, and it is our turn in `ours`.
    pub fn assert_owned(&self, owned: usize, local_turns: usize) {
        assert_eq!(local_turns, self.local_turns, "our turns, and what was counted");
        assert_eq!(owned + self.spare.len(), self.places.len(), "exchanges owned or spare");
    }
}
