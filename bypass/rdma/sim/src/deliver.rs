//! What requests do, here and at the peer.

use super::completion::Place;
use super::memory::{Denied, Need, atomic, covers, read, write};
use super::objects::Bound;
use super::pair::{Answer, Buffer, Request};
use super::world::World;
use crate::calls::{AsyncEvent, Completed, Handle, Operation, QueuePairState, Status, WorkCompletion};

/// What a message carries besides its bytes.
#[derive(Debug, Clone, Copy)]
struct Extras {
    what: Completed,
    immediate: Option<u32>,
    invalidate: Option<u32>,
}

/// What came of an attempt to execute a request.
enum Outcome {
    Answered(Answer),
    /// The peer has no buffer.
    NotReady,
    /// The connection is over.
    Broken,
}

impl Outcome {
    fn done(status: Status) -> Self {
        Outcome::Answered(Answer::Done(status))
    }
}

impl World {
    /// Executes the next request of a queue pair. Its end comes with [`answer`](Self::answer).
    pub fn launch(&mut self, handle: Handle) {
        let pair = &mut self.pairs[handle];
        let index = pair.launched;
        let request = pair.sends[index].clone();
        let is_first = !std::mem::replace(&mut pair.sends[index].is_tried, true);
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
        let pair = &mut self.pairs[handle];
        // The peer's error may have been the queue pair's own, if it is connected to itself.
        if pair.state != QueuePairState::ReadyToSend {
            return;
        }
        pair.sends[pair.launched].answer = Some(answer);
        pair.launched += 1;
        pair.not_ready = 0;
        pair.not_ready_until = 0;
        pair.is_stopped |= !matches!(answer, Answer::Done(Status::Success) | Answer::ReadDue | Answer::Was(_));
    }

    /// The message is tried again, as often as the queue pair was told (IBA 9.7.5.2.8).
    fn not_ready(&mut self, handle: Handle) {
        let until = self.now + self.config.not_ready_steps;
        let pair = &mut self.pairs[handle];
        self.counters.entry(pair.number).or_default().not_ready += 1;
        let retries = pair.sending.map_or(0, |sending| sending.not_ready_retries);
        if retries < 7 && pair.not_ready >= retries {
            return self.launched(handle, Answer::Done(Status::ReceiverNotReady));
        }
        // For ever, it is only said that it waits.
        pair.not_ready = if retries == 7 { 1 } else { pair.not_ready + 1 };
        pair.not_ready_until = until;
    }

    /// Binds a window of type 2B that is free, by a key with its index, to a part of a region of the same domain that permits it.
    fn bind(&mut self, handle: Handle, request: &Request) -> Status {
        let Operation::Bind { window, remote_key, region, address, len, access } = request.operation else {
            return Status::Bind;
        };
        let domain = self.pairs[handle].domain;
        let Some(base) = self.regions.get(region) else { return Status::Bind };
        let writes = access.remote_write || access.remote_atomic;
        let permits = base.domain == domain
            && base.access.bind
            && len > 0
            && (!writes || base.access.local_write)
            && covers(base.start as u64, base.len as u64, address, len);
        let Some(object) = self.windows.get_mut(window) else { return Status::Bind };
        let is_free = object.domain == domain && object.bound.is_none() && remote_key >> 8 == object.index;
        if !permits || !is_free {
            return Status::Bind;
        }
        object.key = remote_key;
        object.bound = Some(Bound { pair: handle, region, address, len, access });
        Status::Success
    }

    /// Only windows can be made invalid: a region that a program registered cannot.
    fn invalidate_local(&mut self, handle: Handle, key: u32) -> Status {
        let Some(window) = self.window_by_key(handle, key) else { return Status::LocalQueuePair };
        self.windows[window].bound = None;
        Status::Success
    }

    /// A request that concerns the peer.
    fn transfer(&mut self, handle: Handle, request: &Request) -> Outcome {
        let device = self.pairs.device(handle);
        let (domain, hears_first) = (self.pairs[handle].domain, self.pairs[handle].hears_first);
        let is_iwarp = self.devices[device].is_iwarp();
        if hears_first {
            self.break_pair(handle, Some(AsyncEvent::PairFatal(handle)));
            return Outcome::Broken;
        }
        if request.len() > u64::from(self.devices[device].config.message) {
            return Outcome::done(Status::LocalLength);
        }
        // The answer of an atomic operation has eight bytes (IBA 9.4.5).
        if request.is_atomic() && request.len() != 8 {
            return Outcome::done(Status::LocalLength);
        }
        let need = match (request.fetches(), is_iwarp) {
            (false, _) => Need::Read,
            (true, false) => Need::Write,
            (true, true) => Need::Sink,
        };
        let bytes = match &request.inline {
            Some(bytes) => bytes.clone(),
            None => match self.local_spans(domain, &request.segments, need) {
                Ok(_) if request.fetches() => Vec::new(),
                Ok(spans) => read(&spans),
                Err(Denied) => return Outcome::done(Status::LocalProtection),
            },
        };
        if request.fetches() && self.pairs[handle].sending.is_none_or(|sending| sending.reads_asked == 0) {
            return Outcome::done(Status::LocalQueuePair);
        }
        let Some(peer) = self.reachable(handle) else { return Outcome::Broken };
        self.hear(peer);
        let (ours, theirs) = (self.pairs[handle].receiving, self.pairs[peer].receiving);
        let is_too_long = ours
            .zip(theirs)
            .is_some_and(|(ours, theirs)| ours.mtu > theirs.mtu && request.len() > u64::from(theirs.mtu.bytes()));
        if is_too_long {
            return Outcome::done(self.refuse(peer, Status::RemoteInvalidRequest));
        }
        let message = |what, immediate, invalidate| Extras { what, immediate, invalidate };
        match request.operation {
            Operation::Send => self.receive(peer, &bytes, message(Completed::Receive, None, None)),
            Operation::SendImmediate(bits) => self.receive(peer, &bytes, message(Completed::Receive, Some(bits), None)),
            Operation::SendInvalidate(key) => self.receive(peer, &bytes, message(Completed::Receive, None, Some(key))),
            Operation::Write { address, remote_key } => self.write(peer, &bytes, address, remote_key, None),
            Operation::WriteImmediate { address, remote_key, immediate } => {
                self.write(peer, &bytes, address, remote_key, Some(immediate))
            }
            Operation::Read { address, remote_key } => {
                let under_way = self.pairs[handle].reads_under_way();
                self.accept_read(peer, under_way, address, request.len(), remote_key)
            }
            Operation::Bind { .. } | Operation::InvalidateLocal(_) | Operation::Datagram { .. } => {
                Outcome::done(Status::LocalQueuePair)
            }
            Operation::FetchAdd { address, remote_key, add } => {
                let under_way = self.pairs[handle].reads_under_way();
                self.atomic(peer, under_way, address, remote_key, |was| Some(was.wrapping_add(add)))
            }
            Operation::CompareSwap { address, remote_key, expect, swap } => {
                let under_way = self.pairs[handle].reads_under_way();
                self.atomic(peer, under_way, address, remote_key, |was| (was == expect).then_some(swap))
            }
        }
    }

    /// A first message tells that the connection is there before the connection manager may have (IBA 10.3.1.3).
    fn hear(&mut self, peer: Handle) {
        let device = self.pairs.device(peer);
        let pair = &mut self.pairs[peer];
        pair.hears_first = false;
        if pair.state == QueuePairState::ReadyToReceive && !std::mem::replace(&mut pair.is_established_told, true) {
            self.devices[device].events.push(AsyncEvent::Established(peer));
        }
    }

    /// The responder has an error that it reports to the requester with this status.
    fn refuse(&mut self, peer: Handle, status: Status) -> Status {
        let event = match status {
            Status::RemoteAccess => Some(AsyncEvent::PairAccess(peer)),
            Status::RemoteInvalidRequest => Some(AsyncEvent::PairRequest(peer)),
            // The buffer's completion says it.
            _ => None,
        };
        self.break_responder(peer, event);
        status
    }

    /// Brings a queue pair to `Error` because of a request of the peer's. READs before that are still answered: they came first.
    fn break_responder(&mut self, responder: Handle, event: Option<AsyncEvent>) {
        if let Some(requester) = self.peer_of(responder) {
            for index in 0..self.pairs[requester].launched {
                if self.pairs[requester].sends[index].answer == Some(Answer::ReadDue)
                    && let Some(status) = self.answer_read(requester, responder, index)
                {
                    self.pairs[requester].sends[index].answer = Some(Answer::Done(status));
                }
            }
        }
        self.break_pair(responder, event);
    }

    pub fn take_buffer(&mut self, peer: Handle) -> Option<(Buffer, Place)> {
        let Some(handle) = self.pairs[peer].config.shared else {
            return Some((self.pairs[peer].receives.pop_front()?, Place::Receive(peer)));
        };
        let device = self.pairs.device(peer);
        let shared = &mut self.shared[handle];
        let buffer = shared.buffers.pop_front()?;
        if shared.buffers.len() < shared.limit as usize {
            shared.limit = 0;
            self.devices[device].events.push(AsyncEvent::SharedLimit(handle));
        }
        Some((buffer, Place::Shared(handle, peer)))
    }

    /// A message that needs a buffer. Without one, the peer is told to try again; over iWARP that ends the connection.
    fn receive(&mut self, peer: Handle, bytes: &[u8], extras: Extras) -> Outcome {
        let domain = self.pairs[peer].domain;
        let Some((buffer, place)) = self.take_buffer(peer) else { return self.no_buffer(peer) };
        let room: u64 = buffer.segments.iter().map(|segment| u64::from(segment.len)).sum();
        let is_write = extras.what == Completed::ReceiveWrite;
        // Only the segments that the message reaches are looked at.
        let mut left = if is_write { 0 } else { bytes.len() as u64 };
        let mut segments = buffer.segments.clone();
        for segment in &mut segments {
            segment.len = u64::from(segment.len).min(left) as u32;
            left -= u64::from(segment.len);
        }
        let (ours, theirs) = match self.local_spans(domain, &segments, Need::Write) {
            _ if !is_write && bytes.len() as u64 > room => (Status::LocalLength, Status::RemoteInvalidRequest),
            Err(Denied) => (Status::LocalProtection, Status::RemoteOperation),
            Ok(spans) => {
                if !is_write {
                    write(&spans, bytes);
                }
                match extras.invalidate.map(|key| self.window_by_key(peer, key)) {
                    Some(None) => (Status::LocalAccess, Status::RemoteAccess),
                    Some(Some(window)) => {
                        self.windows[window].bound = None;
                        (Status::Success, Status::Success)
                    }
                    None => (Status::Success, Status::Success),
                }
            }
        };
        let completion = WorkCompletion {
            id: buffer.id,
            status: ours,
            what: extras.what,
            len: bytes.len() as u32,
            pair: self.pairs[peer].number,
            immediate: extras.immediate,
            invalidated: extras.invalidate,
            source: 0,
            has_route: false,
        };
        self.complete(self.pairs[peer].config.receive_queue, completion, place);
        if ours != Status::Success {
            let event = (theirs == Status::RemoteAccess).then_some(AsyncEvent::PairAccess(peer));
            self.break_responder(peer, event);
        } else if !self.pairs[peer].receives() {
            // The completion found no room.
            return Outcome::done(Status::RemoteOperation);
        }
        Outcome::done(theirs)
    }

    fn no_buffer(&mut self, peer: Handle) -> Outcome {
        if !self.devices[self.pairs.device(peer)].is_iwarp() {
            return Outcome::NotReady;
        }
        Outcome::done(self.refuse(peer, Status::RemoteInvalidRequest))
    }

    /// Whether peers may do this to a queue pair at all. iWARP has no such setting.
    fn permits(&self, peer: Handle, need: Need) -> bool {
        let access = self.pairs[peer].access;
        let permits = match need {
            Need::RemoteRead => access.remote_read,
            Need::RemoteAtomic => return access.remote_atomic,
            _ => access.remote_write,
        };
        permits || self.devices[self.pairs.device(peer)].is_iwarp()
    }

    fn write(&mut self, peer: Handle, bytes: &[u8], address: u64, key: u32, immediate: Option<u32>) -> Outcome {
        if !self.permits(peer, Need::RemoteWrite) {
            return Outcome::done(self.refuse(peer, Status::RemoteInvalidRequest));
        }
        let Ok(spans) = self.remote_span(peer, address, bytes.len() as u64, key, Need::RemoteWrite) else {
            return Outcome::done(self.refuse(peer, Status::RemoteAccess));
        };
        let Some(immediate) = immediate else {
            write(&spans, bytes);
            return Outcome::done(Status::Success);
        };
        let extras = Extras { what: Completed::ReceiveWrite, immediate: Some(immediate), invalidate: None };
        let outcome = self.receive(peer, bytes, extras);
        if let Outcome::Answered(Answer::Done(Status::Success)) = outcome {
            write(&spans, bytes);
        }
        outcome
    }

    fn accept_read(&mut self, peer: Handle, under_way: usize, address: u64, len: u64, key: u32) -> Outcome {
        let answers = self.pairs[peer].receiving.map_or(0, |receiving| usize::from(receiving.reads_answered));
        if !self.permits(peer, Need::RemoteRead) || under_way >= answers {
            return Outcome::done(self.refuse(peer, Status::RemoteInvalidRequest));
        }
        match self.remote_span(peer, address, len, key, Need::RemoteRead) {
            Ok(_) => Outcome::Answered(Answer::ReadDue),
            Err(Denied) => Outcome::done(self.refuse(peer, Status::RemoteAccess)),
        }
    }

    /// An atomic operation is executed when it comes. What the number was is kept for the answer: the answer may be lost, but the
    /// operation is not repeated (IBA 9.4.5).
    fn atomic(
        &mut self,
        peer: Handle,
        under_way: usize,
        address: u64,
        key: u32,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Outcome {
        let answers = self.pairs[peer].receiving.map_or(0, |receiving| usize::from(receiving.reads_answered));
        let is_able = self.devices[self.pairs.device(peer)].config.limits.atomics.any();
        if !is_able || !self.permits(peer, Need::RemoteAtomic) || under_way >= answers {
            return Outcome::done(self.refuse(peer, Status::RemoteInvalidRequest));
        }
        let Ok(spans) = self.remote_span(peer, address, 8, key, Need::RemoteAtomic) else {
            return Outcome::done(self.refuse(peer, Status::RemoteAccess));
        };
        // Soft-RoCE looks at the address after the key, too.
        let (true, &[span]) = (address.is_multiple_of(8), &spans[..]) else {
            return Outcome::done(self.refuse(peer, Status::RemoteInvalidRequest));
        };
        Outcome::Answered(Answer::Was(atomic(span, change)))
    }

    /// The queue pair hears how its oldest request ended; a READ's bytes come with that, as they are now.
    pub fn answer(&mut self, handle: Handle) {
        let status = match self.pairs[handle].sends[0].answer {
            Some(Answer::Done(status)) => status,
            Some(Answer::Was(was)) => self.answer_atomic(handle, was),
            Some(Answer::ReadDue) => {
                let Some(peer) = self.reachable(handle) else { return };
                match self.answer_read(handle, peer, 0) {
                    Some(status) => status,
                    None => self.refuse(peer, Status::RemoteAccess),
                }
            }
            None => return,
        };
        self.end_send(handle, status);
    }

    /// Puts what the peer's number was where the oldest request has it.
    fn answer_atomic(&mut self, handle: Handle, was: u64) -> Status {
        let segments = &self.pairs[handle].sends[0].segments;
        match self.local_spans(self.pairs[handle].domain, segments, Need::Write) {
            Ok(into) => {
                write(&into, &was.to_ne_bytes());
                Status::Success
            }
            Err(Denied) => Status::LocalProtection,
        }
    }

    /// Reads the peer's memory for a request that it has accepted, unless it is denied by now.
    fn answer_read(&mut self, handle: Handle, peer: Handle, index: usize) -> Option<Status> {
        let request = &self.pairs[handle].sends[index];
        let Operation::Read { address, remote_key } = request.operation else { return None };
        let is_iwarp = self.devices[self.pairs.device(handle)].is_iwarp();
        let need = if is_iwarp { Need::Sink } else { Need::Write };
        let from = self.remote_span(peer, address, request.len(), remote_key, Need::RemoteRead).ok()?;
        let Ok(into) = self.local_spans(self.pairs[handle].domain, &request.segments, need) else {
            return Some(Status::LocalProtection);
        };
        write(&into, &read(&from));
        Some(Status::Success)
    }
}
