//! Responder of a reliable connection (IBA 9.7.4, 9.7.5): requests of the peer, and responses to them.

use super::{Objects, Qp};
use crate::memory::{Denied, Need};
use crate::path::Port;
use crate::queues::{Buffer, RecvQueue};
use crate::wire::{self, Aeth, AtomicEth, Bth, Reth, opcode, psn, split_word, syndrome};
use linerate_rdma_provider::{AsyncEvent, QpState, WcOpcode, WcStatus, WorkCompletion};
use std::collections::VecDeque;

/// Message of which some packets have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    None,
    /// SEND into the taken buffer, with the number of bytes so far.
    Send {
        received: u64,
    },
    Write {
        address: u64,
        rkey: u32,
        len: u32,
        received: u32,
    },
}

/// Response that carries data. It is kept until `responder_resources` later ones exist, because it may be requested
/// again.
#[derive(Debug, Clone, Copy)]
struct Answer {
    psn: u32,
    packets: u32,
    /// First packet of the responses to the last request or duplicate, and the packets before the next one to send.
    from: u32,
    sent: u32,
    was_sent: bool,
    data: Data,
}

#[derive(Debug, Clone, Copy)]
enum Data {
    Read {
        address: u64,
        rkey: u32,
        len: u32,
    },
    /// Old value. The operation is not repeated (IBA 9.4.5).
    Atomic {
        was: u64,
    },
}

/// State of the receiver.
pub(crate) struct Responder {
    /// Expected sequence number.
    psn: u32,
    /// Number of completed messages.
    msn: u32,
    message: Message,
    /// Buffer of the message in progress.
    pub buffer: Buffer,
    is_ack_due: bool,
    nak: Option<(u32, u8)>,
    /// The gap in the sequence was reported.
    is_gap_reported: bool,
    answers: VecDeque<Answer>,
    /// Index of the first answer that may have packets to send.
    next_answer: usize,
    resources: usize,
    min_rnr_timer: u8,
    is_established_reported: bool,
}

/// Kind of a request packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    Read,
    Atomic,
}

/// Position of a packet in its message, and the extension header of the last one.
#[derive(Debug, Clone, Copy)]
struct Shape {
    kind: Kind,
    is_first: bool,
    is_last: bool,
    has_immediate: bool,
    invalidates: bool,
}

/// Shapes by opcode.
static SHAPES: [Option<Shape>; 32] = {
    let mut shapes = [None; 32];
    let mut code = 0;
    while code < shapes.len() {
        shapes[code] = shape(code as u8);
        code += 1;
    }
    shapes
};

const fn shape(code: u8) -> Option<Shape> {
    use opcode::*;
    let (kind, is_first, is_last) = match code {
        SEND_FIRST => (Kind::Send, true, false),
        SEND_MIDDLE => (Kind::Send, false, false),
        SEND_LAST | SEND_LAST_IMMEDIATE | SEND_LAST_INVALIDATE => (Kind::Send, false, true),
        SEND_ONLY | SEND_ONLY_IMMEDIATE | SEND_ONLY_INVALIDATE => (Kind::Send, true, true),
        WRITE_FIRST => (Kind::Write, true, false),
        WRITE_MIDDLE => (Kind::Write, false, false),
        WRITE_LAST | WRITE_LAST_IMMEDIATE => (Kind::Write, false, true),
        WRITE_ONLY | WRITE_ONLY_IMMEDIATE => (Kind::Write, true, true),
        READ_REQUEST => (Kind::Read, true, true),
        COMPARE_SWAP | FETCH_ADD => (Kind::Atomic, true, true),
        _ => return None,
    };
    let has_immediate =
        matches!(code, SEND_LAST_IMMEDIATE | SEND_ONLY_IMMEDIATE | WRITE_LAST_IMMEDIATE | WRITE_ONLY_IMMEDIATE);
    let invalidates = matches!(code, SEND_LAST_INVALIDATE | SEND_ONLY_INVALIDATE);
    Some(Shape { kind, is_first, is_last, has_immediate, invalidates })
}

/// Reason that a request is not executed.
enum Refusal {
    /// No buffer is posted.
    NotReady,
    InvalidRequest,
    Access,
    /// The buffer of the message completes with this status.
    Buffer(WcStatus),
    /// The completion queue is full.
    Overrun,
}

impl From<Denied> for Refusal {
    fn from(_: Denied) -> Self {
        Refusal::Access
    }
}

impl Responder {
    pub fn new(receives: &RecvQueue) -> Self {
        Responder {
            psn: 0,
            msn: 0,
            message: Message::None,
            buffer: receives.empty_buffer(),
            is_ack_due: false,
            nak: None,
            is_gap_reported: false,
            answers: VecDeque::new(),
            next_answer: 0,
            resources: 0,
            min_rnr_timer: 0,
            is_established_reported: false,
        }
    }

    /// Sets the attributes of RTR.
    pub fn start(&mut self, first: u32, resources: u8, min_rnr_timer: u8) {
        (self.psn, self.msn) = (first, 0);
        self.resources = resources.into();
        self.min_rnr_timer = min_rnr_timer;
        self.answers.reserve(self.resources);
    }

    pub fn reset(&mut self) {
        self.message = Message::None;
        self.answers.clear();
        self.next_answer = 0;
        (self.is_ack_due, self.nak, self.is_gap_reported) = (false, None, false);
        self.is_established_reported = false;
    }

    /// Returns whether a message has arrived.
    #[cfg(any(test, feature = "testing"))]
    pub fn has_received(&self) -> bool {
        self.msn > 0
    }

    pub fn has_buffer(&self) -> bool {
        matches!(self.message, Message::Send { .. })
    }

    pub fn end_message(&mut self) {
        self.message = Message::None;
    }

    /// Returns whether a response waits to be sent.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.is_ack_due || self.nak.is_some() || self.next_answer < self.answers.len()
    }

    /// Returns whether data wait to be sent.
    pub fn has_answer(&self) -> bool {
        self.answers.iter().skip(self.next_answer).any(|answer| answer.sent < answer.packets)
    }

    /// Makes room for another answer. Returns false if all of `resources` answers were never sent completely.
    fn admit_answer(&mut self) -> bool {
        // A request beyond them shows that the peer has the oldest response, even if it is to be repeated.
        while self.answers.len() >= self.resources && self.answers.front().is_some_and(|answer| answer.was_sent) {
            self.answers.pop_front();
            self.next_answer = self.next_answer.saturating_sub(1);
        }
        self.answers.len() < self.resources
    }
}

impl Qp {
    /// Processes a request of the peer.
    pub fn receive_request(&mut self, bth: &Bth, rest: &[u8], objects: &mut Objects) {
        let Some(shape) = SHAPES.get(usize::from(bth.opcode)).copied().flatten() else {
            return self.receive_unsupported(bth, objects);
        };
        match psn::difference(bth.psn, self.responder.psn) {
            0 => self.responder.is_gap_reported = false,
            1.. => return self.report_gap(objects),
            ..0 => return self.receive_duplicate(bth, shape, objects),
        }
        // The first message may precede the connection manager's confirmation (IBA 10.3.1.3).
        if self.state == QpState::Rtr && !std::mem::replace(&mut self.responder.is_established_reported, true) {
            objects.completions.events.push(AsyncEvent::CommEstablished(self.handle));
        }
        match self.execute(bth, shape, rest, objects) {
            Ok(packets) => {
                let responder = &mut self.responder;
                responder.psn = psn::add(responder.psn, packets);
                if shape.is_last {
                    responder.msn = psn::add(responder.msn, 1);
                }
                // The response to a READ or atomic operation acknowledges it.
                responder.is_ack_due |= bth.ack && matches!(shape.kind, Kind::Send | Kind::Write);
            }
            Err(refusal) => self.refuse(bth.psn, refusal, objects),
        }
    }

    /// Refuses a reserved or unsupported opcode in sequence, an error of class C (IBA 9.9.3.1).
    #[cold]
    fn receive_unsupported(&mut self, bth: &Bth, objects: &mut Objects) {
        match psn::difference(bth.psn, self.responder.psn) {
            0 => self.refuse(bth.psn, Refusal::InvalidRequest, objects),
            1.. => self.report_gap(objects),
            ..0 => objects.counters.malformed += 1,
        }
    }

    /// Requests the packets that are missing, once.
    fn report_gap(&mut self, objects: &mut Objects) {
        objects.counters.out_of_sequence += 1;
        let responder = &mut self.responder;
        if !std::mem::replace(&mut responder.is_gap_reported, true) {
            responder.nak = Some((responder.psn, syndrome::NAK_SEQUENCE));
        }
    }

    /// Executes a request packet in sequence. Returns the sequence numbers that it and its response occupy.
    fn execute(&mut self, bth: &Bth, shape: Shape, rest: &[u8], objects: &mut Objects) -> Result<u32, Refusal> {
        let is_continued = match self.responder.message {
            Message::None => false,
            Message::Send { .. } if shape.kind == Kind::Send => true,
            Message::Write { .. } if shape.kind == Kind::Write => true,
            _ => return Err(Refusal::InvalidRequest),
        };
        if is_continued == shape.is_first {
            return Err(Refusal::InvalidRequest);
        }
        match shape.kind {
            Kind::Send => self.execute_send(shape, rest, objects),
            Kind::Write => self.execute_write(shape, rest, objects),
            Kind::Read => self.execute_read(bth, rest, objects),
            Kind::Atomic => self.execute_atomic(bth, rest, objects),
        }
    }

    /// Returns whether the payload of a packet has the length that its position requires (IBA 9.7.4.1.6).
    fn is_len_valid(&self, shape: Shape, len: usize) -> bool {
        match (shape.is_first, shape.is_last) {
            (_, false) => len == self.mtu,
            (true, true) => len <= self.mtu,
            (false, true) => (1..=self.mtu).contains(&len),
        }
    }

    fn execute_send(&mut self, shape: Shape, rest: &[u8], objects: &mut Objects) -> Result<u32, Refusal> {
        let has_word = shape.has_immediate || shape.invalidates;
        let (word, payload) = match split_word(rest) {
            Some((word, payload)) if has_word => (Some(word), payload),
            None if has_word => return Err(Refusal::InvalidRequest),
            _ => (None, rest),
        };
        if !self.is_len_valid(shape, payload.len()) {
            return Err(Refusal::InvalidRequest);
        }
        if shape.is_first && shape.is_last && !shape.invalidates {
            let buffers = match self.srq {
                None => Some(&mut self.receives),
                Some(srq) => objects.srqs.get_mut(srq).ok().map(|srq| &mut srq.queue),
            };
            // A whole message needs no state. Errors are left to the general case.
            if let Some(buffers) = buffers
                && let Some((id, sge)) = buffers.front_alone()
                && payload.len() <= sge.len as usize
                && let Ok(span) = objects.memory.local(self.pd, sge, Need::LocalWrite)
            {
                span.write(0, payload);
                buffers.remove_front();
                self.complete_message(id, WcOpcode::Receive, payload.len() as u32, word, objects)?;
                return Ok(1);
            }
        }
        let received = if let Message::Send { received } = self.responder.message {
            received
        } else if self.take_buffer(objects) {
            0
        } else {
            return Err(Refusal::NotReady);
        };
        self.responder.message = Message::Send { received: received + payload.len() as u64 };
        let buffer = &self.responder.buffer;
        if received + payload.len() as u64 > buffer.len() {
            return Err(Refusal::Buffer(WcStatus::LocalLength));
        }
        if objects.memory.scatter(self.pd, &buffer.sges, received as usize, payload).is_err() {
            return Err(Refusal::Buffer(WcStatus::LocalProtection));
        }
        if shape.is_last {
            if let Some(key) = word.filter(|_| shape.invalidates) {
                objects.memory.invalidate(self.handle, key)?;
            }
            let len = (received + payload.len() as u64) as u32;
            let id = self.responder.buffer.id;
            self.complete_message(id, WcOpcode::Receive, len, word.filter(|_| shape.has_immediate), objects)?;
        }
        Ok(1)
    }

    /// Completes the buffer of a message.
    #[inline]
    fn complete_message(
        &mut self,
        id: u64,
        opcode: WcOpcode,
        len: u32,
        immediate: Option<u32>,
        objects: &mut Objects,
    ) -> Result<(), Refusal> {
        self.responder.end_message();
        let done = WorkCompletion::new(id, WcStatus::Success, opcode, len, self.number);
        self.complete_receive(WorkCompletion { immediate, ..done }, objects);
        if objects.completions.overrun.is_empty() { Ok(()) } else { Err(Refusal::Overrun) }
    }

    fn execute_write(&mut self, shape: Shape, rest: &[u8], objects: &mut Objects) -> Result<u32, Refusal> {
        let (address, rkey, len, received, rest) = match self.responder.message {
            Message::Write { address, rkey, len, received } => (address, rkey, len, received, rest),
            _ => {
                let (reth, rest) = Reth::parse(rest).ok_or(Refusal::InvalidRequest)?;
                if !self.access.remote_write {
                    return Err(Refusal::InvalidRequest);
                }
                let part = (reth.address, reth.len.into());
                objects.memory.remote(self.pd, self.handle, reth.rkey, part, Need::RemoteWrite)?;
                (reth.address, reth.rkey, reth.len, 0, rest)
            }
        };
        let (immediate, payload) = match split_word(rest) {
            Some((word, payload)) if shape.has_immediate => (Some(word), payload),
            None if shape.has_immediate => return Err(Refusal::InvalidRequest),
            _ => (None, rest),
        };
        let left = (len - received) as usize;
        let is_len_valid = if shape.is_last { payload.len() == left } else { payload.len() < left };
        if !is_len_valid || !self.is_len_valid(shape, payload.len()) {
            return Err(Refusal::InvalidRequest);
        }
        // The buffer of the immediate data is taken first: without it, the packet is sent again.
        if immediate.is_some() && !self.take_buffer(objects) {
            return Err(Refusal::NotReady);
        }
        let part = (address.wrapping_add(received.into()), payload.len() as u64);
        let span = objects.memory.remote(self.pd, self.handle, rkey, part, Need::RemoteWrite)?;
        span.write(0, payload);
        self.responder.message = Message::Write { address, rkey, len, received: received + payload.len() as u32 };
        if shape.is_last {
            self.responder.end_message();
            if immediate.is_some() {
                let id = self.responder.buffer.id;
                self.complete_message(id, WcOpcode::ReceiveWrite, len, immediate, objects)?;
            }
        }
        Ok(1)
    }

    fn execute_read(&mut self, bth: &Bth, rest: &[u8], objects: &mut Objects) -> Result<u32, Refusal> {
        let Some((Reth { address, rkey, len }, [])) = Reth::parse(rest) else { return Err(Refusal::InvalidRequest) };
        if !self.access.remote_read || len > super::requester::MAX_MESSAGE || !self.responder.admit_answer() {
            return Err(Refusal::InvalidRequest);
        }
        objects.memory.remote(self.pd, self.handle, rkey, (address, len.into()), Need::RemoteRead)?;
        let packets = (len as usize).div_ceil(self.mtu).max(1) as u32;
        let data = Data::Read { address, rkey, len };
        self.responder.answers.push_back(Answer { psn: bth.psn, packets, from: 0, sent: 0, was_sent: false, data });
        Ok(packets)
    }

    fn execute_atomic(&mut self, bth: &Bth, rest: &[u8], objects: &mut Objects) -> Result<u32, Refusal> {
        let AtomicEth { address, rkey, swap, compare } = AtomicEth::parse(rest).ok_or(Refusal::InvalidRequest)?;
        if !self.access.remote_atomic || !self.responder.admit_answer() {
            return Err(Refusal::InvalidRequest);
        }
        let span = objects.memory.remote(self.pd, self.handle, rkey, (address, 8), Need::RemoteAtomic)?;
        if !address.is_multiple_of(8) {
            return Err(Refusal::InvalidRequest);
        }
        let was = if bth.opcode == opcode::FETCH_ADD {
            span.update(|was| Some(was.wrapping_add(swap)))
        } else {
            span.update(|was| (was == compare).then_some(swap))
        };
        let data = Data::Atomic { was };
        self.responder.answers.push_back(Answer { psn: bth.psn, packets: 1, from: 0, sent: 0, was_sent: false, data });
        Ok(1)
    }

    /// Reports the refusal of the request numbered `number` to the peer. Except for a missing buffer, this ends the
    /// connection. Earlier responses are still sent.
    fn refuse(&mut self, number: u32, refusal: Refusal, objects: &mut Objects) {
        let (code, event) = match refusal {
            Refusal::NotReady => {
                objects.counters.not_ready += 1;
                // Packets after this one are discarded until it is sent again.
                self.responder.is_gap_reported = true;
                self.responder.nak = Some((number, syndrome::RNR_NAK | self.responder.min_rnr_timer));
                return;
            }
            Refusal::InvalidRequest => (syndrome::NAK_INVALID_REQUEST, Some(AsyncEvent::QpRequestError(self.handle))),
            Refusal::Access => (syndrome::NAK_REMOTE_ACCESS, Some(AsyncEvent::QpAccessError(self.handle))),
            Refusal::Buffer(status) => {
                let id = self.responder.buffer.id;
                self.responder.end_message();
                let failed = WorkCompletion::new(id, status, WcOpcode::Receive, 0, self.number);
                self.complete_receive(failed, objects);
                let is_long = status == WcStatus::LocalLength;
                (if is_long { syndrome::NAK_INVALID_REQUEST } else { syndrome::NAK_REMOTE_OPERATIONAL }, None)
            }
            Refusal::Overrun => (syndrome::NAK_REMOTE_OPERATIONAL, Some(AsyncEvent::QpFatal(self.handle))),
        };
        objects.counters.refused += 1;
        self.responder.nak = Some((number, code));
        self.fail(None, event, objects);
    }

    /// Repeats the response to a request that was executed before (IBA 9.7.5.1.4).
    fn receive_duplicate(&mut self, bth: &Bth, shape: Shape, objects: &mut Objects) {
        objects.counters.duplicates += 1;
        let responder = &mut self.responder;
        if matches!(shape.kind, Kind::Send | Kind::Write) {
            responder.is_ack_due = true;
            return;
        }
        let found = responder.answers.iter_mut().enumerate().find_map(|(index, answer)| {
            let offset = psn::difference(bth.psn, answer.psn);
            (offset >= 0 && (offset as u32) < answer.packets).then_some((index, answer, offset as u32))
        });
        if let Some((index, answer, offset)) = found {
            // A duplicate that begins later in the message is answered like a READ of the rest.
            if offset <= answer.sent {
                (answer.from, answer.sent) = (offset, offset);
            }
            responder.next_answer = responder.next_answer.min(index);
        }
    }

    /// Sends the next response packet, in the order of requests. Returns false if none waits.
    #[inline(never)]
    pub fn respond(&mut self, objects: &mut Objects, port: &mut impl Port) -> bool {
        while let Some(answer) = self.responder.answers.get(self.responder.next_answer).copied() {
            if answer.sent < answer.packets {
                if !self.is_paused {
                    self.send_answer(answer, objects, port);
                }
                return !self.is_paused;
            }
            self.responder.next_answer += 1;
        }
        let nak = self.responder.nak.take();
        let responder = &self.responder;
        let (number, code) = match nak {
            Some(nak) => nak,
            None if responder.is_ack_due => (psn::add(responder.psn, psn::MASK), self.credits()),
            None => return false,
        };
        self.responder.is_ack_due = false;
        let aeth = Aeth { syndrome: code, msn: self.responder.msn }.to_bytes();
        self.send_response(opcode::ACKNOWLEDGE, number, &aeth, 0, objects, port, |_| {});
        true
    }

    /// Returns the syndrome of an acknowledgement: the number of posted buffers, unless they are shared (IBA 9.7.7.2).
    fn credits(&self) -> u8 {
        syndrome::ACK
            | match self.srq {
                Some(_) => syndrome::UNLIMITED,
                None => syndrome::encode_credits(self.receives.len()),
            }
    }

    fn send_answer(&mut self, answer: Answer, objects: &mut Objects, port: &mut impl Port) {
        let number = psn::add(answer.psn, answer.sent);
        let aeth = Aeth { syndrome: self.credits(), msn: self.responder.msn }.to_bytes();
        match answer.data {
            Data::Atomic { was } => {
                let mut extension = [0; 12];
                extension[..4].copy_from_slice(&aeth);
                extension[4..].copy_from_slice(&was.to_be_bytes());
                self.send_response(opcode::ATOMIC_ACKNOWLEDGE, number, &extension, 0, objects, port, |_| {});
            }
            Data::Read { address, rkey, len } => {
                let from = answer.sent as usize * self.mtu;
                let part = (len as usize - from).min(self.mtu);
                let range = (address.wrapping_add(from as u64), part as u64);
                let Ok(span) = objects.memory.remote(self.pd, self.handle, rkey, range, Need::RemoteRead) else {
                    // The region or window has been removed.
                    self.responder.answers.truncate(self.responder.next_answer);
                    return self.refuse(number, Refusal::Access, objects);
                };
                let (code, extension) = match (answer.sent == answer.from, answer.sent + 1 == answer.packets) {
                    (true, true) => (opcode::READ_RESPONSE_ONLY, &aeth[..]),
                    (true, false) => (opcode::READ_RESPONSE_FIRST, &aeth[..]),
                    (false, true) => (opcode::READ_RESPONSE_LAST, &aeth[..]),
                    (false, false) => (opcode::READ_RESPONSE_MIDDLE, &[][..]),
                };
                self.send_response(code, number, extension, part, objects, port, |payload| span.read(0, payload));
            }
        }
        let answer = &mut self.responder.answers[self.responder.next_answer];
        answer.sent += 1;
        answer.was_sent |= answer.sent == answer.packets;
    }

    #[expect(clippy::too_many_arguments, reason = "fields of the packet")]
    fn send_response(
        &self,
        opcode: u8,
        number: u32,
        extension: &[u8],
        len: usize,
        objects: &mut Objects,
        port: &mut impl Port,
        write: impl FnOnce(&mut [u8]),
    ) {
        let Some(path) = &self.path else { return };
        let bth = Bth { opcode, qp: self.peer, psn: number, ..Bth::default() };
        objects.counters.sent += 1;
        let packet_len = wire::packet_len(extension.len(), len);
        objects.sent_bytes += packet_len;
        port.send(path, packet_len, |packet| {
            wire::write(packet, path, bth, extension, len, write);
        });
    }
}
