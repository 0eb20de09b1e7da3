//! Queue pairs for connections: prepared ahead, or made when they are asked for.

use super::Connector;
use crate::calls::Calls;
use crate::verbs::{Error, Init, New, QueueHandle, QueuePair, Ring};
use crate::{Config, Mode};
use std::io::ErrorKind;

/// Queue pairs of one worker that have their buffers, and wait for a peer. The port they would go by is the first; connections by
/// another have theirs made.
pub(super) struct Pool<C: Calls>(Vec<QueuePair<C, Init>>);

/// The port that prepared queue pairs go by.
const PORT: u8 = 1;

impl<C: Calls> Default for Pool<C> {
    fn default() -> Self {
        Pool(Vec::new())
    }
}

impl<C: Calls> Connector<C> {
    /// Prepares queue pairs for all workers, as many as there are to be.
    pub(super) fn fill_pools(&mut self) -> Result<(), Error> {
        while self.try_to_prepare()? {}
        Ok(())
    }

    /// Prepares a queue pair for a worker that lacks one. Returns whether it did.
    pub(super) fn prepare_one(&mut self) -> bool {
        // Connections have theirs made without: they tell of an error that lasts.
        self.try_to_prepare().inspect_err(|error| tracing::debug!("{error}")).unwrap_or(false)
    }

    fn try_to_prepare(&mut self) -> Result<bool, Error> {
        let wanted = self.config.pool;
        let lacks =
            |worker: &usize| self.pools[*worker].0.len() < wanted && self.pairs(*worker) < self.config.max_connections;
        let Some(worker) = (0..self.workers.len()).find(lacks) else { return Ok(false) };
        let pair = self.with_buffers(self.make_pair(worker)?.init(PORT)?)?;
        self.pools[worker].0.push(pair);
        Ok(true)
    }

    /// A queue pair of a worker's, with its buffers, in the state that `init` brings a new one into; or one that was prepared for
    /// `port`, if it is known.
    pub(super) fn pair_for(
        &mut self,
        worker: usize,
        port: Option<u8>,
        init: impl FnOnce(QueuePair<C, New>) -> Result<QueuePair<C, Init>, Error>,
    ) -> Result<QueuePair<C, Init>, Error> {
        if port.is_none_or(|port| port == PORT)
            && let Some(pair) = self.pools[worker].0.pop()
        {
            return Ok(pair);
        }
        self.with_buffers(init(self.make_pair(worker)?)?)
    }

    /// Queue pairs that are prepared for a worker.
    #[cfg(test)]
    pub(crate) fn prepared(&self, worker: usize) -> usize {
        self.pools[worker].0.len()
    }

    /// Whether a worker has as many connections as it may have: so many completions its queues have room for, and for so many are
    /// the buffers that it shares.
    pub(super) fn is_full(&self, worker: usize) -> bool {
        self.pairs(worker) >= self.config.max_connections && self.pools[worker].0.is_empty()
    }

    /// Queue pairs of a worker's, with those that are prepared.
    fn pairs(&self, worker: usize) -> usize {
        self.workers[worker].queues.iter().map(QueueHandle::pairs).sum()
    }

    /// A queue pair of a worker's, with its ring if it has one.
    fn make_pair(&self, worker: usize) -> Result<QueuePair<C, New>, Error> {
        let seat = &self.workers[worker];
        let queue = seat.queues.iter().min_by_key(|queue| queue.pairs()).filter(|queue| queue.pairs() < seat.most);
        let full = || Error { what: "have room for a connection's completions", error: ErrorKind::StorageFull.into() };
        let pair = QueuePair::new(&self.region, queue.ok_or_else(full)?, seat.shared.as_ref(), &self.pair)?;
        let pair = if self.counters.is_empty() { pair } else { pair.with_counters() };
        let Config { mode, buffers, buffer, .. } = self.config;
        if mode == Mode::Send {
            return Ok(pair);
        }
        let none = || Error { what: "have a ring for a connection", error: ErrorKind::OutOfMemory.into() };
        let block = self.buffers.alloc(usize::from(buffers) * buffer).ok_or_else(none)?;
        Ok(pair.with_ring(Ring::new(&self.region, block, buffer)?))
    }

    fn with_buffers(&self, mut pair: QueuePair<C, Init>) -> Result<QueuePair<C, Init>, Error> {
        if self.config.shared.is_none() {
            pair.post((0..self.config.buffers).map_while(|_| self.buffers.alloc(self.config.buffer)))?;
            if pair.buffers_wanted() > 0 {
                let error = ErrorKind::OutOfMemory.into();
                return Err(Error { what: "have buffers for a connection", error });
            }
        }
        Ok(pair)
    }
}
