//! Shared receive queues.

use super::queue::Owner;
use super::{Completion, Error, Region, destroyed};
use crate::calls::{Calls, Handle, ReceiveRequest, Segment, SharedConfig, Status};
use linerate_bypass::Bytes;
use linerate_bypass::arena::ArenaMut;
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers posted by one call.
pub(super) const LIST: usize = 32;

/// A shared receive queue: buffers for whichever of its queue pairs gets a message next.
pub struct SharedQueue<C: Calls> {
    inner: SharedHandle<C>,
    owner: Owner,
    /// The buffers that are posted, by number.
    posted: Vec<Option<ArenaMut>>,
    free: Vec<u32>,
}

/// A shared receive queue, for queue pairs that receive there.
pub struct SharedHandle<C: Calls>(pub(super) Arc<SharedInner<C>>);

impl<C: Calls> SharedHandle<C> {
    /// The device's name for the queue, as asynchronous events have it.
    pub fn handle(&self) -> Handle {
        self.0.handle
    }
}

impl<C: Calls> Clone for SharedHandle<C> {
    fn clone(&self) -> Self {
        SharedHandle(self.0.clone())
    }
}

pub(super) struct SharedInner<C: Calls> {
    region: Region<C>,
    pub handle: Handle,
    /// What is posted and has nobody any more who would take it back.
    left: Mutex<Vec<Option<ArenaMut>>>,
}

impl<C: Calls> SharedQueue<C> {
    /// A queue for so many buffers of `region`'s memory.
    pub fn new(region: &Region<C>, buffers: u32) -> Result<Self, Error> {
        let domain = region.domain();
        // SAFETY: the domain is live.
        let made = unsafe { domain.0.calls.create_shared(domain.0.handle, &SharedConfig { buffers, segments: 1 }) };
        let handle = made.map_err(Error::new("make a shared receive queue"))?;
        let inner = Arc::new(SharedInner { region: region.clone(), handle, left: Mutex::default() });
        let free = (0..buffers).rev().collect();
        let inner = SharedHandle(inner);
        Ok(SharedQueue { inner, owner: Owner::new(), posted: (0..buffers).map(|_| None).collect(), free })
    }

    /// What queue pairs are made with.
    pub fn handle(&self) -> &SharedHandle<C> {
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
        let mut segments = [Segment { address: 0, len: 0, local_key: 0 }; LIST];
        let mut numbers = [0; LIST];
        loop {
            let mut count = 0;
            while count < LIST
                && !self.free.is_empty()
                && let Some(buffer) = buffers.next()
            {
                let Some(segment) = self.inner.0.region.segment(&buffer) else { continue };
                let Some(number) = self.free.pop() else { break };
                self.posted[number as usize] = Some(buffer);
                (segments[count], numbers[count]) = (segment, number);
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            let request = |at: usize| ReceiveRequest {
                id: self.owner.buffer(numbers[at]),
                segments: std::slice::from_ref(&segments[at]),
            };
            let requests: [ReceiveRequest<'_>; LIST] = std::array::from_fn(request);
            let calls = self.inner.0.region.domain().calls();
            // SAFETY: the queue is live, and keeps the region. The segments are blocks that we own, kept until they are
            // completed or the queue is destroyed.
            if let Err(error) = unsafe { calls.post_shared(self.inner.0.handle, &requests[..count]) } {
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
    pub fn complete(&mut self, completion: Completion) -> Result<Bytes, Status> {
        assert!(completion.is_buffer() && completion.is_of(self.owner), "a completion of something else");
        let number = completion.number();
        let mut buffer = self.posted[number as usize].take().expect("a buffer that is posted");
        self.free.push(number);
        match completion.status() {
            Status::Success => {
                buffer.truncate(completion.inner.len as usize);
                Ok(buffer.freeze())
            }
            status => Err(status),
        }
    }
}

impl<C: Calls> Drop for SharedQueue<C> {
    fn drop(&mut self) {
        // Queue pairs may go on to receive into them.
        *self.inner.0.left.lock().unwrap_or_else(PoisonError::into_inner) = std::mem::take(&mut self.posted);
    }
}

impl<C: Calls> Drop for SharedInner<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`; queue pairs that have it keep it. `left` goes after this.
        destroyed("shared receive queue", unsafe { self.region.domain().calls().destroy_shared(self.handle) });
    }
}
