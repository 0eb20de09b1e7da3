//! Connection establishment: accepted and outgoing connections.

use super::{Net, reset};
use crate::connection::Connection;
use crate::poller::Token;
use crate::{Config, errno};
use linerate_service::time::Duration;
use linerate_service::{ConnId, ConnectError, Origin, Stage};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Connections accepted from one listener in one turn.
const ACCEPT_BUDGET: usize = 64;
/// Pause when the system has no descriptor or memory for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Listener {
    pub socket: TcpListener,
    pub address: SocketAddr,
    /// True if more connections may wait.
    pub ready: bool,
}

impl Net {
    /// Accepts waiting connections, within the listeners' share of the turn.
    pub(super) fn accept(&mut self) {
        if self.accept_again.is_some_and(|at| self.now < at) {
            return;
        }
        self.accept_again = None;
        for listener in self.listeners.iter_mut().filter(|listener| listener.ready) {
            for _ in 0..ACCEPT_BUDGET {
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let (stream, remote) = match rustix::net::acceptfrom_with(&listener.socket, flags) {
                    Ok((fd, Some(remote))) => match SocketAddr::try_from(remote) {
                        Ok(remote) => (TcpStream::from(fd), remote),
                        Err(_) => continue,
                    },
                    Ok((_, None)) => continue,
                    Err(Errno::AGAIN) => {
                        listener.ready = false;
                        break;
                    }
                    Err(error) if errno::is_shortage(error) => {
                        self.descriptors.note_shortage(&mut self.summary, self.now);
                        self.accept_again = Some(self.now + ACCEPT_PAUSE);
                        return;
                    }
                    // The connection ended before `accept`.
                    Err(_) => continue,
                };
                if self.descriptors.are_exceeded_by(&stream) {
                    reset(&stream);
                    self.descriptors.note_shortage(&mut self.summary, self.now);
                    continue;
                }
                if self.table.slots.is_full() {
                    reset(&stream);
                    self.summary.drop_for("accept: too many connections", 1);
                    continue;
                }
                let Some(id) = self.table.slots.insert(Connection::new(stream, remote, Stage::Open, self.now)) else {
                    continue;
                };
                let stream = self.table.slots.get(id).and_then(|conn| conn.stream.as_ref());
                if stream.is_some_and(|stream| self.poller.add_stream(stream, Token::Connection(id.slot())).is_err()) {
                    self.table.slots.remove(id);
                    self.descriptors.note_shortage(&mut self.summary, self.now);
                    continue;
                }
                self.table.report_opened(id, Origin::Accepted);
                self.summary.accepted += 1;
            }
        }
    }

    /// Accepts waiting connections, then closes the listeners. Connections without a descriptor or memory are reset,
    /// and so are those that arrive between the last `accept` and the close.
    pub(crate) fn stop_listening(&mut self) {
        self.listeners.iter_mut().for_each(|listener| listener.ready = true);
        self.accept_again = None;
        while self.accept_again.is_none() && self.listeners.iter().any(|listener| listener.ready) {
            self.accept();
        }
        self.listeners.clear();
        self.accept_again = None;
    }

    /// Starts to connect to `remote`.
    pub(crate) fn begin_connect(&mut self, remote: SocketAddr, token: u64) {
        if self.table.slots.is_full() {
            return self.report_failed(token, ConnectError::TooMany);
        }
        let stream = match open(remote, &self.config) {
            Ok(stream) => stream,
            Err(error) => return self.report_failed(token, errno::connect_error(&error)),
        };
        let Some(id) = self.table.slots.insert(Connection::new(stream, remote, Stage::Connecting(token), self.now))
        else {
            return;
        };
        self.table.set_timer(id, Some(self.now + self.config.connect_timeout));
        let Some(conn) = self.table.slots.get(id) else { return };
        let added = conn.stream.as_ref().map(|stream| self.poller.add_stream(stream, Token::Connection(id.slot())));
        if let Some(Err(error)) = added {
            self.fail(id, errno::connect_error(&error));
        }
    }

    /// Gives up a connection attempt.
    pub(super) fn fail(&mut self, id: ConnId, error: ConnectError) {
        if let Some(conn) = self.table.remove(id)
            && let Stage::Connecting(token) = conn.life.stage
        {
            self.report_failed(token, error);
        }
    }
}

fn open(remote: SocketAddr, config: &Config) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM.nonblocking().cloexec(), None)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(config.user_timeout))?;
    match socket.connect(&SockAddr::from(remote)) {
        Ok(()) => {}
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}
