//! Transport of a service whose connections are encrypted.

use crate::open_conn::SHORT;
use crate::record::Alert;
use crate::sessions::{Session, Sessions};
use linerate_service::inspect::{ConnInfo, TlsInfo};
use linerate_service::time::{Duration, Instant};
use linerate_service::{
    Bytes, ConnId, Datagram, Keepalive, OneSidedError, OneSidedOp, Transport, Unsent, WriteError, forward_in_steps,
    respond_in_steps,
};
use std::net::{IpAddr, SocketAddr};

/// Bytes whose refusal by a transport makes `writable` follow.
static PROBE: [u8; 1 << 20] = [0; 1 << 20];

/// Transport of a service in [`Tls`](crate::Tls): plaintext of its connections, over the transport of the worker.
pub struct TlsNet<'a, T> {
    net: &'a mut T,
    sessions: &'a mut Sessions,
}

impl<'a, T: Transport> TlsNet<'a, T> {
    #[inline]
    pub(crate) fn new(net: &'a mut T, sessions: &'a mut Sessions) -> Self {
        TlsNet { net, sessions }
    }

    /// Returns whether events of a connection may be delivered.
    #[inline]
    pub(crate) fn is_live(&self, conn: ConnId) -> bool {
        self.sessions.is_live(conn)
    }

    #[inline]
    fn is_plain(&self, conn: ConnId) -> bool {
        matches!(self.sessions.table.get(conn), Some(Session::Plain))
    }

    /// Makes `writable` follow when there is space for more than now, although there is some.
    #[cold]
    fn await_space(&mut self, conn: ConnId, needed: usize) {
        let space = self.net.send_space(conn);
        if space > 0 && space < needed {
            // A refused operation requests the event.
            let probe =
                if needed <= PROBE.len() { Bytes::from_static(&PROBE[..needed]) } else { Bytes::from(vec![0; needed]) };
            let _ = self.net.send(conn, probe);
        }
    }
}

impl<T: Transport> Transport for TlsNet<'_, T> {
    fn now(&self) -> Instant {
        self.net.now()
    }

    fn worker(&self) -> usize {
        self.net.worker()
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.net.local_addr(conn)
    }

    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.net.peer_addr(conn)
    }

    #[inline]
    fn received(&self, conn: ConnId) -> usize {
        match self.sessions.table.get(conn) {
            Some(Session::Open(open)) => open.received.len(),
            Some(Session::Plain) => self.net.received(conn),
            _ => 0,
        }
    }

    #[inline]
    fn peek(&mut self, conn: ConnId) -> &[u8] {
        match self.sessions.table.get(conn) {
            Some(Session::Open(open)) => open.received.front(),
            Some(Session::Plain) => self.net.peek(conn),
            _ => &[],
        }
    }

    #[inline]
    fn consume(&mut self, conn: ConnId, n: usize) {
        if let Some((open, shared)) = self.sessions.open_mut(conn) {
            if open.received.len() > 0 {
                open.received.consume(n, &mut shared.buffers);
                open.consumed(self.net, conn, shared);
            }
        } else if self.is_plain(conn) {
            self.net.consume(conn, n);
        }
    }

    #[inline]
    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes> {
        if let Some((open, shared)) = self.sessions.open_mut(conn) {
            let taken = open.received.take(max, &mut shared.buffers)?;
            open.consumed(self.net, conn, shared);
            Some(taken)
        } else if self.is_plain(conn) {
            self.net.take(conn, max)
        } else {
            None
        }
    }

    #[inline]
    fn send_space(&mut self, conn: ConnId) -> usize {
        if let Some((open, _)) = self.sessions.open_mut(conn) {
            open.send_space(self.net, conn)
        } else if self.is_plain(conn) {
            self.net.send_space(conn)
        } else {
            0
        }
    }

    #[inline]
    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        let Some((open, shared)) = self.sessions.open_mut(conn) else {
            return if self.is_plain(conn) {
                self.net.send(conn, bytes)
            } else {
                Err(Unsent { bytes, error: WriteError::Closed })
            };
        };
        if open.is_closed {
            return Err(Unsent { bytes, error: WriteError::Closed });
        }
        let space = open.send_space(self.net, conn);
        if bytes.len() > space {
            open.wants_space = true;
            open.flush(self.net, conn, shared);
            self.await_space(conn, bytes.len());
            return Err(Unsent { bytes, error: WriteError::Full });
        }
        if bytes.len() <= SHORT {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let free = open.stage(rest.len(), conn, shared);
                let n = free.len();
                free.copy_from_slice(&rest[..n]);
                open.add_staged(self.net, conn, n, shared);
                rest = &rest[n..];
            }
        } else {
            open.flush(self.net, conn, shared);
            open.send(self.net, conn, &bytes, shared);
        }
        Ok(())
    }

    #[inline]
    fn reserve(&mut self, conn: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
        match self.sessions.table.get_mut(conn) {
            Some(Session::Open(open)) if open.is_closed => Err(WriteError::Closed),
            Some(Session::Open(open)) => {
                let space = open.send_space(self.net, conn);
                if space == 0 || max == 0 {
                    return Err(WriteError::Full);
                }
                Ok(open.stage(max.min(space), conn, &mut self.sessions.shared))
            }
            Some(Session::Plain) => self.net.reserve(conn, max),
            _ => Err(WriteError::Closed),
        }
    }

    #[inline]
    fn commit(&mut self, conn: ConnId, n: usize) {
        if let Some((open, shared)) = self.sessions.open_mut(conn) {
            open.add_staged(self.net, conn, n, shared);
        } else if self.is_plain(conn) {
            self.net.commit(conn, n);
        }
    }

    #[inline]
    fn respond(&mut self, conn: ConnId, request: usize, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        if self.is_plain(conn) {
            return self.net.respond(conn, request, len, write);
        }
        self.consume(conn, request);
        let Some((open, shared)) = self.sessions.open_mut(conn) else { return false };
        if open.is_closed {
            return false;
        }
        match open.respond(self.net, conn, len, |to, _| write(to), shared) {
            Ok(()) => true,
            Err(write) => respond_in_steps(self, conn, 0, len, |to| write(to, &[])),
        }
    }

    /// Seals data of the same connection from the buffer that it was opened in.
    #[inline]
    fn forward(&mut self, from: ConnId, to: ConnId) -> usize {
        if from == to && self.is_plain(from) {
            return self.net.forward(from, to);
        }
        let mut moved = 0;
        if from == to
            && let Some((open, shared)) = self.sessions.open_mut(from)
            && !open.is_closed
        {
            moved = open.respond_front(self.net, from, shared);
            if moved > 0 && open.received.len() == 0 {
                return moved;
            }
        }
        moved + forward_in_steps(self, from, to)
    }

    fn close(&mut self, conn: ConnId) {
        if let Some((open, shared)) = self.sessions.open_mut(conn) {
            if open.is_closed {
                return;
            }
            open.flush(self.net, conn, shared);
            open.send_alert(self.net, conn, Alert::CloseNotify as u8, shared);
            open.is_closed = true;
            open.wants_space = false;
            if open.unsent.is_empty() {
                self.net.close(conn);
            }
        } else if self.is_plain(conn) {
            self.net.close(conn);
        }
    }

    fn lingering_close(&mut self, conn: ConnId) {
        if self.is_plain(conn) {
            self.net.lingering_close(conn);
        } else {
            self.sessions.linger(self.net, conn);
        }
    }

    fn abort(&mut self, conn: ConnId) {
        self.sessions.abort(self.net, conn, None);
    }

    fn set_timer(&mut self, conn: ConnId, delay: Option<Duration>) {
        if self.sessions.is_live(conn) {
            self.net.set_timer(conn, delay);
        }
    }

    fn connect(&mut self, remote: SocketAddr, token: u64) {
        self.net.connect(remote, token);
    }

    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        self.net.send_datagram(datagram)
    }

    fn write_datagram(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        self.net.write_datagram(local, remote, len, write)
    }

    fn datagram_space(&self) -> usize {
        self.net.datagram_space()
    }

    fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        self.net.source_for(remote)
    }

    fn info(&self, conn: ConnId) -> Option<ConnInfo> {
        self.net.info(conn)
    }

    fn tls_info(&self, conn: ConnId) -> Option<TlsInfo> {
        self.sessions.tls_info(conn)
    }

    fn set_keepalive(&mut self, conn: ConnId, keepalive: Option<Keepalive>) {
        self.net.set_keepalive(conn, keepalive);
    }

    fn set_user_timeout(&mut self, conn: ConnId, timeout: Option<Duration>) {
        self.net.set_user_timeout(conn, timeout);
    }

    fn set_corked(&mut self, conn: ConnId, corked: bool) {
        self.net.set_corked(conn, corked);
    }

    fn drop_datagram(&mut self, datagram: Datagram) {
        self.net.drop_datagram(datagram);
    }

    fn post_one_sided(&mut self, conn: ConnId, operation: OneSidedOp, token: u64) -> Result<(), OneSidedError> {
        if self.is_plain(conn) {
            self.net.post_one_sided(conn, operation, token)
        } else {
            Err(OneSidedError::Unsupported)
        }
    }
}
