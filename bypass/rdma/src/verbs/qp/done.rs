//! What completions of a queue pair bring back.

use super::Qp;
use crate::provider::{Provider, WcOpcode, WcStatus};
use crate::verbs::cq::NUMBERS;
use crate::verbs::{Completion, Done};
use linerate_bypass::Bytes;

impl<C: Provider, S> Qp<C, S> {
    /// Whether a completion is of this queue pair, and not of one that had its number before.
    #[inline]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.is_of(self.core.owner)
    }

    /// What the completion of a request brings back. After an error, the queue pair is [`Errored`](super::Errored) in truth.
    ///
    /// # Panics
    /// If the completion is not of a request of this queue pair.
    #[inline]
    pub fn sent(&mut self, completion: Completion) -> Result<Done<C>, WcStatus> {
        assert!(!completion.is_buffer() && completion.is_of(self.core.owner), "a completion of something else");
        self.core.sends.complete(completion.number(), completion.status(), completion.opcode())
    }

    /// The message that the completion of a buffer is about; an empty one, if the peer has done what cannot be.
    ///
    /// # Panics
    /// If the completion is not of a buffer of this queue pair's own.
    #[inline]
    pub fn received(&mut self, completion: Completion) -> Result<Bytes, WcStatus> {
        let core = &mut *self.core;
        assert!(completion.is_buffer() && completion.is_of(core.owner), "a completion of something else");
        // They complete in order.
        assert_eq!(completion.number(), core.first, "a completion out of order");
        let mut buffer = core.posted.pop_front().flatten().expect("a buffer that is posted, and of its own");
        core.first = (core.first + 1) % NUMBERS;
        match completion.status() {
            WcStatus::Success => {
                match (completion.opcode(), &mut core.ring) {
                    (WcOpcode::ReceiveWrite, Some(ring)) => {
                        ring.take(completion.inner.immediate.map_or(0, |len| len as usize), &mut buffer);
                    }
                    (WcOpcode::ReceiveWrite, None) => buffer.truncate(0),
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
    pub fn arrived(&mut self, completion: Completion) -> Result<usize, WcStatus> {
        let core = &mut *self.core;
        assert!(completion.is_buffer() && completion.is_of(core.owner), "a completion of something else");
        assert_eq!(completion.number(), core.first, "a completion out of order");
        let _ = core.posted.pop_front().expect("a buffer that is posted");
        core.first = (core.first + 1) % NUMBERS;
        match completion.status() {
            WcStatus::Success => Ok(completion.inner.len as usize),
            status => Err(status),
        }
    }

    /// Requests that have not come back, as far as is known.
    pub fn outstanding(&self) -> usize {
        self.core.sends.len()
    }

    /// Buffers that have not come back.
    pub fn posted_buffers(&self) -> usize {
        self.core.posted.len()
    }
}
