//! [`Transport`] over kernel sockets.

use crate::net::Net;
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, CloseReason, ConnId, Datagram, Transport, Unsent, WriteError};
use std::net::SocketAddr;

impl Transport for Net {
    fn now(&self) -> Instant {
        self.now
    }

    fn worker(&self) -> usize {
        self.worker
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.table.slots.get(conn)?.stream.as_ref()?.local_addr().ok()
    }

    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        let conn = self.table.slots.get(conn)?;
        conn.stream.is_some().then_some(conn.remote)
    }

    fn received(&self, conn: ConnId) -> usize {
        self.table.slots.get(conn).map_or(0, |conn| conn.rx.len())
    }

    fn peek(&mut self, conn: ConnId) -> &[u8] {
        self.table.slots.get(conn).map_or(&[], |conn| conn.rx.front())
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        if let Some(connection) = self.table.slots.get_mut(conn) {
            connection.rx.advance(n);
            self.consumed(conn);
        }
    }

    fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes> {
        let taken = self.table.slots.get_mut(conn)?.rx.take(max)?;
        self.consumed(conn);
        Some(taken)
    }

    fn send_space(&mut self, conn: ConnId) -> usize {
        self.space_for(conn, 1)
    }

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        if !self.table.may_send(conn) || self.space_for(conn, bytes.len()) < bytes.len() {
            return Err(Unsent { bytes, error: self.table.write_error(conn) });
        }
        self.queue(conn, bytes);
        Ok(())
    }

    fn reserve(&mut self, conn: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
        self.reserve(conn, max)
    }

    fn commit(&mut self, conn: ConnId, n: usize) {
        self.commit(conn, n);
    }

    fn close(&mut self, conn: ConnId) {
        self.seal();
        if self.table.begin_close(conn) {
            self.set_dirty(conn);
        }
    }

    fn lingering_close(&mut self, conn: ConnId) {
        linerate_service::lingering_close(self, conn);
    }

    fn abort(&mut self, conn: ConnId) {
        self.reset_as(conn, CloseReason::Aborted);
    }

    fn set_timer(&mut self, conn: ConnId, delay: Option<Duration>) {
        self.table.set_service_timer(conn, delay.map(|delay| self.now + delay));
    }

    fn connect(&mut self, remote: SocketAddr, token: u64) {
        self.begin_connect(remote, token);
    }

    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        if !self.udp.send(datagram.local, datagram.remote, &datagram.payload) {
            return Err(datagram);
        }
        self.count_datagram(datagram.payload.len());
        Ok(())
    }

    fn write_datagram(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        let is_sent = self.udp.write(local, remote, len, write);
        if is_sent {
            self.count_datagram(len);
        }
        is_sent
    }

    fn drop_datagram(&mut self, _: Datagram) {
        self.summary.drop_for("datagram not sent", 1);
    }
}
