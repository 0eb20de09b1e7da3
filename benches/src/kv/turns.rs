//! The key-value service alone: its turns on a transport that is nothing but memory.

use super::memory::{CONNECTIONS, Memory, get, hub, mget, set};
use crate::client::Wrong;
use crate::engine::Bench;
use linerate_bypass::{AppSender, ConnId, Service, WorkerCtx};
use linerate_kv::service::Kv;
use std::time::Duration;

/// What is asked of the service.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Requests that a connection's turn begins with.
    pub depth: usize,
    /// How many keys there are, each as likely as the others.
    pub keys: u64,
    /// Bytes of a value.
    pub value: usize,
    /// GETs of a hundred requests; the others are SETs.
    pub gets: u32,
    /// One MGET asks for all that a connection's turn asks for.
    pub together: bool,
    /// Bytes of what peers may read, if they may.
    pub export: usize,
}

/// The service, filled, with clients that ask for whatever is next.
pub struct Turns {
    kv: Kv,
    net: Memory,
    conns: Vec<ConnId>,
    plan: Plan,
    value: String,
    random: fastrand::Rng,
    /// Bytes of all answers that there should have been.
    expected: u64,
}

/// What the service answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answered {
    /// Bytes that it wrote, which it copied from wherever they were.
    pub written: u64,
    /// Bytes that it sent from where they lay.
    pub sent: u64,
}

impl Turns {
    /// A service on one worker, all keys set.
    ///
    /// # Panics
    /// If the system does not give the memory.
    pub fn new(plan: Plan) -> Self {
        let hub = hub(1, plan.keys, plan.value, plan.export);
        let mut kv = Kv::new(hub, WorkerCtx { worker: 0, workers: 1, app_sender: AppSender::new(Vec::new()) });
        let (net, conns) = Memory::with_clients(&mut kv, 0);
        let random = fastrand::Rng::with_seed(1);
        let mut turns = Turns { kv, net, conns, plan, value: "x".repeat(plan.value), random, expected: 0 };
        for key in 0..plan.keys {
            turns.net.ends[0].clear();
            turns.expected += turns.net.ends[0].send(|requests| set(requests, key, &turns.value));
            server_turn(&mut turns.kv, &mut turns.net, &turns.conns[..1]);
        }
        turns
    }

    /// What it has answered in all.
    pub fn answered(&self) -> Answered {
        Answered { written: self.net.written, sent: self.net.sent }
    }

    fn ask(&mut self) {
        for end in &mut self.net.ends {
            end.clear();
            if self.plan.together {
                let keys = (0..self.plan.depth).map(|_| self.random.u64(..self.plan.keys));
                self.expected += end.send(|requests| mget(requests, keys, self.plan.value));
                continue;
            }
            for _ in 0..self.plan.depth {
                let key = self.random.u64(..self.plan.keys);
                self.expected += if self.random.u32(..100) < self.plan.gets {
                    end.send(|requests| get(requests, key, self.plan.value))
                } else {
                    end.send(|requests| set(requests, key, &self.value))
                };
            }
        }
    }
}

impl Bench for Turns {
    /// As many requests as there must be for whole turns.
    fn run(&mut self, operations: usize) -> Result<Duration, Wrong> {
        let each = CONNECTIONS * self.plan.depth;
        let mut spent = Duration::ZERO;
        for _ in 0..operations.div_ceil(each) {
            self.ask();
            let start = std::time::Instant::now();
            server_turn(&mut self.kv, &mut self.net, &self.conns);
            spent += start.elapsed();
        }
        let Answered { written, sent } = self.answered();
        let missing = self.expected.abs_diff(written + sent);
        if missing == 0 { Ok(spent) } else { Err(Wrong::Answers(missing)) }
    }
}

/// What is timed, and of which instructions are counted, by its name.
#[inline(never)]
pub(super) fn server_turn(kv: &mut Kv, net: &mut Memory, conns: &[ConnId]) {
    let served = kv.burst(net, conns);
    for conn in conns.iter().skip(served) {
        kv.readable(net, *conn, &mut ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_and_long_values_are_sent_from_where_they_lie() {
        let plans = [(64, 100, false, 0), (64, 50, false, 0), (64, 100, true, 0), (1 << 16, 100, false, 1 << 16)];
        for (value, gets, together, in_place) in plans {
            let plan = Plan { depth: 2, keys: 20, value, gets, together, export: 0 };
            let mut turns = Turns::new(plan);
            let before = turns.answered();
            // Whole turns: 64 requests each.
            turns.run(65).unwrap();
            let sent = turns.answered().sent - before.sent;
            assert_eq!(sent, 128 * in_place, "{plan:?}");
        }
    }

    #[test]
    fn an_answer_that_is_missing_is_told() {
        let mut turns = Turns::new(Plan { depth: 1, keys: 1, value: 64, gets: 100, together: false, export: 0 });
        turns.expected += 1;
        assert!(matches!(turns.run(1), Err(Wrong::Answers(1))));
    }
}
