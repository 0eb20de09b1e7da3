//! Responses, and repetition of requests.

use crate::qp::{Objects, Qp, rnr_time};
use crate::wire::{Aeth, Bth, opcode, psn, syndrome};
use linerate_rdma_provider::{Operation, QpState, WcStatus};
use linerate_service::time::Instant;

impl Qp {
    /// Processes a response: an acknowledgement, or data of a READ or atomic operation.
    pub fn receive_response(&mut self, bth: &Bth, rest: &[u8], now: Instant, objects: &mut Objects) {
        let requester = &self.requester;
        // A response to a packet that was not sent, or is acknowledged already, has no effect.
        let is_new = psn::difference(bth.psn, requester.unacked) >= 0;
        if self.state != QpState::Rts || psn::difference(bth.psn, requester.sent_psn) >= 0 {
            objects.counters.unexpected += 1;
            return;
        }
        let has_aeth = bth.opcode != opcode::READ_RESPONSE_MIDDLE;
        let (aeth, payload) = match Aeth::parse(rest) {
            Some((aeth, rest)) if has_aeth => {
                if aeth.syndrome & 0x60 == syndrome::ACK {
                    self.requester.grant(aeth);
                }
                (aeth, rest)
            }
            _ if !has_aeth => (Aeth { syndrome: syndrome::ACK, msn: 0 }, rest),
            _ => {
                objects.counters.malformed += 1;
                return;
            }
        };
        match bth.opcode {
            opcode::ACKNOWLEDGE => self.receive_acknowledge(bth.psn, aeth, now, objects),
            _ if is_new => self.receive_data(bth, payload, now, objects),
            _ => {}
        }
    }

    fn receive_acknowledge(&mut self, number: u32, aeth: Aeth, now: Instant, objects: &mut Objects) {
        let is_nak = aeth.syndrome & 0x60 != syndrome::ACK;
        let requester = &mut self.requester;
        if is_nak && psn::difference(number, requester.unacked) < 0 {
            return;
        }
        let to = if is_nak { number } else { psn::add(number, 1) };
        if let Some(missing) = requester.acknowledge(to, now) {
            self.retire(objects);
            return self.repeat_missing(missing, now, objects);
        }
        self.retire(objects);
        if self.state != QpState::Rts {
            return;
        }
        match aeth.syndrome {
            code if code & 0x60 == syndrome::RNR_NAK => self.not_ready(number, code & 0x1f, now, objects),
            syndrome::NAK_SEQUENCE => self.repeat(number, now, objects),
            syndrome::NAK_INVALID_REQUEST => self.fail(Some(WcStatus::RemoteInvalidRequest), None, objects),
            syndrome::NAK_REMOTE_ACCESS => self.fail(Some(WcStatus::RemoteAccess), None, objects),
            syndrome::NAK_REMOTE_OPERATIONAL => self.fail(Some(WcStatus::RemoteOperation), None, objects),
            code if code & 0x60 == syndrome::ACK => {}
            // Reserved codes have no effect (IBA 9.9.2.4.2).
            _ => objects.counters.malformed += 1,
        }
    }

    fn not_ready(&mut self, from: u32, timer: u8, now: Instant, objects: &mut Objects) {
        const UNLIMITED: u8 = 7;
        let requester = &mut self.requester;
        // The network has repeated the packet.
        if requester.rnr_until.is_some() {
            return;
        }
        if requester.rnr_retries != UNLIMITED {
            if requester.rnr_retries_left == 0 {
                return self.fail(Some(WcStatus::RnrRetryExceeded), None, objects);
            }
            requester.rnr_retries_left -= 1;
        }
        requester.deadline = None;
        requester.rnr_until = Some(now + rnr_time(timer));
        requester.go_back(from);
    }

    /// Sends again from a missing response on, once.
    fn repeat_missing(&mut self, missing: u32, now: Instant, objects: &mut Objects) {
        if self.state == QpState::Rts && self.requester.repeated_from != Some(missing) {
            self.requester.repeated_from = Some(missing);
            self.repeat(missing, now, objects);
        }
    }

    /// Sends again from the packet numbered `from` on, as often as the retry count permits without progress.
    fn repeat(&mut self, from: u32, now: Instant, objects: &mut Objects) {
        let requester = &mut self.requester;
        if requester.retries_left == 0 {
            return self.fail(Some(WcStatus::RetryExceeded), None, objects);
        }
        requester.retries_left -= 1;
        requester.go_back(from);
        requester.restart_timer(now);
    }

    /// Handles the time-out of the oldest packet (IBA 9.7.6.1.3).
    pub fn time_out(&mut self, now: Instant, objects: &mut Objects) {
        if !self.requester.has_asked() {
            return self.requester.ask_again();
        }
        objects.counters.timeouts += 1;
        self.requester.repeated_from = None;
        self.repeat(self.requester.unacked, now, objects);
    }

    /// Stores the data of a READ response or atomic acknowledgement.
    fn receive_data(&mut self, bth: &Bth, payload: &[u8], now: Instant, objects: &mut Objects) {
        // Data acknowledge all earlier requests.
        let missing = self.requester.acknowledge(bth.psn, now);
        self.retire(objects);
        if let Some(missing) = missing {
            return self.repeat_missing(missing, now, objects);
        }
        let Some(index) = self.requester.queue.iter().position(|request| {
            let offset = psn::difference(bth.psn, request.psn);
            request.is_numbered && offset >= 0 && (offset as u32) < request.packets
        }) else {
            return;
        };
        let request = self.requester.queue[index];
        let expected = psn::add(request.psn, request.received);
        match psn::difference(bth.psn, expected) {
            0 => {}
            ..0 => return,
            1.. => return self.repeat_missing(expected, now, objects),
        }
        let is_last = request.received + 1 == request.packets;
        let from = request.received as usize * self.mtu;
        let len = if is_last { (request.len as usize).saturating_sub(from) } else { self.mtu };
        let is_read = matches!(request.operation, Operation::Read { .. });
        let is_valid = match bth.opcode {
            opcode::READ_RESPONSE_FIRST | opcode::READ_RESPONSE_MIDDLE => is_read && !is_last && payload.len() == len,
            opcode::READ_RESPONSE_LAST | opcode::READ_RESPONSE_ONLY => is_read && is_last && payload.len() == len,
            opcode::ATOMIC_ACKNOWLEDGE => request.is_atomic() && payload.len() == 8,
            _ => false,
        };
        if !is_valid {
            return self.fail(Some(WcStatus::BadResponse), None, objects);
        }
        let sges = self.requester.sges(&request);
        let stored = match payload.first_chunk() {
            // The old value is returned in local byte order.
            Some(was) if !is_read => {
                let was = u64::from_be_bytes(*was).to_ne_bytes();
                objects.memory.scatter(self.pd, sges, 0, &was)
            }
            _ => objects.memory.scatter(self.pd, sges, from, payload),
        };
        if stored.is_err() {
            self.requester.queue[index].failed = Some(WcStatus::LocalProtection);
        } else {
            self.requester.queue[index].received += 1;
            self.requester.acknowledge(psn::add(bth.psn, 1), now);
        }
        self.retire(objects);
    }
}
