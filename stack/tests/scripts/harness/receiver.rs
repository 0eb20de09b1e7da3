//! A peer that plays itself: it receives what the worker sends over a path that loses what the script says, and
//! acknowledges as a receiver does. For scripts about the course of a recovery rather than about each step of it.

use super::flow::Got;
use super::script::Script;
use super::segment::{Rel, Seg, ack};
use linerate_bypass::time::{Duration, Instant};
use std::collections::VecDeque;

/// The receiving peer.
pub struct Receiver {
    /// What it acknowledges.
    pub next: Rel,
    /// Its own sequence number.
    pub seq: Rel,
    rtt: Duration,
    sack: bool,
    /// What lies beyond `next`, the most recent first.
    islands: Vec<(Rel, Rel)>,
    /// Acknowledgements on their way.
    due: VecDeque<(Instant, Seg)>,
}

impl Receiver {
    /// A peer that has received everything before `next`; its acknowledgements of a segment arrive `rtt` after the segment
    /// was sent.
    pub fn new(next: Rel, rtt: Duration, sack: bool) -> Self {
        Receiver { next, seq: 1, rtt, sack, islands: Vec::new(), due: VecDeque::new() }
    }

    /// Takes in `len` bytes from `seq` on, and returns their acknowledgement.
    pub fn take_data(&mut self, seq: Rel, len: Rel) -> Seg {
        let (mut left, mut right) = (seq, seq + len);
        let duplicate = right <= self.next || self.islands.iter().any(|(l, r)| *l <= left && right <= *r);
        let mut blocks = Vec::new();
        if duplicate {
            // RFC 2883 §4.
            blocks.push((left, right));
        } else if left <= self.next {
            self.next = right;
            while let Some(at) = self.islands.iter().position(|(l, _)| *l <= self.next) {
                self.next = self.next.max(self.islands.remove(at).1);
            }
        } else {
            self.islands.retain(|(l, r)| {
                let apart = *r < left || right < *l;
                if !apart {
                    (left, right) = (left.min(*l), right.max(*r));
                }
                apart
            });
            self.islands.insert(0, (left, right));
        }
        blocks.extend(&self.islands);
        blocks.truncate(3);
        let seg = ack(self.seq, self.next);
        if self.sack { seg.sack(&blocks) } else { seg }
    }

    /// Plays until everything up to `end` has been acknowledged and the worker has got the last acknowledgement, for
    /// `limit` at most; `lose` says of each segment whether it is lost on the way. Returns what the worker has sent.
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
                    let seg = self.take_data(got.seq, got.end() - got.seq);
                    self.due.push_back((got.at + self.rtt, seg));
                }
                sent.push(got);
            }
            if self.next >= end && self.due.is_empty() {
                return sent;
            }
            if script.now() >= until {
                script.fail(&format!("the stream has come to {} of {end} within {limit:?}", self.next));
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

/// How many of `sent` are data that begins at `seq`.
pub fn transmissions(sent: &[Got], seq: Rel) -> usize {
    sent.iter().filter(|got| got.len > 0 && got.seq == seq).count()
}

/// What of `sent` had been sent before, in whole or in part.
pub fn retransmissions(sent: &[Got]) -> Vec<&Got> {
    let mut end = Rel::MIN;
    let again = |got: &&Got| {
        let old = got.len > 0 && got.seq < end;
        end = end.max(got.end());
        old
    };
    sent.iter().filter(again).collect()
}
