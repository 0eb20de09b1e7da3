//! Workers on a link in memory, on a virtual clock: a whole network in one test.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod client;
pub mod frames;
pub mod observer;
pub mod recorder;
pub mod services;

use linerate_bypass::Service;
use linerate_bypass::memory::{Link, LinkConfig, MemoryNic};
use linerate_bypass::time::{Duration, Instant};
use linerate_stack::{Config, Crossing, Worker};

pub const SERVER: &str = "10.0.0.2";
pub const SERVER6: &str = "fd00::2";

/// The configuration of a host `10.0.0.N` and `fd00::N`.
pub fn host(n: u8) -> Config {
    Config {
        addresses: vec![format!("10.0.0.{n}/24").parse().unwrap(), format!("fd00::{n}/64").parse().unwrap()],
        mac: Some(format!("02:00:00:00:00:{n:02x}").parse().unwrap()),
        seed: n.into(),
        ..Config::default()
    }
}

/// The configuration of host 2 listening on port 7 of all its addresses.
pub fn server() -> Config {
    Config {
        listen: vec!["0.0.0.0:7".parse().unwrap(), "[::]:7".parse().unwrap()],
        listen_udp: vec!["0.0.0.0:7".parse().unwrap(), "[::]:7".parse().unwrap()],
        ..host(2)
    }
}

/// One host on an end of a link: as many workers as it has queues.
pub struct Host<S: Service> {
    pub workers: Vec<Worker<MemoryNic, S>>,
}

impl<S: Service> Host<S> {
    pub fn new(config: &Config, nics: Vec<MemoryNic>, mut service: impl FnMut() -> S) -> Self {
        let crossings = Crossing::between(nics.len());
        let worker = |(nic, crossing)| Worker::new(config, crossing, nic, |_| service(), Instant::ZERO);
        Host { workers: nics.into_iter().zip(crossings).map(worker).collect() }
    }

    pub fn service(&self) -> &S {
        self.workers[0].service()
    }

    pub fn drops(&mut self, cause: &str) -> u64 {
        self.workers.iter_mut().map(|worker| worker.summary().drops.get(cause).copied().unwrap_or(0)).sum()
    }
}

/// Two hosts and the link between them.
pub struct Net<A: Service, B: Service> {
    pub a: Host<A>,
    pub b: Host<B>,
    pub link: Link,
}

impl<A: Service, B: Service> Net<A, B> {
    /// Host 1 with `a` and the server with `b`, one worker each.
    pub fn new(link: LinkConfig, a: impl FnMut() -> A, b: impl FnMut() -> B) -> Self {
        Self::with(link, 1, &host(1), a, &server(), b)
    }

    pub fn with(
        link: LinkConfig,
        queues: usize,
        a_config: &Config,
        a: impl FnMut() -> A,
        b_config: &Config,
        b: impl FnMut() -> B,
    ) -> Self {
        let (a_nics, b_nics) = Link::with_queues(link, queues);
        let link = a_nics[0].link().clone();
        Net { a: Host::new(a_config, a_nics, a), b: Host::new(b_config, b_nics, b), link }
    }

    pub fn now(&self) -> Instant {
        self.link.clock().now()
    }

    /// Lets everything happen that can happen now; returns whether anything did.
    pub fn turn(&mut self) -> bool {
        let now = self.now();
        let a: usize = self.a.workers.iter_mut().map(|worker| worker.turn(now)).sum();
        let b: usize = self.b.workers.iter_mut().map(|worker| worker.turn(now)).sum();
        a + b > 0
    }

    /// Goes on until `done`, moving the clock to whatever comes next, for `limit` of its time at most. Returns whether
    /// it was done.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let until = self.now() + limit;
        loop {
            while self.turn() {
                if done(self) {
                    return true;
                }
            }
            if done(self) {
                return true;
            }
            let now = self.now();
            let mut next = until;
            for worker in &mut self.a.workers {
                next = next.min(next_of(worker));
            }
            for worker in &mut self.b.workers {
                next = next.min(next_of(worker));
            }
            if now >= until {
                return false;
            }
            // A deadline of now that led to nothing: a microsecond on.
            self.link.clock().advance_to(next.max(now + Duration::from_micros(1)));
        }
    }

    /// As [`run_until`](Self::run_until), and it must be done.
    pub fn expect(&mut self, what: &str, limit: Duration, done: impl FnMut(&mut Self) -> bool) {
        let began = self.now();
        assert!(self.run_until(limit, done), "not within {limit:?} of {began:?}: {what}");
    }
}

fn next_of<S: Service>(worker: &mut Worker<MemoryNic, S>) -> Instant {
    let arrival = worker.nic().next_arrival();
    [arrival, worker.next_deadline()].into_iter().flatten().min().unwrap_or(Instant::from_nanos(u64::MAX))
}
