//! Queue pairs that may be destroyed once all their completions are polled: completions of shared receive buffers
//! would otherwise be lost.

use super::{BURST, Net};
use crate::provider::Provider;
use crate::verbs::Cq;

/// Numbers of the queue pairs, each with the maximum number of polls that remain: enough to empty a full queue, since
/// later completions follow those that are queued (IBA 10.3.1).
#[derive(Default)]
pub(super) struct Polling(Vec<(u32, u32)>);

impl Polling {
    /// Records one poll of each queue, and whether it found all queues empty.
    pub fn polled(&mut self, were_empty: bool) {
        for (_, left) in &mut self.0 {
            *left = if were_empty { 0 } else { left.saturating_sub(1) };
        }
    }

    /// Moves the finished numbers to `done`, after the polled completions were processed.
    pub fn take_done(&mut self, done: &mut Vec<u32>) {
        done.extend(self.0.extract_if(.., |(_, left)| *left == 0).map(|(number, _)| number));
    }
}

impl<C: Provider> Net<C> {
    /// Polls all completions of a queue pair before its destruction.
    pub fn poll_for(&mut self, number: u32) {
        self.polling.0.push((number, self.polls_until_empty()));
    }

    /// Returns the number of polls that take all present entries of a full queue.
    pub(super) fn polls_until_empty(&self) -> u32 {
        let entries = self.cqs.iter().map(Cq::entries).max().unwrap_or(0);
        entries.div_ceil(BURST as u32).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_ends_after_empty_queues_or_enough_polls() {
        let mut polling = Polling(vec![(1, 2)]);
        let mut done = Vec::new();
        let turn = |polling: &mut Polling, done: &mut Vec<u32>, were_empty| {
            polling.polled(were_empty);
            polling.take_done(done);
        };
        turn(&mut polling, &mut done, false);
        // An entry added after a poll waits for the next one.
        polling.0.push((2, 2));
        polling.take_done(&mut done);
        assert_eq!(done, []);
        turn(&mut polling, &mut done, false);
        assert_eq!(done, [1]);
        turn(&mut polling, &mut done, true);
        assert_eq!(done, [1, 2]);
    }
}
