//! What services do in their turn: send back what was received, or consume it and write something else.

use super::super::NativeEngine;
use super::super::fast_path::dress;
use super::super::header::Control;
use super::{Ours, Turn};
use crate::congestion::CongestionControl;
use crate::egress::Egress;
use linerate_bypass::time::Instant;
use linerate_bypass::{Nic, Packet};

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Answers the peer's turn of the connection in `slot`: with what the service has written, `WRITTEN`, if it has consumed all
    /// that was received; otherwise with what was received. Returns how many bytes that were; `None` when nothing has changed.
    #[inline(always)]
    pub(in super::super) fn answer_turn<const WRITTEN: bool, N: Nic<Packet = P>>(
        &mut self,
        slot: u32,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Option<usize> {
        let is_low = self.shared.is_low();
        let block = self.blocks.get_mut(slot as usize)?;
        let exchange = self.shared.exchanges.of_mut(block)?;
        let Turn::Ours(ours) = &mut exchange.turn else { return None };
        let (packet, other, len) = match WRITTEN {
            true => (&mut ours.written, &ours.received, block.unsent),
            false => (&mut ours.received, &ours.written, block.received),
        };
        let packet = packet.as_mut()?;
        // The segment came in this turn of the worker, or the exchange would have been settled.
        debug_assert_eq!(now, self.shared.now);
        let settings = &self.shared.settings;
        // With room for another segment the congestion window is not what limits it (RFC 9438 §5.8), and need not be told.
        if other.is_some()
            || WRITTEN && (ours.reserved > 0 || len == 0)
            || len > u32::from(block.mss)
            || len + u32::from(block.mss) > block.cwnd
            || len > block.snd_wnd
            || !settings.only_headers
            || egress.room() == 0
        {
            return None;
        }
        if exchange.link_epoch != egress.link_epoch() {
            exchange.link = *egress.link_header(block.tuple.remote_v6().to_bits(), now)?;
            exchange.link_epoch = egress.link_epoch();
        }
        let window = block.offer_all(is_low)?;
        let (link, milliseconds) = (&exchange.link, self.shared.milliseconds);
        let kept = dress(packet, block, len, Control::PSH, window, link, settings.offload, milliseconds)?;
        let Turn::Ours(Ours { received, written, .. }) = std::mem::replace(&mut exchange.turn, Turn::Theirs(kept))
        else {
            return None;
        };
        exchange.sent_at = now;
        egress.send_frame(if WRITTEN { written? } else { received? });
        self.shared.exchanges.ours -= 1;
        if WRITTEN {
            self.shared.pinned.queued -= 1;
            block.unsent = 0;
        } else {
            block.received = 0;
        }
        block.nxt += len;
        block.rcv_acked = block.rcv_nxt;
        block.retransmit_at = self.shared.soonest[usize::from(block.rtt.consults_path())];
        self.shared.arm_for(slot, block, block.retransmit_at);
        Some(len as usize)
    }

    /// Drops the first `n` bytes received in the exchange of the connection in `slot`, or all. Returns whether it has one.
    #[inline(always)]
    pub(in super::super) fn consume_turn(&mut self, slot: u32, n: usize) -> bool {
        let Some(block) = self.blocks.get_mut(slot as usize) else { return false };
        let Some(exchange) = self.shared.exchanges.of_mut(block) else { return false };
        let Turn::Ours(ours) = &mut exchange.turn else { return true };
        if n >= block.received as usize {
            let Some(mut packet) = ours.received.take() else { return true };
            block.received = 0;
            // Nobody reads it any more, and it is near: the answer may be written there.
            if ours.written.is_none() && packet.trim(packet.len()) {
                ours.written = Some(packet);
                self.shared.pinned.queued += 1;
            } else {
                self.shared.pinned.all -= 1;
            }
        } else if let Some(packet) = &mut ours.received
            && packet.adjust(n)
        {
            block.received -= n as u32;
        }
        true
    }

    /// Makes a place of up to `max` bytes at the end of the answer that is written in the exchange of the connection in `slot`.
    /// Returns how many it has: none if there is no exchange, if it is not our turn, or if it is not as simple as that.
    #[inline(always)]
    pub(in super::super) fn extend_answer<N: Nic<Packet = P>>(
        &mut self,
        slot: u32,
        max: usize,
        egress: &mut Egress<N>,
    ) -> usize {
        let Some(block) = self.blocks.get_mut(slot as usize) else { return 0 };
        let Some(exchange) = self.shared.exchanges.of_mut(block) else { return 0 };
        let Turn::Ours(ours) = &mut exchange.turn else { return 0 };
        let n = max.min(usize::from(block.mss).saturating_sub(block.unsent as usize));
        if n == 0 || ours.reserved > 0 {
            return 0;
        }
        if let Some(packet) = &mut ours.written {
            if packet.append(n).is_none() {
                return 0;
            }
        } else {
            // Where packets run low, what is written in this turn becomes the queue of an ordinary connection at its end.
            let Some(mut packet) = egress.allocate_for_payload() else { return 0 };
            if packet.append(n).is_none() {
                return 0;
            }
            ours.written = Some(packet);
            self.shared.pinned.queue(1);
        }
        ours.reserved = n as u32;
        n
    }

    /// The last `n` bytes of the answer that is written in the exchange of the connection in `slot`.
    #[inline(always)]
    pub(in super::super) fn end_of_answer(&mut self, slot: u32, n: usize) -> Option<&mut [u8]> {
        let block = self.blocks.get(slot as usize)?;
        let Turn::Ours(ours) = &mut self.shared.exchanges.of_mut(block)?.turn else { return None };
        let data = ours.written.as_mut()?.data_mut()?;
        let at = data.len().checked_sub(n)?;
        data.get_mut(at..)
    }

    /// The first `n` bytes that were reserved at the end of the answer in the exchange of the connection in `slot` are written.
    /// Returns whether there is such an answer.
    ///
    /// # Panics
    ///
    /// If that is more than was reserved.
    #[inline(always)]
    pub(in super::super) fn commit_answer(&mut self, slot: u32, n: usize) -> bool {
        let Some(block) = self.blocks.get_mut(slot as usize) else { return false };
        let Some(exchange) = self.shared.exchanges.of_mut(block) else { return false };
        let Turn::Ours(ours) = &mut exchange.turn else { return false };
        let Some(packet) = &mut ours.written else { return false };
        let reserved = std::mem::take(&mut ours.reserved) as usize;
        assert!(n <= reserved, "{n} bytes committed of a place of {reserved}");
        if n < reserved {
            // Within the packet's one segment.
            let _ = packet.trim(reserved - n);
        }
        block.unsent += n as u32;
        true
    }
}
