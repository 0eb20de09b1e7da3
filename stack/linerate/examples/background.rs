//! Service with background work: replies to each four-byte number `n`, in network byte order, with the `n`th prime.
//!
//! A thread computes, so that the connections of the worker do not wait. Results are kept for a minute.

use linerate::time::{Duration, Instant};
use linerate::{AppSender, ConnId, Network, Origin, Service, Transport, WorkerCtx};
use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Largest number of requests that wait for the thread.
const WAITING: usize = 64;
/// Time for which a result is kept.
const KEPT: Duration = Duration::from_secs(60);
/// Largest number of results that one call of `poll` drops.
const STEP: usize = 16;

/// Result of the thread: `n` and the `n`th prime.
type Prime = (u32, u64);

/// Service that computes primes on a thread.
pub struct Primes {
    requests: SyncSender<(ConnId, u32)>,
    known: HashMap<u32, u64>,
    /// Kept results with the times at which they are dropped, in this order.
    ages: VecDeque<(Instant, u32)>,
}

#[derive(Default)]
pub struct Conn {
    /// Set while the thread computes for the connection. Further requests stay unread.
    computing: bool,
    /// Set when the peer has finished sending.
    peer_closed: bool,
}

impl Primes {
    /// Creates the service of a worker, and its thread, which ends with the service.
    pub fn new(ctx: WorkerCtx<Prime>) -> Self {
        let (requests, received) = sync_channel(WAITING);
        thread::spawn(move || compute(&received, &ctx.app_sender));
        Primes { requests, known: HashMap::new(), ages: VecDeque::new() }
    }

    pub fn kept(&self) -> usize {
        self.known.len()
    }

    fn serve(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        while !state.computing && net.received(conn) >= 4 && net.send_space(conn) >= 8 {
            let mut bytes = [0; 4];
            for byte in &mut bytes {
                *byte = net.peek(conn)[0];
                net.consume(conn, 1);
            }
            let n = u32::from_be_bytes(bytes);
            match self.known.get(&n) {
                Some(prime) => {
                    net.write(conn, &prime.to_be_bytes());
                }
                None if self.requests.try_send((conn, n)).is_ok() => state.computing = true,
                // Too many requests wait. A service with more important peers would queue this one.
                None => return net.abort(conn),
            }
        }
        if state.peer_closed && !state.computing {
            net.close(conn);
        }
    }
}

/// Computes primes until the service ends.
fn compute(requests: &Receiver<(ConnId, u32)>, results: &AppSender<Prime>) {
    let is_prime = |n: &u64| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    for (conn, n) in requests {
        let prime = (2..).filter(is_prime).nth(n as usize).expect("there are infinitely many primes");
        let mut message = (n, prime);
        // The mailbox of the worker may be full for a moment.
        while let Err(returned) = results.send_to_conn(conn, message) {
            message = returned;
            thread::yield_now();
        }
    }
}

impl Service for Primes {
    type Conn = Conn;
    type Message = Prime;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) -> Conn {
        Conn::default()
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        self.serve(net, conn, state);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        self.serve(net, conn, state);
    }

    fn conn_message(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn, (n, prime): Prime) {
        if self.known.insert(n, prime).is_none() {
            self.ages.push_back((net.now() + KEPT, n));
        }
        // There was space when the request was read.
        net.write(conn, &prime.to_be_bytes());
        state.computing = false;
        self.serve(net, conn, state);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        state.peer_closed = true;
        self.serve(net, conn, state);
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        // All connections wait during the call, so its work is bounded.
        for _ in 0..STEP {
            match self.ages.front() {
                Some(&(at, n)) if at <= net.now() => {
                    self.known.remove(&n);
                    self.ages.pop_front();
                }
                Some(&(at, _)) => return Some(at.since(net.now())),
                None => return None,
            }
        }
        Some(Duration::ZERO)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    Network::builder().listen("127.0.0.1:7007".parse()?).build()?.run(Primes::new)?;
    Ok(())
}
