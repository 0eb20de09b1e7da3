//! Connection load over a fake transport.

use super::*;
use crate::testing::{FakeTransport, a_second};

const SECOND: Duration = Duration::from_secs(1);

fn connects(connections: usize, request: usize, most: u64) -> (FakeTransport<ConnState>, Connects, Arc<Barrier>) {
    let plan = Plan { warm_up: SECOND, ..a_second(connections) };
    let barrier = Arc::new(Barrier::new(1, connections));
    let mut service = Connects::new(&plan, barrier.clone(), 0, 1, ConnectPlan { request, most });
    let mut net = FakeTransport::new(100);
    service.start(&mut net);
    (net, service, barrier)
}

/// Advances time and runs a turn.
fn pass(net: &mut FakeTransport<ConnState>, service: &mut Connects, time: Duration) {
    net.now += time;
    service.turn(net);
}

fn echo(net: &mut FakeTransport<ConnState>, service: &mut Connects, conn: ConnId) {
    let bytes = net.drain(service, conn);
    net.arrive(service, conn, &bytes);
}

fn gone(net: &mut FakeTransport<ConnState>, service: &mut Connects, conn: ConnId) {
    net.end(service, conn);
    net.gone(service, conn, CloseReason::Finished);
}

#[test]
fn each_connection_carries_one_request_and_closes_before_the_next() {
    let (mut net, mut service, barrier) = connects(1, 64, u64::MAX);
    let mut before = Vec::new();
    for _ in 0..3 {
        assert_eq!(net.connects.len(), 1);
        let conn = net.establish(&mut service);
        assert_eq!((net.sent(conn).len(), net.is_closed(conn)), (64, false));
        assert!(!before.contains(&net.sent(conn)), "bytes differ between connections");
        before.push(net.sent(conn));
        echo(&mut net, &mut service, conn);
        assert!(net.is_closed(conn) && net.connects.is_empty());
        gone(&mut net, &mut service, conn);
    }
    assert!(barrier.all_decided() && barrier.opened() == 1 && !barrier.all_done());
    assert!(service.connected().is_ok());
}

#[test]
fn plan_limits_concurrent_connections() {
    let (mut net, mut service, _) = connects(1000, 10, u64::MAX);
    assert_eq!(net.connects.len(), OPENING_AT_ONCE);
    for _ in 0..1000 {
        net.establish(&mut service);
    }
    assert!(net.connects.is_empty());
    let conn = net.alive()[500];
    echo(&mut net, &mut service, conn);
    gone(&mut net, &mut service, conn);
    assert_eq!((net.connects.len(), net.alive().len()), (1, 999));
}

#[test]
fn time_starts_with_the_connection_request() {
    let (mut net, mut service, barrier) = connects(1, 10, u64::MAX);
    let mut go_on = |service: &mut Connects, took: Duration| {
        pass(&mut net, service, took / 4);
        let conn = net.establish(service);
        pass(&mut net, service, took / 4);
        echo(&mut net, service, conn);
        pass(&mut net, service, took / 2);
        gone(&mut net, service, conn);
    };
    go_on(&mut service, SECOND);
    barrier.begin();
    // Warming up begins at the first tick.
    for _ in 0..5 {
        go_on(&mut service, SECOND / 5);
    }
    assert_eq!(service.connected().unwrap().connections, 0);
    for _ in 0..5 {
        go_on(&mut service, SECOND / 5);
    }
    assert!(!barrier.all_done());
    go_on(&mut service, SECOND / 5);
    assert!(barrier.all_done());
    let outcome = service.into_outcome();
    let ConnectStats { connections, times, port_waits } = outcome.traffic;
    assert_eq!(port_waits, PortWaits::default());
    assert_eq!((outcome.measured, outcome.errors, connections), (SECOND, Errors::default(), 5));
    let (nanos, all) = (times.answered(), times.all());
    assert!(nanos.equivalent(nanos.max(), 100_000_000), "{}", nanos.max());
    assert_eq!((all, times.stalled()), (nanos.clone(), 0), "no connection is outstanding at the end");
}

#[test]
fn connection_without_an_answer_counts_with_its_age() {
    let (mut net, mut service, barrier) = connects(3, 10, u64::MAX);
    service.plan.warm_up = Duration::ZERO;
    barrier.begin();
    service.turn(&mut net);
    // Of one connection the handshake is not answered, of another the request; the third is replaced by a fourth.
    let conns = [0, 1].map(|_| net.establish(&mut service));
    pass(&mut net, &mut service, SECOND / 40);
    echo(&mut net, &mut service, conns[0]);
    gone(&mut net, &mut service, conns[0]);
    pass(&mut net, &mut service, SECOND);
    let ConnectStats { connections, times, .. } = service.into_outcome().traffic;
    let all = times.all();
    assert_eq!((connections, all.len(), times.stalled()), (1, 4, 3));
    assert!(all.equivalent(all.max(), 1_000_000_000), "{}", all.max());
}

#[test]
fn connections_without_request_are_opened_and_timed() {
    let (mut net, mut service, barrier) = connects(1, 0, 2);
    service.plan.warm_up = Duration::ZERO;
    barrier.begin();
    service.turn(&mut net);
    for _ in 0..2 {
        assert!(!barrier.all_done());
        net.now += SECOND / 4;
        let conn = net.establish(&mut service);
        assert!(net.is_closed(conn) && net.connects.is_empty());
        net.gone(&mut service, conn, CloseReason::Finished);
    }
    assert!(barrier.all_done() && net.connects.is_empty());
    assert_eq!(service.connected().unwrap().times.answered().len(), 2);
}

#[test]
fn failed_connection_is_not_retried() {
    let (mut net, mut service, barrier) = connects(2, 10, u64::MAX);
    net.refuse(&mut service, ConnectError::Refused);
    net.establish(&mut service);
    assert!(barrier.all_decided() && net.connects.is_empty() && !barrier.all_done());
    let conn = net.alive()[0];
    echo(&mut net, &mut service, conn);
    gone(&mut net, &mut service, conn);
    net.refuse(&mut service, ConnectError::TimedOut);
    assert!(barrier.all_done());
    assert_eq!(service.connected().err(), Some(Some(ConnectError::TimedOut)));
    assert_eq!(service.into_outcome().errors, Errors { refused: 1, unopened: 1, ..Errors::default() });
}

#[test]
fn lost_or_corrupt_connection_is_an_error_and_replaced() {
    let (mut net, mut service, _) = connects(1, 10, u64::MAX);
    let conn = net.establish(&mut service);
    net.gone(&mut service, conn, CloseReason::Reset);
    let conn = net.establish(&mut service);
    net.end(&mut service, conn);
    assert!(net.is_aborted(conn));
    net.gone(&mut service, conn, CloseReason::Aborted);
    let conn = net.establish(&mut service);
    net.arrive(&mut service, conn, &[b'x'; 10]);
    assert!(net.is_aborted(conn));
    net.gone(&mut service, conn, CloseReason::Aborted);
    let conn = net.establish(&mut service);
    let bytes = net.drain(&mut service, conn);
    net.arrive(&mut service, conn, &[&bytes[..], b"x"].concat());
    net.gone(&mut service, conn, CloseReason::Aborted);
    assert_eq!(net.connects.len(), 1);
    assert_eq!(service.into_outcome().errors, Errors { lost: 2, corrupt: 2, ..Errors::default() });
}

const MILLISECOND: Duration = Duration::from_millis(1);

/// A measuring load with one concurrent connection, which found no local port.
fn without_port() -> (FakeTransport<ConnState>, Connects, Arc<Barrier>) {
    let (mut net, mut service, barrier) = connects(1, 10, u64::MAX);
    service.plan.warm_up = Duration::ZERO;
    let conn = net.establish(&mut service);
    echo(&mut net, &mut service, conn);
    barrier.begin();
    service.turn(&mut net);
    gone(&mut net, &mut service, conn);
    net.refuse(&mut service, ConnectError::NoLocalAddress);
    (net, service, barrier)
}

#[test]
fn connection_without_port_is_retried_at_growing_intervals() {
    let (mut net, mut service, _) = without_port();
    let (begun, mut attempts) = (net.now, Vec::new());
    while net.now < begun + SECOND / 2 {
        pass(&mut net, &mut service, MILLISECOND);
        if !net.connects.is_empty() {
            attempts.push(net.now.since(begun).as_millis());
            net.refuse(&mut service, ConnectError::NoLocalAddress);
        }
    }
    assert_eq!(attempts, [1, 3, 7, 15, 31, 63, 127, 191, 255, 319, 383, 447]);
    assert!(service.connected().is_ok());
}

#[test]
fn port_wait_counts_in_the_connections_time_and_in_the_report() {
    let (mut net, mut service, barrier) = without_port();
    let mut waited = Duration::ZERO;
    while net.connects.is_empty() || waited < SECOND / 5 {
        if !net.connects.is_empty() {
            net.refuse(&mut service, ConnectError::NoLocalAddress);
        }
        pass(&mut net, &mut service, MILLISECOND);
        waited += MILLISECOND;
        assert!(waited < SECOND / 2, "no further attempt");
    }
    let conn = net.establish(&mut service);
    echo(&mut net, &mut service, conn);
    gone(&mut net, &mut service, conn);
    assert_eq!(net.connects.len(), 1, "the next connection does not wait");
    let conn = net.establish(&mut service);
    pass(&mut net, &mut service, SECOND);
    echo(&mut net, &mut service, conn);
    gone(&mut net, &mut service, conn);
    assert!(barrier.all_done());
    let Outcome { traffic, errors, measured, .. } = service.into_outcome();
    assert_eq!((errors, measured, traffic.connections), (Errors::default(), SECOND, 1));
    let nanos = traffic.times.answered();
    assert!(nanos.equivalent(nanos.max(), waited.as_nanos() as u64), "{}", nanos.max());
    let PortWaits { connections, time } = traffic.port_waits;
    assert!(connections == 1 && time > SECOND / 6 && time <= waited, "{connections}, {time:?}");
}

#[test]
fn load_waiting_for_ports_ends_at_its_duration() {
    let (mut net, mut service, barrier) = without_port();
    for _ in 0..999 {
        pass(&mut net, &mut service, MILLISECOND);
        if !net.connects.is_empty() {
            net.refuse(&mut service, ConnectError::NoLocalAddress);
        }
    }
    assert!(!barrier.all_done());
    pass(&mut net, &mut service, MILLISECOND);
    assert!(barrier.all_done());
    let Outcome { traffic, errors, measured, .. } = service.into_outcome();
    assert_eq!((errors, measured, traffic.port_waits.time), (Errors::default(), SECOND, SECOND));
    assert_eq!(traffic.times.stalled(), 0, "the server is not the cause");
}

#[test]
fn one_connection_is_attempted_while_others_wait() {
    let (mut net, mut service, _) = connects(300, 10, u64::MAX);
    for _ in 0..OPENING_AT_ONCE {
        net.refuse(&mut service, ConnectError::NoLocalAddress);
    }
    assert!(net.connects.is_empty());
    pass(&mut net, &mut service, MILLISECOND);
    assert_eq!(net.connects.len(), 1);
    net.refuse(&mut service, ConnectError::NoLocalAddress);
    pass(&mut net, &mut service, 2 * MILLISECOND);
    assert_eq!(net.connects.len(), 1);
    net.establish(&mut service);
    assert_eq!(net.connects.len(), OPENING_AT_ONCE, "ports are available again");
}

#[test]
fn port_wait_beyond_time_wait_is_an_error() {
    let (mut net, mut service, barrier) = connects(2, 10, u64::MAX);
    let begun = net.now;
    net.refuse(&mut service, ConnectError::NoLocalAddress);
    net.refuse(&mut service, ConnectError::NoLocalAddress);
    while !barrier.all_decided() {
        assert!(net.now.since(begun) < 90 * SECOND, "the wait does not end");
        pass(&mut net, &mut service, MILLISECOND);
        if !net.connects.is_empty() {
            net.refuse(&mut service, ConnectError::NoLocalAddress);
        }
    }
    let waited = net.now.since(begun);
    assert!(waited > 60 * SECOND && waited < 90 * SECOND, "{waited:?}");
    assert!(barrier.all_done());
    assert_eq!(service.connected().err(), Some(Some(ConnectError::NoLocalAddress)));
    assert_eq!(service.into_outcome().errors, Errors { unopened: 2, ..Errors::default() });
}

#[test]
fn unsuccessful_port_wait_is_the_reason_of_failure() {
    let (mut net, mut service, barrier) = connects(1, 10, u64::MAX);
    net.refuse(&mut service, ConnectError::NoLocalAddress);
    barrier.stop();
    pass(&mut net, &mut service, MILLISECOND);
    assert!(barrier.all_done());
    assert_eq!(service.into_outcome().last_failure, Some(ConnectError::NoLocalAddress));
}
