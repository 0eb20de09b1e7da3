//! Queue pairs whose connections are over, until all comes back that they had of a shared receive queue.
//!
//! IBA 10.3.1 has the order: the state of error, the event of the last buffer, all completions polled, and then the end. Drivers of
//! hardware take the completions of a queue pair that is destroyed out of its queue, so that what had not been polled before would be
//! posted for ever as far as anybody knows.

use super::Connector;
use crate::ConnectorEvent;
use crate::provider::{Handle, Provider};
use crate::verbs::{Errored, Qp};
use linerate_bypass::time::{Duration, Instant};

/// How long a device may take to say that a queue pair has had its last buffer of a shared queue. Soft-RoCE says so from Linux 6.5 on,
/// and not before; it leaves the completions of what is destroyed.
const LAST_BUFFER: Duration = Duration::from_millis(100);

/// A queue pair that goes.
pub(super) struct Leaving<C: Provider> {
    qp: Qp<C, Errored>,
    /// Whether its worker has been asked to poll all that has been completed.
    is_asked: bool,
    /// It is not waited for longer than that.
    until: Instant,
}

impl<C: Provider> Connector<C> {
    /// The connection of a queue pair that has a shared queue is over, or will not be made. `had_last` tells whether it is known to
    /// have had its last buffer.
    pub(super) fn leave<S>(&mut self, worker: usize, qp: Qp<C, S>, had_last: bool, now: Instant) {
        let number = qp.number();
        match qp.fail() {
            Ok(qp) => {
                let leaving = Leaving { qp, is_asked: false, until: now + LAST_BUFFER };
                self.pools[worker].leaving.insert(number, leaving);
                if had_last {
                    self.have_polled(worker, number, now);
                }
            }
            // The device is of no use any more, and neither are its buffers.
            Err(error) => tracing::debug!("{error}"),
        }
    }

    /// A queue pair in the state of error has had its last buffer. It may be a connection's that is not over yet.
    pub(super) fn had_last(&mut self, qp: Handle, now: Instant) {
        let is_it = |leaving: &Leaving<C>| leaving.qp.handle() == qp && !leaving.is_asked;
        let found = self.pools.iter().enumerate().find_map(|(worker, pool)| {
            pool.leaving.iter().find(|(_, leaving)| is_it(leaving)).map(|(number, _)| (worker, *number))
        });
        if let Some((worker, number)) = found {
            self.have_polled(worker, number, now);
        } else if let Some(made) = self.made.values_mut().find(|made| made.qp == qp) {
            made.had_last = true;
        }
    }

    /// All that a queue pair had has been completed: its worker is to poll that.
    fn have_polled(&mut self, worker: usize, number: u32, now: Instant) {
        let patience = self.config.connect_timeout;
        if let Some(leaving) = self.pools[worker].leaving.get_mut(&number) {
            (leaving.is_asked, leaving.until) = (true, now + patience);
            self.tell(worker, ConnectorEvent::Poll(number));
        }
    }

    /// A worker has polled all that was completed for a queue pair, which goes.
    pub(super) fn polled(&mut self, worker: usize, number: u32) {
        let leaving = &mut self.pools[worker].leaving;
        if leaving.get(&number).is_some_and(|leaving| leaving.is_asked) {
            leaving.remove(&number);
        }
    }

    /// Goes on with those of which nothing was heard for too long: where the device says nothing, the worker is asked; where the worker
    /// does not, it has ended. Returns whether there were any.
    pub(super) fn leave_late(&mut self, now: Instant) -> bool {
        let mut any = false;
        for worker in 0..self.pools.len() {
            let leaving = &mut self.pools[worker].leaving;
            any |= leaving.extract_if(|_, leaving| leaving.is_asked && leaving.until <= now).count() > 0;
            let late = leaving.iter().filter(|(_, leaving)| leaving.until <= now);
            for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
                any = true;
                self.have_polled(worker, number, now);
            }
        }
        any
    }
}
