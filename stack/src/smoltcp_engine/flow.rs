//! One connection of the smoltcp engine: a socket in a set of its own, and what smoltcp does not tell.

use super::reset_reply::{Control, Reply};
use crate::engine::{Event, EventBatch};
use crate::slow_path::device::Sent;
use crate::tcp::tuple::Tuple;
use linerate_bypass::inspect::ConnState;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{CloseReason, ConnId, ConnectError, Origin};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::TcpPacket;
use std::net::SocketAddr;

/// The time between two challenges of one connection: less than the first retransmission of a SYN.
const CHALLENGE_PERIOD: Duration = Duration::from_millis(500);

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// A peer has begun it.
    HalfOpen,
    /// We have begun it, for the connect call with this token.
    Connecting(u64),
    /// The service knows it.
    Open,
    /// The service has been told its end.
    Gone,
}

/// What becomes of a flow that has been looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing changed about its being.
    Stays,
    /// It has just been established.
    Opened,
    /// The service never knew it, and it is over.
    Vanishes,
}

pub(super) struct Flow {
    pub tuple: Tuple,
    pub sockets: SocketSet<'static>,
    handle: SocketHandle,
    pub phase: Phase,
    /// The peer has begun it.
    pub is_accepted: bool,
    /// Bytes in the receive queue that the service has been told of.
    told: usize,
    /// An operation found too little room.
    pub wants_room: bool,
    /// The service has been told that the peer finished.
    told_end: bool,
    /// Why it ends, once that is known.
    pub reason: Option<CloseReason>,
    /// The last segment sent.
    pub sent: Option<Sent>,
    /// The sequence number after the peer's FIN, once it has arrived in order.
    pub peer_end: Option<u32>,
    /// When to send our FIN again by ourselves; see [`fin_untended`](Self::fin_untended).
    pub fin_again: Option<Instant>,
    /// When the service last asked to be called.
    pub timer: Instant,
    /// When the last challenge was sent.
    challenged: Option<Instant>,
    /// In the engine's list of flows to look at.
    pub touched: bool,
    /// In the engine's list of flows to send from.
    pub dirty: bool,
}

/// A socket with its buffers, alone in a set.
pub(super) fn new_set(rx_buffer: usize, tx_buffer: usize) -> (SocketSet<'static>, SocketHandle) {
    let mut sockets = SocketSet::new(Vec::with_capacity(1));
    let socket = Socket::new(SocketBuffer::new(vec![0; rx_buffer]), SocketBuffer::new(vec![0; tx_buffer]));
    let handle = sockets.add(socket);
    (sockets, handle)
}

impl Flow {
    /// Ends it for the reason `why` without another segment: its socket is replaced by one that has no peer.
    pub fn silence(&mut self, (sockets, handle): (SocketSet<'static>, SocketHandle), why: CloseReason) {
        (self.sockets, self.handle) = (sockets, handle);
        self.reason = Some(why);
        self.dirty = false;
    }

    /// The socket's state.
    pub fn conn_state(&self) -> ConnState {
        match self.socket().state() {
            State::Closed | State::Listen => ConnState::Closed,
            State::SynSent => ConnState::SynSent,
            State::SynReceived => ConnState::SynReceived,
            State::Established => ConnState::Established,
            State::FinWait1 => ConnState::FinWait1,
            State::FinWait2 => ConnState::FinWait2,
            State::CloseWait => ConnState::CloseWait,
            State::Closing => ConnState::Closing,
            State::LastAck => ConnState::LastAck,
            State::TimeWait => ConnState::TimeWait,
        }
    }

    pub fn new(tuple: Tuple, phase: Phase, (sockets, handle): (SocketSet<'static>, SocketHandle)) -> Self {
        Flow {
            tuple,
            sockets,
            handle,
            phase,
            is_accepted: phase == Phase::HalfOpen,
            told: 0,
            wants_room: false,
            told_end: false,
            reason: None,
            sent: None,
            peer_end: None,
            fin_again: None,
            timer: Instant::ZERO,
            challenged: None,
            touched: false,
            dirty: false,
        }
    }

    pub fn into_set(self) -> (SocketSet<'static>, SocketHandle) {
        (self.sockets, self.handle)
    }

    pub fn socket(&self) -> &Socket<'static> {
        self.sockets.get(self.handle)
    }

    #[inline]
    pub fn socket_mut(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.tuple.local(), self.tuple.remote())
    }

    /// Notes why the connection ended when a segment has brought it from `before` to CLOSED.
    pub fn note_end(&mut self, before: State, reset: bool) {
        if self.socket().state() == State::Closed && self.reason.is_none() {
            self.reason = Some(match before {
                _ if reset => CloseReason::Reset,
                State::LastAck | State::TimeWait => CloseReason::Finished,
                _ => CloseReason::TimedOut,
            });
        }
    }

    /// Whether the peer has finished and the service has consumed all but does not know it.
    pub fn end_untold(&self) -> bool {
        let socket = self.socket();
        let finished = match socket.state() {
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait => true,
            State::Closed => self.reason == Some(CloseReason::Finished),
            _ => false,
        };
        finished && !self.told_end && socket.recv_queue() == 0
    }

    /// Whether all has been said, and received bytes wait for the service. When TIME-WAIT is over, smoltcp lets go of them.
    pub fn waits_to_be_read(&self) -> bool {
        self.socket().recv_queue() > 0 && self.sent.map(|sent| sent.acknowledged) == self.peer_end
    }

    /// Whether nothing but our FIN is unacknowledged.
    ///
    /// smoltcp 0.14 forgets its retransmission timer when duplicate acknowledgements arrive in that state: it
    /// attempts a fast retransmission of data, of which there is none.
    pub fn fin_untended(&self) -> bool {
        let socket = self.socket();
        let sent = matches!(socket.state(), State::FinWait1 | State::Closing | State::LastAck);
        sent && socket.send_queue() == 0 && !self.dirty
    }

    /// Our FIN once more.
    pub fn fin(&self) -> Option<Reply> {
        let Sent { next_sequence, acknowledged, window } = self.sent?;
        let sequence = next_sequence.wrapping_sub(1);
        Some(Reply { sequence, acknowledge: Some(acknowledged), window, control: Control::Fin })
    }

    /// Whether `segment` is a SYN that a connection as old as this one does not get: from a peer that was started
    /// again, or from an attacker.
    pub fn is_reopened_by(&self, segment: &TcpPacket<&[u8]>) -> bool {
        segment.syn() && !segment.ack() && !segment.rst() && matches!(self.phase, Phase::Open | Phase::Gone)
    }

    /// What such a SYN gets, unless one got it just now: an acknowledgement of what we have, to which a peer that knows
    /// nothing of it answers with a reset (RFC 5961 §4.2, §7). smoltcp 0.14 would drop the SYN without a word.
    pub fn challenge(&mut self, now: Instant) -> Option<Reply> {
        if self.challenged.is_some_and(|last| now.since(last) < CHALLENGE_PERIOD) {
            return None;
        }
        self.challenged = Some(now);
        let Sent { next_sequence, acknowledged, window } = self.sent?;
        Some(Reply { sequence: next_sequence, acknowledge: Some(acknowledged), window, control: Control::None })
    }

    /// After the service has consumed something: whether there is news in that.
    pub fn consumed(&mut self) -> bool {
        self.told = self.told.min(self.socket().recv_queue());
        self.end_untold()
    }

    /// Says what has happened since it was looked at last.
    pub fn look(&mut self, conn: ConnId, news: &mut EventBatch) -> Fate {
        let state = self.socket().state();
        let mut fate = Fate::Stays;
        match (self.phase, state) {
            (Phase::Gone, _) => return Fate::Stays,
            (Phase::HalfOpen, State::SynReceived) | (Phase::Connecting(_), State::SynSent | State::SynReceived) => {
                return Fate::Stays;
            }
            // A reset takes a half-open socket back to LISTEN.
            (Phase::HalfOpen, State::Listen | State::Closed) => return Fate::Vanishes,
            (Phase::Connecting(token), State::Closed) => {
                let error = match self.reason {
                    Some(CloseReason::Reset) => ConnectError::Refused,
                    _ => ConnectError::TimedOut,
                };
                news.others.push(Event::Failed(token, error));
                return Fate::Vanishes;
            }
            (Phase::HalfOpen, _) => {
                news.opened.push((conn, Origin::Accepted));
                fate = Fate::Opened;
            }
            (Phase::Connecting(token), _) => {
                news.opened.push((conn, Origin::Connected(token)));
                fate = Fate::Opened;
            }
            (Phase::Open, _) => {}
        }
        self.phase = Phase::Open;
        let received = self.socket().recv_queue();
        if received > self.told {
            self.told = received;
            news.readable.push(conn);
        }
        if self.wants_room && self.enough_room() {
            self.wants_room = false;
            news.others.push(Event::Writable(conn));
        }
        if self.end_untold() {
            self.told_end = true;
            news.others.push(Event::PeerClosed(conn));
        }
        let over = match state {
            // The service may still be reading, and our last acknowledgement may not have been sent.
            State::TimeWait => self.told_end && self.sent.map(|sent| sent.acknowledged) == self.peer_end,
            // A reset goes out first; what has been received in full is read first.
            State::Closed => !self.dirty && (self.told_end || self.reason != Some(CloseReason::Finished)),
            _ => false,
        };
        if over {
            self.phase = Phase::Gone;
            news.others.push(Event::Closed(conn, self.reason.unwrap_or(CloseReason::Finished)));
        }
        fate
    }

    /// Bytes that can be sent now.
    pub fn room(&self) -> usize {
        let socket = self.socket();
        if socket.may_send() { socket.send_capacity() - socket.send_queue() } else { 0 }
    }

    /// Whether it is worth telling the service of the room: a quarter of the buffer, so that a bulk sender is not
    /// called for every segment acknowledged.
    fn enough_room(&self) -> bool {
        self.room() * 4 >= self.socket().send_capacity()
    }
}
