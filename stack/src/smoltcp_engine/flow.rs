//! Connection of the smoltcp engine: a socket in its own set, and state that smoltcp lacks.

use super::reset_reply::{Control, Reply};
use crate::slow_path::device::Sent;
use crate::wire::tuple::Tuple;
use linerate_service::inspect::ConnState;
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnId, ConnectError, Event, EventBatch, Origin};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::TcpPacket;
use std::net::SocketAddr;

/// Minimum time between challenge ACKs of one connection: less than the first retransmission of a SYN.
const CHALLENGE_PERIOD: Duration = Duration::from_millis(500);

/// Progress of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Passive open, handshake incomplete.
    HalfOpen,
    /// Active open by the connect call with this token.
    Connecting(u64),
    /// Established, and reported to the service.
    Open,
    /// Ended, and reported to the service.
    Gone,
}

/// Consequence of inspecting a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// No change.
    Unchanged,
    /// The connection was established.
    Opened,
    /// The connection ended before it was reported to the service.
    EndsUnknown,
}

pub(super) struct Flow {
    pub tuple: Tuple,
    pub sockets: SocketSet<'static>,
    handle: SocketHandle,
    pub phase: Phase,
    /// True if this was a passive open.
    pub is_accepted: bool,
    /// Received bytes reported to the service.
    reported: usize,
    /// True if an operation found too little send space.
    pub wants_room: bool,
    /// True if the peer's FIN was reported to the service.
    end_reported: bool,
    /// Reason of the end, once known.
    pub reason: Option<CloseReason>,
    /// Last segment sent.
    pub sent: Option<Sent>,
    /// Sequence number after the peer's FIN, once received in order.
    pub peer_end: Option<u32>,
    /// Time to retransmit the FIN; see [`only_fin_unacknowledged`](Self::only_fin_unacknowledged).
    pub fin_again: Option<Instant>,
    /// Time of the service's timer.
    pub timer: Instant,
    /// Time of the last challenge ACK.
    challenged: Option<Instant>,
    /// True if the flow is in the engine's inspection list.
    pub touched: bool,
    /// True if the flow is in the engine's transmission list.
    pub tx_pending: bool,
}

/// Creates a socket with its buffers, in a set of its own.
pub(super) fn new_set(rx_buffer: usize, tx_buffer: usize) -> (SocketSet<'static>, SocketHandle) {
    let mut sockets = SocketSet::new(Vec::with_capacity(1));
    let socket = Socket::new(SocketBuffer::new(vec![0; rx_buffer]), SocketBuffer::new(vec![0; tx_buffer]));
    let handle = sockets.add(socket);
    (sockets, handle)
}

impl Flow {
    /// Ends the connection for the reason `reason` without another segment: replaces its socket by one without a peer.
    pub fn silence(&mut self, (sockets, handle): (SocketSet<'static>, SocketHandle), reason: CloseReason) {
        (self.sockets, self.handle) = (sockets, handle);
        self.reason = Some(reason);
        self.tx_pending = false;
    }

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
            reported: 0,
            wants_room: false,
            end_reported: false,
            reason: None,
            sent: None,
            peer_end: None,
            fin_again: None,
            timer: Instant::ZERO,
            challenged: None,
            touched: false,
            tx_pending: false,
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

    /// Records the reason of the end when a segment has moved the connection from `before` to CLOSED.
    pub fn note_end(&mut self, before: State, reset: bool) {
        if self.socket().state() == State::Closed && self.reason.is_none() {
            self.reason = Some(match before {
                _ if reset => CloseReason::Reset,
                State::LastAck | State::TimeWait => CloseReason::Finished,
                _ => CloseReason::TimedOut,
            });
        }
    }

    /// Returns whether the peer has closed, the service has consumed all data, and the close is unreported.
    pub fn end_is_due(&self) -> bool {
        let socket = self.socket();
        let finished = match socket.state() {
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait => true,
            State::Closed => self.reason == Some(CloseReason::Finished),
            _ => false,
        };
        finished && !self.end_reported && socket.recv_queue() == 0
    }

    /// Returns whether received bytes still wait for the service after both sides have closed. smoltcp drops them at
    /// the end of TIME-WAIT.
    pub fn has_unread_data(&self) -> bool {
        self.socket().recv_queue() > 0 && self.sent.map(|sent| sent.acknowledged) == self.peer_end
    }

    /// Returns whether only the FIN is unacknowledged.
    ///
    /// smoltcp 0.14 drops its retransmission timer when duplicate acknowledgements arrive in that state: it attempts a
    /// fast retransmission of data, of which there is none.
    pub fn only_fin_unacknowledged(&self) -> bool {
        let socket = self.socket();
        let sent = matches!(socket.state(), State::FinWait1 | State::Closing | State::LastAck);
        sent && socket.send_queue() == 0 && !self.tx_pending
    }

    /// Returns a retransmission of the FIN.
    pub fn fin(&self) -> Option<Reply> {
        let Sent { next_sequence, acknowledged, window } = self.sent?;
        let sequence = next_sequence.wrapping_sub(1);
        Some(Reply { sequence, acknowledge: Some(acknowledged), window, control: Control::Fin })
    }

    /// Returns whether `segment` is a SYN on an established or ended connection: from a restarted peer, or from an
    /// attacker.
    pub fn is_reopened_by(&self, segment: &TcpPacket<&[u8]>) -> bool {
        segment.syn() && !segment.ack() && !segment.rst() && matches!(self.phase, Phase::Open | Phase::Gone)
    }

    /// Returns the challenge ACK for a SYN on this connection, unless one was just sent. A peer without the connection
    /// answers it with a reset (RFC 5961 §4.2, §7). smoltcp 0.14 drops the SYN silently.
    pub fn challenge(&mut self, now: Instant) -> Option<Reply> {
        if self.challenged.is_some_and(|last| now.since(last) < CHALLENGE_PERIOD) {
            return None;
        }
        self.challenged = Some(now);
        let Sent { next_sequence, acknowledged, window } = self.sent?;
        Some(Reply { sequence: next_sequence, acknowledge: Some(acknowledged), window, control: Control::None })
    }

    /// Updates the state after the service has consumed data. Returns whether there is an event to report.
    pub fn consumed(&mut self) -> bool {
        self.reported = self.reported.min(self.socket().recv_queue());
        self.end_is_due()
    }

    /// Reports the events since the last inspection.
    pub fn look(&mut self, conn: ConnId, events: &mut EventBatch) -> Fate {
        let state = self.socket().state();
        let mut fate = Fate::Unchanged;
        match (self.phase, state) {
            (Phase::Gone, _) => return Fate::Unchanged,
            (Phase::HalfOpen, State::SynReceived) | (Phase::Connecting(_), State::SynSent | State::SynReceived) => {
                return Fate::Unchanged;
            }
            // A reset returns a half-open socket to LISTEN.
            (Phase::HalfOpen, State::Listen | State::Closed) => return Fate::EndsUnknown,
            (Phase::Connecting(token), State::Closed) => {
                let error = match self.reason {
                    Some(CloseReason::Reset) => ConnectError::Refused,
                    _ => ConnectError::TimedOut,
                };
                events.others.push(Event::Failed(token, error));
                return Fate::EndsUnknown;
            }
            (Phase::HalfOpen, _) => {
                events.opened.push((conn, Origin::Accepted));
                fate = Fate::Opened;
            }
            (Phase::Connecting(token), _) => {
                events.opened.push((conn, Origin::Connected(token)));
                fate = Fate::Opened;
            }
            (Phase::Open, _) => {}
        }
        self.phase = Phase::Open;
        let received = self.socket().recv_queue();
        if received > self.reported {
            self.reported = received;
            events.readable.push(conn);
        }
        if self.wants_room && self.enough_room() {
            self.wants_room = false;
            events.others.push(Event::Writable(conn));
        }
        if self.end_is_due() {
            self.end_reported = true;
            events.others.push(Event::PeerClosed(conn));
        }
        let over = match state {
            // The service may still be reading, and the last acknowledgement may be unsent.
            State::TimeWait => self.end_reported && self.sent.map(|sent| sent.acknowledged) == self.peer_end,
            // A pending reset is sent first, and complete received data is read first.
            State::Closed => !self.tx_pending && (self.end_reported || self.reason != Some(CloseReason::Finished)),
            _ => false,
        };
        if over {
            self.phase = Phase::Gone;
            events.others.push(Event::Closed(conn, self.reason.unwrap_or(CloseReason::Finished)));
        }
        fate
    }

    /// Returns the number of bytes that can be sent now.
    pub fn send_space(&self) -> usize {
        let socket = self.socket();
        if socket.may_send() { socket.send_capacity() - socket.send_queue() } else { 0 }
    }

    /// Returns whether a quarter of the send buffer is free: a bulk sender is not called for every acknowledged
    /// segment.
    fn enough_room(&self) -> bool {
        self.send_space() * 4 >= self.socket().send_capacity()
    }
}
