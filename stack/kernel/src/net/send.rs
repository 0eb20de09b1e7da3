//! Transmission: from the service through the send queues to the kernel.

use super::Net;
use crate::errno;
use linerate_service::{Bytes, CloseReason, ConnId, Stage, VECTOR, WriteError};

/// Minimum size of the buffer that [`Net::reserve`] returns, unless less was requested.
const LEAST_RESERVED: usize = 4 << 10;

/// Buffer that the service writes to, at the start of the current block. Consecutive commits for one connection grow to
/// one slice, until another connection or another kind of send intervenes.
#[derive(Clone, Copy)]
pub(super) struct Placing {
    conn: ConnId,
    committed: usize,
    reserved: usize,
}

impl Net {
    /// Returns the bytes that can be queued on a connection now. If these are fewer than `needed`, `writable` follows
    /// when there is more room.
    pub(crate) fn space_for(&mut self, id: ConnId, needed: usize) -> usize {
        let placed = self.placing.filter(|placing| placing.conn == id).map_or(0, |placing| placing.committed);
        let Some(conn) = self.table.slots.get_mut(id).filter(|conn| conn.life.may_send()) else { return 0 };
        let room = self.config.tx_buffer.saturating_sub(conn.tx.len() + placed);
        conn.life.wants_room |= room < needed;
        room
    }

    /// Queues a slice on a connection with room for it.
    pub(crate) fn queue(&mut self, id: ConnId, bytes: Bytes) {
        self.seal();
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        conn.tx.push(bytes);
        if !conn.blocked {
            if conn.tx.slices() >= VECTOR {
                return self.flush(id);
            }
        } else if conn.tx.is_scattered() {
            self.summary.copied_bytes += conn.tx.gather() as u64;
        }
        self.set_dirty(id);
    }

    /// Returns a buffer of up to `max` bytes for data to send on a connection.
    pub(crate) fn reserve(&mut self, id: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
        let wanted = self.space_for(id, max.min(1)).min(max);
        if wanted == 0 {
            return Err(self.table.write_error(id));
        }
        let least = wanted.min(LEAST_RESERVED);
        let left = self.memory.tx_left();
        let committed = match self.placing {
            Some(placing) if placing.conn == id && left >= placing.committed + least => placing.committed,
            _ => {
                self.seal();
                0
            }
        };
        if self.memory.tx(committed + least).is_none() {
            self.table.slots.get_mut(id).ok_or(WriteError::Closed)?.life.wants_room = true;
            self.memory.wait(id);
            return Err(WriteError::Full);
        }
        let space = &mut self.memory.tx(committed + least).ok_or(WriteError::Full)?[committed..];
        let reserved = space.len().min(wanted);
        self.placing = Some(Placing { conn: id, committed, reserved });
        Ok(&mut space[..reserved])
    }

    /// Sends the first `n` bytes of the last buffer.
    pub(crate) fn commit(&mut self, id: ConnId, n: usize) {
        if !self.table.may_send(id) {
            return;
        }
        let reserved = match &mut self.placing {
            Some(placing) if placing.conn == id => {
                let reserved = std::mem::take(&mut placing.reserved);
                placing.committed += n.min(reserved);
                reserved
            }
            _ => 0,
        };
        assert!(n <= reserved, "cannot send {n} bytes of {reserved} reserved");
        self.set_dirty(id);
    }

    /// Queues the committed bytes as a slice of their connection.
    pub(crate) fn seal(&mut self) {
        if let Some(placing) = self.placing.take()
            && placing.committed > 0
            && let Some(block) = self.memory.tx(placing.committed)
        {
            let bytes = block.split_to(placing.committed);
            if let Some(conn) = self.table.slots.get_mut(placing.conn).filter(|conn| conn.life.stage == Stage::Open) {
                conn.tx.push(bytes);
            }
        }
    }

    /// Writes the queues of all connections.
    pub(crate) fn flush_all(&mut self) {
        // A reserved buffer is valid within one event.
        self.seal();
        while let Some(id) = self.tx_pending.pop() {
            self.flush(id);
        }
    }

    fn flush(&mut self, id: ConnId) {
        self.seal();
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        conn.tx_pending = false;
        if conn.life.stage != Stage::Open {
            return;
        }
        let mut progress = false;
        while !conn.blocked && !conn.tx.is_empty() {
            match conn.write() {
                Ok(0) => {}
                Ok(n) => {
                    self.summary.tx_frames += 1;
                    self.summary.tx_bytes += n as u64;
                    progress = true;
                }
                Err(error) => return self.end(id, errno::close_reason(&error)),
            }
        }
        if let Err(error) = conn.finish_sending() {
            return self.end(id, errno::close_reason(&error));
        }
        if conn.life.is_finished() {
            return self.end(id, CloseReason::Finished);
        }
        if conn.blocked && conn.tx.is_scattered() {
            self.summary.copied_bytes += conn.tx.gather() as u64;
        }
        if progress {
            conn.moved = self.now;
        }
        if progress && conn.tx.len() <= self.config.tx_buffer / 2 {
            self.table.offer_room(id);
        }
    }
}
