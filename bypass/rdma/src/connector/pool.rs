//! Queue pairs for connections: prepared ahead, or made when they are asked for.

use super::draining::Leaving;
use super::{Connector, Way, WorkerHandle};
use crate::provider::Provider;
use crate::verbs::{CqHandle, Drained, Error, Errored, Init, New, Qp, Ring, Rts};
use crate::{Config, ConnectorEvent, Mode};
use linerate_bypass::time::{Duration, Instant};
use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;

/// Queue pairs of one worker for connections to come. The port they would go by is the first; connections by another have theirs
/// made.
///
/// A queue pair whose connection is over comes back, if there is a place for it: it is [drained](Connector::retire) by its worker,
/// [rests](Connector::come_back) until nothing of the old connection is left on its way, and is [reset](Connector::take_up), so that
/// nothing but its number is what it was.
pub(super) struct Pool<C: Provider> {
    /// Those that have their buffers, and wait for a peer.
    ready: Vec<Qp<C, Init>>,
    /// How many the worker drains.
    draining: usize,
    /// Those that rest, and until when.
    resting: VecDeque<(Instant, Qp<C, Drained>)>,
    /// Those that go, by their numbers.
    pub(super) leaving: HashMap<u32, Leaving<C>>,
}

/// The port that prepared queue pairs go by.
const PORT: u8 = 1;

impl<C: Provider> Default for Pool<C> {
    fn default() -> Self {
        Pool { ready: Vec::new(), draining: 0, resting: VecDeque::new(), leaving: HashMap::new() }
    }
}

impl<C: Provider> Connector<C> {
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
        let lacks = |worker: &usize| {
            let (pool, qps) = (&self.pools[*worker], self.qps(*worker));
            let to_come = pool.ready.len() + pool.draining;
            // What is in use comes back: as long as half are there, no others are made.
            let is_short = to_come < wanted.div_ceil(2) || qps < wanted;
            is_short && pool.ready.len() < wanted && qps < self.config.max_connections
        };
        let Some(worker) = (0..self.workers.len()).find(lacks) else { return Ok(false) };
        let qp = self.with_buffers(self.make_qp(worker)?.init(PORT)?)?;
        self.pools[worker].ready.push(qp);
        Ok(true)
    }

    /// The connection of a queue pair is over. Its worker drains it, if it is to be used again; it is destroyed, if not.
    pub(super) fn retire(&mut self, worker: usize, qp: Qp<C, Rts>) {
        if !self.config.reuses() {
            return;
        }
        let number = qp.number();
        let Pool { ready, draining, resting, .. } = &self.pools[worker];
        let has_place = ready.len() + draining + resting.len() < self.config.pool;
        // A connection that is asked for meanwhile needs a place, too.
        if has_place && self.qps(worker) < self.config.max_connections {
            match qp.fail() {
                Ok(qp) => {
                    self.pools[worker].draining += 1;
                    return self.tell(worker, ConnectorEvent::Drain(qp));
                }
                Err(error) => tracing::debug!("{error}"),
            }
        }
        // The worker keeps what comes for it.
        self.tell(worker, ConnectorEvent::Unexpected(number.into()));
    }

    /// A queue pair comes back from its worker.
    pub(super) fn come_back(&mut self, worker: usize, qp: Qp<C, Errored>, now: Instant) {
        let rests = match self.listeners.0 {
            Way::Manager { .. } => self.config.reuse_after,
            // The first packet's number, which is drawn anew, is all that it takes.
            Way::Exchange(_) => Duration::ZERO,
        };
        let pool = &mut self.pools[worker];
        pool.draining -= 1;
        match qp.drained() {
            Ok(qp) => pool.resting.push_back((now + rests, qp)),
            Err(qp) => tracing::debug!("queue pair {} is not drained, and goes", qp.number()),
        }
    }

    /// Prepares queue pairs that have rested. Returns whether there were any.
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
                let renewed = qp.reset().and_then(|qp| self.furnish(qp)?.init(PORT));
                match renewed.and_then(|qp| self.with_buffers(qp)) {
                    Ok(qp) => self.pools[worker].ready.push(qp),
                    Err(error) => tracing::debug!("{error}"),
                }
            }
        }
        any
    }

    /// A queue pair of a worker's, with its buffers, in the state that `init` brings a new one into; or one that was prepared for
    /// `port`, if it is known.
    pub(super) fn qp_for(
        &mut self,
        worker: usize,
        port: Option<u8>,
        init: impl FnOnce(Qp<C, New>) -> Result<Qp<C, Init>, Error>,
    ) -> Result<Qp<C, Init>, Error> {
        if port.is_none_or(|port| port == PORT)
            && let Some(qp) = self.pools[worker].ready.pop()
        {
            return Ok(qp);
        }
        if self.qps(worker) >= self.config.max_connections {
            // One that rests is in the way.
            self.pools[worker].resting.pop_front();
        }
        self.with_buffers(init(self.make_qp(worker)?)?)
    }

    /// Queue pairs that are prepared for a worker.
    #[cfg(test)]
    pub(crate) fn prepared(&self, worker: usize) -> usize {
        self.pools[worker].ready.len()
    }

    /// Whether a worker has as many connections as it may have: so many completions its queues have room for, and for so many are
    /// the buffers that it shares.
    pub(super) fn is_full(&self, worker: usize) -> bool {
        if self.workers[worker].datagrams.is_some() {
            return self.made.values().filter(|made| made.worker == worker).count() >= self.config.max_connections;
        }
        let Pool { ready, resting, .. } = &self.pools[worker];
        let is_most = self.qps(worker) - resting.len() >= self.config.max_connections;
        // Those that go have room for their completions beside, for as many as go at a time if not all do at once.
        let WorkerHandle { cqs, most, .. } = &self.workers[worker];
        let has_room = !resting.is_empty() || cqs.iter().any(|cq| cq.qps() < *most);
        ready.is_empty() && (is_most || !has_room)
    }

    /// Queue pairs of a worker's, with those that are prepared, and without those that go.
    fn qps(&self, worker: usize) -> usize {
        let qps: usize = self.workers[worker].cqs.iter().map(CqHandle::qps).sum();
        qps.saturating_sub(self.pools[worker].leaving.len())
    }

    /// A queue pair of a worker's, with its ring if it has one.
    fn make_qp(&self, worker: usize) -> Result<Qp<C, New>, Error> {
        let seat = &self.workers[worker];
        let cq = seat.cqs.iter().min_by_key(|cq| cq.qps()).filter(|cq| cq.qps() < seat.most);
        let full = || Error { what: "have room for a connection's completions", error: ErrorKind::StorageFull.into() };
        let qp = Qp::new(&self.mr, cq.ok_or_else(full)?, seat.srq.as_ref(), &self.qp)?;
        self.furnish(qp)
    }

    /// Gives a new queue pair what its peer may reach.
    fn furnish(&self, qp: Qp<C, New>) -> Result<Qp<C, New>, Error> {
        let qp = if self.counters.is_empty() { qp } else { qp.with_counters() };
        let Config { mode, buffers, buffer, .. } = self.config;
        if mode == Mode::Send {
            return Ok(qp);
        }
        let none = || Error { what: "have a ring for a connection", error: ErrorKind::OutOfMemory.into() };
        let block = self.buffers.alloc(usize::from(buffers) * buffer).ok_or_else(none)?;
        Ok(qp.with_ring(Ring::new(&self.mr, block, buffer)?))
    }

    fn with_buffers(&self, mut qp: Qp<C, Init>) -> Result<Qp<C, Init>, Error> {
        if self.config.srq.is_none() {
            qp.post((0..self.config.buffers).map_while(|_| self.buffers.alloc(self.config.buffer)))?;
            if qp.recv_room() > 0 {
                let error = ErrorKind::OutOfMemory.into();
                return Err(Error { what: "have buffers for a connection", error });
            }
        }
        Ok(qp)
    }
}
