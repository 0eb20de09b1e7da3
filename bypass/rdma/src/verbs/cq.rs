//! Completion queues.

use super::comp_channel::ChannelInner;
use super::srq::LIST;
use super::{CompChannel, Error, ParentDomain, Pd, destroyed};
use crate::provider::{Handle, Provider, RecvWr, Sge, WcOpcode, WcStatus, WorkCompletion};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Completion queue. Its owner polls it; queue pairs that complete there keep it alive.
pub struct Cq<C: Provider> {
    inner: CqHandle<C>,
    entries: u32,
    polled: Vec<WorkCompletion>,
    /// Number of queue pairs created until the last poll, if that poll found neither queue pairs nor completions.
    unused: Option<usize>,
}

/// Reference to a completion queue, for creating queue pairs.
pub struct CqHandle<C: Provider>(pub(super) Arc<CqInner<C>>);

impl<C: Provider> CqHandle<C> {
    /// Returns the number of queue pairs that complete there.
    pub fn qps(&self) -> usize {
        self.0.qps.load(Ordering::Acquire)
    }

    /// Counts a queue pair that was created.
    pub(super) fn add_qp(&self) {
        self.0.qps.fetch_add(1, Ordering::Release);
        self.0.created.fetch_add(1, Ordering::Release);
    }

    /// Counts a queue pair that was destroyed.
    pub(super) fn remove_qp(&self) {
        self.0.qps.fetch_sub(1, Ordering::Release);
    }

    /// Returns true if the completions of another queue pair have room.
    pub fn has_room(&self) -> bool {
        self.qps() < self.0.most
    }

    /// Returns the handle that asynchronous events carry.
    pub fn handle(&self) -> Handle {
        self.0.handle
    }

    /// Returns the domain in which queue pairs that complete there are created, for memory of `pd`.
    pub(super) fn domain(&self, pd: &Pd<C>) -> Handle {
        self.0.parent.as_ref().and_then(|parent| parent.of(pd)).unwrap_or(pd.0.handle)
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
    /// Number of queue pairs that complete there.
    qps: AtomicUsize,
    /// Number of queue pairs ever created.
    created: AtomicUsize,
    /// Maximum number of these queue pairs.
    most: usize,
    /// Parent domain of the queue pairs that complete there, if the driver has any. Destroyed after them.
    parent: Option<ParentDomain<C>>,
    /// Destroyed after the completion queue.
    _channel: Option<Arc<ChannelInner<C>>>,
}

/// Completion of one work request, to be passed to the queue pair or shared receive queue of the request.
#[derive(Debug, PartialEq, Eq)]
pub struct Completion {
    pub(super) inner: WorkCompletion,
}

/// Layout of a work request identifier: receive flag in the highest bit, owner, request number in the lowest bits.
const IS_BUFFER: u64 = 1 << 63;
const NUMBER_BITS: u32 = 24;
/// Request numbers wrap at this value, which exceeds the length of any queue.
pub(super) const NUMBERS: u32 = 1 << NUMBER_BITS;

/// Unique owner of work request identifiers. It ensures that only the queue of a request accepts its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WrIdSpace(u64);

impl WrIdSpace {
    /// Returns a new owner.
    ///
    /// # Panics
    /// After 2³⁹ owners.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let owner = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(owner < IS_BUFFER >> NUMBER_BITS, "no more queue pairs");
        WrIdSpace(owner << NUMBER_BITS)
    }

    #[inline]
    pub fn send(self, number: u32) -> u64 {
        self.0 | u64::from(number)
    }

    #[inline]
    pub fn buffer(self, number: u32) -> u64 {
        IS_BUFFER | self.send(number)
    }

    /// Adds one receive request per element of `sges` to `requests`, numbered from `first`.
    #[inline]
    pub fn buffers<'a>(self, first: u32, sges: &'a [Sge], requests: &mut heapless::Vec<RecvWr<'a>, LIST>) {
        // Not collected: moves of a whole list would dominate a call that posts one buffer.
        for (sge, number) in sges.iter().zip(first..) {
            let _ = requests.push(RecvWr { id: self.buffer(number % NUMBERS), sges: std::slice::from_ref(sge) });
        }
    }
}

impl Completion {
    /// Returns the queue pair number.
    #[inline]
    pub fn qp(&self) -> u32 {
        self.inner.qp
    }

    /// Returns true for a receive completion.
    #[inline]
    pub fn is_buffer(&self) -> bool {
        self.inner.id & IS_BUFFER != 0
    }

    #[inline]
    pub(super) fn number(&self) -> u32 {
        self.inner.id as u32 % NUMBERS
    }

    #[inline]
    pub(super) fn is_of(&self, owner: WrIdSpace) -> bool {
        self.inner.id & !IS_BUFFER == owner.send(self.number())
    }

    /// Returns the queue pair number.
    #[inline]
    pub fn status(&self) -> WcStatus {
        self.inner.status
    }

    /// Returns the vendor's code of an error.
    #[inline]
    pub fn vendor_error(&self) -> u32 {
        self.inner.vendor_error
    }

    /// Returns the immediate data of a received message.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        self.inner.immediate
    }

    /// Returns the completed operation, which is valid on success only.
    #[inline]
    pub fn opcode(&self) -> WcOpcode {
        self.inner.opcode
    }
}

impl<C: Provider> Cq<C> {
    /// Creates a queue with at least `entries` entries.
    pub fn new(provider: &Arc<C>, entries: u32, channel: Option<&CompChannel<C>>) -> Result<Self, Error> {
        Cq::of_worker(provider, (entries, usize::MAX), channel, 0, None)
    }

    /// Creates a queue like [`new`](Self::new) for the completions of at most `most` queue pairs. The completion
    /// vectors of the device are assigned to workers in turn. The queue pairs are created in `parent`, if any, and must
    /// be used by one thread.
    pub fn of_worker(
        provider: &Arc<C>,
        (entries, most): (u32, usize),
        channel: Option<&CompChannel<C>>,
        worker: usize,
        parent: Option<&ParentDomain<C>>,
    ) -> Result<Self, Error> {
        let vector = (worker % provider.comp_vectors().max(1) as usize) as u32;
        let channel = channel.map(|channel| channel.0.clone());
        // SAFETY: the channel is live.
        let made = unsafe { provider.create_cq(entries, channel.as_ref().map(|channel| channel.handle), vector) };
        let handle = made.map_err(Error::new("make a completion queue"))?;
        let (provider, [qps, created]) = (provider.clone(), [0; 2].map(AtomicUsize::new));
        let parent = parent.cloned();
        let inner = Arc::new(CqInner { provider, handle, qps, created, most, parent, _channel: channel });
        Ok(Cq { inner: CqHandle(inner), entries, polled: Vec::new(), unused: None })
    }

    /// Returns the reference that queue pairs are created with.
    pub fn handle(&self) -> &CqHandle<C> {
        &self.inner
    }

    /// Returns the requested number of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns true if the queue needs no poll: no queue pair completes there, and a poll after the destruction of the
    /// last one found the queue empty.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.unused == Some(self.inner.0.created.load(Ordering::Acquire))
    }

    /// Carries the packets of a device without a processor of its own.
    #[inline]
    pub fn progress(&self) {
        self.inner.0.provider.progress();
    }

    /// Polls up to `most` completions. Allocates only if `most` exceeds all earlier values.
    #[inline]
    pub fn poll(&mut self, most: usize) -> Result<impl ExactSizeIterator<Item = Completion> + '_, Error> {
        self.polled.clear();
        // Read before the poll: the completions of a queue pair precede its destruction.
        let created = self.inner.0.created.load(Ordering::Acquire);
        let has_qps = self.inner.qps() > 0;
        if self.polled.capacity() < most {
            self.polled.reserve_exact(most);
        }
        // SAFETY: the queue is live and polled by its single owner.
        unsafe { self.inner.0.provider.poll_cq(self.inner.0.handle, &mut self.polled) }
            .map_err(Error::new("poll a completion queue"))?;
        self.unused = (!has_qps && self.polled.is_empty()).then_some(created);
        Ok(self.polled.drain(..).map(|inner| Completion { inner }))
    }

    /// Requests a channel event at the next completion. Completions already present generate none: poll once more
    /// before sleeping.
    pub fn notify(&mut self) -> Result<(), Error> {
        // SAFETY: the queue is live.
        unsafe { self.inner.0.provider.req_notify_cq(self.inner.0.handle) }
            .map_err(Error::new("request a completion event"))
    }
}

impl<C: Provider> Drop for CqInner<C> {
    fn drop(&mut self) {
        // SAFETY: created in `new`; queue pairs that complete there keep it.
        destroyed("completion queue", unsafe { self.provider.destroy_cq(self.handle) });
    }
}
