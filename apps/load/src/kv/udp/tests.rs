//! UDP load against the real service: directly, and over stacks on a link that loses and repeats datagrams.

use super::*;
use crate::testing::FakeTransport;
use crate::{Arrivals, KvPlan, OpenLoop};
use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_bypass::memory_nic::{Impairments, Link, LinkConfig, MemoryNic, Reordering};
use linerate_kv::commands::Settings;
use linerate_kv::service::{Config, Hub, Kv};
use linerate_service::mailbox::mailbox;
use linerate_service::{AppSender, WorkerCtx};
use linerate_stack::{Mailboxes, Worker};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn plan() -> KvPlan {
    KvPlan {
        protocol: Protocol::Memcached,
        connections: 3,
        depth: 2,
        keys: 500,
        value_size: 20..=LONGEST,
        get_ratio: 0.5,
        verify: true,
        ..KvPlan::default()
    }
}

fn udp_plan() -> UdpPlan {
    let (remote, local) = ("10.0.0.2:11211".parse().unwrap(), [10, 0, 0, 1].into());
    UdpPlan { remote, local, first: 9000, warm_up: 10 * MILLI, duration: SECOND }
}

fn load(plan: KvPlan) -> UdpKvLoad {
    UdpKvLoad::new(Keyspace::new(plan, 1), udp_plan(), Default::default())
}

fn hub() -> Arc<Hub> {
    let settings = Settings { memory: 64 << 20, ..Settings::default() };
    let arena = Arena::new(ArenaConfig { bytes: settings.memory as usize, hugepages: false }).unwrap();
    let (export, counters) = (None, None);
    let config = Config { settings, workers: 1, memcached: Some(11211), memcached_tls: None, arena, export, counters };
    let hub = Hub::new(config);
    hub.answer_datagrams();
    hub
}

/// A load and a server that exchange datagrams in turns of a millisecond.
struct Pair {
    net: FakeTransport<()>,
    load: UdpKvLoad,
    server: FakeTransport<()>,
    kv: Kv,
    /// Transformation of each answer.
    spoil: fn(Datagram) -> Vec<Datagram>,
    /// Set if answers of a turn arrive in reverse order.
    swaps: bool,
    is_over: bool,
    /// Largest number of outstanding requests so far.
    most: usize,
}

impl Pair {
    fn new(plan: KvPlan) -> Self {
        let ctx = WorkerCtx { worker: 0, workers: 1, app_sender: AppSender::new(vec![mailbox(4).0]) };
        let (net, server) = (FakeTransport::new(0), FakeTransport::new(0));
        let kv = Kv::new(hub(), ctx);
        Pair {
            net,
            load: load(plan),
            server,
            kv,
            spoil: |datagram| vec![datagram],
            swaps: false,
            is_over: false,
            most: 0,
        }
    }

    fn turn(&mut self) {
        let turned = |Datagram { local, remote, payload }| Datagram { local: remote, remote: local, payload };
        self.is_over |= Service::turn(&mut self.load, &mut self.net).is_none();
        self.most = self.most.max(self.load.slots.iter().filter(|slot| slot.pending.is_some()).count());
        for request in std::mem::take(&mut self.net.datagrams) {
            assert!(request.payload.len() <= REQUEST);
            self.kv.datagram(&mut self.server, turned(request));
        }
        self.kv.turn(&mut self.server);
        self.net.now += MILLI;
        self.server.now += MILLI;
        let mut answers = std::mem::take(&mut self.server.datagrams);
        if self.swaps {
            answers.reverse();
        }
        for answer in answers {
            for answer in (self.spoil)(turned(answer)) {
                self.load.datagram(&mut self.net, answer);
            }
        }
    }

    fn run(&mut self) {
        while !self.is_over {
            self.turn();
        }
        assert!(self.load.over.load(Ordering::Relaxed));
    }
}

#[test]
fn keys_are_set_before_the_depth_is_reached() {
    let mut pair = Pair::new(plan());
    pair.turn();
    assert_eq!(pair.most, 1, "one request probes the server first");
    pair.turn();
    pair.turn();
    assert!(pair.most >= FILLING / 2, "{}", pair.most);
    while !matches!(pair.load.phase, Phase::Measuring { .. }) {
        pair.turn();
    }
    pair.most = 0;
    pair.run();
    let UdpKvLoad { load, datagram_errors, .. } = &pair.load;
    assert_eq!(
        (*datagram_errors, load.misses(), load.refused(), load.filled()),
        (DatagramErrors::default(), 0, 0, 500)
    );
    assert_eq!((pair.most, pair.load.measured(), load.first_error()), (6, SECOND, None));
    // One request per millisecond and slot.
    assert!((5000..6020).contains(&(load.gets().requests + load.sets().requests)), "{}", load.gets().requests);
    assert!(load.sets().requests > 1000 && load.gets().bytes > 500 * load.gets().requests);
}

#[test]
fn load_without_filling_measures_at_once_and_misses() {
    let mut pair = Pair::new(KvPlan { fill: false, verify: false, get_ratio: 1.0, ..plan() });
    pair.run();
    let load = pair.load.load();
    assert_eq!((load.filled(), load.gets().requests, load.misses() > 1000), (0, load.misses(), true));
}

#[test]
fn open_loop_keeps_its_pace() {
    let open = Some(OpenLoop { rate: 1000.0, arrivals: Arrivals::Even });
    let mut pair = Pair::new(KvPlan { open, depth: 64, ..plan() });
    pair.run();
    let (load, pace) = (pair.load.load(), pair.load.load().pace().unwrap());
    assert_eq!(pair.load.datagram_errors(), DatagramErrors::default());
    let answered = load.gets().requests + load.sets().requests;
    assert!((995..=1001).contains(&pace.due()) && pace.due() - answered < 5, "{} of {}", answered, pace.due());

    // Without answers the slots are occupied, and requests wait.
    let mut pair = Pair::new(KvPlan { open, depth: 1, ..plan() });
    while pair.load.load().gets().requests == 0 {
        pair.turn();
    }
    pair.spoil = |_| Vec::new();
    pair.run();
    let [gets, sets] = [pair.load.load().gets(), pair.load.load().sets()].map(|kind| kind.times.all());
    let lost = pair.load.datagram_errors().lost;
    assert!((995..=1001).contains(&(gets.len() + sets.len() + lost)), "{} {} {lost}", gets.len(), sets.len());
    assert!(gets.max().max(sets.max()) > 500_000_000);
}

#[test]
fn lost_answers_are_counted_and_delay_nothing() {
    // Every seventh answer is lost, and another one is repeated.
    let spoil: fn(Datagram) -> Vec<Datagram> = |datagram| match u32::from(datagram.payload[1]) * 31 % 7 {
        0 => vec![],
        1 => vec![datagram.clone(), datagram],
        _ => vec![datagram],
    };
    let mut pair = Pair::new(plan());
    pair.spoil = spoil;
    pair.run();
    let UdpKvLoad { load, datagram_errors, .. } = &pair.load;
    assert_eq!((datagram_errors.corrupt, load.filled(), load.first_error(), load.misses()), (0, 500, None, 0));
    assert!(datagram_errors.lost > 20 && datagram_errors.late > 0, "{datagram_errors:?}");
    assert!(load.gets().requests + load.sets().requests > 200);
}

#[test]
fn datagrams_of_an_answer_may_arrive_in_any_order() {
    let mut pair = Pair::new(KvPlan { value_size: LONGEST..=LONGEST, ..plan() });
    pair.swaps = true;
    pair.run();
    assert_eq!((pair.load.datagram_errors(), pair.load.load().first_error()), (DatagramErrors::default(), None));
    assert!(pair.load.load().gets().requests > 1000);
}

#[test]
fn wrong_answers_are_detected_and_foreign_ones_ignored() {
    type Spoil = fn(Datagram) -> Vec<Datagram>;
    fn with(datagram: Datagram, change: impl FnOnce(&mut Vec<u8>)) -> Vec<Datagram> {
        let mut bytes = datagram.payload.to_vec();
        change(&mut bytes);
        vec![Datagram { payload: bytes.into(), ..datagram }]
    }
    let cases: [(&str, Spoil); 5] = [
        ("STORE", |datagram| {
            with(datagram, |bytes| {
                if bytes[8] == b'S' {
                    bytes[13] = b'X'
                }
            })
        }),
        ("GET", |datagram| {
            with(datagram, |bytes| {
                if bytes[8] == b'V' {
                    bytes[100] ^= 1
                }
            })
        }),
        ("END", |datagram| with(datagram, |bytes| bytes.extend_from_slice(b"END\r\n"))),
        ("", |datagram| with(datagram, |bytes| bytes.truncate(12))),
        ("datagram 0 of 9", |datagram| with(datagram, |bytes| bytes[5] = 9)),
    ];
    for (wrong, spoil) in cases {
        let mut pair = Pair::new(KvPlan { value_size: 200..=200, ..plan() });
        pair.spoil = spoil;
        pair.run();
        let (datagram_errors, first) =
            (pair.load.datagram_errors(), pair.load.load().first_error().unwrap_or_default());
        assert!(datagram_errors.corrupt > 100 && first.contains(wrong), "{wrong}: {first} {datagram_errors:?}");
    }
    let mut pair = Pair::new(plan());
    pair.spoil = |datagram| {
        let elsewhere = Datagram { remote: "10.0.0.3:11211".parse().unwrap(), ..datagram.clone() };
        let other_port = Datagram { local: "10.0.0.1:9003".parse().unwrap(), ..datagram.clone() };
        let short = Datagram { payload: datagram.payload.slice(..7), ..datagram.clone() };
        vec![elsewhere, other_port, short, datagram]
    };
    pair.run();
    let DatagramErrors { lost, corrupt, late, foreign } = pair.load.datagram_errors();
    assert_eq!((lost, corrupt, late), (0, 0, 0));
    assert!(foreign > 10_000);
}

#[test]
fn load_without_answers_ends() {
    for answers in [0, 100] {
        let mut pair = Pair::new(plan());
        let mut turns = 0;
        while !pair.is_over {
            if pair.load.load().filled() >= answers {
                pair.spoil = |_| vec![];
            }
            pair.turn();
            turns += 1;
            assert!(turns < 11_000);
        }
        let load = &pair.load;
        assert!(load.has_stalled() && load.measured().is_zero() && load.has_been_answered() == (answers > 0));
    }
}

#[test]
fn answers_over_a_lossy_duplicating_link_are_right() {
    // A repeated SET may undo a later one, so stale values cannot be detected.
    for (loss, duplication, mtu) in [(0.0, 0.0, 1500), (0.02, 0.0, 1500), (0.02, 0.02, 9000)] {
        let reordering = Reordering { chance: 2.0 * loss, frames: 3, within: 5 * MILLI };
        let delay = Duration::from_micros(50);
        let impairments = Impairments { seed: 1, loss, duplication, reordering, delay, ..Impairments::default() };
        let (a, b) = Link::pair(LinkConfig { mtu, data_room: 10_000, impairments, ..LinkConfig::default() });
        let clock = a.link().clock().clone();
        let host = |n: u8, udp: Vec<SocketAddr>| linerate_stack::Config {
            addresses: vec![format!("10.0.0.{n}/24").parse().unwrap()],
            mac: Some(format!("02:00:00:00:00:{n:02x}").parse().unwrap()),
            seed: n.into(),
            listen_udp: udp,
            ..linerate_stack::Config::default()
        };
        let ports = (9000..9003).map(|port| SocketAddr::from(([10, 0, 0, 1], port))).collect();
        let hub = hub();
        let mut server: Worker<MemoryNic, Kv> = Worker::new(
            &host(2, vec!["10.0.0.2:11211".parse().unwrap()]),
            Mailboxes::for_workers(1).remove(0),
            b,
            |ctx| Kv::new(hub.clone(), ctx),
            Instant::ZERO,
        );
        let mut client: Worker<MemoryNic, UdpKvLoad> = Worker::new(
            &host(1, ports),
            Mailboxes::for_workers(1).remove(0),
            a,
            |_| load(KvPlan { verify: duplication == 0.0, ..plan() }),
            Instant::ZERO,
        );
        while !client.service().over.load(Ordering::Relaxed) {
            let now = clock.now();
            assert!(now < Instant::ZERO + 60 * SECOND);
            while client.turn(now) + server.turn(now) > 0 {}
            let next = [client.nic().next_arrival(), server.nic().next_arrival(), Some(now + MILLI / 4)];
            clock.advance_to(next.into_iter().flatten().min().unwrap().max(now + MILLI / 1000));
        }
        let UdpKvLoad { load, datagram_errors, measured, .. } = client.service();
        assert_eq!((datagram_errors.corrupt, load.first_error(), load.filled(), *measured), (0, None, 500, SECOND));
        assert_eq!(
            (datagram_errors.lost > 0, datagram_errors.late > 0),
            (loss > 0.0, duplication > 0.0),
            "{datagram_errors:?}"
        );
        assert_eq!((load.misses(), load.refused()), (0, 0));
        assert!(load.gets().requests > 200 && load.sets().requests > 200, "{load:?}");
    }
}
