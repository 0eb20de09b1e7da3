//! Execution of requests at both ends.

use super::{Answer, Buffer, Request};
use crate::completion::QueueSlot;
use crate::memory::{Denied, Need, atomic, covers, read, write};
use crate::objects::Bound;
use crate::world::World;
use linerate_rdma_provider::{AsyncEvent, Handle, Operation, QpState, WcOpcode, WcStatus, WorkCompletion};

/// Steps until a message that found no buffer is retried.
const NOT_READY_STEPS: u64 = 20;

/// Result of an attempt to execute a request.
enum Outcome {
    Answered(Answer),
    /// The peer has no buffer.
    NotReady,
    Broken,
}

impl Outcome {
    fn done(status: WcStatus) -> Self {
        Outcome::Answered(Answer::Done(status))
    }
}

impl World {
    /// Executes the next request of a queue pair. [`answer`](Self::answer) completes it.
    pub fn launch(&mut self, handle: Handle) {
        let qp = &mut self.qps[handle];
        let index = qp.launched;
        let request = qp.sends[index].clone();
        let is_first = !std::mem::replace(&mut qp.sends[index].is_tried, true);
        let outcome = match if is_first { self.due_fault(handle) } else { None } {
            Some(status) => Outcome::done(status),
            None => match request.operation {
                Operation::Bind { .. } => Outcome::done(self.bind(handle, &request)),
                Operation::InvalidateLocal(key) => Outcome::done(self.invalidate_local(handle, key)),
                _ => self.transfer(handle, &request),
            },
        };
        match outcome {
            Outcome::Answered(answer) => self.launched(handle, answer),
            Outcome::NotReady => self.not_ready(handle),
            Outcome::Broken => {}
        }
    }

    fn launched(&mut self, handle: Handle, answer: Answer) {
        let qp = &mut self.qps[handle];
        // If the queue pair is connected to itself, the peer's error is its own.
        if qp.state != QpState::Rts {
            return;
        }
        qp.sends[qp.launched].answer = Some(answer);
        qp.launched += 1;
        qp.not_ready = 0;
        qp.not_ready_until = 0;
        qp.is_stopped |= !matches!(answer, Answer::Done(WcStatus::Success) | Answer::ReadDue | Answer::Was(_));
    }

    /// Schedules a retry after receiver-not-ready, within the agreed number (IBA 9.7.5.2.8).
    fn not_ready(&mut self, handle: Handle) {
        let until = self.now + NOT_READY_STEPS;
        let qp = &mut self.qps[handle];
        self.counters.entry(qp.number).or_default().not_ready += 1;
        let retries = qp.sending.map_or(0, |sending| sending.rnr_retries);
        if retries < 7 && qp.not_ready >= retries {
            return self.launched(handle, Answer::Done(WcStatus::RnrRetryExceeded));
        }
        // With unlimited retries, only the waiting is recorded.
        qp.not_ready = if retries == 7 { 1 } else { qp.not_ready + 1 };
        qp.not_ready_until = until;
    }

    /// Binds a free type 2B window, by a key with its index, to a part of a region of the same domain that permits
    /// it.
    fn bind(&mut self, handle: Handle, request: &Request) -> WcStatus {
        let Operation::Bind { mw, rkey, mr, address, len, access } = request.operation else {
            return WcStatus::Bind;
        };
        let pd = self.qps[handle].pd;
        let Some(base) = self.mrs.get(mr) else { return WcStatus::Bind };
        let writes = access.remote_write || access.remote_atomic;
        let permits = base.pd == pd
            && base.access.bind
            && len > 0
            && (!writes || base.access.local_write)
            && covers(base.start as u64, base.len as u64, address, len);
        let Some(object) = self.mws.get_mut(mw) else { return WcStatus::Bind };
        let is_free = object.pd == pd && object.bound.is_none() && rkey >> 8 == object.index;
        if !permits || !is_free {
            return WcStatus::Bind;
        }
        object.key = rkey;
        object.bound = Some(Bound { qp: handle, mr, address, len, access });
        WcStatus::Success
    }

    /// Invalidates a window's key. The key of a region registered by a program cannot be invalidated.
    fn invalidate_local(&mut self, handle: Handle, key: u32) -> WcStatus {
        let Some(mw) = self.window_by_key(handle, key) else { return WcStatus::LocalQp };
        self.mws[mw].bound = None;
        WcStatus::Success
    }

    /// Executes a request that involves the peer.
    fn transfer(&mut self, handle: Handle, request: &Request) -> Outcome {
        let device = self.qps.device(handle);
        let (pd, awaits_first_message) = (self.qps[handle].pd, self.qps[handle].awaits_first_message);
        let is_iwarp = self.devices[device].is_iwarp();
        if awaits_first_message {
            self.break_pair(handle, Some(AsyncEvent::QpFatal(handle)));
            return Outcome::Broken;
        }
        if request.len() > u64::from(self.devices[device].config.message) {
            return Outcome::done(WcStatus::LocalLength);
        }
        // The response of an atomic operation has eight bytes (IBA 9.4.5).
        if request.is_atomic() && request.len() != 8 {
            return Outcome::done(WcStatus::LocalLength);
        }
        let need = match (request.fetches(), is_iwarp) {
            (false, _) => Need::Read,
            (true, false) => Need::Write,
            (true, true) => Need::Sink,
        };
        let bytes = match &request.inline {
            Some(bytes) => bytes.clone(),
            None => match self.local_spans(pd, &request.sges, need) {
                Ok(_) if request.fetches() => Vec::new(),
                Ok(spans) => read(&spans),
                Err(Denied) => return Outcome::done(WcStatus::LocalProtection),
            },
        };
        if request.fetches() && self.qps[handle].sending.is_none_or(|sending| sending.initiator_depth == 0) {
            return Outcome::done(WcStatus::LocalQp);
        }
        let Some(peer) = self.reachable(handle) else { return Outcome::Broken };
        self.note_first_message(peer);
        let (own, other) = (self.qps[handle].receiving, self.qps[peer].receiving);
        let is_too_long = own
            .zip(other)
            .is_some_and(|(own, other)| own.mtu > other.mtu && request.len() > u64::from(other.mtu.bytes()));
        if is_too_long {
            return Outcome::done(self.refuse(peer, WcStatus::RemoteInvalidRequest));
        }
        match request.operation {
            Operation::Send => self.receive(peer, &bytes, None),
            Operation::Write { address, rkey } => self.write(peer, &bytes, address, rkey, None),
            Operation::WriteImmediate { address, rkey, immediate } => {
                self.write(peer, &bytes, address, rkey, Some(immediate))
            }
            Operation::Read { address, rkey } => {
                let outstanding = self.qps[handle].reads_outstanding();
                self.accept_read(peer, outstanding, address, request.len(), rkey)
            }
            Operation::Bind { .. } | Operation::InvalidateLocal(_) | Operation::Datagram { .. } => {
                Outcome::done(WcStatus::LocalQp)
            }
            Operation::FetchAdd { address, rkey, add } => {
                let outstanding = self.qps[handle].reads_outstanding();
                self.atomic(peer, outstanding, address, rkey, |was| Some(was.wrapping_add(add)))
            }
            Operation::CompareSwap { address, rkey, expect, swap } => {
                let outstanding = self.qps[handle].reads_outstanding();
                self.atomic(peer, outstanding, address, rkey, |was| (was == expect).then_some(swap))
            }
        }
    }

    /// Reports the connection as established at the first message, possibly before the connection manager does (IBA
    /// 10.3.1.3).
    fn note_first_message(&mut self, peer: Handle) {
        let device = self.qps.device(peer);
        let qp = &mut self.qps[peer];
        qp.awaits_first_message = false;
        if qp.state == QpState::Rtr && !std::mem::replace(&mut qp.is_established_reported, true) {
            self.devices[device].events.push(AsyncEvent::CommEstablished(peer));
        }
    }

    /// Records an error at the responder, which reports this status to the requester.
    fn refuse(&mut self, peer: Handle, status: WcStatus) -> WcStatus {
        let event = match status {
            WcStatus::RemoteAccess => Some(AsyncEvent::QpAccessError(peer)),
            WcStatus::RemoteInvalidRequest => Some(AsyncEvent::QpRequestError(peer)),
            // Reported by the completion of the buffer.
            _ => None,
        };
        self.break_responder(peer, event);
        status
    }

    /// Moves the responder to ERROR because of an invalid request. Earlier READs are still answered.
    fn break_responder(&mut self, responder: Handle, event: Option<AsyncEvent>) {
        if let Some(requester) = self.peer_of(responder) {
            for index in 0..self.qps[requester].launched {
                if self.qps[requester].sends[index].answer == Some(Answer::ReadDue)
                    && let Some(status) = self.answer_read(requester, responder, index)
                {
                    self.qps[requester].sends[index].answer = Some(Answer::Done(status));
                }
            }
        }
        self.break_pair(responder, event);
    }

    pub fn take_buffer(&mut self, peer: Handle) -> Option<(Buffer, QueueSlot)> {
        let now = self.now;
        let Some(handle) = self.qps[peer].config.srq else {
            let receives = &mut self.qps[peer].receives;
            let buffer = receives.front().is_some_and(|buffer| buffer.from <= now).then(|| receives.pop_front())??;
            return Some((buffer, QueueSlot::Receive(peer)));
        };
        let buffers = &mut self.srq[handle].buffers;
        let buffer = buffers.front().is_some_and(|buffer| buffer.from <= now).then(|| buffers.pop_front())??;
        Some((buffer, QueueSlot::Shared(handle, peer)))
    }

    /// Delivers a SEND, or with `written` the immediate data of a WRITE. Both need a buffer. Without a buffer, the
    /// sender must retry; over iWARP, the connection ends.
    fn receive(&mut self, peer: Handle, bytes: &[u8], written: Option<u32>) -> Outcome {
        let pd = self.qps[peer].pd;
        let Some((buffer, slot)) = self.take_buffer(peer) else { return self.no_buffer(peer) };
        let room: u64 = buffer.sges.iter().map(|sge| u64::from(sge.len)).sum();
        let is_write = written.is_some();
        // Only the elements that the message reaches are checked.
        let mut left = if is_write { 0 } else { bytes.len() as u64 };
        let mut sges = buffer.sges.clone();
        for sge in &mut sges {
            sge.len = u64::from(sge.len).min(left) as u32;
            left -= u64::from(sge.len);
        }
        let (own, other) = match self.local_spans(pd, &sges, Need::Write) {
            _ if !is_write && bytes.len() as u64 > room => (WcStatus::LocalLength, WcStatus::RemoteInvalidRequest),
            Err(Denied) => (WcStatus::LocalProtection, WcStatus::RemoteOperation),
            Ok(spans) => {
                if !is_write {
                    write(&spans, bytes);
                }
                (WcStatus::Success, WcStatus::Success)
            }
        };
        let opcode = if is_write { WcOpcode::ReceiveWrite } else { WcOpcode::Receive };
        let mut completion = WorkCompletion::new(buffer.id, own, opcode, bytes.len() as u32, self.qps[peer].number);
        completion.immediate = written;
        self.complete(self.qps[peer].config.recv_cq, completion, slot);
        if own != WcStatus::Success {
            self.break_responder(peer, None);
        } else if !self.qps[peer].receives() {
            // The completion queue was full.
            return Outcome::done(WcStatus::RemoteOperation);
        }
        Outcome::done(other)
    }

    fn no_buffer(&mut self, peer: Handle) -> Outcome {
        if !self.devices[self.qps.device(peer)].is_iwarp() {
            return Outcome::NotReady;
        }
        Outcome::done(self.refuse(peer, WcStatus::RemoteInvalidRequest))
    }

    /// Returns true if the queue pair permits the access at all. iWARP has no such setting.
    fn permits(&self, peer: Handle, need: Need) -> bool {
        let access = self.qps[peer].access;
        let permits = match need {
            Need::RemoteRead => access.remote_read,
            Need::RemoteAtomic => return access.remote_atomic,
            _ => access.remote_write,
        };
        permits || self.devices[self.qps.device(peer)].is_iwarp()
    }

    fn write(&mut self, peer: Handle, bytes: &[u8], address: u64, key: u32, immediate: Option<u32>) -> Outcome {
        if !self.permits(peer, Need::RemoteWrite) {
            return Outcome::done(self.refuse(peer, WcStatus::RemoteInvalidRequest));
        }
        let Ok(spans) = self.remote_span(peer, address, bytes.len() as u64, key, Need::RemoteWrite) else {
            return Outcome::done(self.refuse(peer, WcStatus::RemoteAccess));
        };
        if immediate.is_none() {
            write(&spans, bytes);
            return Outcome::done(WcStatus::Success);
        }
        let outcome = self.receive(peer, bytes, immediate);
        if let Outcome::Answered(Answer::Done(WcStatus::Success)) = outcome {
            write(&spans, bytes);
        }
        outcome
    }

    fn accept_read(&mut self, peer: Handle, outstanding: usize, address: u64, len: u64, key: u32) -> Outcome {
        let answers = self.qps[peer].receiving.map_or(0, |receiving| usize::from(receiving.responder_resources));
        if !self.permits(peer, Need::RemoteRead) || outstanding >= answers {
            return Outcome::done(self.refuse(peer, WcStatus::RemoteInvalidRequest));
        }
        match self.remote_span(peer, address, len, key, Need::RemoteRead) {
            Ok(_) => Outcome::Answered(Answer::ReadDue),
            Err(Denied) => Outcome::done(self.refuse(peer, WcStatus::RemoteAccess)),
        }
    }

    /// Executes an atomic operation on arrival and keeps the old value: a lost response is repeated, the operation is
    /// not (IBA 9.4.5).
    fn atomic(
        &mut self,
        peer: Handle,
        outstanding: usize,
        address: u64,
        key: u32,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Outcome {
        let answers = self.qps[peer].receiving.map_or(0, |receiving| usize::from(receiving.responder_resources));
        let is_able = self.devices[self.qps.device(peer)].config.limits.atomics.any();
        if !is_able || !self.permits(peer, Need::RemoteAtomic) || outstanding >= answers {
            return Outcome::done(self.refuse(peer, WcStatus::RemoteInvalidRequest));
        }
        let Ok(spans) = self.remote_span(peer, address, 8, key, Need::RemoteAtomic) else {
            return Outcome::done(self.refuse(peer, WcStatus::RemoteAccess));
        };
        // Soft-RoCE checks the alignment after the key.
        let (true, &[span]) = (address.is_multiple_of(8), &spans[..]) else {
            return Outcome::done(self.refuse(peer, WcStatus::RemoteInvalidRequest));
        };
        Outcome::Answered(Answer::Was(atomic(span, change)))
    }

    /// Delivers the response to the oldest request. READ data is taken at this time.
    pub fn answer(&mut self, handle: Handle) {
        let status = match self.qps[handle].sends[0].answer {
            Some(Answer::Done(status)) => status,
            Some(Answer::Was(was)) => self.answer_atomic(handle, was),
            Some(Answer::ReadDue) => {
                let Some(peer) = self.reachable(handle) else { return };
                match self.answer_read(handle, peer, 0) {
                    Some(status) => status,
                    None => self.refuse(peer, WcStatus::RemoteAccess),
                }
            }
            None => return,
        };
        self.end_send(handle, status);
    }

    /// Stores the old value in the destination of the oldest request.
    fn answer_atomic(&mut self, handle: Handle, was: u64) -> WcStatus {
        let sges = &self.qps[handle].sends[0].sges;
        match self.local_spans(self.qps[handle].pd, sges, Need::Write) {
            Ok(into) => {
                write(&into, &was.to_ne_bytes());
                WcStatus::Success
            }
            Err(Denied) => WcStatus::LocalProtection,
        }
    }

    /// Reads the peer's memory for an accepted request, unless access is denied by now.
    fn answer_read(&mut self, handle: Handle, peer: Handle, index: usize) -> Option<WcStatus> {
        let request = &self.qps[handle].sends[index];
        let Operation::Read { address, rkey } = request.operation else { return None };
        let is_iwarp = self.devices[self.qps.device(handle)].is_iwarp();
        let need = if is_iwarp { Need::Sink } else { Need::Write };
        let from = self.remote_span(peer, address, request.len(), rkey, Need::RemoteRead).ok()?;
        let Ok(into) = self.local_spans(self.qps[handle].pd, &request.sges, need) else {
            return Some(WcStatus::LocalProtection);
        };
        write(&into, &read(&from));
        Some(WcStatus::Success)
    }
}
