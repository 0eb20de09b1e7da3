//! Lingering close: discards input, within bounds, until the peer closes.

use super::Net;
use super::receive::{LEAST_READ, READ_BUDGET};
use crate::errno;
use linerate_bypass::tcp_info;
use linerate_service::{CloseReason, ConnId, HostedNet, Receiving, Stage, Transport};
use std::io::{ErrorKind, Read};

impl Net {
    /// Closes a connection and discards its further input.
    ///
    /// The connection counts as paused, so that [`read`](Net::read) leaves its socket to [`discard`](Net::discard). Its
    /// timer, which the service no longer uses, becomes the deadline.
    pub(crate) fn begin_lingering_close(&mut self, id: ConnId) {
        self.close(id);
        let discards = self.table.begin_lingering(id, self.now);
        let (Some(discards), Some(conn)) = (discards, self.table.slots.get_mut(id)) else { return };
        let received = conn.rx.len();
        conn.rx.clear();
        conn.paused = true;
        if !discards {
            return self.set_dirty(id);
        }
        if let Receiving::Discarding(linger) = &mut conn.life.receiving
            && !linger.discard(received)
        {
            return self.abort(id);
        }
        self.set_unread(id);
    }

    /// Discards received data of a connection with a lingering close, within its share of the turn.
    #[cold]
    pub(super) fn discard(&mut self, id: ConnId) {
        let Some(conn) = self.table.slots.get_mut(id).filter(|conn| conn.life.stage == Stage::Open) else { return };
        let Receiving::Discarding(mut linger) = conn.life.receiving else { return };
        let mut budget = READ_BUDGET;
        while budget > 0 {
            let (Some(mut stream), Some(block)) = (conn.stream.as_ref(), self.memory.rx(LEAST_READ)) else {
                return self.memory.wait(id);
            };
            let want = block.len().min(budget);
            match stream.read(&mut block[..want]) {
                Ok(0) => {
                    if self.table.finish_lingering(id) {
                        self.end(id, CloseReason::Finished);
                    }
                    return;
                }
                Ok(n) => {
                    self.summary.rx_frames += 1;
                    self.summary.rx_bytes += n as u64;
                    budget -= n;
                    if !linger.discard(n) {
                        return self.abort(id);
                    }
                    conn.life.receiving = Receiving::Discarding(linger);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.end(id, errno::close_reason(&error)),
            }
        }
        self.set_unread(id);
    }

    /// Handles the deadline of a lingering close.
    pub(super) fn linger_expired(&mut self, id: ConnId) {
        let Some(conn) = self.table.slots.get(id) else { return };
        let in_flight = || conn.stream.as_ref().and_then(|stream| tcp_info(stream).ok()?.in_flight);
        let is_delivered = conn.tx.is_empty() && in_flight().is_none_or(|bytes| bytes == 0);
        if !self.table.extend_lingering(id, self.now, is_delivered) {
            self.abort(id);
        }
    }
}
