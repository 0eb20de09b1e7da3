//! Posting of requests and buffers.

use super::{Core, PostsReceives, Qp, Rts};
use crate::provider::{Operation, Provider, Sge};
use crate::verbs::srq::LIST;
use crate::verbs::{Atomic, BoundMw, Error, Message, Mw, PostRefused};
use linerate_bypass::arena::ArenaMut;
use linerate_service::Bytes;

impl<C: Provider> Qp<C, Rts> {
    /// Returns the number of requests that can be queued.
    #[inline]
    pub fn room(&self) -> usize {
        self.core.sends.room()
    }

    /// Returns true if the last requests may be unsignalled: only the completion of a later request then confirms them.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.core.sends.is_silent()
    }

    /// Queues a message and leaves it empty; [`flush`](Self::flush) posts it.
    #[inline]
    pub fn send(&mut self, message: &mut Message, signalled: bool) -> Result<(), PostRefused> {
        let Core { sends, mr, .. } = &mut *self.core;
        sends.send(mr, message, Operation::Send, signalled)
    }

    /// Returns the maximum size in bytes of a message for [`post_inline`](Self::post_inline), or 0 while requests are
    /// pending.
    #[inline]
    pub(crate) fn inline_room(&self) -> usize {
        if self.core.sends.has_pending() { 0 } else { self.core.sends.inline() }
    }

    /// Posts a message that `write` writes. The caller has checked [`room`](Self::room) and
    /// [`inline_room`](Self::inline_room).
    #[inline]
    pub(crate) fn post_inline(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), Error> {
        let Core { sends, mr, handle, .. } = &mut *self.core;
        // SAFETY: as in `flush`.
        unsafe { sends.post_inline(mr.pd().provider(), *handle, Operation::Send, write) }
    }

    /// Queues a message with immediate data, and leaves it empty.
    pub fn send_immediate(&mut self, message: &mut Message, immediate: u32) -> Result<(), PostRefused> {
        let Core { sends, mr, .. } = &mut *self.core;
        sends.send(mr, message, Operation::SendImmediate(immediate), true)
    }

    /// Queues a message that invalidates a window of the peer, which must be bound to its queue pair, and leaves the
    /// message empty.
    pub fn send_invalidate(&mut self, message: &mut Message, rkey: u32) -> Result<(), PostRefused> {
        let Core { sends, mr, .. } = &mut *self.core;
        sends.send(mr, message, Operation::SendInvalidate(rkey), true)
    }

    /// Queues a WRITE of a message to `address`, with immediate data if given, and leaves it empty.
    pub fn write(
        &mut self,
        message: &mut Message,
        address: u64,
        rkey: u32,
        immediate: Option<u32>,
    ) -> Result<(), PostRefused> {
        let Core { sends, mr, .. } = &mut *self.core;
        let operation = match immediate {
            Some(immediate) => Operation::WriteImmediate { address, rkey, immediate },
            None => Operation::Write { address, rkey },
        };
        sends.send(mr, message, operation, true)
    }

    /// Queues a READ from `address` into `into`. Returns `into` if the queue is full, `into` is not in the region, or
    /// there is no memory for the response.
    pub fn read(&mut self, into: ArenaMut, address: u64, rkey: u32) -> Result<(), ArenaMut> {
        let Core { sends, mr, .. } = &mut *self.core;
        if sends.room() == 0 {
            return Err(into);
        }
        sends.read(mr, into, address, rkey)
    }

    /// Queues an atomic operation on the eight bytes at `address`, a multiple of eight. [`Done::Was`] returns the old
    /// value, which the device stores in the first eight bytes of `into`. Returns `into` if the queue is full, or
    /// `into` is too short or not in the region.
    ///
    /// [`Done::Was`]: crate::verbs::Done::Was
    pub fn atomic(&mut self, into: ArenaMut, atomic: Atomic, address: u64, rkey: u32) -> Result<(), ArenaMut> {
        let Core { sends, mr, .. } = &mut *self.core;
        if sends.room() == 0 {
            return Err(into);
        }
        sends.atomic(mr, into, atomic.at(address, rkey))
    }

    /// Checks that the peer is alive with a READ of zero bytes, which needs no access rights (IBA 9.7.4.1.5):
    /// [`Done::Sent`] or an error follows. Does nothing if the queue is full, because outstanding requests detect a
    /// dead peer as well.
    ///
    /// [`Done::Sent`]: crate::verbs::Done::Sent
    pub fn probe(&mut self) {
        if self.core.sends.room() > 0 {
            self.core.sends.probe();
        }
    }

    /// Queues the bind of `mw` to `bytes`, which the peer may read with the returned R_Key in any message sent later;
    /// [`Done::BoundMw`] follows. With `alone`, the bytes get their own registration, for devices that do not enforce
    /// the bounds of a window. Returns the arguments if the queue is full, or the bytes are not in the region or
    /// cannot be registered.
    ///
    /// [`Done::BoundMw`]: crate::verbs::Done::BoundMw
    pub fn open(&mut self, mw: Mw<C>, bytes: Bytes, alone: bool) -> Result<u32, (Mw<C>, Bytes)> {
        let Core { sends, mr, .. } = &mut *self.core;
        if sends.room() == 0 {
            return Err((mw, bytes));
        }
        sends.open(mr, mw, bytes, alone)
    }

    /// Queues the invalidation of a window: [`Done::Closed`] follows. Returns the window if the queue is full.
    ///
    /// [`Done::Closed`]: crate::verbs::Done::Closed
    pub fn close(&mut self, opened: BoundMw<C>) -> Result<(), BoundMw<C>> {
        if self.core.sends.room() == 0 {
            return Err(opened);
        }
        self.core.sends.close(opened);
        Ok(())
    }

    /// Posts all pending requests. Returns the number of requests and of calls.
    #[inline]
    pub fn flush(&mut self) -> Result<(u64, u64), Error> {
        let Core { sends, mr, handle, .. } = &mut *self.core;
        // SAFETY: the queue pair is live, in RTS, and of the region's protection domain. The fields of `Core` are
        // dropped after the queue pair is destroyed.
        unsafe { sends.flush(mr.pd().provider(), *handle) }
    }
}

impl<C: Provider, S: PostsReceives> Qp<C, S> {
    /// Returns the number of buffers that can be posted.
    #[inline]
    pub fn recv_room(&self) -> usize {
        self.core.posted.capacity().min(self.core.cap.receives as usize) - self.core.posted.len()
    }

    /// Posts `buffers`, which must lie in the region, until the receive queue is full. Excess buffers are dropped.
    #[inline]
    pub fn post(&mut self, buffers: impl IntoIterator<Item = ArenaMut>) -> Result<(), Error> {
        let mut wanted = self.recv_room();
        let core = &mut *self.core;
        let mut buffers = buffers.into_iter();
        loop {
            let mut sges = heapless::Vec::<Sge, LIST>::new();
            while sges.len() < LIST.min(wanted)
                && let Some(buffer) = buffers.next()
            {
                let Some(sge) = core.mr.sge(&buffer) else { continue };
                let _ = sges.push(sge);
                core.posted.push_back(buffer);
            }
            if sges.is_empty() {
                return Ok(());
            }
            wanted -= sges.len();
            post_noted(core, &sges)?;
        }
    }
}

/// Posts the most recently recorded buffers, described by `sges`, with one call.
#[inline]
fn post_noted<C: Provider>(core: &mut Core<C>, sges: &[Sge]) -> Result<(), Error> {
    let count = sges.len();
    let start = core.posted.len() - count;
    let mut requests = heapless::Vec::new();
    core.owner.buffers(core.first + start as u32, sges, &mut requests);
    // SAFETY: the queue pair is live, in a state that accepts buffers. The buffers are owned blocks in a region that
    // is kept, until they complete or the queue pair is destroyed.
    let posted = unsafe { core.mr.pd().provider().post_recv(core.handle, &requests) };
    posted.map_err(|error| {
        core.posted.truncate(start + error.at.min(count));
        error.into()
    })
}
