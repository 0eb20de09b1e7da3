//! Client with a pool of connections: other threads send requests, which are lines, and receive the replies.
//!
//! `cargo run --example lines`, and from another shell `cargo run --example pool`.

use linerate::time::Duration;
use linerate::{CloseReason, ConnId, ConnectError, Network, Origin, Service, Stop, Transport};
use std::collections::VecDeque;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};

/// Largest number of connections.
const CONNECTIONS: usize = 4;
/// Largest number of requests that wait for a connection.
const WAITING: usize = 1024;
/// Longest reply in bytes.
const LONGEST: usize = 4096;
/// Time limit of a request on a connection.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Request of another thread.
pub struct Request {
    /// Line, with its end.
    pub line: String,
    /// Receiver of the reply, or of the reason that there is none.
    pub reply: Sender<Result<String, String>>,
}

impl Request {
    fn answer(self, reply: Result<String, String>) {
        // The requesting thread may have stopped waiting.
        let _ = self.reply.send(reply);
    }
}

/// Service that sends each request on a free connection.
pub struct Pool {
    server: SocketAddr,
    idle: Vec<ConnId>,
    waiting: VecDeque<Request>,
    /// Connections that are open or being opened.
    connections: usize,
    /// Connections that are being opened.
    opening: usize,
}

#[derive(Default)]
pub struct Conn {
    request: Option<Request>,
    reply: Vec<u8>,
}

impl Pool {
    /// Creates a pool of connections to `server`.
    pub fn new(server: SocketAddr) -> Self {
        Pool { server, idle: Vec::new(), waiting: VecDeque::new(), connections: 0, opening: 0 }
    }

    /// Opens connections for requests that no idle connection takes.
    fn grow(&mut self, net: &mut impl Transport) {
        while self.opening < self.waiting.len() && self.connections < CONNECTIONS {
            net.connect(self.server, 0);
            self.connections += 1;
            self.opening += 1;
        }
    }

    /// Sends the next request on `conn`, or keeps it for later.
    fn next(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        match self.waiting.pop_front() {
            // A line fits into an empty send buffer.
            Some(request) if net.write(conn, request.line.as_bytes()) == request.line.len() => {
                net.set_timer(conn, Some(TIME_LIMIT));
                state.request = Some(request);
            }
            Some(request) => {
                request.answer(Err("the request is too long".to_owned()));
                net.abort(conn);
            }
            None => self.idle.push(conn),
        }
    }
}

impl Service for Pool {
    type Conn = Conn;
    type Message = Request;

    fn message(&mut self, net: &mut impl Transport, request: Request) {
        if self.waiting.len() == WAITING {
            return request.answer(Err("too many requests wait".to_owned()));
        }
        self.waiting.push_back(request);
        match self.idle.pop() {
            // Only callbacks of the connection receive its state: `timer`, which expires at once, sends the request.
            Some(conn) => net.set_timer(conn, Some(Duration::ZERO)),
            None => self.grow(net),
        }
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) -> Conn {
        self.opening -= 1;
        let mut state = Conn::default();
        self.next(net, conn, &mut state);
        state
    }

    fn failed(&mut self, _: &mut impl Transport, _: u64, error: ConnectError) {
        self.opening -= 1;
        self.connections -= 1;
        // Without any connection, no event would send the requests.
        if self.connections == 0 {
            for request in self.waiting.drain(..) {
                request.answer(Err(format!("cannot connect to {}: {error}", self.server)));
            }
        }
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        while let Some(bytes) = net.take(conn, usize::MAX) {
            state.reply.extend_from_slice(&bytes);
        }
        if state.reply.len() > LONGEST {
            net.abort(conn);
        } else if state.reply.ends_with(b"\n") {
            let Some(request) = state.request.take() else {
                return net.abort(conn); // A reply without a request.
            };
            net.set_timer(conn, None);
            request.answer(String::from_utf8(std::mem::take(&mut state.reply)).map_err(|error| error.to_string()));
            self.next(net, conn, state);
        }
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        match state.request {
            None => self.next(net, conn, state),
            // The time limit has passed: a late reply must not be taken for the reply to the next request.
            Some(_) => net.abort(conn),
        }
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut Conn) {
        net.close(conn);
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, state: Conn, reason: CloseReason) {
        self.connections -= 1;
        self.idle.retain(|idle| *idle != conn);
        if let Some(request) = state.request {
            request.answer(Err(format!("the connection has ended: {reason:?}")));
        }
        self.grow(net);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let server = "127.0.0.1:7007".parse()?;
    let (senders, sender) = channel();
    let make = move |ctx: linerate::WorkerCtx<Request>| {
        // Every worker has the same sender; the first one is used.
        let _ = senders.send(ctx.app_sender);
        Pool::new(server)
    };
    let running = Network::builder().build()?.start(make, Stop::default())?;
    let sender = sender.recv()?;
    let (reply, replies) = channel();
    for number in 1..=10 {
        let request = Request { line: format!("{number}\n"), reply: reply.clone() };
        sender.send_to_worker(0, request).map_err(|_| "the mailbox of the worker is full")?;
    }
    for reply in replies.iter().take(10) {
        print!("{}", reply?);
    }
    running.stop();
    running.join()?;
    Ok(())
}
