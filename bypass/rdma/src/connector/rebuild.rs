//! Replacement of a worker's queues after one of them has failed.

use super::pool::Pool;
use super::{Connector, ListenerKind, UdQpHandle};
use crate::ConnectorEvent;
use crate::provider::{Handle, Provider};
use crate::queues::Queues;
use linerate_service::ConnectError;
use linerate_service::time::Instant;

impl<C: Provider> Connector<C> {
    /// Replaces the queues of the worker whose completion queue or shared receive queue `queue` has failed. All
    /// connections of the worker end, because their queue pairs cannot change queues.
    pub(super) fn queue_failed(&mut self, queue: Handle, now: Instant) {
        let is_it = |worker: &super::WorkerHandle<C>| {
            worker.cqs.iter().any(|cq| cq.handle() == queue)
                || worker.srq.as_ref().is_some_and(|srq| srq.handle() == queue)
        };
        // An unknown queue was already replaced.
        let Some(worker) = self.workers.iter().position(is_it) else { return };
        let device = self.mr.pd().provider().name().to_owned();
        tracing::error!("{device}: a queue of worker {worker} has failed: its connections end, and it gets new queues");
        self.give_up_connecting(worker, now);
        // All queue pairs of the pool use the old queues. The worker returns the queue pairs that it drains.
        let Pool { ready, resting, leaving, .. } = &mut self.pools[worker];
        ready.clear();
        resting.clear();
        leaving.clear();
        let handle = &mut self.workers[worker];
        // Without queues, the worker gets no new connections. It stays without them if the replacement fails.
        (handle.cqs, handle.srq, handle.datagrams) = (Vec::new(), None, None);
        let made = Queues::new(&self.config, &self.limits, &self.mr, &self.buffers, handle.channel.as_ref(), worker);
        match made {
            Ok(queues) => {
                handle.cqs = queues.cqs.iter().map(|cq| cq.handle().clone()).collect();
                handle.srq = queues.srq.as_ref().map(|srq| srq.handle().clone());
                handle.datagrams = queues.datagrams.as_ref().map(UdQpHandle::of);
                self.notify(worker, ConnectorEvent::Rebuilt(Box::new(queues)));
            }
            Err(error) => {
                tracing::error!("{device}: worker {worker} accepts no further connections: {error}");
                self.lose(linerate_service::CloseReason::Reset, |made| made.worker == worker);
                if self.workers.iter().all(|worker| worker.cqs.is_empty()) {
                    self.device_failed("no completion queue is left");
                }
            }
        }
    }

    /// Gives up the connections being established for a worker.
    fn give_up_connecting(&mut self, worker: usize, now: Instant) {
        let pending: Vec<_> = self.pending.extract_if(|_, pending| pending.has_qp_of(worker)).collect();
        for (_, pending) in pending {
            self.refused(pending, ConnectError::Unreachable, now);
        }
        if let ListenerKind::Exchange(exchange) = &mut self.listeners.0 {
            for handshake in exchange.take_of(worker) {
                self.give_up(handshake, ConnectError::Unreachable, now);
            }
        }
    }

    /// Returns the worker of the next connection: the workers take turns, except those without queues.
    pub(super) fn next_worker(&mut self) -> usize {
        let count = self.workers.len();
        let turns = (0..count).map(|at| (self.next + at) % count);
        let worker = turns.into_iter().find(|worker| !self.workers[*worker].cqs.is_empty()).unwrap_or(self.next);
        self.next = (worker + 1) % count;
        worker
    }
}
