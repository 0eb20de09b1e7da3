//! Requests that the server has no part in: each adds 1 to a counter of its, by an atomic operation of the RDMA device.

use super::super::{Corrupt, Traffic, histogram_of_nanos};
use super::keys::{Scatter, key};
use super::zipf::Zipf;
use fastrand::Rng;
use hdrhistogram::Histogram;
use linerate_bypass::time::Instant;
use linerate_bypass::{ConnId, OneSidedOp, OneSidedResult, RemoteAddr, Transport};
use std::ops::AddAssign;
use std::sync::Arc;

/// Of so many requests one compares and swaps; the others add.
pub const SWAP_EVERY: u64 = 16;
/// How often one compares and swaps before it adds after all: a counter that is changed all the time may never be what was expected.
const TRIES: u32 = 8;

/// What is to be counted with.
#[derive(Debug)]
pub struct CountPlan {
    /// Where each counter is.
    pub places: Vec<RemoteAddr>,
    /// Requests on the way on each connection.
    pub depth: usize,
    /// The k-th most popular counter is counted with in proportion to k to the minus this.
    pub zipf: f64,
}

/// Operations, at whatever time.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Operations that added.
    pub adds: u64,
    /// Swaps that found what they expected.
    pub swaps: u64,
    /// Swaps that did not, after which there was another operation.
    pub misses: u64,
    /// Operations that were on their way when their connection was lost: they may have been done or not.
    pub unknown: u64,
}

impl Counted {
    /// By how much the counters grew by operations that were answered.
    pub fn added(&self) -> u64 {
        self.adds + self.swaps
    }

    /// Whether counters that grew by `grew` are what these operations made of them, if nobody else counted.
    pub fn explains(&self, grew: u64) -> bool {
        grew.checked_sub(self.added()).is_some_and(|more| more <= self.unknown)
    }
}

impl AddAssign for Counted {
    fn add_assign(&mut self, other: Counted) {
        self.adds += other.adds;
        self.swaps += other.swaps;
        self.misses += other.misses;
        self.unknown += other.unknown;
    }
}

/// A request on its way.
#[derive(Debug, Clone, Copy)]
struct Lane {
    at: Instant,
    counter: usize,
    /// What is expected of the counter, if it is to be swapped.
    expect: Option<u64>,
    tries: u32,
}

/// A connection of a [`CountLoad`].
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: Vec<Option<Lane>>,
    free: Vec<usize>,
}

impl Lanes {
    fn len(&self) -> usize {
        self.lanes.len() - self.free.len()
    }
}

/// One worker's part of a load that counts: a closed loop.
///
/// Every sixteenth request of a worker reads nothing before, but expects the counter to be what the last operation of this worker left
/// there, and swaps that with one more; if it was another number, it expects that, and tries again.
#[derive(Debug)]
pub struct CountLoad {
    plan: Arc<CountPlan>,
    zipf: Zipf,
    scatter: Scatter,
    rng: Rng,
    begun: u64,
    /// What each counter was when an operation was last answered.
    last: Vec<u64>,
    counted: Counted,
    requests: u64,
    nanos: Histogram<u64>,
}

impl CountLoad {
    /// A part of the load of `plan`.
    ///
    /// # Panics
    /// If there is no counter.
    pub fn new(plan: Arc<CountPlan>) -> Self {
        let counters = plan.places.len() as u64;
        CountLoad {
            zipf: Zipf::new(counters, plan.zipf),
            scatter: Scatter::new(counters),
            rng: Rng::new(),
            begun: 0,
            last: vec![0; plan.places.len()],
            counted: Counted::default(),
            requests: 0,
            nanos: histogram_of_nanos(),
            plan,
        }
    }

    /// Requests that were done while measuring.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// How long each took, with all of its tries, in nanoseconds.
    pub fn nanos(&self) -> &Histogram<u64> {
        &self.nanos
    }

    /// All operations.
    pub fn counted(&self) -> Counted {
        self.counted
    }

    /// Does what `lane` is to do next.
    fn go_on(&self, net: &mut impl Transport, conn: ConnId, lane: &Lane, token: usize) -> bool {
        let RemoteAddr { address, key } = self.plan.places[lane.counter];
        let operation = match lane.expect {
            None => OneSidedOp::FetchAdd { address, key, add: 1 },
            Some(expect) => OneSidedOp::CompareSwap { address, key, expect, swap: expect.wrapping_add(1) },
        };
        net.post_one_sided(conn, operation, token as u64).is_ok()
    }
}

/// What the counter of this number is called.
pub fn name(number: u64) -> [u8; super::keys::KEY] {
    key(number)
}

impl Traffic for CountLoad {
    type Stream = Lanes;

    fn stream(&self, _: usize) -> Lanes {
        Lanes::default()
    }

    fn send(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Lanes) {
        while stream.len() < self.plan.depth {
            let counter = self.scatter.of(self.zipf.draw(&mut self.rng)) as usize;
            let is_swap = self.begun % SWAP_EVERY == SWAP_EVERY - 1;
            let lane = Lane { at: net.now(), counter, expect: is_swap.then(|| self.last[counter]), tries: 0 };
            let token = stream.free.pop().unwrap_or_else(|| {
                stream.lanes.push(None);
                stream.lanes.len() - 1
            });
            if !self.go_on(net, conn, &lane, token) {
                // When another is done, there is room.
                stream.free.push(token);
                return;
            }
            self.begun += 1;
            stream.lanes[token] = Some(lane);
        }
    }

    fn receive(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut Lanes, _: bool) -> Result<(), Corrupt> {
        // Nothing was asked for.
        if net.received(conn) > 0 { Err(Corrupt) } else { Ok(()) }
    }

    fn one_sided_done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        stream: &mut Lanes,
        (token, done): (u64, OneSidedResult),
        measuring: bool,
    ) -> Result<(), Corrupt> {
        let token = token as usize;
        let OneSidedResult::Previous(was) = done else { return Err(Corrupt) };
        let Some(mut lane) = stream.lanes.get_mut(token).and_then(Option::take) else { return Err(Corrupt) };
        if lane.expect.is_some_and(|expect| expect != was) {
            self.counted.misses += 1;
            self.last[lane.counter] = was;
            lane.tries += 1;
            lane.expect = Some(was).filter(|_| lane.tries < TRIES);
            if self.go_on(net, conn, &lane, token) {
                stream.lanes[token] = Some(lane);
            } else {
                // It is given up, and has changed nothing.
                stream.free.push(token);
            }
            return Ok(());
        }
        *(if lane.expect.is_some() { &mut self.counted.swaps } else { &mut self.counted.adds }) += 1;
        self.last[lane.counter] = was.wrapping_add(1);
        stream.free.push(token);
        if measuring {
            self.requests += 1;
            self.nanos.saturating_record(net.now().as_nanos().saturating_sub(lane.at.as_nanos()));
        }
        Ok(())
    }

    fn is_idle(&self, stream: &Lanes) -> bool {
        stream.len() == 0
    }

    fn lost(&mut self, stream: Lanes) {
        self.counted.unknown += stream.len() as u64;
    }

    fn progress(&self) -> u64 {
        self.requests
    }
}

#[cfg(test)]
mod tests;
