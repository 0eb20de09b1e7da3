//! Queue pairs for connections: prepared in advance or created on demand.

use super::draining::Leaving;
use super::{Connector, ListenerKind};
use crate::ConnectorEvent;
use crate::provider::Provider;
use crate::verbs::{CqHandle, Drained, Error, Errored, Init, New, Qp, Rts};
use linerate_service::time::{Duration, Instant};
use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;

/// Prepared queue pairs of one worker, for the first port. Connections by another port create their own.
///
/// The queue pair of an ended connection is reused if the pool has room: its worker [drains](Connector::recycle)
/// it, it [rests](Connector::rest_drained) until no packets of the old connection are left, and it is
/// [reset](Connector::take_up) with only its number unchanged.
pub(super) struct Pool<C: Provider> {
    /// Ready with posted buffers.
    pub(super) ready: Vec<Qp<C, Init>>,
    /// Number of queue pairs that the worker drains.
    draining: usize,
    /// Resting queue pairs, with the end of their rest.
    pub(super) resting: VecDeque<(Instant, Qp<C, Drained>)>,
    /// Queue pairs to be destroyed, by number.
    pub(super) leaving: HashMap<u32, Leaving<C>>,
}

impl<C: Provider> Default for Pool<C> {
    fn default() -> Self {
        Pool { ready: Vec::new(), draining: 0, resting: VecDeque::new(), leaving: HashMap::new() }
    }
}

impl<C: Provider> Connector<C> {
    /// Fills the pools of all workers.
    pub(super) fn fill_pools(&mut self) -> Result<(), Error> {
        while self.try_to_prepare()? {}
        Ok(())
    }

    /// Prepares one queue pair for a worker that lacks one. Returns true if it did.
    pub(super) fn prepare_one(&mut self) -> bool {
        // A connection creates its queue pair on demand and reports a persistent error.
        self.try_to_prepare().inspect_err(|error| tracing::debug!("{error}")).unwrap_or(false)
    }

    fn try_to_prepare(&mut self) -> Result<bool, Error> {
        let wanted = self.config.pool;
        let lacks = |worker: &usize| {
            let (pool, qps) = (&self.pools[*worker], self.qps(*worker));
            let to_come = pool.ready.len() + pool.draining;
            // Queue pairs in use will return, so that none is created while half are available.
            let is_short = to_come < wanted.div_ceil(2) || qps < wanted;
            let has_cqs = !self.workers[*worker].cqs.is_empty();
            has_cqs && is_short && pool.ready.len() < wanted && qps < self.config.max_connections
        };
        let Some(worker) = (0..self.workers.len()).find(lacks) else { return Ok(false) };
        let (port, pkey_index) = (self.config.first_port(), self.config.path.pkey_index);
        let qp = self.with_buffers(self.make_qp(worker)?.init_in(port, pkey_index)?)?;
        self.pools[worker].ready.push(qp);
        Ok(true)
    }

    /// Drains the queue pair of an ended connection for reuse, or destroys it.
    pub(super) fn recycle(&mut self, worker: usize, qp: Qp<C, Rts>) {
        if !self.config.reuses() {
            return;
        }
        let number = qp.number();
        let Pool { ready, draining, resting, .. } = &self.pools[worker];
        // The worker no longer polls a completion queue that was replaced.
        let is_polled = self.workers[worker].cqs.iter().any(|cq| qp.completes_in(cq));
        let may_keep = is_polled && ready.len() + draining + resting.len() < self.config.pool;
        // A connection requested meanwhile also needs a queue pair.
        if may_keep && self.qps(worker) < self.config.max_connections {
            match qp.fail() {
                Ok(qp) => {
                    self.pools[worker].draining += 1;
                    return self.notify(worker, ConnectorEvent::Drain(qp));
                }
                Err(error) => tracing::debug!("{error}"),
            }
        }
        // The worker keeps completions for the queue pair.
        self.notify(worker, ConnectorEvent::Unexpected(number.into()));
    }

    /// Processes a queue pair that its worker has drained.
    pub(super) fn rest_drained(&mut self, worker: usize, qp: Qp<C, Errored>, now: Instant) {
        let rests = match self.listeners.0 {
            ListenerKind::Manager { .. } => self.config.reuse_after,
            // A new random PSN is sufficient.
            ListenerKind::Exchange(_) => Duration::ZERO,
        };
        let is_current = self.workers[worker].cqs.iter().any(|cq| qp.completes_in(cq));
        let pool = &mut self.pools[worker];
        pool.draining -= 1;
        if !is_current {
            // Its completion queue was replaced.
            return;
        }
        match qp.drained() {
            Ok(qp) => pool.resting.push_back((now + rests, qp)),
            Err(qp) => tracing::debug!("queue pair {} is not drained and is destroyed", qp.number()),
        }
    }

    /// Prepares queue pairs that have rested. Returns true if there were any.
    pub(super) fn take_up(&mut self, now: Instant) -> bool {
        let mut any = false;
        for worker in 0..self.pools.len() {
            while self.pools[worker].resting.front().is_some_and(|(until, _)| *until <= now)
                && let Some((_, qp)) = self.pools[worker].resting.pop_front()
            {
                any = true;
                if self.pools[worker].ready.len() >= self.config.pool {
                    continue;
                }
                let renewed = qp
                    .reset()
                    .and_then(|qp| self.furnish(qp).init_in(self.config.first_port(), self.config.path.pkey_index));
                match renewed.and_then(|qp| self.with_buffers(qp)) {
                    Ok(qp) => self.pools[worker].ready.push(qp),
                    Err(error) => tracing::debug!("{error}"),
                }
            }
        }
        any
    }

    /// Returns a queue pair of a worker with posted buffers: one that was prepared for `port`, if it is known, or a
    /// new one that `init` moves to INIT.
    pub(super) fn qp_for(
        &mut self,
        worker: usize,
        port: Option<u8>,
        init: impl FnOnce(Qp<C, New>) -> Result<Qp<C, Init>, Error>,
    ) -> Result<Qp<C, Init>, Error> {
        if port.is_none_or(|port| port == self.config.first_port())
            && let Some(qp) = self.pools[worker].ready.pop()
        {
            return Ok(qp);
        }
        if self.qps(worker) >= self.config.max_connections {
            // A resting queue pair counts towards the limit.
            self.pools[worker].resting.pop_front();
        }
        self.with_buffers(init(self.make_qp(worker)?)?)
    }

    /// Returns the number of prepared queue pairs of a worker.
    #[cfg(test)]
    pub(crate) fn prepared(&self, worker: usize) -> usize {
        self.pools[worker].ready.len()
    }

    /// Returns true if a worker has the maximum number of connections, for which its completion queues and shared
    /// buffers are sized.
    pub(super) fn is_full(&self, worker: usize) -> bool {
        if self.workers[worker].cqs.is_empty() {
            return true;
        }
        if self.workers[worker].datagrams.is_some() {
            return self.made.values().filter(|made| made.worker == worker).count() >= self.config.max_connections;
        }
        let Pool { ready, resting, .. } = &self.pools[worker];
        let is_most = self.qps(worker) - resting.len() >= self.config.max_connections;
        // Completion queues have spare room for queue pairs being destroyed, but not if all are destroyed at once.
        let has_room = !resting.is_empty() || self.workers[worker].cqs.iter().any(CqHandle::has_room);
        ready.is_empty() && (is_most || !has_room)
    }

    /// Returns the number of queue pairs of a worker, including prepared ones and excluding those being destroyed.
    fn qps(&self, worker: usize) -> usize {
        let qps: usize = self.workers[worker].cqs.iter().map(CqHandle::qps).sum();
        qps.saturating_sub(self.pools[worker].leaving.len())
    }

    /// Creates a queue pair. Its completions go to the first queue with room, so that few connections use few entries.
    fn make_qp(&self, worker: usize) -> Result<Qp<C, New>, Error> {
        let handle = &self.workers[worker];
        let cq = handle.cqs.iter().find(|cq| cq.has_room());
        let full =
            || Error { operation: "find room for a connection's completions", error: ErrorKind::StorageFull.into() };
        let qp = Qp::new(&self.mr, cq.ok_or_else(full)?, handle.srq.as_ref(), &self.qp)?;
        Ok(self.furnish(qp))
    }

    /// Grants the peer access to the counters, if there are any.
    fn furnish(&self, qp: Qp<C, New>) -> Qp<C, New> {
        if self.counters.is_empty() { qp } else { qp.with_counters() }
    }

    fn with_buffers(&self, mut qp: Qp<C, Init>) -> Result<Qp<C, Init>, Error> {
        if self.config.srq.is_none() {
            qp.post((0..self.config.buffers).map_while(|_| self.buffers.alloc(self.config.buffer)))?;
            if qp.recv_room() > 0 {
                let error = ErrorKind::OutOfMemory.into();
                return Err(Error { operation: "allocate buffers for a connection", error });
            }
        }
        Ok(qp)
    }
}
