//! RC queue pairs, with their state in the type.

mod done;
mod post;
mod reset;

use super::cq::WrIdSpace;
use super::sends::SendQueue;
use super::{CmId, CqHandle, Error, Mr, SrqHandle, destroyed};
use crate::provider::{Access, Handle, Provider, QpCap, QpInitAttr, QpOptions, QpState, Transition};
use linerate_bypass::arena::ArenaMut;
use std::collections::VecDeque;
use std::marker::PhantomData;

/// RESET: nothing can be posted.
pub enum New {}
/// INIT: buffers can be posted.
pub enum Init {}
/// RTR: messages are received.
pub enum Rtr {}
/// RTS: messages are sent and received.
pub enum Rts {}
/// ERROR: all posted requests are flushed.
pub enum Errored {}
/// ERROR, and all requests have completed.
pub enum Drained {}

/// States in which buffers can be posted.
pub trait PostsReceives {}
impl PostsReceives for Init {}
impl PostsReceives for Rtr {}
impl PostsReceives for Rts {}

/// Capacities and posting parameters of a queue pair.
#[derive(Debug, Clone, Copy)]
pub struct QpConfig {
    /// Maximum outstanding send requests.
    pub sends: u32,
    /// Maximum posted buffers, without a shared receive queue.
    pub receives: u32,
    /// Maximum message size sent inline, within the limit of the device.
    pub inline: u32,
    /// Interval of signalled messages.
    pub signal_every: usize,
    /// Maximum requests per post call.
    pub list: usize,
}

impl QpConfig {
    /// Calls `make` with this configuration, or with the largest smaller inline size that it accepts, found by binary
    /// search. Devices do not report that size, and it need not be a power of two.
    pub fn with_largest_inline<T>(self, make: impl Fn(&Self) -> Result<T, Error>) -> Result<T, Error> {
        let attempt = |inline| make(&QpConfig { inline, ..self });
        match attempt(self.inline) {
            Err(_) if self.inline > 0 => {}
            made => return made,
        }
        let (mut made, mut accepted, mut refused) = (attempt(0)?, 0, self.inline);
        while accepted + 1 < refused {
            let inline = accepted + (refused - accepted) / 2;
            match attempt(inline) {
                Ok(larger) => (made, accepted) = (larger, inline),
                Err(_) => refused = inline,
            }
        }
        Ok(made)
    }
}

/// Queue pair in the state `S`.
///
/// It begins as [`New`]. Each state leads to the next one and to [`Errored`], which leads through [`Drained`] to `New`
/// again:
///
/// ```compile_fail,E0599
/// # use linerate_rdma::{provider::Provider, verbs::{New, Qp, Message}};
/// fn too_early<C: Provider>(qp: &mut Qp<C, New>) {
///     qp.send(&mut Message::new(), false);
/// }
/// ```
/// ```compile_fail,E0599
/// # use linerate_rdma::{provider::{Provider, Transition}, verbs::{New, Qp}};
/// fn skips_a_state<C: Provider>(qp: Qp<C, New>, transition: &Transition) {
///     qp.to_rts(transition);
/// }
/// ```
/// ```compile_fail,E0599
/// # use linerate_rdma::{provider::Provider, verbs::{Errored, Qp}};
/// fn resets_too_early<C: Provider>(qp: Qp<C, Errored>) {
///     qp.reset();
/// }
/// ```
/// A posted buffer cannot be accessed:
///
/// ```compile_fail,E0382
/// # use linerate_bypass::arena::ArenaMut;
/// # use linerate_rdma::{provider::Provider, verbs::{Init, Qp}};
/// fn touches_it<C: Provider>(qp: &mut Qp<C, Init>, mut buffer: ArenaMut) {
///     qp.post([buffer]).unwrap();
///     buffer[0] = 1;
/// }
/// ```
/// A completion can be processed only once:
///
/// ```compile_fail,E0382
/// # use linerate_rdma::{provider::Provider, verbs::{Completion, Qp, Rts}};
/// fn repeats_it<C: Provider>(qp: &mut Qp<C, Rts>, completion: Completion) {
///     qp.received(completion);
///     qp.received(completion);
/// }
/// ```
pub struct Qp<C: Provider, S> {
    core: Box<Core<C>>,
    state: PhantomData<fn() -> S>,
}

struct Core<C: Provider> {
    handle: Handle,
    number: u32,
    owner: WrIdSpace,
    cap: QpCap,
    mr: Mr<C>,
    sends: SendQueue<C>,
    /// Posted buffers, in order, and the number of the first.
    posted: VecDeque<ArenaMut>,
    first: u32,
    /// Grants the peer atomic operations.
    has_counters: bool,
    /// Destroyed after the queue pair.
    cq: CqHandle<C>,
    _shared: Option<SrqHandle<C>>,
}

impl<C: Provider> Qp<C, New> {
    /// Creates a queue pair for the memory of `mr` that completes in `cq`. With `srq`, it takes buffers from there.
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
        // SAFETY: all objects that the attributes name are live.
        let made = unsafe { provider.create_qp(cq.domain(mr.pd()), &with) };
        let (handle, number, given) = made.map_err(Error::new("create a queue pair"))?;
        cq.add_qp();
        let owner = WrIdSpace::new();
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
            has_counters: false,
            cq: cq.clone(),
            _shared: srq.cloned(),
        };
        Ok(Qp { core: Box::new(core), state: PhantomData })
    }

    /// Grants the peer atomic operations on the domain's [`Counters`](super::Counters), for connections that are not
    /// made by the connection manager.
    pub fn with_counters(mut self) -> Self {
        self.core.has_counters = true;
        self
    }

    /// Moves the queue pair to INIT, on a port and with the first P_Key.
    pub fn init(self, port: u8) -> Result<Qp<C, Init>, Error> {
        self.init_in(port, 0)
    }

    /// Moves the queue pair to INIT, on a port and with a P_Key of its table.
    pub fn init_in(self, port: u8, pkey_index: u16) -> Result<Qp<C, Init>, Error> {
        // Peers read through windows with their own rights, but the queue pair must also allow remote reads.
        let remote_atomic = self.core.has_counters;
        let access = Access { local_write: true, remote_read: true, remote_atomic, ..Access::default() };
        self.modify_qp(&Transition::Init { port, partition: pkey_index, access }, "make a queue pair ready for buffers")
    }

    /// Like [`init`](Self::init), with the attributes of the connection manager.
    pub fn init_by_cm(self, id: &CmId<C>, options: &QpOptions) -> Result<Qp<C, Init>, Error> {
        self.modify_qp_by_cm(id, QpState::Init, options, "make a queue pair ready for buffers")
    }
}

impl<C: Provider> Qp<C, Init> {
    /// Repeats `init_by_cm`: the connection manager knows the peer's rights only once a connection is requested.
    pub fn reinit_by_cm(self, id: &CmId<C>, options: &QpOptions) -> Result<Qp<C, Init>, Error> {
        self.modify_qp_by_cm(id, QpState::Init, options, "set the access rights of a queue pair's peer")
    }

    /// Moves the queue pair to RTR.
    pub fn to_rtr(self, transition: &Transition) -> Result<Qp<C, Rtr>, Error> {
        self.modify_qp(transition, "make a queue pair ready to receive")
    }

    /// Like [`to_rtr`](Self::to_rtr), with the attributes of the connection manager.
    pub fn to_rtr_by_cm(self, id: &CmId<C>, options: &QpOptions) -> Result<Qp<C, Rtr>, Error> {
        self.modify_qp_by_cm(id, QpState::Rtr, options, "make a queue pair ready to receive")
    }

    /// Marks the queue pair as RTS: iWARP's connection manager changes the state before it reports the connection as
    /// established. The state is not queried, because siw of Linux 6.1 does not report it.
    pub fn rts_by_iwarp(self) -> Qp<C, Rts> {
        Qp { core: self.core, state: PhantomData }
    }
}

impl<C: Provider> Qp<C, Rtr> {
    /// Moves the queue pair to RTS.
    pub fn to_rts(self, transition: &Transition) -> Result<Qp<C, Rts>, Error> {
        self.modify_qp(transition, "make a queue pair ready to send")
    }

    /// Like [`to_rts`](Self::to_rts), with the attributes of the connection manager.
    pub fn to_rts_by_cm(self, id: &CmId<C>, options: &QpOptions) -> Result<Qp<C, Rts>, Error> {
        self.modify_qp_by_cm(id, QpState::Rts, options, "make a queue pair ready to send")
    }
}

impl<C: Provider, S> Qp<C, S> {
    /// Returns the queue pair number, which the peer needs and completions carry.
    pub fn number(&self) -> u32 {
        self.core.number
    }

    /// Returns the capacities.
    pub fn cap(&self) -> QpCap {
        self.core.cap
    }

    /// Returns the handle that asynchronous events carry.
    pub fn handle(&self) -> Handle {
        self.core.handle
    }

    /// Returns true if the queue pair completes in `cq`.
    pub fn completes_in(&self, cq: &CqHandle<C>) -> bool {
        self.core.cq.handle() == cq.handle()
    }

    /// Moves the queue pair to ERROR, so that all outstanding requests complete, and drops the windows through which
    /// the peer could read.
    pub fn fail(self) -> Result<Qp<C, Errored>, Error> {
        let mut qp: Qp<C, Errored> = self.modify_qp(&Transition::Error, "end a queue pair")?;
        qp.close();
        Ok(qp)
    }

    fn modify_qp<T>(self, transition: &Transition, operation: &'static str) -> Result<Qp<C, T>, Error> {
        // SAFETY: the queue pair is live.
        unsafe { self.core.mr.pd().provider().modify_qp(self.core.handle, transition) }
            .map_err(Error::new(operation))?;
        Ok(Qp { core: self.core, state: PhantomData })
    }

    fn modify_qp_by_cm<T>(
        self,
        id: &CmId<C>,
        state: QpState,
        options: &QpOptions,
        operation: &'static str,
    ) -> Result<Qp<C, T>, Error> {
        // SAFETY: the queue pair and the identifier are live.
        unsafe { self.core.mr.pd().provider().modify_qp_by_cm(self.core.handle, id.handle(), state, options) }
            .map_err(Error::new(operation))?;
        Ok(Qp { core: self.core, state: PhantomData })
    }
}

impl<C: Provider> Drop for Core<C> {
    fn drop(&mut self) {
        let provider = self.mr.pd().provider().clone();
        if self.sends.has_windows() {
            // Windows are deallocated first: Soft-RoCE delays the destruction of a queue pair with bound windows for
            // most of a minute. In the ERROR state no window is bound.
            // SAFETY: the queue pair is live.
            if let Err(error) = unsafe { provider.modify_qp(self.handle, &Transition::Error) } {
                tracing::debug!("cannot end a queue pair: {error}");
            }
            self.sends.drop_windows();
        }
        // SAFETY: created in `new`; nothing else has the handle. Memory of outstanding requests and the queues are
        // dropped after this.
        destroyed("queue pair", unsafe { provider.destroy_qp(self.handle) });
        self.cq.remove_qp();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn largest_inline_size_is_found_for_any_limit() {
        let config = QpConfig { sends: 1, receives: 1, inline: 220, signal_every: 1, list: 1 };
        for limit in [0, 1, 60, 109, 110, 172, 219, 220, 400] {
            let made = config.with_largest_inline(|config| match config.inline {
                inline if inline <= limit => Ok(inline),
                _ => Err(Error::new("create a queue pair")(ErrorKind::InvalidInput.into())),
            });
            assert_eq!(made.unwrap(), limit.min(220));
        }
        let none = |_: &QpConfig| Err::<(), _>(Error::new("create a queue pair")(ErrorKind::OutOfMemory.into()));
        assert!(config.with_largest_inline(none).is_err());
    }
}
