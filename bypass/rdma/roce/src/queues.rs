//! Completion queues and receive queues.

use crate::table::{Table, errno, require};
use crate::waker::Waker;
use linerate_rdma_provider::{AsyncEvent, Handle, PostError, RecvWr, Sge, WorkCompletion};
use std::collections::VecDeque;
use std::io;

/// Completion queue.
pub(crate) struct Cq {
    pub channel: Option<Handle>,
    pub capacity: usize,
    pub completions: VecDeque<WorkCompletion>,
    pub is_armed: bool,
    pub is_overrun: bool,
    /// Number of queue pairs that use it.
    pub users: u32,
}

/// Buffer taken from a receive queue.
#[derive(Debug, Default, Clone)]
pub(crate) struct Buffer {
    pub id: u64,
    pub sges: Vec<Sge>,
}

impl Buffer {
    /// Returns the size in bytes.
    pub fn len(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.len)).sum()
    }
}

/// Ring of posted buffers.
pub(crate) struct RecvQueue {
    ids: Box<[(u64, usize)]>,
    /// Elements of each buffer, `width` places for each.
    sges: Box<[Sge]>,
    width: usize,
    head: usize,
    len: usize,
}

impl RecvQueue {
    pub fn new(buffers: u32, sges: u32) -> Self {
        let (buffers, width) = (buffers as usize, sges as usize);
        let none = Sge { address: 0, len: 0, lkey: 0 };
        let sges = vec![none; buffers * width].into_boxed_slice();
        RecvQueue { ids: vec![(0, 0); buffers].into_boxed_slice(), sges, width, head: 0, len: 0 }
    }

    /// Returns an empty buffer with room for the elements of any buffer of this queue.
    pub fn empty_buffer(&self) -> Buffer {
        Buffer { id: 0, sges: Vec::with_capacity(self.width) }
    }

    pub fn post(&mut self, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        for (at, request) in requests.iter().enumerate() {
            let failed = |number| PostError { at, error: errno(number) };
            if request.sges.len() > self.width {
                return Err(failed(libc::EINVAL));
            }
            if self.len == self.ids.len() {
                return Err(failed(libc::ENOMEM));
            }
            let slot = self.slot(self.head + self.len);
            self.ids[slot] = (request.id, request.sges.len());
            self.sges[slot * self.width..][..request.sges.len()].copy_from_slice(request.sges);
            self.len += 1;
        }
        Ok(())
    }

    /// Returns the slot of a position less than twice the number of slots.
    #[inline]
    fn slot(&self, position: usize) -> usize {
        if position < self.ids.len() { position } else { position - self.ids.len() }
    }

    /// Returns the number of posted buffers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the size of the oldest buffer in bytes.
    pub fn front_len(&self) -> Option<u64> {
        let sges = &self.sges[self.head * self.width..][..self.ids.get(self.head)?.1];
        (self.len > 0).then(|| sges.iter().map(|sge| u64::from(sge.len)).sum())
    }

    /// Returns identifier and element of the oldest buffer, if it has one element.
    #[inline]
    pub fn front_alone(&self) -> Option<(u64, &Sge)> {
        match self.ids.get(self.head) {
            Some(&(id, 1)) if self.len > 0 => Some((id, &self.sges[self.head * self.width])),
            _ => None,
        }
    }

    /// Removes the oldest buffer.
    #[inline]
    pub fn remove_front(&mut self) {
        self.head = self.slot(self.head + 1);
        self.len -= 1;
    }

    /// Moves the oldest buffer to `into`. Returns false if there is none.
    #[inline]
    pub fn pop(&mut self, into: &mut Buffer) -> bool {
        if self.len == 0 {
            return false;
        }
        let (id, count) = self.ids[self.head];
        into.id = id;
        into.sges.clear();
        into.sges.extend_from_slice(&self.sges[self.head * self.width..][..count]);
        self.remove_front();
        true
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Returns the number of posted buffers, and their limit.
    #[cfg(any(test, feature = "testing"))]
    pub fn usage(&self) -> (usize, usize) {
        (self.len, self.ids.len())
    }
}

/// Shared receive queue.
pub(crate) struct Srq {
    pub pd: Handle,
    pub queue: RecvQueue,
    pub users: u32,
}

/// Completion queues, their channels, and asynchronous events.
pub(crate) struct Completions {
    pub cqs: Table<Cq>,
    pub channels: Table<Waker<Handle>>,
    pub events: Waker<AsyncEvent>,
    /// Queues that have overrun since the engine last failed their queue pairs.
    pub overrun: Vec<Handle>,
}

impl Completions {
    pub fn create(&mut self, entries: u32, channel: Option<Handle>) -> io::Result<Handle> {
        require(entries > 0, libc::EINVAL)?;
        if let Some(channel) = channel {
            self.channels.get(channel)?;
        }
        let completions = VecDeque::with_capacity(entries as usize);
        Ok(self.cqs.add(Cq {
            channel,
            capacity: entries as usize,
            completions,
            is_armed: false,
            is_overrun: false,
            users: 0,
        }))
    }

    pub fn destroy(&mut self, cq: Handle) -> io::Result<()> {
        require(self.cqs.get(cq)?.users == 0, libc::EBUSY)?;
        let Cq { channel, .. } = self.cqs.remove(cq)?;
        if let Some(channel) = channel {
            self.channels.get_mut(channel)?.retain(|event| *event != cq);
        }
        Ok(())
    }

    /// Adds a completion. The overrun of a queue breaks it and its queue pairs.
    ///
    /// Inlined, so that the completion is written in place: a copied structure would wait until its parts have left the
    /// store buffer.
    #[inline(always)]
    pub fn add(&mut self, handle: Handle, completion: WorkCompletion) {
        let Ok(cq) = self.cqs.get_mut(handle) else { return };
        if cq.is_overrun {
            return;
        }
        if cq.completions.len() == cq.capacity {
            cq.is_overrun = true;
            self.overrun.push(handle);
            self.events.push(AsyncEvent::CqError(handle));
            return;
        }
        cq.completions.push_back(completion);
        if let Some(channel) = cq.channel
            && std::mem::take(&mut cq.is_armed)
            && let Ok(channel) = self.channels.get_mut(channel)
        {
            channel.push(handle);
        }
    }

    /// Removes the completions of the queue pair numbered `qp`, which is reset or destroyed.
    pub fn forget(&mut self, cq: Handle, qp: u32) {
        if let Ok(cq) = self.cqs.get_mut(cq) {
            cq.completions.retain(|completion| completion.qp != qp);
        }
    }
}
