//! Load of counters without the server's participation: each request increments a counter by an atomic operation of the
//! RDMA device.

mod counter_lookup;

pub use counter_lookup::{CounterLookup, CounterLookupError};

use super::keyspace::{KEY, Scatter, Zipf, key};
use crate::{Corrupt, Times, Traffic};
use fastrand::Rng;
use linerate_service::time::Instant;
use linerate_service::{ConnId, OneSidedOp, OneSidedResult, RemoteAddr, Transport};
use std::ops::AddAssign;
use std::sync::Arc;

/// One in this many requests is a COMPARE_AND_SWAP; the others are FETCH_AND_ADDs.
pub const SWAP_EVERY: u64 = 16;
/// COMPARE_AND_SWAP attempts before falling back to FETCH_AND_ADD: the expected value of a busy counter may never
/// match.
const TRIES: u32 = 8;

/// Parameters of a counter load.
#[derive(Debug)]
pub struct CountPlan {
    /// Address of each counter.
    pub addrs: Vec<RemoteAddr>,
    /// Outstanding requests on each connection.
    pub depth: usize,
    /// Zipf exponent of the counters' popularity.
    pub zipf: f64,
}

/// Numbers of operations in all phases.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct CountStats {
    /// FETCH_AND_ADDs.
    pub adds: u64,
    /// COMPARE_AND_SWAPs that found the expected value.
    pub swaps: u64,
    /// COMPARE_AND_SWAPs that found another value, each followed by another operation.
    pub misses: u64,
    /// Operations outstanding when their connection was lost, which may or may not have been executed.
    pub unknown: u64,
}

impl CountStats {
    /// Returns the growth of the counters by completed operations.
    pub fn added(&self) -> u64 {
        self.adds + self.swaps
    }

    /// Returns whether these operations explain a growth by `grew`, without increments by other clients.
    pub fn explains(&self, grew: u64) -> bool {
        grew.checked_sub(self.added()).is_some_and(|more| more <= self.unknown)
    }
}

impl AddAssign for CountStats {
    fn add_assign(&mut self, other: CountStats) {
        self.adds += other.adds;
        self.swaps += other.swaps;
        self.misses += other.misses;
        self.unknown += other.unknown;
    }
}

/// An outstanding request.
#[derive(Debug, Clone, Copy)]
struct PendingOp {
    at: Instant,
    counter: usize,
    /// Expected value of a COMPARE_AND_SWAP.
    expect: Option<u64>,
    tries: u32,
}

/// Connection of a [`CountLoad`].
#[derive(Debug, Default)]
pub struct PendingOps {
    ops: Vec<Option<PendingOp>>,
    free: Vec<usize>,
}

impl PendingOps {
    fn len(&self) -> usize {
        self.ops.len() - self.free.len()
    }
}

/// One worker's part of a closed-loop load of counters.
///
/// Every sixteenth request of a worker is a COMPARE_AND_SWAP, without a READ before it: it expects the value that the
/// worker's last operation left and increments it. If the value differs, the next attempt expects the value found.
#[derive(Debug)]
pub struct CountLoad {
    plan: Arc<CountPlan>,
    zipf: Zipf,
    scatter: Scatter,
    rng: Rng,
    begun: u64,
    /// Value of each counter after the last completed operation.
    last: Vec<u64>,
    counted: CountStats,
    requests: u64,
    times: Times,
}

impl CountLoad {
    /// Creates a worker's part of the load of `plan`.
    ///
    /// # Panics
    /// If there are no counters.
    pub fn new(plan: Arc<CountPlan>) -> Self {
        let counters = plan.addrs.len() as u64;
        CountLoad {
            zipf: Zipf::new(counters, plan.zipf),
            scatter: Scatter::new(counters),
            rng: Rng::new(),
            begun: 0,
            last: vec![0; plan.addrs.len()],
            counted: CountStats::default(),
            requests: 0,
            times: Times::default(),
            plan,
        }
    }

    /// Returns the requests completed while measuring.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns the request times, including all attempts.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// Returns the numbers of operations.
    pub fn counted(&self) -> CountStats {
        self.counted
    }

    /// Posts the next operation of `op`.
    fn go_on(&self, net: &mut impl Transport, conn: ConnId, op: &PendingOp, token: usize) -> bool {
        let RemoteAddr { address, key } = self.plan.addrs[op.counter];
        let operation = match op.expect {
            None => OneSidedOp::FetchAdd { address, key, add: 1 },
            Some(expect) => OneSidedOp::CompareSwap { address, key, expect, swap: expect.wrapping_add(1) },
        };
        net.post_one_sided(conn, operation, token as u64).is_ok()
    }
}

/// Returns the name of counter `number`.
pub fn name(number: u64) -> [u8; KEY] {
    key(number)
}

impl Traffic for CountLoad {
    type Stream = PendingOps;

    fn stream(&self, _: usize) -> PendingOps {
        PendingOps::default()
    }

    fn send(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut PendingOps) {
        while stream.len() < self.plan.depth {
            let counter = self.scatter.place(self.zipf.draw(&mut self.rng)) as usize;
            let is_swap = self.begun % SWAP_EVERY == SWAP_EVERY - 1;
            let op = PendingOp { at: net.now(), counter, expect: is_swap.then(|| self.last[counter]), tries: 0 };
            let token = stream.free.pop().unwrap_or_else(|| {
                stream.ops.push(None);
                stream.ops.len() - 1
            });
            if !self.go_on(net, conn, &op, token) {
                // The completion of another operation makes room.
                stream.free.push(token);
                return;
            }
            self.begun += 1;
            stream.ops[token] = Some(op);
        }
    }

    fn receive(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut PendingOps, _: bool) -> Result<(), Corrupt> {
        // This load sends no messages, so it expects none.
        if net.received(conn) > 0 { Err(Corrupt) } else { Ok(()) }
    }

    fn one_sided_done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut PendingOps,
        (token, done): (u64, OneSidedResult),
        measuring: bool,
    ) -> Result<(), Corrupt> {
        let token = token as usize;
        let OneSidedResult::Previous(was) = done else { return Err(Corrupt) };
        let Some(mut op) = stream.ops.get_mut(token).and_then(Option::take) else { return Err(Corrupt) };
        if op.expect.is_some_and(|expect| expect != was) {
            self.counted.misses += 1;
            self.last[op.counter] = was;
            op.tries += 1;
            op.expect = Some(was).filter(|_| op.tries < TRIES);
            if self.go_on(net, conn, &op, token) {
                stream.ops[token] = Some(op);
            } else {
                // Give up the request, which has changed nothing.
                stream.free.push(token);
            }
            return Ok(());
        }
        *(if op.expect.is_some() { &mut self.counted.swaps } else { &mut self.counted.adds }) += 1;
        self.last[op.counter] = was.wrapping_add(1);
        stream.free.push(token);
        if measuring {
            self.requests += 1;
            self.times.record(net.now().as_nanos().saturating_sub(op.at.as_nanos()));
        }
        Ok(())
    }

    fn record_unanswered(&mut self, stream: &PendingOps, until: Instant) {
        stream.ops.iter().flatten().for_each(|op| self.times.record_unanswered(until.since(op.at), 1));
    }

    fn is_idle(&self, stream: &PendingOps) -> bool {
        stream.len() == 0
    }

    fn lost(&mut self, stream: PendingOps) {
        self.counted.unknown += stream.len() as u64;
    }

    fn progress(&self) -> u64 {
        self.requests
    }
}

#[cfg(test)]
mod tests;
