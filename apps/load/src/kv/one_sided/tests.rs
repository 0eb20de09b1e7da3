//! One-sided GETs from an export that the test writes.

use super::*;
use crate::testing::{FakeTransport, a_second};
use crate::{Barrier, Keyspace, KvLoad, KvPlan, Load, WorkerLoad};
use linerate_kv::export::{Export, Writer};
use linerate_service::{OneSidedResult, Service};

const BASE: u64 = 4096;
const KEYS: u64 = 20;

struct Bench {
    load: Load<KvLoad>,
    net: FakeTransport<usize>,
    export: Export,
    writers: Vec<Writer>,
}

impl Bench {
    fn new(depth: usize, shards: u32) -> Self {
        let layout = Layout::new(7, shards, 10, 1000).unwrap();
        let export = Export::new(layout, false).unwrap();
        let writers = (0..shards as usize).map(|shard| export.writer(shard)).collect();
        let plan = KvPlan {
            one_sided: Some(Exported { addr: RemoteAddr { address: BASE, key: 3 }, layout, clock_offset: 0 }),
            depth,
            keys: KEYS,
            value_size: 20..=40,
            get_ratio: 1.0,
            zipf: 0.0,
            fill: false,
            ..KvPlan::default()
        };
        let life = a_second(1);
        let barrier = Arc::new(Barrier::new(1, 1));
        let mut load = Load::new(&life, barrier.clone(), 0, 1, KvLoad::new(Keyspace::new(plan, 7)));
        let mut net = FakeTransport::new(100_000);
        net.remote_room = 1000;
        load.start(&mut net);
        net.establish(&mut load);
        let mut bench = Bench { load, net, export, writers };
        bench.fill();
        barrier.prepare();
        barrier.begin();
        bench.net.pass(&mut bench.load, Duration::from_millis(1));
        bench
    }

    fn fill(&mut self) {
        let shards = self.writers.len();
        (0..KEYS).for_each(|n| self.writers[n as usize % shards].set(&key(n), b"some value", None));
    }

    /// Completes the outstanding READs in order.
    fn turn(&mut self) {
        for _ in 0..self.net.remotes.len() {
            let memory = self.export.memory();
            self.net.do_remote(&mut self.load, |operation| {
                let OneSidedOp::Read { address, key: 3, len } = operation else { panic!("{operation:?}") };
                let mut bytes = vec![0; len as usize];
                memory.read((address - BASE) as usize / 8, &mut bytes);
                OneSidedResult::Read(Bytes::from(bytes))
            });
        }
    }

    /// Answers the GETs sent to the server since the last call; returns their number.
    fn answer_fallbacks(&mut self) -> usize {
        let conn = self.net.alive()[0];
        let sent = self.net.drain(&mut self.load, conn);
        let count = sent.windows(3).filter(|three| three == b"GET").count();
        self.net.arrive(&mut self.load, conn, &b"$-1\r\n".repeat(count));
        count
    }

    fn reads(self) -> OneSidedStats {
        self.load.into_outcome().traffic.reads()
    }
}

#[test]
fn repeated_get_is_one_read_and_floors_serve_many() {
    for (depth, shards) in [(1, 1), (1, 3), (16, 2)] {
        let mut bench = Bench::new(depth, shards);
        for _ in 0..400 {
            bench.turn();
            assert_eq!(bench.answer_fallbacks(), 0);
        }
        let OneSidedStats { reads, found, torn, superseded, touches, fallbacks } = bench.reads();
        assert_eq!((torn, superseded, touches, fallbacks), (0, 0, 0, 0));
        // Each GET takes one turn and one READ, except the first GETs of each key, outstanding GETs, and the floors.
        let first = KEYS * depth as u64;
        assert!(found + first >= 399 * depth as u64, "{found} of {depth}");
        assert!(reads <= found + first + depth as u64 + 1, "{reads} READs for {found} GETs, depth {depth}");
    }
}

/// Keys change between any two READs: no READ is torn, and few GETs take a third READ.
#[test]
fn gets_of_keys_that_always_change_take_at_most_three_reads() {
    for depth in [1, 4, 16] {
        let mut bench = Bench::new(depth, 2);
        for _ in 0..600 {
            bench.turn();
            bench.fill();
            assert_eq!(bench.answer_fallbacks(), 0);
        }
        let OneSidedStats { reads, found, torn, superseded, touches, fallbacks } = bench.reads();
        assert_eq!((torn, touches, fallbacks), (0, 0, 0));
        // A superseded record costs its GET one READ. The floors are fresh, and at most `depth` GETs are outstanding.
        assert!(reads <= 2 * found + superseded + 3 * depth as u64 + 1, "{reads} {found} {superseded}, depth {depth}");
        assert!(found > 200 * depth as u64, "{found} {depth}");
        assert!(superseded * 4 <= found, "{superseded} {found} {depth}");
    }
}

#[test]
fn record_superseded_after_its_row_was_read_is_found() {
    let mut bench = Bench::new(1, 1);
    // The READ of the row, the SET, and the READ of the former record.
    bench.turn();
    bench.fill();
    bench.turn();
    let reads = bench.reads();
    assert_eq!((reads.found, reads.torn, reads.fallbacks), (1, 0, 0), "{reads:?}");
}

#[test]
fn keys_that_change_once_are_read_from_their_new_places() {
    let mut bench = Bench::new(4, 2);
    (0..100).for_each(|_| bench.turn());
    let before = bench.load.outcome.traffic.reads();
    bench.fill();
    (0..400).for_each(|_| bench.turn());
    assert_eq!(bench.answer_fallbacks(), 0);
    let after = bench.reads();
    let superseded = after.superseded - before.superseded;
    // Once for each key, or for each outstanding GET of a key.
    assert!((KEYS..=KEYS + 4).contains(&superseded), "{after:?}");
    assert!(after.found - before.found > 390 * 4 - 5 * KEYS, "{after:?}");
}

/// A server whose values are only read gets a few requests in a second, however many GETs there are.
#[test]
fn touches_are_limited_by_time() {
    for depth in [1, 16] {
        let mut bench = Bench::new(depth, 1);
        let mut sent = 0;
        // The load lasts a second.
        for _ in 0..1000 {
            bench.turn();
            bench.net.pass(&mut bench.load, Duration::from_millis(1));
            sent += bench.answer_fallbacks();
        }
        let OneSidedStats { found, touches, fallbacks, .. } = bench.reads();
        assert_eq!((sent as u64, fallbacks), (touches, 0));
        assert!((3..=4).contains(&sent) && found > 900 * depth as u64, "{sent} requests and {found} GETs");
    }
}

#[test]
fn value_expires_by_the_clock_of_the_server() {
    let at = |clock: u64, asked: u64| {
        let exported = Exported::from_numbers([BASE, 3, 7, 1, 10, 1000, clock]).unwrap().asked_at(asked);
        move |now: u64| exported.clock(now)
    };
    assert_eq!(at(5000, 1000)(1007), 5007);
    assert_eq!(at(1000, 5000)(5007), 1007);
    assert_eq!(at(u64::MAX, 0)(1), 0);
}

#[test]
fn gets_after_a_flush_are_sent_to_the_server() {
    for depth in [1, 4, 16] {
        let mut bench = Bench::new(depth, 2);
        (0..3).for_each(|_| bench.turn());
        bench.writers.iter_mut().for_each(Writer::clear);
        bench.net.pass(&mut bench.load, FRESH);
        // GETs that began before the flush may still find the value.
        while bench.answer_fallbacks() == 0 {
            bench.turn();
        }
        (0..4).for_each(|_| bench.turn());
        bench.answer_fallbacks();
        let OneSidedStats { found: before, .. } = bench.load.outcome.traffic.reads();
        (0..20).for_each(|_| {
            bench.turn();
            bench.answer_fallbacks();
        });
        assert_eq!(bench.load.outcome.traffic.reads().found, before, "{depth}");
        bench.fill();
        (0..20).for_each(|_| {
            bench.turn();
            bench.answer_fallbacks();
        });
        assert!(bench.reads().found > before);
    }
}

/// The peer is untrusted: every GET ends whatever its memory holds.
#[test]
fn gets_end_for_any_memory_contents() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut bench = Bench::new(4, 2);
    let layout = *bench.export.layout();
    let memory = bench.export.memory().clone();
    for _ in 0..300 {
        for _ in 0..random.usize(..20) {
            memory.store(random.usize(..(layout.bytes() / 8) as usize), random.u64(..));
        }
        bench.turn();
        bench.answer_fallbacks();
    }
    let OneSidedStats { reads, found, torn, fallbacks, .. } = bench.reads();
    assert!(fallbacks > 0 && torn > 0 && reads < 4 * 300 * 2, "{reads} {found} {torn} {fallbacks}");
}

#[test]
fn gets_without_room_for_reads_are_sent_to_the_server() {
    let mut bench = Bench::new(4, 1);
    for room in [1, 2, 3, 4, 5, 1] {
        bench.net.remote_room = room;
        for _ in 0..50 {
            bench.turn();
            bench.answer_fallbacks();
        }
    }
    let before = bench.load.outcome.traffic.reads();
    bench.net.remote_room = 1000;
    for _ in 0..20 {
        bench.turn();
        bench.answer_fallbacks();
    }
    let after = bench.reads();
    assert!(before.fallbacks > 0 && after.found > before.found + 20, "{before:?} {after:?}");
}

#[test]
fn answer_is_parsed_when_complete() {
    let numbers = ["65536", "7", "18446744073709551615", "2", "100", "1000", "5000"];
    let numbers = numbers.map(|number| format!("${}\r\n{number}\r\n", number.len())).concat();
    let answer = format!("*7\r\n{numbers}").into_bytes();
    for end in 0..answer.len() {
        assert_eq!(parse(&answer[..end]), Ok(None), "{end}");
    }
    let layout = Layout::new(u64::MAX, 2, 100, 1000).unwrap();
    let exported = Exported { addr: RemoteAddr { address: 65536, key: 7 }, layout, clock_offset: 5000 };
    assert_eq!(parse(&answer), Ok(Some(Some(exported))));
    assert_eq!(parse(b"$-1\r\n"), Ok(Some(None)));
    assert_eq!(parse(b"-ERR unknown command\r\n"), Ok(Some(None)));
    for nonsense in [
        "*7\r\n$1\r\nx\r\n$1\r\n7\r\n$1\r\n1\r\n$1\r\n2\r\n$3\r\n100\r\n$4\r\n1000\r\n$1\r\n5\r\n",
        "*7\r\n$1\r\n1\r\n$1\r\n7\r\n$1\r\n1\r\n$1\r\n0\r\n$3\r\n100\r\n$4\r\n1000\r\n$1\r\n5\r\n",
        "*7\r\n$20\r\n18446744073709551615\r\n$1\r\n7\r\n$1\r\n1\r\n$1\r\n2\r\n$3\r\n100\r\n$4\r\n1000\r\n$1\r\n5\r\n",
    ] {
        assert_eq!(parse(nonsense.as_bytes()), Err(Malformed), "{nonsense}");
    }
    assert_eq!(parse(&[b'x'; 2000]), Err(Malformed));
}
