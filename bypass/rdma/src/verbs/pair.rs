//! Reliable connected queue pairs, with their state in their type.

use super::queue::{NUMBERS, Owner};
use super::ring::{Ring, RingPlace, Target};
use super::sends::Sends;
use super::shared::LIST;
use super::{
    CmId, Completion, Done, Error, Exposed, Message, Opened, QueueHandle, Refused, Region, SharedHandle, Window,
    destroyed,
};
use crate::calls::{
    Access, Calls, Capacities, Completed, Handle, Operation, QueuePairConfig, QueuePairState, ReceiveRequest, Segment,
    Status, Transition,
};
use linerate_bypass::Bytes;
use linerate_bypass::arena::ArenaMut;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Nothing can be posted.
pub enum New {}
/// Buffers can be posted.
pub enum Init {}
/// Messages are received.
pub enum ReadyToReceive {}
/// Messages are sent.
pub enum ReadyToSend {}
/// All that is under way comes back, flushed.
pub enum Errored {}

/// States in which buffers can be posted.
pub trait TakesBuffers {}
impl TakesBuffers for Init {}
impl TakesBuffers for ReadyToReceive {}
impl TakesBuffers for ReadyToSend {}

/// What a queue pair is to be.
#[derive(Debug, Clone, Copy)]
pub struct PairConfig {
    /// Requests under way at a time.
    pub sends: u32,
    /// Buffers posted at a time, where they are not shared.
    pub receives: u32,
    /// Messages up to this many bytes are copied when they are posted, if the device can.
    pub inline: u32,
    /// A completion is asked for at every so many messages.
    pub signal_every: usize,
    /// Requests posted by one call at most.
    pub list: usize,
}

/// A queue pair in the state `S`.
///
/// It begins as [`New`], and each state leads to the next and to [`Errored`]:
///
/// ```compile_fail,E0599
/// # use linerate_rdma::{calls::Calls, verbs::{New, QueuePair, Message}};
/// fn too_early<C: Calls>(pair: &mut QueuePair<C, New>) {
///     pair.send(&mut Message::new(), false);
/// }
/// ```
/// ```compile_fail,E0599
/// # use linerate_rdma::{calls::{Calls, Transition}, verbs::{New, QueuePair}};
/// fn skips_a_state<C: Calls>(pair: QueuePair<C, New>, transition: &Transition) {
///     pair.ready_to_send(transition);
/// }
/// ```
/// A buffer that was posted is not there to be touched:
///
/// ```compile_fail,E0382
/// # use linerate_bypass::arena::ArenaMut;
/// # use linerate_rdma::{calls::Calls, verbs::{Init, QueuePair}};
/// fn touches_it<C: Calls>(pair: &mut QueuePair<C, Init>, mut buffer: ArenaMut) {
///     pair.post([buffer]).unwrap();
///     buffer[0] = 1;
/// }
/// ```
/// And a completion is used up:
///
/// ```compile_fail,E0382
/// # use linerate_rdma::{calls::Calls, verbs::{Completion, QueuePair, ReadyToSend}};
/// fn repeats_it<C: Calls>(pair: &mut QueuePair<C, ReadyToSend>, completion: Completion) {
///     pair.received(completion);
///     pair.received(completion);
/// }
/// ```
pub struct QueuePair<C: Calls, S> {
    core: Box<Core<C>>,
    state: PhantomData<fn() -> S>,
}

struct Core<C: Calls> {
    handle: Handle,
    number: u32,
    owner: Owner,
    capacities: Capacities,
    region: Region<C>,
    sends: Sends<C>,
    /// Buffers that are posted, in order, and the number of the first; `None` is one of memory that is exposed.
    posted: VecDeque<Option<ArenaMut>>,
    first: u32,
    /// Where the peer may write its messages: what is posted tells of them, and takes them up then.
    ring: Option<Ring<C>>,
    /// Where ours are written.
    target: Option<Target>,
    /// What requests have named.
    exposed: Vec<Exposed<C>>,
    /// Destroyed after the queue pair.
    queue: QueueHandle<C>,
    _shared: Option<SharedHandle<C>>,
}

impl<C: Calls> QueuePair<C, New> {
    /// A queue pair for memory of `region`, whose completions go to `queue`. Its buffers are those of `shared`, if there is one.
    pub fn new(
        region: &Region<C>,
        queue: &QueueHandle<C>,
        shared: Option<&SharedHandle<C>>,
        config: &PairConfig,
    ) -> Result<Self, Error> {
        let calls = region.domain().calls();
        let capacities = Capacities {
            sends: config.sends,
            receives: if shared.is_some() { 0 } else { config.receives },
            send_segments: super::MAX_PIECES as u32,
            receive_segments: 1,
            inline: config.inline,
        };
        let with = QueuePairConfig {
            send_queue: queue.0.handle,
            receive_queue: queue.0.handle,
            shared: shared.map(|shared| shared.0.handle),
            capacities,
        };
        // SAFETY: all that it names is live.
        let made = unsafe { calls.create_pair(region.domain().0.handle, &with) };
        let (handle, number, given) = made.map_err(Error::new("make a queue pair"))?;
        queue.0.pairs.fetch_add(1, Ordering::Relaxed);
        let owner = Owner::new();
        let inline = given.inline.min(config.inline) as usize;
        let core = Core {
            handle,
            number,
            owner,
            capacities: given,
            region: region.clone(),
            sends: Sends::new(owner, config.sends as usize, inline, config.signal_every, config.list),
            posted: VecDeque::with_capacity(capacities.receives as usize),
            first: 0,
            ring: None,
            target: None,
            exposed: Vec::new(),
            queue: queue.clone(),
            _shared: shared.cloned(),
        };
        Ok(QueuePair { core: Box::new(core), state: PhantomData })
    }

    /// Lets its peer write messages to `ring`, which has a slot for each buffer that is posted, in place of sending them.
    pub fn with_ring(mut self, ring: Ring<C>) -> Self {
        self.core.ring = Some(ring);
        self
    }

    /// Brings it into the state in which buffers can be posted.
    pub fn init(self, port: u8) -> Result<QueuePair<C, Init>, Error> {
        // Peers read through windows, which have their own rights; whoever is to read has to be let in here, too.
        let remote_write = self.core.ring.is_some();
        let access = Access { local_write: true, remote_read: true, remote_write, ..Access::default() };
        self.modify(&Transition::Init { port, partition: 0, access }, "make a queue pair ready for buffers")
    }

    /// As [`init`](Self::init), with what the connection manager knows.
    pub fn init_by(self, id: &CmId<C>) -> Result<QueuePair<C, Init>, Error> {
        self.modify_by(id, QueuePairState::Init, "make a queue pair ready for buffers")
    }
}

impl<C: Calls> QueuePair<C, Init> {
    /// As `init_by`, once more: what the peer may do, the connection manager knows only when a
    /// connection has been asked for.
    pub fn init_again_by(self, id: &CmId<C>) -> Result<QueuePair<C, Init>, Error> {
        self.modify_by(id, QueuePairState::Init, "tell a queue pair what its peer may do")
    }

    /// Lets it receive.
    pub fn ready_to_receive(self, transition: &Transition) -> Result<QueuePair<C, ReadyToReceive>, Error> {
        self.modify(transition, "make a queue pair ready to receive")
    }

    /// As [`ready_to_receive`](Self::ready_to_receive), with what the connection manager knows.
    pub fn ready_to_receive_by(self, id: &CmId<C>) -> Result<QueuePair<C, ReadyToReceive>, Error> {
        self.modify_by(id, QueuePairState::ReadyToReceive, "make a queue pair ready to receive")
    }

    /// It can send: iWARP's connection manager has seen to that, before it says that the connection is established. The device is
    /// not asked: siw, of Linux 6.1, does not tell a queue pair's state.
    pub fn made_ready_by_iwarp(self) -> QueuePair<C, ReadyToSend> {
        QueuePair { core: self.core, state: PhantomData }
    }
}

impl<C: Calls> QueuePair<C, ReadyToReceive> {
    /// Lets it send.
    pub fn ready_to_send(self, transition: &Transition) -> Result<QueuePair<C, ReadyToSend>, Error> {
        self.modify(transition, "make a queue pair ready to send")
    }

    /// As [`ready_to_send`](Self::ready_to_send), with what the connection manager knows.
    pub fn ready_to_send_by(self, id: &CmId<C>) -> Result<QueuePair<C, ReadyToSend>, Error> {
        self.modify_by(id, QueuePairState::ReadyToSend, "make a queue pair ready to send")
    }
}

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

    /// Asks whether the peer is there, by a READ of nothing, which takes nothing of it (IBA 9.7.4.1.5): [`Done::Sent`] comes, or an
    /// error. Without room for that something is under way, which tells as much.
    pub fn probe(&mut self) {
        if self.core.sends.room() > 0 {
            self.core.sends.probe();
        }
    }

    /// Lets the peer read `bytes` through `window` by the key that is returned, with what is sent from now on; [`Done::Opened`]
    /// comes. With `alone`, they are registered for this: on a device that does not see to it that a window is no larger than it
    /// was bound. All comes back when there is no room, or the bytes do not lie in the region, or cannot be registered.
    pub fn open(&mut self, window: Window<C>, bytes: Bytes, alone: bool) -> Result<u32, (Window<C>, Bytes)> {
        let Core { sends, region, .. } = &mut *self.core;
        if sends.room() == 0 {
            return Err((window, bytes));
        }
        sends.open(region, window, bytes, alone)
    }

    /// Closes what was opened: [`Done::Closed`] comes. It comes back when there is no room.
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

impl<C: Calls, S> QueuePair<C, S> {
    /// Its number, which the peer's has to know, and which its completions have.
    pub fn number(&self) -> u32 {
        self.core.number
    }

    /// What it holds.
    pub fn capacities(&self) -> Capacities {
        self.core.capacities
    }

    /// The device's name for it, as asynchronous events have it.
    pub fn handle(&self) -> Handle {
        self.core.handle
    }

    /// Whether a completion is of this queue pair, and not of one that had its number before.
    #[inline]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.is_of(self.core.owner)
    }

    /// What the completion of a request brings back. After an error, the queue pair is [`Errored`] in truth.
    ///
    /// # Panics
    /// If the completion is not of a request of this queue pair.
    #[inline]
    pub fn sent(&mut self, completion: Completion) -> Result<Done<C>, Status> {
        assert!(!completion.is_buffer() && completion.is_of(self.core.owner), "a completion of something else");
        self.core.sends.complete(completion.number(), completion.status(), completion.what())
    }

    /// The message that the completion of a buffer is about; an empty one, if the peer has done what cannot be.
    ///
    /// # Panics
    /// If the completion is not of a buffer of this queue pair's own.
    #[inline]
    pub fn received(&mut self, completion: Completion) -> Result<Bytes, Status> {
        let core = &mut *self.core;
        assert!(completion.is_buffer() && completion.is_of(core.owner), "a completion of something else");
        // They complete in order.
        assert_eq!(completion.number(), core.first, "a completion out of order");
        let mut buffer = core.posted.pop_front().flatten().expect("a buffer that is posted, and of its own");
        core.first = (core.first + 1) % NUMBERS;
        match completion.status() {
            Status::Success => {
                match (completion.what(), &mut core.ring) {
                    (Completed::ReceiveWrite, Some(ring)) => {
                        ring.take(completion.inner.immediate.map_or(0, |len| len as usize), &mut buffer);
                    }
                    (Completed::ReceiveWrite, None) => buffer.truncate(0),
                    _ => buffer.truncate(completion.inner.len as usize),
                }
                Ok(buffer.freeze())
            }
            status => Err(status),
        }
    }

    /// How long the message is that the completion of a buffer is about, which may be one of exposed memory; one of its own is gone.
    ///
    /// # Panics
    /// If the completion is not of a buffer of this queue pair's own.
    #[inline]
    pub fn arrived(&mut self, completion: Completion) -> Result<usize, Status> {
        let core = &mut *self.core;
        assert!(completion.is_buffer() && completion.is_of(core.owner), "a completion of something else");
        assert_eq!(completion.number(), core.first, "a completion out of order");
        let _ = core.posted.pop_front().expect("a buffer that is posted");
        core.first = (core.first + 1) % NUMBERS;
        match completion.status() {
            Status::Success => Ok(completion.inner.len as usize),
            status => Err(status),
        }
    }

    /// Requests that have not come back, as far as is known.
    pub fn requests_under_way(&self) -> usize {
        self.core.sends.len()
    }

    /// Buffers that have not come back.
    pub fn buffers_under_way(&self) -> usize {
        self.core.posted.len()
    }

    /// Lets all that is under way come back.
    pub fn fail(self) -> Result<QueuePair<C, Errored>, Error> {
        self.modify(&Transition::Error, "end a queue pair")
    }

    fn modify<T>(self, transition: &Transition, what: &'static str) -> Result<QueuePair<C, T>, Error> {
        // SAFETY: it is live.
        unsafe { self.core.region.domain().calls().modify(self.core.handle, transition) }.map_err(Error::new(what))?;
        Ok(QueuePair { core: self.core, state: PhantomData })
    }

    fn modify_by<T>(self, id: &CmId<C>, state: QueuePairState, what: &'static str) -> Result<QueuePair<C, T>, Error> {
        // SAFETY: both are live.
        unsafe { self.core.region.domain().calls().modify_by(self.core.handle, id.handle(), state) }
            .map_err(Error::new(what))?;
        Ok(QueuePair { core: self.core, state: PhantomData })
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
    let request = |at: usize| ReceiveRequest {
        id: core.owner.buffer((core.first + (start + at) as u32) % NUMBERS),
        segments: segments.get(at..=at).unwrap_or(&[]),
    };
    let requests: [ReceiveRequest<'_>; LIST] = std::array::from_fn(request);
    // SAFETY: it is live, in a state that takes buffers. The segments are blocks that we own, in a region that we keep, until they are
    // completed or the queue pair is destroyed; or memory that is exposed, to which nobody has a reference, kept until it is destroyed.
    let posted = unsafe { core.region.domain().calls().post_receive(core.handle, &requests[..count]) };
    posted.map_err(|error| {
        core.posted.truncate(start + error.at.min(count));
        error.into()
    })
}

impl<C: Calls> Drop for Core<C> {
    fn drop(&mut self) {
        let calls = self.region.domain().calls().clone();
        if self.sends.has_windows() || self.ring.as_ref().is_some_and(Ring::is_open) {
            // They go first: Linux' Soft-RoCE waits with the queue pair's end for those that are bound to it, for most of a
            // minute. In the state of error, none is any more.
            // SAFETY: it is live.
            if let Err(error) = unsafe { calls.modify(self.handle, &Transition::Error) } {
                tracing::debug!("end a queue pair: {error}");
            }
            self.sends.drop_windows();
            self.ring = None;
        }
        // SAFETY: made in `new`, and nothing else has the handle. What is under way, and the queues, go after this.
        destroyed("queue pair", unsafe { calls.destroy_pair(self.handle) });
        self.queue.0.pairs.fetch_sub(1, Ordering::Relaxed);
    }
}
