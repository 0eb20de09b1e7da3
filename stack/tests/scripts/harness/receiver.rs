//! Automatic receiver for scripts that test a whole recovery: receives the worker's segments over a lossy path and
//! acknowledges them.

use super::flow::Got;
use super::script::Script;
use super::segment::{Rel, Seg, ack};
use linerate_service::time::{Duration, Instant};
use std::collections::VecDeque;

/// Receiving peer.
pub struct Receiver {
    /// Next expected sequence number.
    pub next: Rel,
    /// Sequence number of its acknowledgements.
    pub seq: Rel,
    rtt: Duration,
    sack: bool,
    /// Ranges received beyond `next`, most recent first.
    out_of_order: Vec<(Rel, Rel)>,
    /// Acknowledgements in flight.
    due: VecDeque<(Instant, Seg)>,
}

impl Receiver {
    /// Creates a peer that has received all bytes before `next`. An acknowledgement arrives `rtt` after its segment was
    /// sent.
    pub fn new(next: Rel, rtt: Duration, sack: bool) -> Self {
        Receiver { next, seq: 1, rtt, sack, out_of_order: Vec::new(), due: VecDeque::new() }
    }

    /// Receives `len` bytes at `seq` and returns their acknowledgement.
    pub fn receive(&mut self, seq: Rel, len: Rel) -> Seg {
        let (mut left, mut right) = (seq, seq + len);
        let duplicate = right <= self.next || self.out_of_order.iter().any(|(l, r)| *l <= left && right <= *r);
        let mut blocks = Vec::new();
        if duplicate {
            // RFC 2883 §4.
            blocks.push((left, right));
        } else if left <= self.next {
            self.next = right;
            while let Some(at) = self.out_of_order.iter().position(|(l, _)| *l <= self.next) {
                self.next = self.next.max(self.out_of_order.remove(at).1);
            }
        } else {
            self.out_of_order.retain(|(l, r)| {
                let apart = *r < left || right < *l;
                if !apart {
                    (left, right) = (left.min(*l), right.max(*r));
                }
                apart
            });
            self.out_of_order.insert(0, (left, right));
        }
        blocks.extend(&self.out_of_order);
        blocks.truncate(3);
        let seg = ack(self.seq, self.next);
        if self.sack { seg.sack(&blocks) } else { seg }
    }

    /// Runs until all data up to `end` has been acknowledged and the last acknowledgement has arrived, for at most
    /// `limit`. `lose` returns true for segments that the path drops. Returns the segments that the worker has sent.
    #[track_caller]
    pub fn play(
        &mut self,
        script: &mut Script,
        end: Rel,
        limit: Duration,
        mut lose: impl FnMut(&Got) -> bool,
    ) -> Vec<Got> {
        let until = script.now() + limit;
        let mut sent = Vec::new();
        loop {
            for got in script.drain() {
                if got.len > 0 && !lose(&got) {
                    let seg = self.receive(got.seq, got.end() - got.seq);
                    self.due.push_back((got.at + self.rtt, seg));
                }
                sent.push(got);
            }
            if self.next >= end && self.due.is_empty() {
                return sent;
            }
            if script.now() >= until {
                script.fail(&format!("the stream reached {} of {end} within {limit:?}", self.next));
            }
            let next = self.due.front().map_or(until, |(at, _)| *at).min(until);
            script.run_until(next, |script| !script.pending.is_empty());
            if script.pending.is_empty()
                && self.due.front().is_some_and(|(at, _)| *at <= script.now())
                && let Some((_, seg)) = self.due.pop_front()
            {
                script.inject(seg);
            }
        }
    }
}

/// Returns the number of data segments in `sent` that begin at `seq`.
pub fn transmissions(sent: &[Got], seq: Rel) -> usize {
    sent.iter().filter(|got| got.len > 0 && got.seq == seq).count()
}

/// Returns the data segments in `sent` that repeat earlier data, in whole or in part.
pub fn retransmissions(sent: &[Got]) -> Vec<&Got> {
    let mut end = Rel::MIN;
    let again = |got: &&Got| {
        let old = got.len > 0 && got.seq < end;
        end = end.max(got.end());
        old
    };
    sent.iter().filter(again).collect()
}
