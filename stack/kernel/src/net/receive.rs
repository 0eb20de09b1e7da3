//! Reception: from the kernel to the receive queues.

use super::Net;
use crate::connection::Received;
use crate::errno;
use linerate_service::{ConnId, Receiving, Stage, Tracked};

/// Minimum room of a block worth reading into.
const LEAST_READ: usize = 16 << 10;
/// Bytes read from one connection in one turn, for fairness.
const READ_BUDGET: usize = 128 << 10;

impl Net {
    /// Reads received data of a connection, within its share of the turn and its buffer.
    pub(super) fn read(&mut self, id: ConnId) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        conn.unread = false;
        if conn.life.stage != Stage::Open || conn.paused {
            return;
        }
        let mut budget = READ_BUDGET;
        let mut broken = None;
        while conn.life.receiving == Receiving::Open {
            let room = self.config.rx_buffer - conn.rx.len();
            if room == 0 {
                conn.paused = true;
                break;
            }
            if budget == 0 {
                conn.unread = true;
                self.unread.push_back(id);
                break;
            }
            let Some(block) = self.memory.rx(LEAST_READ) else {
                self.memory.wait(id);
                break;
            };
            let want = block.len().min(room).min(budget);
            let received = conn.read(block, want);
            if let Received::Last(n @ 1..) | Received::Some(n @ 1..) = received {
                self.summary.rx_frames += 1;
                self.summary.rx_bytes += n as u64;
                budget -= n;
                conn.moved = self.now;
            }
            match received {
                Received::Some(_) => {}
                Received::Last(_) | Received::Nothing | Received::End => break,
                Received::Broken(error) => {
                    broken = Some(errno::close_reason(&error));
                    break;
                }
            }
        }
        if conn.rx.is_scattered() {
            self.summary.copied_bytes += conn.rx.gather() as u64;
        }
        if conn.life.pending.readable || conn.peer_closed_is_due() {
            self.table.list(id);
        }
        if let Some(reason) = broken {
            self.end(id, reason);
        }
    }

    /// Updates a connection after its service has consumed data.
    pub(crate) fn consumed(&mut self, id: ConnId) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        if conn.peer_closed_is_due() {
            self.table.list(id);
        } else if conn.paused && conn.rx.len() <= self.config.rx_buffer / 2 {
            conn.paused = false;
            self.set_unread(id);
        }
    }
}
