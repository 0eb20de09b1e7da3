//! Completion queues.

use super::comp_channel::ChannelInner;
use super::srq::LIST;
use super::{CompChannel, Error, destroyed};
use crate::provider::{Handle, Provider, RecvWr, Sge, WcOpcode, WcStatus, WorkCompletion};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A completion queue. Its owner polls it; queue pairs that complete there keep it.
pub struct Cq<C: Provider> {
    inner: CqHandle<C>,
    entries: u32,
    polled: Vec<WorkCompletion>,
}

/// A completion queue, for queue pairs that complete there.
pub struct CqHandle<C: Provider>(pub(super) Arc<CqInner<C>>);

impl<C: Provider> CqHandle<C> {
    /// Queue pairs whose completions go there.
    pub fn qps(&self) -> usize {
        self.0.qps.load(Ordering::Relaxed)
    }

    /// The device's name for the queue, as asynchronous events have it.
    pub fn handle(&self) -> Handle {
        self.0.handle
    }
}

impl<C: Provider> Clone for CqHandle<C> {
    fn clone(&self) -> Self {
        CqHandle(self.0.clone())
    }
}

pub(super) struct CqInner<C: Provider> {
    provider: Arc<C>,
    pub handle: Handle,
    /// Queue pairs whose completions go there.
    pub qps: AtomicUsize,
    /// Destroyed after the queue.
    _channel: Option<Arc<ChannelInner<C>>>,
}

/// The end of one request, to be given to the queue pair, or the shared queue, that it was of.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion {
    pub(super) inner: WorkCompletion,
}

/// A request's identifier: whether it is a buffer's in the highest bit, whose it is, and its number in the lowest bits.
const IS_BUFFER: u64 = 1 << 63;
const NUMBER_BITS: u32 = 24;
/// Numbers of requests go so far, and begin again. No queue is that long.
pub(super) const NUMBERS: u32 = 1 << NUMBER_BITS;

/// Whose a request is: nobody else has the same, so that a completion is used up where it belongs, or nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner(u64);

impl Owner {
    /// One that nobody has had.
    ///
    /// # Panics
    /// After 2³⁹ of them.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let owner = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(owner < IS_BUFFER >> NUMBER_BITS, "no more queue pairs");
        Owner(owner << NUMBER_BITS)
    }

    #[inline]
    pub fn send(self, number: u32) -> u64 {
        self.0 | u64::from(number)
    }

    #[inline]
    pub fn buffer(self, number: u32) -> u64 {
        IS_BUFFER | self.send(number)
    }

    /// The requests for buffers in `sges`, a request for each, which have the numbers from `first` on. Those behind them are
    /// of no buffer.
    #[inline]
    pub fn buffers(self, first: u32, sges: &[Sge]) -> [RecvWr<'_>; LIST] {
        std::array::from_fn(|at| RecvWr {
            id: self.buffer((first + at as u32) % NUMBERS),
            sges: sges.get(at..=at).unwrap_or(&[]),
        })
    }
}

impl Completion {
    /// The number of the queue pair.
    #[inline]
    pub fn qp(&self) -> u32 {
        self.inner.qp
    }

    /// Whether it is of a posted buffer.
    #[inline]
    pub fn is_buffer(&self) -> bool {
        self.inner.id & IS_BUFFER != 0
    }

    #[inline]
    pub(super) fn number(&self) -> u32 {
        self.inner.id as u32 % NUMBERS
    }

    #[inline]
    pub(super) fn is_of(&self, owner: Owner) -> bool {
        self.inner.id & !IS_BUFFER == owner.send(self.number())
    }

    /// How it ended.
    #[inline]
    pub fn status(&self) -> WcStatus {
        self.inner.status
    }

    /// What was completed; means something after a success.
    #[inline]
    pub fn opcode(&self) -> WcOpcode {
        self.inner.opcode
    }
}

impl<C: Provider> Cq<C> {
    /// A queue for at least `entries` completions that no one polled yet.
    pub fn new(provider: &Arc<C>, entries: u32, channel: Option<&CompChannel<C>>) -> Result<Self, Error> {
        let channel = channel.map(|channel| channel.0.clone());
        // SAFETY: the channel is live.
        let made = unsafe { provider.create_cq(entries, channel.as_ref().map(|channel| channel.handle)) };
        let handle = made.map_err(Error::new("make a completion queue"))?;
        let inner =
            Arc::new(CqInner { provider: provider.clone(), handle, qps: AtomicUsize::new(0), _channel: channel });
        Ok(Cq { inner: CqHandle(inner), entries, polled: Vec::new() })
    }

    /// What queue pairs are made with.
    pub fn handle(&self) -> &CqHandle<C> {
        &self.inner
    }

    /// Completions that it was to have room for.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Up to `most` completions. Allocates when `most` is more than ever before.
    #[inline]
    pub fn poll(&mut self, most: usize) -> Result<impl ExactSizeIterator<Item = Completion> + '_, Error> {
        self.polled.clear();
        if self.polled.capacity() < most {
            self.polled.reserve_exact(most);
        }
        // SAFETY: the queue is live, and its one owner polls it.
        unsafe { self.inner.0.provider.poll_cq(self.inner.0.handle, &mut self.polled) }
            .map_err(Error::new("poll a completion queue"))?;
        Ok(self.polled.drain(..).map(|inner| Completion { inner }))
    }

    /// Asks for an event of the channel at the next completion. Those that are there already do not count: poll once more
    /// before going to sleep.
    pub fn notify(&mut self) -> Result<(), Error> {
        // SAFETY: the queue is live.
        unsafe { self.inner.0.provider.req_notify_cq(self.inner.0.handle) }
            .map_err(Error::new("ask for a completion's event"))
    }
}

impl<C: Provider> Drop for CqInner<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`; queue pairs that complete there keep it.
        destroyed("completion queue", unsafe { self.provider.destroy_cq(self.handle) });
    }
}
