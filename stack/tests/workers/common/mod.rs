//! Two hosts on an in-memory link, on a virtual clock.

pub mod client;
pub mod frames;
pub mod observer;
pub mod recorder;
pub mod services;

use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic, MemoryPacket};
use linerate_service::Service;
use linerate_service::time::{Duration, Instant};
use linerate_stack::{Config, Engine, Mailboxes, NativeEngine, Worker};

/// Ethernet address of the host in [`server`].
pub const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const SERVER: &str = "10.0.0.2";
pub const SERVER6: &str = "fd00::2";

/// Maximum number of turns without a clock step. Runs that terminate need far fewer.
const TURNS_AT_ONCE: usize = 100_000;

/// Returns the configuration of the host `10.0.0.N`, `fd00::N`.
pub fn host(n: u8) -> Config {
    Config {
        addresses: vec![format!("10.0.0.{n}/24").parse().unwrap(), format!("fd00::{n}/64").parse().unwrap()],
        mac: Some(format!("02:00:00:00:00:{n:02x}").parse().unwrap()),
        dad_transmits: 0,
        seed: n.into(),
        ..Config::default()
    }
}

/// Returns the configuration of host 2 with port 7 open on all its addresses.
pub fn server() -> Config {
    Config {
        listen: vec!["0.0.0.0:7".parse().unwrap(), "[::]:7".parse().unwrap()],
        listen_udp: vec!["0.0.0.0:7".parse().unwrap(), "[::]:7".parse().unwrap()],
        ..host(2)
    }
}

/// Default engine.
pub type Native = NativeEngine<MemoryPacket>;

/// Defines tests with each engine at both ends, from functions that are generic over both engines.
macro_rules! with_each_engine {
    ($($test:ident),* $(,)?) => {
        mod native_to_native {
            $(#[test] fn $test() { super::$test::<$crate::common::Native, $crate::common::Native>(); })*
        }
        #[cfg(feature = "smoltcp-engine")]
        mod smoltcp_to_smoltcp {
            use linerate_stack::SmoltcpEngine;
            $(#[test] fn $test() { super::$test::<SmoltcpEngine, SmoltcpEngine>(); })*
        }
    };
}

/// Defines tests with each engine, from functions that are generic over one engine.
macro_rules! with_one_engine {
    ($($test:ident),* $(,)?) => {
        mod native_engine {
            $(#[test] fn $test() { super::$test::<$crate::common::Native>(); })*
        }
        #[cfg(feature = "smoltcp-engine")]
        mod smoltcp_engine {
            $(#[test] fn $test() { super::$test::<linerate_stack::SmoltcpEngine>(); })*
        }
    };
}

/// Defines tests with different engines at client and server, from functions that are generic over both.
macro_rules! with_unlike_engines {
    ($($test:ident),* $(,)?) => {
        #[cfg(feature = "smoltcp-engine")]
        mod native_to_smoltcp {
            $(#[test] fn $test() { super::$test::<$crate::common::Native, linerate_stack::SmoltcpEngine>(); })*
        }
        #[cfg(feature = "smoltcp-engine")]
        mod smoltcp_to_native {
            $(#[test] fn $test() { super::$test::<linerate_stack::SmoltcpEngine, $crate::common::Native>(); })*
        }
    };
}

/// Defines tests with all four pairs of engines, from functions that are generic over both.
macro_rules! with_all_engine_pairs {
    ($($test:ident),* $(,)?) => {
        with_each_engine! { $($test),* }
        with_unlike_engines! { $($test),* }
    };
}

/// Host at one end of a link, with one worker per queue.
pub struct Host<S: Service, E: Engine<MemoryNic> = Native> {
    pub workers: Vec<Worker<MemoryNic, S, E>>,
}

impl<S: Service> Host<S> {
    /// Creates a host with the default engine.
    pub fn new(config: &Config, nics: Vec<MemoryNic>, service: impl FnMut() -> S) -> Self {
        Host::start(config, nics, service)
    }
}

impl<S: Service, E: Engine<MemoryNic>> Host<S, E> {
    pub fn start(config: &Config, nics: Vec<MemoryNic>, mut service: impl FnMut() -> S) -> Self {
        let mailboxes = Mailboxes::for_workers(nics.len());
        let worker = |(nic, mailboxes)| Worker::new(config, mailboxes, nic, |_| service(), Instant::ZERO);
        Host { workers: nics.into_iter().zip(mailboxes).map(worker).collect() }
    }

    pub fn service(&self) -> &S {
        self.workers[0].service()
    }

    pub fn drops(&mut self, cause: &str) -> u64 {
        self.workers.iter_mut().map(|worker| worker.summary().drops.get(cause).copied().unwrap_or(0)).sum()
    }
}

/// Two hosts and the link between them.
pub struct Net<A: Service, B: Service, EA: Engine<MemoryNic> = Native, EB: Engine<MemoryNic> = Native> {
    pub a: Host<A, EA>,
    pub b: Host<B, EB>,
    pub link: Link,
}

impl<A: Service, B: Service> Net<A, B> {
    /// Creates host 1 with `a` and the server with `b`, with one worker each and the default engine.
    pub fn new(link: LinkConfig, a: impl FnMut() -> A, b: impl FnMut() -> B) -> Self {
        Self::start(link, a, b)
    }

    /// As [`start_with`](Self::start_with), with the default engine.
    pub fn with(
        link: LinkConfig,
        queues: usize,
        a_config: &Config,
        a: impl FnMut() -> A,
        b_config: &Config,
        b: impl FnMut() -> B,
    ) -> Self {
        Self::start_with(link, queues, a_config, a, b_config, b)
    }
}

impl<A: Service, B: Service, EA: Engine<MemoryNic>, EB: Engine<MemoryNic>> Net<A, B, EA, EB> {
    /// Creates host 1 with `a` and the server with `b`, with one worker each.
    pub fn start(link: LinkConfig, a: impl FnMut() -> A, b: impl FnMut() -> B) -> Self {
        Self::start_with(link, 1, &host(1), a, &server(), b)
    }

    /// Creates two hosts with `queues` workers each.
    pub fn start_with(
        link: LinkConfig,
        queues: usize,
        a_config: &Config,
        a: impl FnMut() -> A,
        b_config: &Config,
        b: impl FnMut() -> B,
    ) -> Self {
        let (a_nics, b_nics) = Link::with_queues(link, queues);
        let link = a_nics[0].link().clone();
        Net { a: Host::start(a_config, a_nics, a), b: Host::start(b_config, b_nics, b), link }
    }

    pub fn now(&self) -> Instant {
        self.link.clock().now()
    }

    /// Runs one turn of every worker. Returns true if any did work.
    pub fn turn(&mut self) -> bool {
        let now = self.now();
        let a: usize = self.a.workers.iter_mut().map(|worker| worker.turn(now)).sum();
        let b: usize = self.b.workers.iter_mut().map(|worker| worker.turn(now)).sum();
        a + b > 0
    }

    /// Runs and advances the clock to the next deadline or arrival until `done` returns true or `limit` has passed.
    /// Returns false at the limit.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let until = self.now() + limit;
        loop {
            // A worker may be busy until time passes, for example while it waits for a packet that the other end holds.
            let mut turns = 0;
            while turns < TURNS_AT_ONCE && self.turn() {
                if done(self) {
                    return true;
                }
                turns += 1;
            }
            if done(self) {
                return true;
            }
            let now = self.now();
            let mut next = until;
            for worker in &mut self.a.workers {
                next = next.min(next_event(worker));
            }
            for worker in &mut self.b.workers {
                next = next.min(next_event(worker));
            }
            if now >= until {
                return false;
            }
            // Advance at least 1 µs past a deadline that caused no work.
            self.link.clock().advance_to(next.max(now + Duration::from_micros(1)));
        }
    }

    /// As [`run_until`](Self::run_until), and panics at the limit.
    pub fn expect(&mut self, condition: &str, limit: Duration, done: impl FnMut(&mut Self) -> bool) {
        let began = self.now();
        assert!(self.run_until(limit, done), "not within {limit:?} of {began:?}: {condition}");
    }
}

fn next_event<S: Service, E: Engine<MemoryNic>>(worker: &mut Worker<MemoryNic, S, E>) -> Instant {
    let arrival = worker.nic().next_arrival();
    [arrival, worker.next_deadline()].into_iter().flatten().min().unwrap_or(Instant::from_nanos(u64::MAX))
}
