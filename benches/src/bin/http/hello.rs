//! Requests to hyper over tasks, and over streams in memory: the same responses, with one request in flight on each
//! connection.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use linerate_async::{AsyncService, TcpListener, spawn};
use linerate_benches::engine::worker;
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryPacket};
use linerate_service::time::{Duration, Instant};
use linerate_service::{ConnId, Origin, Service, Transport};
use linerate_stack::{Config, NativeEngine, SmoltcpEngine};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// Request of every client.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: 10.0.0.2\r\n\r\n";
/// Body of every response.
const BODY: &[u8] = b"hello\n";
/// Virtual time of a turn.
const TURN: Duration = Duration::from_micros(10);
/// Turns without a response after which the server counts as hanging.
const MAX_IDLE_TURNS: u32 = 1000;

/// Streams between hyper and its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Over {
    /// TCP streams of tasks, on the native engine and the memory NIC
    Tasks,
    /// Streams in memory of tokio, polled directly
    Duplex,
}

/// Serves `requests` requests, and first one on each connection.
pub fn run(over: Over, requests: u32, connections: u32) {
    let total = requests + connections;
    match over {
        Over::Tasks => by_tasks(total, connections),
        Over::Duplex => by_duplex(total, connections),
    }
}

async fn respond(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(BODY))))
}

fn builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None);
    builder
}

async fn serve(address: SocketAddr) {
    let mut listener = TcpListener::bind(address).expect("the only listener of the address");
    while let Ok((stream, _)) = listener.accept().await {
        spawn(async move { builder().serve_connection(stream, service_fn(respond)).await });
    }
}

/// Clients, each with one request in flight.
struct Clients {
    server: SocketAddr,
    connections: u32,
    /// Requests that are not sent yet.
    left: u32,
    done: u32,
}

impl Clients {
    fn request(&mut self, net: &mut impl Transport, conn: ConnId) {
        if self.left > 0 {
            self.left -= 1;
            assert_eq!(net.write(conn, REQUEST), REQUEST.len(), "a request fits into the send queue");
        }
    }
}

impl Service for Clients {
    type Conn = ();
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        (0..self.connections).for_each(|token| net.connect(self.server, token.into()));
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        self.request(net, conn);
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut ()) {
        let response = net.peek(conn);
        if response.ends_with(BODY) {
            let len = response.len();
            net.consume(conn, len);
            self.done += 1;
            self.request(net, conn);
        }
    }
}

fn host(n: u8) -> Config {
    Config {
        addresses: vec![format!("10.0.0.{n}/24").parse().expect("an address with a prefix")],
        listen: vec![SocketAddr::from(([10, 0, 0, n], 80))],
        seed: n.into(),
        ..Config::default()
    }
}

fn by_tasks(total: u32, connections: u32) {
    let (client_nic, server_nic) = Link::pair(LinkConfig { checksum_offload: true, ..LinkConfig::default() });
    let clock = client_nic.link().clone();
    let address = SocketAddr::from(([10, 0, 0, 2], 80));
    let mut server = worker::<NativeEngine<MemoryPacket>, _>(&host(2), server_nic, |ctx| {
        AsyncService::new(ctx, move || serve(address))
    });
    let clients = Clients { server: address, connections, left: total, done: 0 };
    // smoltcp does not retain sent packets. The server cannot write its response into a packet that the client still
    // holds.
    let mut client = worker::<SmoltcpEngine, _>(&host(1), client_nic, |_| clients);
    let (mut now, mut done, mut idle) = (Instant::ZERO, 0, 0);
    while done < total {
        now += TURN;
        clock.clock().advance_to(now);
        client.turn(now);
        server_turn(|| _ = server.turn(now));
        idle = if client.service().done == done { idle + 1 } else { 0 };
        done = client.service().done;
        assert!(idle < MAX_IDLE_TURNS, "{done} of {total} responses after {idle} turns without one");
    }
}

/// Server of one stream, and the client's end of it.
type Served = (Pin<Box<dyn Future<Output = hyper::Result<()>>>>, DuplexStream);

fn by_duplex(total: u32, connections: u32) {
    let open = |_| -> Served {
        let (client, server) = tokio::io::duplex(1 << 16);
        (Box::pin(builder().serve_connection(TokioIo::new(server), service_fn(respond))), client)
    };
    let mut served: Vec<Served> = (0..connections).map(open).collect();
    let mut cx = Context::from_waker(Waker::noop());
    let mut response = [0; 1024];
    let mut left = total;
    while left > 0 {
        let batch = served.len().min(left as usize);
        left -= batch as u32;
        for (_, client) in &mut served[..batch] {
            let written = Pin::new(client).poll_write(&mut cx, REQUEST);
            assert!(matches!(written, Poll::Ready(Ok(n)) if n == REQUEST.len()), "{written:?}");
        }
        server_turn(|| {
            for (server, _) in &mut served[..batch] {
                assert!(server.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
        });
        for (_, client) in &mut served[..batch] {
            let mut buffer = ReadBuf::new(&mut response);
            let read = Pin::new(client).poll_read(&mut cx, &mut buffer);
            assert!(matches!(read, Poll::Ready(Ok(()))) && buffer.filled().ends_with(BODY), "{read:?}");
        }
    }
}

/// Separate function, so that a profiler can attribute the server's work.
#[inline(never)]
fn server_turn(mut turn: impl FnMut()) {
    turn();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_serve_all_requests() {
        for over in [Over::Tasks, Over::Duplex] {
            run(over, 100, 7);
        }
    }
}
