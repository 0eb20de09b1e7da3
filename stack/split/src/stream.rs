//! Connection state at the service's thread.

use crate::queues::Command;
use linerate_bypass::arena::ArenaMut;
use linerate_service::{BytesQueue, ConnId, Timer};
use std::net::SocketAddr;

/// Consumption is reported to the worker once it reaches this part (1/*n*) of the window, or this number of slices.
const REPORT_PART: usize = 4;
const REPORT_SLICES: usize = 16;
/// Consumption is reported at once if this part (1/*n*) of the window, or this number of slices, is held here, since
/// the relay may have stopped.
const FULL_PART: usize = 2;
const FULL_SLICES: usize = 32;

/// State of the receive direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer has not closed.
    Open,
    /// The peer has closed; `peer_closed` is due when all data are consumed.
    Due,
    /// `peer_closed` has been delivered.
    Reported,
}

/// State of a connection.
pub(crate) struct Stream {
    /// Local and remote address.
    pub addresses: [SocketAddr; 2],
    pub received: BytesQueue,
    /// Consumed bytes and slices not yet reported to the worker.
    consumed: usize,
    consumed_slices: usize,
    /// Bytes that may be sent.
    pub credit: usize,
    /// Buffer being written, and the bytes written.
    pub buffer: Option<(ArenaMut, usize)>,
    /// True if the service found too little room and expects `writable`.
    pub wants_room: bool,
    /// True if the worker knows that the service waits for room.
    pub waits_for_room: bool,
    /// True if the send direction is closed.
    pub closed: bool,
    /// True if it was reset or closed with a lingering close: only `closed` follows.
    pub aborted: bool,
    pub end: End,
    /// True if the connection is gone at the worker. It ends here when all data are consumed.
    pub finished: bool,
    pub timer: Timer,
    /// True if the timer has expired and its event is undelivered.
    pub timer_due: bool,
    /// True if it is in the list of readable connections of this burst.
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
            buffer: None,
            wants_room: false,
            waits_for_room: false,
            closed: false,
            aborted: false,
            end: End::Open,
            finished: false,
            timer: Timer::default(),
            timer_due: false,
            listed: false,
        }
    }

    /// Accounts for consumption. Returns the report to the worker, if one is due.
    pub fn consumed(&mut self, conn: ConnId, bytes: usize, slices: usize, window: usize) -> Option<Command> {
        self.consumed += bytes;
        self.consumed_slices += slices;
        let (held, slices) = (self.consumed + self.received.len(), self.consumed_slices + self.received.slices());
        let is_much = self.consumed >= window / REPORT_PART || self.consumed_slices >= REPORT_SLICES;
        if !is_much && held < window / FULL_PART && slices < FULL_SLICES {
            return None;
        }
        let (bytes, slices) = (std::mem::take(&mut self.consumed), std::mem::take(&mut self.consumed_slices));
        Some(Command::Consumed { conn, bytes, slices })
    }

    /// Returns whether `peer_closed` is due.
    pub fn end_is_due(&self) -> bool {
        self.end == End::Due && self.received.is_empty() && !self.aborted
    }
}
