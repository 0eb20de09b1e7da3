//! Advertised window (RFC 9293 §3.8.6.2.2) and size of the receive queue.

use crate::ip::egress::Egress;
use crate::tcp::NativeEngine;
use crate::tcp::clock::tick::Tick;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::{Connection, Shared};
use crate::tcp::tcb::Flags;
use linerate_bypass::{BURST, Nic, Packet};
use linerate_service::time::{Duration, Instant};

/// RTT used for tuning before the first sample.
const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(100);

impl<P> Shared<P> {
    /// Returns whether packets run low, so that no peer's window is extended.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.mbufs_held.all >= self.settings.pressure
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Sends window updates that were held back, if packets are free again: some in each turn, because the peers may
    /// use the windows at once.
    pub(crate) fn reopen_windows(&mut self) {
        for _ in 0..BURST {
            if self.shared.is_low() {
                return;
            }
            let Some(slot) = self.shared.window_held.pop_front() else { return };
            let Some(mut connection) = self.connection(slot) else { continue };
            let mut connection = connection.demote();
            connection.tcb.flags.clear(Flags::WINDOW_HELD);
            if connection.tcb.state.may_receive() {
                connection.tcb.flags |= Flags::CONSUMED;
                connection.schedule_tx();
            }
        }
    }

    /// Updates the packets held by services: those neither free in the port's pool nor counted in queues.
    pub(crate) fn update_app_held<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>) {
        let Some(left) = egress.nic().pool_left() else { return };
        let queued = self.shared.mbufs_held.all;
        self.shared.settings.set_app_held(egress.capabilities().pool.saturating_sub(queued + left));
    }
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Returns the window that the receive queue has room for.
    #[inline]
    fn available_window(&mut self) -> u32 {
        if self.shared.is_low() {
            self.hold_back();
            // The window is not extended, except to one segment if all data was read. A service that reads at once is
            // thus served while others do not read, and two ends that both have much to send do not wait for each
            // other.
            let has_read = self.tcb.received == 0;
            let has_packets = self.shared.mbufs_held.all < self.shared.settings.packets_in_advance;
            return if has_read && has_packets { self.min_window().max(self.tcb.rcv_window()) } else { 0 };
        }
        self.cold.rx_limit.saturating_sub(self.tcb.received)
    }

    /// Returns the smallest window that fits a full segment and that the window field can express.
    fn min_window(&self) -> u32 {
        u32::from(self.tcb.mss).next_multiple_of(1 << self.tcb.rcv_scale()).min(self.cold.rx_limit)
    }

    /// Returns the window field of the next segment, and moves the right edge accordingly. The edge of acceptable
    /// sequence numbers never moves left, and moves right only by a useful amount (silly window avoidance).
    #[inline]
    pub(crate) fn offer(&mut self) -> u16 {
        if self.tcb.received == 0
            && let Some(window) = self.tcb.offer_full_window(self.shared.is_low())
        {
            return window;
        }
        let available = self.available_window();
        let rx_limit = self.cold.rx_limit;
        // The peer of a window below one segment waits for its persist timer if the increase alone is less than a
        // segment.
        let reopens =
            self.shared.is_low() && self.tcb.rcv_window() < self.min_window() && available >= self.min_window();
        let tcb = &mut *self.tcb;
        tcb.flags.clear(Flags::CONSUMED);
        let scale = tcb.rcv_scale();
        let offered = tcb.rcv_window();
        let mut window = offered;
        if available > offered
            && (available - offered >= u32::from(tcb.mss).min(rx_limit / 2) || available >= rx_limit || reopens)
        {
            window = available;
        }
        let mut field = (window >> scale).min(65_535);
        // Rounded down, the announced edge is up to a unit left of `rcv_edge`, which stays acceptable (RFC 7323 §2.4).
        // Without room for the whole unit this is necessary: rounded up, the edge would move right with each unread
        // segment of odd length, beyond the receive queue.
        if field << scale < offered && field < 65_535 && offered <= available {
            field += 1;
        }
        tcb.rcv_edge = tcb.rcv_edge.max(tcb.rcv_nxt + (field << scale));
        field as u16
    }

    /// Returns whether the window has grown enough for a window update, for which the peer may be waiting.
    pub(crate) fn should_update_window(&mut self) -> bool {
        if !self.tcb.flags.has(Flags::CONSUMED) {
            return false;
        }
        let rx_limit = self.cold.rx_limit;
        let available = self.available_window();
        let tcb = &*self.tcb;
        let offered = tcb.rcv_window();
        available > offered
            && (available - offered >= rx_limit / 2 || offered < u32::from(tcb.mss) && available >= u32::from(tcb.mss))
    }

    /// Defers a window update, for which the peer may be waiting, until packets are free.
    #[cold]
    #[inline(never)]
    fn hold_back(&mut self) {
        let tcb = &mut *self.tcb;
        if !tcb.flags.has(Flags::WINDOW_HELD) && self.cold.rx_limit.saturating_sub(tcb.received) > tcb.rcv_window() {
            tcb.flags |= Flags::WINDOW_HELD;
            self.shared.window_held.push_back(self.slot);
        }
    }

    /// Updates the state after the service consumed `n` bytes. Consumption of less than a full segment at a time is not
    /// limited by the window.
    #[inline]
    pub(crate) fn consumed(&mut self, n: u32, now: Instant) {
        let tcb = &mut *self.tcb;
        tcb.flags |= Flags::CONSUMED;
        if n >= u32::from(tcb.mss) && self.cold.rx_limit < self.shared.settings.rx_max {
            self.tune_rx_limit(now);
        }
    }

    /// Enlarges the receive queue of a service that consumes more than half of the window in a round trip (after Fisk
    /// and Feng, "Dynamic Right-Sizing in TCP", 2001).
    #[inline(never)]
    fn tune_rx_limit(&mut self, now: Instant) {
        let tcb = &*self.tcb;
        let cold = &mut *self.cold;
        let round_trip = if tcb.rtt.has_sample() { tcb.rtt.smoothed() } else { UNKNOWN_ROUND_TRIP };
        let tick = Tick::of(now);
        let consumed = tcb.rcv_nxt - tcb.received;
        let next = Tick::at_or_after(now + round_trip);
        if cold.tuned_at.is_some() {
            if !cold.tuned_at.is_due(tick) {
                return;
            }
            // An interval much longer than a round trip is not significant.
            let is_late = tick.since(cold.tuned_at) > next.since(tick);
            if !is_late && consumed - cold.tuned_from > cold.rx_limit / 2 {
                let larger = cold.rx_limit.saturating_mul(2).min(self.shared.settings.rx_max);
                self.set_rx_limit(larger);
            }
        }
        self.cold.tuned_from = consumed;
        self.cold.tuned_at = next;
    }

    /// Sets the limit of the receive queue in bytes.
    pub(crate) fn set_rx_limit(&mut self, limit: u32) {
        self.cold.rx_limit = limit;
        self.tcb.set_full_window(limit);
    }
}
