//! The window that we offer (RFC 9293 §3.8.6.2.2), and how large the receive queue may become.

use super::block::{Block, Flags};
use super::connection::Connection;
use super::tick::Tick;
use crate::congestion::CongestionControl;
use linerate_bypass::Packet;
use linerate_bypass::time::{Duration, Instant};

/// The round-trip time that tuning goes by before one has been measured.
const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(100);

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// The right edge that the receive queue has room for.
    #[inline]
    fn free(&self, block: &Block, rx_limit: u32) -> u32 {
        if self.shared.pinned >= self.shared.settings.pressure {
            // The port's packets run low: no more than was promised.
            return 0;
        }
        rx_limit.saturating_sub(block.received)
    }

    /// The window field of the next segment of the connection in `slot`, and the edge that it stands for. The edge moves
    /// right or stays, and moves only by what is worth sending.
    #[inline]
    pub(super) fn offer(&mut self) -> u16 {
        let rx_limit = self.cold.rx_limit;
        let free = self.free(&*self.block, rx_limit);
        let block = &mut *self.block;
        block.flags.clear(Flags::CONSUMED);
        let scale = block.rcv_scale();
        let offered = block.rcv_window();
        let mut window = offered;
        if free > offered && (free - offered >= u32::from(block.mss).min(rx_limit / 2) || free >= rx_limit) {
            window = free;
        }
        let mut field = (window >> scale).min(65_535);
        // Rounded down it would take back what was promised (RFC 7323 §2.4).
        if field << scale < offered && field < 65_535 {
            field += 1;
        }
        block.rcv_edge = block.rcv_edge.max(block.rcv_nxt + (field << scale));
        field as u16
    }

    /// Whether so much room has come about since the peer was told that it should be told now: it may be waiting for it.
    pub(super) fn has_window_to_offer(&self) -> bool {
        let block = &*self.block;
        if !block.flags.has(Flags::CONSUMED) {
            return false;
        }
        let rx_limit = self.cold.rx_limit;
        let (free, offered) = (self.free(block, rx_limit), block.rcv_window());
        free > offered
            && (free - offered >= rx_limit / 2 || offered < u32::from(block.mss) && free >= u32::from(block.mss))
    }

    /// The service has consumed `n` bytes. Less than a full segment at a time is not held up by the window.
    #[inline]
    pub(super) fn consumed(&mut self, n: u32, now: Instant) {
        let block = &mut *self.block;
        block.flags |= Flags::CONSUMED;
        if n >= u32::from(block.mss) && self.cold.rx_limit < self.shared.settings.rx_most {
            self.tune(now);
        }
    }

    /// A service that takes more than half of a window in a round trip gets a larger one (after Fisk and Feng, "Dynamic
    /// Right-Sizing in TCP", 2001).
    #[inline(never)]
    fn tune(&mut self, now: Instant) {
        let block = &*self.block;
        let cold = &mut *self.cold;
        let round_trip = if block.rtt.has_sample() { block.rtt.smoothed() } else { UNKNOWN_ROUND_TRIP };
        let tick = Tick::of(now);
        let consumed = block.rcv_nxt - block.received;
        let next = Tick::at_or_after(now + round_trip);
        if cold.tuned_at.is_some() {
            if !cold.tuned_at.is_due(tick) {
                return;
            }
            // What took much longer than a round trip says nothing.
            let is_late = tick.since(cold.tuned_at) > next.since(tick);
            if !is_late && consumed - cold.tuned_from > cold.rx_limit / 2 {
                let larger = cold.rx_limit.saturating_mul(2).min(self.shared.settings.rx_most);
                self.set_rx_limit(larger);
            }
        }
        self.cold.tuned_from = consumed;
        self.cold.tuned_at = next;
    }

    /// From now on the receive queue may hold so many bytes.
    pub(super) fn set_rx_limit(&mut self, limit: u32) {
        self.cold.rx_limit = limit;
        self.block.whole_window = (limit >> self.block.rcv_scale()).min(65_535) as u16;
    }
}
