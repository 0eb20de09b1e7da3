//! Completions of a queue pair.

use super::Qp;
use crate::provider::{Provider, WcOpcode, WcStatus};
use crate::verbs::cq::NUMBERS;
use crate::verbs::{Completion, Done};
use linerate_service::Bytes;

impl<C: Provider, S> Qp<C, S> {
    /// Returns true if a completion belongs to this queue pair, not to an earlier one with the same number.
    #[inline]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.is_of(self.core.owner)
    }

    /// Processes a send completion and returns its result. After an error the device has moved the queue pair to
    /// [`Errored`](super::Errored).
    ///
    /// # Panics
    /// If the completion is not of a send request of this queue pair.
    #[inline]
    pub fn sent(&mut self, completion: Completion) -> Result<Done<C>, WcStatus> {
        assert!(!completion.is_buffer() && completion.is_of(self.core.owner), "completion of another queue");
        self.core.sends.complete(completion.number(), completion.status(), completion.opcode())
    }

    /// Returns the message of a receive completion. The message is empty if the peer violated the protocol.
    ///
    /// # Panics
    /// If the completion is not of a receive buffer of this queue pair.
    #[inline]
    pub fn received(&mut self, completion: Completion) -> Result<Bytes, WcStatus> {
        let core = &mut *self.core;
        assert!(completion.is_buffer() && completion.is_of(core.owner), "completion of another queue");
        // Receive requests complete in order.
        assert_eq!(completion.number(), core.first, "completion out of order");
        let mut buffer = core.posted.pop_front().expect("a posted buffer");
        core.first = (core.first + 1) % NUMBERS;
        match completion.status() {
            WcStatus::Success => {
                // A WRITE with immediate has used the buffer without filling it.
                let is_written = completion.opcode() == WcOpcode::ReceiveWrite;
                buffer.truncate(if is_written { 0 } else { completion.inner.len as usize });
                Ok(buffer.freeze())
            }
            status => Err(status),
        }
    }

    /// Returns the number of requests not known to have completed.
    pub fn outstanding(&self) -> usize {
        self.core.sends.len()
    }

    /// Returns the number of posted buffers.
    pub fn posted_buffers(&self) -> usize {
        self.core.posted.len()
    }
}
