//! The load against counters that the test plays.

use super::super::super::{Board, Load, Outcome, Part};
use super::*;
use crate::AskCounters;
use crate::testing::{Fake, a_second};
use linerate_bypass::time::Duration;
use linerate_bypass::{CloseReason, Service};
use std::sync::atomic::{AtomicBool, Ordering};

const SECOND: Duration = Duration::from_secs(1);
const BASE: u64 = 4096;
const KEY: u32 = 7;

fn places(count: usize) -> Vec<RemoteAddr> {
    (0..count as u64).map(|at| RemoteAddr { address: BASE + 8 * at, key: KEY }).collect()
}

/// As a device does it.
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
    net: Fake<usize>,
    numbers: Vec<u64>,
}

impl Bench {
    /// Measuring, on so many connections and counters.
    fn new(connections: usize, depth: usize, counters: usize) -> Self {
        let plan = Arc::new(CountPlan { places: places(counters), depth, zipf: 0.99 });
        let mut traffic = CountLoad::new(plan);
        traffic.rng = Rng::with_seed(1);
        let life = a_second(connections);
        let board = Arc::new(Board::new(1, connections));
        let mut load = Load::new(&life, board.clone(), 0, 1, traffic);
        let mut net = Fake::new(100);
        net.remote_room = connections * depth;
        load.start(&mut net);
        for _ in 0..connections {
            net.establish(&mut load);
        }
        board.prepare();
        board.begin();
        net.pass(&mut load, Duration::from_millis(1));
        Bench { load, net, numbers: vec![0; counters] }
    }

    fn step(&mut self) -> bool {
        let numbers = &mut self.numbers;
        self.net.do_remote(&mut self.load, |operation| apply(numbers, operation))
    }

    /// The time is over, and all connections end as they should. Returns what was counted.
    fn finish(mut self) -> (Outcome<CountLoad>, u64) {
        self.net.pass(&mut self.load, SECOND);
        while self.step() {}
        for conn in self.net.alive() {
            assert!(self.net.is_closed(conn), "it is closed when nothing is on its way");
            self.net.gone(&mut self.load, conn, CloseReason::Finished);
        }
        let grew = self.numbers.iter().fold(0u64, |sum, number| sum.wrapping_add(*number));
        (self.load.into_outcome(), grew)
    }
}

#[test]
fn counters_grow_by_what_was_added_however_many_count_at_once() {
    let mut bench = Bench::new(3, 4, 5);
    assert_eq!(bench.net.remotes.len(), 12);
    // Others have counted before.
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
    assert_eq!(outcome.traffic.nanos().len(), measured);
    assert_eq!(outcome.errors.total(), 0);
}

#[test]
fn one_request_of_sixteen_swaps() {
    let mut bench = Bench::new(1, 1, 1);
    bench.numbers[0] = 5;
    (0..161).for_each(|_| assert!(bench.step()));
    let counted = bench.load.into_outcome().traffic.counted();
    assert_eq!(counted, Counted { adds: 151, swaps: 10, misses: 0, unknown: 0 });
}

#[test]
fn nothing_is_closed_while_an_operation_is_on_its_way() {
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
fn an_operation_that_is_lost_or_made_twice_is_found() {
    for (spoil, explained) in [(0i64, true), (1, false), (-1, false)] {
        let mut bench = Bench::new(1, 2, 1);
        (0..100).for_each(|_| assert!(bench.step()));
        bench.numbers[0] = bench.numbers[0].wrapping_add_signed(spoil);
        let (outcome, sum) = bench.finish();
        assert_eq!(outcome.traffic.counted().explains(sum), explained, "{spoil}");
    }
}

#[test]
fn what_was_on_its_way_on_a_lost_connection_may_have_been_done() {
    let mut bench = Bench::new(1, 5, 1);
    let conn = bench.net.alive()[0];
    (0..7).for_each(|_| assert!(bench.step()));
    // Two of the five are done, and nobody is told.
    let lost: Vec<_> = bench.net.remotes.drain(..).collect();
    lost[..2].iter().for_each(|(_, operation, _)| _ = apply(&mut bench.numbers, *operation));
    bench.net.gone(&mut bench.load, conn, CloseReason::Reset);
    let counted = bench.load.into_outcome().traffic.counted();
    assert_eq!((counted.added(), counted.unknown), (7, 5));
    assert!(counted.explains(bench.numbers[0]) && bench.numbers[0] == 9);
    assert!(!counted.explains(6) && !counted.explains(13));
}

#[test]
fn a_counter_that_always_changes_is_added_to_in_the_end() {
    let mut bench = Bench::new(1, 1, 1);
    for _ in 0..16 + TRIES {
        // Somebody else is always faster.
        bench.numbers[0] = bench.numbers[0].wrapping_add(1000);
        assert!(bench.step());
    }
    let Counted { adds, swaps, misses, .. } = bench.load.into_outcome().traffic.counted();
    assert_eq!((adds, swaps, misses), (16, 0, u64::from(TRIES)));
}

/// Plays the server of `names` names.
fn ask(names: usize, count: usize, known: Vec<RemoteAddr>, numbers: &mut [u64]) -> AskCounters {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut ask = AskCounters::new("10.0.0.2:6379".parse().unwrap(), count, known, is_over.clone());
    let mut net: Fake<()> = Fake::new(10_000);
    net.remote_room = 5;
    ask.start(&mut net);
    let conn = net.establish(&mut ask);
    let mut told = 0;
    while !net.is_closed(conn) {
        let asked = net.drain(&mut ask, conn);
        let requests = asked.windows(16).filter(|window| window == b"LINERATE.COUNTER").count();
        let mut answer = String::new();
        for _ in 0..requests {
            let address = (BASE + 8 * told as u64).to_string();
            match told < names {
                true => answer.push_str(&format!("*2\r\n${}\r\n{address}\r\n$1\r\n{KEY}\r\n", address.len())),
                false => answer.push_str("-ERR all have names\r\n"),
            }
            told += 1;
        }
        answer.as_bytes().chunks(100).filter(|_| true).for_each(|part| net.arrive(&mut ask, conn, part));
        let was_done = net.do_remote(&mut ask, |operation| apply(numbers, operation));
        assert!(requests > 0 || was_done || net.is_closed(conn), "it waits for nothing");
    }
    net.gone(&mut ask, conn, CloseReason::Finished);
    assert!(is_over.load(Ordering::Acquire));
    ask
}

#[test]
fn counters_are_found_by_name_and_looked_at_by_the_device() {
    let mut numbers: Vec<u64> = (0..100).map(|n| n * n).collect();
    let before = numbers.clone();
    for count in [1, 32, 33, 100] {
        let (found, values) = ask(100, count, Vec::new(), &mut numbers).outcome().unwrap();
        assert_eq!((found, &values[..]), (places(count), &before[..count]));
        let (_, values) = ask(0, count, places(count), &mut numbers).outcome().unwrap();
        assert_eq!(values, before[..count]);
    }
    assert_eq!(numbers, before);
    let refused = ask(40, 50, Vec::new(), &mut numbers).outcome().unwrap_err();
    assert_eq!(refused, crate::NoCounters::Refused(40, "ERR all have names".to_owned()));
}
