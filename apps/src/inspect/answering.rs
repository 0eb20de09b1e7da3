//! Answers to strangers, on kernel sockets: one thread, few connections, and nobody is waited for long.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of connections of each listener. One more takes the place of a client that may be [evicted](Client::rank), or waits
/// in the kernel.
pub const CONNECTIONS: usize = 16;
/// How long a client may take to say what it wants once it has begun to, and then to take the answer.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How long nobody is accepted when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes that are read at a time.
const CHUNK: usize = 4 << 10;

/// What is made of what a client has said.
#[derive(Debug, PartialEq, Eq)]
pub enum Reaction {
    /// There is more to come.
    Wait,
    /// The answer to a request, after which there may be others.
    Answer(Vec<u8>),
    /// An answer with which the connection ends.
    Last(Vec<u8>),
}

/// A socket that nobody is answered on yet.
pub enum Listener {
    /// Of the network.
    Tcp(TcpListener),
    /// Of this machine.
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

/// Takes what is answered out of the bytes that a client has said.
type React = Box<dyn FnMut(&mut Vec<u8>) -> Reaction + Send>;

/// A listener, and what its clients are answered.
pub struct Post {
    listener: Listener,
    react: React,
    /// How long a client may say nothing.
    idle: Duration,
    clients: usize,
    /// Nobody is accepted before.
    accepts_at: Instant,
}

impl Post {
    /// Has what a client has said taken out of its bytes by `react` as far as it is answered. A client may be silent for `idle`.
    pub fn new(
        listener: Listener,
        idle: Duration,
        react: impl FnMut(&mut Vec<u8>) -> Reaction + Send + 'static,
    ) -> io::Result<Self> {
        match &listener {
            Listener::Tcp(listener) => listener.set_nonblocking(true)?,
            Listener::Unix(listener) => listener.set_nonblocking(true)?,
        }
        Ok(Post { listener, react: Box::new(react), idle, clients: 0, accepts_at: Instant::now() })
    }

    fn has_room(&self) -> bool {
        self.clients < CONNECTIONS
    }
}

/// Answers the clients of `posts`, on a thread of its own.
pub fn answer(posts: Vec<Post>) -> io::Result<Server> {
    let (stop, over) = UnixStream::pair()?;
    let mut answering = Answering { posts, over, clients: Vec::new() };
    let run = move || {
        if let Err(error) = answering.run() {
            tracing::error!("nobody can look in any more: {error}");
        }
    };
    let thread = std::thread::Builder::new().name("inspect".to_owned()).spawn(run)?;
    Ok(Server { stop: Some(stop), thread: Some(thread) })
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

/// The socket of a client.
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
        // It may be gone.
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

/// How far a client has come.
enum Stage {
    /// It is listened to.
    Asking,
    /// So much of the answer has gone, which may be the last.
    Taking { answer: Vec<u8>, gone: usize, is_last: bool },
    /// It has all. What it still sends is read, since to close now would be a reset, which may overtake the answer.
    Leaving,
}

struct Client {
    stream: Stream,
    /// The number of its listener.
    post: usize,
    /// What it has said and has not been answered.
    heard: Vec<u8>,
    stage: Stage,
    /// One of its requests was answered.
    is_answered: bool,
    /// It had said more when it was answered: that is looked at without waiting for anything.
    has_more: bool,
    until: Instant,
}

struct Answering {
    posts: Vec<Post>,
    /// Its end is the thread's.
    over: UnixStream,
    clients: Vec<Client>,
}

impl Answering {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let now = Instant::now();
            let pauses = self.posts.iter().filter(|post| now < post.accepts_at);
            let until = self.clients.iter().map(Client::due).chain(pauses.map(|post| post.accepts_at)).min();
            let mut waits = vec![PollFd::new(&self.over, PollFlags::IN)];
            waits.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, client.waits_for())));
            let accepts = |number: usize, post: &Post| post.has_room() || to_evict(number, &self.clients).is_some();
            let open = self.posts.iter().enumerate();
            let open = open.filter(|(number, post)| now >= post.accepts_at && accepts(*number, post));
            waits.extend(open.map(|(_, post)| PollFd::new(&post.listener, PollFlags::IN)));
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
            let posts = &mut self.posts;
            self.clients.retain_mut(|client| {
                let post = &mut posts[client.post];
                let goes_on = happened_to.next() == Some(&true) || client.has_more;
                let stays = (!goes_on || client.go_on(post)) && Instant::now() < client.until;
                post.clients -= usize::from(!stays);
                stays
            });
            for (number, post) in self.posts.iter_mut().enumerate() {
                accept(number, post, &mut self.clients);
            }
        }
    }
}

/// Returns the index of the client of listener `number` to evict for another: of those that may be, the oldest of the lowest rank.
fn to_evict(number: usize, clients: &[Client]) -> Option<usize> {
    let of_listener = clients.iter().enumerate().filter(|(_, client)| client.post == number);
    of_listener.filter_map(|(index, client)| Some((client.rank()?, index))).min().map(|(_, index)| index)
}

/// Accepts clients of listener `number`, a bounded number of them. Requests that have arrived are answered at once, so that clients that
/// connect and send nothing do not delay them.
fn accept(number: usize, post: &mut Post, clients: &mut Vec<Client>) {
    if Instant::now() < post.accepts_at {
        return;
    }
    for _ in 0..CONNECTIONS {
        let evicted = if post.has_room() { None } else { to_evict(number, clients) };
        if !post.has_room() && evicted.is_none() {
            return;
        }
        match post.listener.accept() {
            Ok(stream) => {
                if let Some(evicted) = evicted {
                    clients.remove(evicted);
                    post.clients -= 1;
                }
                let until = Instant::now() + post.idle;
                let (heard, stage) = (Vec::new(), Stage::Asking);
                let mut client =
                    Client { stream, post: number, heard, stage, is_answered: false, has_more: false, until };
                if client.go_on(post) {
                    clients.push(client);
                    post.clients += 1;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::debug!("nobody who looks in can be accepted: {error}");
                post.accepts_at = Instant::now() + PAUSE;
                return;
            }
        }
    }
}

impl Client {
    fn waits_for(&self) -> PollFlags {
        match self.stage {
            Stage::Taking { .. } => PollFlags::OUT,
            Stage::Asking | Stage::Leaving => PollFlags::IN,
        }
    }

    /// When something is to be done about it if nothing happens.
    fn due(&self) -> Instant {
        if self.has_more { Instant::now() } else { self.until }
    }

    /// Reads, answers or writes what can be, no more than one request. Returns whether there is more to do.
    fn go_on(&mut self, post: &mut Post) -> bool {
        let mut chunk = [0; CHUNK];
        if std::mem::take(&mut self.has_more) {
            self.react(post);
        }
        loop {
            let done = match &mut self.stage {
                Stage::Taking { answer, gone, .. } => self.stream.write(&answer[*gone..]),
                Stage::Asking | Stage::Leaving => self.stream.read(&mut chunk),
            };
            let n = match done {
                Ok(0) => return false,
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return false,
            };
            match &mut self.stage {
                Stage::Asking => {
                    if self.heard.is_empty() {
                        self.until = self.until.min(Instant::now() + PATIENCE);
                    }
                    self.heard.extend_from_slice(&chunk[..n]);
                    self.react(post);
                }
                Stage::Taking { answer, gone, is_last } => {
                    *gone += n;
                    if *gone < answer.len() {
                        continue;
                    }
                    if *is_last {
                        self.stream.finish();
                        self.stage = Stage::Leaving;
                    } else {
                        self.has_more = !self.heard.is_empty();
                        self.until = Instant::now() + if self.has_more { PATIENCE } else { post.idle };
                        self.stage = Stage::Asking;
                        // The others have their turn.
                        return true;
                    }
                }
                // One that sends without end does not keep the others waiting.
                Stage::Leaving => return true,
            }
        }
    }

    /// Rank for eviction when another client needs the place: first those that have their last answer, then those that never completed
    /// a request, then those that do not read their last answer. `None` for clients that may go on asking.
    fn rank(&self) -> Option<u8> {
        match self.stage {
            Stage::Leaving => Some(0),
            Stage::Asking if !self.is_answered => Some(1),
            Stage::Taking { is_last: true, .. } => Some(2),
            Stage::Asking | Stage::Taking { .. } => None,
        }
    }

    fn react(&mut self, post: &mut Post) {
        let (answer, is_last) = match (post.react)(&mut self.heard) {
            Reaction::Wait => return,
            Reaction::Answer(answer) => (answer, false),
            Reaction::Last(answer) => (answer, true),
        };
        self.stage = Stage::Taking { answer, gone: 0, is_last };
        self.is_answered = true;
        self.until = Instant::now() + PATIENCE;
    }
}

fn timespec(duration: Duration) -> Timespec {
    if duration.is_zero() {
        return Timespec { tv_sec: 0, tv_nsec: 0 };
    }
    // Rounded up, so that what is due then is due when it wakes up.
    let duration = duration + Duration::from_millis(1);
    Timespec { tv_sec: duration.as_secs().min(3600) as i64, tv_nsec: duration.subsec_nanos().into() }
}
