//! Receive path: from completions to the receive queues of connections.

use super::Net;
use crate::connection::conn_transport::ConnTransport;
use crate::connection::{Connection, Reader};
use crate::provider::{Provider, WcStatus};
use crate::wire::{HEADER, Header, Malformed, MessageKind, OFFERS, Offer};
use linerate_service::{Bytes, ConnId, OneSidedResult, Receiving, Stage, Tracked};

/// Maximum bytes of one READ.
const READ: usize = 64 << 10;

impl<C: Provider> Net<C> {
    /// Processes a received message, or a flushed buffer.
    #[inline]
    pub(super) fn message(&mut self, id: ConnId, message: Result<Bytes, WcStatus>) {
        let bytes = match message {
            Ok(bytes) => bytes,
            Err(status) => return self.fail(id, status),
        };
        self.summary.rx_frames += 1;
        self.summary.rx_bytes += bytes.len() as u64;
        let mut error = None;
        self.table.update(id, |conn| {
            conn.link.used += 1;
            conn.note_completion(self.now);
            if !conn.link.credits.allows(conn.link.used) {
                // With a shared receive queue, the excess buffers belong to other connections.
                error = Some(Malformed);
                return false;
            }
            if !std::mem::replace(&mut conn.dirty, true) {
                self.dirty.push(id);
            }
            conn.life.stage == Stage::Open
                && Self::read_message(conn, bytes).unwrap_or_else(|malformed| {
                    error = Some(malformed);
                    false
                })
        });
        if let Some(error) = error {
            self.refuse(id, &error);
        }
    }

    /// Reads a message of an open connection. Returns true if an event is due.
    fn read_message(conn: &mut Connection<C>, mut bytes: Bytes) -> Result<bool, Malformed> {
        let Header { kind, credits } = Header::read(&bytes)?;
        conn.link.credits.gain(credits).map_err(|_| Malformed)?;
        if conn.life.receiving != Receiving::Open
            && matches!(kind, MessageKind::Data | MessageKind::Offer | MessageKind::Finish)
        {
            return Err(Malformed);
        }
        match kind {
            MessageKind::Data => {
                bytes.advance(HEADER);
                let is_readable = conn.rx.push(bytes);
                conn.life.pending.readable |= is_readable;
                return Ok(is_readable);
            }
            MessageKind::Credit => {}
            MessageKind::Offer => {
                conn.open_offers += 1;
                if conn.open_offers > OFFERS || !conn.link.takes_offers {
                    return Err(Malformed);
                }
                conn.rx.offer(Offer::read(&bytes)?);
            }
            MessageKind::Taken => {
                conn.taken += 1;
                if conn.taken > conn.offered {
                    return Err(Malformed);
                }
            }
            MessageKind::Finish => {
                conn.life.receiving = Receiving::Ended;
                return Ok(conn.peer_closed_is_due());
            }
        }
        Ok(false)
    }

    /// Processes the data of the oldest READ.
    pub(super) fn read(&mut self, id: ConnId, bytes: Bytes) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        self.summary.rx_bytes += bytes.len() as u64;
        let reader = conn.readers.pop_front();
        if let Some(Reader::Service(token)) = reader {
            return self.one_sided_done(id, token, OneSidedResult::Read(bytes));
        }
        conn.to_take += usize::from(conn.rx.read(bytes));
        conn.life.pending.readable = true;
        self.table.list(id);
        self.set_dirty(id);
    }

    /// Reads offered data, as far as the connection has room.
    pub(super) fn read_offered(&mut self, id: ConnId) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        let Some(qp) = conn.link.transport.qp() else { return };
        while qp.room() > crate::config::KEPT
            && let Some(offer) = conn.rx.wanted(READ, self.config.rx_buffer)
        {
            let len = offer.len as usize;
            let Some(into) = self.arena.alloc(len) else {
                self.starved.push(id);
                return;
            };
            if qp.read(into, offer.address, offer.rkey).is_err() {
                return;
            }
            conn.readers.push_back(Reader::Stream);
            conn.rx.posted(len);
        }
    }

    /// Replaces used buffers of the shared receive queue.
    pub(super) fn post_srq_recv(&mut self) {
        let Some(srq) = self.srq.as_mut().filter(|srq| srq.room() > 0) else { return };
        let (arena, len) = (&self.buffers, self.config.buffer);
        if let Err(error) = srq.post((0..srq.room()).map_while(|_| arena.alloc(len))) {
            // Retried in the next turn. No credits are granted meanwhile.
            tracing::debug!("{error}");
        }
    }

    /// Replaces used buffers that are no longer held.
    pub(super) fn post(&mut self, id: ConnId) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        let (arena, len) = (&self.buffers, self.config.buffer);
        let wanted = conn.unheld() as usize;
        let posted = match (&self.srq, &mut conn.link.transport) {
            (None, ConnTransport::Rc(qp)) => {
                let before = qp.recv_room();
                let result = qp.post((0..wanted).map_while(|_| arena.alloc(len)));
                result.map(|()| before - qp.recv_room())
            }
            // Either the queue is full, which grants all wanted buffers, or memory is exhausted.
            (Some(srq), _) => Ok(if srq.room() == 0 { wanted } else { 0 }),
            // A datagram that finds no buffer is retransmitted.
            (None, ConnTransport::Ud(_)) => Ok(wanted),
        };
        match posted {
            Ok(posted) => {
                self.summary.verbs.buffers += posted as u64;
                conn.link.used -= posted as u32;
                conn.link.credits.posted(posted as u32);
                if posted < wanted {
                    self.starved.push(id);
                }
            }
            Err(error) => self.refuse(id, &error),
        }
    }

    /// Posts buffers and sends credits after a service has consumed data.
    #[inline]
    pub fn consumed(&mut self, id: ConnId) {
        self.table.update(id, |conn| {
            if !std::mem::replace(&mut conn.dirty, true) {
                self.dirty.push(id);
            }
            conn.peer_closed_is_due()
        });
    }
}
