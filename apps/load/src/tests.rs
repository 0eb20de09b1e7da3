//! The life of a load over a transport that the test plays.

use super::*;
use crate::services::Echo;
use crate::testing::{Fake, a_second};

const SECOND: Duration = Duration::from_secs(1);

fn load(connections: usize) -> (Load<EchoLoad>, Arc<Board>, Fake<usize>) {
    warming(connections, Duration::ZERO)
}

fn warming(connections: usize, warm_up: Duration) -> (Load<EchoLoad>, Arc<Board>, Fake<usize>) {
    let plan = Plan { warm_up, ..a_second(connections) };
    let board = Arc::new(Board::new(1, connections));
    let mut load = Load::new(&plan, board.clone(), 0, 1, EchoLoad::new(10, 2, None));
    let mut net = Fake::new(100);
    load.start(&mut net);
    (load, board, net)
}

fn measuring(connections: usize) -> (Load<EchoLoad>, Arc<Board>, Fake<usize>) {
    let (mut load, board, mut net) = load(connections);
    for _ in 0..connections {
        net.establish(&mut load);
    }
    board.begin();
    net.pass(&mut load, OPENING_TICK);
    (load, board, net)
}

/// Plays an echo server for `conn`.
fn echo(load: &mut Load<EchoLoad>, net: &mut Fake<usize>, conn: ConnId) {
    let bytes = net.drain(load, conn);
    net.arrive(load, conn, &bytes);
}

#[test]
fn nothing_is_sent_before_all_connections_of_all_workers_are_open() {
    let (mut load, board, mut net) = load(2);
    assert_eq!(net.connects, [0, 1]);
    let (a, b) = (net.establish(&mut load), net.establish(&mut load));
    net.pass(&mut load, SECOND);
    assert!(board.all_decided());
    assert_eq!((net.sent(a).len(), net.sent(b).len()), (0, 0));
    board.begin();
    net.pass(&mut load, OPENING_TICK);
    assert_eq!((net.sent(a).len(), net.sent(b).len()), (20, 20));
    assert_ne!(net.sent(a), net.sent(b), "each connection has bytes of its own");
}

#[test]
fn no_more_connections_are_asked_for_at_a_time_than_a_backlog_holds() {
    let (mut load, _, mut net) = load(1000);
    assert_eq!(net.connects.len(), OPENING_AT_ONCE);
    for _ in 0..1000 {
        net.establish(&mut load);
        assert!(net.connects.len() <= OPENING_AT_ONCE);
    }
    assert_eq!(net.connects.len(), 0);
}

#[test]
fn it_measures_for_its_time_then_closes_and_is_done_when_all_peers_have() {
    let (mut load, board, mut net) = measuring(2);
    let conns = net.alive();
    for _ in 0..5 {
        net.pass(&mut load, SECOND / 10);
        conns.iter().for_each(|conn| echo(&mut load, &mut net, *conn));
    }
    net.pass(&mut load, SECOND);
    for conn in conns {
        assert!(net.is_closed(conn) && !board.all_done());
        echo(&mut load, &mut net, conn);
        net.end(&mut load, conn);
        net.gone(&mut load, conn, CloseReason::Finished);
    }
    assert!(board.all_done());
    let outcome = load.into_outcome();
    assert_eq!(outcome.measured, SECOND);
    assert_eq!(outcome.errors, Errors::default());
    assert_eq!(outcome.traffic.requests(), 20, "what came back after the end does not count");
}

#[test]
fn what_is_answered_while_it_warms_up_does_not_count() {
    let (mut load, board, mut net) = warming(1, 2 * SECOND);
    let conn = net.establish(&mut load);
    board.begin();
    net.pass(&mut load, OPENING_TICK);
    for _ in 0..19 {
        net.pass(&mut load, SECOND / 10);
        echo(&mut load, &mut net, conn);
    }
    assert_eq!(load.outcome.traffic.requests(), 0);
    // These are sent while it is warming up, and answered while it measures.
    let bytes = net.drain(&mut load, conn);
    net.pass(&mut load, SECOND / 5);
    net.arrive(&mut load, conn, &bytes);
    assert_eq!(load.outcome.traffic.requests(), 2, "a closed loop counts what is answered while measuring");
    net.pass(&mut load, SECOND / 2);
    assert!(!net.is_closed(conn));
    net.pass(&mut load, SECOND / 2);
    assert!(net.is_closed(conn));
    assert_eq!(load.into_outcome().measured, SECOND);
}

/// A load of `connections`, with up to two requests on the way on each, that are due every millisecond.
fn open(connections: usize, warm_up: Duration) -> (Load<EchoLoad>, Fake<usize>) {
    let plan = Plan { warm_up, ..a_second(connections) };
    let board = Arc::new(Board::new(1, connections));
    let open = OpenLoop { rate: 1000.0, arrivals: Arrivals::Even };
    let mut load = Load::new(&plan, board.clone(), 0, 1, EchoLoad::new(10, 2, Some(open)));
    let mut net = Fake::new(100);
    load.start(&mut net);
    for _ in 0..connections {
        net.establish(&mut load);
    }
    board.prepare();
    net.pass(&mut load, OPENING_TICK);
    assert!(net.alive().iter().all(|conn| net.sent(*conn).is_empty()), "nothing is due before it begins");
    board.begin();
    net.pass(&mut load, OPENING_TICK);
    (load, net)
}

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn an_open_loop_sends_what_is_due_on_one_connection_after_another_and_what_finds_no_room_waits() {
    let (mut load, mut net) = open(3, Duration::ZERO);
    let conns = net.alive();
    for due in 1..=9 {
        let sent: Vec<_> = conns.iter().map(|conn| net.sent(*conn).len()).collect();
        assert_eq!(sent.iter().sum::<usize>(), 10 * due.min(6), "{sent:?}");
        assert!(sent.iter().max().unwrap() - sent.iter().min().unwrap() <= 10, "{sent:?}");
        net.pass(&mut load, MILLISECOND);
    }
    // Ten were due: these six are answered after 9 to 4 ms, and the others at once.
    conns.iter().for_each(|conn| echo(&mut load, &mut net, *conn));
    let traffic = &load.outcome.traffic;
    assert_eq!((traffic.requests(), traffic.pace().unwrap().late_nanos().len()), (6, 10));
    conns.iter().for_each(|conn| echo(&mut load, &mut net, *conn));
    let traffic = load.outcome.traffic;
    let millis = |nanos: u64| (nanos + 50_000) / 1_000_000;
    assert_eq!(traffic.requests(), 10);
    assert_eq!((millis(traffic.rtt_nanos().min()), millis(traffic.rtt_nanos().max())), (0, 9));
    let late = traffic.pace().unwrap().late_nanos();
    assert_eq!((late.min(), millis(late.max())), (0, 3), "the first that waited was due 3 ms before there was room");
}

#[test]
fn an_open_loop_counts_what_was_due_while_measuring() {
    let (mut load, mut net) = open(1, 2 * MILLISECOND);
    let conn = net.alive()[0];
    // Two were due before.
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
fn each_turn_of_the_worker_sends_what_is_due_before_any_timer() {
    let (mut load, mut net) = open(1, Duration::ZERO);
    let conn = net.alive()[0];
    assert_eq!(load.poll(&mut net), Some(MILLISECOND));
    net.now += MILLISECOND;
    assert_eq!((load.poll(&mut net), net.sent(conn).len()), (Some(MILLISECOND), 20));
    net.now += MILLISECOND;
    assert_eq!((load.poll(&mut net), net.sent(conn).len()), (None, 20), "there is no room");
    let (mut closed, _, mut net) = measuring(1);
    assert_eq!(closed.poll(&mut net), None);
}

#[test]
fn requests_of_an_open_loop_that_are_larger_than_the_room_go_out_in_parts() {
    let plan = a_second(1);
    let board = Arc::new(Board::new(1, 1));
    let open = OpenLoop { rate: 1000.0, arrivals: Arrivals::Poisson };
    let mut load = Load::new(&plan, board.clone(), 0, 1, EchoLoad::new(1003, 4, Some(open)));
    let mut net = Fake::new(100);
    load.start(&mut net);
    let conn = net.establish(&mut load);
    board.begin();
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
fn a_connection_lost_while_it_warms_up_is_an_error_and_opened_again() {
    let (mut load, board, mut net) = warming(1, SECOND);
    let first = net.establish(&mut load);
    board.begin();
    net.pass(&mut load, OPENING_TICK);
    net.gone(&mut load, first, CloseReason::Reset);
    let second = net.establish(&mut load);
    assert_eq!(net.sent(second).len(), 20);
    assert_eq!(load.into_outcome().errors, Errors { lost: 1, ..Default::default() });
}

#[test]
fn being_stopped_while_it_warms_up_ends_it_with_nothing_measured() {
    let (mut load, board, mut net) = warming(1, SECOND);
    let conn = net.establish(&mut load);
    board.begin();
    net.pass(&mut load, OPENING_TICK);
    echo(&mut load, &mut net, conn);
    board.stop();
    net.pass(&mut load, MEASURING_TICK);
    assert!(net.is_closed(conn));
    net.gone(&mut load, conn, CloseReason::Finished);
    assert!(board.all_done());
    let outcome = load.into_outcome();
    assert_eq!((outcome.measured, outcome.traffic.requests()), (Duration::ZERO, 0));
}

#[test]
fn being_stopped_ends_the_measurement_early() {
    let (mut load, board, mut net) = measuring(1);
    net.pass(&mut load, SECOND / 4);
    board.stop();
    net.pass(&mut load, SECOND / 4);
    let conn = net.alive()[0];
    net.end(&mut load, conn);
    assert!(board.all_done());
    assert_eq!(load.into_outcome().measured, SECOND / 2);
}

#[test]
fn a_refused_connection_is_counted_and_the_others_go_on_without_it() {
    let (mut load, board, mut net) = load(2);
    net.refuse(&mut load, ConnectError::Refused);
    assert!(!board.all_decided());
    net.establish(&mut load);
    assert!(board.all_decided());
    assert_eq!((board.opened(), net.connects.len()), (1, 0));
    assert_eq!(load.into_outcome().errors, Errors { refused: 1, ..Default::default() });
}

#[test]
fn a_worker_none_of_whose_connections_could_be_opened_is_done() {
    let (mut load, board, mut net) = load(2);
    net.refuse(&mut load, ConnectError::Unreachable);
    assert!(!board.all_done());
    net.refuse(&mut load, ConnectError::TimedOut);
    assert!(board.all_done());
    let outcome = load.into_outcome();
    assert_eq!((outcome.errors.unopened, outcome.last_failure), (2, Some(ConnectError::TimedOut)));
}

#[test]
fn a_lost_connection_is_counted_and_opened_again_with_a_fresh_stream() {
    let (mut load, board, mut net) = measuring(1);
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
    assert!(net.is_closed(third), "the clock went over to the new connection");
    net.gone(&mut load, third, CloseReason::Finished);
    assert!(board.all_done());
    assert_eq!(load.into_outcome().errors, Errors { lost: 2, ..Default::default() });
}

#[test]
fn a_connection_that_brings_other_bytes_is_counted_and_given_up() {
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
fn when_the_server_goes_for_good_the_measurement_ends_with_the_last_connection() {
    let (mut load, board, mut net) = measuring(2);
    net.pass(&mut load, SECOND / 2);
    for conn in net.alive() {
        net.gone(&mut load, conn, CloseReason::Reset);
    }
    net.refuse(&mut load, ConnectError::Refused);
    assert!(!board.all_done());
    net.refuse(&mut load, ConnectError::Refused);
    assert!(board.all_done());
    let outcome = load.into_outcome();
    assert_eq!(outcome.errors, Errors { lost: 2, refused: 2, ..Default::default() });
    assert_eq!(outcome.measured, SECOND / 2);
}

#[test]
fn the_clock_passes_on_when_its_connection_is_lost() {
    let (mut load, _, mut net) = measuring(3);
    let conns = net.alive();
    net.gone(&mut load, conns[0], CloseReason::Reset);
    net.refuse(&mut load, ConnectError::Refused);
    net.pass(&mut load, SECOND);
    assert!(net.is_closed(conns[1]) && net.is_closed(conns[2]));
}

#[test]
fn connections_are_dealt_out_to_all_workers() {
    let plan = a_second(5);
    let board = Arc::new(Board::new(3, 5));
    let shares = [0, 1, 2].map(|worker| {
        let mut net = Fake::<usize>::new(100);
        Load::new(&plan, board.clone(), worker, 3, EchoLoad::new(1, 1, None)).start(&mut net);
        net.connects.len()
    });
    assert_eq!(shares, [2, 2, 1]);
}

#[test]
fn connections_go_to_all_ports_of_the_server_in_turn() {
    let plan = Plan { ports: 2, ..a_second(3) };
    let ports = [0, 1, 2].map(|place| plan.remote_of(place).port());
    assert_eq!(ports, [7, 8, 7]);
}

#[test]
fn a_worker_without_connections_is_done_at_once() {
    let plan = a_second(1);
    let board = Arc::new(Board::new(2, 1));
    Load::new(&plan, board.clone(), 1, 2, EchoLoad::new(1, 1, None)).start(&mut Fake::<usize>::new(100));
    board.worker_done();
    assert!(board.all_done());
}

#[test]
fn a_load_and_a_service_understand_each_other_byte_by_byte() {
    let (mut load, _, mut net) = measuring(1);
    let conn = net.alive()[0];
    let mut server = Fake::new(7);
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
