//! One page over HTTP/1.1 on a kernel socket, for strangers: one thread, few connections, and nobody is waited for long.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections at a time; more wait in the kernel.
const CONNECTIONS: usize = 16;
/// Bytes of a request's head at most.
const HEAD: usize = 8 << 10;
/// How long a client may take to say what it wants, and then to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long nobody is accepted when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes that are read at a time.
const CHUNK: usize = 4 << 10;

/// A socket that nobody is answered on yet.
pub struct Listener(TcpListener);

impl Listener {
    /// Listens at `address`.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Listener(listener))
    }

    /// The address, with the port that was found for 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Answers GET /metrics with what `page` makes, on a thread of its own.
    pub fn serve(self, page: impl Fn() -> String + Send + 'static) -> io::Result<Server> {
        let (stop, over) = UnixStream::pair()?;
        let clients = Vec::with_capacity(CONNECTIONS);
        let mut answering = Answering { listener: self.0, over, clients, page, accepts_at: Instant::now() };
        let run = move || {
            if let Err(error) = answering.run() {
                tracing::error!("metrics are not told any more: {error}");
            }
        };
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(run)?;
        Ok(Server { stop: Some(stop), thread: Some(thread) })
    }
}

/// The thread that answers; it ends when this is dropped.
pub struct Server {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // What went wrong has been said.
            let _ = thread.join();
        }
    }
}

/// How far a client has come.
enum Stage {
    /// So much of its request is there.
    Asking(Vec<u8>),
    /// So much of the answer has gone.
    Taking(Vec<u8>, usize),
    /// It has all. What it still sends is read, since to close now would be a reset, which may overtake the answer.
    Leaving,
}

struct Client {
    stream: TcpStream,
    stage: Stage,
    until: Instant,
}

struct Answering<F> {
    listener: TcpListener,
    /// Its end is the thread's.
    over: UnixStream,
    clients: Vec<Client>,
    page: F,
    /// Nobody is accepted before.
    accepts_at: Instant,
}

impl<F: Fn() -> String> Answering<F> {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let now = Instant::now();
            let accepts = self.clients.len() < CONNECTIONS;
            let pause = (accepts && now < self.accepts_at).then_some(self.accepts_at);
            let until = self.clients.iter().map(|client| client.until).chain(pause).min();
            let mut waits = vec![PollFd::new(&self.over, PollFlags::IN)];
            waits.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, client.waits_for())));
            if accepts && pause.is_none() {
                waits.push(PollFd::new(&self.listener, PollFlags::IN));
            }
            let timeout = until.map(|until| timespec(until.saturating_duration_since(now)));
            match poll(&mut waits, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let happened: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
            drop(waits);
            if happened[0] {
                return Ok(());
            }
            let mut happened_to = happened[1..].iter();
            let page = &self.page;
            self.clients.retain_mut(|client| {
                let stays = happened_to.next() != Some(&true) || client.go_on(page);
                stays && Instant::now() < client.until
            });
            if accepts {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        if Instant::now() < self.accepts_at {
            return;
        }
        while self.clients.len() < CONNECTIONS {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_ok() {
                        let until = Instant::now() + PATIENCE;
                        self.clients.push(Client { stream, stage: Stage::Asking(Vec::new()), until });
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::debug!("metrics: cannot accept: {error}");
                    self.accepts_at = Instant::now() + PAUSE;
                    return;
                }
            }
        }
    }
}

impl Client {
    fn waits_for(&self) -> PollFlags {
        match self.stage {
            Stage::Taking(..) => PollFlags::OUT,
            Stage::Asking(_) | Stage::Leaving => PollFlags::IN,
        }
    }

    /// Reads or writes what can be. Returns whether there is more to do.
    fn go_on(&mut self, page: impl Fn() -> String) -> bool {
        let mut chunk = [0; CHUNK];
        loop {
            let done = match &mut self.stage {
                Stage::Taking(answer, gone) => self.stream.write(&answer[*gone..]),
                Stage::Asking(_) | Stage::Leaving => self.stream.read(&mut chunk),
            };
            let n = match done {
                Ok(0) => return false,
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return false,
            };
            match &mut self.stage {
                Stage::Asking(head) => {
                    head.extend_from_slice(&chunk[..n]);
                    if let Some(asked) = asked(head) {
                        self.stage = Stage::Taking(answer(asked, &page), 0);
                        self.until = Instant::now() + PATIENCE;
                    }
                }
                Stage::Taking(answer, gone) => {
                    *gone += n;
                    if *gone == answer.len() {
                        let _ = self.stream.shutdown(Shutdown::Write);
                        self.stage = Stage::Leaving;
                    }
                }
                // One that sends without end does not keep the others waiting.
                Stage::Leaving => return true,
            }
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    // Rounded up, so that what is due then is due when it wakes up.
    let duration = duration + Duration::from_millis(1);
    Timespec { tv_sec: duration.as_secs().min(3600) as i64, tv_nsec: duration.subsec_nanos().into() }
}

/// What a request comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Page,
    Elsewhere,
    OtherMethod,
    TooLong,
    Nonsense,
}

/// What `head` asks for; `None` while it is not all there.
fn asked(head: &[u8]) -> Option<Asked> {
    let within = &head[..head.len().min(HEAD)];
    // RFC 9112 §2.2: a line feed alone ends a line, too.
    let ends = within.windows(4).any(|end| end == b"\r\n\r\n") || within.windows(2).any(|end| end == b"\n\n");
    if !ends {
        return (head.len() >= HEAD).then_some(Asked::TooLong);
    }
    let line = within.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version, more) = (words.next(), words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some(b"HTTP/1.0" | b"HTTP/1.1"), None) = (method, target, version, more) else {
        return Some(Asked::Nonsense);
    };
    if method.is_empty() || !method.iter().all(u8::is_ascii_uppercase) {
        return Some(Asked::Nonsense);
    }
    Some(match (target.split(|byte| *byte == b'?').next(), method) {
        (Some(b"/metrics"), b"GET") => Asked::Page,
        (Some(b"/metrics"), _) => Asked::OtherMethod,
        _ => Asked::Elsewhere,
    })
}

/// The whole answer. The connection ends with it.
fn answer(asked: Asked, page: impl Fn() -> String) -> Vec<u8> {
    let (status, more, body) = match asked {
        // The type is that of Prometheus' text format.
        Asked::Page => ("200 OK", "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n", page()),
        Asked::Elsewhere => ("404 Not Found", PLAIN, "here is only /metrics\n".to_owned()),
        Asked::OtherMethod => {
            ("405 Method Not Allowed", "Allow: GET\r\nContent-Type: text/plain\r\n", "only GET\n".to_owned())
        }
        Asked::TooLong => ("431 Request Header Fields Too Large", PLAIN, "the request is too long\n".to_owned()),
        Asked::Nonsense => ("400 Bad Request", PLAIN, "this is no request of HTTP/1.1\n".to_owned()),
    };
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}").into_bytes()
}

const PLAIN: &str = "Content-Type: text/plain\r\n";

#[cfg(test)]
mod tests;
