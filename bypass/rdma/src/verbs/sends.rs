//! The send queue of a queue pair: what is posted there, and who owns it meanwhile.

use super::cq::{NUMBERS, Owner};
use super::pd::MrPart;
use super::{Error, Mr, Mw};
use crate::provider::{Access, Handle, Operation, Provider, SendFlags, SendWr, Sge, WcOpcode, WcStatus};
use linerate_bypass::Bytes;
use linerate_bypass::arena::ArenaMut;
use std::collections::VecDeque;

/// Pieces that one message has at most.
pub const MAX_SGES: usize = 4;
/// Requests posted by one call.
const LIST: usize = 32;

/// A message: its pieces in their order, all in the region (unless it is short enough to be sent inline).
#[derive(Debug, Default)]
pub struct Message {
    pub(super) pieces: [Bytes; MAX_SGES],
    pub(super) count: usize,
    pub(super) len: usize,
}

impl Message {
    /// A message without a piece.
    pub fn new() -> Self {
        Message::default()
    }

    /// Adds a piece. It comes back if there are [`MAX_SGES`].
    pub fn push(&mut self, piece: Bytes) -> Result<(), Bytes> {
        let Some(place) = self.pieces.get_mut(self.count) else { return Err(piece) };
        self.len += piece.len();
        *place = piece;
        self.count += 1;
        Ok(())
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.pieces[..self.count].iter()
    }
}

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostRefused {
    /// There is no room in the send queue.
    #[error("no room in the send queue")]
    QueueFull,
    /// It does not lie in the region, and is too long to be sent inline.
    #[error("not in registered memory, and too long to be sent inline")]
    NotRegistered,
    /// Of a datagram: it is longer than a packet may be.
    #[error("longer than the port's MTU, which a datagram cannot be")]
    ExceedsMtu,
    /// Of a datagram: the way is for queue pairs of another domain.
    #[error("the address is of another protection domain")]
    OtherPd,
    /// Of a datagram: no queue pair has such a number.
    #[error("a queue pair's number has 24 bits")]
    InvalidQpNum,
}

/// What belongs to a request while it is under way.
enum Held<C: Provider> {
    Nothing,
    Pieces(#[expect(dead_code, reason = "it is there to be dropped when the request is completed")] [Bytes; MAX_SGES]),
    Read(ArenaMut),
    Atomic(ArenaMut),
    BoundMw(BoundMw<C>),
}

/// Bytes that the peer may read through a window. Dropping it closes the window first, which is slow.
pub struct BoundMw<C: Provider> {
    // The window goes before what it is bound to.
    mw: Mw<C>,
    _alone: Option<Box<MrPart<C>>>,
    bytes: Bytes,
}

impl<C: Provider> std::fmt::Debug for BoundMw<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opened({:?}, {} bytes)", self.mw, self.bytes.len())
    }
}

impl<C: Provider> BoundMw<C> {
    /// The key by which the peer reads them, at their address.
    pub fn rkey(&self) -> u32 {
        self.mw.key
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// What is done with a number of eight bytes in the peer's memory, as its machine has numbers. Nothing else that its device does to
/// the number comes between; what a processor there writes may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Adds, modulo 2⁶⁴.
    FetchAdd(u64),
    /// Replaces it if it is what is expected.
    CompareSwap {
        /// What it is to be before.
        expect: u64,
        /// What it becomes then.
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

/// What comes back with a completion.
#[derive(Debug)]
pub enum Done<C: Provider> {
    /// A message, and all before it, has been sent.
    Sent,
    /// What was read.
    Read(Bytes),
    /// What the peer's number was before an atomic operation.
    Was(u64),
    /// The peer may read these bytes, until that is closed.
    BoundMw(BoundMw<C>),
    /// The window is closed: the peer reads these bytes no more.
    Closed(Mw<C>, Bytes),
}

/// A request that is not posted yet.
#[derive(Clone, Copy)]
struct Waiting {
    operation: Operation,
    flags: SendFlags,
    /// How many of the segments are its own.
    sges: usize,
}

pub(super) struct SendQueue<C: Provider> {
    owner: Owner,
    capacity: usize,
    inline: usize,
    /// How many requests one completion is asked for at least.
    every: usize,
    /// Requests posted by one call at most.
    list: usize,
    /// What is under way or waits to be posted, in order, and the number of the first.
    held: VecDeque<Held<C>>,
    first: u32,
    /// How many of the last ones have no completion coming.
    unsignalled: usize,
    waiting: Vec<Waiting>,
    sges: Vec<Sge>,
}

impl<C: Provider> SendQueue<C> {
    pub fn new(owner: Owner, capacity: usize, inline: usize, every: usize, list: usize) -> Self {
        SendQueue {
            owner,
            capacity,
            inline,
            every: every.clamp(1, capacity.max(1)),
            list: list.clamp(1, LIST),
            held: VecDeque::with_capacity(capacity),
            first: 0,
            unsignalled: 0,
            waiting: Vec::with_capacity(LIST),
            sges: Vec::with_capacity(LIST * MAX_SGES),
        }
    }

    pub fn room(&self) -> usize {
        self.capacity - self.held.len()
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether what was posted last may never be known to have been sent unless something follows.
    pub fn is_silent(&self) -> bool {
        self.unsignalled > 0
    }

    fn push(&mut self, operation: Operation, sges: usize, mut flags: SendFlags, held: Held<C>) {
        self.unsignalled += 1;
        flags.signalled |= self.unsignalled >= self.every;
        if flags.signalled {
            self.unsignalled = 0;
        }
        self.held.push_back(held);
        self.waiting.push(Waiting { operation, flags, sges });
    }

    /// Notes a message, which is empty then.
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
        let inline = message.len <= self.inline;
        let before = self.sges.len();
        for piece in &message.pieces[..message.count] {
            let sge = match mr.sge(piece) {
                Some(sge) => sge,
                // Its key is not looked at.
                None if inline => Sge { address: piece.as_ptr().addr() as u64, len: piece.len() as u32, lkey: 0 },
                None => {
                    self.sges.truncate(before);
                    return Err(PostRefused::NotRegistered);
                }
            };
            self.sges.push(sge);
        }
        let Message { pieces, count, .. } = std::mem::take(message);
        let flags = SendFlags { signalled, inline, ..SendFlags::default() };
        // Sent inline, they are needed until they are posted: `flush` lets them go then.
        self.push(operation, count, flags, Held::Pieces(pieces));
        Ok(())
    }

    /// Notes a request on memory that is exposed, and that somebody else keeps for as long as there is the queue pair.
    #[inline]
    pub fn exposed(&mut self, sge: Sge, operation: Operation, signalled: bool) -> Result<(), PostRefused> {
        if self.room() == 0 {
            return Err(PostRefused::QueueFull);
        }
        let is_carried = matches!(operation, Operation::Send | Operation::Write { .. });
        let inline = is_carried && sge.len as usize <= self.inline;
        self.sges.push(sge);
        self.push(operation, 1, SendFlags { signalled, inline, ..SendFlags::default() }, Held::Nothing);
        Ok(())
    }

    /// Notes a READ of what fills `into`. It comes back when it is not in the region.
    pub fn read(&mut self, mr: &Mr<C>, into: ArenaMut, address: u64, rkey: u32) -> Result<(), ArenaMut> {
        let Some(sge) = mr.sge(&into) else { return Err(into) };
        self.sges.push(sge);
        let flags = SendFlags { signalled: true, ..SendFlags::default() };
        self.push(Operation::Read { address, rkey }, 1, flags, Held::Read(into));
        Ok(())
    }

    /// Notes an atomic operation whose answer fills the first eight bytes of `into`. It comes back when they are not in the region.
    pub fn atomic(&mut self, mr: &Mr<C>, into: ArenaMut, operation: Operation) -> Result<(), ArenaMut> {
        let Some(sge) = into.get(..8).and_then(|number| mr.sge(number)) else { return Err(into) };
        self.sges.push(sge);
        let flags = SendFlags { signalled: true, ..SendFlags::default() };
        self.push(operation, 1, flags, Held::Atomic(into));
        Ok(())
    }

    /// Notes a READ of nothing.
    pub fn probe(&mut self) {
        let flags = SendFlags { signalled: true, ..SendFlags::default() };
        self.push(Operation::Read { address: 0, rkey: 0 }, 0, flags, Held::Nothing);
    }

    /// Notes the binding of a window, to the region or to a registration for the bytes `alone`, and returns the key that it will
    /// have. All comes back when the bytes are not in the region, or cannot be registered.
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
        let flags = SendFlags { signalled: true, ..SendFlags::default() };
        self.push(bind, 0, flags, Held::BoundMw(BoundMw { mw, _alone: alone, bytes }));
        Ok(key)
    }

    /// Notes the binding of a window that somebody else keeps for as long as there is the queue pair.
    pub fn bind(&mut self, bind: Operation) {
        self.push(bind, 0, SendFlags { signalled: true, ..SendFlags::default() }, Held::Nothing);
    }

    /// Notes that what is opened is to be closed.
    pub fn close(&mut self, opened: BoundMw<C>) {
        let invalidate = Operation::InvalidateLocal(opened.mw.key);
        self.push(invalidate, 0, SendFlags { signalled: true, ..SendFlags::default() }, Held::BoundMw(opened));
    }

    /// Notes a message of nothing, whose completion comes.
    pub fn mark(&mut self) {
        self.push(Operation::Send, 0, SendFlags { signalled: true, ..SendFlags::default() }, Held::Nothing);
    }

    /// What waits to be posted is not.
    pub fn forget_waiting(&mut self) {
        self.held.truncate(self.held.len() - self.waiting.len());
        self.waiting.clear();
        self.sges.clear();
        // Whether one of those that are left has a completion coming is not known any more.
        self.unsignalled = self.held.len();
    }

    /// It is as if nothing had ever been posted. Nothing is under way.
    pub fn begin_anew(&mut self, owner: Owner) {
        debug_assert!(self.held.is_empty());
        (self.owner, self.first, self.unsignalled) = (owner, 0, 0);
    }

    /// Whether a window is being opened or closed.
    pub fn has_windows(&self) -> bool {
        self.held.iter().any(|held| matches!(held, Held::BoundMw(_)))
    }

    /// Lets those windows go, of a queue pair that is in the state of error: what would bind them finds none.
    pub fn drop_windows(&mut self) {
        self.held.iter_mut().filter(|held| matches!(held, Held::BoundMw(_))).for_each(|held| *held = Held::Nothing);
    }

    /// Posts what waits. Returns how many requests that were, and by how many calls.
    ///
    /// # Safety
    /// The queue pair is live, in the state ReadyToSend or Error, and of the region's domain; it is destroyed before this is dropped.
    pub unsafe fn flush(&mut self, provider: &C, qp: Handle) -> Result<(u64, u64), Error> {
        if self.waiting.is_empty() {
            return Ok((0, 0));
        }
        let mut result = Ok(());
        let mut posts = 0;
        let mut done = 0;
        let mut sges = &self.sges[..];
        while done < self.waiting.len() {
            let count = (self.waiting.len() - done).min(self.list);
            let first = self.held.len() - self.waiting.len() + done;
            let mut requests =
                [SendWr { id: 0, sges: &[], operation: Operation::Send, flags: SendFlags::default() }; LIST];
            for (at, waiting) in self.waiting[done..done + count].iter().enumerate() {
                let (own, rest) = sges.split_at(waiting.sges);
                sges = rest;
                let number = (self.first + (first + at) as u32) % NUMBERS;
                requests[at] = SendWr {
                    id: self.owner.send(number),
                    sges: own,
                    operation: waiting.operation,
                    flags: waiting.flags,
                };
            }
            // SAFETY: the queue pair is live. What the segments name is held in `held` until the request is completed, or
            // the queue pair is gone: bytes that nobody writes, or a block that nobody else has. Or it is memory that is exposed,
            // to which nobody has a reference, and which is kept until the queue pair is gone.
            if let Err(error) = unsafe { provider.post_send(qp, &requests[..count]) } {
                done += error.at.min(count);
                result = Err(error.into());
                break;
            }
            done += count;
            posts += 1;
        }
        let start = self.held.len() - self.waiting.len();
        for (at, waiting) in self.waiting[..done].iter().enumerate() {
            if waiting.flags.inline {
                self.held[start + at] = Held::Nothing;
            }
        }
        // Of the others none is under way.
        self.held.truncate(start + done);
        self.waiting.clear();
        self.sges.clear();
        result.map(|()| (done as u64, posts))
    }

    /// What `completion` brings back. All before it is done, too.
    ///
    /// # Panics
    /// If it is not of a request that is under way.
    pub fn complete(&mut self, number: u32, status: WcStatus, opcode: WcOpcode) -> Result<Done<C>, WcStatus> {
        let ahead = (number.wrapping_sub(self.first) % NUMBERS) as usize;
        assert!(ahead < self.held.len() - self.waiting.len(), "a completion of something else");
        self.first = (self.first + ahead as u32 + 1) % NUMBERS;
        let held = self.held.drain(..=ahead).next_back();
        if status != WcStatus::Success {
            return Err(status);
        }
        Ok(match held {
            Some(Held::Read(block)) => Done::Read(block.freeze()),
            Some(Held::Atomic(block)) => Done::Was(block.first_chunk().map_or(0, |number| u64::from_ne_bytes(*number))),
            Some(Held::BoundMw(BoundMw { mw, bytes, .. })) if opcode == WcOpcode::Invalidate => Done::Closed(mw, bytes),
            Some(Held::BoundMw(opened)) => Done::BoundMw(opened),
            _ => Done::Sent,
        })
    }
}
