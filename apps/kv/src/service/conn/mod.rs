//! Connections.

pub mod gather;
pub mod output;

use crate::commands::{self, Session};
use crate::memcached;
use crate::resp::{self, OwnedArgs, Protocol};
use crate::service::conn::gather::ReplyRound;
use crate::service::conn::output::{Output, Replies};
use crate::store::{Long, LongWriter};
use linerate_service::{Bytes, ConnId, Transport};
use std::net::SocketAddr;
use std::ops::Range;

/// State of a client.
pub(super) struct Client {
    pub conn: ConnId,
    pub protocol_state: ProtocolState,
    /// Start of an incomplete request.
    pub input: Vec<u8>,
    /// Long value being received.
    pub incoming: Option<IncomingValue>,
    /// Request that waits for shards, or for the replies of earlier requests.
    pub pending: Option<PendingRequest>,
    /// The pending request waits for the end of a pause.
    pub is_held: bool,
    /// Request that has run in part and continues in the next turn.
    pub paused: Option<PendingRequest>,
    /// List of all clients for the pending request. It is complete when no reply is pending.
    pub list: Option<Vec<commands::ClientInfo>>,
    /// Number of replies expected from other workers. No request starts before all have arrived.
    pub pending_replies: u32,
    /// The client is in the queue of long work, and no request starts before its turn.
    pub is_queued: bool,
    /// Requests parsed ahead.
    pub ahead: Range<usize>,
    /// Requests of which some run on other workers. No other request starts before their replies have been written.
    pub round: Option<Box<ReplyRound>>,
    pub output: Output,
    pub peer_closed: bool,
    /// The client sent a request of another protocol, which is not logged yet.
    pub foreign: Option<Foreign>,
    /// The connection closes after all replies.
    is_closing: bool,
    is_admitted: bool,
    /// Time of the last input, in milliseconds since 1970.
    pub last_input: u64,
}

/// Protocol of a client and its parser.
pub(super) enum ProtocolState {
    Resp { session: Box<Session>, parser: resp::Parser, has_no_room: bool },
    Memcached { parser: memcached::Parser },
}

impl ProtocolState {
    pub fn resp(mut session: Session) -> Self {
        session.allow_pausing();
        ProtocolState::Resp { session: Box::new(session), parser: resp::Parser::default(), has_no_room: false }
    }

    pub fn memcached() -> Self {
        ProtocolState::Memcached { parser: memcached::Parser::default() }
    }
}

/// Protocol that is not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Foreign {
    Http,
    /// Binary protocol of memcached.
    Binary,
}

/// Stored request, independent of the receive buffer.
pub(super) enum PendingRequest {
    Resp(OwnedArgs),
    /// Bytes of the request, and its data block if that is a long value.
    Memcached(Vec<u8>, memcached::Data<'static>),
    /// Request that fails: the error reply, and whether the connection closes.
    CommandError(Vec<u8>, bool),
}

impl PendingRequest {
    pub fn longs_mut(&mut self) -> impl Iterator<Item = &mut Long> {
        let (args, data) = match self {
            PendingRequest::Resp(args) => (Some(args), None),
            PendingRequest::Memcached(_, memcached::Data::Long(long)) => (None, Some(long)),
            _ => (None, None),
        };
        args.into_iter().flat_map(OwnedArgs::longs_mut).chain(data)
    }
}

/// Source of a datagram.
#[derive(Debug, Clone, Copy)]
pub(super) struct DatagramSource {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub id: u16,
}

/// Received datagram.
#[derive(Debug)]
pub(super) struct PendingDatagram {
    pub source: DatagramSource,
    /// Datagram including its header.
    pub datagram: Bytes,
}

impl PendingDatagram {
    pub fn requests(&self) -> &[u8] {
        &self.datagram[memcached::udp::HEADER..]
    }
}

/// Client of a remote request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Requester {
    pub conn: ConnId,
    pub space: u8,
    pub protocol: Protocol,
}

/// Long value being received.
pub(super) struct IncomingValue {
    /// Destination, or `None` if there is no memory for the value.
    pub writer: Option<LongWriter>,
    /// Missing bytes, including the line end.
    pub left: usize,
    pub end: [u8; 2],
}

impl IncomingValue {
    /// Creates the state for a value of `len` bytes, which is written to `writer`.
    pub fn new(len: usize, writer: Option<LongWriter>) -> Self {
        IncomingValue { writer, left: len + 2, end: [0; 2] }
    }

    /// Copies bytes of the value from the start of `bytes` as far as there is room. Returns their number.
    pub fn take(&mut self, bytes: &[u8]) -> usize {
        let end_at = self.left.saturating_sub(2);
        let mut n = bytes.len().min(self.left);
        if let Some(writer) = &mut self.writer
            && end_at > 0
        {
            let value = n.min(end_at);
            let filled = writer.fill(&bytes[..value.min(writer.room())]);
            if filled < value {
                n = filled;
            }
        }
        for (at, byte) in bytes[..n].iter().enumerate().skip(end_at) {
            self.end[2 - (self.left - at)] = *byte;
        }
        self.left -= n;
        n
    }
}

impl Client {
    pub fn new(conn: ConnId, protocol_state: ProtocolState, now: u64) -> Self {
        Client {
            conn,
            protocol_state,
            input: Vec::new(),
            incoming: None,
            pending: None,
            is_held: false,
            paused: None,
            list: None,
            pending_replies: 0,
            is_queued: false,
            ahead: 0..0,
            round: None,
            output: Output::default(),
            peer_closed: false,
            foreign: None,
            is_closing: false,
            is_admitted: true,
            last_input: now,
        }
    }

    pub fn reject(&mut self, net: &mut impl Transport, error: &[u8]) {
        self.is_admitted = false;
        if matches!(self.protocol_state, ProtocolState::Resp { .. }) {
            net.write(self.conn, error);
        }
        self.close(net);
    }

    pub fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    pub fn session(&self) -> Option<&Session> {
        match &self.protocol_state {
            ProtocolState::Resp { session, .. } => Some(session),
            ProtocolState::Memcached { .. } => None,
        }
    }

    /// Returns the client as the source of a request to another worker.
    pub fn requester(&self) -> Requester {
        let (space, protocol) = self.session().map_or_else(Default::default, |it| (it.space(), it.protocol()));
        Requester { conn: self.conn, space, protocol }
    }

    pub fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.protocol_state {
            ProtocolState::Resp { session, .. } => Some(session),
            ProtocolState::Memcached { .. } => None,
        }
    }

    pub fn into_session(self) -> Option<Box<Session>> {
        match self.protocol_state {
            ProtocolState::Resp { session, .. } => Some(session),
            ProtocolState::Memcached { .. } => None,
        }
    }

    /// Returns true if a new request can start.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.pending_replies == 0
            && self.pending.is_none()
            && self.paused.is_none()
            && !self.is_queued
            && !self.is_closing
    }

    /// Returns true if the received data starts with a new request that can start.
    pub fn is_fresh(&self) -> bool {
        self.is_ready() && self.input.is_empty() && self.incoming.is_none()
    }

    /// Returns the keyspace of the next requests if the fast path may take them.
    pub fn fast_path_space(&self) -> Option<u8> {
        self.session().filter(|session| session.is_plain() && self.is_fresh()).map(Session::space)
    }

    /// Returns true if no output is queued and the peer has not finished.
    pub fn is_quiet(&self) -> bool {
        self.output.is_empty() && !self.peer_closed
    }

    /// Takes the pending request if it can start.
    pub fn take_pending(&mut self) -> Option<PendingRequest> {
        if self.pending_replies > 0 || self.is_closing || self.is_held { None } else { self.pending.take() }
    }

    /// Completes the batches of an open round, whose replies are expected from now on. Returns false if there is none.
    pub fn seal_round(&mut self) -> bool {
        let Some(round) = self.round.as_mut().filter(|round| !round.is_sealed) else { return false };
        (round.is_sealed, round.missing) = (true, round.parts.len());
        self.pending_replies += round.parts.len() as u32;
        true
    }

    /// Stops reading requests.
    pub fn finish(&mut self) {
        self.is_closing = true;
    }

    pub fn send(&mut self, net: &mut impl Transport, replies: &mut Replies) {
        self.output.send(net, self.conn, replies);
    }

    /// Closes the connection after the queued output.
    pub fn close(&mut self, net: &mut impl Transport) {
        self.is_closing = true;
        self.close_if_done(net);
    }

    /// Closes the connection if all replies are sent.
    pub fn close_if_done(&mut self, net: &mut impl Transport) {
        let is_busy = self.pending_replies > 0 || self.paused.is_some() || self.is_queued;
        let is_complete = self.is_closing || self.peer_closed && !is_busy;
        if !is_complete || !self.output.is_empty() {
            return;
        }
        if self.peer_closed {
            net.close(self.conn);
        } else {
            // The peer may still be sending, which would reset the connection and destroy the last reply.
            net.lingering_close(self.conn);
        }
        self.is_closing = true;
    }

    pub fn is_closing(&self) -> bool {
        self.is_closing
    }
}
