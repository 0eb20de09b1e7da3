//! Outgoing connections.

use crate::common::{Running, listening, local, turn_until, worker};
use crate::services::Echo;
use linerate_harness::address::unused_address;
use linerate_kernel::Config;
use linerate_service::{CloseReason, ConnId, ConnectError, Origin, Service, Stop, Transport};
use std::net::SocketAddr;
use std::time::Duration;

/// Service that connects to all of `remotes` at start, and sends and checks `rounds` requests on each connection.
struct Client {
    remotes: Vec<SocketAddr>,
    rounds: u32,
    failed: Vec<(u64, ConnectError)>,
    done: Vec<u64>,
    closed: Vec<CloseReason>,
}

impl Client {
    fn new(remotes: Vec<SocketAddr>, rounds: u32) -> Self {
        Client { remotes, rounds, failed: Vec::new(), done: Vec::new(), closed: Vec::new() }
    }

    fn finished(&self) -> bool {
        self.failed.len() + self.closed.len() == self.remotes.len()
    }
}

impl Service for Client {
    /// Token and round.
    type Conn = (u64, u32);
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        for (token, &remote) in (0..).zip(&self.remotes) {
            net.connect(remote, token);
        }
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, origin: Origin) -> (u64, u32) {
        let Origin::Connected(token) = origin else { panic!("no listener") };
        assert_eq!(net.peer_addr(conn), Some(self.remotes[token as usize]));
        assert_ne!(net.local_addr(conn).unwrap().port(), 0);
        assert_eq!(net.write(conn, &0u32.to_le_bytes()), 4);
        (token, 0)
    }

    fn failed(&mut self, _: &mut impl Transport, token: u64, error: ConnectError) {
        self.failed.push((token, error));
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (token, round): &mut (u64, u32)) {
        assert_eq!(net.peek(conn), round.to_le_bytes());
        net.consume(conn, 4);
        *round += 1;
        if *round < self.rounds {
            assert_eq!(net.write(conn, &round.to_le_bytes()), 4);
        } else {
            self.done.push(*token);
            net.close(conn);
        }
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, _: (u64, u32), reason: CloseReason) {
        self.closed.push(reason);
    }
}

fn run(config: &Config, client: Client) -> (Client, linerate_service::Summary) {
    let mut worker = worker(config, client);
    turn_until(&mut worker, "finished", |worker| worker.service().finished());
    // Returns at once: there is no work left.
    let stop = Stop::default();
    stop.stop();
    worker.run(&stop)
}

#[test]
fn service_connects_exchanges_requests_and_closes() {
    let server = Running::start(&listening(), Echo::default());
    let (client, summary) = run(&Config::default(), Client::new(vec![server.address; 100], 20));
    assert_eq!(client.done.len(), 100);
    assert_eq!(client.closed, [CloseReason::Finished; 100]);
    assert_eq!((summary.connected, summary.failed, summary.finished), (100, 0, 100));
    assert_eq!(server.finish().1.finished, 100);
}

#[test]
fn each_failure_reports_its_reason_and_token() {
    let refused = unused_address();
    let server = Running::start(&listening(), Echo::default());
    let no_host = "255.255.255.255:9".parse().unwrap();
    let remotes = vec![refused, server.address, no_host, server.address, server.address];
    let config = Config { max_connections: 2, ..Config::default() };
    let (client, summary) = run(&config, Client::new(remotes, 1));
    let mut failed = client.failed;
    failed.sort_by_key(|&(token, _)| token);
    // The invalid address takes no slot; the last two exceed the limit.
    let expected = [
        (0, ConnectError::Refused),
        (2, ConnectError::TooMany),
        (3, ConnectError::TooMany),
        (4, ConnectError::TooMany),
    ];
    assert_eq!(failed, expected);
    assert_eq!((client.done, summary.failed, summary.connected), (vec![1], 4, 1));
    let (client, _) = run(&Config::default(), Client::new(vec![no_host], 1));
    assert_eq!(client.failed, [(0, ConnectError::Unreachable)]);
    let no_family: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
    let (client, _) = run(
        &Config { connect_timeout: Duration::from_millis(10), ..Config::default() },
        Client::new(vec![no_family], 1),
    );
    assert!(matches!(
        client.failed[..],
        [(0, ConnectError::Unreachable | ConnectError::NoLocalAddress | ConnectError::TimedOut)]
    ));
    server.finish();
}

#[test]
fn unresponsive_peer_is_given_up_at_the_timeout() {
    // A listener with a full backlog does not respond.
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&local().into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let config = Config { connect_timeout: Duration::from_millis(50), ..Config::default() };
    let mut worker = worker(&config, Client::new(vec![address; 8], 1));
    turn_until(&mut worker, "rest given up", |worker| worker.service().failed.len() >= 6);
    assert!(worker.service().failed.iter().all(|&(_, error)| error == ConnectError::TimedOut));
}
