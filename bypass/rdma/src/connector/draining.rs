//! Destruction of queue pairs with a shared receive queue, after all their shared buffers have completed.
//!
//! IBA 10.3.1 requires this order: ERROR state, last-WQE-reached event, all completions polled, destruction. Drivers
//! of hardware remove the completions of a destroyed queue pair from its completion queue, so that unpolled buffers
//! would be lost.

use super::Connector;
use crate::ConnectorEvent;
use crate::provider::{Handle, Provider};
use crate::verbs::{Errored, Qp};
use linerate_service::time::{Duration, Instant};

/// Maximum wait for the last-WQE-reached event. Soft-RoCE generates it since Linux 6.5 only; it keeps completions of
/// destroyed queue pairs.
const LAST_BUFFER: Duration = Duration::from_millis(100);

/// Queue pair being drained.
pub(super) struct Leaving<C: Provider> {
    qp: Qp<C, Errored>,
    /// The worker was requested to poll all completions.
    poll_requested: bool,
    /// Deadline of the current step.
    until: Instant,
}

impl<C: Provider> Connector<C> {
    /// Drains a queue pair whose connection has ended or was not established. With `had_last`, the last-WQE-reached
    /// event was already received.
    pub(super) fn leave<S>(&mut self, worker: usize, qp: Qp<C, S>, had_last: bool, now: Instant) {
        let number = qp.number();
        match qp.fail() {
            Ok(qp) => {
                let leaving = Leaving { qp, poll_requested: false, until: now + LAST_BUFFER };
                self.pools[worker].leaving.insert(number, leaving);
                if had_last {
                    self.have_polled(worker, number, now);
                }
            }
            // The device has failed, and its buffers with it.
            Err(error) => tracing::debug!("{error}"),
        }
    }

    /// Handles a last-WQE-reached event. The connection may not have ended yet.
    pub(super) fn had_last(&mut self, qp: Handle, now: Instant) {
        let is_it = |leaving: &Leaving<C>| leaving.qp.handle() == qp && !leaving.poll_requested;
        let found = self.pools.iter().enumerate().find_map(|(worker, pool)| {
            pool.leaving.iter().find(|(_, leaving)| is_it(leaving)).map(|(number, _)| (worker, *number))
        });
        if let Some((worker, number)) = found {
            self.have_polled(worker, number, now);
        } else if let Some(made) = self.made.values_mut().find(|made| made.qp == qp) {
            made.had_last = true;
        }
    }

    /// Requests the worker to poll all completions of a queue pair.
    fn have_polled(&mut self, worker: usize, number: u32, now: Instant) {
        let patience = self.config.connect_timeout;
        if let Some(leaving) = self.pools[worker].leaving.get_mut(&number) {
            (leaving.poll_requested, leaving.until) = (true, now + patience);
            self.notify(worker, ConnectorEvent::Poll(number));
        }
    }

    /// Destroys a queue pair whose completions the worker has polled.
    pub(super) fn polled(&mut self, worker: usize, number: u32) {
        let leaving = &mut self.pools[worker].leaving;
        if leaving.get(&number).is_some_and(|leaving| leaving.poll_requested) {
            leaving.remove(&number);
        }
    }

    /// Continues draining after a time-out: without a last-WQE-reached event, requests the worker to poll; without a
    /// reply of the worker, which has ended, destroys the queue pair. Returns true if there was a time-out.
    pub(super) fn leave_late(&mut self, now: Instant) -> bool {
        let mut any = false;
        for worker in 0..self.pools.len() {
            let leaving = &mut self.pools[worker].leaving;
            any |= leaving.extract_if(|_, leaving| leaving.poll_requested && leaving.until <= now).count() > 0;
            let late = leaving.iter().filter(|(_, leaving)| leaving.until <= now);
            for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
                any = true;
                self.have_polled(worker, number, now);
            }
        }
        any
    }
}
