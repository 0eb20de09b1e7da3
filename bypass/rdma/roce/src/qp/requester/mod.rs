//! Requester of a reliable connection (IBA 9.7.3 to 9.7.6): requests, their packets, and responses to them.

mod responses;
mod sending;

use super::ack_timeout;
use crate::table::{errno, require};
use crate::wire::{Aeth, psn, syndrome};
use linerate_rdma_provider::{Operation, QpCap, SendFlags, SendWr, Sge, WcOpcode, WcStatus};
use linerate_service::time::{Duration, Instant};
use std::collections::VecDeque;

/// Packets that may be unacknowledged. The requested acknowledgements of long messages arrive four times per window.
const WINDOW: u32 = 128;
/// Packets between requested acknowledgements in a stream, a power of two.
const ACK_INTERVAL: u32 = WINDOW / 4;
/// Time after which an acknowledgement of requests without a completion is requested. Most are acknowledged earlier,
/// with later requests.
const ACK_DELAY: Duration = Duration::from_millis(1);
/// Credits of a peer without end-to-end flow control: more messages than may be unacknowledged.
const UNLIMITED: i32 = i32::MAX;
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
    slot: u16,
    sges: u16,
    /// Sequence number of the first packet, and the number of packets, of the responses for a READ. Valid once the
    /// request is numbered.
    psn: u32,
    packets: u32,
    is_numbered: bool,
    /// The response carries data.
    fetches: bool,
    /// Received packets of the response to a READ or atomic operation.
    received: u32,
    /// Local error, reported once all earlier requests have completed.
    failed: Option<WcStatus>,
}

impl Request {
    pub fn opcode(&self) -> WcOpcode {
        self.operation.wc_opcode()
    }

    fn is_atomic(&self) -> bool {
        matches!(self.operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. })
    }

    fn is_complete(&self, unacked: u32) -> bool {
        let is_acknowledged = psn::difference(unacked, psn::add(self.psn, self.packets)) >= 0;
        self.is_numbered && is_acknowledged && (!self.fetches || self.received == self.packets)
    }
}

/// Posted requests in order. The slots of completed requests are used again first, as they are in the cache.
struct Queue {
    order: VecDeque<u16>,
    requests: Box<[Request]>,
    free: Vec<u16>,
}

impl Queue {
    fn new(capacity: u32) -> Self {
        let slots = 0..u16::try_from(capacity).unwrap_or(u16::MAX);
        let none = |slot| Request {
            id: 0,
            operation: Operation::Send,
            flags: SendFlags::default(),
            len: 0,
            slot,
            sges: 0,
            psn: 0,
            packets: 0,
            is_numbered: false,
            fetches: false,
            received: 0,
            failed: None,
        };
        Queue {
            order: VecDeque::with_capacity(slots.len()),
            requests: slots.clone().map(none).collect(),
            free: slots.rev().collect(),
        }
    }

    fn get(&self, index: usize) -> Option<&Request> {
        self.order.get(index).map(|slot| &self.requests[usize::from(*slot)])
    }

    fn iter(&self) -> impl Iterator<Item = &Request> {
        self.order.iter().map(|slot| &self.requests[usize::from(*slot)])
    }

    /// Removes the oldest request, which stays valid until the next call of [`push`](Self::push).
    fn pop(&mut self) -> Option<&Request> {
        let slot = self.order.pop_front()?;
        self.free.push(slot);
        Some(&self.requests[usize::from(slot)])
    }

    /// Appends a request that is not numbered yet, and whose other fields the caller sets, unless the queue is full.
    fn push(&mut self) -> Option<&mut Request> {
        let slot = self.free.pop()?;
        self.order.push_back(slot);
        let request = &mut self.requests[usize::from(slot)];
        // Fields are set in place. A copied structure would wait until its parts have left the store buffer.
        (request.is_numbered, request.received, request.failed) = (false, 0, None);
        Some(request)
    }

    fn clear(&mut self) {
        self.free.extend(self.order.drain(..));
    }
}

impl std::ops::Index<usize> for Queue {
    type Output = Request;

    fn index(&self, index: usize) -> &Request {
        &self.requests[usize::from(self.order[index])]
    }
}

impl std::ops::IndexMut<usize> for Queue {
    fn index_mut(&mut self, index: usize) -> &mut Request {
        &mut self.requests[usize::from(self.order[index])]
    }
}

/// Send queue, and the state of the sender.
pub(crate) struct Requester {
    queue: Queue,
    /// Elements and inline data, by slot of the request.
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    cap: QpCap,
    /// Index of the request to send from, and the packets of it that precede.
    cursor: usize,
    offset: u32,
    /// First number that no request has.
    next_psn: u32,
    /// First number that was never sent.
    sent_psn: u32,
    /// First number that is not acknowledged.
    unacked: u32,
    /// Sequence number of the newest numbered message, from 1 (SSN).
    message: u32,
    /// Messages for which the peer has a buffer after that one, or -1 after one without (LSN - SSN, IBA 9.7.7.2).
    credits: i32,
    /// True if the peer reports its buffers. Otherwise each acknowledgement renews [`UNLIMITED`].
    is_limited: bool,
    /// First number after the last packet that requested an acknowledgement or a response.
    asked_psn: u32,
    /// The next packet repeats the last one to request its acknowledgement.
    is_probing: bool,
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
            queue: Queue::new(cap.sends),
            sges: vec![none; (cap.sends * cap.send_sges) as usize].into_boxed_slice(),
            inline: vec![0; (cap.sends * cap.inline) as usize].into_boxed_slice(),
            cap,
            cursor: 0,
            offset: 0,
            next_psn: 0,
            sent_psn: 0,
            unacked: 0,
            message: 0,
            credits: 0,
            is_limited: true,
            asked_psn: 0,
            is_probing: false,
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
        (self.next_psn, self.sent_psn, self.unacked, self.asked_psn) = (first, first, first, first);
        (self.message, self.credits, self.is_limited) = (0, 0, true);
        self.timeout = ack_timeout(timeout);
        (self.retries, self.retries_left) = (retries, retries);
        (self.rnr_retries, self.rnr_retries_left) = (rnr_retries, rnr_retries);
        self.initiator_depth = initiator_depth;
    }

    pub fn reset(&mut self) {
        self.queue.clear();
        (self.cursor, self.offset, self.fetches) = (0, 0, 0);
        (self.deadline, self.rnr_until, self.repeated_from) = (None, None, None);
        self.is_probing = false;
    }

    /// Removes the oldest request.
    pub fn pop(&mut self) -> Option<&Request> {
        let request = self.queue.pop()?;
        if request.is_numbered && request.fetches {
            self.fetches -= 1;
        }
        match self.cursor {
            0 => self.offset = 0,
            _ => self.cursor -= 1,
        }
        Some(request)
    }

    pub fn front(&self) -> Option<&Request> {
        self.queue.get(0)
    }

    pub fn is_empty(&self) -> bool {
        self.queue.order.is_empty()
    }

    /// Returns whether a request may have packets to send.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.cursor < self.queue.order.len()
    }

    pub fn sges(&self, request: &Request) -> &[Sge] {
        &self.sges[usize::from(request.slot) * self.cap.send_sges as usize..][..request.sges.into()]
    }

    pub fn inline(&self, request: &Request) -> Option<&[u8]> {
        let width = self.cap.inline as usize;
        request.flags.is_inline().then(|| &self.inline[usize::from(request.slot) * width..][..request.len as usize])
    }

    /// Appends a request, with a copy of its elements and inline data.
    ///
    /// # Safety
    /// The elements of inline requests are memory of the caller.
    unsafe fn push(&mut self, request: &SendWr<'_>) -> std::io::Result<()> {
        require(request.sges.len() <= self.cap.send_sges as usize, libc::EINVAL)?;
        let len = match request.sges {
            [sge] => sge.len,
            sges => {
                let len = sges.iter().map(|sge| u64::from(sge.len)).sum::<u64>();
                u32::try_from(len).map_err(|_| errno(libc::EINVAL))?
            }
        };
        require(!request.flags.is_inline() || len <= self.cap.inline, libc::EINVAL)?;
        let into = self.queue.push().ok_or_else(|| errno(libc::ENOMEM))?;
        (into.id, into.operation, into.flags, into.len) = (request.id, request.operation, request.flags, len);
        into.sges = request.sges.len() as u16;
        into.fetches = matches!(request.operation, Operation::Read { .. }) || into.is_atomic();
        let slot = usize::from(into.slot);
        if !request.flags.is_inline() {
            self.sges[slot * self.cap.send_sges as usize..][..request.sges.len()].copy_from_slice(request.sges);
            return Ok(());
        }
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

    /// Adds the credits of an acknowledgement. Their number is rounded down, so that it may be less than before.
    fn grant(&mut self, aeth: Aeth) {
        match syndrome::decode_credits(aeth.syndrome) {
            Some(credits) if self.is_limited => {
                self.credits = self.credits.max(psn::difference(psn::add(aeth.msn, credits), self.message));
            }
            _ => (self.is_limited, self.credits) = (false, UNLIMITED),
        }
    }

    /// Returns whether a packet in flight has requested an acknowledgement or a response.
    fn has_asked(&self) -> bool {
        psn::difference(self.asked_psn, self.unacked) > 0
    }

    fn restart_timer(&mut self, now: Instant) {
        let wait = match self.timeout {
            _ if !self.is_in_flight() => None,
            timeout if self.has_asked() => timeout,
            timeout => Some(timeout.map_or(ACK_DELAY, |timeout| timeout.min(ACK_DELAY))),
        };
        self.deadline = wait.map(|wait| now + wait);
    }

    /// Acknowledges all packets before `to`. Returns the number of the first missing response before `to`, if any: the
    /// acknowledgement then implies its loss (IBA 9.7.5.1.1).
    fn acknowledge(&mut self, to: u32, now: Instant) -> Option<u32> {
        let is_missing = |request: &&Request| request.fetches && request.received < request.packets;
        let is_covered = |request: &&Request| request.is_numbered && psn::difference(to, request.psn) > 0;
        let missing = match self.fetches {
            0 => None,
            _ => self.queue.iter().take_while(is_covered).find(is_missing),
        };
        let missing = missing.map(|request| psn::add(request.psn, request.received));
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
            if !request.is_numbered || request.fetches || done <= self.offset as i32 {
                return;
            }
            if (done as u32) < request.packets {
                self.offset = done as u32;
                return;
            }
            (self.cursor, self.offset) = (self.cursor + 1, 0);
        }
    }

    /// Moves the cursor back to the last packet, to request its acknowledgement.
    fn ask_again(&mut self) {
        self.deadline = None;
        self.is_probing = true;
        // Packets that wait to be sent request it instead.
        if self.send_psn() == self.sent_psn {
            self.go_back(psn::add(self.sent_psn, psn::MASK));
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
            self.offset = if request.fetches { request.received } else { psn::difference(from, request.psn) as u32 };
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl super::Qp {
    /// Makes the newest request fail once the earlier ones have completed.
    pub fn fail_newest(&mut self, status: WcStatus, objects: &mut super::Objects) {
        if let Some(newest) = self.requester.queue.order.len().checked_sub(1) {
            self.requester.queue[newest].failed = Some(status);
        }
        self.retire(objects);
    }
}
