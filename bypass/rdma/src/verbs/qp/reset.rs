//! From the end of one connection to the beginning of another.

use super::{Drained, Errored, New, Qp};
use crate::provider::{Provider, Transition};
use crate::verbs::Error;
use crate::verbs::cq::Owner;
use std::marker::PhantomData;

impl<C: Provider> Qp<C, Errored> {
    /// Lets go of what its peer could reach, and of what was not posted yet. In this state no window is bound.
    pub(super) fn close(&mut self) {
        self.core.sends.forget_waiting();
        self.core.sends.drop_windows();
        self.core.ring = None;
    }

    /// Sees to it that whatever is under way comes back with a completion, or is known to have by one that does; where requests
    /// without one were the last, it posts another behind them, which is flushed. Returns whether all has come back; if not, ask
    /// again after the next completion.
    pub fn drain(&mut self) -> Result<bool, Error> {
        let core = &mut *self.core;
        if core.sends.is_silent() && core.sends.room() > 0 {
            core.sends.mark();
            // SAFETY: it is live, and of the region's domain; what is posted names no memory; and `Core`'s fields are dropped
            // after it is destroyed.
            unsafe { core.sends.flush(core.mr.pd().provider(), core.handle) }?;
        }
        Ok(core.sends.len() == 0 && core.posted.is_empty())
    }

    /// The queue pair, if all has come back; else it comes back itself.
    pub fn drained(self) -> Result<Qp<C, Drained>, Self> {
        if self.core.sends.len() > 0 || !self.core.posted.is_empty() {
            return Err(self);
        }
        Ok(Qp { core: self.core, state: PhantomData })
    }
}

impl<C: Provider> Qp<C, Drained> {
    /// Makes it as if it were new, but for its number (IBA 10.3.1.1). Completions of before, if any were still to be polled, are
    /// [not its own](QueuePair::owns).
    ///
    /// Only a queue pair without anything posted can be reset safely: Linux' Soft-RoCE leaves what is posted in its queues, as
    /// requests of zeros.
    pub fn reset(self) -> Result<Qp<C, New>, Error> {
        let mut qp: Qp<C, New> = self.modify_qp(&Transition::Reset, "reset a queue pair")?;
        let core = &mut *qp.core;
        core.owner = Owner::new();
        core.sends.begin_anew(core.owner);
        core.first = 0;
        (core.ring, core.target, core.has_counters) = (None, None, false);
        core.exposed.clear();
        Ok(qp)
    }
}
