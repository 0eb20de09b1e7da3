//! Lingering close: discards input, within bounds, until the peer closes.

use super::Net;
use super::receive::{LEAST_READ, READ_BUDGET};
use crate::connection::{Pending, Receiving, Stage};
use crate::errno;
use linerate_bypass::{CloseReason, ConnId, LINGER_TIME, Linger, tcp_info};
use std::io::{ErrorKind, Read};

impl Net {
    /// Closes a connection and discards its further input.
    ///
    /// The connection counts as paused, so that [`read`](Net::read) leaves its socket to [`discard`](Net::discard). Its
    /// timer, which the service no longer uses, becomes the deadline.
    pub(crate) fn begin_lingering_close(&mut self, id: ConnId) {
        self.begin_close(id);
        let now = self.now;
        let Some(conn) = self.slots.get_mut(id).filter(|conn| conn.stage == Stage::Open) else { return };
        if conn.is_lingering() {
            return;
        }
        let mut linger = Linger::new(now);
        let is_within = linger.discard(conn.rx.len());
        conn.rx.clear();
        conn.pending = Pending::default();
        conn.paused = true;
        if conn.receiving == Receiving::Open {
            conn.receiving = Receiving::Discarding(linger);
            self.timers.set(id, &mut conn.timer, Some(now + LINGER_TIME));
            self.set_unread(id);
            if !is_within {
                self.abort_now(id);
            }
        } else {
            // The peer has closed. The connection ends when all data are sent.
            conn.receiving = Receiving::Reported;
            self.timers.set(id, &mut conn.timer, None);
            self.set_dirty(id);
        }
    }

    /// Discards received data of a connection with a lingering close, within its share of the turn.
    #[cold]
    pub(super) fn discard(&mut self, id: ConnId) {
        let Some(conn) = self.slots.get_mut(id).filter(|conn| conn.stage == Stage::Open) else { return };
        let Receiving::Discarding(mut linger) = conn.receiving else { return };
        let mut budget = READ_BUDGET;
        while budget > 0 {
            let (Some(mut stream), Some(block)) = (conn.stream.as_ref(), self.memory.rx(LEAST_READ)) else {
                return self.memory.wait(id);
            };
            let want = block.len().min(budget);
            match stream.read(&mut block[..want]) {
                Ok(0) => {
                    conn.receiving = Receiving::Reported;
                    self.timers.set(id, &mut conn.timer, None);
                    if conn.is_finished() {
                        self.end(id, CloseReason::Finished);
                    }
                    return;
                }
                Ok(n) => {
                    self.summary.rx_frames += 1;
                    self.summary.rx_bytes += n as u64;
                    budget -= n;
                    if !linger.discard(n) {
                        return self.abort_now(id);
                    }
                    conn.receiving = Receiving::Discarding(linger);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.end(id, errno::close_reason(&error)),
            }
        }
        self.set_unread(id);
    }

    /// Handles the deadline of a lingering close.
    pub(super) fn linger_expired(&mut self, id: ConnId, linger: Linger) {
        let now = self.now;
        let Some(conn) = self.slots.get_mut(id) else { return };
        let in_flight = || conn.stream.as_ref().and_then(|stream| tcp_info(stream).ok()?.in_flight);
        let is_delivered = conn.tx.is_empty() && in_flight().is_none_or(|bytes| bytes == 0);
        match linger.extend(now, is_delivered) {
            Some(delay) => self.timers.set(id, &mut conn.timer, Some(now + delay)),
            None => self.abort_now(id),
        }
    }
}
