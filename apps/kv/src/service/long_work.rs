//! Fairness between clients by the work of their requests.
//!
//! A turn of a client ends once its requests have cost [`TURN`] or their measured run time reaches [`LONG`]. The client
//! is then queued, and the rest of its work runs from the queue, in turns as well. Commands that run in steps are
//! queued between their steps. The queue yields to all other clients: after long work that delayed any of them, they
//! have the worker for a multiple of its duration.
//!
//! A client that uses the keys of all workers waits for the busiest of them, and an atomic request for keys of all
//! workers occupies them all. If each of `n` workers does such work for a part `p` of the time, others have 1 - np of
//! it. The multiple is 2n, which makes p = 1 / (2n + 1) and leaves others more than a half, up to [`MAX_MULTIPLE`],
//! because long work must not starve either.

use crate::service::Kv;
use crate::service::conn::{Client, PendingRequest};
use crate::service::workers::remote_batch::RemoteBatch;
use linerate_service::time::{Duration, Instant};
use linerate_service::{ConnId, Transport};
use std::collections::VecDeque;

/// Cost of the requests of a client per turn: 64 KB, or some hundred short requests.
const TURN: u64 = 8192;
/// Bytes with a cost of 1.
const BYTES: u64 = 8;
/// Cost of a command, of its parsing, and of two arguments.
const REQUEST: u64 = 16;
/// Run time of the requests of a client that makes a turn long, whatever its cost is.
const LONG: Duration = Duration::from_micros(200);
/// Time of turns from the queue before events are handled, and the assumed duration of a turn that ends by its cost.
const SLICE: Duration = Duration::from_micros(50);

/// Time after short requests in which their clients count as active. A client is silent while it awaits a reply that
/// long work delays, on this worker or another one.
const ACTIVE: Duration = Duration::from_millis(10);

/// Limit of the multiple of long work's duration that others have: that of four workers.
const MAX_MULTIPLE: u32 = 8;

/// Long work that waits for its turn.
enum Queued {
    Client(ConnId),
    /// Requests of another worker's client, the next of which runs in steps.
    Batch(Box<RemoteBatch>),
}

/// Account of long work on one worker.
pub(in crate::service) struct LongWork {
    queue: VecDeque<Queued>,
    /// Stored request of another worker's client that has run in part.
    pub unfinished: Option<PendingRequest>,
    /// Number of requests parsed, of pairs of their arguments, and of requests for other workers.
    pub parsed: u64,
    /// State at the start of the current turn of a client.
    turn: TurnStart,
    /// Duration of long work since the last [`pass`](Self::pass).
    spent: Duration,
    /// Activity, as in [`TurnStart`], at the last pass, and its part of long work since then.
    activity: u64,
    long_activity: u64,
    /// Time of the last pass.
    passed: Instant,
    /// Long requests of the batch that is being run, as clients and durations, if they delayed others.
    pub remote: Vec<(ConnId, Duration)>,
    /// Time of the last pass before which short requests ran.
    last_short: Instant,
    /// Long work of this worker's clients delayed clients of another worker.
    delayed_elsewhere: bool,
    /// Time that belongs to others before long work continues.
    debt: Duration,
    /// Time that others have after long work, as a multiple of its duration.
    multiple: u32,
}

/// State at the start of a turn.
#[derive(Debug, Default, Clone, Copy)]
struct TurnStart {
    /// Bytes of requests.
    input: u64,
    /// Number of commands, plus [`LongWork::parsed`].
    activity: u64,
    spent: Duration,
}

impl LongWork {
    /// Creates the account of one of `workers` workers.
    pub fn new(workers: usize) -> Self {
        LongWork {
            queue: VecDeque::new(),
            unfinished: None,
            parsed: 0,
            turn: TurnStart::default(),
            spent: Duration::ZERO,
            activity: 0,
            long_activity: 0,
            passed: Instant::ZERO,
            remote: Vec::new(),
            last_short: Instant::ZERO,
            delayed_elsewhere: false,
            debt: Duration::ZERO,
            multiple: (2 * workers as u32).min(MAX_MULTIPLE),
        }
    }

    /// Returns true if nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues `conn`, which is not in the queue.
    pub fn push(&mut self, conn: ConnId) {
        self.queue.push_back(Queued::Client(conn));
    }

    /// Queues the requests of another worker's client.
    pub fn push_batch(&mut self, batch: Box<RemoteBatch>) {
        self.queue.push_back(Queued::Batch(batch));
    }

    /// Adds the duration of a request that may have been long.
    #[inline]
    pub fn add(&mut self, duration: Duration) {
        self.spent += duration;
    }

    /// [`add`](Self::add) for a request that another worker has run, where it delayed others.
    pub fn add_remote(&mut self, duration: Duration) {
        self.spent += duration;
        self.delayed_elsewhere = true;
    }

    /// Returns true if long work has run in this turn of the worker.
    pub fn has_worked(&self) -> bool {
        self.spent >= LONG
    }

    /// Returns true if clients with short requests were active at the last pass or shortly before.
    fn are_others_active(&self) -> bool {
        self.passed.since(self.last_short) < ACTIVE
    }

    /// Settles the account at `now`, once per turn of the worker. `activity` is the sum of all requests so far.
    #[inline]
    fn pass(&mut self, now: Instant, activity: u64) {
        let delays_others = self.are_others_active() || std::mem::take(&mut self.delayed_elsewhere);
        if activity - self.activity > std::mem::take(&mut self.long_activity) {
            self.last_short = now;
        }
        self.activity = activity;
        let before = std::mem::replace(&mut self.passed, now);
        if !self.spent.is_zero() || !self.debt.is_zero() {
            let spent = std::mem::take(&mut self.spent);
            let others = now.since(before).saturating_sub(spent);
            let charged = if delays_others || self.last_short == now { self.multiple * spent } else { Duration::ZERO };
            self.debt = (self.debt + charged).saturating_sub(others);
        }
    }

    /// Returns the time until a client of the queue has its turn, or `None` if the queue is empty.
    pub fn rest(&self) -> Option<Duration> {
        // Work since the last pass is not settled yet.
        let rest = if self.spent.is_zero() { self.debt } else { Duration::ZERO };
        (!self.queue.is_empty()).then_some(rest)
    }
}

impl Kv {
    #[inline]
    fn activity(&self) -> u64 {
        self.stats.commands + self.long_work.parsed
    }

    /// Begins a turn of a client.
    #[inline]
    pub(in crate::service) fn begin_turn(&mut self) {
        let (input, activity, spent) = (self.server.tally.input, self.activity(), self.long_work.spent);
        self.long_work.turn = TurnStart { input, activity, spent };
    }

    /// Returns true if the client that is being served has had its share of the turn.
    #[inline]
    pub(in crate::service) fn is_turn_over(&self) -> bool {
        let TurnStart { input, activity, .. } = self.long_work.turn;
        let cost = (self.server.tally.input - input) / BYTES + REQUEST * (self.activity() - activity);
        cost >= TURN || self.is_turn_long()
    }

    #[inline]
    fn is_turn_long(&self) -> bool {
        self.long_work.spent - self.long_work.turn.spent >= LONG
    }

    /// Ends a turn of `client`, which is queued if the turn was long.
    #[inline]
    pub(in crate::service) fn end_turn(&mut self, client: &mut Client) {
        if client.is_queued || self.is_turn_over() {
            self.queue_long(client);
        } else {
            self.long_work.spent = self.long_work.turn.spent;
        }
    }

    #[cold]
    fn queue_long(&mut self, client: &mut Client) {
        if !self.is_turn_long() {
            self.long_work.add(SLICE);
        }
        self.long_work.long_activity += self.activity() - self.long_work.turn.activity;
        if !client.is_queued && !client.is_closing() {
            client.is_queued = true;
            self.long_work.push(client.conn);
        }
        // The turn has been accounted for.
        self.begin_turn();
    }

    /// Calls `work` and returns the time of its requests if they were long, or zero.
    pub(in crate::service) fn account(&mut self, work: impl FnOnce(&mut Self)) -> Duration {
        let before = self.long_work.spent;
        work(self);
        let duration = self.long_work.spent - before;
        if duration >= LONG {
            return duration;
        }
        self.long_work.spent = before;
        Duration::ZERO
    }

    /// [`account`](Self::account) for a request of `conn`, which is a connection of another worker.
    pub(in crate::service) fn account_remote(&mut self, conn: ConnId, work: impl FnOnce(&mut Self)) {
        let duration = self.account(work);
        if !duration.is_zero() {
            self.long_work.long_activity += 1;
            if self.long_work.are_others_active() {
                self.long_work.remote.push((conn, duration));
            }
        }
    }

    /// Serves queued clients for a while, if the queue need not yield.
    pub(in crate::service) fn do_long_work(&mut self, net: &mut impl Transport) {
        self.long_work.pass(net.now(), self.activity());
        self.run_batches();
        if self.long_work.is_empty() || !self.long_work.debt.is_zero() {
            return;
        }
        let (since, activity) = (self.stopwatch.now(), self.activity());
        let LongWork { spent, long_activity, .. } = self.long_work;
        for _ in 0..self.long_work.queue.len() {
            match self.long_work.queue.pop_front() {
                Some(Queued::Client(conn)) => {
                    self.with_client(net, conn, |kv, net, client| kv.take_turn(net, client));
                    self.limit_client_memory(net);
                }
                Some(Queued::Batch(batch)) if self.stores[self.worker].is_some() => self.run_batch(batch),
                Some(lent) => self.long_work.queue.push_back(lent),
                None => break,
            }
            let duration = self.stopwatch.now().since(since);
            self.long_work.spent = spent + duration;
            if duration >= SLICE {
                break;
            }
        }
        self.long_work.long_activity = long_activity + self.activity() - activity;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// Does long work of `duration`, with `short` requests in the same turn of the worker.
    fn work_for(work: &mut LongWork, duration: Duration, short: u64) {
        work.add(duration);
        work.long_activity += 1;
        work.pass(work.passed + duration, work.activity + 1 + short);
    }

    #[test]
    fn others_have_twice_the_time_of_long_work_that_delayed_them() {
        for millis in [1, 3, 600] {
            let mut work = LongWork::new(1);
            work_for(&mut work, millis * MILLI, 1);
            // The times of two requests add up.
            work_for(&mut work, 2 * MILLI, 7);
            let start = work.passed;
            while !work.debt.is_zero() {
                work.pass(work.passed + MILLI / 10, work.activity + 1);
            }
            assert_eq!(work.passed.since(start), 2 * (millis + 2) * MILLI);
        }
    }

    #[test]
    fn long_work_that_delays_nobody_is_free() {
        let mut work = LongWork::new(1);
        work.passed = Instant::ZERO + ACTIVE;
        work_for(&mut work, 100 * MILLI, 0);
        assert!(work.debt.is_zero());
        work_for(&mut work, MILLI, 1);
        // The client of the short request may wait for the reply.
        work_for(&mut work, 100 * MILLI, 0);
        assert_eq!(work.debt, 202 * MILLI);
        work_for(&mut work, 100 * MILLI, 0);
        assert_eq!(work.debt, 202 * MILLI);
        work.add_remote(MILLI);
        work_for(&mut work, Duration::ZERO, 0);
        assert_eq!(work.debt, 204 * MILLI);
    }

    #[test]
    fn work_that_occupies_up_to_four_workers_leaves_half_of_the_time() {
        for workers in 1..=4 {
            let mut work = LongWork::new(workers);
            work_for(&mut work, MILLI, 1);
            let share = 1.0 / (1.0 + work.debt.div_duration_f64(MILLI));
            assert!(workers as f64 * share < 0.5, "{workers}");
        }
    }

    #[test]
    fn rest_lasts_until_the_debt_is_paid() {
        let mut work = LongWork::new(1);
        work_for(&mut work, 3 * MILLI, 1);
        assert_eq!(work.rest(), None);
        work.push(ConnId::from_bits(1));
        assert_eq!(work.rest(), Some(6 * MILLI));
        work.pass(work.passed + 4 * MILLI, work.activity + 1);
        work.pass(work.passed + 3 * MILLI / 2, work.activity);
        assert_eq!(work.rest(), Some(MILLI / 2));
        work.add(MILLI);
        assert_eq!(work.rest(), Some(Duration::ZERO));
    }
}
