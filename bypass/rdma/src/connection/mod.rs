//! One connection: what carries it, its queues, and how far each side has come.

pub(crate) mod conn_transport;
pub(crate) mod credit;
pub(crate) mod rx;
pub(crate) mod tx;
pub(crate) mod wire;

use crate::connection::conn_transport::ConnTransport;
use crate::connection::credit::Credits;
use crate::connection::rx::Rx;
use crate::connection::tx::Tx;
use crate::connection::wire::{EndParams, HEADER, Header, Kind, OFFER, Offer};
use crate::provider::Provider;
use crate::verbs::{BoundMw, CmId, Error, Message, RingAddr};
use linerate_bypass::time::Instant;
use linerate_bypass::{Arena, CloseReason, Linger, OneSidedResult, Timer};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

/// A connection that has been made, for the worker that is to have it.
pub struct ConnCore<C: Provider> {
    /// Slices that the peer may read, in the order in which they were offered. They go before the queue pair.
    pub(crate) opened: VecDeque<BoundMw<C>>,
    pub(crate) transport: ConnTransport<C>,
    /// The connection manager's name for it, which ends it when it is dropped.
    pub(crate) id: Option<CmId<C>>,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) credits: Credits,
    /// Buffers that messages came in and that have not been posted again.
    pub(crate) used: u32,
    /// Bytes of the stream that a message has at most.
    pub(crate) longest: usize,
    /// Whether both ends read what they are offered.
    pub(crate) takes_offers: bool,
    /// What the peer has to be told of our ring, once it is open.
    pub(crate) ring: Option<RingAddr>,
    /// Bytes of a buffer of the peer's, and of all that it posted at first: its ring is as long, if it has one.
    pub(crate) their_buffers: (u32, u32),
    /// Windows of the worker's that are here: opened, or being opened or closed. They go with the link.
    pub(crate) mws: usize,
}

impl<C: Provider> ConnCore<C> {
    /// A connection by a queue pair whose buffers are posted, or by a session, as both ends described themselves.
    pub(crate) fn new(
        transport: ConnTransport<C>,
        id: Option<CmId<C>>,
        [local, remote]: [SocketAddr; 2],
        ours: &EndParams,
        theirs: &EndParams,
    ) -> Self {
        ConnCore {
            transport,
            id,
            local,
            remote,
            credits: Credits::new(ours.credits, theirs.credits),
            used: 0,
            longest: ours.buffer.min(theirs.buffer) as usize - HEADER,
            takes_offers: ours.takes_offers && theirs.takes_offers,
            opened: VecDeque::new(),
            ring: None,
            their_buffers: (theirs.buffer, theirs.buffer.saturating_mul(theirs.credits.into())),
            mws: 0,
        }
    }

    /// The header of a message, which takes a credit.
    pub(crate) fn header(&mut self, kind: Kind) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        Header { kind, credits: self.credits.spend() }.write(&mut bytes);
        bytes
    }

    /// Says what has no bytes of the stream. Returns whether there was memory for it.
    pub(crate) fn say(&mut self, arena: &Arena, kind: Kind, offer: Option<Offer>) -> Result<bool, Error> {
        let len = if offer.is_some() { OFFER } else { HEADER };
        let Some(mut block) = arena.alloc(len) else { return Ok(false) };
        let (head, rest) = block.split_at_mut(HEADER);
        head.copy_from_slice(&self.header(kind));
        if let (Some(offer), Some(rest)) = (offer, rest.first_chunk_mut()) {
            offer.write(rest);
        }
        let mut message = Message::new();
        let _ = message.push(block.freeze());
        self.send(&mut message, kind == Kind::Finish)?;
        Ok(true)
    }

    /// Sends a message, for which there is room.
    pub(crate) fn send(&mut self, message: &mut Message, signalled: bool) -> Result<(), Error> {
        self.transport
            .send(message, signalled)
            .map_err(|why| Error { what: "send a message", error: io::Error::other(why) })
    }
}

/// How far the connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Established.
    Open,
    /// Its queue pair is of no use any more; the service has still to be told why.
    Ended(CloseReason),
}

/// How far the peer's half has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiving {
    /// There may be more to come.
    Open,
    /// Its end has come.
    Ended,
    /// The service has been told so, after it consumed everything.
    Told,
    /// A lingering close: whatever comes is discarded.
    Discarding(Linger),
}

/// How far our half has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    /// The service may send.
    Open,
    /// It has closed; the queue is still being sent.
    Closing,
    /// The end of the stream is on its way.
    Finishing,
    /// The peer has it.
    Finished,
}

/// The events of a connection that have happened and not been delivered.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    pub readable: bool,
    pub writable: bool,
    pub timer: bool,
}

/// For whom something is read of the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// For the stream: a part of an offer.
    Stream,
    /// For the service, which knows it by this token.
    Service(u64),
}

/// See the file's head.
pub(crate) struct Connection<C: Provider> {
    pub link: ConnCore<C>,
    pub stage: Stage,
    pub receiving: Receiving,
    pub sending: Sending,
    pub rx: Rx,
    pub tx: Tx,
    /// Who waits for what is read of the peer's memory, in order.
    pub readers: VecDeque<Reader>,
    /// What the service has not been told of.
    pub one_sided_done: VecDeque<(u64, OneSidedResult)>,
    /// How many slices have been offered and not closed, and how many of those the peer has taken.
    pub offered: usize,
    pub taken: usize,
    /// How many offers of the peer's we have not told it that they were read, and how many of those were.
    pub open_offers: usize,
    pub to_take: usize,
    /// When anything was last completed.
    pub heard: Instant,
    /// The peer has been asked whether it is there, and nothing was since.
    pub is_probed: bool,
    pub timer: Timer,
    pub pending: Pending,
    /// It is in the worker's list of connections with events.
    pub listed: bool,
    /// It is in the worker's list of connections that have something to send or to post.
    pub dirty: bool,
    /// The service found too little room and is to be told when there is some.
    pub wants_room: bool,
}

impl<C: Provider> Connection<C> {
    pub fn new(link: ConnCore<C>, now: Instant) -> Self {
        Connection {
            link,
            stage: Stage::Open,
            receiving: Receiving::Open,
            sending: Sending::Open,
            rx: Rx::default(),
            tx: Tx::default(),
            readers: VecDeque::new(),
            one_sided_done: VecDeque::new(),
            offered: 0,
            taken: 0,
            open_offers: 0,
            to_take: 0,
            heard: now,
            is_probed: false,
            timer: Timer::default(),
            pending: Pending::default(),
            listed: false,
            dirty: false,
            wants_room: false,
        }
    }

    /// The peer is there.
    #[inline]
    pub fn hear(&mut self, now: Instant) {
        (self.heard, self.is_probed) = (now, false);
    }

    /// Whether the service may still send.
    pub fn may_send(&self) -> bool {
        self.stage == Stage::Open && self.sending == Sending::Open
    }

    /// Returns true in a lingering close: input is discarded, and the service gets no event but `closed`.
    pub fn is_lingering(&self) -> bool {
        matches!(self.receiving, Receiving::Discarding(_))
    }

    /// Returns true once the peer has finished sending.
    pub fn peer_has_finished(&self) -> bool {
        matches!(self.receiving, Receiving::Ended | Receiving::Told)
    }

    /// Whether the service is to be told now that the peer has finished.
    pub fn peer_closed_is_due(&self) -> bool {
        self.receiving == Receiving::Ended && self.rx.is_done()
    }

    /// Whether both halves are done with.
    pub fn is_finished(&self) -> bool {
        self.stage == Stage::Open && self.receiving == Receiving::Told && self.sending == Sending::Finished
    }
}
