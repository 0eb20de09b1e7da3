//! The service on the stack, over a link that loses, duplicates and reorders frames: no reply is lost, changed or out
//! of order.
//!
//! Clients of both protocols on another host's stack pipeline requests. Each client has its own keys and therefore
//! knows all replies. Transactions also increment two counters common to all clients, which must stay equal.
//! `SOAK_SECONDS` sets the duration, 3 by default.

mod clients;
mod model;

use clients::Clients;
use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_bypass::memory_nic::{End, ImpairmentStats, Impairments, Link, LinkConfig, MemoryNic, Reordering};
use linerate_kv::commands::Settings;
use linerate_kv::service::{Config as KvConfig, Hub, Kv};
use linerate_service::Service;
use linerate_service::time::{Duration, Instant};
use linerate_stack::{Config, Mailboxes, Worker};

/// Limit of turns at one time of the clock.
const TURNS_AT_ONCE: usize = 10_000;
/// Limit of simulated time per network.
const MAX_TIME: Duration = Duration::from_secs(1200);
/// Requests of all clients of a network.
const REQUESTS: usize = 8000;

/// Returns the configuration of the host `10.0.0.n` and `fd00::n`.
fn host(n: u8, listen: &[&str]) -> Config {
    Config {
        addresses: vec![format!("10.0.0.{n}/24").parse().unwrap(), format!("fd00::{n}/64").parse().unwrap()],
        mac: Some(format!("02:00:00:00:00:{n:02x}").parse().unwrap()),
        dad_transmits: 0,
        seed: n.into(),
        listen: listen.iter().map(|address| address.parse().unwrap()).collect(),
        ..Config::default()
    }
}

/// Returns impairments that affect one in a hundred frames each.
fn impairments(seed: u64) -> Impairments {
    Impairments {
        seed,
        loss: 0.01,
        duplication: 0.01,
        reordering: Reordering { chance: 0.01, frames: 3, within: Duration::from_millis(5) },
        delay: Duration::from_micros(100),
        jitter: Duration::from_micros(30),
        ..Impairments::default()
    }
}

/// Returns the time of the next event of `worker`.
fn next<S: Service>(worker: &mut Worker<MemoryNic, S>) -> Instant {
    let arrival = worker.nic().next_arrival();
    [arrival, worker.next_deadline()].into_iter().flatten().min().unwrap_or(Instant::from_nanos(u64::MAX))
}

/// Simulates the network `seed` to its end. Returns the statistics of the link.
fn simulate(seed: u64) -> [ImpairmentStats; 2] {
    let mut random = fastrand::Rng::with_seed(seed);
    let queues = 1 + (seed % 2) as usize;
    let multi_segment = random.u8(..4) > 0;
    let checksum_offload = multi_segment && random.bool();
    let link = LinkConfig {
        mtu: *random.choice(&[1500, 1500, 9000, 576]).unwrap(),
        data_room: 10_000,
        multi_segment,
        checksum_offload,
        tso: (checksum_offload && random.bool()).then_some(65_000),
        impairments: impairments(seed),
        ..LinkConfig::default()
    };
    let [six, few] = [random.bool(), random.u8(..4) == 0];
    let settings = Settings { memory: 64 << 20, ..Settings::default() };
    let arena = Arena::new(ArenaConfig { bytes: settings.memory as usize, hugepages: false }).unwrap();
    let (workers, memcached) = (queues, Some(11211));
    let hub =
        Hub::new(KvConfig { settings, workers, memcached, memcached_tls: None, arena, export: None, counters: None });
    let (a, b) = Link::with_queues(link.clone(), queues);
    let link_of_a = a[0].link().clone();
    let connections = if few { 2 } else { random.usize(4..24) };
    let server = host(2, &["0.0.0.0:6379", "[::]:6379", "0.0.0.0:11211", "[::]:11211"]);
    let mailboxes = Mailboxes::for_workers(queues).into_iter();
    let mut clients: Vec<Worker<MemoryNic, Clients>> = a
        .into_iter()
        .zip(mailboxes)
        .map(|(nic, mailboxes)| {
            let clients = |_| Clients::new(seed, six, connections, REQUESTS / connections / queues);
            Worker::new(&host(1, &[]), mailboxes, nic, clients, Instant::ZERO)
        })
        .collect();
    let mailboxes = Mailboxes::for_workers(queues).into_iter();
    let mut servers: Vec<Worker<MemoryNic, Kv>> = b
        .into_iter()
        .zip(mailboxes)
        .map(|(nic, mailboxes)| Worker::new(&server, mailboxes, nic, |ctx| Kv::new(hub.clone(), ctx), Instant::ZERO))
        .collect();

    let clock = link_of_a.clock();
    let until = clock.now() + MAX_TIME;
    while !clients.iter().all(|worker| worker.service().are_done()) {
        let now = clock.now();
        assert!(now < until, "network {seed} {link:?}: {:?}", clients.iter().map(Worker::service).collect::<Vec<_>>());
        for _ in 0..TURNS_AT_ONCE {
            let work: usize = clients.iter_mut().map(|worker| worker.turn(now)).sum::<usize>()
                + servers.iter_mut().map(|worker| worker.turn(now)).sum::<usize>();
            if work == 0 {
                break;
            }
        }
        let next = clients.iter_mut().map(next).chain(servers.iter_mut().map(next)).min().unwrap();
        clock.advance_to(next.max(now + Duration::from_micros(1)));
    }
    // The counters equal the number of increments.
    let (counted, highest) = clients.iter().fold((0, 0), |(counted, highest), worker| {
        (counted + worker.service().counted, highest.max(worker.service().highest))
    });
    assert_eq!(counted, highest, "network {seed} {link:?}");
    [link_of_a.impaired(End::A), link_of_a.impaired(End::B)]
}

#[test]
fn no_reply_is_lost_or_changed_or_out_of_order() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(3, |text| text.parse().unwrap());
    let began = std::time::Instant::now();
    let mut all = [ImpairmentStats::default(); 2];
    let mut networks = 0;
    // At least one network for each number of workers.
    while networks < 2 || began.elapsed().as_secs() < seconds {
        for (all, one) in all.iter_mut().zip(simulate(networks)) {
            all.frames += one.frames;
            all.lost += one.lost;
            all.duplicated += one.duplicated;
            all.reordered += one.reordered;
        }
        networks += 1;
    }
    eprintln!("{networks} networks: {all:?}");
    assert!(all.iter().all(|end| end.lost > 0 && end.duplicated > 0 && end.reordered > 0), "{all:?}");
}
