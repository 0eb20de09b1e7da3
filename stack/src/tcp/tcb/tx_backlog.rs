//! Backlog of connections whose data the port did not accept.
//!
//! The backlog is served in order of arrival while the transmit queue has room, so that the cost of a turn does not
//! depend on its length. While the queue is full, data of other connections follows the backlog: otherwise
//! connections that receive replies would send again before connections in the backlog.

use crate::ip::egress::Egress;
use crate::tcp::NativeEngine;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::tcb::Flags;
use linerate_bypass::{Nic, Packet};
use linerate_service::time::Instant;
use std::collections::VecDeque;

/// Connections that may fail to send although the transmit queue has room. The rest of the backlog is then skipped: no
/// packets are free.
const MAX_FAILED_SENDS: usize = 4;

/// Slots in the backlog, each once.
#[derive(Debug, Default)]
pub(crate) struct TxBacklog {
    queue: VecDeque<u32>,
    /// Bit set of the slots in the queue.
    members: Vec<u64>,
}

impl TxBacklog {
    /// Appends `slot`, unless it is in the backlog.
    pub fn push(&mut self, slot: u32) {
        let (word, bit) = bit_position(slot);
        if self.members.len() <= word {
            self.members.resize(word + 1, 0);
        }
        if self.members[word] & bit == 0 {
            self.members[word] |= bit;
            self.queue.push_back(slot);
        }
    }

    /// Removes the slot that waited longest.
    pub fn pop(&mut self) -> Option<u32> {
        let slot = self.queue.pop_front()?;
        let (word, bit) = bit_position(slot);
        self.members[word] &= !bit;
        Some(slot)
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn contains(&self, slot: u32) -> bool {
        let (word, bit) = bit_position(slot);
        self.members.get(word).is_some_and(|members| members & bit != 0)
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Sends data of connections in the backlog, as long as the port accepts packets.
    #[inline]
    pub(crate) fn drain_backlog<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        if !self.shared.tx_backlog.is_empty() {
            egress.hold_data(false);
            self.drain_backlog_in_order(egress, now);
            egress.hold_data(!self.shared.tx_backlog.is_empty());
        }
    }

    #[inline(never)]
    fn drain_backlog_in_order<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>, now: Instant) {
        let mut failed = 0;
        for _ in 0..self.shared.tx_backlog.len() {
            let room = egress.room();
            if room == 0 || failed == MAX_FAILED_SENDS {
                return;
            }
            let Some(slot) = self.shared.tx_backlog.pop() else { return };
            let Some(mut connection) = self.connection(slot) else { continue };
            let data = connection.tcb.unsent > 0;
            // The connection may have ended, or sent its data in response to a segment.
            if connection.tcb.flags.has(Flags::VACANT) {
                continue;
            }
            if connection.tcb.in_rr_mode() {
                if data && connection.rr_send_response::<true, N>(egress, now).is_none() {
                    connection.demote();
                }
                continue;
            }
            if !self.transmit(slot, data, egress, now) {
                self.shared.tx_backlog.push(slot);
                failed += usize::from(egress.room() == room);
            }
        }
    }

    /// Sends everything pending on the connection in `slot`; `data` states whether that includes data. Returns whether
    /// nothing remains that may be sent now.
    #[inline(always)]
    pub(crate) fn transmit<N: Nic<Packet = P>>(
        &mut self,
        slot: u32,
        data: bool,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        let Some(mut connection) = self.connection(slot) else { return true };
        let done =
            if data { connection.send_whole_packets(egress, now) } else { connection.send_fin_fast_path(egress, now) };
        done || egress.room() > 0 && !connection.demote().output(egress, now)
    }
}

fn bit_position(slot: u32) -> (usize, u64) {
    (slot as usize / 64, 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_leave_in_order_and_once() {
        let mut tx_backlog = TxBacklog::default();
        for slot in [70, 3, 70, 64, 3] {
            tx_backlog.push(slot);
        }
        assert_eq!(
            (tx_backlog.len(), tx_backlog.contains(64), tx_backlog.contains(65), tx_backlog.contains(9000)),
            (3, true, false, false)
        );
        assert_eq!((tx_backlog.pop(), tx_backlog.contains(70)), (Some(70), false));
        tx_backlog.push(70);
        assert_eq!(
            [tx_backlog.pop(), tx_backlog.pop(), tx_backlog.pop(), tx_backlog.pop()],
            [Some(3), Some(64), Some(70), None]
        );
        assert!(tx_backlog.is_empty());
    }
}
