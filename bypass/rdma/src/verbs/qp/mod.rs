//! Reliable connected queue pairs, with their state in their type.

mod done;
mod post;
mod reset;

use super::queue::Owner;
use super::ring::{Ring, Target};
use super::sends::Sends;
use super::{CmId, Error, Exposed, QueueHandle, Region, SharedHandle, destroyed};
use crate::calls::{Access, Calls, Capacities, Handle, QueuePairConfig, QueuePairState, Transition};
use linerate_bypass::arena::ArenaMut;
use std::collections::VecDeque;
use std::marker::PhantomData;
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
/// All has come back.
pub enum Drained {}

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
/// It begins as [`New`], and each state leads to the next and to [`Errored`]; from there by [`Drained`] to `New` again:
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
/// ```compile_fail,E0599
/// # use linerate_rdma::{calls::Calls, verbs::{Errored, QueuePair}};
/// fn resets_too_early<C: Calls>(pair: QueuePair<C, Errored>) {
///     pair.reset();
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
    /// Whether the peer may do atomic operations.
    has_counters: bool,
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
            has_counters: false,
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

    /// Lets its peer do atomic operations on the domain's [`Counters`](super::Counters), where the connection manager does not say
    /// what it may.
    pub fn with_counters(mut self) -> Self {
        self.core.has_counters = true;
        self
    }

    /// Brings it into the state in which buffers can be posted.
    pub fn init(self, port: u8) -> Result<QueuePair<C, Init>, Error> {
        // Peers read through windows, which have their own rights; whoever is to read has to be let in here, too.
        let Core { ring, has_counters, .. } = &*self.core;
        let (remote_write, remote_atomic) = (ring.is_some(), *has_counters);
        let access = Access { local_write: true, remote_read: true, remote_write, remote_atomic, ..Access::default() };
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

    /// Lets all that is under way come back, and closes to the peer what it could reach by this queue pair alone.
    pub fn fail(self) -> Result<QueuePair<C, Errored>, Error> {
        let mut pair: QueuePair<C, Errored> = self.modify(&Transition::Error, "end a queue pair")?;
        pair.close();
        Ok(pair)
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
