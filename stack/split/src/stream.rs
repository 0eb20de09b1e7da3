//! A connection at the service's thread.

use crate::crossing::Command;
use linerate_bypass::arena::ArenaMut;
use linerate_bypass::{BytesQueue, ConnId, Timer};
use std::net::SocketAddr;

/// The worker is told of what was consumed when it is so much of the window, or so many slices.
const PART_TOLD: usize = 4;
const SLICES_TOLD: usize = 16;
/// It is told of anything when so much of what it passed on is here that it may have stopped: of the window, or slices.
const PART_FULL: usize = 2;
const SLICES_FULL: usize = 32;

/// How far the peer's end of the stream is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It has not come.
    Open,
    /// It has, and the service is to be told when it has consumed everything before.
    Due,
    /// The service knows.
    Told,
}

/// What is kept for a connection.
pub(crate) struct Stream {
    /// Ours and the peer's.
    pub addresses: [SocketAddr; 2],
    pub received: BytesQueue,
    /// Bytes and slices consumed of which the worker has not been told.
    consumed: usize,
    consumed_slices: usize,
    /// Bytes that may be sent.
    pub credit: usize,
    /// A place that is being written, and how much of it is.
    pub place: Option<(ArenaMut, usize)>,
    /// The service found too little room, and is to be told when there is more.
    pub wants_room: bool,
    /// The worker knows that the service waits.
    pub starved: bool,
    /// Nothing more is sent.
    pub closed: bool,
    /// It was reset, or closed with a lingering close: nothing happens on it any more but its end.
    pub aborted: bool,
    pub end: End,
    /// The connection is gone at the worker: when everything has been consumed, it is here.
    pub finished: bool,
    pub timer: Timer,
    /// The timer has expired, and the service has not been told.
    pub timer_due: bool,
    /// It is among those that have something to read, in this burst.
    pub listed: bool,
}

impl Stream {
    pub fn new(addresses: [SocketAddr; 2], window: usize) -> Self {
        Stream {
            addresses,
            received: BytesQueue::default(),
            consumed: 0,
            consumed_slices: 0,
            credit: window,
            place: None,
            wants_room: false,
            starved: false,
            closed: false,
            aborted: false,
            end: End::Open,
            finished: false,
            timer: Timer::default(),
            timer_due: false,
            listed: false,
        }
    }

    /// So many bytes in so many slices have been consumed. Returns what the worker is to be told, if it is to be.
    pub fn consumed(&mut self, conn: ConnId, bytes: usize, slices: usize, window: usize) -> Option<Command> {
        self.consumed += bytes;
        self.consumed_slices += slices;
        let (held, slices) = (self.consumed + self.received.len(), self.consumed_slices + self.received.slices());
        let is_much = self.consumed >= window / PART_TOLD || self.consumed_slices >= SLICES_TOLD;
        if !is_much && held < window / PART_FULL && slices < SLICES_FULL {
            return None;
        }
        let (bytes, slices) = (std::mem::take(&mut self.consumed), std::mem::take(&mut self.consumed_slices));
        Some(Command::Consumed { conn, bytes, slices })
    }

    /// Whether the service is to be told now that the peer has finished.
    pub fn end_is_due(&self) -> bool {
        self.end == End::Due && self.received.is_empty() && !self.aborted
    }
}
