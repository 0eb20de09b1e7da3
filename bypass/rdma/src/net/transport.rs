//! Implementation of [`Transport`](linerate_service::Transport), through which services use their connections.

use crate::net::Net;
use crate::provider::Provider;
use linerate_service::time::{Duration, Instant};
use linerate_service::{
    Bytes, CloseReason, ConnId, Datagram, OneSidedError, OneSidedOp, Tracked, Transport, Unsent, WriteError,
    forward_in_steps,
};
use std::net::SocketAddr;

impl<C: Provider> Transport for Net<C> {
    fn now(&self) -> Instant {
        self.now
    }

    fn worker(&self) -> usize {
        self.worker
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        Some(self.table.slots.get(conn)?.link.local)
    }

    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        Some(self.table.slots.get(conn)?.link.remote)
    }

    #[inline]
    fn received(&self, conn: ConnId) -> usize {
        self.table.slots.get(conn).map_or(0, |conn| conn.rx.len())
    }

    #[inline]
    fn peek(&mut self, conn: ConnId) -> &[u8] {
        self.table.slots.get(conn).map_or(&[], |conn| conn.rx.front())
    }

    #[inline]
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

    #[inline]
    fn reserve(&mut self, conn: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
        self.reserve(conn, max)
    }

    #[inline]
    fn commit(&mut self, conn: ConnId, n: usize) {
        let Some(connection) = self.table.slots.get_mut(conn).filter(|conn| conn.life.may_send()) else { return };
        connection.tx.commit(n);
        self.set_dirty(conn);
    }

    fn forward(&mut self, from: ConnId, to: ConnId) -> usize {
        if from != to {
            return forward_in_steps(self, from, to);
        }
        let mut moved = 0;
        self.table.update(from, |conn| {
            let before = conn.rx.len();
            while conn.rx.len() > 0 && conn.life.may_send() {
                let room = self.config.tx_buffer.saturating_sub(conn.tx.len());
                conn.life.wants_room |= room == 0;
                let Some(bytes) = conn.rx.take(room) else { break };
                conn.tx.push(bytes);
            }
            moved = before - conn.rx.len();
            if moved > 0 && !std::mem::replace(&mut conn.dirty, true) {
                self.dirty.push(from);
            }
            moved > 0 && conn.peer_closed_is_due()
        });
        moved
    }

    fn close(&mut self, conn: ConnId) {
        if self.table.begin_close(conn) {
            self.set_dirty(conn);
        }
    }

    fn lingering_close(&mut self, conn: ConnId) {
        linerate_service::lingering_close(self, conn);
    }

    fn abort(&mut self, conn: ConnId) {
        let Some(connection) = self.table.slots.get_mut(conn) else { return };
        connection.rx.clear();
        self.table.silence(conn);
        self.end(conn, CloseReason::Aborted);
    }

    fn set_timer(&mut self, conn: ConnId, delay: Option<Duration>) {
        self.table.set_service_timer(conn, delay.map(|delay| self.now + delay));
    }

    fn connect(&mut self, remote: SocketAddr, token: u64) {
        self.wanted.push_back((remote, token));
    }

    fn post_one_sided(&mut self, conn: ConnId, operation: OneSidedOp, token: u64) -> Result<(), OneSidedError> {
        self.remote(conn, operation, token)
    }

    /// Returns the datagram unsent: connections over verbs carry streams only.
    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        Err(datagram)
    }
}
