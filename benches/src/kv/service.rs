//! Key-value service alone, on an in-memory transport.

use super::memory::{CONNECTIONS, Memory, get, hub, mget, set};
use crate::client::BenchError;
use crate::engine::Bench;
use linerate_kv::service::Kv;
use linerate_service::{AppSender, ConnId, Service, WorkerCtx};
use std::time::Duration;

/// Workload of the service.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Requests per burst of a connection.
    pub depth: usize,
    /// Number of keys, uniformly distributed.
    pub keys: u64,
    /// Size of a value in bytes.
    pub value: usize,
    /// Percentage of GETs; the others are SETs.
    pub gets: u32,
    /// True if one MGET requests all keys of a burst.
    pub together: bool,
}

/// Filled service, and its clients.
pub struct ServiceBench {
    kv: Kv,
    net: Memory,
    conns: Vec<ConnId>,
    workload: Workload,
    value: String,
    random: fastrand::Rng,
    /// Expected total length of all replies.
    expected: u64,
}

/// Reply bytes of the service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answered {
    /// Bytes written, that is, copied.
    pub written: u64,
    /// Bytes sent without a copy.
    pub sent: u64,
}

impl ServiceBench {
    /// Creates a service on one worker with all keys set.
    ///
    /// # Panics
    /// If memory is unavailable.
    pub fn new(workload: Workload) -> Self {
        let hub = hub(1, workload.keys, workload.value, false);
        let mut kv = Kv::new(hub, WorkerCtx { worker: 0, workers: 1, app_sender: AppSender::new(Vec::new()) });
        let (net, conns) = Memory::with_clients(&mut kv, 0);
        let random = fastrand::Rng::with_seed(1);
        let mut bench =
            ServiceBench { kv, net, conns, workload, value: "x".repeat(workload.value), random, expected: 0 };
        for key in 0..workload.keys {
            bench.net.ends[0].clear();
            bench.expected += bench.net.ends[0].send(|requests| set(requests, key, &bench.value));
            server_turn(&mut bench.kv, &mut bench.net, &bench.conns[..1]);
            bench.finish_turns();
        }
        bench
    }

    /// Returns the total reply bytes.
    pub fn answered(&self) -> Answered {
        Answered { written: self.net.written, sent: self.net.sent }
    }

    /// Serves clients whose turn ended before their last request, because of long values.
    fn finish_turns(&mut self) {
        let mut before = None;
        while before != Some(self.answered()) {
            before = Some(self.answered());
            self.net.now += Duration::from_secs(1);
            self.kv.turn(&mut self.net);
        }
    }

    fn send_requests(&mut self) {
        for end in &mut self.net.ends {
            end.clear();
            if self.workload.together {
                let keys = (0..self.workload.depth).map(|_| self.random.u64(..self.workload.keys));
                self.expected += end.send(|requests| mget(requests, keys, self.workload.value));
                continue;
            }
            for _ in 0..self.workload.depth {
                let key = self.random.u64(..self.workload.keys);
                self.expected += if self.random.u32(..100) < self.workload.gets {
                    end.send(|requests| get(requests, key, self.workload.value))
                } else {
                    end.send(|requests| set(requests, key, &self.value))
                };
            }
        }
    }
}

impl Bench for ServiceBench {
    /// Runs `operations` requests, rounded up to whole turns.
    fn run(&mut self, operations: usize) -> Result<Duration, BenchError> {
        let each = CONNECTIONS * self.workload.depth;
        let mut spent = Duration::ZERO;
        for _ in 0..operations.div_ceil(each) {
            self.send_requests();
            let start = std::time::Instant::now();
            server_turn(&mut self.kv, &mut self.net, &self.conns);
            spent += start.elapsed();
            self.finish_turns();
        }
        let Answered { written, sent } = self.answered();
        let missing = self.expected.abs_diff(written + sent);
        if missing == 0 { Ok(spent) } else { Err(BenchError::Answers(missing)) }
    }
}

/// Timed region, in a separate function so that its instructions are counted by its name.
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
    fn requests_are_answered_and_long_values_are_not_copied() {
        let plans = [(64, 100, false, 0), (64, 50, false, 0), (64, 100, true, 0), (1 << 16, 100, false, 1 << 16)];
        for (value, gets, together, uncopied) in plans {
            let workload = Workload { depth: 2, keys: 20, value, gets, together };
            let mut bench = ServiceBench::new(workload);
            let before = bench.answered();
            // Whole turns of 64 requests.
            bench.run(65).unwrap();
            let sent = bench.answered().sent - before.sent;
            assert_eq!(sent, 128 * uncopied, "{workload:?}");
        }
    }

    #[test]
    fn missing_reply_is_reported() {
        let mut bench = ServiceBench::new(Workload { depth: 1, keys: 1, value: 64, gets: 100, together: false });
        bench.expected += 1;
        assert!(matches!(bench.run(1), Err(BenchError::Answers(1))));
    }
}
