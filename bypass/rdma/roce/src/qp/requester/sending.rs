//! Requests and their packets.

use super::{ACK_INTERVAL, MAX_MESSAGE, Request, WINDOW};
use crate::memory::Need;
use crate::path::Port;
use crate::qp::{Objects, Qp, Service};
use crate::table::require;
use crate::wire::{self, AtomicEth, Bth, Reth, opcode, psn};
use linerate_rdma_provider::{Handle, Operation, PostError, QpState, SendWr, WcStatus, WorkCompletion};
use linerate_service::time::Instant;

impl Qp {
    /// Posts requests in order. In ERROR they are flushed.
    ///
    /// # Safety
    /// The elements of inline requests are memory of the caller.
    pub unsafe fn post_send(&mut self, requests: &[SendWr<'_>], objects: &mut Objects) -> Result<(), PostError> {
        for (at, request) in requests.iter().enumerate() {
            let failed = |error| PostError { at, error };
            let is_possible = match request.operation {
                Operation::Send => self.service == Service::Rc,
                Operation::Datagram { .. } => self.service == Service::Ud,
                _ if self.service == Service::Ud => false,
                Operation::Read { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                    !request.flags.is_inline()
                }
                Operation::Bind { .. } | Operation::InvalidateLocal(_) => request.sges.is_empty(),
                _ => true,
            };
            let is_open = matches!(self.state, QpState::Rts | QpState::Error);
            require(is_possible && is_open, libc::EINVAL).map_err(failed)?;
            if self.state == QpState::Error {
                let flushed =
                    WorkCompletion::new(request.id, WcStatus::Flushed, request.operation.wc_opcode(), 0, self.number);
                objects.completions.add(self.send_cq, flushed);
                continue;
            }
            // SAFETY: guaranteed by the caller.
            unsafe { self.requester.push(request) }.map_err(failed)?;
        }
        Ok(())
    }

    /// Sends the next packet of a request, or executes a local one. Returns false if nothing can be sent now.
    pub fn request(&mut self, now: Instant, objects: &mut Objects, port: &mut impl Port) -> bool {
        if self.state != QpState::Rts || self.requester.rnr_until.is_some() || self.is_paused {
            return false;
        }
        if self.service == Service::Ud {
            return self.send_datagram(objects, port);
        }
        let cursor = self.requester.cursor;
        let Some(request) = self.requester.queue.get(cursor) else { return false };
        if request.failed.is_some() {
            return false;
        }
        if request.is_numbered {
            if request.packets == 0 {
                // A local request among repeated ones was executed when it was numbered.
                self.requester.cursor += 1;
                return true;
            }
        } else {
            match self.number_request(objects) {
                Some(0) => return true,
                Some(_) => {}
                None => return false,
            }
        }
        let requester = &self.requester;
        let request = &requester.queue[cursor];
        let (fetches, packets) = (request.fetches, request.packets);
        let number = psn::add(request.psn, requester.offset);
        if psn::difference(number, requester.unacked) >= WINDOW as i32 {
            return false;
        }
        let need = if fetches { Need::LocalWrite } else { Need::LocalRead };
        if !request.flags.is_inline() && objects.memory.check(self.pd, requester.sges(request), need).is_err() {
            self.fail_request(WcStatus::LocalProtection, objects);
            return false;
        }
        let end = if fetches { psn::add(request.psn, packets) } else { psn::add(number, 1) };
        let asks = self.send_packet(request, number, objects, port) || fetches;
        let requester = &mut self.requester;
        if psn::difference(end, requester.sent_psn) > 0 {
            requester.sent_psn = end;
        } else if requester.is_probing {
            objects.counters.probes += 1;
        } else {
            objects.counters.repeated += 1;
        }
        requester.offset += 1;
        if fetches || requester.offset == packets {
            (requester.cursor, requester.offset) = (requester.cursor + 1, 0);
        }
        let had_asked = requester.has_asked();
        if asks && psn::difference(end, requester.asked_psn) > 0 {
            requester.asked_psn = end;
        }
        requester.is_probing = false;
        if requester.deadline.is_none() || !had_asked && asks {
            requester.restart_timer(now);
        }
        true
    }

    /// Checks the request at the cursor and gives it sequence numbers. A local request is executed instead and has no
    /// packets. Returns the number of packets, or `None` if the request must wait or has failed.
    fn number_request(&mut self, objects: &mut Objects) -> Option<u32> {
        let request = &self.requester.queue[self.requester.cursor];
        let failed = match request.operation {
            Operation::Bind { .. } => self.bind(&request.operation, objects),
            Operation::InvalidateLocal(key) => {
                objects.memory.invalidate(self.handle, key).map_err(|_| WcStatus::LocalQp).err()
            }
            _ if request.len > MAX_MESSAGE => Some(WcStatus::LocalLength),
            // The response of an atomic operation has eight bytes (IBA 9.4.5).
            _ if request.fetches && request.is_atomic() && request.len != 8 => Some(WcStatus::LocalLength),
            _ if request.fetches && self.requester.initiator_depth == 0 => Some(WcStatus::LocalQp),
            _ => None,
        };
        if let Some(status) = failed {
            self.fail_request(status, objects);
            return None;
        }
        let requester = &mut self.requester;
        let request = &mut requester.queue[requester.cursor];
        let packets = match request.operation {
            Operation::Bind { .. } | Operation::InvalidateLocal(_) => 0,
            _ if request.len as usize <= self.mtu => 1,
            _ => (request.len as usize).div_ceil(self.mtu) as u32,
        };
        if request.fetches && requester.fetches >= requester.initiator_depth {
            return None;
        }
        // One message without a credit requests the next ones, as does one after a peer that miscounts.
        let is_waiting = requester.credits < 0 && requester.sent_psn != requester.unacked;
        if is_waiting && request.operation.takes_buffer() {
            return None;
        }
        requester.fetches += u8::from(request.fetches);
        (request.psn, request.packets, request.is_numbered) = (requester.next_psn, packets, true);
        requester.next_psn = psn::add(requester.next_psn, packets);
        if packets == 0 {
            requester.cursor += 1;
            self.retire(objects);
        } else {
            requester.message = requester.message.wrapping_add(1);
            requester.credits = requester.credits.wrapping_sub(1);
        }
        Some(packets)
    }

    fn bind(&self, operation: &Operation, objects: &mut Objects) -> Option<WcStatus> {
        let Operation::Bind { mw, rkey, mr, address, len, access } = *operation else { return Some(WcStatus::Bind) };
        let keys = [mw, mr].map(|Handle(key)| key as u32);
        let bound = objects.memory.bind(self.pd, self.handle, keys[0], rkey, keys[1], (address, len), access);
        bound.err().map(|_| WcStatus::Bind)
    }

    /// Records a local error of the request at the cursor.
    fn fail_request(&mut self, status: WcStatus, objects: &mut Objects) {
        let cursor = self.requester.cursor;
        self.requester.queue[cursor].failed = Some(status);
        self.retire(objects);
    }

    /// Completes the oldest requests as far as they are done.
    pub(super) fn retire(&mut self, objects: &mut Objects) {
        while let Some(request) = self.requester.front() {
            if let Some(status) = request.failed {
                return self.fail(Some(status), None, objects);
            }
            if !request.is_complete(self.requester.unacked) {
                return;
            }
            if request.flags.is_signalled() {
                let len = if request.fetches { request.len } else { 0 };
                let done = WorkCompletion::new(request.id, WcStatus::Success, request.opcode(), len, self.number);
                objects.completions.add(self.send_cq, done);
            }
            self.requester.pop();
        }
    }

    /// Sends the packet at the cursor, which has the sequence number `number`. Returns whether it requests an
    /// acknowledgement.
    fn send_packet(&self, request: &Request, number: u32, objects: &mut Objects, port: &mut impl Port) -> bool {
        let Some(path) = &self.path else { return false };
        let requester = &self.requester;
        let (offset, mtu) = (requester.offset, self.mtu);
        let from = offset as usize * mtu;
        let (is_first, is_last) = (offset == 0, offset + 1 == request.packets);
        let mut extension = [0; AtomicEth::LEN];
        let mut extension_len = 0;
        let mut add = |bytes: &[u8]| {
            extension[extension_len..][..bytes.len()].copy_from_slice(bytes);
            extension_len += bytes.len();
        };
        let rest = request.len as usize - from.min(request.len as usize);
        let pick = |first, middle, last, only| match (is_first, is_last) {
            (true, true) => only,
            (true, false) => first,
            (false, true) => last,
            (false, false) => middle,
        };
        use opcode::*;
        let (code, len) = match request.operation {
            Operation::Write { address, rkey } => {
                if is_first {
                    add(&Reth { address, rkey, len: request.len }.to_bytes());
                }
                (pick(WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY), rest.min(mtu))
            }
            Operation::WriteImmediate { address, rkey, immediate } => {
                if is_first {
                    add(&Reth { address, rkey, len: request.len }.to_bytes());
                }
                if is_last {
                    add(&immediate.to_be_bytes());
                }
                (pick(WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST_IMMEDIATE, WRITE_ONLY_IMMEDIATE), rest.min(mtu))
            }
            Operation::Read { address, rkey } => {
                // After a partial response, the rest is requested.
                add(&Reth { address: address.wrapping_add(from as u64), rkey, len: rest as u32 }.to_bytes());
                (READ_REQUEST, 0)
            }
            Operation::FetchAdd { address, rkey, add: swap } => {
                add(&AtomicEth { address, rkey, swap, compare: 0 }.to_bytes());
                (FETCH_ADD, 0)
            }
            Operation::CompareSwap { address, rkey, expect: compare, swap } => {
                add(&AtomicEth { address, rkey, swap, compare }.to_bytes());
                (COMPARE_SWAP, 0)
            }
            Operation::SendImmediate(word) | Operation::SendInvalidate(word) => {
                if is_last {
                    add(&word.to_be_bytes());
                }
                let (last, only) = match request.operation {
                    Operation::SendImmediate(_) => (SEND_LAST_IMMEDIATE, SEND_ONLY_IMMEDIATE),
                    _ => (SEND_LAST_INVALIDATE, SEND_ONLY_INVALIDATE),
                };
                (pick(SEND_FIRST, SEND_MIDDLE, last, only), rest.min(mtu))
            }
            _ => (pick(SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY), rest.min(mtu)),
        };
        let is_repeated = psn::difference(number, requester.sent_psn) < 0;
        let ack = is_last && (request.flags.is_signalled() || is_repeated || requester.credits <= 0)
            || requester.is_probing
            || number % ACK_INTERVAL == ACK_INTERVAL - 1;
        let solicited = is_last && request.operation.takes_buffer();
        let bth = Bth { opcode: code, solicited, pad: 0, qp: self.peer, ack, psn: number };
        objects.counters.sent += 1;
        let extension = &extension[..extension_len];
        let Objects { memory, .. } = objects;
        let packet_len = wire::packet_len(extension.len(), len);
        objects.sent_bytes += packet_len;
        port.send(path, packet_len, |packet| {
            wire::write(packet, path, bth, extension, len, |payload| match requester.inline(request) {
                Some(bytes) => payload.copy_from_slice(&bytes[from..from + payload.len()]),
                None => {
                    let gathered = memory.gather(self.pd, requester.sges(request), from, payload);
                    debug_assert!(gathered.is_ok(), "checked before");
                }
            });
        });
        ack
    }
}
