//! Send path: from services to the queue pairs.

use super::Net;
use crate::config::KEPT;
use crate::connection::conn_transport::ConnTransport;
use crate::connection::tx::Made;
use crate::connection::{ConnCore, Connection};
use crate::provider::{Provider, WcStatus};
use crate::verbs::{Done, Error};
use crate::wire::{HEADER, Header, MessageKind, OFFERS, Offer};
use linerate_service::{Bytes, CloseReason, ConnId, Sending, Stage, WriteError};
use std::io::ErrorKind;

impl<C: Provider> Net<C> {
    /// Processes a send completion of a connection.
    pub(super) fn done(&mut self, id: ConnId, done: Result<Done<C>, WcStatus>) {
        match done {
            Ok(Done::Sent) => {}
            Ok(Done::Read(bytes)) => self.read(id, bytes),
            Ok(Done::Was(was)) => self.was(id, was),
            Ok(Done::BoundMw(opened)) => {
                if let Some(conn) = self.table.slots.get_mut(id) {
                    conn.link.opened.push_back(opened);
                }
            }
            Ok(Done::Closed(mw, _)) => {
                self.mws.push(mw);
                if let Some(conn) = self.table.slots.get_mut(id) {
                    conn.link.mws -= 1;
                }
            }
            Err(status) => return self.fail(id, status),
        }
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        conn.note_completion(self.now);
        self.set_dirty(id);
        self.all_may_be_sent(id);
    }

    /// Completes the sending direction if the end of stream was sent and nothing is outstanding.
    #[inline]
    pub(super) fn all_may_be_sent(&mut self, id: ConnId) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        if conn.life.sending == Sending::Finishing && conn.link.transport.outstanding() == 0 {
            conn.life.sending = Sending::Finished;
            if conn.life.is_finished() {
                self.end(id, CloseReason::Finished);
            }
        }
    }

    /// Returns the number of bytes that can be queued. If fewer than `needed`, the service is notified when there is
    /// more room.
    pub fn space_for(&mut self, id: ConnId, needed: usize) -> usize {
        let Some(conn) = self.table.slots.get_mut(id).filter(|conn| conn.life.may_send()) else { return 0 };
        let room = self.config.tx_buffer.saturating_sub(conn.tx.len());
        conn.life.wants_room |= room < needed;
        room
    }

    /// Queues a slice. The caller has checked the room.
    pub fn queue(&mut self, id: ConnId, bytes: Bytes) {
        if let Some(conn) = self.table.slots.get_mut(id) {
            conn.tx.push(bytes);
        }
        self.set_dirty(id);
    }

    /// Returns space for up to `max` bytes to send.
    pub fn reserve(&mut self, id: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
        let wanted = self.space_for(id, max.min(1)).min(max);
        if wanted == 0 {
            return Err(self.table.write_error(id));
        }
        let conn = self.table.slots.get_mut(id).ok_or(WriteError::Closed)?;
        let space = conn.tx.reserve(&self.arena, wanted, conn.link.longest);
        if space.is_none() {
            conn.life.wants_room = true;
            self.starved.push(id);
        }
        space.ok_or(WriteError::Full)
    }

    /// Sends all queued data and posts all wanted buffers, as far as possible.
    pub fn flush_all(&mut self) {
        self.post_srq_recv();
        while let Some(id) = self.dirty.pop() {
            if let Err(error) = self.flush(id) {
                tracing::info!("{}: {error}", self.described(id));
                self.end(id, CloseReason::Reset);
            }
        }
        self.flush_datagrams();
    }

    /// Sends the queued data of a connection and posts its wanted buffers.
    fn flush(&mut self, id: ConnId) -> Result<(), Error> {
        let Some(mut conn) = self.table.slots.get_mut(id) else { return Ok(()) };
        conn.dirty = false;
        if conn.life.stage != Stage::Open {
            return Ok(());
        }
        let posts = conn.link.credits.should_post(conn.unheld(), conn.link.used);
        let reads = conn.rx.has_offer();
        if posts || reads {
            if posts {
                self.post(id);
            }
            if reads {
                self.read_offered(id);
            }
            match self.table.slots.get_mut(id).filter(|conn| conn.life.stage == Stage::Open) {
                Some(open) => conn = open,
                None => return Ok(()),
            }
        }
        let before = conn.tx.len();
        if let Some(qp) = conn.link.transport.qp() {
            while conn.taken > 0
                && qp.room() > KEPT
                && let Some(opened) = conn.link.opened.pop_front()
            {
                (conn.taken, conn.offered) = (conn.taken - 1, conn.offered - 1);
                // The room was checked above.
                let _ = qp.close(opened);
            }
        }
        let mut has_memory = true;
        while has_memory && conn.link.transport.room() > KEPT && conn.link.credits.sendable() > 0 {
            if conn.to_take > 0 {
                has_memory = conn.link.send_control(&self.buffers, MessageKind::Taken, None)?;
                conn.to_take -= usize::from(has_memory);
                conn.open_offers -= usize::from(has_memory);
                continue;
            }
            let unsent = conn.tx.len();
            if unsent > 0
                && unsent <= conn.link.longest
                && unsent < self.config.offer_from
                && let Connection { link: ConnCore { transport: ConnTransport::Rc(qp), credits, .. }, tx, .. } =
                    &mut *conn
                && HEADER + unsent <= qp.inline_room()
            {
                let header = Header { kind: MessageKind::Data, credits: credits.spend() };
                qp.post_inline(|out| {
                    out.extend_from_slice(&header.to_bytes());
                    self.summary.copied_bytes += tx.append_to(out) as u64;
                })?;
                self.summary.verbs.requests += 1;
                self.summary.verbs.posts += 1;
                self.summary.tx_frames += 1;
                self.summary.tx_bytes += (HEADER + unsent) as u64;
                continue;
            }
            let may_offer = conn.link.takes_offers && conn.offered < OFFERS && !self.mws.is_empty();
            let large = if may_offer { self.config.offer_from } else { usize::MAX };
            if let Some(slice) = conn.tx.take_large(large, |slice| self.mr.contains(slice))
                && let Some(mw) = self.mws.pop()
                && let Some(qp) = conn.link.transport.qp()
            {
                let (address, len) = (slice.as_ptr().addr() as u64, slice.len() as u32);
                let rkey = match qp.open(mw, slice, self.narrow) {
                    Ok(key) => key,
                    Err((mw, slice)) => {
                        // The slice is sent in messages instead.
                        self.mws.push(mw);
                        conn.tx.put_back(slice);
                        conn.link.takes_offers = false;
                        continue;
                    }
                };
                conn.link.mws += 1;
                conn.offered += 1;
                if !conn.link.send_control(&self.buffers, MessageKind::Offer, Some(Offer { address, rkey, len }))? {
                    // The window is bound, but the peer cannot be informed.
                    return Err(Error { operation: "offer a slice", error: ErrorKind::OutOfMemory.into() });
                }
                self.summary.tx_bytes += u64::from(len);
            } else if !conn.tx.is_empty() {
                let Connection { link, tx, .. } = conn;
                let most = (link.longest, link.transport.max_chunks());
                let reaches = |slice: &[u8]| self.mr.contains(slice);
                let mut made = tx.message(&self.arena, || link.header(MessageKind::Data), most, large, reaches);
                has_memory = made.is_some();
                if let Some(Made { message, copied }) = &mut made {
                    self.summary.tx_frames += 1;
                    self.summary.tx_bytes += message.len() as u64;
                    self.summary.copied_bytes += *copied as u64;
                    link.send(message, false)?;
                }
            } else if conn.life.sending == Sending::Closing {
                has_memory = conn.link.send_control(&self.buffers, MessageKind::Finish, None)?;
                if has_memory {
                    conn.life.sending = Sending::Finishing;
                }
            } else {
                break;
            }
        }
        if !conn.tx.is_empty() {
            // Without unsent data, missing credits or a full queue delay nothing.
            let verbs = &mut self.summary.verbs;
            if conn.link.credits.sendable() == 0 {
                verbs.credit_stalls += 1;
                conn.credit_stalls += 1;
            } else if conn.link.transport.room() <= KEPT {
                verbs.queue_stalls += 1;
            }
        }
        if conn.link.credits.is_overdue() && conn.link.transport.room() > 0 {
            has_memory &= conn.link.send_control(&self.buffers, MessageKind::Credit, None)?;
        }
        if !has_memory {
            self.starved.push(id);
        }
        let is_session = match &mut conn.link.transport {
            ConnTransport::Rc(qp) => {
                let (requests, posts) = qp.flush()?;
                self.summary.verbs.requests += requests;
                self.summary.verbs.posts += posts;
                false
            }
            ConnTransport::Ud(_) => true,
        };
        if conn.life.wants_room && conn.tx.len() < before && conn.tx.len() <= self.config.tx_buffer / 2 {
            self.table.offer_room(id);
        }
        if is_session {
            self.send_datagrams(id)?;
        }
        Ok(())
    }
}
