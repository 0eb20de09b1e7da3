//! Shared receive queues.

use super::cq::Owner;
use super::{Completion, Error, Mr, destroyed};
use crate::provider::{Handle, Provider, RecvWr, Sge, SrqInitAttr, WcStatus};
use linerate_bypass::Bytes;
use linerate_bypass::arena::ArenaMut;
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers posted by one call.
pub(super) const LIST: usize = 32;

/// A shared receive queue: buffers for whichever of its queue pairs gets a message next.
pub struct Srq<C: Provider> {
    inner: SrqHandle<C>,
    owner: Owner,
    /// The buffers that are posted, by number.
    posted: Vec<Option<ArenaMut>>,
    free: Vec<u32>,
}

/// A shared receive queue, for queue pairs that receive there.
pub struct SrqHandle<C: Provider>(pub(super) Arc<SrqInner<C>>);

impl<C: Provider> SrqHandle<C> {
    /// The device's name for the queue, as asynchronous events have it.
    pub fn handle(&self) -> Handle {
        self.0.handle
    }
}

impl<C: Provider> Clone for SrqHandle<C> {
    fn clone(&self) -> Self {
        SrqHandle(self.0.clone())
    }
}

pub(super) struct SrqInner<C: Provider> {
    mr: Mr<C>,
    pub handle: Handle,
    /// What is posted and has nobody any more who would take it back.
    left: Mutex<Vec<Option<ArenaMut>>>,
}

impl<C: Provider> Srq<C> {
    /// A queue for so many buffers of `mr`'s memory.
    pub fn new(mr: &Mr<C>, buffers: u32) -> Result<Self, Error> {
        let pd = mr.pd();
        // SAFETY: the domain is live.
        let made = unsafe { pd.0.provider.create_srq(pd.0.handle, &SrqInitAttr { buffers, sges: 1 }) };
        let handle = made.map_err(Error::new("make a shared receive queue"))?;
        let inner = Arc::new(SrqInner { mr: mr.clone(), handle, left: Mutex::default() });
        let free = (0..buffers).rev().collect();
        let inner = SrqHandle(inner);
        Ok(Srq { inner, owner: Owner::new(), posted: (0..buffers).map(|_| None).collect(), free })
    }

    /// What queue pairs are made with.
    pub fn handle(&self) -> &SrqHandle<C> {
        &self.inner
    }

    /// Whether a completion is of one of its buffers.
    #[inline]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.is_of(self.owner)
    }

    /// Buffers that there is room for.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Posts `buffers`, which lie in the region, as far as there is room. Those beyond are dropped.
    pub fn post(&mut self, buffers: impl IntoIterator<Item = ArenaMut>) -> Result<(), Error> {
        let mut buffers = buffers.into_iter();
        let mut sges = [Sge { address: 0, len: 0, lkey: 0 }; LIST];
        let mut numbers = [0; LIST];
        loop {
            let mut count = 0;
            while count < LIST
                && !self.free.is_empty()
                && let Some(buffer) = buffers.next()
            {
                let Some(sge) = self.inner.0.mr.sge(&buffer) else { continue };
                let Some(number) = self.free.pop() else { break };
                self.posted[number as usize] = Some(buffer);
                (sges[count], numbers[count]) = (sge, number);
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            let request =
                |at: usize| RecvWr { id: self.owner.buffer(numbers[at]), sges: std::slice::from_ref(&sges[at]) };
            let requests: [RecvWr<'_>; LIST] = std::array::from_fn(request);
            let provider = self.inner.0.mr.pd().provider();
            // SAFETY: the queue is live, and keeps the region. The segments are blocks that we own, kept until they are
            // completed or the queue is destroyed.
            if let Err(error) = unsafe { provider.post_srq_recv(self.inner.0.handle, &requests[..count]) } {
                for number in &numbers[error.at.min(count)..count] {
                    self.posted[*number as usize] = None;
                    self.free.push(*number);
                }
                return Err(error.into());
            }
        }
    }

    /// The message that `completion` is about, or what became of the buffer.
    ///
    /// # Panics
    /// If the completion is not of a buffer of this queue.
    pub fn complete(&mut self, completion: Completion) -> Result<Bytes, WcStatus> {
        assert!(completion.is_buffer() && completion.is_of(self.owner), "a completion of something else");
        let number = completion.number();
        let mut buffer = self.posted[number as usize].take().expect("a buffer that is posted");
        self.free.push(number);
        match completion.status() {
            WcStatus::Success => {
                buffer.truncate(completion.inner.len as usize);
                Ok(buffer.freeze())
            }
            status => Err(status),
        }
    }
}

impl<C: Provider> Drop for Srq<C> {
    fn drop(&mut self) {
        // Queue pairs may go on to receive into them.
        *self.inner.0.left.lock().unwrap_or_else(PoisonError::into_inner) = std::mem::take(&mut self.posted);
    }
}

impl<C: Provider> Drop for SrqInner<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`; queue pairs that have it keep it. `left` goes after this.
        destroyed("shared receive queue", unsafe { self.mr.pd().provider().destroy_srq(self.handle) });
    }
}
