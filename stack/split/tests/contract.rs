//! Order of events and lingering closes of a service on its own thread, over kernel sockets and over the stack. The
//! test runs the turns of both threads.

#[path = "../../kernel/tests/services/lingering.rs"]
mod lingering;
#[path = "../../kernel/tests/services/contract.rs"]
mod order;

use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_kernel::{Config as KernelConfig, bind};
use linerate_service::time::{Clock, Duration, Instant};
use linerate_service::{CloseReason, LINGER_BYTES, LINGER_TIME, Service, WorkerCtx};
use linerate_split::{Commands, Config, Relay, Runner, split};
use linerate_stack::{Config as StackConfig, Mailboxes};
use lingering::{Manner, REFUSAL, Refused, Refuser};
use order::Contract;
use std::net::SocketAddr;

const WINDOW: usize = 64 << 10;
/// Time limit of each wait.
const DEADLINE: Duration = Duration::from_secs(60);
/// Connections of the client: several of each action, each with and without an early close.
const CONNECTIONS: usize = 50;

/// A client on a worker, and a service next to another.
trait Ends<C, S> {
    /// Runs one turn of everything.
    fn turn(&mut self);
    fn client(&self) -> &C;
    fn server(&self) -> &S;
}

/// Returns both ends of a service next to a worker.
fn ends<S: Service<Message = ()>>(service: S) -> (Relay, Runner<S>) {
    let arena = Arena::new(ArenaConfig { bytes: 64 << 20, hugepages: false }).unwrap();
    let config = Config { window: WINDOW, arena, co_scheduled: true, sleeps: false };
    let (relay, setup) = split::<()>(1, &config).pop().unwrap();
    (relay, setup.with_service(|_| service))
}

struct OverKernel<C: Service, S: Service> {
    client: linerate_kernel::Worker<C>,
    server: linerate_kernel::Worker<Relay>,
    runner: Runner<S>,
    clock: Clock,
}

impl<C: Service<Message = ()>, S: Service<Message = ()>> OverKernel<C, S> {
    fn new(client: impl FnOnce(SocketAddr) -> C, server: S) -> Self {
        let (relay, runner) = ends(server);
        let listening = KernelConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..KernelConfig::default() };
        let (app_sender, mut sockets) = bind::<Commands>(&listening, 1).unwrap();
        let server = linerate_kernel::Worker::new(
            sockets.remove(0),
            relay.attach(WorkerCtx { worker: 0, workers: 1, app_sender }),
        );
        let client = client(server.tcp_addrs()[0]);
        let client = linerate_kernel::Worker::new(bind(&KernelConfig::default(), 1).unwrap().1.remove(0), client);
        OverKernel { client, server, runner, clock: Clock::start() }
    }
}

impl<C: Service, S: Service> Ends<C, S> for OverKernel<C, S> {
    fn turn(&mut self) {
        self.client.turn(Duration::ZERO);
        self.server.turn(Duration::from_micros(100));
        self.runner.turn(self.clock.now());
    }

    fn client(&self) -> &C {
        self.client.service()
    }

    fn server(&self) -> &S {
        self.runner.service()
    }
}

struct OverStack<C: Service, S: Service> {
    client: linerate_stack::Worker<MemoryNic, C>,
    server: linerate_stack::Worker<MemoryNic, Relay>,
    runner: Runner<S>,
    link: Link,
    /// Clock advance of a turn.
    tick: Duration,
}

impl<C: Service<Message = ()>, S: Service<Message = ()>> OverStack<C, S> {
    fn new(client: impl FnOnce(SocketAddr) -> C, server: S) -> Self {
        let host = |n: u8| StackConfig {
            addresses: vec![format!("10.0.0.{n}/24").parse().unwrap()],
            mac: Some(format!("02:00:00:00:00:{n:02x}").parse().unwrap()),
            ..StackConfig::default()
        };
        let listening = StackConfig { listen: vec!["0.0.0.0:7".parse().unwrap()], ..host(2) };
        let (relay, runner) = ends(server);
        let (a, b) = Link::pair(LinkConfig::default());
        let link = a.link().clone();
        let client = client("10.0.0.2:7".parse().unwrap());
        let mailboxes = Mailboxes::for_workers(1).remove(0);
        let client = linerate_stack::Worker::new(&host(1), mailboxes, a, |_| client, Instant::ZERO);
        let mailboxes = Mailboxes::for_workers(1).remove(0);
        let server = linerate_stack::Worker::new(&listening, mailboxes, b, |ctx| relay.attach(ctx), Instant::ZERO);
        OverStack { client, server, runner, link, tick: Duration::from_micros(10) }
    }
}

impl<C: Service, S: Service> Ends<C, S> for OverStack<C, S> {
    fn turn(&mut self) {
        self.link.clock().advance(self.tick);
        let now = self.link.clock().now();
        self.client.turn(now);
        self.server.turn(now);
        self.runner.turn(now);
    }

    fn client(&self) -> &C {
        self.client.service()
    }

    fn server(&self) -> &S {
        self.runner.service()
    }
}

#[track_caller]
fn turn_until<C: std::fmt::Debug, S: std::fmt::Debug, E: Ends<C, S>>(ends: &mut E, done: impl Fn(&E) -> bool) {
    let begun = std::time::Instant::now();
    while !done(ends) {
        assert!(begun.elapsed() < DEADLINE, "{:?} and {:?}", ends.client(), ends.server());
        ends.turn();
    }
}

fn order_of_events(mut ends: impl Ends<Contract, Contract>) {
    turn_until(&mut ends, |ends| ends.client().is_done(CONNECTIONS) && ends.server().is_done(CONNECTIONS));
    ends.server().assert_covered();
}

#[test]
fn events_keep_their_order_over_kernel_sockets() {
    order_of_events(OverKernel::new(|remote| Contract::client(remote, CONNECTIONS), Contract::server()));
}

#[test]
fn events_keep_their_order_over_the_stack() {
    order_of_events(OverStack::new(|remote| Contract::client(remote, CONNECTIONS), Contract::server()));
}

fn refused(manner: Manner, mut ends: impl Ends<Refused, Refuser>) {
    turn_until(&mut ends, |ends| ends.client().closed.is_some() && !ends.server().closed.is_empty());
    let (client, server) = (ends.client(), ends.server());
    assert_eq!(client.received, REFUSAL);
    let (own, peer) = match manner {
        Manner::Closes => (CloseReason::Finished, CloseReason::Finished),
        Manner::SendsOn | Manner::Waits => (CloseReason::Aborted, CloseReason::Reset),
    };
    assert_eq!((&server.closed[..], client.closed), (&[own][..], Some(peer)));
    assert!(manner != Manner::SendsOn || client.sent > LINGER_BYTES, "{} sent", client.sent);
}

fn refused_over_kernel(manner: Manner) {
    refused(manner, OverKernel::new(|remote| Refused::new(Some(remote), manner), Refuser::default()));
}

fn refused_over_stack(manner: Manner) {
    let mut ends = OverStack::new(|remote| Refused::new(Some(remote), manner), Refuser::default());
    if manner == Manner::Waits {
        ends.tick = LINGER_TIME / 1000;
    }
    refused(manner, ends);
}

#[test]
fn lingering_close_finishes_without_a_reset_when_the_peer_closes() {
    refused_over_kernel(Manner::Closes);
    refused_over_stack(Manner::Closes);
}

#[test]
fn lingering_close_resets_a_peer_that_sends_without_end() {
    refused_over_kernel(Manner::SendsOn);
    refused_over_stack(Manner::SendsOn);
}

#[test]
fn lingering_close_resets_a_peer_that_never_closes() {
    refused_over_kernel(Manner::Waits);
    refused_over_stack(Manner::Waits);
}
