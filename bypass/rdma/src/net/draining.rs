//! Queue pairs whose connections are over, until all that was under way has come back.

use super::{Early, Net};
use crate::connection::ConnCore;
use crate::provider::Provider;
use crate::verbs::{Completion, Errored, Qp};
use linerate_bypass::time::Instant;

/// One of them.
pub(super) struct Draining<C: Provider> {
    qp: Qp<C, Errored>,
    since: Instant,
}

impl<C: Provider> Draining<C> {
    fn take_back(&mut self, completion: Completion) {
        if !self.qp.owns(&completion) {
            return;
        }
        // Whatever it is, it is for nobody.
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
    /// A link is over, of which no connection is left. If its queue pair may be used again, what comes for it is kept until the
    /// connector has said whether it will be.
    pub fn bury(&mut self, link: ConnCore<C>) {
        let number = link.transport.number();
        if self.config.reuses() && !self.is_over {
            self.expected.entry(number).or_default();
        } else {
            self.expect_no_more(number);
        }
        self.buried.push(link);
    }

    /// A queue pair of those will be used again, once it is drained.
    pub fn drain(&mut self, qp: Qp<C, Errored>) {
        let number = qp.number();
        let mut draining = Draining { qp, since: self.now };
        for early in self.expected.remove(&number.into()).unwrap_or_default() {
            // Who has sessions has no queue pairs to be used again.
            if let Early::Completion(completion) = early {
                draining.take_back(completion);
            }
        }
        self.go_on_draining(number, draining);
    }

    /// Something of a queue pair that is being drained has come back.
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

    /// Gives up those that have taken too long: the connector destroys them.
    pub(super) fn give_up_draining(&mut self) {
        let (now, patience) = (self.now, self.config.connect_timeout);
        let late = self.draining.extract_if(|_, draining| draining.since + patience <= now);
        self.drained.extend(late.map(|(_, draining)| draining.qp));
    }
}
