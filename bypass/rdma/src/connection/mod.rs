//! Connections: transport, queues and state of both directions.

pub(crate) mod conn_transport;
pub(crate) mod credit;
pub(crate) mod rx;
pub(crate) mod tx;

use crate::connection::conn_transport::ConnTransport;
use crate::connection::credit::Credits;
use crate::connection::rx::Rx;
use crate::connection::tx::Tx;
use crate::provider::Provider;
use crate::verbs::{BoundMw, CmId, Error, Message};
use crate::wire::{EndParams, HEADER, Header, MessageKind, OFFER, Offer};
use linerate_bypass::Arena;
use linerate_service::inspect::VerbsInfo;
use linerate_service::time::Instant;
use linerate_service::{Lifecycle, OneSidedResult, Stage, Tracked};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

/// Transport-level state of a connection. The connector creates it, the worker's `Connection` holds it, and the
/// connector receives it back when the connection ends.
pub struct ConnCore<C: Provider> {
    /// Slices that the peer may read, in the order of their offers. Dropped before the queue pair.
    pub(crate) opened: VecDeque<BoundMw<C>>,
    pub(crate) transport: ConnTransport<C>,
    /// Connection manager identifier, which ends the connection when dropped.
    pub(crate) id: Option<CmId<C>>,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) credits: Credits,
    /// Buffers with received messages that are not posted again.
    pub(crate) used: u32,
    /// Maximum stream bytes of a message.
    pub(crate) longest: usize,
    /// Both ends support rendezvous.
    pub(crate) takes_offers: bool,
    /// Windows of the worker that are bound, or being bound or invalidated. They are dropped with this value.
    pub(crate) mws: usize,
}

impl<C: Provider> ConnCore<C> {
    /// Creates the state from the transport and the parameters that both ends announced.
    pub(crate) fn new(
        transport: ConnTransport<C>,
        id: Option<CmId<C>>,
        [local, remote]: [SocketAddr; 2],
        own: &EndParams,
        peer: &EndParams,
    ) -> Self {
        ConnCore {
            transport,
            id,
            local,
            remote,
            credits: Credits::new(own.credits, peer.credits),
            used: 0,
            longest: own.buffer.min(peer.buffer) as usize - HEADER,
            takes_offers: own.takes_offers && peer.takes_offers,
            opened: VecDeque::new(),
            mws: 0,
        }
    }

    /// Returns the header of a message and uses a credit.
    pub(crate) fn header(&mut self, kind: MessageKind) -> [u8; HEADER] {
        Header { kind, credits: self.credits.spend() }.to_bytes()
    }

    /// Sends a message without stream bytes. Returns false if memory is exhausted.
    pub(crate) fn send_control(
        &mut self,
        arena: &Arena,
        kind: MessageKind,
        offer: Option<Offer>,
    ) -> Result<bool, Error> {
        let len = if offer.is_some() { OFFER } else { HEADER };
        let Some(mut block) = arena.alloc(len) else { return Ok(false) };
        let (head, rest) = block.split_at_mut(HEADER);
        head.copy_from_slice(&self.header(kind));
        if let (Some(offer), Some(rest)) = (offer, rest.first_chunk_mut()) {
            offer.write(rest);
        }
        let mut message = Message::new();
        let _ = message.push(block.freeze());
        self.send(&mut message, kind == MessageKind::Finish)?;
        Ok(true)
    }

    /// Sends a message. The caller has checked the room.
    pub(crate) fn send(&mut self, message: &mut Message, signalled: bool) -> Result<(), Error> {
        self.transport
            .send(message, signalled)
            .map_err(|reason| Error { operation: "send a message", error: io::Error::other(reason) })
    }
}

/// Destination of data read from the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The stream: a part of an offer.
    Stream,
    /// The service, which identifies the operation by this token.
    Service(u64),
}

pub(crate) struct Connection<C: Provider> {
    pub link: ConnCore<C>,
    pub life: Lifecycle,
    pub rx: Rx,
    pub tx: Tx,
    /// Destinations of outstanding READs and atomic operations, in order.
    pub readers: VecDeque<Reader>,
    /// Results not yet delivered to the service.
    pub one_sided_done: VecDeque<(u64, OneSidedResult)>,
    /// Offered slices that are not yet closed, and how many of them the peer has read.
    pub offered: usize,
    pub taken: usize,
    /// Offers of the peer not yet confirmed as read, and how many of them were read.
    pub open_offers: usize,
    pub to_take: usize,
    pub last_completion: Instant,
    /// A probe was sent since the last completion.
    pub is_probed: bool,
    /// Number of times that data had to wait for credits.
    pub credit_stalls: u64,
    /// Listed in the worker's connections with data to send or buffers to post.
    pub dirty: bool,
}

impl<C: Provider> Connection<C> {
    pub fn new(link: ConnCore<C>, now: Instant) -> Self {
        Connection {
            link,
            life: Lifecycle::new(Stage::Open),
            rx: Rx::default(),
            tx: Tx::default(),
            readers: VecDeque::new(),
            one_sided_done: VecDeque::new(),
            offered: 0,
            taken: 0,
            open_offers: 0,
            to_take: 0,
            last_completion: now,
            is_probed: false,
            credit_stalls: 0,
            dirty: false,
        }
    }

    /// Returns the state of the transport.
    pub fn verbs_info(&self) -> VerbsInfo {
        let (qp, peer_qp) = self.link.transport.qp_numbers();
        VerbsInfo {
            qp,
            peer_qp,
            state: if self.life.stage == Stage::Open { "rts" } else { "error" },
            credits: self.link.credits.available().into(),
            outstanding: self.link.transport.outstanding() as u64,
            credit_stalls: self.credit_stalls,
        }
    }

    /// Returns the number of used buffers that hold no received data.
    #[inline]
    pub fn unheld(&self) -> u32 {
        self.link.used.saturating_sub(self.rx.held())
    }

    /// Records a completion, which shows that the peer is alive.
    #[inline]
    pub fn note_completion(&mut self, now: Instant) {
        (self.last_completion, self.is_probed) = (now, false);
    }
}

impl<C: Provider> Tracked for Connection<C> {
    #[inline]
    fn life(&self) -> &Lifecycle {
        &self.life
    }

    #[inline]
    fn life_mut(&mut self) -> &mut Lifecycle {
        &mut self.life
    }

    #[inline]
    fn is_read(&self) -> bool {
        self.rx.is_done()
    }
}
