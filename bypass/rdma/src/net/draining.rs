//! Queue pairs whose connections are over, until all that was under way has come back.

use super::{Early, Net};
use crate::calls::Calls;
use crate::connection::Link;
use crate::verbs::{Completion, Errored, QueuePair};
use linerate_bypass::time::Instant;

/// One of them.
pub(super) struct Draining<C: Calls> {
    pair: QueuePair<C, Errored>,
    since: Instant,
}

impl<C: Calls> Draining<C> {
    fn take_back(&mut self, completion: Completion) {
        if !self.pair.owns(&completion) {
            return;
        }
        // Whatever it is, it is for nobody.
        if completion.is_buffer() {
            drop(self.pair.received(completion));
        } else {
            drop(self.pair.sent(completion));
        }
    }
}

impl<C: Calls> From<Draining<C>> for QueuePair<C, Errored> {
    fn from(draining: Draining<C>) -> Self {
        draining.pair
    }
}

impl<C: Calls> Net<C> {
    /// A link is over, of which no connection is left. If its queue pair may be used again, what comes for it is kept until the
    /// connector has said whether it will be.
    pub fn bury(&mut self, link: Link<C>) {
        let number = link.carrier.number();
        if self.config.reuses() && !self.is_over {
            self.expected.entry(number).or_default();
        } else {
            self.expect_no_more(number);
        }
        self.buried.push(link);
    }

    /// A queue pair of those will be used again, once it is drained.
    pub fn drain(&mut self, pair: QueuePair<C, Errored>) {
        let number = pair.number();
        let mut draining = Draining { pair, since: self.now };
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
        let number = completion.pair();
        let Some(mut draining) = self.draining.remove(&number) else { return };
        draining.take_back(completion);
        self.go_on_draining(number, draining);
    }

    fn go_on_draining(&mut self, number: u32, mut draining: Draining<C>) {
        match draining.pair.drain() {
            Ok(false) => _ = self.draining.insert(number, draining),
            Ok(true) => self.drained.push(draining.pair),
            Err(error) => {
                tracing::debug!("{error}");
                self.drained.push(draining.pair);
            }
        }
    }

    /// Gives up those that have taken too long: the connector destroys them.
    pub(super) fn give_up_draining(&mut self) {
        let (now, patience) = (self.now, self.config.connect_timeout);
        let late = self.draining.extract_if(|_, draining| draining.since + patience <= now);
        self.drained.extend(late.map(|(_, draining)| draining.pair));
    }
}
