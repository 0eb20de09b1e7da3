//! Shared receive queues.

use super::cq::WrIdSpace;
use super::{Completion, Error, Mr, destroyed};
use crate::provider::{Handle, Provider, RecvWr, Sge, SrqInitAttr, WcStatus};
use linerate_bypass::arena::ArenaMut;
use linerate_service::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// Receive buffers posted by one call.
pub(super) const LIST: usize = 32;

/// Shared receive queue: its buffers serve the next messages of all its queue pairs.
pub struct Srq<C: Provider> {
    inner: SrqHandle<C>,
    owner: WrIdSpace,
    /// Posted buffers, by request number.
    posted: Vec<Option<ArenaMut>>,
    free: Vec<u32>,
}

/// Reference to a shared receive queue, for creating queue pairs.
pub struct SrqHandle<C: Provider>(pub(super) Arc<SrqInner<C>>);

impl<C: Provider> SrqHandle<C> {
    /// Returns the handle that asynchronous events carry.
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
    /// Posted buffers of a dropped [`Srq`], kept until the queue is destroyed.
    left: Mutex<Vec<Option<ArenaMut>>>,
}

impl<C: Provider> Srq<C> {
    /// Creates a queue for `buffers` buffers in the memory of `mr`.
    pub fn new(mr: &Mr<C>, buffers: u32) -> Result<Self, Error> {
        let pd = mr.pd();
        // SAFETY: the protection domain is live.
        let made = unsafe { pd.0.provider.create_srq(pd.0.handle, &SrqInitAttr { buffers, sges: 1 }) };
        let handle = made.map_err(Error::new("make a shared receive queue"))?;
        let inner = Arc::new(SrqInner { mr: mr.clone(), handle, left: Mutex::default() });
        let free = (0..buffers).rev().collect();
        let inner = SrqHandle(inner);
        Ok(Srq { inner, owner: WrIdSpace::new(), posted: (0..buffers).map(|_| None).collect(), free })
    }

    /// Returns the reference that queue pairs are created with.
    pub fn handle(&self) -> &SrqHandle<C> {
        &self.inner
    }

    /// Returns true if a completion belongs to a buffer of this queue.
    #[inline]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.is_of(self.owner)
    }

    /// Returns the number of buffers that can be posted.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Posts `buffers`, which must lie in the region, until the queue is full. Excess buffers are dropped.
    pub fn post(&mut self, buffers: impl IntoIterator<Item = ArenaMut>) -> Result<(), Error> {
        let mut buffers = buffers.into_iter();
        loop {
            let mut noted = heapless::Vec::<(u32, Sge), LIST>::new();
            while !noted.is_full()
                && !self.free.is_empty()
                && let Some(buffer) = buffers.next()
            {
                let Some(sge) = self.inner.0.mr.sge(&buffer) else { continue };
                let Some(number) = self.free.pop() else { break };
                self.posted[number as usize] = Some(buffer);
                let _ = noted.push((number, sge));
            }
            if noted.is_empty() {
                return Ok(());
            }
            let requests: heapless::Vec<RecvWr<'_>, LIST> = noted
                .iter()
                .map(|(number, sge)| RecvWr { id: self.owner.buffer(*number), sges: std::slice::from_ref(sge) })
                .collect();
            let provider = self.inner.0.mr.pd().provider();
            // SAFETY: the queue is live and keeps the region. The buffers are owned blocks, kept until they complete
            // or the queue is destroyed.
            if let Err(error) = unsafe { provider.post_srq_recv(self.inner.0.handle, &requests) } {
                for (number, _) in noted.iter().skip(error.at) {
                    self.posted[*number as usize] = None;
                    self.free.push(*number);
                }
                return Err(error.into());
            }
        }
    }

    /// Returns the message of a receive completion, or the error status.
    ///
    /// # Panics
    /// If the completion does not belong to this queue.
    pub fn complete(&mut self, completion: Completion) -> Result<Bytes, WcStatus> {
        assert!(completion.is_buffer() && completion.is_of(self.owner), "completion of another queue");
        let number = completion.number();
        let mut buffer = self.posted[number as usize].take().expect("a posted buffer");
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
        // Queue pairs may still receive into the buffers.
        *self.inner.0.left.lock().unwrap_or_else(PoisonError::into_inner) = std::mem::take(&mut self.posted);
    }
}

impl<C: Provider> Drop for SrqInner<C> {
    fn drop(&mut self) {
        // SAFETY: created in `new`; queue pairs that use it keep it. `left` is dropped after this.
        destroyed("shared receive queue", unsafe { self.mr.pd().provider().destroy_srq(self.handle) });
    }
}
