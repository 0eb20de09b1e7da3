//! Queue pairs of ended connections, until all their requests have completed.

use super::{Early, Net};
use crate::connection::ConnCore;
use crate::provider::Provider;
use crate::verbs::{Completion, Errored, Qp};
use linerate_service::time::Instant;

/// Queue pair being drained.
pub(super) struct Draining<C: Provider> {
    qp: Qp<C, Errored>,
    since: Instant,
}

impl<C: Provider> Draining<C> {
    fn take_back(&mut self, completion: Completion) {
        if !self.qp.owns(&completion) {
            return;
        }
        // The connection has ended, so the result is dropped.
        if completion.is_buffer() {
            drop(self.qp.received(completion));
        } else {
            drop(self.qp.sent(completion));
        }
    }
}

impl<C: Provider> From<Draining<C>> for Qp<C, Errored> {
    fn from(draining: Draining<C>) -> Self {
        draining.qp
    }
}

impl<C: Provider> Net<C> {
    /// Hands an ended connection to the connector. If its queue pair may be reused, its completions are kept until
    /// the connector decides.
    pub fn retire(&mut self, link: ConnCore<C>) {
        let number = link.transport.number();
        if self.config.reuses() && !self.is_over {
            self.expected.entry(number).or_default();
        } else {
            self.expect_no_more(number);
        }
        self.retired.push(link);
    }

    /// Drains a queue pair that will be reused.
    pub fn drain(&mut self, qp: Qp<C, Errored>) {
        let number = qp.number();
        let mut draining = Draining { qp, since: self.now };
        for early in self.expected.remove(&number.into()).unwrap_or_default() {
            // Sessions have no queue pairs to reuse.
            if let Early::Completion(completion) = early {
                draining.take_back(completion);
            }
        }
        self.go_on_draining(number, draining);
    }

    /// Processes a completion of a queue pair being drained.
    #[cold]
    pub(super) fn come_back(&mut self, completion: Completion) {
        let number = completion.qp();
        let Some(mut draining) = self.draining.remove(&number) else { return };
        draining.take_back(completion);
        self.go_on_draining(number, draining);
    }

    fn go_on_draining(&mut self, number: u32, mut draining: Draining<C>) {
        match draining.qp.drain() {
            Ok(false) => _ = self.draining.insert(number, draining),
            Ok(true) => self.drained.push(draining.qp),
            Err(error) => {
                tracing::debug!("{error}");
                self.drained.push(draining.qp);
            }
        }
    }

    /// Stops draining queue pairs that take too long. The connector destroys them.
    pub(super) fn give_up_draining(&mut self) {
        let (now, patience) = (self.now, self.config.connect_timeout);
        let late = self.draining.extract_if(|_, draining| draining.since + patience <= now);
        self.drained.extend(late.map(|(_, draining)| draining.qp));
    }
}
