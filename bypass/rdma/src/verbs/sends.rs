//! Send queue of a queue pair: pending and outstanding requests, and the memory they own.

use super::cq::{NUMBERS, WrIdSpace};
use super::pd::Registration;
use super::sink::SinkBlock;
use super::{Error, Mr, Mw};
use crate::provider::{Access, Handle, Operation, Provider, SendFlags, SendWr, Sge, WcOpcode, WcStatus};
use linerate_bypass::arena::ArenaMut;
use linerate_service::Bytes;
use std::collections::VecDeque;

/// Maximum number of chunks of a message.
pub const MAX_SGES: usize = 4;
/// Requests posted by one call.
const LIST: usize = 32;

/// Message of up to [`MAX_SGES`] chunks. All chunks lie in the region, unless the message is short enough to be sent
/// inline.
#[derive(Debug, Default)]
pub struct Message {
    pub(super) chunks: [Bytes; MAX_SGES],
    pub(super) count: usize,
    pub(super) len: usize,
}

impl Message {
    /// Returns an empty message.
    pub fn new() -> Self {
        Message::default()
    }

    /// Appends a chunk, or returns it if the message has [`MAX_SGES`] chunks.
    pub fn push(&mut self, chunk: Bytes) -> Result<(), Bytes> {
        let Some(slot) = self.chunks.get_mut(self.count) else { return Err(chunk) };
        self.len += chunk.len();
        *slot = chunk;
        self.count += 1;
        Ok(())
    }

    /// Returns the total length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the total length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the chunks.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.chunks[..self.count].iter()
    }
}

/// Reason that a message was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum PostRefused {
    #[error("no room in the send queue")]
    QueueFull,
    #[error("not in registered memory, and too long to be sent inline")]
    NotRegistered,
    #[error("longer than the port's MTU, which limits datagrams")]
    ExceedsMtu,
    #[error("the address handle is of another protection domain")]
    OtherPd,
    #[error("a queue pair number has 24 bits")]
    InvalidQpNum,
}

/// Resources that an outstanding request owns.
enum Held<C: Provider> {
    Chunks(#[expect(dead_code, reason = "dropped when the request completes")] [Bytes; MAX_SGES]),
    Read(ArenaMut),
    /// READ with the response in a sink block, to be copied to the arena block.
    ReadBySink(SinkBlock, ArenaMut),
    Atomic(ArenaMut),
    BoundMw(BoundMw<C>),
}

/// Bytes that the peer can read through a bound window. Dropping it deallocates the window first, which is slow.
pub struct BoundMw<C: Provider> {
    // Dropped before the registration that it is bound to.
    mw: Mw<C>,
    _alone: Option<Box<Registration<C>>>,
    bytes: Bytes,
}

impl<C: Provider> std::fmt::Debug for BoundMw<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opened({:?}, {} bytes)", self.mw, self.bytes.len())
    }
}

impl<C: Provider> BoundMw<C> {
    /// Returns the R_Key. The peer reads the bytes at their own address.
    pub fn rkey(&self) -> u32 {
        self.mw.key
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Atomic operation on eight bytes in the peer's memory, in the peer's byte order. It is atomic with respect to other
/// operations of the same device, but not to CPU writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Addition modulo 2⁶⁴.
    FetchAdd(u64),
    /// Replacement if the value is as expected.
    CompareSwap {
        /// Expected value.
        expect: u64,
        /// New value.
        swap: u64,
    },
}

impl Atomic {
    #[inline]
    pub(super) fn at(self, address: u64, rkey: u32) -> Operation {
        match self {
            Atomic::FetchAdd(add) => Operation::FetchAdd { address, rkey, add },
            Atomic::CompareSwap { expect, swap } => Operation::CompareSwap { address, rkey, expect, swap },
        }
    }
}

/// Result of a successful send completion.
#[derive(Debug)]
pub enum Done<C: Provider> {
    /// This message and all earlier ones were sent.
    Sent,
    /// Bytes that a READ returned.
    Read(Bytes),
    /// Value before an atomic operation.
    Was(u64),
    /// The window is bound: the peer can read the bytes.
    BoundMw(BoundMw<C>),
    /// The window is invalidated: the peer can no longer read the bytes.
    Closed(Mw<C>, Bytes),
}

/// Request that is not yet posted.
#[derive(Clone, Copy)]
struct PendingWr {
    operation: Operation,
    flags: SendFlags,
    /// Number of its scatter/gather elements.
    sges: usize,
}

/// Returns how many requests precede the one with this number, counted from number `first`.
fn ahead(first: u32, number: u32) -> usize {
    (number.wrapping_sub(first) % NUMBERS) as usize
}

pub(super) struct SendQueue<C: Provider> {
    owner: WrIdSpace,
    capacity: usize,
    inline: usize,
    /// Interval of signalled requests.
    every: usize,
    /// Maximum requests per post call.
    list: usize,
    /// Number of the first outstanding or pending request, and the count of all.
    first: u32,
    len: usize,
    /// Resources of those that own any, in order, with the numbers of the requests. Most messages are inline and own
    /// nothing.
    held: VecDeque<(u32, Held<C>)>,
    /// Number of trailing requests without a signalled successor.
    unsignalled: usize,
    pending: Vec<PendingWr>,
    /// Elements of the pending requests. The address of inline data is its position in `inline_data`.
    sges: Vec<Sge>,
    inline_data: Vec<u8>,
}

impl<C: Provider> SendQueue<C> {
    pub fn new(owner: WrIdSpace, capacity: usize, inline: usize, every: usize, list: usize) -> Self {
        SendQueue {
            owner,
            capacity,
            inline,
            every: every.clamp(1, capacity.max(1)),
            list: list.clamp(1, LIST),
            first: 0,
            len: 0,
            held: VecDeque::with_capacity(capacity),
            unsignalled: 0,
            pending: Vec::with_capacity(LIST),
            sges: Vec::with_capacity(LIST * MAX_SGES),
            inline_data: Vec::new(),
        }
    }

    pub fn room(&self) -> usize {
        self.capacity - self.len
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the maximum size of an inline message in bytes.
    pub fn inline(&self) -> usize {
        self.inline
    }

    /// Returns true if the last requests may be unsignalled: only the completion of a later request then confirms them.
    pub fn is_silent(&self) -> bool {
        self.unsignalled > 0
    }

    /// Returns the flags of the next request, which is signalled at intervals.
    fn signal(&mut self, flags: SendFlags) -> SendFlags {
        self.unsignalled += 1;
        let is_signalled = flags.is_signalled() || self.unsignalled >= self.every;
        if is_signalled {
            self.unsignalled = 0;
        }
        flags.with_signal(is_signalled)
    }

    fn push(&mut self, operation: Operation, sges: usize, flags: SendFlags, held: Option<Held<C>>) {
        let flags = self.signal(flags);
        if let Some(held) = held {
            self.held.push_back((self.number(self.len), held));
        }
        self.len += 1;
        self.pending.push(PendingWr { operation, flags, sges });
    }

    /// Returns the number of the request after `ahead` outstanding or pending ones.
    fn number(&self, ahead: usize) -> u32 {
        (self.first + ahead as u32) % NUMBERS
    }

    /// Keeps the first `len` requests, and drops the resources of the others.
    fn truncate(&mut self, len: usize) {
        while let Some((number, _)) = self.held.back()
            && ahead(self.first, *number) >= len
        {
            self.held.pop_back();
        }
        self.len = len;
    }

    /// Returns true if requests are queued that are not posted.
    #[inline]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Posts an inline message, which `write` writes into an empty vector. The caller has checked the length, and that
    /// there is room and no request is pending.
    ///
    /// # Safety
    /// As for [`flush`](Self::flush).
    #[inline]
    pub unsafe fn post_inline(
        &mut self,
        provider: &C,
        qp: Handle,
        operation: Operation,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Error> {
        debug_assert!(self.room() > 0 && !self.has_pending());
        write(&mut self.inline_data);
        debug_assert!(self.inline_data.len() <= self.inline);
        let sge = Sge { address: self.inline_data.as_ptr().addr() as u64, len: self.inline_data.len() as u32, lkey: 0 };
        let flags = self.signal(SendFlags::INLINE);
        let id = self.owner.send(self.number(self.len));
        let request = SendWr { id, sges: std::slice::from_ref(&sge), operation, flags };
        // SAFETY: the queue pair is live. Inline data is in `inline_data`, which is unchanged until the call returns.
        let posted = unsafe { provider.post_send(qp, std::slice::from_ref(&request)) };
        self.inline_data.clear();
        self.len += usize::from(posted.is_ok());
        Ok(posted?)
    }

    /// Queues a message and leaves it empty.
    pub fn send(
        &mut self,
        mr: &Mr<C>,
        message: &mut Message,
        operation: Operation,
        signalled: bool,
    ) -> Result<(), PostRefused> {
        if self.room() == 0 {
            return Err(PostRefused::QueueFull);
        }
        if message.len <= self.inline {
            // Copied at once, so that the chunks are free. The address is known when all pending data has been copied.
            let address = self.inline_data.len() as u64;
            for chunk in &mut message.chunks[..message.count] {
                self.inline_data.extend_from_slice(&std::mem::take(chunk));
            }
            self.sges.push(Sge { address, len: message.len as u32, lkey: 0 });
            (message.count, message.len) = (0, 0);
            self.push(operation, 1, SendFlags::INLINE.with_signal(signalled), None);
            return Ok(());
        }
        let before = self.sges.len();
        for chunk in &message.chunks[..message.count] {
            let Some(sge) = mr.sge(chunk) else {
                self.sges.truncate(before);
                return Err(PostRefused::NotRegistered);
            };
            self.sges.push(sge);
        }
        let Message { chunks, count, .. } = std::mem::take(message);
        self.push(operation, count, SendFlags::UNSIGNALLED.with_signal(signalled), Some(Held::Chunks(chunks)));
        Ok(())
    }

    /// Queues a READ into `into`. Returns `into` if it is not in the region, or the sink is exhausted.
    pub fn read(&mut self, mr: &Mr<C>, into: ArenaMut, address: u64, rkey: u32) -> Result<(), ArenaMut> {
        let (sge, held) = match mr.sink() {
            None => match mr.sge(&into) {
                Some(sge) => (sge, Held::Read(into)),
                None => return Err(into),
            },
            Some(sink) => match sink.alloc(into.len()) {
                Some((block, sge)) => (sge, Held::ReadBySink(block, into)),
                None => return Err(into),
            },
        };
        self.sges.push(sge);
        self.push(Operation::Read { address, rkey }, 1, SendFlags::SIGNALLED, Some(held));
        Ok(())
    }

    /// Queues an atomic operation, whose result is stored in the first eight bytes of `into`. Returns `into` if they
    /// are not in the region.
    pub fn atomic(&mut self, mr: &Mr<C>, into: ArenaMut, operation: Operation) -> Result<(), ArenaMut> {
        let Some(sge) = into.get(..8).and_then(|number| mr.sge(number)) else { return Err(into) };
        self.sges.push(sge);
        self.push(operation, 1, SendFlags::SIGNALLED, Some(Held::Atomic(into)));
        Ok(())
    }

    /// Queues a READ of zero bytes.
    pub fn probe(&mut self) {
        self.push(Operation::Read { address: 0, rkey: 0 }, 0, SendFlags::SIGNALLED, None);
    }

    /// Queues the bind of a window to the region, or with `alone` to a registration of the bytes alone, and returns
    /// the new R_Key. Returns the arguments if the bytes are not in the region or cannot be registered.
    pub fn open(&mut self, mr: &Mr<C>, mut mw: Mw<C>, bytes: Bytes, alone: bool) -> Result<u32, (Mw<C>, Bytes)> {
        let Some(part) = mr.part(&bytes) else { return Err((mw, bytes)) };
        let alone = match alone.then(|| mr.alone(&bytes)).transpose() {
            Ok(alone) => alone.map(Box::new),
            Err(error) => {
                tracing::debug!("{error}");
                return Err((mw, bytes));
            }
        };
        mw.key = mw.next_key();
        let bind = Operation::Bind {
            mw: mw.handle,
            rkey: mw.key,
            mr: alone.as_ref().map_or(part.handle, |alone| alone.handle),
            address: bytes.as_ptr().addr() as u64,
            len: bytes.len() as u64,
            access: Access { remote_read: true, ..Access::default() },
        };
        let key = mw.key;
        self.push(bind, 0, SendFlags::SIGNALLED, Some(Held::BoundMw(BoundMw { mw, _alone: alone, bytes })));
        Ok(key)
    }

    /// Queues the invalidation of a bound window.
    pub fn close(&mut self, opened: BoundMw<C>) {
        let invalidate = Operation::InvalidateLocal(opened.mw.key);
        self.push(invalidate, 0, SendFlags::SIGNALLED, Some(Held::BoundMw(opened)));
    }

    /// Queues an empty signalled message.
    pub fn mark(&mut self) {
        self.push(Operation::Send, 0, SendFlags::SIGNALLED, None);
    }

    /// Queues an empty signalled datagram, for a queue pair in the error state.
    pub fn mark_datagram(&mut self, address: Handle) {
        self.push(Operation::Datagram { address, qp: 0, key: 0 }, 0, SendFlags::SIGNALLED, None);
    }

    pub fn drop_pending(&mut self) {
        self.truncate(self.len - self.pending.len());
        self.clear_pending();
        // The remaining requests may include no signalled one.
        self.unsignalled = self.len;
    }

    fn clear_pending(&mut self) {
        self.pending.clear();
        self.sges.clear();
        self.inline_data.clear();
    }

    /// Resets the queue for reuse. No request is outstanding.
    pub fn reset(&mut self, owner: WrIdSpace) {
        debug_assert!(self.len == 0);
        (self.owner, self.first, self.unsignalled) = (owner, 0, 0);
    }

    /// Returns true if a window bind or invalidation is outstanding.
    pub fn has_windows(&self) -> bool {
        self.held.iter().any(|(_, held)| matches!(held, Held::BoundMw(_)))
    }

    /// Drops the windows of outstanding requests. In the error state of the queue pair, these requests have no effect.
    pub fn drop_windows(&mut self) {
        self.held.retain(|(_, held)| !matches!(held, Held::BoundMw(_)));
    }

    /// Posts all pending requests. Returns the number of requests and of calls.
    ///
    /// # Safety
    /// The queue pair is live, in RTS or ERROR, and of the region's protection domain; it is destroyed before this
    /// value is dropped.
    pub unsafe fn flush(&mut self, provider: &C, qp: Handle) -> Result<(u64, u64), Error> {
        if self.pending.is_empty() {
            return Ok((0, 0));
        }
        let mut result = Ok(());
        let mut posts = 0;
        let mut done = 0;
        let inline_data = self.inline_data.as_ptr().addr() as u64;
        let mut sges = &mut self.sges[..];
        while done < self.pending.len() {
            let count = (self.pending.len() - done).min(self.list);
            let first = self.len - self.pending.len() + done;
            // Neither an array nor collected: most calls post one request, and the initialization or moves of a whole
            // list would dominate them.
            let mut requests = heapless::Vec::<SendWr<'_>, LIST>::new();
            for (pending, number) in self.pending[done..done + count].iter().zip(self.first + first as u32..) {
                let (own, rest) = std::mem::take(&mut sges).split_at_mut(pending.sges);
                sges = rest;
                if pending.flags.is_inline() {
                    own.iter_mut().for_each(|sge| sge.address += inline_data);
                }
                let PendingWr { operation, flags, .. } = *pending;
                let _ = requests.push(SendWr { id: self.owner.send(number % NUMBERS), sges: own, operation, flags });
            }
            // SAFETY: the queue pair is live. The memory that the elements name is held in `held` until the request
            // completes or the queue pair is destroyed: immutable bytes or uniquely owned blocks. Inline data is in
            // `inline_data`, which is unchanged until the call returns.
            if let Err(error) = unsafe { provider.post_send(qp, &requests) } {
                done += error.at.min(count);
                result = Err(error.into());
                break;
            }
            done += count;
            posts += 1;
        }
        // The remaining requests were not posted.
        if result.is_err() {
            self.truncate(self.len - self.pending.len() + done);
        }
        self.clear_pending();
        result.map(|()| (done as u64, posts))
    }

    /// Completes request `number` and all earlier ones, and returns the result.
    ///
    /// # Panics
    /// If the request is not outstanding.
    pub fn complete(&mut self, number: u32, status: WcStatus, opcode: WcOpcode) -> Result<Done<C>, WcStatus> {
        let done = ahead(self.first, number);
        assert!(done < self.len - self.pending.len(), "completion of another queue");
        let mut own = None;
        while let Some((of, _)) = self.held.front()
            && ahead(self.first, *of) <= done
        {
            own = self.held.pop_front().filter(|(of, _)| *of == number);
        }
        self.first = self.number(done + 1);
        self.len -= done + 1;
        if status != WcStatus::Success {
            return Err(status);
        }
        Ok(match own.map(|(_, held)| held) {
            Some(Held::Read(block)) => Done::Read(block.freeze()),
            Some(Held::ReadBySink(block, mut into)) => {
                block.copy_to(&mut into);
                Done::Read(into.freeze())
            }
            Some(Held::Atomic(block)) => Done::Was(block.first_chunk().map_or(0, |number| u64::from_ne_bytes(*number))),
            Some(Held::BoundMw(BoundMw { mw, bytes, .. })) if opcode == WcOpcode::Invalidate => Done::Closed(mw, bytes),
            Some(Held::BoundMw(opened)) => Done::BoundMw(opened),
            _ => Done::Sent,
        })
    }
}
