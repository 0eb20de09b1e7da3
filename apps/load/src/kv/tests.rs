//! Key-value load against a fake server, which can be faulty.

use super::keyspace::Scatter;
use super::*;
use crate::testing::{FakeTransport, a_second};
use crate::{Arrivals, Barrier, Errors, Load, OpenLoop, Outcome, WorkerLoad};
use linerate_service::time::Duration;
use linerate_service::{CloseReason, Service};
use std::collections::HashMap;

const TICK: Duration = Duration::from_millis(1);

fn even(rate: f64) -> Option<OpenLoop> {
    Some(OpenLoop { rate, arrivals: Arrivals::Even })
}

fn plan() -> KvPlan {
    KvPlan { keys: 10, value_size: 20..=40, get_ratio: 0.5, verify: true, ..KvPlan::default() }
}

/// Fake server of both protocols. `spoil` returns the answer to a GET of a key, normally its value.
struct Server {
    values: HashMap<Vec<u8>, Vec<u8>>,
    before: HashMap<Vec<u8>, Vec<u8>>,
    pending: HashMap<ConnId, Vec<u8>>,
    requests: Vec<String>,
    spoil: fn(&Self, &[u8]) -> Option<Vec<u8>>,
}

impl Server {
    fn new() -> Self {
        let spoil = |server: &Server, key: &[u8]| server.values.get(key).cloned();
        Server { values: HashMap::new(), before: HashMap::new(), pending: HashMap::new(), requests: Vec::new(), spoil }
    }

    /// Returns the answers on `conn` to the requests that `bytes` complete.
    fn answer(&mut self, conn: ConnId, bytes: &[u8]) -> Vec<u8> {
        let mut pending = self.pending.remove(&conn).unwrap_or_default();
        pending.extend_from_slice(bytes);
        let mut answers = Vec::new();
        while let Some((words, len, is_resp)) = parse(&pending) {
            pending.drain(..len);
            self.requests.push(String::from_utf8_lossy(&[&words[0][..], b" ", &words[1]].concat()).into_owned());
            if let [_, key, value] = &words[..] {
                if let Some(before) = self.values.insert(key.clone(), value.clone()) {
                    self.before.insert(key.clone(), before);
                }
                answers.extend_from_slice(if is_resp { b"+OK\r\n" } else { b"STORED\r\n" });
                continue;
            }
            let value = (self.spoil)(self, &words[1]);
            let len = value.as_ref().map_or(0, Vec::len);
            match (value, is_resp) {
                (Some(value), true) => answers.extend([format!("${len}\r\n").as_bytes(), &value, b"\r\n"].concat()),
                (Some(value), false) => {
                    let key = String::from_utf8_lossy(&words[1]);
                    let line = format!("VALUE {key} 0 {len}\r\n");
                    answers.extend([line.as_bytes(), &value, b"\r\nEND\r\n"].concat());
                }
                (None, is_resp) => answers.extend_from_slice(if is_resp { b"$-1\r\n" } else { b"END\r\n" }),
            }
        }
        self.pending.insert(conn, pending);
        answers
    }
}

/// Returns the words of the first request in `bytes`, its length, and whether it is in RESP.
fn parse(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize, bool)> {
    let line = |from: usize| {
        let len = bytes.get(from..)?.windows(2).position(|window| window == b"\r\n")?;
        Some((std::str::from_utf8(&bytes[from..from + len]).unwrap(), from + len + 2))
    };
    let (first, mut at) = line(0)?;
    let mut words = Vec::new();
    if let Some(count) = first.strip_prefix('*') {
        for _ in 0..count.parse().unwrap() {
            let (len, from) = line(at)?;
            let len: usize = len.strip_prefix('$').unwrap().parse().unwrap();
            words.push(bytes.get(from..from + len + 2)?.strip_suffix(b"\r\n").unwrap().to_vec());
            at = from + len + 2;
        }
        return Some((words, at, true));
    }
    let parts: Vec<&str> = first.split(' ').collect();
    words.extend(parts[..2].iter().map(|word| word.as_bytes().to_vec()));
    if let ["set", _, "0", "0", len] = parts[..] {
        let len: usize = len.parse().unwrap();
        words.push(bytes.get(at..at + len + 2)?.strip_suffix(b"\r\n").unwrap().to_vec());
        at += len + 2;
    }
    Some((words, at, false))
}

struct Bench {
    load: Load<KvLoad>,
    barrier: Arc<Barrier>,
    net: FakeTransport<usize>,
    server: Server,
    /// Size of the chunks in which answers arrive.
    cut: usize,
}

impl Bench {
    fn new(plan: KvPlan, room: usize) -> Self {
        let connections = plan.connections;
        let mut traffic = KvLoad::new(Keyspace::new(plan, 7));
        traffic.rng = Rng::with_seed(1);
        let life = a_second(connections);
        let barrier = Arc::new(Barrier::new(1, connections));
        let mut load = Load::new(&life, barrier.clone(), 0, 1, traffic);
        let mut net = FakeTransport::new(room);
        load.start(&mut net);
        for _ in 0..connections {
            net.establish(&mut load);
        }
        barrier.prepare();
        net.pass(&mut load, TICK);
        Bench { load, barrier, net, server: Server::new(), cut: usize::MAX }
    }

    /// Returns a load that has completed filling.
    fn measuring(plan: KvPlan, room: usize) -> Self {
        let mut bench = Bench::new(plan, room);
        for _ in 0..10_000 {
            bench.serve();
            bench.net.pass(&mut bench.load, TICK);
            if bench.barrier.all_prepared() {
                bench.barrier.begin();
                bench.net.pass(&mut bench.load, TICK);
                return bench;
            }
        }
        panic!("filling does not end");
    }

    /// Answers everything sent on all connections.
    fn serve(&mut self) {
        for conn in self.net.alive() {
            self.serve_on(conn);
        }
    }

    fn serve_on(&mut self, conn: ConnId) {
        let requests = self.net.drain(&mut self.load, conn);
        let answers = self.server.answer(conn, &requests);
        for part in answers.chunks(self.cut) {
            if !self.net.is_aborted(conn) {
                self.net.arrive(&mut self.load, conn, part);
            }
        }
    }

    fn outcome(self) -> Outcome<KvLoad> {
        self.load.into_outcome()
    }
}

#[test]
fn every_key_is_set_before_measuring() {
    let mut bench = Bench::new(KvPlan { keys: 1000, ..plan() }, 10_000);
    assert!(!bench.barrier.all_prepared());
    for _ in 0..100 {
        bench.serve();
    }
    bench.net.pass(&mut bench.load, TICK);
    assert!(bench.barrier.all_prepared());
    assert_eq!((bench.server.values.len(), bench.server.requests.len()), (1000, 1000));
    let conn = bench.net.alive()[0];
    assert_eq!(bench.net.sent(conn), b"", "no request is sent between filling and measuring");
    let outcome = bench.outcome();
    assert_eq!((outcome.traffic.filled(), outcome.traffic.sets().requests), (1000, 0));
}

#[test]
fn requests_longer_than_a_buffer_continue_in_the_next() {
    let mut bench = Bench::new(KvPlan { keys: 1000, value_size: 1000..=4000, ..plan() }, 10_000);
    (bench.net.longest_reserve, bench.net.longest_peek) = (700, 3);
    // Without advancing the clock.
    for _ in 0..4000 {
        bench.serve();
    }
    assert_eq!(bench.server.values.len(), 1000);
}

#[test]
fn load_without_filling_measures_at_once_and_counts_misses() {
    let mut bench = Bench::new(KvPlan { fill: false, verify: false, get_ratio: 1.0, ..plan() }, 10_000);
    assert!(bench.barrier.all_prepared());
    bench.barrier.begin();
    bench.net.pass(&mut bench.load, TICK);
    for _ in 0..5 {
        bench.serve();
    }
    let traffic = bench.outcome().traffic;
    assert_eq!((traffic.misses(), traffic.gets().requests, traffic.gets().bytes, traffic.filled()), (5, 5, 0, 0));
}

#[test]
fn both_protocols_are_parsed_in_any_pieces() {
    for protocol in [Protocol::Resp, Protocol::Memcached] {
        for (depth, room, cut, value_size) in [
            (1, 10_000, usize::MAX, 64..=64),
            (3, 10_000, 1, 8..=100),
            (16, 7, 5, 8..=9),
            (2, 1000, 999, 2000..=5000),
            (1, 100_000, 8192, 70_000..=70_000),
        ] {
            let mut bench = Bench::new(KvPlan { protocol, depth, value_size, connections: 2, ..plan() }, room);
            bench.cut = cut;
            while !bench.barrier.all_prepared() {
                bench.serve();
                bench.net.pass(&mut bench.load, TICK);
            }
            bench.barrier.begin();
            bench.net.pass(&mut bench.load, TICK);
            for _ in 0..2000 {
                bench.serve();
            }
            let outcome = bench.outcome();
            assert_eq!((outcome.traffic.first_error(), outcome.errors), (None, Errors::default()));
            let (gets, sets) = (outcome.traffic.gets(), outcome.traffic.sets());
            assert!(gets.requests > 8 && sets.requests > 8 && gets.bytes > 8 * gets.requests, "{gets:?} {sets:?}");
            assert_eq!((outcome.traffic.misses(), outcome.traffic.refused()), (0, 0));
        }
    }
}

#[test]
fn depth_and_get_ratio_are_kept() {
    let mut bench = Bench::measuring(KvPlan { depth: 16, get_ratio: 0.9, ..plan() }, 10_000);
    bench.server.requests.clear();
    for round in 0..500 {
        assert_eq!(bench.server.requests.len(), 16 * round);
        bench.serve();
    }
    let gets = bench.server.requests.iter().filter(|requests| requests.starts_with("GET")).count();
    assert!((7000..7400).contains(&gets), "{gets} of 8000");
    let first = bench.server.requests.iter().filter(|requests| requests.ends_with(&popular(10))).count();
    assert!(
        (2550..2900).contains(&first),
        "{first} of 8000 requests are for the most popular key, expected fraction 0.339"
    );
}

/// Returns the most popular key.
fn popular(keys: u64) -> String {
    String::from_utf8(key(Scatter::new(keys).place(0)).to_vec()).unwrap()
}

#[test]
fn event_takes_one_consume_and_one_reserve() {
    let mut bench = Bench::measuring(KvPlan { depth: 16, ..plan() }, 10_000);
    (bench.net.consumed, bench.net.reserved) = (0, 0);
    for _ in 0..100 {
        bench.serve();
    }
    assert_eq!((bench.net.consumed, bench.net.reserved), (100, 100));
}

/// Returns the error found when answers to GETs are replaced by `spoil`.
fn found(protocol: Protocol, spoil: fn(&Server, &[u8]) -> Option<Vec<u8>>) -> String {
    let mut bench = Bench::measuring(KvPlan { protocol, ..plan() }, 10_000);
    for _ in 0..200 {
        bench.serve();
    }
    bench.server.spoil = spoil;
    for _ in 0..200 {
        bench.serve();
        if bench.net.alive().iter().any(|conn| bench.net.is_aborted(*conn)) {
            assert_eq!(bench.net.connects, [0], "the connection is reopened");
            let outcome = bench.outcome();
            assert_eq!(outcome.errors, Errors { corrupt: 1, ..Errors::default() });
            return outcome.traffic.first_error().unwrap().to_owned();
        }
    }
    "nothing".to_owned()
}

#[test]
fn invalid_values_are_detected() {
    type Spoil = fn(&Server, &[u8]) -> Option<Vec<u8>>;
    let same: Spoil = |server, key| server.values.get(key).cloned();
    let last_byte: Spoil = |server, key| {
        let mut value = server.values[key].clone();
        *value.last_mut().unwrap() ^= 1;
        Some(value)
    };
    let version: Spoil = |server, key| {
        let mut value = server.values[key].clone();
        value[0] ^= 1;
        Some(value)
    };
    let shorter: Spoil = |server, key| Some(server.values[key][..server.values[key].len() - 1].to_vec());
    let headless: Spoil = |server, key| Some(server.values[key][..5].to_vec());
    let empty: Spoil = |_, _| Some(Vec::new());
    let foreign: Spoil =
        |server, key| server.values.iter().find(|(other, _)| *other != key).map(|(_, value)| value.clone());
    let stale: Spoil = |server, key| server.before.get(key).or(server.values.get(key)).cloned();
    for protocol in [Protocol::Resp, Protocol::Memcached] {
        for (spoil, part) in [
            (same, "nothing"),
            (last_byte, "differs from the written value"),
            (version, "never written to the key"),
            (shorter, "bytes of version"),
            (headless, "shorter than the minimum"),
            (empty, "shorter than the minimum"),
            (foreign, "never written to the key"),
            (stale, "was overwritten"),
        ] {
            let found = found(protocol, spoil);
            assert!(found.contains(part), "{part}: {found}");
            assert!(part == "nothing" || found.starts_with("GET key:0000"), "{found}");
        }
    }
}

/// The server acknowledges a SET and drops it.
#[test]
fn lost_set_is_detected() {
    let mut bench = Bench::measuring(plan(), 10_000);
    let filled = bench.server.values.clone();
    for _ in 0..200 {
        bench.serve();
        bench.server.values = filled.clone();
    }
    let outcome = bench.outcome();
    assert!(outcome.errors.corrupt > 0 && outcome.traffic.first_error().unwrap().contains("was overwritten"));
}

#[test]
fn either_of_two_concurrent_sets_may_remain() {
    let plan = KvPlan { keys: 1, connections: 2, ..plan() };
    let mut bench = Bench::measuring(plan, 10_000);
    for round in 0..500 {
        // In either order, which need not be the order of sending.
        let mut conns = bench.net.alive();
        if round % 3 == 0 {
            conns.reverse();
        }
        let requests: Vec<_> = conns.iter().map(|conn| bench.net.drain(&mut bench.load, *conn)).collect();
        let answers: Vec<_> =
            conns.iter().zip(requests).map(|(conn, requests)| bench.server.answer(*conn, &requests)).collect();
        for (conn, answer) in conns.iter().zip(answers).rev() {
            bench.net.arrive(&mut bench.load, *conn, &answer);
        }
    }
    let outcome = bench.outcome();
    assert_eq!((outcome.traffic.first_error(), outcome.errors), (None, Errors::default()));
}

#[test]
fn unverified_values_are_only_counted() {
    let mut bench = Bench::measuring(KvPlan { verify: false, value_size: 1..=1, ..plan() }, 10_000);
    bench.server.spoil = |_, _| Some(b"something else".to_vec());
    for _ in 0..100 {
        bench.serve();
    }
    let outcome = bench.outcome();
    let (gets, sets) = (outcome.traffic.gets(), outcome.traffic.sets());
    assert_eq!(outcome.errors, Errors::default());
    assert_eq!((gets.bytes, sets.bytes), (14 * gets.requests, sets.requests));
    assert_eq!(gets.requests + sets.requests, 100);
}

/// Returns the error caused by `answer` to one request.
fn outcome_of(protocol: Protocol, get_ratio: f64, answer: &[u8]) -> String {
    for cut in [usize::MAX, 1, 3] {
        let plan = KvPlan { protocol, get_ratio, fill: false, verify: false, ..plan() };
        let mut bench = Bench::new(plan, 10_000);
        bench.barrier.begin();
        bench.net.pass(&mut bench.load, TICK);
        let conn = bench.net.alive()[0];
        bench.net.drain(&mut bench.load, conn);
        for part in answer.chunks(cut) {
            if !bench.net.is_aborted(conn) {
                bench.net.arrive(&mut bench.load, conn, part);
            }
        }
        let outcome = bench.outcome();
        if outcome.errors.corrupt == 0 {
            return format!(
                "nothing, {} refused, {}",
                outcome.traffic.refused(),
                outcome.traffic.first_error().unwrap_or("")
            );
        }
        if cut == 3 {
            return outcome.traffic.first_error().unwrap().to_owned();
        }
    }
    unreachable!()
}

#[test]
fn wrong_replies_are_described() {
    use Protocol::{Memcached, Resp};
    let long = [b'x'; 70_000];
    for (protocol, get_ratio, answer, part) in [
        (Resp, 1.0, &b"+OK\r\n"[..], r#"GET key:00000000000"#),
        (Resp, 1.0, b"+OK\r\n", r#"the reply is "+OK\r\n""#),
        (Resp, 0.0, b"$2\r\nOK\r\n", r#"the reply is "$2\r\n""#),
        (Resp, 0.0, b"+QUEUED\r\n", r#"the reply is "+QUEUED\r\n""#),
        (Resp, 0.0, b":1\r\n", r#"the reply is ":1\r\n""#),
        (Resp, 1.0, b"$-2\r\n", r#"the reply is "$-2\r\n""#),
        (Resp, 1.0, b"$\r\n", r#"the reply is "$\r\n""#),
        (Resp, 1.0, b"$5x\r\n", r#"the reply is "$5x\r\n""#),
        (Resp, 1.0, b"$600000000\r\n", "the reply is"),
        (Resp, 1.0, b"$99999999999999999999\r\n", "the reply is"),
        (Resp, 1.0, b"$5\n", r#"the reply is "$5\n""#),
        (Resp, 1.0, b"\xff\x00\n", r#"the reply is "\xff\x00\n""#),
        (Resp, 1.0, b"$3\r\nabcde", r#"followed by "d"#),
        (Resp, 1.0, &long, "a line of more than 65536 bytes"),
        (Memcached, 1.0, b"STORED\r\n", r#"the reply is "STORED\r\n""#),
        (Memcached, 0.0, b"END\r\n", r#"the reply is "END\r\n""#),
        (Memcached, 0.0, b"NOT_STORED\r\n", "NOT_STORED"),
        (Memcached, 1.0, b"VALUE key:ffffffffffff 0 1\r\nx\r\nEND\r\n", "VALUE key:ffffffffffff"),
        (Memcached, 1.0, b"VALUE \r\n", r#"the reply is "VALUE \r\n""#),
        (Memcached, 1.0, b"-ERR unknown command\r\n", "-ERR"),
    ] {
        let outcome_of = outcome_of(protocol, get_ratio, answer);
        assert!(outcome_of.contains(part), "{}: {outcome_of}", answer[..answer.len().min(50)].escape_ascii());
    }
}

#[test]
fn error_replies_are_counted_and_the_connection_continues() {
    for (protocol, answer) in [
        (Protocol::Resp, &b"-OOM command not allowed\r\n"[..]),
        (Protocol::Memcached, b"SERVER_ERROR out of memory storing object\r\n"),
        (Protocol::Memcached, b"ERROR\r\n"),
    ] {
        for get_ratio in [0.0, 1.0] {
            let outcome_of = outcome_of(protocol, get_ratio, answer);
            assert!(outcome_of.starts_with("nothing, 1 refused"), "{outcome_of}");
            let text = answer.strip_prefix(b"-").unwrap_or(answer).trim_ascii_end();
            assert!(outcome_of.contains(&format!("the reply is \"{}\"", text.escape_ascii())), "{outcome_of}");
        }
    }
    let long = [&b"-ERR "[..], &[b'x'; 10_000], b"\r\n"].concat();
    let outcome_of = outcome_of(Protocol::Resp, 1.0, &long);
    assert!(outcome_of.starts_with("nothing, 1 refused") && outcome_of.len() < 300, "{outcome_of}");
}

#[test]
fn unsolicited_reply_is_wrong() {
    let mut bench = Bench::measuring(KvPlan { get_ratio: 0.0, ..plan() }, 10_000);
    let conn = bench.net.alive()[0];
    bench.net.drain(&mut bench.load, conn);
    bench.net.arrive(&mut bench.load, conn, b"+OK\r\n+OK\r\n");
    let outcome = bench.outcome();
    assert_eq!(outcome.errors.corrupt, 1);
    assert!(outcome.traffic.first_error().unwrap().starts_with(r#""+OK\r\n" arrived without"#));
}

#[test]
fn sets_lost_with_a_connection_while_filling_are_repeated_on_another() {
    let mut bench = Bench::new(KvPlan { connections: 2, ..plan() }, 10_000);
    let conns = bench.net.alive();
    bench.net.gone(&mut bench.load, conns[0], CloseReason::Reset);
    for _ in 0..100 {
        bench.serve_on(conns[1]);
    }
    bench.net.pass(&mut bench.load, TICK);
    assert!(bench.barrier.all_prepared() && bench.server.values.len() == 10);
    assert_eq!(bench.outcome().errors, Errors { lost: 1, ..Errors::default() });
}

#[test]
fn worker_that_lost_all_connections_while_filling_counts_as_prepared() {
    let mut bench = Bench::new(plan(), 10_000);
    let conn = bench.net.alive()[0];
    bench.net.gone(&mut bench.load, conn, CloseReason::Reset);
    assert!(bench.barrier.all_prepared() && bench.barrier.all_done() && bench.net.connects.is_empty());
}

#[test]
fn open_loop_times_count_from_the_due_time() {
    let plan = KvPlan { open: even(1000.0), verify: false, get_ratio: 1.0, ..plan() };
    let mut bench = Bench::measuring(plan, 10_000);
    let conn = bench.net.alive()[0];
    assert_eq!(bench.net.sent(conn).iter().filter(|byte| **byte == b'*').count(), 1);
    // No answers for 10 ms, during which 10 more requests become due; then all answers at once.
    for _ in 0..10 {
        bench.net.pass(&mut bench.load, TICK);
    }
    for _ in 0..11 {
        bench.serve();
    }
    let traffic = bench.outcome().traffic;
    let (gets, late) = (traffic.gets().times.answered(), traffic.pace().unwrap().late_nanos());
    assert_eq!((gets.len(), late.len()), (11, 11));
    let millis = |nanos: u64| (nanos + 50_000) / 1_000_000;
    assert_eq!((millis(gets.min()), millis(gets.max())), (0, 10), "the last request was due when it was answered");
    assert_eq!((millis(gets.value_at_quantile(0.5)), millis(late.max())), (5, 9));
}

#[test]
fn open_loop_keeps_its_pace_without_answers_up_to_the_depth() {
    let plan = KvPlan { open: even(10_000.0), depth: 4, connections: 5, ..plan() };
    let mut bench = Bench::measuring(plan, 10_000);
    let requests = |bench: &Bench| -> Vec<usize> {
        let requests = |conn| bench.net.sent(conn).windows(5).filter(|w| *w == b"GET\r\n" || *w == b"SET\r\n").count();
        bench.net.alive().into_iter().map(requests).collect()
    };
    assert_eq!(requests(&bench).iter().sum::<usize>(), 1);
    bench.net.pass(&mut bench.load, TICK);
    assert_eq!(requests(&bench).iter().sum::<usize>(), 11);
    assert!(requests(&bench).iter().all(|requests| (1..=3).contains(requests)), "{:?}", requests(&bench));
    bench.net.pass(&mut bench.load, 10 * TICK);
    bench.net.pass(&mut bench.load, 10 * TICK);
    assert_eq!(requests(&bench), [4; 5]);
    // Due requests are kept.
    for _ in 0..100 {
        bench.serve();
    }
    assert_eq!(bench.load.outcome.traffic.pace().unwrap().late_nanos().len(), 211);
    // No request is answered from now on: those outstanding and those not sent count with their ages.
    bench.net.pass(&mut bench.load, Duration::from_secs(1));
    let traffic = bench.outcome().traffic;
    let kinds = [traffic.gets(), traffic.sets()];
    let (waiting, due) = (kinds.map(|kind| kind.times.all().len() - kind.requests), traffic.pace().unwrap().due());
    let left_out = due - waiting[0] - waiting[1] - kinds[0].requests - kinds[1].requests;
    assert!(left_out < 220, "{left_out}: only the last have waited less than 22 ms");
    assert!(waiting[0].abs_diff(waiting[1]) < due / 4, "{waiting:?}");
    assert!(kinds.iter().all(|kind| kind.times.stalled() > 1000 && kind.times.all().max() > 900_000_000));
}

#[test]
fn slow_open_loop_wakes_for_each_request() {
    let mut bench = Bench::measuring(KvPlan { open: even(400.0), ..plan() }, 10_000);
    for _ in 0..100 {
        bench.serve();
        let (_, when) = bench.net.timers[0];
        assert!(when.since(bench.net.now) <= Duration::from_nanos(2_500_000));
        bench.net.pass(&mut bench.load, when.since(bench.net.now));
    }
    let traffic = bench.outcome().traffic;
    assert!(
        traffic.pace().unwrap().late_nanos().len() >= 100 && traffic.pace().unwrap().late_nanos().max() == 0,
        "{:?}",
        traffic.pace().unwrap().late_nanos().max()
    );
}
