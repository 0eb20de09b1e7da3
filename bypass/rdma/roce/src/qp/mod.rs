//! Queue pairs: attributes, states, and the order of output.

pub(crate) mod datagrams;
pub(crate) mod dcqcn;
pub(crate) mod requester;
pub(crate) mod responder;

use self::datagrams::Address;
use self::dcqcn::RateLimit;
use crate::counters::Counters;
use crate::memory::Memory;
use crate::path::{Path, Port};
use crate::queues::{Buffer, Completions, RecvQueue, Srq};
use crate::table::{Table, require};
use linerate_rdma_provider::{Access, AsyncEvent, Handle, QpCap, QpState, WcOpcode, WcStatus, WorkCompletion};
use linerate_service::time::{Duration, Instant};
use requester::Requester;
use responder::Responder;
use std::io;

/// Packets that a queue pair sends before others have their turn.
pub(crate) const QUANTUM: usize = 16;

/// Objects that all queue pairs use.
pub(crate) struct Objects {
    pub memory: Memory,
    pub completions: Completions,
    pub srqs: Table<Srq>,
    pub addresses: Table<Address>,
    pub counters: Counters,
    /// Bytes of packets sent since the start of a turn at a limited rate.
    pub sent_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    Rc,
    Ud,
}

/// Result of a queue pair's turn to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// No packet is left to send now.
    All,
    /// More packets wait.
    Some,
}

/// Queue pair.
pub(crate) struct Qp {
    pub handle: Handle,
    pub number: u32,
    pub service: Service,
    pub pd: Handle,
    /// The protection domain, or its parent domain that the queue pair was created in.
    pub domain: Handle,
    pub send_cq: Handle,
    pub recv_cq: Handle,
    pub srq: Option<Handle>,
    pub cap: QpCap,
    pub state: QpState,
    /// Rights of the peer, from INIT on.
    pub access: Access,
    /// Q_Key of a UD queue pair.
    pub q_key: u32,
    /// Path to the peer of a connected queue pair, from RTR on.
    pub path: Option<Path>,
    pub peer: u32,
    /// Path MTU in bytes.
    pub mtu: usize,
    pub receives: RecvQueue,
    pub requester: Requester,
    pub responder: Responder,
    /// Limit of the rate after notifications of congestion.
    pub rate: Option<Box<RateLimit>>,
    /// Time at which a packet that waits for the rate is due, and for which the engine has an entry in its timer heap.
    pub due: Option<Instant>,
    /// The next packet with data is not due.
    pub is_paused: bool,
    /// Time of the last notification to the peer.
    pub notified: Option<Instant>,
    /// True while the queue pair is on the engine's list of those with packets to send.
    pub is_queued: bool,
    /// Time for which the engine has an entry in its timer heap.
    pub armed: Option<Instant>,
}

impl Qp {
    pub fn receives(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts)
    }

    #[inline(always)]
    pub fn complete_receive(&self, completion: WorkCompletion, objects: &mut Objects) {
        objects.completions.add(self.recv_cq, WorkCompletion { qp: self.number, ..completion });
    }

    /// Takes the next posted buffer.
    pub fn take_buffer(&mut self, objects: &mut Objects) -> bool {
        let into = &mut self.responder.buffer;
        match self.srq {
            None => self.receives.pop(into),
            Some(srq) => objects.srqs.get_mut(srq).is_ok_and(|srq| srq.queue.pop(into)),
        }
    }

    /// Moves the queue pair to ERROR, which flushes its requests and buffers. The oldest request ends with `first`.
    /// A program that did not request the transition receives `event`.
    pub fn fail(&mut self, first: Option<WcStatus>, event: Option<AsyncEvent>, objects: &mut Objects) {
        if matches!(self.state, QpState::Error | QpState::Reset) {
            return;
        }
        let had_received = self.state != QpState::Init;
        self.state = QpState::Error;
        self.requester.deadline = None;
        self.requester.rnr_until = None;
        if let Some(event) = event {
            objects.completions.events.push(event);
        }
        self.flush_requests(first, objects);
        if self.responder.has_buffer() {
            let id = self.responder.buffer.id;
            let flushed = WorkCompletion::new(id, WcStatus::Flushed, WcOpcode::Receive, 0, self.number);
            self.complete_receive(flushed, objects);
        }
        self.responder.end_message();
        self.flush_buffers(objects);
        if self.srq.is_some() && had_received {
            objects.completions.events.push(AsyncEvent::LastWqeReached(self.handle));
        }
    }

    fn flush_requests(&mut self, first: Option<WcStatus>, objects: &mut Objects) {
        let mut status = first.unwrap_or(WcStatus::Flushed);
        while let Some(request) = self.requester.pop() {
            let completion = WorkCompletion::new(request.id, status, request.opcode(), 0, self.number);
            objects.completions.add(self.send_cq, completion);
            status = WcStatus::Flushed;
        }
    }

    /// Flushes the buffers of the own receive queue.
    pub fn flush_buffers(&mut self, objects: &mut Objects) {
        let mut buffer = Buffer::default();
        while self.srq.is_none() && self.receives.pop(&mut buffer) {
            let flushed = WorkCompletion::new(buffer.id, WcStatus::Flushed, WcOpcode::Receive, 0, self.number);
            self.complete_receive(flushed, objects);
        }
    }

    /// Moves the queue pair to RESET: discards requests, buffers and completions (IBA 10.3.1.1).
    pub fn reset(&mut self, objects: &mut Objects) {
        for cq in [self.send_cq, self.recv_cq] {
            objects.completions.forget(cq, self.number);
        }
        self.state = QpState::Reset;
        self.access = Access::default();
        self.path = None;
        (self.rate, self.due, self.notified, self.is_paused) = (None, None, None, false);
        self.requester.reset();
        self.responder.reset();
        self.receives.clear();
    }

    /// Checks that a transition from one of the states `from` is possible.
    pub fn enter(&mut self, from: &[QpState], service: Service, to: QpState) -> io::Result<()> {
        require(from.contains(&self.state) && self.service == service, libc::EINVAL)?;
        self.state = to;
        Ok(())
    }

    /// Sends up to `quantum` packets while the port has room, responses first.
    pub fn transmit(&mut self, quantum: usize, now: Instant, objects: &mut Objects, port: &mut impl Port) -> Sent {
        for _ in 0..quantum {
            let (responds, requests) = (self.responder.is_pending(), self.requester.is_pending());
            if !responds && !requests {
                return Sent::All;
            }
            if !port.has_room() {
                return Sent::Some;
            }
            if responds && self.respond(objects, port) || requests && self.request(now, objects, port) {
                continue;
            }
            return Sent::All;
        }
        Sent::Some
    }

    /// Prepares a turn at a limited rate. Returns the number of packets that may be sent.
    #[cold]
    pub fn begin_at_rate(&mut self, now: Instant, objects: &mut Objects) -> usize {
        objects.sent_bytes = 0;
        self.is_paused = false;
        let Some(rate) = &mut self.rate else { return QUANTUM };
        rate.pass(now);
        if rate.is_over() {
            self.rate = None;
            return QUANTUM;
        }
        self.is_paused = rate.due() > now;
        // Acknowledgements are sent at any time.
        if self.is_paused { QUANTUM } else { 1 }
    }

    /// Records the packets of a turn at a limited rate. Returns the time at which the next one is due, if it waits.
    #[cold]
    pub fn end_at_rate(&mut self, now: Instant, objects: &mut Objects) -> Option<Instant> {
        let waits = self.responder.has_answer() || !self.requester.is_empty();
        let rate = self.rate.as_mut()?;
        if objects.sent_bytes > 0 {
            rate.sent(objects.sent_bytes, now);
        }
        Some(rate.due()).filter(|due| *due > now && waits && !self.is_queued)
    }

    /// Returns the time of the next action without input.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        match (self.requester.deadline, self.requester.rnr_until) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Handles a deadline that has passed. Returns true if packets wait to be sent.
    pub fn expire(&mut self, now: Instant, objects: &mut Objects) -> bool {
        if self.requester.rnr_until.is_some_and(|until| until <= now) {
            self.requester.rnr_until = None;
            return true;
        }
        if self.requester.deadline.is_some_and(|deadline| deadline <= now) {
            self.time_out(now, objects);
            return true;
        }
        false
    }
}

/// Returns the local ACK timeout: 4.096 µs times two to the power of `code`; none for 0 (IBA 9.9.2.4.1).
pub(crate) fn ack_timeout(code: u8) -> Option<Duration> {
    (code > 0).then(|| Duration::from_nanos(4096 << code.min(31)))
}

/// Returns the time of an RNR timer code (IBA table 45). Code 0 is the longest.
pub(crate) fn rnr_time(code: u8) -> Duration {
    const STEPS: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    Duration::from_micros(10 * STEPS[usize::from(code & 31)])
}
