//! Examples in virtual time.

use crate::background::Primes;
use crate::echo::Echo;
use crate::lines::Sum;
use crate::pool::{Pool, Request};
use crate::proxy::Proxy;
use crate::udp::Upper;
use linerate::testing::{Impairments, PEER_IP, PeerConn, SERVICE_IP, Simulation};
use linerate::time::Duration;
use linerate::{AppSender, CloseReason, ConnectError, Datagram, Service};
use std::sync::mpsc::{Receiver, channel};

const PORT: u16 = 7007;

/// Returns the impairments of a link that loses and delays frames.
fn bad_link() -> Impairments {
    Impairments { loss: 0.05, delay: Duration::from_millis(5), ..Impairments::default() }
}

/// Returns bytes in which no two neighbouring blocks are equal.
fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

fn finishes(sim: &mut Simulation<impl Service>, conn: PeerConn) {
    sim.run_until(|sim| sim.close_reason(conn).is_some());
    assert_eq!(sim.close_reason(conn), Some(CloseReason::Finished));
}

#[test]
fn echo_returns_a_long_stream_over_a_bad_link() {
    let mut sim = Simulation::new(&[PORT], |_| Echo);
    sim.impair(&bad_link());
    let (conn, sent) = (sim.connect(PORT), pattern(300_000));
    sim.send(conn, &sent);
    sim.close(conn);
    assert!(sim.receive_to_end(conn) == sent);
    finishes(&mut sim, conn);
}

#[test]
fn echo_continues_when_its_peer_reads_again() {
    // The send queue of the service is full at each length; the peer has sent all data at some of them.
    for length in [1_080_000, 1_110_000, 1_140_000, 1_170_000, 8_000_000] {
        let mut sim = Simulation::new(&[PORT], |_| Echo);
        let (conn, sent) = (sim.connect(PORT), pattern(length));
        sim.set_reading(conn, false);
        sim.send(conn, &sent);
        sim.close(conn);
        sim.run_for(Duration::from_secs(10));
        assert!(sim.received(conn).is_empty());
        sim.set_reading(conn, true);
        assert!(sim.receive_to_end(conn) == sent, "{length}");
        finishes(&mut sim, conn);
    }
}

#[test]
fn runs_of_one_seed_are_identical() {
    let run = |seed| {
        let mut sim = Simulation::new(&[PORT], |_| Echo);
        sim.impair(&Impairments { seed, ..bad_link() });
        let conn = sim.connect(PORT);
        sim.send(conn, &pattern(100_000));
        sim.receive(conn, 100_000);
        sim.now()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn connection_is_refused_at_a_port_without_a_listener() {
    let mut sim = Simulation::new(&[PORT], |_| Echo);
    let conn = sim.connect(9);
    sim.run_until(|sim| sim.connect_error(conn).is_some());
    assert_eq!(sim.connect_error(conn), Some(ConnectError::Refused));
}

#[test]
fn connection_times_out_on_a_link_that_is_down() {
    let mut sim = Simulation::new(&[PORT], |_| Echo);
    let conn = sim.connect(PORT);
    sim.send(conn, b"one");
    assert_eq!(sim.receive(conn, 3), b"one");
    sim.set_link_up(false);
    sim.send(conn, b"two");
    sim.run_until(|sim| sim.close_reason(conn).is_some());
    assert_eq!(sim.close_reason(conn), Some(CloseReason::TimedOut));
}

#[test]
#[should_panic(expected = "not done within 1800s of virtual time")]
fn wait_for_bytes_that_do_not_arrive_ends() {
    let mut sim = Simulation::new(&[PORT], |_| Echo);
    let conn = sim.connect(PORT);
    sim.receive(conn, 1);
}

#[test]
fn line_may_arrive_in_any_chunks() {
    let mut sim = Simulation::new(&[PORT], |_| Sum);
    let conn = sim.connect(PORT);
    for chunk in ["1", "2\r", "\n3", "\n-4\n5\n", "6"] {
        sim.send(conn, chunk.as_bytes());
        sim.run_for(Duration::from_millis(10));
    }
    assert_eq!(sim.received(conn), b"12\n15\n11\n16\n");
    sim.close(conn);
    finishes(&mut sim, conn);
}

#[test]
fn many_lines_are_answered_in_order() {
    let mut sim = Simulation::new(&[PORT], |_| Sum);
    sim.impair(&bad_link());
    let conn = sim.connect(PORT);
    // The replies are longer than all buffers.
    sim.set_reading(conn, false);
    let lines: String = (0..500_000).map(|n| format!("{n}\n")).collect();
    sim.send(conn, lines.as_bytes());
    sim.close(conn);
    sim.run_for(Duration::from_secs(30));
    sim.set_reading(conn, true);
    let sums = (0..500_000_i64).scan(0, |sum, n| {
        *sum += n;
        Some(format!("{sum}\n"))
    });
    assert!(sim.receive_to_end(conn) == sums.collect::<String>().into_bytes());
}

#[test]
fn wrong_line_is_refused_and_the_error_arrives() {
    let long = "0".repeat(65) + "\n";
    for line in ["one\n", "9223372036854775807\n1\n", &long] {
        let mut sim = Simulation::new(&[PORT], |_| Sum);
        let conn = sim.connect(PORT);
        sim.send(conn, line.as_bytes());
        sim.send(conn, &pattern(50_000));
        let received = String::from_utf8(sim.receive_to_end(conn)).unwrap();
        assert!(received.ends_with("error: not a number, or the sum is too large\n"), "{line}: {received}");
        sim.close(conn);
        finishes(&mut sim, conn);
    }
}

#[test]
fn proxy_forwards_both_directions_and_each_end() {
    let mut sim = Simulation::new(&[PORT], |_| Proxy::new((PEER_IP, PORT).into()));
    sim.impair(&bad_link());
    let (client, request, reply) = (sim.connect(PORT), pattern(200_000), pattern(150_000));
    sim.send(client, &request);
    sim.close(client);
    let server = sim.accept();
    assert!(sim.receive_to_end(server) == request);
    assert_eq!(sim.close_reason(client), None);
    sim.send(server, &reply);
    sim.close(server);
    assert!(sim.receive_to_end(client) == reply);
    finishes(&mut sim, client);
    finishes(&mut sim, server);
}

#[test]
fn proxy_forwards_resets() {
    let mut sim = Simulation::new(&[PORT], |_| Proxy::new((PEER_IP, PORT).into()));
    for client_resets in [true, false] {
        let client = sim.connect(PORT);
        let server = sim.accept();
        let (resets, sees) = if client_resets { (client, server) } else { (server, client) };
        sim.abort(resets);
        sim.run_until(|sim| sim.close_reason(sees).is_some());
        assert_eq!(sim.close_reason(sees), Some(CloseReason::Reset));
    }
}

#[test]
fn proxy_resets_clients_of_an_unreachable_server() {
    let mut sim = Simulation::new(&[PORT], |_| Proxy::new((PEER_IP, 9).into()));
    let client = sim.connect(PORT);
    sim.run_until(|sim| sim.close_reason(client).is_some());
    assert_eq!(sim.close_reason(client), Some(CloseReason::Reset));
}

type Reply = Result<String, String>;

fn request(pool: &AppSender<Request>, line: &str) -> Receiver<Reply> {
    let (reply, replies) = channel();
    assert!(pool.send_to_worker(0, Request { line: line.to_owned(), reply }).is_ok());
    replies
}

#[test]
fn pool_sends_concurrent_requests_on_several_connections() {
    let (senders, sender) = channel();
    let make = move |ctx: linerate::WorkerCtx<Request>| {
        senders.send(ctx.app_sender).unwrap();
        Pool::new((SERVICE_IP, PORT).into())
    };
    let mut sim = Simulation::with_peer(&[PORT], |_| Sum, make);
    sim.impair(&Impairments { loss: 0.0, ..bad_link() });
    let pool = sender.recv().unwrap();
    let replies: Vec<_> = (0..20).map(|_| request(&pool, "1\n")).collect();
    let mut sums = Vec::new();
    for reply in replies {
        let mut received = None;
        sim.run_until(|_| {
            received = reply.try_recv().ok();
            received.is_some()
        });
        sums.push(received.unwrap().unwrap().trim_end().parse::<u32>().unwrap());
    }
    // A connection that has served n requests has the sum n.
    let connections = sums.iter().filter(|sum| **sum == 1).count();
    assert_eq!((sums.len(), connections), (20, 4));
}

#[test]
fn pool_reports_failed_connects_broken_connections_and_timeouts() {
    let reply_of = |port: u16, steps: fn(&mut Simulation<Pool>)| {
        let (senders, sender) = channel();
        let mut sim = Simulation::new(&[PORT], move |ctx| {
            senders.send(ctx.app_sender).unwrap();
            Pool::new((PEER_IP, port).into())
        });
        let replies = request(&sender.recv().unwrap(), "1\n");
        steps(&mut sim);
        let mut reply: Option<Reply> = None;
        sim.run_until(|_| {
            reply = replies.try_recv().ok();
            reply.is_some()
        });
        (reply.unwrap().unwrap_err(), sim.now().as_micros() / 1_000_000)
    };
    assert_eq!(reply_of(9, |_| {}), ("cannot connect to 10.0.0.1:9: connection refused".to_owned(), 0));
    let breaks = |sim: &mut Simulation<Pool>| {
        let conn = sim.accept();
        assert_eq!(sim.receive(conn, 2), b"1\n");
        sim.abort(conn);
    };
    assert_eq!(reply_of(PORT, breaks), ("the connection has ended: Reset".to_owned(), 0));
    assert_eq!(reply_of(PORT, |_| {}), ("the connection has ended: Aborted".to_owned(), 5));
}

#[test]
fn datagrams_are_answered() {
    let mut sim = Simulation::new(&[PORT], |_| Upper);
    sim.send_datagram(PORT, b"hello");
    let Datagram { remote, payload, .. } = sim.receive_datagram();
    assert_eq!((remote, &payload[..]), ((SERVICE_IP, PORT).into(), &b"HELLO"[..]));
}

#[test]
fn computed_results_are_sent_and_kept_for_a_minute() {
    let mut sim = Simulation::new(&[PORT], Primes::new);
    let conn = sim.connect(PORT);
    sim.send(conn, &[0_u32, 4, 4, 3000].map(u32::to_be_bytes).concat());
    sim.close(conn);
    // The thread computes in real time, so virtual time must not run ahead.
    while sim.received(conn).len() < 32 {
        assert_eq!(sim.close_reason(conn), None);
        sim.run_for(Duration::from_micros(1));
    }
    assert_eq!(sim.receive_to_end(conn), [2_u64, 11, 11, 27_457].map(u64::to_be_bytes).concat());
    assert_eq!(sim.service().kept(), 3);
    sim.run_for(Duration::from_secs(59));
    assert_eq!(sim.service().kept(), 3);
    sim.run_for(Duration::from_secs(2));
    assert_eq!(sim.service().kept(), 0);
    finishes(&mut sim, conn);
}
