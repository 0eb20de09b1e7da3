//! Replies of several workers to one client, written in the order of the requests.
//!
//! The requests that a client sends in one turn form a round as soon as one of them belongs to another worker. Those
//! for this worker run at once, and their replies are held. Those for another worker go into its batch, at most one
//! for each worker. When the last batch has returned, the replies are written in request order.

use crate::commands::Session;
use crate::resp::number::Digits;
use crate::service::conn::output::{Mark, Replies};
use crate::value::Sink;

/// Limit of the requests of a round for one other worker.
pub(in crate::service) const MAX_REQUESTS: usize = 1024;

/// Replies in the order of execution, and their boundaries.
#[derive(Default)]
pub(in crate::service) struct ReplyList {
    pub replies: Replies,
    /// End of each reply.
    pub ends: Vec<Mark>,
    /// Number of the next reply to be written.
    pub next: usize,
    /// Start of that reply.
    pub from: Mark,
}

impl ReplyList {
    /// Takes the next `count` replies as a range.
    #[inline]
    fn take(&mut self, count: usize) -> Option<(Mark, Mark)> {
        self.next += count;
        let to = *self.ends.get(self.next.checked_sub(1)?)?;
        Some((std::mem::replace(&mut self.from, to), to))
    }

    fn memory(&self) -> usize {
        self.replies.memory() + self.ends.capacity() * size_of::<Mark>()
    }

    pub fn clear(&mut self) {
        self.replies.clear();
        self.ends.clear();
        (self.next, self.from) = (0, Mark::default());
    }
}

/// Use of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum ReplyUse {
    /// Complete reply, or element of an array.
    Text,
    /// Reply of a silent request, which is dropped.
    Silent,
    /// Digit 0 or 1, to be added to the sum.
    Digit,
    /// Sum of the digits as an integer. The digits that follow belong to the next sum. No worker sends this reply.
    Sum,
}

impl ReplyUse {
    /// Returns the use of the reply to the current request of `session`.
    pub fn in_session(session: &Session) -> Self {
        if session.is_silent() { ReplyUse::Silent } else { ReplyUse::Text }
    }
}

/// Consecutive replies of one worker.
#[derive(Debug, Clone, Copy)]
struct Run {
    owner: usize,
    reply_use: ReplyUse,
    count: usize,
}

/// Requests of a client in the batch for one worker.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct BatchPart {
    pub owner: usize,
    /// Number of requests before them in the batch.
    pub requests: usize,
    /// Number of request bytes before them in the batch.
    pub text: usize,
}

/// Requests of a client in one turn, some of which run on other workers.
#[derive(Default)]
pub(in crate::service) struct ReplyRound {
    pub parts: Vec<BatchPart>,
    runs: Vec<Run>,
    /// Replies of this worker.
    pub held: ReplyList,
    /// Replies that returned while others were missing, with their workers.
    early: Vec<(usize, ReplyList)>,
    /// Empty lists for reuse.
    spare: Vec<ReplyList>,
    /// The batches are complete. No request is added.
    pub is_sealed: bool,
    /// Number of batches that have not returned, once the round is sealed.
    pub missing: usize,
    /// Bytes of the requests sent to other workers.
    pub sent: usize,
}

impl ReplyRound {
    /// Appends a reply of `owner`.
    #[inline]
    pub fn expect(&mut self, owner: usize, reply_use: ReplyUse) {
        match self.runs.last_mut() {
            Some(run) if run.owner == owner && run.reply_use == reply_use => run.count += 1,
            _ => self.runs.push(Run { owner, reply_use, count: 1 }),
        }
    }

    /// Appends a reply of this worker, `own`, which ends at `end` in the held replies.
    #[inline]
    pub fn hold(&mut self, own: usize, end: Mark, reply_use: ReplyUse) {
        self.held.ends.push(end);
        self.expect(own, reply_use);
    }

    /// Stores the next replies of `batch`, up to number `end`: their worker `owner` was faster than others.
    pub fn keep(&mut self, owner: usize, batch: &mut ReplyList, end: usize) {
        let mut list = self.spare.pop().unwrap_or_default();
        let (first, from) = (batch.next, batch.from);
        list.ends.extend(batch.ends[first..end].iter().map(|end| end.since(from)));
        if let Some((from, to)) = batch.take(end - first) {
            list.replies.append(&mut batch.replies, from, Some(to));
        }
        self.early.push((owner, list));
    }

    /// Writes all replies to `out`. The last missing replies, from the worker `owner`, are next in `batch`. All other
    /// replies are [held](Self::hold) by this worker, `own`, or [kept](Self::keep).
    pub fn write(&mut self, own: usize, owner: usize, batch: &mut ReplyList, out: &mut Replies) {
        let ReplyRound { runs, held, early, .. } = self;
        let mut sum = 0;
        for run in runs.iter() {
            if run.reply_use == ReplyUse::Sum {
                out.put(b":");
                out.put(&Digits::new(std::mem::take(&mut sum)));
                out.put(b"\r\n");
                continue;
            }
            let list = if run.owner == own {
                &mut *held
            } else if run.owner == owner {
                &mut *batch
            } else if let Some((_, list)) = early.iter_mut().find(|(early, _)| *early == run.owner) {
                list
            } else {
                continue;
            };
            let Some((from, to)) = list.take(run.count) else { continue };
            match run.reply_use {
                ReplyUse::Digit => sum += list.replies.sum_of_digits(from, to),
                ReplyUse::Silent => {}
                ReplyUse::Text | ReplyUse::Sum => out.append(&mut list.replies, from, Some(to)),
            }
        }
    }

    /// Empties the round for reuse.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.runs.clear();
        self.held.clear();
        for (_, mut list) in self.early.drain(..) {
            list.clear();
            self.spare.push(list);
        }
        (self.is_sealed, self.sent) = (false, 0);
    }

    /// Returns the memory of the requests and of the replies that have arrived.
    pub fn memory(&self) -> usize {
        let lists = self.early.iter().map(|(_, list)| list).chain([&self.held]).map(ReplyList::memory);
        self.sent + self.runs.capacity() * size_of::<Run>() + lists.sum::<usize>()
    }
}
