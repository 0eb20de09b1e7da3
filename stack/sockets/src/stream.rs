//! Bytes of connected sockets (recv(2), send(2)).

use crate::service::{SocketId, Sockets};
use crate::socket::{Socket, State};
use linerate_service::{ConnId, Transport};
use rustix::io::Errno;

impl Sockets {
    /// Reads received bytes into `out` (recv(2)), or copies them with `peek` (MSG_PEEK). Returns 0 at the end of the
    /// stream.
    pub fn recv(&mut self, net: &mut impl Transport, id: SocketId, out: &mut [u8], peek: bool) -> Result<usize, Errno> {
        self.read(net, id, out.len(), peek, |at, bytes| out[at..][..bytes.len()].copy_from_slice(bytes))
    }

    /// Discards up to `most` received bytes (MSG_TRUNC, tcp(7)), or counts them with `peek`.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn skip(&mut self, net: &mut impl Transport, id: SocketId, most: usize, peek: bool) -> Result<usize, Errno> {
        self.read(net, id, most, peek, |_, _| {})
    }

    /// Reads up to `most` received bytes. Calls `copy` with the position and the bytes of each part.
    #[inline]
    fn read(
        &mut self,
        net: &mut impl Transport,
        id: SocketId,
        most: usize,
        peek: bool,
        mut copy: impl FnMut(usize, &[u8]),
    ) -> Result<usize, Errno> {
        let socket = self.get(id)?;
        let conn = match socket.state {
            State::Connected(conn) => Some(conn),
            State::Connecting => return Err(Errno::AGAIN),
            State::Ended => None,
            State::Idle | State::Listening { .. } | State::Datagrams(_) => return Err(Errno::NOTCONN),
        };
        if let Some(conn) = conn.filter(|_| peek) {
            while socket.peeked.len() < most
                && let Some(bytes) = net.take(conn, usize::MAX)
            {
                socket.peeked.extend(&bytes[..]);
            }
        }
        let mut n = 0;
        if !socket.peeked.is_empty() {
            let (first, second) = socket.peeked.as_slices();
            for part in [first, second] {
                let len = part.len().min(most - n);
                copy(n, &part[..len]);
                n += len;
            }
            if !peek {
                socket.peeked.drain(..n);
            }
        }
        if let Some(conn) = conn.filter(|_| !peek) {
            while n < most {
                let received = net.peek(conn);
                let len = received.len().min(most - n);
                if len == 0 {
                    break;
                }
                copy(n, &received[..len]);
                net.consume(conn, len);
                n += len;
            }
        }
        if n > 0 || most == 0 {
            return Ok(n);
        }
        // An error after the end of the stream is that of a later send.
        if socket.peer_finished {
            return Ok(0);
        }
        socket.take_error()?;
        if conn.is_some() && !socket.read_shut { Err(Errno::AGAIN) } else { Ok(0) }
    }

    /// Returns the number of bytes that can be read, of a datagram socket those of the first datagram (FIONREAD).
    pub fn readable(&self, net: &impl Transport, id: SocketId) -> usize {
        let Some(socket) = self.sockets.get(id.0 as usize) else { return 0 };
        let received = match &socket.state {
            State::Connected(conn) => net.received(*conn),
            State::Datagrams(datagrams) => datagrams.first_len(),
            _ => 0,
        };
        received + socket.peeked.len()
    }

    /// Sends as many of `bytes` as there is space for (send(2)). `more` announces a further call (MSG_MORE).
    ///
    /// # Errors
    /// `EAGAIN` without space, `EPIPE` if the socket is not connected or shut down for writing.
    pub fn send(&mut self, net: &mut impl Transport, id: SocketId, bytes: &[u8], more: bool) -> Result<usize, Errno> {
        let (conn, socket) = self.sending(id)?;
        if socket.has_more != more {
            socket.has_more = more;
            net.set_corked(conn, more || socket.limits.corked);
        }
        let n = net.write(conn, bytes);
        // A connection that has ended meanwhile reports the reason by an event.
        if n == 0 && !bytes.is_empty() { Err(Errno::AGAIN) } else { Ok(n) }
    }

    /// Returns the connection of a socket that sends.
    fn sending(&mut self, id: SocketId) -> Result<(ConnId, &mut Socket), Errno> {
        let socket = self.get(id)?;
        socket.take_error()?;
        match socket.state {
            State::Connected(conn) if !socket.write_shut => Ok((conn, socket)),
            State::Connecting => Err(Errno::AGAIN),
            _ => Err(Errno::PIPE),
        }
    }

    /// Returns the number of bytes that [`send`](Self::send) would take.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_space(&mut self, net: &mut impl Transport, id: SocketId) -> Result<usize, Errno> {
        let (conn, _) = self.sending(id)?;
        Some(net.send_space(conn)).filter(|space| *space > 0).ok_or(Errno::AGAIN)
    }

    /// Returns the space of a connection that may be written to.
    pub fn writable_space(&self, net: &mut impl Transport, id: SocketId) -> Option<usize> {
        match self.sockets.get(id.0 as usize)? {
            Socket { state: State::Connected(conn), write_shut: false, .. } => Some(net.send_space(*conn)),
            _ => None,
        }
    }
}
