//! Orderly close (RFC 9293 §3.6).

use crate::tcp::clock::tick::Tick;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Connection;
use crate::tcp::tables::time_wait::TimeWaitEntry;
use crate::tcp::tcb::{Flags, State};
use linerate_bypass::Packet;
use linerate_service::time::Instant;

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Updates the state after the local FIN was acknowledged.
    pub(crate) fn fin_acknowledged(&mut self, now: Instant) {
        let tcb = &mut *self.tcb;
        match tcb.state {
            State::FinWait1 => tcb.state = State::FinWait2,
            State::Closing => self.enter_time_wait(now),
            State::LastAck if tcb.flags.has(Flags::FIN_REPORTED) => {
                self.remove_from_table();
                self.shared.finish_close(self.slot, self.tcb);
            }
            State::LastAck => self.await_service(),
            _ => {}
        }
    }

    /// Enters TIME-WAIT. A compact record answers segments; the control block remains until the service has received
    /// all events.
    pub(crate) fn enter_time_wait(&mut self, now: Instant) {
        self.remove_from_table();
        let tcb = &mut *self.tcb;
        tcb.state = State::TimeWait;
        tcb.retransmit_at = Tick::NONE;
        // The window covers at least the advertised one: the right edge does not move left, and the peer sends no more
        // data.
        let scale = tcb.rcv_scale();
        let window = tcb.rcv_window().max(self.cold.rx_limit).div_ceil(1 << scale).min(65_535);
        tcb.rcv_edge = tcb.rcv_edge.max(tcb.rcv_nxt + (window << scale));
        let record = TimeWaitEntry {
            tuple: tcb.tuple,
            next: tcb.nxt,
            peer_next: tcb.rcv_nxt,
            ts_recent: tcb.flags.has(Flags::TIMESTAMPS).then_some(tcb.ts_recent),
            window: window as u16,
        };
        self.shared.time_wait.insert(record, now);
        self.notify();
    }

    /// Keeps the control block after the close until the service has consumed the peer's data.
    fn await_service(&mut self) {
        self.remove_from_table();
        self.tcb.state = State::TimeWait;
        self.tcb.retransmit_at = Tick::NONE;
        self.notify();
    }
}
