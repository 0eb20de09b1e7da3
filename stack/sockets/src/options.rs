//! Options and state of sockets (socket(7), tcp(7)).

use crate::service::{SocketId, Sockets};
use crate::socket::State;
use linerate_service::inspect::{ConnInfo, ConnState};
use linerate_service::time::Duration;
use linerate_service::{Keepalive, Transport};
use rustix::io::Errno;

impl Sockets {
    /// Sets whether closing resets the connection (SO_LINGER with a time of zero).
    pub fn reset_on_close(&mut self, id: SocketId, resets: bool) {
        if let Ok(socket) = self.get(id) {
            socket.resets = resets;
        }
    }

    /// Sets the keepalive of connections of the socket (SO_KEEPALIVE), in place of that of the worker.
    pub fn set_keepalive(&mut self, id: SocketId, keepalive: Option<Keepalive>) {
        if let Ok(socket) = self.get(id) {
            socket.limits.keepalive = Some(keepalive);
        }
    }

    /// Sets the time after which a connection ends while its peer does not acknowledge (TCP_USER_TIMEOUT), in place of
    /// that of the worker.
    pub fn set_user_timeout(&mut self, id: SocketId, timeout: Option<Duration>) {
        if let Ok(socket) = self.get(id) {
            socket.limits.user_timeout = timeout;
        }
    }

    /// Lets connections of the socket withhold segments that are not full (TCP_CORK).
    pub fn set_corked(&mut self, id: SocketId, corked: bool) {
        if let Ok(socket) = self.get(id) {
            (socket.limits.corked, socket.has_more) = (corked, false);
        }
    }

    /// Applies these options to the connection of the socket, if it has one.
    pub fn apply_limits(&mut self, net: &mut impl Transport, id: SocketId) {
        let Ok(socket) = self.get(id) else { return };
        if let State::Connected(conn) = socket.state {
            let limits = socket.limits;
            limits.apply(net, conn);
            net.set_user_timeout(conn, limits.user_timeout);
            net.set_corked(conn, limits.corked);
        }
    }

    /// Returns and clears the pending error (SO_ERROR).
    pub fn take_error(&mut self, id: SocketId) -> Option<Errno> {
        self.get(id).ok()?.error.take()
    }

    /// Returns whether an error is pending. A call that has transferred bytes leaves it to the next one.
    pub fn has_error(&self, id: SocketId) -> bool {
        self.sockets.get(id.0 as usize).is_some_and(|socket| socket.error.is_some())
    }

    /// Returns whether the socket listens.
    pub fn is_listening(&self, id: SocketId) -> bool {
        self.sockets.get(id.0 as usize).is_some_and(|socket| matches!(socket.state, State::Listening { .. }))
    }

    /// Returns whether the socket is connecting.
    pub fn is_connecting(&self, id: SocketId) -> bool {
        self.sockets.get(id.0 as usize).is_some_and(|socket| matches!(socket.state, State::Connecting))
    }

    /// Records that connect(2) has returned success.
    pub fn report_connected(&mut self, id: SocketId) {
        if let Ok(socket) = self.get(id) {
            socket.connect_unreported = false;
        }
    }

    /// Returns whether the socket is connected.
    pub fn is_connected(&self, id: SocketId) -> bool {
        self.sockets.get(id.0 as usize).is_some_and(|socket| matches!(socket.state, State::Connected(_)))
    }

    /// Lets other sockets with the same option listen on the address of the socket, among which connections are
    /// distributed (SO_REUSEPORT).
    pub fn reuse_port(&mut self, id: SocketId, reuses: bool) {
        if let Ok(socket) = self.get(id) {
            socket.reuses_port = reuses;
        }
    }

    /// Returns information about the connection of the socket (TCP_INFO).
    pub fn info(&self, net: &impl Transport, id: SocketId) -> Option<ConnInfo> {
        match self.sockets.get(id.0 as usize)?.state {
            State::Connected(conn) => net.info(conn),
            _ => None,
        }
    }

    /// Returns whether a closed socket has bytes that its peer has not acknowledged.
    pub fn is_delivering(&self, net: &impl Transport, id: SocketId) -> bool {
        let is_orphaned = self.sockets.get(id.0 as usize).is_some_and(|socket| socket.orphaned);
        let state = self.info(net, id).filter(|_| is_orphaned).map(|info| info.state);
        matches!(state, Some(ConnState::FinWait1 | ConnState::Closing | ConnState::LastAck))
    }

    /// Returns the lengths of the queue of a listening socket: now, and at most.
    pub fn backlog(&self, id: SocketId) -> Option<(usize, usize)> {
        match &self.sockets.get(id.0 as usize)?.state {
            State::Listening { backlog, queue } => Some((queue.len(), backlog - 1)),
            _ => None,
        }
    }
}
