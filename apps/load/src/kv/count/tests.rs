//! Counter load against fake counters.

use super::*;
use crate::testing::{FakeTransport, a_second};
use crate::{Barrier, Load, Outcome, WorkerLoad};
use linerate_service::time::Duration;
use linerate_service::{CloseReason, Service};
use std::sync::atomic::{AtomicBool, Ordering};

const SECOND: Duration = Duration::from_secs(1);
const BASE: u64 = 4096;
const KEY: u32 = 7;

fn addrs(count: usize) -> Vec<RemoteAddr> {
    (0..count as u64).map(|at| RemoteAddr { address: BASE + 8 * at, key: KEY }).collect()
}

/// Executes `operation` as a device does.
fn apply(numbers: &mut [u64], operation: OneSidedOp) -> OneSidedResult {
    let (OneSidedOp::FetchAdd { address, key, .. } | OneSidedOp::CompareSwap { address, key, .. }) = operation else {
        panic!("{operation:?}");
    };
    assert_eq!((key, address % 8), (KEY, 0));
    let number = &mut numbers[((address - BASE) / 8) as usize];
    let was = *number;
    match operation {
        OneSidedOp::FetchAdd { add, .. } => *number = was.wrapping_add(add),
        OneSidedOp::CompareSwap { expect, swap, .. } if expect == was => *number = swap,
        _ => {}
    }
    OneSidedResult::Previous(was)
}

struct Bench {
    load: Load<CountLoad>,
    net: FakeTransport<usize>,
    numbers: Vec<u64>,
}

impl Bench {
    /// Creates a measuring load of `connections` connections and `counters` counters.
    fn new(connections: usize, depth: usize, counters: usize) -> Self {
        let plan = Arc::new(CountPlan { addrs: addrs(counters), depth, zipf: 0.99 });
        let mut traffic = CountLoad::new(plan);
        traffic.rng = Rng::with_seed(1);
        let life = a_second(connections);
        let barrier = Arc::new(Barrier::new(1, connections));
        let mut load = Load::new(&life, barrier.clone(), 0, 1, traffic);
        let mut net = FakeTransport::new(100);
        net.remote_room = connections * depth;
        load.start(&mut net);
        for _ in 0..connections {
            net.establish(&mut load);
        }
        barrier.prepare();
        barrier.begin();
        net.pass(&mut load, Duration::from_millis(1));
        Bench { load, net, numbers: vec![0; counters] }
    }

    fn step(&mut self) -> bool {
        let numbers = &mut self.numbers;
        self.net.do_remote(&mut self.load, |operation| apply(numbers, operation))
    }

    /// Ends the measurement and closes all connections; returns the outcome and the growth of the counters.
    fn finish(mut self) -> (Outcome<CountLoad>, u64) {
        self.net.pass(&mut self.load, SECOND);
        while self.step() {}
        for conn in self.net.alive() {
            assert!(self.net.is_closed(conn), "a connection without outstanding operations is closed");
            self.net.gone(&mut self.load, conn, CloseReason::Finished);
        }
        let grew = self.numbers.iter().fold(0u64, |sum, number| sum.wrapping_add(*number));
        (self.load.into_outcome(), grew)
    }
}

#[test]
fn concurrent_increments_add_up() {
    let mut bench = Bench::new(3, 4, 5);
    assert_eq!(bench.net.remotes.len(), 12);
    // Earlier increments by others.
    bench.numbers[2] = u64::MAX - 3;
    let before: u64 = bench.numbers[2];
    (0..16_000).for_each(|_| assert!(bench.step()));
    let (outcome, sum) = bench.finish();
    let counted = outcome.traffic.counted();
    assert_eq!(sum.wrapping_sub(before), counted.added());
    assert!(counted.explains(sum.wrapping_sub(before)) && counted.unknown == 0);
    assert!(counted.misses > 0 && counted.swaps > 0, "{counted:?}");
    let measured = outcome.traffic.requests();
    assert!(measured <= counted.added() && measured + 12 >= counted.added(), "{measured} of {counted:?}");
    let times = outcome.traffic.times();
    assert_eq!((times.answered().len(), times.all().len()), (measured, measured + 12), "12 operations waited a second");
    assert_eq!(outcome.errors.total(), 0);
}

#[test]
fn one_in_sixteen_requests_swaps() {
    let mut bench = Bench::new(1, 1, 1);
    bench.numbers[0] = 5;
    (0..161).for_each(|_| assert!(bench.step()));
    let counted = bench.load.into_outcome().traffic.counted();
    assert_eq!(counted, CountStats { adds: 151, swaps: 10, misses: 0, unknown: 0 });
}

#[test]
fn connection_with_outstanding_operations_is_not_closed() {
    let mut bench = Bench::new(2, 3, 2);
    let conns = bench.net.alive();
    bench.net.pass(&mut bench.load, SECOND);
    assert_eq!(bench.net.remotes.len(), 6);
    for _ in 0..5 {
        assert!(!conns.iter().all(|conn| bench.net.is_closed(*conn)));
        assert!(bench.step());
    }
    let (outcome, sum) = bench.finish();
    assert_eq!((outcome.traffic.counted().added(), outcome.traffic.requests()), (6, 0));
    assert_eq!(sum, 6);
}

#[test]
fn lost_or_repeated_operation_is_detected() {
    for (spoil, explained) in [(0i64, true), (1, false), (-1, false)] {
        let mut bench = Bench::new(1, 2, 1);
        (0..100).for_each(|_| assert!(bench.step()));
        bench.numbers[0] = bench.numbers[0].wrapping_add_signed(spoil);
        let (outcome, sum) = bench.finish();
        assert_eq!(outcome.traffic.counted().explains(sum), explained, "{spoil}");
    }
}

#[test]
fn operations_outstanding_on_a_lost_connection_may_have_been_executed() {
    let mut bench = Bench::new(1, 5, 1);
    let conn = bench.net.alive()[0];
    (0..7).for_each(|_| assert!(bench.step()));
    // Two of the five are executed without completion.
    let lost: Vec<_> = bench.net.remotes.drain(..).collect();
    lost[..2].iter().for_each(|(_, operation, _)| _ = apply(&mut bench.numbers, *operation));
    bench.net.gone(&mut bench.load, conn, CloseReason::Reset);
    let counted = bench.load.into_outcome().traffic.counted();
    assert_eq!((counted.added(), counted.unknown), (7, 5));
    assert!(counted.explains(bench.numbers[0]) && bench.numbers[0] == 9);
    assert!(!counted.explains(6) && !counted.explains(13));
}

#[test]
fn busy_counter_falls_back_to_fetch_and_add() {
    let mut bench = Bench::new(1, 1, 1);
    for _ in 0..16 + TRIES {
        // Another client changes the counter first every time.
        bench.numbers[0] = bench.numbers[0].wrapping_add(1000);
        assert!(bench.step());
    }
    let CountStats { adds, swaps, misses, .. } = bench.load.into_outcome().traffic.counted();
    assert_eq!((adds, swaps, misses), (16, 0, u64::from(TRIES)));
}

/// Looks up counters at a fake server of `names` names.
fn lookup(names: usize, count: usize, known: Vec<RemoteAddr>, numbers: &mut [u64]) -> CounterLookup {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut lookup = CounterLookup::new("10.0.0.2:6379".parse().unwrap(), count, known, is_over.clone());
    let mut net: FakeTransport<()> = FakeTransport::new(10_000);
    net.remote_room = 5;
    lookup.start(&mut net);
    let conn = net.establish(&mut lookup);
    let mut known = 0;
    while !net.is_closed(conn) {
        let sent = net.drain(&mut lookup, conn);
        let requests = sent.windows(16).filter(|window| window == b"LINERATE.COUNTER").count();
        let mut answer = String::new();
        for _ in 0..requests {
            let address = (BASE + 8 * known as u64).to_string();
            match known < names {
                true => answer.push_str(&format!("*2\r\n${}\r\n{address}\r\n$1\r\n{KEY}\r\n", address.len())),
                false => answer.push_str("-ERR all have names\r\n"),
            }
            known += 1;
        }
        answer.as_bytes().chunks(100).filter(|_| true).for_each(|part| net.arrive(&mut lookup, conn, part));
        let was_done = net.do_remote(&mut lookup, |operation| apply(numbers, operation));
        assert!(requests > 0 || was_done || net.is_closed(conn), "the lookup stalled");
    }
    net.gone(&mut lookup, conn, CloseReason::Finished);
    assert!(is_over.load(Ordering::Acquire));
    lookup
}

#[test]
fn counters_are_found_by_name_and_read_by_the_device() {
    let mut numbers: Vec<u64> = (0..100).map(|n| n * n).collect();
    let before = numbers.clone();
    for count in [1, 32, 33, 100] {
        let (found, values) = lookup(100, count, Vec::new(), &mut numbers).outcome().unwrap();
        assert_eq!((found, &values[..]), (addrs(count), &before[..count]));
        let (_, values) = lookup(0, count, addrs(count), &mut numbers).outcome().unwrap();
        assert_eq!(values, before[..count]);
    }
    assert_eq!(numbers, before);
    let refused = lookup(40, 50, Vec::new(), &mut numbers).outcome().unwrap_err();
    assert_eq!(refused, crate::CounterLookupError::Refused(40, "ERR all have names".to_owned()));
}
