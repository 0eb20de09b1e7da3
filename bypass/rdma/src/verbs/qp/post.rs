//! What is posted to a queue pair: requests, and buffers.

use super::{Core, PostsReceives, Qp, Rts};
use crate::provider::{Operation, Provider, Sge};
use crate::verbs::ring::{RingAddr, Target};
use crate::verbs::srq::LIST;
use crate::verbs::{Atomic, BoundMw, Error, ExposedMr, Message, Mw, PostRefused};
use linerate_bypass::Bytes;
use linerate_bypass::arena::ArenaMut;
use std::ops::Range;

impl<C: Provider> Qp<C, Rts> {
    /// Requests that there is room for.
    #[inline]
    pub fn room(&self) -> usize {
        self.core.sends.room()
    }

    /// Whether what was sent last may never be known to have been, unless something follows.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.core.sends.is_silent()
    }

    /// Opens its ring to the peer, if it has one that is not open, by a request of its own. Returns what the peer has to know.
    pub fn open_ring(&mut self) -> Option<RingAddr> {
        let Core { sends, ring, .. } = &mut *self.core;
        if sends.room() == 0 {
            return None;
        }
        let (bind, place) = ring.as_mut()?.open()?;
        sends.bind(bind);
        Some(place)
    }

    /// Has messages written to the peer's ring at `place`, whose slots are `slot` bytes, in place of being sent. Who sends sees to it
    /// that the peer has taken up what was in a slot before, and that messages fit.
    pub fn write_to(&mut self, place: RingAddr, slot: u32) {
        self.core.target = Target::new(place, slot);
    }

    /// Sends a message, at the next [`flush`](Self::flush), and leaves an empty one; with `signalled`, its completion comes.
    #[inline]
    pub fn send(&mut self, message: &mut Message, signalled: bool) -> Result<(), PostRefused> {
        let Core { sends, mr, target, .. } = &mut *self.core;
        let Some(target) = target else { return sends.send(mr, message, Operation::Send, signalled) };
        sends.send(mr, message, target.write(message.len()), signalled)?;
        target.advance();
        Ok(())
    }

    /// Writes `bytes` to the peer's memory at `address`, and completes a buffer of its with `immediate`.
    #[cfg(test)]
    pub fn write_immediate(
        &mut self,
        bytes: Bytes,
        address: u64,
        rkey: u32,
        immediate: u32,
    ) -> Result<(), PostRefused> {
        let mut message = Message::new();
        let _ = message.push(bytes);
        let Core { sends, mr, .. } = &mut *self.core;
        sends.send(mr, &mut message, Operation::WriteImmediate { address, rkey, immediate }, true)
    }

    /// Sends what is in a `part` of `memory`, as [`send`](Self::send) does.
    #[inline]
    pub fn send_from_mr(
        &mut self,
        memory: &ExposedMr<C>,
        part: Range<usize>,
        signalled: bool,
    ) -> Result<(), PostRefused> {
        self.exposed(memory, part, Operation::Send, signalled)
    }

    /// Writes what is in a `part` of `memory` to the peer's at `address`.
    #[inline]
    pub fn write_from_mr(
        &mut self,
        memory: &ExposedMr<C>,
        part: Range<usize>,
        (address, rkey): (u64, u32),
        signalled: bool,
    ) -> Result<(), PostRefused> {
        self.exposed(memory, part, Operation::Write { address, rkey }, signalled)
    }

    /// Reads what the peer has at `address` into a `part` of `memory`.
    #[inline]
    pub fn read_into_mr(
        &mut self,
        memory: &ExposedMr<C>,
        part: Range<usize>,
        (address, rkey): (u64, u32),
        signalled: bool,
    ) -> Result<(), PostRefused> {
        self.exposed(memory, part, Operation::Read { address, rkey }, signalled)
    }

    /// Does an atomic operation on the peer's number at `address`. What it was comes to the eight bytes at `at` of `memory`.
    #[inline]
    pub fn atomic_into_mr(
        &mut self,
        memory: &ExposedMr<C>,
        at: usize,
        atomic: Atomic,
        (address, rkey): (u64, u32),
        signalled: bool,
    ) -> Result<(), PostRefused> {
        self.exposed(memory, at..at + 8, atomic.at(address, rkey), signalled)
    }

    #[inline]
    fn exposed(
        &mut self,
        memory: &ExposedMr<C>,
        part: Range<usize>,
        operation: Operation,
        signalled: bool,
    ) -> Result<(), PostRefused> {
        self.core.keep(memory);
        self.core.sends.exposed(memory.sge(part), operation, signalled)
    }

    /// Fills `into` with what the peer has at `address`. It comes back when there is no room, or it does not lie in the region.
    pub fn read(&mut self, into: ArenaMut, address: u64, rkey: u32) -> Result<(), ArenaMut> {
        let Core { sends, mr, .. } = &mut *self.core;
        if sends.room() == 0 {
            return Err(into);
        }
        sends.read(mr, into, address, rkey)
    }

    /// Does an atomic operation on the peer's number at `address`, which is a multiple of eight, and open to such: [`Done::Was`] comes
    /// with what it was, which the device puts into the first eight bytes of `into`. That comes back when there is no room, or it
    /// is shorter or does not lie in the region.
    ///
    /// [`Done::Was`]: crate::verbs::Done::Was
    pub fn atomic(&mut self, into: ArenaMut, atomic: Atomic, address: u64, rkey: u32) -> Result<(), ArenaMut> {
        let Core { sends, mr, .. } = &mut *self.core;
        if sends.room() == 0 {
            return Err(into);
        }
        sends.atomic(mr, into, atomic.at(address, rkey))
    }

    /// Asks whether the peer is there, by a READ of nothing, which takes nothing of it (IBA 9.7.4.1.5): [`Done::Sent`] comes, or an
    /// error. Without room for that something is under way, which tells as much.
    ///
    /// [`Done::Sent`]: crate::verbs::Done::Sent
    pub fn probe(&mut self) {
        if self.core.sends.room() > 0 {
            self.core.sends.probe();
        }
    }

    /// Lets the peer read `bytes` through `mw` by the key that is returned, with what is sent from now on; [`Done::BoundMw`]
    /// comes. With `alone`, they are registered for this: on a device that does not see to it that a window is no larger than it
    /// was bound. All comes back when there is no room, or the bytes do not lie in the region, or cannot be registered.
    ///
    /// [`Done::BoundMw`]: crate::verbs::Done::Opened
    pub fn open(&mut self, mw: Mw<C>, bytes: Bytes, alone: bool) -> Result<u32, (Mw<C>, Bytes)> {
        let Core { sends, mr, .. } = &mut *self.core;
        if sends.room() == 0 {
            return Err((mw, bytes));
        }
        sends.open(mr, mw, bytes, alone)
    }

    /// Closes what was opened: [`Done::Closed`] comes. It comes back when there is no room.
    ///
    /// [`Done::Closed`]: crate::verbs::Done::Closed
    pub fn close(&mut self, opened: BoundMw<C>) -> Result<(), BoundMw<C>> {
        if self.core.sends.room() == 0 {
            return Err(opened);
        }
        self.core.sends.close(opened);
        Ok(())
    }

    /// Posts all that waits to be. Returns how many requests that were, and by how many calls.
    #[inline]
    pub fn flush(&mut self) -> Result<(u64, u64), Error> {
        let Core { sends, mr, handle, .. } = &mut *self.core;
        // SAFETY: it is live, in this state, and of the region's domain; `Core`'s fields are dropped after it is destroyed.
        unsafe { sends.flush(mr.pd().provider(), *handle) }
    }
}

impl<C: Provider, S: PostsReceives> Qp<C, S> {
    /// Buffers that there is room for.
    #[inline]
    pub fn recv_room(&self) -> usize {
        self.core.posted.capacity().min(self.core.cap.receives as usize) - self.core.posted.len()
    }

    /// Posts `buffers`, which lie in the region, as far as there is room. Others are dropped.
    #[inline]
    pub fn post(&mut self, buffers: impl IntoIterator<Item = ArenaMut>) -> Result<(), Error> {
        let mut wanted = self.recv_room();
        let core = &mut *self.core;
        let mut buffers = buffers.into_iter();
        let mut sges = [Sge { address: 0, len: 0, lkey: 0 }; LIST];
        loop {
            let mut count = 0;
            while count < LIST.min(wanted)
                && let Some(buffer) = buffers.next()
            {
                let Some(sge) = core.mr.sge(&buffer) else { continue };
                sges[count] = sge;
                core.posted.push_back(Some(buffer));
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            wanted -= count;
            post_noted(core, &sges[..count])?;
        }
    }

    /// Posts `count` buffers, as far as there is room, which are all the same `part` of `memory`.
    pub fn post_recv_mr(&mut self, memory: &ExposedMr<C>, part: Range<usize>, count: usize) -> Result<(), Error> {
        let sges = [memory.sge(part); LIST];
        let mut wanted = self.recv_room().min(count);
        let core = &mut *self.core;
        core.keep(memory);
        while wanted > 0 {
            let count = LIST.min(wanted);
            core.posted.extend((0..count).map(|_| None));
            post_noted(core, &sges[..count])?;
            wanted -= count;
        }
        Ok(())
    }
}

impl<C: Provider> Core<C> {
    /// Keeps `memory`, which a request is to name.
    #[inline]
    fn keep(&mut self, memory: &ExposedMr<C>) {
        if !self.exposed.iter().any(|kept| kept.is(memory)) {
            self.exposed.push(memory.clone());
        }
    }
}

/// Posts the buffers that were noted last, which `sges` are, as many as one call may.
#[inline]
fn post_noted<C: Provider>(core: &mut Core<C>, sges: &[Sge]) -> Result<(), Error> {
    let count = sges.len();
    let start = core.posted.len() - count;
    let requests = core.owner.buffers(core.first + start as u32, sges);
    // SAFETY: it is live, in a state that takes buffers. The segments are blocks that we own, in a region that we keep, until they are
    // completed or the queue pair is destroyed; or memory that is exposed, to which nobody has a reference, kept until it is destroyed.
    let posted = unsafe { core.mr.pd().provider().post_recv(core.handle, &requests[..count]) };
    posted.map_err(|error| {
        core.posted.truncate(start + error.at.min(count));
        error.into()
    })
}
