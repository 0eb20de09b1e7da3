//! How a connection ends in peace (RFC 9293 §3.6).

use crate::congestion::CongestionControl;
use crate::native::connection::Connection;
use crate::native::tcb::{Flags, State};
use crate::native::time_wait::Closed;
use crate::native::timers::tick::Tick;
use linerate_bypass::Packet;
use linerate_bypass::time::Instant;

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Our FIN has been acknowledged.
    pub(crate) fn fin_acknowledged(&mut self, now: Instant) {
        let block = &mut *self.block;
        match block.state {
            State::FinWait1 => block.state = State::FinWait2,
            State::Closing => self.enter_time_wait(now),
            State::LastAck if block.flags.has(Flags::END_TOLD) => {
                self.forget_tuple();
                self.shared.conclude(self.slot, self.block);
            }
            State::LastAck => self.linger(),
            _ => {}
        }
    }

    /// Leaves a compact record to answer segments; the block stays until the service knows that it is over.
    pub(crate) fn enter_time_wait(&mut self, now: Instant) {
        self.forget_tuple();
        let block = &mut *self.block;
        block.state = State::TimeWait;
        block.retransmit_at = Tick::NONE;
        // No less than was ever offered: the right edge does not move left, and the peer sends nothing more into it.
        let scale = block.rcv_scale();
        let window = block.rcv_window().max(self.cold.rx_limit).div_ceil(1 << scale).min(65_535);
        block.rcv_edge = block.rcv_edge.max(block.rcv_nxt + (window << scale));
        let record = Closed {
            tuple: block.tuple,
            next: block.nxt,
            peer_next: block.rcv_nxt,
            ts_recent: block.flags.has(Flags::TIMESTAMPS).then_some(block.ts_recent),
            window: window as u16,
        };
        self.shared.time_wait.insert(record, now);
        self.touch();
    }

    /// The peer has all of ours; the block stays until the service has all of the peer's.
    fn linger(&mut self) {
        self.forget_tuple();
        self.block.state = State::TimeWait;
        self.block.retransmit_at = Tick::NONE;
        self.touch();
    }
}
