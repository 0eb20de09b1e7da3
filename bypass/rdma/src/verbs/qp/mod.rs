//! Reliable connected queue pairs, with their state in their type.

mod done;
mod post;
mod reset;

use super::cq::Owner;
use super::ring::{Ring, Target};
use super::sends::SendQueue;
use super::{CmId, CqHandle, Error, ExposedMr, Mr, SrqHandle, destroyed};
use crate::provider::{Access, Handle, Provider, QpCap, QpInitAttr, QpState, Transition};
use linerate_bypass::arena::ArenaMut;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// Nothing can be posted.
pub enum New {}
/// Buffers can be posted.
pub enum Init {}
/// Messages are received.
pub enum Rtr {}
/// Messages are sent.
pub enum Rts {}
/// All that is under way comes back, flushed.
pub enum Errored {}
/// All has come back.
pub enum Drained {}

/// States in which buffers can be posted.
pub trait PostsReceives {}
impl PostsReceives for Init {}
impl PostsReceives for Rtr {}
impl PostsReceives for Rts {}

/// What a queue pair is to be.
#[derive(Debug, Clone, Copy)]
pub struct QpConfig {
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
pub struct Qp<C: Provider, S> {
    core: Box<Core<C>>,
    state: PhantomData<fn() -> S>,
}

struct Core<C: Provider> {
    handle: Handle,
    number: u32,
    owner: Owner,
    cap: QpCap,
    mr: Mr<C>,
    sends: SendQueue<C>,
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
    exposed: Vec<ExposedMr<C>>,
    /// Destroyed after the queue pair.
    cq: CqHandle<C>,
    _shared: Option<SrqHandle<C>>,
}

impl<C: Provider> Qp<C, New> {
    /// A queue pair for memory of `mr`, whose completions go to `queue`. Its buffers are those of `srq`, if there is one.
    pub fn new(mr: &Mr<C>, cq: &CqHandle<C>, srq: Option<&SrqHandle<C>>, config: &QpConfig) -> Result<Self, Error> {
        let provider = mr.pd().provider();
        let cap = QpCap {
            sends: config.sends,
            receives: if srq.is_some() { 0 } else { config.receives },
            send_sges: super::MAX_SGES as u32,
            recv_sges: 1,
            inline: config.inline,
        };
        let with = QpInitAttr { send_cq: cq.0.handle, recv_cq: cq.0.handle, srq: srq.map(|srq| srq.0.handle), cap };
        // SAFETY: all that it names is live.
        let made = unsafe { provider.create_qp(mr.pd().0.handle, &with) };
        let (handle, number, given) = made.map_err(Error::new("make a queue pair"))?;
        cq.0.qps.fetch_add(1, Ordering::Relaxed);
        let owner = Owner::new();
        let inline = given.inline.min(config.inline) as usize;
        let core = Core {
            handle,
            number,
            owner,
            cap: given,
            mr: mr.clone(),
            sends: SendQueue::new(owner, config.sends as usize, inline, config.signal_every, config.list),
            posted: VecDeque::with_capacity(cap.receives as usize),
            first: 0,
            ring: None,
            target: None,
            has_counters: false,
            exposed: Vec::new(),
            cq: cq.clone(),
            _shared: srq.cloned(),
        };
        Ok(Qp { core: Box::new(core), state: PhantomData })
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
    pub fn init(self, port: u8) -> Result<Qp<C, Init>, Error> {
        // Peers read through windows, which have their own rights; whoever is to read has to be let in here, too.
        let Core { ring, has_counters, .. } = &*self.core;
        let (remote_write, remote_atomic) = (ring.is_some(), *has_counters);
        let access = Access { local_write: true, remote_read: true, remote_write, remote_atomic, ..Access::default() };
        self.modify_qp(&Transition::Init { port, partition: 0, access }, "make a queue pair ready for buffers")
    }

    /// As [`init`](Self::init), with what the connection manager knows.
    pub fn init_by_cm(self, id: &CmId<C>) -> Result<Qp<C, Init>, Error> {
        self.modify_qp_by_cm(id, QpState::Init, "make a queue pair ready for buffers")
    }
}

impl<C: Provider> Qp<C, Init> {
    /// As `init_by_cm`, once more: what the peer may do, the connection manager knows only when a
    /// connection has been asked for.
    pub fn reinit_by_cm(self, id: &CmId<C>) -> Result<Qp<C, Init>, Error> {
        self.modify_qp_by_cm(id, QpState::Init, "tell a queue pair what its peer may do")
    }

    /// Lets it receive.
    pub fn to_rtr(self, transition: &Transition) -> Result<Qp<C, Rtr>, Error> {
        self.modify_qp(transition, "make a queue pair ready to receive")
    }

    /// As [`to_rtr`](Self::ready_to_receive), with what the connection manager knows.
    pub fn to_rtr_by_cm(self, id: &CmId<C>) -> Result<Qp<C, Rtr>, Error> {
        self.modify_qp_by_cm(id, QpState::Rtr, "make a queue pair ready to receive")
    }

    /// It can send: iWARP's connection manager has seen to that, before it says that the connection is established. The device is
    /// not asked: siw, of Linux 6.1, does not tell a queue pair's state.
    pub fn rts_by_iwarp(self) -> Qp<C, Rts> {
        Qp { core: self.core, state: PhantomData }
    }
}

impl<C: Provider> Qp<C, Rtr> {
    /// Lets it send.
    pub fn to_rts(self, transition: &Transition) -> Result<Qp<C, Rts>, Error> {
        self.modify_qp(transition, "make a queue pair ready to send")
    }

    /// As [`to_rts`](Self::ready_to_send), with what the connection manager knows.
    pub fn to_rts_by_cm(self, id: &CmId<C>) -> Result<Qp<C, Rts>, Error> {
        self.modify_qp_by_cm(id, QpState::Rts, "make a queue pair ready to send")
    }
}

impl<C: Provider, S> Qp<C, S> {
    /// Its number, which the peer's has to know, and which its completions have.
    pub fn number(&self) -> u32 {
        self.core.number
    }

    /// What it holds.
    pub fn cap(&self) -> QpCap {
        self.core.cap
    }

    /// The device's name for it, as asynchronous events have it.
    pub fn handle(&self) -> Handle {
        self.core.handle
    }

    /// Lets all that is under way come back, and closes to the peer what it could reach by this queue pair alone.
    pub fn fail(self) -> Result<Qp<C, Errored>, Error> {
        let mut qp: Qp<C, Errored> = self.modify_qp(&Transition::Error, "end a queue pair")?;
        qp.close();
        Ok(qp)
    }

    fn modify_qp<T>(self, transition: &Transition, what: &'static str) -> Result<Qp<C, T>, Error> {
        // SAFETY: it is live.
        unsafe { self.core.mr.pd().provider().modify_qp(self.core.handle, transition) }.map_err(Error::new(what))?;
        Ok(Qp { core: self.core, state: PhantomData })
    }

    fn modify_qp_by_cm<T>(self, id: &CmId<C>, state: QpState, what: &'static str) -> Result<Qp<C, T>, Error> {
        // SAFETY: both are live.
        unsafe { self.core.mr.pd().provider().modify_qp_by_cm(self.core.handle, id.handle(), state) }
            .map_err(Error::new(what))?;
        Ok(Qp { core: self.core, state: PhantomData })
    }
}

impl<C: Provider> Drop for Core<C> {
    fn drop(&mut self) {
        let provider = self.mr.pd().provider().clone();
        if self.sends.has_windows() || self.ring.as_ref().is_some_and(Ring::is_open) {
            // They go first: Linux' Soft-RoCE waits with the queue pair's end for those that are bound to it, for most of a
            // minute. In the state of error, none is any more.
            // SAFETY: it is live.
            if let Err(error) = unsafe { provider.modify_qp(self.handle, &Transition::Error) } {
                tracing::debug!("end a queue pair: {error}");
            }
            self.sends.drop_windows();
            self.ring = None;
        }
        // SAFETY: made in `new`, and nothing else has the handle. What is under way, and the queues, go after this.
        destroyed("queue pair", unsafe { provider.destroy_qp(self.handle) });
        self.cq.0.qps.fetch_sub(1, Ordering::Relaxed);
    }
}
