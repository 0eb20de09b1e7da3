//! State of one socket.

use crate::datagram::Datagrams;
use crate::epoll::Watcher;
use crate::service::SocketId;
use linerate_service::time::Duration;
use linerate_service::{ConnId, Keepalive, Transport};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Socket of any type.
#[derive(Debug)]
pub(crate) struct Socket {
    pub state: State,
    /// Local and remote address, as far as they are known.
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    /// Pending error (SO_ERROR).
    pub error: Option<Errno>,
    /// Bytes that MSG_PEEK has taken out of the receive queue of the connection.
    pub peeked: VecDeque<u8>,
    /// True if connect(2) has not returned that the socket is connected.
    pub connect_unreported: bool,
    /// True if the peer has finished sending.
    pub peer_finished: bool,
    /// True after a shutdown of reading or writing.
    pub read_shut: bool,
    pub write_shut: bool,
    /// True if close resets the connection (SO_LINGER with a time of zero).
    pub resets: bool,
    pub limits: Limits,
    /// True if the last call that sent has announced more bytes (MSG_MORE).
    pub has_more: bool,
    /// True if other sockets may listen on the address (SO_REUSEPORT).
    pub reuses_port: bool,
    /// True if no descriptor refers to the socket, whose connection still ends.
    pub orphaned: bool,
    /// Items of epoll sets.
    pub watchers: Vec<Watcher>,
}

/// Options of a connection in place of those of the worker.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// Keepalive, which may be off.
    pub keepalive: Option<Option<Keepalive>>,
    pub user_timeout: Option<Duration>,
    /// True if segments that are not full are withheld (TCP_CORK).
    pub corked: bool,
}

impl Limits {
    /// Applies the options to a connection.
    pub fn apply(self, net: &mut impl Transport, conn: ConnId) {
        if let Some(keepalive) = self.keepalive {
            net.set_keepalive(conn, keepalive);
        }
        if self.user_timeout.is_some() {
            net.set_user_timeout(conn, self.user_timeout);
        }
        if self.corked {
            net.set_corked(conn, true);
        }
    }
}

#[derive(Debug)]
pub(crate) enum State {
    /// Neither listening nor connected.
    Idle,
    Listening {
        /// Maximum length of `queue`.
        backlog: usize,
        /// Connections that have not been accepted.
        queue: VecDeque<SocketId>,
    },
    Connecting,
    Connected(ConnId),
    /// Datagram socket.
    Datagrams(Box<Datagrams>),
    /// The connection has ended, or could not be established.
    Ended,
}

impl Socket {
    pub fn new() -> Self {
        Socket {
            state: State::Idle,
            local: None,
            peer: None,
            error: None,
            peeked: VecDeque::new(),
            connect_unreported: false,
            peer_finished: false,
            read_shut: false,
            write_shut: false,
            resets: false,
            limits: Limits::default(),
            has_more: false,
            reuses_port: false,
            orphaned: false,
            watchers: Vec::new(),
        }
    }

    /// Returns and clears the pending error.
    pub fn take_error(&mut self) -> Result<(), Errno> {
        self.error.take().map_or(Ok(()), Err)
    }
}
