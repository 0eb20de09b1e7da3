//! Queue pairs that go once all has been polled that was completed for them: buffers of a shared queue may be among it, which nobody
//! would hear of else.

use super::{BURST, Net};
use crate::provider::Provider;
use crate::verbs::Cq;

/// These queue pairs, by their numbers, and for each how often the queues are polled at most until that is done: as often as it takes
/// for a queue that was full, while what is completed meanwhile comes behind (IBA 10.3.1).
#[derive(Default)]
pub(super) struct Polling(Vec<(u32, u32)>);

impl Polling {
    /// Each queue has been polled, and whether all of them were empty then.
    pub fn polled(&mut self, were_empty: bool) {
        for (_, left) in &mut self.0 {
            *left = if were_empty { 0 } else { left.saturating_sub(1) };
        }
    }

    /// Those for which all has been polled, when it has been taken in.
    pub fn take_done(&mut self, done: &mut Vec<u32>) {
        done.extend(self.0.extract_if(.., |(_, left)| *left == 0).map(|(number, _)| number));
    }
}

impl<C: Provider> Net<C> {
    /// All is to be polled that has been completed for a queue pair.
    pub fn poll_for(&mut self, number: u32) {
        let entries = self.cqs.iter().map(Cq::entries).max().unwrap_or(0);
        self.polling.0.push((number, entries.div_ceil(BURST as u32).max(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_done_when_all_queues_were_empty_or_have_been_polled_as_often_as_one_that_was_full_takes() {
        let mut polling = Polling(vec![(1, 2)]);
        let mut done = Vec::new();
        let turn = |polling: &mut Polling, done: &mut Vec<u32>, were_empty| {
            polling.polled(were_empty);
            polling.take_done(done);
        };
        turn(&mut polling, &mut done, false);
        // What is asked for after the poll waits for the next.
        polling.0.push((2, 2));
        polling.take_done(&mut done);
        assert_eq!(done, []);
        turn(&mut polling, &mut done, false);
        assert_eq!(done, [1]);
        turn(&mut polling, &mut done, true);
        assert_eq!(done, [1, 2]);
    }
}
