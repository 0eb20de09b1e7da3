//! Server thread for introspection clients on kernel sockets. The number of clients and the time per request are
//! bounded.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of clients of each listener. A further client replaces one that may be
/// [evicted](Client::eviction_rank), or waits in the accept queue.
pub const MAX_CLIENTS: usize = 16;
/// Time limit for completing a request once its first byte has arrived, and for reading the reply.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause in accepting after the process has run out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes per read.
const READ_SIZE: usize = 4 << 10;

/// Result of handling the bytes received from a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Reaction {
    /// The request is incomplete.
    Incomplete,
    /// Reply to a request. Further requests may follow.
    Reply(Vec<u8>),
    /// Reply after which the connection is closed.
    FinalReply(Vec<u8>),
}

/// Listening socket.
pub enum Listener {
    /// TCP socket.
    Tcp(TcpListener),
    /// Local socket.
    Unix(UnixListener),
}

impl Listener {
    fn accept(&self) -> io::Result<Stream> {
        let stream = match self {
            Listener::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
            Listener::Unix(listener) => Stream::Unix(listener.accept()?.0),
        };
        match &stream {
            Stream::Tcp(stream) => stream.set_nonblocking(true)?,
            Stream::Unix(stream) => stream.set_nonblocking(true)?,
        }
        Ok(stream)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// Handler that removes requests from the received bytes and returns the reply.
type Handler = Box<dyn FnMut(&mut Vec<u8>) -> Reaction + Send>;

/// Listener with its request handler.
pub struct Endpoint {
    listener: Listener,
    react: Handler,
    /// Idle timeout of clients.
    idle_timeout: Duration,
    clients: usize,
    /// Start of accepting after a pause.
    accepts_at: Instant,
}

impl Endpoint {
    /// Creates an endpoint. `react` removes the requests that it replies to from the received bytes.
    pub fn new(
        listener: Listener,
        idle_timeout: Duration,
        react: impl FnMut(&mut Vec<u8>) -> Reaction + Send + 'static,
    ) -> io::Result<Self> {
        match &listener {
            Listener::Tcp(listener) => listener.set_nonblocking(true)?,
            Listener::Unix(listener) => listener.set_nonblocking(true)?,
        }
        Ok(Endpoint { listener, react: Box::new(react), idle_timeout, clients: 0, accepts_at: Instant::now() })
    }

    fn has_room(&self) -> bool {
        self.clients < MAX_CLIENTS
    }
}

/// Starts the thread that serves `endpoints`.
pub fn spawn(endpoints: Vec<Endpoint>) -> io::Result<ClientServer> {
    let (stop, stopped) = UnixStream::pair()?;
    let mut event_loop = EventLoop { endpoints, stopped, clients: Vec::new() };
    let run = move || {
        if let Err(error) = event_loop.run() {
            tracing::error!("introspection stopped: {error}");
        }
    };
    let thread = std::thread::Builder::new().name("inspect".to_owned()).spawn(run)?;
    Ok(ClientServer { stop: Some(stop), thread: Some(thread) })
}

/// Handle of the server thread. Dropping it stops the thread.
pub struct ClientServer {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ClientServer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Errors were logged by the thread.
            let _ = thread.join();
        }
    }
}

/// Socket of a client.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn finish(&mut self) {
        // The peer may have closed the connection.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// State of a client.
enum Stage {
    /// Reading a request.
    Reading,
    /// Writing a reply, of which `sent` bytes have been written.
    Writing { reply: Vec<u8>, sent: usize, is_final: bool },
    /// Final reply written. Further input is read and discarded: closing with unread data sends a reset, which may
    /// overtake the reply.
    Draining,
}

struct Client {
    stream: Stream,
    /// Index of the endpoint.
    endpoint: usize,
    /// Received bytes without a reply.
    received: Vec<u8>,
    stage: Stage,
    /// Set if a request was answered.
    is_answered: bool,
    /// Set if `received` holds data after a reply. It is handled without waiting for the socket.
    has_pending: bool,
    deadline: Instant,
}

struct EventLoop {
    endpoints: Vec<Endpoint>,
    /// Readable once the handle is dropped.
    stopped: UnixStream,
    clients: Vec<Client>,
}

impl EventLoop {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let now = Instant::now();
            let pauses = self.endpoints.iter().filter(|endpoint| now < endpoint.accepts_at);
            let wake_at = self.clients.iter().map(Client::due).chain(pauses.map(|endpoint| endpoint.accepts_at)).min();
            let mut waits = vec![PollFd::new(&self.stopped, PollFlags::IN)];
            waits.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, client.waits_for())));
            let accepts = |number: usize, endpoint: &Endpoint| {
                endpoint.has_room() || eviction_candidate(number, &self.clients).is_some()
            };
            let open = self.endpoints.iter().enumerate();
            let open = open.filter(|(number, endpoint)| now >= endpoint.accepts_at && accepts(*number, endpoint));
            waits.extend(open.map(|(_, endpoint)| PollFd::new(&endpoint.listener, PollFlags::IN)));
            let timeout = wake_at.map(|wake_at| timespec(wake_at.saturating_duration_since(now)));
            match poll(&mut waits, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
            drop(waits);
            if ready[0] {
                return Ok(());
            }
            let mut ready_clients = ready[1..].iter();
            let endpoints = &mut self.endpoints;
            self.clients.retain_mut(|client| {
                let endpoint = &mut endpoints[client.endpoint];
                let is_ready = ready_clients.next() == Some(&true) || client.has_pending;
                let stays = (!is_ready || client.advance(endpoint)) && Instant::now() < client.deadline;
                endpoint.clients -= usize::from(!stays);
                stays
            });
            for (number, endpoint) in self.endpoints.iter_mut().enumerate() {
                accept(number, endpoint, &mut self.clients);
            }
        }
    }
}

/// Returns the index of the client of endpoint `number` to evict for another: the oldest client of the lowest rank.
fn eviction_candidate(number: usize, clients: &[Client]) -> Option<usize> {
    let of_endpoint = clients.iter().enumerate().filter(|(_, client)| client.endpoint == number);
    of_endpoint.filter_map(|(index, client)| Some((client.eviction_rank()?, index))).min().map(|(_, index)| index)
}

/// Accepts a bounded number of clients of endpoint `number`. Requests that have already arrived are handled at once, so
/// that clients that connect and send nothing do not delay them.
fn accept(number: usize, endpoint: &mut Endpoint, clients: &mut Vec<Client>) {
    if Instant::now() < endpoint.accepts_at {
        return;
    }
    for _ in 0..MAX_CLIENTS {
        let evicted = if endpoint.has_room() { None } else { eviction_candidate(number, clients) };
        if !endpoint.has_room() && evicted.is_none() {
            return;
        }
        match endpoint.listener.accept() {
            Ok(stream) => {
                if let Some(evicted) = evicted {
                    clients.remove(evicted);
                    endpoint.clients -= 1;
                }
                let deadline = Instant::now() + endpoint.idle_timeout;
                let (received, stage) = (Vec::new(), Stage::Reading);
                let mut client = Client {
                    stream,
                    endpoint: number,
                    received,
                    stage,
                    is_answered: false,
                    has_pending: false,
                    deadline,
                };
                if client.advance(endpoint) {
                    clients.push(client);
                    endpoint.clients += 1;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::debug!("introspection client not accepted: {error}");
                endpoint.accepts_at = Instant::now() + ACCEPT_PAUSE;
                return;
            }
        }
    }
}

impl Client {
    fn waits_for(&self) -> PollFlags {
        match self.stage {
            Stage::Writing { .. } => PollFlags::OUT,
            Stage::Reading | Stage::Draining => PollFlags::IN,
        }
    }

    /// Returns the time at which the client needs attention without socket events.
    fn due(&self) -> Instant {
        if self.has_pending { Instant::now() } else { self.deadline }
    }

    /// Reads, handles and writes until the socket blocks, at most one request. Returns false if the connection is to be
    /// dropped.
    fn advance(&mut self, endpoint: &mut Endpoint) -> bool {
        let mut chunk = [0; READ_SIZE];
        if std::mem::take(&mut self.has_pending) {
            self.handle(endpoint);
        }
        loop {
            let done = match &mut self.stage {
                Stage::Writing { reply, sent, .. } => self.stream.write(&reply[*sent..]),
                Stage::Reading | Stage::Draining => self.stream.read(&mut chunk),
            };
            let n = match done {
                Ok(0) => return false,
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return false,
            };
            match &mut self.stage {
                Stage::Reading => {
                    if self.received.is_empty() {
                        self.deadline = self.deadline.min(Instant::now() + REQUEST_TIMEOUT);
                    }
                    self.received.extend_from_slice(&chunk[..n]);
                    self.handle(endpoint);
                }
                Stage::Writing { reply, sent, is_final } => {
                    *sent += n;
                    if *sent < reply.len() {
                        continue;
                    }
                    if *is_final {
                        self.stream.finish();
                        self.stage = Stage::Draining;
                    } else {
                        self.has_pending = !self.received.is_empty();
                        self.deadline =
                            Instant::now() + if self.has_pending { REQUEST_TIMEOUT } else { endpoint.idle_timeout };
                        self.stage = Stage::Reading;
                        // Give other clients a turn.
                        return true;
                    }
                }
                // A client that sends without end does not delay others.
                Stage::Draining => return true,
            }
        }
    }

    /// Returns the eviction rank: clients with a complete final reply first, then clients that never completed a
    /// request, then clients that do not read their final reply. `None` for clients that may send further requests.
    fn eviction_rank(&self) -> Option<u8> {
        match self.stage {
            Stage::Draining => Some(0),
            Stage::Reading if !self.is_answered => Some(1),
            Stage::Writing { is_final: true, .. } => Some(2),
            Stage::Reading | Stage::Writing { .. } => None,
        }
    }

    fn handle(&mut self, endpoint: &mut Endpoint) {
        let (reply, is_final) = match (endpoint.react)(&mut self.received) {
            Reaction::Incomplete => return,
            Reaction::Reply(reply) => (reply, false),
            Reaction::FinalReply(reply) => (reply, true),
        };
        self.stage = Stage::Writing { reply, sent: 0, is_final };
        self.is_answered = true;
        self.deadline = Instant::now() + REQUEST_TIMEOUT;
    }
}

fn timespec(duration: Duration) -> Timespec {
    if duration.is_zero() {
        return Timespec { tv_sec: 0, tv_nsec: 0 };
    }
    // Rounded up, so that the deadline has passed when poll returns.
    let duration = duration + Duration::from_millis(1);
    Timespec { tv_sec: duration.as_secs().min(3600) as i64, tv_nsec: duration.subsec_nanos().into() }
}
