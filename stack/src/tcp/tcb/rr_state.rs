//! State of connections in request-response mode (`tcp/fast_path/rr`).

use crate::tcp::buffers::mbufs_held::MbufsHeld;
use crate::tcp::buffers::slots::Slots;
use crate::tcp::tcb::{NO_BUFFERS, State, Tcb};
use crate::wire::ethernet::ETHERNET_HEADER;
use linerate_bypass::Packet;
use linerate_service::time::Instant;
use linerate_service::{Bytes, ConnId};
use std::num::NonZeroUsize;

/// Bit of [`Tcb::buffers`] that marks the index of an [`RrState`].
const RR_BIT: u32 = 1 << 31;

pub(crate) enum Turn<P> {
    /// A request awaits the response. Everything sent was acknowledged.
    Local(LocalTurn<P>),
    /// The response, not yet acknowledged. Everything received was consumed.
    Peer(Bytes),
}

pub(crate) struct LocalTurn<P> {
    /// Unread part of the request; `None` once it is consumed.
    pub request: Option<P>,
    /// Response written so far.
    pub response: Option<P>,
    /// Bytes at the end of the response that are reserved and not committed.
    pub reserved: u32,
}

/// State of a connection in request-response mode.
#[repr(align(64))]
pub(crate) struct RrState<P> {
    pub turn: Turn<P>,
    /// Time at which the last response was sent.
    pub sent_at: Instant,
    /// Number of requests received.
    pub peer_turns: u32,
    /// Window field of the last request.
    pub window: u16,
    /// Ethernet header of responses, and its [`Egress::link_epoch`](crate::ip::egress::Egress::link_epoch).
    pub link: [u8; ETHERNET_HEADER],
    pub link_epoch: u32,
}

/// Request-response state of all connections of a worker.
pub(crate) struct RrPool<P> {
    pub states: Slots<RrState<P>>,
    pub local_turns: usize,
    /// Connections with a request since the last flush, and whether they were reported to their services.
    pub readable: Vec<ConnId>,
    pub readable_reported: bool,
}

const _: () = assert!(size_of::<RrState<NonZeroUsize>>() == 64);

impl Tcb {
    /// Returns whether the connection is in request-response mode.
    #[inline(always)]
    pub fn in_rr_mode(&self) -> bool {
        self.buffers >= RR_BIT && self.buffers != NO_BUFFERS
    }
}

impl<P> RrPool<P> {
    pub fn new() -> Self {
        RrPool { states: Slots::new(), local_turns: 0, readable: Vec::new(), readable_reported: false }
    }

    /// Returns the state of `tcb`, if it is in request-response mode.
    #[inline(always)]
    pub fn of(&self, tcb: &Tcb) -> Option<&RrState<P>> {
        // For an index without the bit, and for `NO_BUFFERS`, XOR yields at least 2³¹ - 1, beyond the end of any
        // vector.
        self.states.get(tcb.buffers ^ RR_BIT)
    }

    /// Returns the state of `tcb`, if it is in request-response mode.
    #[inline(always)]
    pub fn of_mut(&mut self, tcb: &Tcb) -> Option<&mut RrState<P>> {
        self.states.get_mut(tcb.buffers ^ RR_BIT)
    }

    /// Attaches a state to `tcb`, which has no buffers. `sent` was just sent.
    pub fn attach(&mut self, tcb: &mut Tcb, sent: Bytes, now: Instant) {
        debug_assert!(!tcb.has_buffers());
        let rr = RrState {
            turn: Turn::Peer(sent),
            sent_at: now,
            peer_turns: 0,
            window: (tcb.snd_wnd >> tcb.snd_scale()).min(65_535) as u16,
            link: [0; ETHERNET_HEADER],
            link_epoch: 0,
        };
        tcb.buffers = self.states.insert(rr) | RR_BIT;
    }

    /// Detaches the state of `tcb`. Returns its turn, and the time at which the last response was sent.
    pub fn detach(&mut self, tcb: &mut Tcb) -> Option<(Turn<P>, Instant)> {
        let rr = self.of_mut(tcb)?;
        let nothing = Turn::Peer(Bytes::default());
        let was = (std::mem::replace(&mut rr.turn, nothing), rr.sent_at);
        self.local_turns -= usize::from(matches!(was.0, Turn::Local(_)));
        self.states.release(tcb.buffers ^ RR_BIT);
        tcb.buffers = NO_BUFFERS;
        Some(was)
    }

    /// Returns the number of connections in request-response mode.
    pub fn len(&self) -> usize {
        self.states.in_use()
    }

    /// Returns the unacknowledged packets: one per connection in the peer's turn.
    pub fn packets_in_flight(&self) -> usize {
        self.len() - self.local_turns
    }

    /// Returns whether there are requests without a response since the last flush.
    pub fn has_unanswered(&self) -> bool {
        !self.readable.is_empty()
    }

    /// Appends the connections with unreported requests to `readable`.
    pub fn collect(&mut self, readable: &mut Vec<ConnId>) {
        if !self.readable_reported {
            readable.extend_from_slice(&self.readable);
            self.readable_reported = true;
        }
    }

    /// Removes the connection in `slot` from the unreported requests. Returns whether it was among them.
    pub fn cancel_readable(&mut self, slot: u32) -> bool {
        let at = if self.readable_reported {
            None
        } else {
            self.readable.iter().position(|conn| conn.slot() == slot as usize)
        };
        at.map(|at| self.readable.remove(at)).is_some()
    }
}

impl<P: Packet> RrPool<P> {
    /// Returns the unread request of `tcb`, if it is in request-response mode.
    #[inline]
    pub fn peek(&self, tcb: &Tcb) -> Option<&[u8]> {
        let Turn::Local(LocalTurn { request: Some(request), .. }) = &self.of(tcb)?.turn else { return Some(&[]) };
        Some(request.data())
    }

    /// Checks the state of `tcb` against its control block. Returns the packets held, and whether it is the local turn.
    ///
    /// # Panics
    ///
    /// If they are inconsistent.
    pub fn assert_consistent(&self, tcb: &Tcb) -> Option<(MbufsHeld, bool)> {
        let rr = self.of(tcb)?;
        assert!(tcb.state == State::Established, "request-response mode outside ESTABLISHED: {tcb:?}");
        let len = |packet: &Option<P>| packet.as_ref().map_or(0, |packet| packet.len() as u32);
        let (lens, mbufs_held) = match &rr.turn {
            Turn::Local(LocalTurn { request, response, reserved }) => {
                let queued = usize::from(response.is_some());
                let mbufs_held = MbufsHeld { all: usize::from(request.is_some()) + queued, queued, heap_bytes: 0 };
                ([len(request), len(response) - reserved, 0], mbufs_held)
            }
            Turn::Peer(bytes) => ([0, 0, bytes.len() as u32], MbufsHeld { all: 1, ..MbufsHeld::default() }),
        };
        assert_eq!(lens, [tcb.received, tcb.unsent, tcb.outstanding()], "{tcb:?}");
        Some((mbufs_held, matches!(rr.turn, Turn::Local(_))))
    }

    /// Panics unless `owned` states are in use, `local_turns` of them in the local turn.
    pub fn assert_owned(&self, owned: usize, local_turns: usize) {
        assert_eq!(local_turns, self.local_turns, "local turns, and their counter");
        assert_eq!(owned, self.states.in_use(), "states owned or spare");
    }
}
