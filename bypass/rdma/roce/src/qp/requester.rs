//! Requester of a reliable connection (IBA 9.7.3 to 9.7.6): requests, their packets, and responses to them.

use super::{Objects, Qp, ack_timeout, rnr_time, wc_opcode};
use crate::memory::Need;
use crate::path::Port;
use crate::table::{errno, require};
use crate::wire::{self, Aeth, AtomicEth, Bth, Reth, opcode, psn, syndrome};
use linerate_rdma_provider::{
    Handle, Operation, PostError, QpCap, QpState, SendFlags, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use linerate_service::time::{Duration, Instant};
use std::collections::VecDeque;

/// Packets that may be unacknowledged. The requested acknowledgements of long messages arrive four times per window.
const WINDOW: u32 = 128;
/// Longest message in bytes: half of the sequence numbers at the smallest path MTU.
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;

/// Posted request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub id: u64,
    pub operation: Operation,
    pub flags: SendFlags,
    pub len: u32,
    /// Position of its elements and inline data.
    slot: usize,
    sges: usize,
    /// Sequence number of the first packet, and the number of packets, of the responses for a READ. Valid once the
    /// request is numbered.
    psn: u32,
    packets: u32,
    is_numbered: bool,
    /// Received packets of the response to a READ or atomic operation.
    received: u32,
    /// Local error, reported once all earlier requests have completed.
    failed: Option<WcStatus>,
}

impl Request {
    pub fn opcode(&self) -> WcOpcode {
        wc_opcode(&self.operation)
    }

    /// Returns whether the response carries data.
    fn fetches(&self) -> bool {
        self.is_atomic() || matches!(self.operation, Operation::Read { .. })
    }

    fn is_atomic(&self) -> bool {
        matches!(self.operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. })
    }

    fn is_complete(&self, unacked: u32) -> bool {
        let is_acknowledged = psn::difference(unacked, psn::add(self.psn, self.packets)) >= 0;
        self.is_numbered && is_acknowledged && (!self.fetches() || self.received == self.packets)
    }
}

/// Send queue, and the state of the sender.
pub(crate) struct Requester {
    queue: VecDeque<Request>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    cap: QpCap,
    posted: usize,
    /// Index of the request to send from, and the packets of it that precede.
    cursor: usize,
    offset: u32,
    /// First number that no request has.
    next_psn: u32,
    /// First number that was never sent.
    sent_psn: u32,
    /// First number that is not acknowledged.
    unacked: u32,
    /// READs and atomic operations without a complete response.
    fetches: u8,
    pub initiator_depth: u8,
    timeout: Option<Duration>,
    retries: u8,
    rnr_retries: u8,
    retries_left: u8,
    rnr_retries_left: u8,
    /// Time-out of the oldest unacknowledged packet.
    pub deadline: Option<Instant>,
    /// End of the wait after receiver-not-ready.
    pub rnr_until: Option<Instant>,
    /// Missing response from which requests were last sent again, so that later responses do not repeat that.
    repeated_from: Option<u32>,
}

impl Requester {
    pub fn new(cap: QpCap) -> Self {
        let none = Sge { address: 0, len: 0, lkey: 0 };
        Requester {
            queue: VecDeque::with_capacity(cap.sends as usize),
            sges: vec![none; (cap.sends * cap.send_sges) as usize].into_boxed_slice(),
            inline: vec![0; (cap.sends * cap.inline) as usize].into_boxed_slice(),
            cap,
            posted: 0,
            cursor: 0,
            offset: 0,
            next_psn: 0,
            sent_psn: 0,
            unacked: 0,
            fetches: 0,
            initiator_depth: 0,
            timeout: None,
            retries: 0,
            rnr_retries: 0,
            retries_left: 0,
            rnr_retries_left: 0,
            deadline: None,
            rnr_until: None,
            repeated_from: None,
        }
    }

    /// Sets the attributes of RTS.
    pub fn start(&mut self, first: u32, timeout: u8, retries: u8, rnr_retries: u8, initiator_depth: u8) {
        (self.next_psn, self.sent_psn, self.unacked) = (first, first, first);
        self.timeout = ack_timeout(timeout);
        (self.retries, self.retries_left) = (retries, retries);
        (self.rnr_retries, self.rnr_retries_left) = (rnr_retries, rnr_retries);
        self.initiator_depth = initiator_depth;
    }

    pub fn reset(&mut self) {
        self.queue.clear();
        (self.cursor, self.offset, self.fetches) = (0, 0, 0);
        (self.deadline, self.rnr_until, self.repeated_from) = (None, None, None);
    }

    /// Removes the oldest request.
    pub fn pop(&mut self) -> Option<Request> {
        let request = self.queue.pop_front()?;
        if request.is_numbered && request.fetches() {
            self.fetches -= 1;
        }
        match self.cursor {
            0 => self.offset = 0,
            _ => self.cursor -= 1,
        }
        Some(request)
    }

    pub fn front(&self) -> Option<&Request> {
        self.queue.front()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn sges(&self, request: &Request) -> &[Sge] {
        &self.sges[request.slot * self.cap.send_sges as usize..][..request.sges]
    }

    pub fn inline(&self, request: &Request) -> Option<&[u8]> {
        let width = self.cap.inline as usize;
        request.flags.inline.then(|| &self.inline[request.slot * width..][..request.len as usize])
    }

    /// # Safety
    /// The elements of inline requests are memory of the caller.
    unsafe fn push(&mut self, request: &SendWr<'_>) -> std::io::Result<()> {
        require(self.queue.len() < self.cap.sends as usize, libc::ENOMEM)?;
        require(request.sges.len() <= self.cap.send_sges as usize, libc::EINVAL)?;
        let len = request.sges.iter().map(|sge| u64::from(sge.len)).sum::<u64>();
        let len = u32::try_from(len).map_err(|_| errno(libc::EINVAL))?;
        require(!request.flags.inline || len <= self.cap.inline, libc::EINVAL)?;
        let slot = self.posted % self.cap.sends as usize;
        self.sges[slot * self.cap.send_sges as usize..][..request.sges.len()].copy_from_slice(request.sges);
        if request.flags.inline {
            let mut to = &mut self.inline[slot * self.cap.inline as usize..][..len as usize];
            for sge in request.sges.iter().filter(|sge| sge.len > 0) {
                let (part, rest) = to.split_at_mut(sge.len as usize);
                // SAFETY: the caller owns the element; `part` is memory of this queue.
                unsafe {
                    let from: *const u8 = std::ptr::with_exposed_provenance(sge.address as usize);
                    std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len());
                }
                to = rest;
            }
        }
        self.posted += 1;
        self.queue.push_back(Request {
            id: request.id,
            operation: request.operation,
            flags: request.flags,
            len,
            slot,
            sges: request.sges.len(),
            psn: 0,
            packets: 0,
            is_numbered: false,
            received: 0,
            failed: None,
        });
        Ok(())
    }

    /// Takes the sequence number of a datagram.
    pub fn number_datagram(&mut self) -> u32 {
        let number = self.next_psn;
        self.next_psn = psn::add(number, 1);
        number
    }

    /// Returns the sequence number of the next packet.
    fn send_psn(&self) -> u32 {
        match self.queue.get(self.cursor) {
            Some(request) if request.is_numbered => psn::add(request.psn, self.offset),
            _ => self.next_psn,
        }
    }

    fn is_in_flight(&self) -> bool {
        self.sent_psn != self.unacked
    }

    fn restart_timer(&mut self, now: Instant) {
        self.deadline = self.timeout.filter(|_| self.is_in_flight()).map(|timeout| now + timeout);
    }

    /// Acknowledges all packets before `to`. Returns the number of the first missing response before `to`, if any: the
    /// acknowledgement then implies its loss (IBA 9.7.5.1.1).
    fn acknowledge(&mut self, to: u32, now: Instant) -> Option<u32> {
        let is_missing = |request: &&Request| request.fetches() && request.received < request.packets;
        let covered = self.queue.iter().take_while(|request| {
            request.is_numbered && psn::difference(to, request.psn) > 0
        });
        let missing = covered.clone().find(is_missing).map(|request| psn::add(request.psn, request.received));
        // The next response of a READ in progress is not missing yet.
        let missing = missing.filter(|missing| psn::difference(to, *missing) > 0);
        let to = missing.unwrap_or(to);
        if psn::difference(to, self.unacked) > 0 {
            self.unacked = to;
            self.repeated_from = None;
            (self.retries_left, self.rnr_retries_left) = (self.retries, self.rnr_retries);
            self.restart_timer(now);
            self.skip_acknowledged();
        }
        missing
    }

    /// Moves the cursor after packets that were acknowledged before they were sent again.
    fn skip_acknowledged(&mut self) {
        while let Some(request) = self.queue.get(self.cursor) {
            let done = psn::difference(self.unacked, request.psn);
            if !request.is_numbered || request.fetches() || done <= self.offset as i32 {
                return;
            }
            if (done as u32) < request.packets {
                self.offset = done as u32;
                return;
            }
            (self.cursor, self.offset) = (self.cursor + 1, 0);
        }
    }

    /// Moves the cursor back to the packet numbered `from` (go-back-N).
    fn go_back(&mut self, from: u32) {
        let contains = |request: &Request| {
            let offset = psn::difference(from, request.psn);
            request.is_numbered && offset >= 0 && (offset as u32) < request.packets
        };
        if let Some(index) = self.queue.iter().position(contains) {
            let request = &self.queue[index];
            self.cursor = index;
            self.offset =
                if request.fetches() { request.received } else { psn::difference(from, request.psn) as u32 };
        }
    }
}

impl Qp {
    /// Posts requests in order. In ERROR they are flushed.
    ///
    /// # Safety
    /// The elements of inline requests are memory of the caller.
    pub unsafe fn post_send(&mut self, requests: &[SendWr<'_>], objects: &mut Objects) -> Result<(), PostError> {
        for (at, request) in requests.iter().enumerate() {
            let failed = |error| PostError { at, error };
            let is_possible = match request.operation {
                Operation::Datagram { .. } => self.service == super::Service::Ud,
                _ if self.service == super::Service::Ud => false,
                Operation::Read { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                    !request.flags.inline
                }
                Operation::Bind { .. } | Operation::InvalidateLocal(_) => request.sges.is_empty(),
                _ => true,
            };
            let is_open = matches!(self.state, QpState::Rts | QpState::Error);
            require(is_possible && is_open, libc::EINVAL).map_err(failed)?;
            if self.state == QpState::Error {
                let flushed = WorkCompletion::new(request.id, WcStatus::Flushed, wc_opcode(&request.operation), 0, self.number);
                objects.completions.add(self.send_cq, flushed);
                continue;
            }
            // SAFETY: guaranteed by the caller.
            unsafe { self.requester.push(request) }.map_err(failed)?;
        }
        Ok(())
    }

    /// Sends the next packet of a request, or executes a local one. Returns false if nothing can be sent now.
    pub fn request(&mut self, now: Instant, objects: &mut Objects, port: &mut dyn Port) -> bool {
        if self.state != QpState::Rts || self.requester.rnr_until.is_some() {
            return false;
        }
        if self.service == super::Service::Ud {
            return self.send_datagram(objects, port);
        }
        let Some(request) = self.requester.queue.get(self.requester.cursor).copied() else { return false };
        if request.failed.is_some() {
            return false;
        }
        let request = if request.is_numbered { request } else {
            match self.number_request(request, objects) {
                Some(request) if request.packets > 0 => request,
                Some(_) => return true,
                None => return false,
            }
        };
        let requester = &self.requester;
        let in_flight = psn::difference(requester.send_psn(), requester.unacked);
        if in_flight >= WINDOW as i32 {
            return false;
        }
        let need = if request.fetches() { Need::LocalWrite } else { Need::LocalRead };
        if !request.flags.inline && objects.memory.check(self.pd, requester.sges(&request), need).is_err() {
            self.fail_request(WcStatus::LocalProtection, objects);
            return false;
        }
        self.send_packet(&request, objects, port);
        let requester = &mut self.requester;
        let end = if request.fetches() {
            psn::add(request.psn, request.packets)
        } else {
            psn::add(request.psn, requester.offset + 1)
        };
        if psn::difference(end, requester.sent_psn) > 0 {
            requester.sent_psn = end;
        } else {
            objects.counters.repeated += 1;
        }
        requester.offset += 1;
        if request.fetches() || requester.offset == request.packets {
            (requester.cursor, requester.offset) = (requester.cursor + 1, 0);
        }
        if requester.deadline.is_none() {
            requester.restart_timer(now);
        }
        true
    }

    /// Checks the request at the cursor and gives it sequence numbers. A local request is executed instead and has no
    /// packets. Returns `None` if the request must wait or has failed.
    fn number_request(&mut self, request: Request, objects: &mut Objects) -> Option<Request> {
        let len_limit = if request.is_atomic() { 8 } else { MAX_MESSAGE };
        let failed = match request.operation {
            Operation::Bind { .. } => self.bind(&request.operation, objects),
            Operation::InvalidateLocal(key) => {
                objects.memory.invalidate(self.handle, key).map_err(|_| WcStatus::LocalQp).err()
            }
            // The response of an atomic operation has eight bytes (IBA 9.4.5).
            _ if request.len > len_limit || request.is_atomic() && request.len != 8 => Some(WcStatus::LocalLength),
            _ if request.fetches() && self.requester.initiator_depth == 0 => Some(WcStatus::LocalQp),
            _ => None,
        };
        if let Some(status) = failed {
            self.fail_request(status, objects);
            return None;
        }
        let requester = &mut self.requester;
        let packets = match request.operation {
            Operation::Bind { .. } | Operation::InvalidateLocal(_) => 0,
            _ if request.is_atomic() => 1,
            _ => (request.len as usize).div_ceil(self.mtu).max(1) as u32,
        };
        if request.fetches() && requester.fetches >= requester.initiator_depth {
            return None;
        }
        requester.fetches += u8::from(request.fetches());
        let numbered = Request { psn: requester.next_psn, packets, is_numbered: true, ..request };
        requester.next_psn = psn::add(requester.next_psn, packets);
        requester.queue[requester.cursor] = numbered;
        if packets == 0 {
            requester.cursor += 1;
            self.retire(objects);
        }
        Some(numbered)
    }

    fn bind(&mut self, operation: &Operation, objects: &mut Objects) -> Option<WcStatus> {
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
    fn retire(&mut self, objects: &mut Objects) {
        while let Some(request) = self.requester.front().copied() {
            if let Some(status) = request.failed {
                return self.fail(Some(status), None, objects);
            }
            if !request.is_complete(self.requester.unacked) {
                return;
            }
            self.requester.pop();
            if request.flags.signalled {
                let len = if request.fetches() { request.len } else { 0 };
                let done = WorkCompletion::new(request.id, WcStatus::Success, request.opcode(), len, self.number);
                objects.completions.add(self.send_cq, done);
            }
        }
    }

    fn send_packet(&self, request: &Request, objects: &mut Objects, port: &mut dyn Port) {
        let Some(path) = &self.path else { return };
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
            _ => (pick(SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY), rest.min(mtu)),
        };
        let number = psn::add(request.psn, offset);
        let is_idle_after = is_last && requester.cursor + 1 == requester.queue.len();
        let ack = is_last && request.flags.signalled || is_idle_after || number % (WINDOW / 4) == WINDOW / 4 - 1;
        let solicited = is_last && matches!(request.operation, Operation::Send | Operation::WriteImmediate { .. });
        let bth = Bth { opcode: code, solicited, pad: 0, qp: self.peer, ack, psn: number };
        objects.counters.sent += 1;
        let extension = &extension[..extension_len];
        port.send(path, wire::packet_len(extension.len(), len), &mut |packet| {
            wire::write(packet, path, bth, extension, len, |payload| match requester.inline(request) {
                Some(bytes) => payload.copy_from_slice(&bytes[from..from + payload.len()]),
                None => {
                    let gathered = objects.memory.gather(self.pd, requester.sges(request), from, payload);
                    debug_assert!(gathered.is_ok(), "checked before");
                }
            });
        });
    }

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
            Some((aeth, rest)) if has_aeth => (aeth, rest),
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
