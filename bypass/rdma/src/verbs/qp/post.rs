//! What is posted to a queue pair: requests, and buffers.

use super::{Core, QueuePair, ReadyToSend, TakesBuffers};
use crate::calls::{Calls, Operation, Segment};
use crate::verbs::ring::{RingPlace, Target};
use crate::verbs::shared::LIST;
use crate::verbs::{Atomic, Error, Exposed, Message, Opened, Refused, Window};
use linerate_bypass::Bytes;
use linerate_bypass::arena::ArenaMut;
use std::ops::Range;

impl<C: Calls> QueuePair<C, ReadyToSend> {
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
    pub fn open_ring(&mut self) -> Option<RingPlace> {
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
    pub fn write_to(&mut self, place: RingPlace, slot: u32) {
        self.core.target = Target::new(place, slot);
    }

    /// Sends a message, at the next [`flush`](Self::flush), and leaves an empty one; with `signalled`, its completion comes.
    #[inline]
    pub fn send(&mut self, message: &mut Message, signalled: bool) -> Result<(), Refused> {
        let Core { sends, region, target, .. } = &mut *self.core;
        let Some(target) = target else { return sends.send(region, message, Operation::Send, signalled) };
        sends.send(region, message, target.write(message.len()), signalled)?;
        target.advance();
        Ok(())
    }

    /// Writes `bytes` to the peer's memory at `address`, and completes a buffer of its with `immediate`.
    #[cfg(test)]
    pub fn write_immediate(
        &mut self,
        bytes: Bytes,
        address: u64,
        remote_key: u32,
        immediate: u32,
    ) -> Result<(), Refused> {
        let mut message = Message::new();
        let _ = message.push(bytes);
        let Core { sends, region, .. } = &mut *self.core;
        sends.send(region, &mut message, Operation::WriteImmediate { address, remote_key, immediate }, true)
    }

    /// Sends what is in a `part` of `memory`, as [`send`](Self::send) does.
    #[inline]
    pub fn send_exposed(&mut self, memory: &Exposed<C>, part: Range<usize>, signalled: bool) -> Result<(), Refused> {
        self.exposed(memory, part, Operation::Send, signalled)
    }

    /// Writes what is in a `part` of `memory` to the peer's at `address`.
    #[inline]
    pub fn write_exposed(
        &mut self,
        memory: &Exposed<C>,
        part: Range<usize>,
        (address, remote_key): (u64, u32),
        signalled: bool,
    ) -> Result<(), Refused> {
        self.exposed(memory, part, Operation::Write { address, remote_key }, signalled)
    }

    /// Reads what the peer has at `address` into a `part` of `memory`.
    #[inline]
    pub fn read_exposed(
        &mut self,
        memory: &Exposed<C>,
        part: Range<usize>,
        (address, remote_key): (u64, u32),
        signalled: bool,
    ) -> Result<(), Refused> {
        self.exposed(memory, part, Operation::Read { address, remote_key }, signalled)
    }

    /// Does an atomic operation on the peer's number at `address`. What it was comes to the eight bytes at `at` of `memory`.
    #[inline]
    pub fn atomic_exposed(
        &mut self,
        memory: &Exposed<C>,
        at: usize,
        atomic: Atomic,
        (address, remote_key): (u64, u32),
        signalled: bool,
    ) -> Result<(), Refused> {
        self.exposed(memory, at..at + 8, atomic.at(address, remote_key), signalled)
    }

    #[inline]
    fn exposed(
        &mut self,
        memory: &Exposed<C>,
        part: Range<usize>,
        operation: Operation,
        signalled: bool,
    ) -> Result<(), Refused> {
        self.core.keep(memory);
        self.core.sends.exposed(memory.segment(part), operation, signalled)
    }

    /// Fills `into` with what the peer has at `address`. It comes back when there is no room, or it does not lie in the region.
    pub fn read(&mut self, into: ArenaMut, address: u64, remote_key: u32) -> Result<(), ArenaMut> {
        let Core { sends, region, .. } = &mut *self.core;
        if sends.room() == 0 {
            return Err(into);
        }
        sends.read(region, into, address, remote_key)
    }

    /// Does an atomic operation on the peer's number at `address`, which is a multiple of eight, and open to such: [`Done::Was`] comes
    /// with what it was, which the device puts into the first eight bytes of `into`. That comes back when there is no room, or it
    /// is shorter or does not lie in the region.
    ///
    /// [`Done::Was`]: crate::verbs::Done::Was
    pub fn atomic(&mut self, into: ArenaMut, atomic: Atomic, address: u64, remote_key: u32) -> Result<(), ArenaMut> {
        let Core { sends, region, .. } = &mut *self.core;
        if sends.room() == 0 {
            return Err(into);
        }
        sends.atomic(region, into, atomic.at(address, remote_key))
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

    /// Lets the peer read `bytes` through `window` by the key that is returned, with what is sent from now on; [`Done::Opened`]
    /// comes. With `alone`, they are registered for this: on a device that does not see to it that a window is no larger than it
    /// was bound. All comes back when there is no room, or the bytes do not lie in the region, or cannot be registered.
    ///
    /// [`Done::Opened`]: crate::verbs::Done::Opened
    pub fn open(&mut self, window: Window<C>, bytes: Bytes, alone: bool) -> Result<u32, (Window<C>, Bytes)> {
        let Core { sends, region, .. } = &mut *self.core;
        if sends.room() == 0 {
            return Err((window, bytes));
        }
        sends.open(region, window, bytes, alone)
    }

    /// Closes what was opened: [`Done::Closed`] comes. It comes back when there is no room.
    ///
    /// [`Done::Closed`]: crate::verbs::Done::Closed
    pub fn close(&mut self, opened: Opened<C>) -> Result<(), Opened<C>> {
        if self.core.sends.room() == 0 {
            return Err(opened);
        }
        self.core.sends.close(opened);
        Ok(())
    }

    /// Posts all that waits to be. Returns how many requests that were, and by how many calls.
    #[inline]
    pub fn flush(&mut self) -> Result<(u64, u64), Error> {
        let Core { sends, region, handle, .. } = &mut *self.core;
        // SAFETY: it is live, in this state, and of the region's domain; `Core`'s fields are dropped after it is destroyed.
        unsafe { sends.flush(region.domain().calls(), *handle) }
    }
}

impl<C: Calls, S: TakesBuffers> QueuePair<C, S> {
    /// Buffers that there is room for.
    #[inline]
    pub fn buffers_wanted(&self) -> usize {
        self.core.posted.capacity().min(self.core.capacities.receives as usize) - self.core.posted.len()
    }

    /// Posts `buffers`, which lie in the region, as far as there is room. Others are dropped.
    #[inline]
    pub fn post(&mut self, buffers: impl IntoIterator<Item = ArenaMut>) -> Result<(), Error> {
        let mut wanted = self.buffers_wanted();
        let core = &mut *self.core;
        let mut buffers = buffers.into_iter();
        let mut segments = [Segment { address: 0, len: 0, local_key: 0 }; LIST];
        loop {
            let mut count = 0;
            while count < LIST.min(wanted)
                && let Some(buffer) = buffers.next()
            {
                let Some(segment) = core.region.segment(&buffer) else { continue };
                segments[count] = segment;
                core.posted.push_back(Some(buffer));
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            wanted -= count;
            post_noted(core, &segments[..count])?;
        }
    }

    /// Posts `count` buffers, as far as there is room, which are all the same `part` of `memory`.
    pub fn post_exposed(&mut self, memory: &Exposed<C>, part: Range<usize>, count: usize) -> Result<(), Error> {
        let segments = [memory.segment(part); LIST];
        let mut wanted = self.buffers_wanted().min(count);
        let core = &mut *self.core;
        core.keep(memory);
        while wanted > 0 {
            let count = LIST.min(wanted);
            core.posted.extend((0..count).map(|_| None));
            post_noted(core, &segments[..count])?;
            wanted -= count;
        }
        Ok(())
    }
}

impl<C: Calls> Core<C> {
    /// Keeps `memory`, which a request is to name.
    #[inline]
    fn keep(&mut self, memory: &Exposed<C>) {
        if !self.exposed.iter().any(|kept| kept.is(memory)) {
            self.exposed.push(memory.clone());
        }
    }
}

/// Posts the buffers that were noted last, which `segments` are, as many as one call may.
#[inline]
fn post_noted<C: Calls>(core: &mut Core<C>, segments: &[Segment]) -> Result<(), Error> {
    let count = segments.len();
    let start = core.posted.len() - count;
    let requests = core.owner.buffers(core.first + start as u32, segments);
    // SAFETY: it is live, in a state that takes buffers. The segments are blocks that we own, in a region that we keep, until they are
    // completed or the queue pair is destroyed; or memory that is exposed, to which nobody has a reference, kept until it is destroyed.
    let posted = unsafe { core.region.domain().calls().post_receive(core.handle, &requests[..count]) };
    posted.map_err(|error| {
        core.posted.truncate(start + error.at.min(count));
        error.into()
    })
}
