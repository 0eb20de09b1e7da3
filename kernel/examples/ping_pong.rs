//! Round trips over kernel sockets: an echo, and a load that keeps requests on the way for two seconds.
//!
//! `ping_pong serve ADDRESS [--spin]`, `ping_pong load ADDRESS [CONNECTIONS [DEPTH [SIZE]]] [--spin]`

use linerate_bypass::{ConnId, ConnectError, Origin, Service, Transport};
use linerate_kernel::{Config, Worker, bind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_secs(2);

struct Echo;

impl Service for Echo {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.forward(conn, conn);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.forward(conn, conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        net.close(conn);
    }
}

/// Keeps `depth` requests of `size` bytes on the way on each of its connections.
struct Load {
    remote: SocketAddr,
    connections: u64,
    depth: usize,
    size: usize,
    replies: u64,
    /// Nanoseconds from asking to the answer, of connections that ask one thing at a time.
    rtt: Vec<u64>,
}

impl Load {
    fn ask(&self, net: &mut impl Transport, conn: ConnId, requests: usize) {
        for _ in 0..requests {
            let place = net.reserve(conn, self.size).expect("what is on the way fits into the send buffer");
            place.fill(7);
            let n = place.len();
            net.commit(conn, n);
        }
    }
}

impl Service for Load {
    /// When it last asked.
    type Conn = Instant;
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        (0..self.connections).for_each(|token| net.connect(self.remote, token));
    }

    fn failed(&mut self, _: &mut impl Transport, _: u64, error: ConnectError) {
        eprintln!("{}: {error}", self.remote);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) -> Instant {
        self.ask(net, conn, self.depth);
        Instant::now()
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, asked: &mut Instant) {
        let replies = net.received(conn) / self.size;
        net.consume(conn, replies * self.size);
        self.replies += replies as u64;
        if self.depth == 1 && replies == 1 {
            let now = Instant::now();
            self.rtt.push((now - *asked).as_nanos() as u64);
            *asked = now;
        }
        self.ask(net, conn, replies);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let all = args.len();
    args.retain(|arg| arg != "--spin");
    let spin = args.len() < all;
    let [what, address, numbers @ ..] = &args[..] else {
        return Err("usage: ping_pong serve|load ADDRESS [CONNECTIONS [DEPTH [SIZE]]] [--spin]".into());
    };
    let remote: SocketAddr = address.parse()?;
    let number = |index: usize, default| numbers.get(index).map_or(Ok(default), |text| text.parse::<usize>());
    if what == "serve" {
        let (_, mut sockets) = bind(&Config { listen: vec![remote], spin, ..Config::default() }, 1)?;
        Worker::new(sockets.remove(0), Echo).run(&AtomicBool::new(false));
        return Ok(());
    }
    let (connections, depth, size) = (number(0, 1)? as u64, number(1, 1)?, number(2, 64)?);
    let load = Load { remote, connections, depth, size, replies: 0, rtt: Vec::with_capacity(1 << 22) };
    let (_, mut sockets) = bind(&Config { spin, ..Config::default() }, 1)?;
    let stop = AtomicBool::new(false);
    let (load, summary) = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(TIME);
            stop.store(true, Ordering::Relaxed);
        });
        Worker::new(sockets.remove(0), load).run(&stop)
    });
    let mut rtt = load.rtt;
    rtt.sort_unstable();
    let at = |part: f64| rtt.get((rtt.len() as f64 * part) as usize).map_or(0.0, |&nanos| nanos as f64 / 1000.0);
    println!(
        "{:.0} replies/s; RTT µs p50 {:.1} p90 {:.1} p99 {:.1}; {summary:?}",
        load.replies as f64 / TIME.as_secs_f64(),
        at(0.5),
        at(0.9),
        at(0.99)
    );
    Ok(())
}
