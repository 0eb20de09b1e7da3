//! Two hosts on a link in memory, in virtual time, each with one worker that runs tasks.

use linerate_async::{AsyncService, TcpListener, TcpStream, spawn};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_service::time::{Duration, Instant};
use linerate_stack::{Config, Mailboxes, Worker};
use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;

/// Limit of a run in virtual time.
const LIMIT: Duration = Duration::from_secs(600);

pub fn server_addr() -> SocketAddr {
    "10.0.0.2:7".parse().unwrap()
}

fn config(n: u8) -> Config {
    let port = SocketAddr::from(([0, 0, 0, 0], 7));
    Config {
        addresses: vec![format!("10.0.0.{n}/24").parse().unwrap()],
        mac: Some(format!("02:00:00:00:00:{n:02x}").parse().unwrap()),
        listen: vec![port],
        listen_udp: vec![port],
        seed: n.into(),
        ..Config::default()
    }
}

type Host = Worker<MemoryNic, AsyncService>;

fn host<F: Future<Output = ()> + 'static>(n: u8, nic: MemoryNic, main: impl FnOnce() -> F + 'static) -> Host {
    let mailboxes = Mailboxes::for_workers(1).remove(0);
    Worker::new(&config(n), mailboxes, nic, |ctx| AsyncService::new(ctx, main), Instant::ZERO)
}

/// Two hosts: 10.0.0.1, the client, and 10.0.0.2, the server.
pub struct Network {
    client: Host,
    server: Host,
    link: Link,
}

impl Network {
    pub fn new<S, C>(
        link: LinkConfig,
        server: impl FnOnce() -> S + 'static,
        client: impl FnOnce() -> C + 'static,
    ) -> Self
    where
        S: Future<Output = ()> + 'static,
        C: Future<Output = ()> + 'static,
    {
        let (a, b) = Link::pair(link);
        let link = a.link().clone();
        Network { client: host(1, a, client), server: host(2, b, server), link }
    }

    /// Returns the number of frames that the server has sent.
    pub fn frames_of_server(&mut self) -> u64 {
        self.server.summary().tx_frames
    }

    /// Runs, and advances the clock whenever both hosts are idle, until `done`.
    pub fn run_until(&mut self, mut done: impl FnMut() -> bool) {
        let Network { client, server, link } = self;
        while !done() {
            let now = link.clock().now();
            assert!(now < Instant::ZERO + LIMIT, "not complete after {LIMIT:?}");
            if client.turn(now) + server.turn(now) > 0 {
                continue;
            }
            let deadlines = [client.next_deadline(), server.next_deadline()];
            let arrivals = [client.nic().next_arrival(), server.nic().next_arrival()];
            // Nothing may be due after the turn in which the last task was polled.
            let next = deadlines.into_iter().chain(arrivals).flatten().min().unwrap_or(now);
            link.clock().advance_to(next.max(now + Duration::from_micros(1)));
        }
    }
}

/// Runs `server` on 10.0.0.2 and `client` on 10.0.0.1, until `client` is complete. Returns its output.
pub fn run<S, C, F>(link: LinkConfig, server: impl FnOnce() -> S + 'static, client: impl FnOnce() -> C + 'static) -> F
where
    S: Future<Output = ()> + 'static,
    C: Future<Output = F> + 'static,
    F: 'static,
{
    let output = Rc::new(RefCell::new(None));
    let mut network = Network::new(link, server, {
        let output = output.clone();
        move || async move {
            let joined = spawn(client()).await;
            *output.borrow_mut() = Some(joined);
        }
    });
    network.run_until(|| output.borrow().is_some());
    let joined = output.borrow_mut().take().expect("the loop ends with an output");
    joined.expect("the client does not panic")
}

pub fn run_ideal<S, C, F>(server: impl FnOnce() -> S + 'static, client: impl FnOnce() -> C + 'static) -> F
where
    S: Future<Output = ()> + 'static,
    C: Future<Output = F> + 'static,
    F: 'static,
{
    run(LinkConfig::default(), server, client)
}

/// Accepts connections at [`server_addr`] and runs `serve` as a task for each.
pub async fn serve<F: Future<Output = ()> + 'static>(serve: impl Fn(TcpStream) -> F) {
    let mut listener = TcpListener::bind(server_addr()).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        spawn(serve(stream));
    }
}

/// Sends back everything, until the peer has closed.
pub async fn echo(mut stream: TcpStream) {
    while let Ok(bytes) = stream.read_bytes().await
        && !bytes.is_empty()
        && stream.write_bytes(bytes).await.is_ok()
    {}
}

pub async fn connect() -> TcpStream {
    TcpStream::connect(server_addr()).await.unwrap()
}

/// Receives `n` bytes.
pub async fn read_exact(stream: &mut TcpStream, n: usize) -> Vec<u8> {
    let mut received = vec![0; n];
    let mut filled = 0;
    while filled < n {
        let more = stream.read(&mut received[filled..]).await.unwrap();
        assert!(more > 0, "the stream ends after {filled} of {n} bytes");
        filled += more;
    }
    received
}

/// Receives until the end of the stream.
pub async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    loop {
        let bytes = stream.read_bytes().await.unwrap();
        if bytes.is_empty() {
            return received;
        }
        received.extend_from_slice(&bytes);
    }
}

/// Returns bytes in which no two neighbouring blocks are equal.
pub fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}
