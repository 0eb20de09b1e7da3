//! Phases of a load over a fake transport.

use super::*;
use crate::services::Echo;
use crate::testing::{FakeTransport, a_second};
use crate::{Arrivals, EchoLoad, OpenLoop};

const SECOND: Duration = Duration::from_secs(1);

fn load(connections: usize) -> (Load<EchoLoad>, Arc<Barrier>, FakeTransport<usize>) {
    warming(connections, Duration::ZERO)
}

fn warming(connections: usize, warm_up: Duration) -> (Load<EchoLoad>, Arc<Barrier>, FakeTransport<usize>) {
    let plan = Plan { warm_up, ..a_second(connections) };
    let barrier = Arc::new(Barrier::new(1, connections));
    let mut load = Load::new(&plan, barrier.clone(), 0, 1, EchoLoad::new(10, 2, None));
    let mut net = FakeTransport::new(100);
    load.start(&mut net);
    (load, barrier, net)
}

fn measuring(connections: usize) -> (Load<EchoLoad>, Arc<Barrier>, FakeTransport<usize>) {
    let (mut load, barrier, mut net) = load(connections);
    for _ in 0..connections {
        net.establish(&mut load);
    }
    barrier.begin();
    net.pass(&mut load, OPENING_TICK);
    (load, barrier, net)
}

/// Echoes the data of `conn`.
fn echo(load: &mut Load<EchoLoad>, net: &mut FakeTransport<usize>, conn: ConnId) {
    let bytes = net.drain(load, conn);
    net.arrive(load, conn, &bytes);
}

#[test]
fn sending_starts_when_all_workers_connections_are_open() {
    let (mut load, barrier, mut net) = load(2);
    assert_eq!(net.connects, [0, 1]);
    let (a, b) = (net.establish(&mut load), net.establish(&mut load));
    net.pass(&mut load, SECOND);
    assert!(barrier.all_decided());
    assert_eq!((net.sent(a).len(), net.sent(b).len()), (0, 0));
    barrier.begin();
    net.pass(&mut load, OPENING_TICK);
    assert_eq!((net.sent(a).len(), net.sent(b).len()), (20, 20));
    assert_ne!(net.sent(a), net.sent(b), "each connection has bytes of its own");
}

#[test]
fn concurrent_connection_attempts_are_limited() {
    let (mut load, _, mut net) = load(1000);
    assert_eq!(net.connects.len(), OPENING_AT_ONCE);
    for _ in 0..1000 {
        net.establish(&mut load);
        assert!(net.connects.len() <= OPENING_AT_ONCE);
    }
    assert_eq!(net.connects.len(), 0);
}

#[test]
fn load_measures_closes_and_ends_when_all_peers_closed() {
    let (mut load, barrier, mut net) = measuring(2);
    let conns = net.alive();
    for _ in 0..5 {
        net.pass(&mut load, SECOND / 10);
        conns.iter().for_each(|conn| echo(&mut load, &mut net, *conn));
    }
    net.pass(&mut load, SECOND);
    for conn in conns {
        assert!(net.is_closed(conn) && !barrier.all_done());
        echo(&mut load, &mut net, conn);
        net.end(&mut load, conn);
        net.gone(&mut load, conn, CloseReason::Finished);
    }
    assert!(barrier.all_done());
    let outcome = load.into_outcome();
    assert_eq!(outcome.measured, SECOND);
    assert_eq!(outcome.errors, Errors::default());
    assert_eq!(outcome.traffic.requests(), 20, "answers after the end do not count");
}

#[test]
fn requests_without_an_answer_count_with_their_age() {
    let (mut load, _, mut net) = measuring(2);
    let conns = net.alive();
    net.pass(&mut load, SECOND / 50);
    echo(&mut load, &mut net, conns[0]);
    net.pass(&mut load, SECOND);
    conns.iter().for_each(|conn| echo(&mut load, &mut net, *conn));
    let times = load.outcome.traffic.times();
    let all = times.all();
    assert_eq!((times.answered().len(), all.len(), times.stalled()), (2, 6, 4));
    assert!(all.equivalent(all.max(), SECOND.as_nanos() as u64), "{}", all.max());

    let (mut load, mut net) = open(3, 2 * MILLISECOND);
    for _ in 0..10 {
        net.pass(&mut load, MILLISECOND);
        net.alive().iter().for_each(|conn| echo(&mut load, &mut net, *conn));
    }
    net.pass(&mut load, SECOND);
    let traffic = load.outcome.traffic;
    let (times, pace) = (traffic.times(), traffic.pace().unwrap());
    // A request without an answer was sent on time; the others were not sent.
    assert_eq!((pace.due(), times.all().len(), pace.late_nanos().len()), (1000, 1000, 1000));
    let age = Duration::from_nanos(times.all().max());
    assert!(age > Duration::from_millis(985) && age < SECOND, "{age:?}");
    assert!((485..=495).contains(&times.stalled()), "{}", times.stalled());
}

#[test]
fn connections_that_close_at_once_are_limited() {
    let (mut load, barrier, mut net) = measuring(CLOSING_AT_ONCE + 2);
    let conns = net.alive();
    net.pass(&mut load, SECOND);
    let closed = |net: &FakeTransport<usize>| conns.iter().filter(|conn| net.is_closed(**conn)).count();
    assert_eq!(closed(&net), CLOSING_AT_ONCE);
    // The peer of a connection that has not been closed closes first.
    let last = *conns.last().unwrap();
    net.end(&mut load, last);
    assert!(net.is_closed(last));
    net.gone(&mut load, last, CloseReason::Finished);
    assert_eq!(closed(&net), CLOSING_AT_ONCE + 1);
    for (number, conn) in conns[..=CLOSING_AT_ONCE].iter().enumerate() {
        assert!(net.is_closed(*conn) && !barrier.all_done(), "{number}");
        echo(&mut load, &mut net, *conn);
        net.end(&mut load, *conn);
        net.gone(&mut load, *conn, CloseReason::Finished);
    }
    assert!(barrier.all_done());
    assert_eq!(load.into_outcome().errors, Errors::default());
}

#[test]
fn answers_while_warming_up_do_not_count() {
    let (mut load, barrier, mut net) = warming(1, 2 * SECOND);
    let conn = net.establish(&mut load);
    barrier.begin();
    net.pass(&mut load, OPENING_TICK);
    for _ in 0..19 {
        net.pass(&mut load, SECOND / 10);
        echo(&mut load, &mut net, conn);
    }
    assert_eq!(load.outcome.traffic.requests(), 0);
    // These requests are sent while warming up and answered while measuring.
    let bytes = net.drain(&mut load, conn);
    net.pass(&mut load, SECOND / 5);
    net.arrive(&mut load, conn, &bytes);
    assert_eq!(load.outcome.traffic.requests(), 2, "a closed loop counts requests answered while measuring");
    net.pass(&mut load, SECOND / 2);
    assert!(!net.is_closed(conn));
    net.pass(&mut load, SECOND / 2);
    assert!(net.is_closed(conn));
    assert_eq!(load.into_outcome().measured, SECOND);
}

/// A load of `connections` connections with depth 2 in an open loop of one request per millisecond.
fn open(connections: usize, warm_up: Duration) -> (Load<EchoLoad>, FakeTransport<usize>) {
    let plan = Plan { warm_up, ..a_second(connections) };
    let barrier = Arc::new(Barrier::new(1, connections));
    let open = OpenLoop { rate: 1000.0, arrivals: Arrivals::Even };
    let mut load = Load::new(&plan, barrier.clone(), 0, 1, EchoLoad::new(10, 2, Some(open)));
    let mut net = FakeTransport::new(100);
    load.start(&mut net);
    for _ in 0..connections {
        net.establish(&mut load);
    }
    barrier.prepare();
    net.pass(&mut load, OPENING_TICK);
    assert!(net.alive().iter().all(|conn| net.sent(*conn).is_empty()), "no request is due before the load begins");
    barrier.begin();
    net.pass(&mut load, OPENING_TICK);
    (load, net)
}

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn open_loop_sends_due_requests_in_turn_and_keeps_the_rest_waiting() {
    let (mut load, mut net) = open(3, Duration::ZERO);
    let conns = net.alive();
    for due in 1..=9 {
        let sent: Vec<_> = conns.iter().map(|conn| net.sent(*conn).len()).collect();
        assert_eq!(sent.iter().sum::<usize>(), 10 * due.min(6), "{sent:?}");
        assert!(sent.iter().max().unwrap() - sent.iter().min().unwrap() <= 10, "{sent:?}");
        net.pass(&mut load, MILLISECOND);
    }
    // Ten requests were due. The six sent requests are answered after 9 to 4 ms, and the other four at once.
    conns.iter().for_each(|conn| echo(&mut load, &mut net, *conn));
    let traffic = &load.outcome.traffic;
    assert_eq!((traffic.requests(), traffic.pace().unwrap().late_nanos().len()), (6, 10));
    conns.iter().for_each(|conn| echo(&mut load, &mut net, *conn));
    let traffic = load.outcome.traffic;
    let millis = |nanos: u64| (nanos + 50_000) / 1_000_000;
    assert_eq!(traffic.requests(), 10);
    assert_eq!((millis(traffic.times().answered().min()), millis(traffic.times().answered().max())), (0, 9));
    let late = traffic.pace().unwrap().late_nanos();
    assert_eq!((late.min(), millis(late.max())), (0, 3), "the first waiting request was due 3 ms before it was sent");
}

#[test]
fn open_loop_counts_requests_due_while_measuring() {
    let (mut load, mut net) = open(1, 2 * MILLISECOND);
    let conn = net.alive()[0];
    // Two requests were due before the measurement.
    for _ in 0..4 {
        net.pass(&mut load, MILLISECOND);
    }
    for _ in 0..4 {
        echo(&mut load, &mut net, conn);
    }
    assert_eq!(load.outcome.traffic.requests(), 3);
    net.pass(&mut load, SECOND);
    let Outcome { traffic, measured, .. } = load.into_outcome();
    assert_eq!((traffic.pace().unwrap().due(), measured), (1000, SECOND));
}

#[test]
fn due_requests_are_sent_at_each_turn_without_a_timer() {
    let (mut load, mut net) = open(1, Duration::ZERO);
    let conn = net.alive()[0];
    assert_eq!(load.turn(&mut net), Some(MILLISECOND));
    net.now += MILLISECOND;
    assert_eq!((load.turn(&mut net), net.sent(conn).len()), (Some(MILLISECOND), 20));
    net.now += MILLISECOND;
    assert_eq!((load.turn(&mut net), net.sent(conn).len()), (None, 20), "there is no room");
    let (mut closed, _, mut net) = measuring(1);
    assert_eq!(closed.turn(&mut net), None);
}

#[test]
fn open_loop_sends_large_requests_in_parts() {
    let plan = a_second(1);
    let barrier = Arc::new(Barrier::new(1, 1));
    let open = OpenLoop { rate: 1000.0, arrivals: Arrivals::Poisson };
    let mut load = Load::new(&plan, barrier.clone(), 0, 1, EchoLoad::new(1003, 4, Some(open)));
    let mut net = FakeTransport::new(100);
    load.start(&mut net);
    let conn = net.establish(&mut load);
    barrier.begin();
    while !net.is_closed(conn) {
        net.pass(&mut load, MILLISECOND / 50);
        echo(&mut load, &mut net, conn);
    }
    let outcome = load.into_outcome();
    let pace = outcome.traffic.pace().unwrap();
    assert_eq!(outcome.errors, Errors::default());
    assert!((850..1150).contains(&pace.due()), "{}", pace.due());
    let unanswered = pace.due() - outcome.traffic.requests();
    assert!(unanswered <= 4, "{unanswered}");
}

#[test]
fn connection_lost_while_warming_up_is_an_error_and_reopened() {
    let (mut load, barrier, mut net) = warming(1, SECOND);
    let first = net.establish(&mut load);
    barrier.begin();
    net.pass(&mut load, OPENING_TICK);
    net.gone(&mut load, first, CloseReason::Reset);
    let second = net.establish(&mut load);
    assert_eq!(net.sent(second).len(), 20);
    assert_eq!(load.into_outcome().errors, Errors { lost: 1, ..Default::default() });
}

#[test]
fn stop_while_warming_up_measures_nothing() {
    let (mut load, barrier, mut net) = warming(1, SECOND);
    let conn = net.establish(&mut load);
    barrier.begin();
    net.pass(&mut load, OPENING_TICK);
    echo(&mut load, &mut net, conn);
    barrier.stop();
    net.pass(&mut load, MEASURING_TICK);
    assert!(net.is_closed(conn));
    net.gone(&mut load, conn, CloseReason::Finished);
    assert!(barrier.all_done());
    let outcome = load.into_outcome();
    assert_eq!((outcome.measured, outcome.traffic.requests()), (Duration::ZERO, 0));
}

#[test]
fn stop_ends_the_measurement_early() {
    let (mut load, barrier, mut net) = measuring(1);
    net.pass(&mut load, SECOND / 4);
    barrier.stop();
    net.pass(&mut load, SECOND / 4);
    let conn = net.alive()[0];
    net.end(&mut load, conn);
    assert!(barrier.all_done());
    assert_eq!(load.into_outcome().measured, SECOND / 2);
}

#[test]
fn refused_connection_is_counted_and_the_others_continue() {
    let (mut load, barrier, mut net) = load(2);
    net.refuse(&mut load, ConnectError::Refused);
    assert!(!barrier.all_decided());
    net.establish(&mut load);
    assert!(barrier.all_decided());
    assert_eq!((barrier.opened(), net.connects.len()), (1, 0));
    assert_eq!(load.into_outcome().errors, Errors { refused: 1, ..Default::default() });
}

#[test]
fn worker_without_any_connection_opened_ends() {
    let (mut load, barrier, mut net) = load(2);
    net.refuse(&mut load, ConnectError::Unreachable);
    assert!(!barrier.all_done());
    net.refuse(&mut load, ConnectError::TimedOut);
    assert!(barrier.all_done());
    let outcome = load.into_outcome();
    assert_eq!((outcome.errors.unopened, outcome.last_failure), (2, Some(ConnectError::TimedOut)));
}

#[test]
fn lost_connection_is_counted_and_reopened_with_a_new_stream() {
    let (mut load, barrier, mut net) = measuring(1);
    let first = net.alive()[0];
    let sent = net.sent(first);
    net.gone(&mut load, first, CloseReason::Reset);
    let second = net.establish(&mut load);
    assert_eq!(net.sent(second), sent);
    net.end(&mut load, second);
    assert!(net.is_aborted(second), "a server that closes first has lost the connection");
    net.gone(&mut load, second, CloseReason::Aborted);
    let third = net.establish(&mut load);
    net.pass(&mut load, SECOND);
    assert!(net.is_closed(third), "the timer moved to the new connection");
    net.gone(&mut load, third, CloseReason::Finished);
    assert!(barrier.all_done());
    assert_eq!(load.into_outcome().errors, Errors { lost: 2, ..Default::default() });
}

#[test]
fn connection_with_wrong_bytes_is_counted_and_aborted() {
    let (mut load, _, mut net) = measuring(1);
    let conn = net.alive()[0];
    let mut bytes = net.drain(&mut load, conn);
    bytes[13] ^= 1;
    net.arrive(&mut load, conn, &bytes);
    assert!(net.is_aborted(conn));
    assert_eq!(net.connects, [0]);
    assert_eq!(load.into_outcome().errors, Errors { corrupt: 1, ..Default::default() });
}

#[test]
fn measurement_ends_with_the_last_connection_of_a_lost_server() {
    let (mut load, barrier, mut net) = measuring(2);
    net.pass(&mut load, SECOND / 2);
    for conn in net.alive() {
        net.gone(&mut load, conn, CloseReason::Reset);
    }
    net.refuse(&mut load, ConnectError::Refused);
    assert!(!barrier.all_done());
    net.refuse(&mut load, ConnectError::Refused);
    assert!(barrier.all_done());
    let outcome = load.into_outcome();
    assert_eq!(outcome.errors, Errors { lost: 2, refused: 2, ..Default::default() });
    assert_eq!(outcome.measured, SECOND / 2);
}

#[test]
fn timer_moves_to_another_connection_when_its_own_is_lost() {
    let (mut load, _, mut net) = measuring(3);
    let conns = net.alive();
    net.gone(&mut load, conns[0], CloseReason::Reset);
    net.refuse(&mut load, ConnectError::Refused);
    net.pass(&mut load, SECOND);
    assert!(net.is_closed(conns[1]) && net.is_closed(conns[2]));
}

#[test]
fn connections_are_distributed_over_workers() {
    let plan = a_second(5);
    let barrier = Arc::new(Barrier::new(3, 5));
    let shares = [0, 1, 2].map(|worker| {
        let mut net = FakeTransport::<usize>::new(100);
        Load::new(&plan, barrier.clone(), worker, 3, EchoLoad::new(1, 1, None)).start(&mut net);
        net.connects.len()
    });
    assert_eq!(shares, [2, 2, 1]);
}

#[test]
fn connections_use_all_server_ports_in_turn() {
    let plan = Plan { ports: 2, ..a_second(3) };
    let ports = [0, 1, 2].map(|slot| plan.remote_of(slot).port());
    assert_eq!(ports, [7, 8, 7]);
}

#[test]
fn worker_without_connections_ends_at_once() {
    let plan = a_second(1);
    let barrier = Arc::new(Barrier::new(2, 1));
    Load::new(&plan, barrier.clone(), 1, 2, EchoLoad::new(1, 1, None)).start(&mut FakeTransport::<usize>::new(100));
    barrier.worker_done();
    assert!(barrier.all_done());
}

#[test]
fn load_and_echo_service_work_byte_by_byte() {
    let (mut load, _, mut net) = measuring(1);
    let conn = net.alive()[0];
    let mut server = FakeTransport::new(7);
    let peer = server.accept(&mut Echo);
    for _ in 0..100 {
        let bytes = net.drain(&mut load, conn);
        server.arrive(&mut Echo, peer, &bytes);
        while server.received(peer) > 0 || !server.sent(peer).is_empty() {
            for byte in server.drain(&mut Echo, peer) {
                net.arrive(&mut load, conn, &[byte]);
            }
        }
    }
    let outcome = load.into_outcome();
    assert_eq!(outcome.errors, Errors::default());
    assert!(outcome.traffic.requests() >= 200);
}
