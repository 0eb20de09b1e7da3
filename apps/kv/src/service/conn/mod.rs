//! A connection.

mod dispatch;
pub mod input;
pub mod output;

use crate::commands::{self, Session};
use crate::memcached;
use crate::resp::{self, OwnedArgs};
use crate::service::conn::output::{Output, Replies};
use crate::store::{Long, LongWriter};
use linerate_bypass::{ConnId, Transport};
use std::ops::Range;

/// One client.
pub(super) struct Client {
    pub conn: ConnId,
    pub speech: Speech,
    /// The beginning of a request that has not come to its end.
    pub input: Vec<u8>,
    /// A long value of it that is being received.
    pub incoming: Option<Incoming>,
    /// A request that waits for shards.
    pub asked: Option<Asked>,
    /// A request that has been done in part, and goes on in the next turn.
    pub paused: Option<Asked>,
    /// All clients, for that request, if they are known.
    pub list: Option<Vec<commands::ClientInfo>>,
    /// What is under way for it at other workers, so many things: no other request is begun before all of that is there.
    pub awaits: u32,
    /// There is more to be read of it, after others have had their turn.
    pub has_more: bool,
    /// Which of the requests that were recognised ahead are its next.
    pub ahead: Range<usize>,
    /// The other worker that its requests are being put together for.
    pub errand: Option<usize>,
    pub output: Output,
    pub has_peer_finished: bool,
    /// It has sent an HTTP request, and is disconnected at once.
    pub is_http: bool,
    /// It is closed once all replies are sent.
    is_closing: bool,
    is_admitted: bool,
    /// When it last said something, in milliseconds since 1970.
    pub heard: u64,
}

/// What a client speaks.
pub(super) enum Speech {
    Resp { session: Box<Session>, parser: resp::Parser, has_no_room: bool },
    Memcached { parser: memcached::Parser },
}

impl Speech {
    pub fn resp(mut session: Session) -> Self {
        session.allow_pausing();
        Speech::Resp { session: Box::new(session), parser: resp::Parser::default(), has_no_room: false }
    }

    pub fn memcached() -> Self {
        Speech::Memcached { parser: memcached::Parser::default() }
    }
}

/// A request that outlives the bytes that it came in.
pub(super) enum Asked {
    Resp(OwnedArgs),
    /// All of its bytes but for data that were received apart.
    Memcached(Vec<u8>, memcached::Data<'static>),
    /// None that can be run: what is said to it, and whether the connection is closed then.
    CommandError(Vec<u8>, bool),
}

impl Asked {
    /// Values of it that were received apart.
    pub fn longs_mut(&mut self) -> impl Iterator<Item = &mut Long> {
        let (args, data) = match self {
            Asked::Resp(args) => (Some(args), None),
            Asked::Memcached(_, memcached::Data::Long(long)) => (None, Some(long)),
            _ => (None, None),
        };
        args.into_iter().flat_map(OwnedArgs::longs_mut).chain(data)
    }
}

/// A long value that is being received.
pub(super) struct Incoming {
    /// Where it goes; nowhere if there was no memory for it.
    pub writer: Option<LongWriter>,
    /// Bytes still to come, with the end of its line.
    pub left: usize,
    /// The end of its line.
    pub end: [u8; 2],
}

impl Incoming {
    /// One of `len` bytes, which go into `writer`.
    pub fn new(len: usize, writer: Option<LongWriter>) -> Self {
        Incoming { writer, left: len + 2, end: [0; 2] }
    }

    /// Takes what there is of it at the beginning of `bytes`, as far as there is room. Returns how many bytes that were.
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
    pub fn new(conn: ConnId, speech: Speech, now: u64) -> Self {
        Client {
            conn,
            speech,
            input: Vec::new(),
            incoming: None,
            asked: None,
            paused: None,
            list: None,
            awaits: 0,
            has_more: false,
            ahead: 0..0,
            errand: None,
            output: Output::default(),
            has_peer_finished: false,
            is_http: false,
            is_closing: false,
            is_admitted: true,
            heard: now,
        }
    }

    /// There is no place for it: it is told so, and closed.
    pub fn refuse(&mut self, net: &mut impl Transport, why: &[u8]) {
        self.is_admitted = false;
        if matches!(self.speech, Speech::Resp { .. }) {
            net.write(self.conn, why);
        }
        self.close(net);
    }

    pub fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    pub fn session(&self) -> Option<&Session> {
        match &self.speech {
            Speech::Resp { session, .. } => Some(session),
            Speech::Memcached { .. } => None,
        }
    }

    pub fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.speech {
            Speech::Resp { session, .. } => Some(session),
            Speech::Memcached { .. } => None,
        }
    }

    pub fn into_session(self) -> Option<Box<Session>> {
        match self.speech {
            Speech::Resp { session, .. } => Some(session),
            Speech::Memcached { .. } => None,
        }
    }

    /// Whether a request of it can be begun now.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.awaits == 0 && self.asked.is_none() && self.paused.is_none() && !self.is_closing
    }

    /// Whether what there is to read of it begins with a request that can be begun now.
    pub fn is_fresh(&self) -> bool {
        self.is_ready() && self.errand.is_none() && self.input.is_empty() && self.incoming.is_none()
    }

    /// The keyspace in which its next requests may be recognised ahead, if they may be.
    pub fn recognised_in(&self) -> Option<u8> {
        self.session().filter(|session| session.is_plain() && self.is_fresh()).map(Session::space)
    }

    /// Whether no reply to it waits, and it has not finished.
    pub fn is_quiet(&self) -> bool {
        self.output.is_empty() && !self.has_peer_finished
    }

    /// The request that was read and not begun, if it can be begun now.
    pub fn next_asked(&mut self) -> Option<Asked> {
        if self.awaits > 0 || self.is_closing { None } else { self.asked.take() }
    }

    /// No more requests of it are read.
    pub fn finish(&mut self) {
        self.is_closing = true;
    }

    pub fn send(&mut self, net: &mut impl Transport, replies: &mut Replies) {
        self.output.send(net, self.conn, replies);
    }

    /// It is closed when what waits has been sent.
    pub fn close(&mut self, net: &mut impl Transport) {
        self.is_closing = true;
        self.close_if_done(net);
    }

    /// Closes if nothing is left to be said.
    pub fn close_if_done(&mut self, net: &mut impl Transport) {
        let is_busy = self.awaits > 0 || self.paused.is_some() || self.has_more;
        let has_said_all = self.is_closing || self.has_peer_finished && !is_busy;
        if !has_said_all || !self.output.is_empty() {
            return;
        }
        if self.has_peer_finished {
            net.close(self.conn);
        } else {
            // The peer may still be sending, and is to read the last reply before a reset can destroy it.
            net.lingering_close(self.conn);
        }
        self.is_closing = true;
    }

    pub fn is_closing(&self) -> bool {
        self.is_closing
    }
}
