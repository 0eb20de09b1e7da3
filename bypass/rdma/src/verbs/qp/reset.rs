//! Reuse of a queue pair for another connection.

use super::{Drained, Errored, New, Qp};
use crate::provider::{Provider, Transition};
use crate::verbs::Error;
use crate::verbs::cq::WrIdSpace;
use std::marker::PhantomData;

impl<C: Provider> Qp<C, Errored> {
    /// Drops everything that the peer could access, and pending requests. In this state no window is bound.
    pub(super) fn close(&mut self) {
        self.core.sends.drop_pending();
        self.core.sends.drop_windows();
    }

    /// Ensures that every outstanding request is covered by a completion: if the last requests are unsignalled, posts
    /// another one, which is flushed. Returns true once all have completed; otherwise call again after the next
    /// completion.
    pub fn drain(&mut self) -> Result<bool, Error> {
        let core = &mut *self.core;
        if core.sends.is_silent() && core.sends.room() > 0 {
            core.sends.mark();
            // SAFETY: the queue pair is live and of the region's protection domain. The posted request names no
            // memory. The fields of `Core` are dropped after the queue pair is destroyed.
            unsafe { core.sends.flush(core.mr.pd().provider(), core.handle) }?;
        }
        Ok(core.sends.len() == 0 && core.posted.is_empty())
    }

    /// Returns the drained queue pair, or `self` if requests are outstanding.
    pub fn drained(self) -> Result<Qp<C, Drained>, Self> {
        if self.core.sends.len() > 0 || !self.core.posted.is_empty() {
            return Err(self);
        }
        Ok(Qp { core: self.core, state: PhantomData })
    }
}

impl<C: Provider> Qp<C, Drained> {
    /// Resets the queue pair for reuse with the same number (IBA 10.3.1.1). It no longer [owns](Qp::owns) completions
    /// of earlier requests.
    ///
    /// Only a queue pair without posted requests can be reset safely: Soft-RoCE keeps posted requests in its queues,
    /// as requests of zeros.
    pub fn reset(self) -> Result<Qp<C, New>, Error> {
        let mut qp: Qp<C, New> = self.modify_qp(&Transition::Reset, "reset a queue pair")?;
        let core = &mut *qp.core;
        core.owner = WrIdSpace::new();
        core.sends.reset(core.owner);
        core.first = 0;
        core.has_counters = false;
        Ok(qp)
    }
}
