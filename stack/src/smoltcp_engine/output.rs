//! Transmission of the smoltcp engine, and scheduling of its flows.

use super::SmoltcpEngine;
use crate::ip::egress::Egress;
use crate::slow_path::device::{Device, from_smoltcp_time, to_smoltcp_time};
use linerate_bypass::Nic;
use linerate_service::time::{Duration, Instant};
use smoltcp::iface::PollResult;
use smoltcp::phy::Medium;
use smoltcp::socket::tcp::State;

/// Segments that one flow sends before the next flow's turn.
const SEGMENTS_PER_TURN: usize = 32;
/// Retry interval when smoltcp reports a due deadline but sends nothing.
const SOON: Duration = Duration::from_millis(1);
/// Time after which an unacknowledged FIN is retransmitted.
const FIN_AGAIN: Duration = Duration::from_secs(2);

impl SmoltcpEngine {
    /// Sends pending segments of the flow in `slot`. Returns whether there are more.
    pub(super) fn flush_flow<N: Nic>(&mut self, slot: u32, egress: &mut Egress<N>, now: Instant) -> bool {
        let Some(flow) = self.slots.at_mut(slot as usize) else { return false };
        flow.tx_pending = false;
        let before = flow.socket().state();
        if before == State::TimeWait && flow.has_unread_data() {
            return false;
        }
        let at = to_smoltcp_time(now);
        let mut more = true;
        let mut deadline = None;
        for _ in 0..SEGMENTS_PER_TURN {
            let mut device = Device::new(Medium::Ip, egress, now).after(flow.sent);
            let result = self.interface.poll_egress(at, &mut device, &mut flow.sockets);
            let exhausted = device.exhausted;
            flow.sent = device.sent;
            // Querying the deadline costs less than another fruitless transmission attempt.
            deadline = self.interface.poll_at(at, &flow.sockets);
            if result == PollResult::None || deadline.is_none_or(|deadline| deadline > at) {
                more = exhausted;
                break;
            }
        }
        flow.note_end(before, false);
        let changed = flow.socket().state() != before;
        if !flow.only_fin_unacknowledged() {
            flow.fin_again = None;
        } else if flow.fin_again.is_none_or(|at| at <= now) {
            if let (Some(_), Some(fin)) = (flow.fin_again, flow.fin()) {
                fin.send(&flow.tuple, egress, now);
            }
            flow.fin_again = Some(now + FIN_AGAIN);
        }
        match [deadline.map(from_smoltcp_time), flow.fin_again].into_iter().flatten().min() {
            _ if more => {}
            Some(deadline) => self.wheel.arm(2 * slot, deadline.max(now + SOON)),
            None => self.wheel.disarm(2 * slot),
        }
        // A flow about to be removed waits until its last segment is sent.
        if changed || matches!(before, State::Closed | State::TimeWait) {
            self.touch(slot);
        }
        more
    }
}
