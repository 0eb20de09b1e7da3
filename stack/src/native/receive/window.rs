//! The window that we offer (RFC 9293 §3.8.6.2.2), and how large the receive queue may become.

use crate::congestion::CongestionControl;
use crate::egress::Egress;
use crate::native::NativeEngine;
use crate::native::connection::{Connection, Shared};
use crate::native::tcb::Flags;
use crate::native::timers::tick::Tick;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{BURST, Nic, Packet};

/// The round-trip time that tuning goes by before one has been measured.
const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(100);

impl<P> Shared<P> {
    /// Whether the port's packets run low, so that no peer is offered more window than it has.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.mbufs_held.all >= self.settings.pressure
    }
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Lets connections whose window was held back offer it, if there are packets again: some in each turn, as their peers
    /// may use it at once.
    pub(crate) fn reopen_windows(&mut self) {
        for _ in 0..BURST {
            if self.shared.is_low() {
                return;
            }
            let Some(slot) = self.shared.window_held.pop_front() else { return };
            let mut connection = self.demoted(slot);
            connection.tcb.flags.clear(Flags::WINDOW_HELD);
            if connection.tcb.state.may_receive() {
                connection.tcb.flags |= Flags::CONSUMED;
                connection.schedule_tx();
            }
        }
    }

    /// Takes into account what services keep of the port's pool: what is neither left in it nor counted in queues.
    pub(crate) fn update_app_held<N: Nic<Packet = P>>(&mut self, egress: &mut Egress<N>) {
        let Some(left) = egress.nic().pool_left() else { return };
        let queued = self.shared.mbufs_held.all;
        self.shared.settings.set_app_held(egress.capabilities().pool.saturating_sub(queued + left));
    }
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// The right edge that the receive queue has room for.
    #[inline]
    fn free(&mut self) -> u32 {
        if self.shared.is_low() {
            self.hold_back();
            // No more than was promised: but one segment, if all data have been read. Whoever reads at once is served while others do not
            // read, and two ends that both have much to send do not wait for each other.
            let has_read = self.tcb.received == 0;
            let has_packets = self.shared.mbufs_held.all < self.shared.settings.packets_in_advance;
            return if has_read && has_packets { self.min_window().max(self.tcb.rcv_window()) } else { 0 };
        }
        self.cold.rx_limit.saturating_sub(self.tcb.received)
    }

    /// The least window that a full segment fits into, as the window field expresses it.
    fn min_window(&self) -> u32 {
        u32::from(self.tcb.mss).next_multiple_of(1 << self.tcb.rcv_scale()).min(self.cold.rx_limit)
    }

    /// The window field of the next segment of the connection in `slot`, and the edge that it stands for. The edge moves
    /// right or stays, and moves only by what is worth sending.
    #[inline]
    pub(crate) fn offer(&mut self) -> u16 {
        if self.tcb.received == 0
            && let Some(window) = self.tcb.offer_full_window(self.shared.is_low())
        {
            return window;
        }
        let free = self.free();
        let rx_limit = self.cold.rx_limit;
        // The peer of a window below one segment waits for its persist timer, where the increase alone is no whole segment.
        let reopens = self.shared.is_low() && self.tcb.rcv_window() < self.min_window() && free >= self.min_window();
        let tcb = &mut *self.tcb;
        tcb.flags.clear(Flags::CONSUMED);
        let scale = tcb.rcv_scale();
        let offered = tcb.rcv_window();
        let mut window = offered;
        if free > offered && (free - offered >= u32::from(tcb.mss).min(rx_limit / 2) || free >= rx_limit || reopens) {
            window = free;
        }
        let mut field = (window >> scale).min(65_535);
        // Rounded down it would take back what was promised (RFC 7323 §2.4).
        if field << scale < offered && field < 65_535 {
            field += 1;
        }
        tcb.rcv_edge = tcb.rcv_edge.max(tcb.rcv_nxt + (field << scale));
        field as u16
    }

    /// Whether so much room has come about since the peer was told that it should be told now: it may be waiting for it.
    pub(crate) fn should_update_window(&mut self) -> bool {
        if !self.tcb.flags.has(Flags::CONSUMED) {
            return false;
        }
        let rx_limit = self.cold.rx_limit;
        let free = self.free();
        let tcb = &*self.tcb;
        let offered = tcb.rcv_window();
        free > offered && (free - offered >= rx_limit / 2 || offered < u32::from(tcb.mss) && free >= u32::from(tcb.mss))
    }

    /// Packets run low: if the peer would have been offered more window, it is told when there are enough again. It may be
    /// waiting for just that.
    #[cold]
    #[inline(never)]
    fn hold_back(&mut self) {
        let tcb = &mut *self.tcb;
        if !tcb.flags.has(Flags::WINDOW_HELD) && self.cold.rx_limit.saturating_sub(tcb.received) > tcb.rcv_window() {
            tcb.flags |= Flags::WINDOW_HELD;
            self.shared.window_held.push_back(self.slot);
        }
    }

    /// The service has consumed `n` bytes. Less than a full segment at a time is not held up by the window.
    #[inline]
    pub(crate) fn consumed(&mut self, n: u32, now: Instant) {
        let tcb = &mut *self.tcb;
        tcb.flags |= Flags::CONSUMED;
        if n >= u32::from(tcb.mss) && self.cold.rx_limit < self.shared.settings.rx_max {
            self.tune(now);
        }
    }

    /// A service that takes more than half of a window in a round trip gets a larger one (after Fisk and Feng, "Dynamic
    /// Right-Sizing in TCP", 2001).
    #[inline(never)]
    fn tune(&mut self, now: Instant) {
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
            // What took much longer than a round trip says nothing.
            let is_late = tick.since(cold.tuned_at) > next.since(tick);
            if !is_late && consumed - cold.tuned_from > cold.rx_limit / 2 {
                let larger = cold.rx_limit.saturating_mul(2).min(self.shared.settings.rx_max);
                self.set_rx_limit(larger);
            }
        }
        self.cold.tuned_from = consumed;
        self.cold.tuned_at = next;
    }

    /// From now on the receive queue may hold so many bytes.
    pub(crate) fn set_rx_limit(&mut self, limit: u32) {
        self.cold.rx_limit = limit;
        self.tcb.set_full_window(limit);
    }
}
