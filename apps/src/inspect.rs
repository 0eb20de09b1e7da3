//! A look into the running program, for whoever asks from outside: Prometheus over HTTP, and `linerate top` and `linerate conns` over a
//! socket of this machine.

mod answering;
mod http;
mod lines;
mod metrics;
mod place;
mod process;

mod wire;

pub use process::{AskError, Asked, Process, WatchArgs, find, with_pid};

pub use wire::{About, Connection, Counters, Value};

use answering::{Listener, PATIENCE, Post, Server};
use linerate_net::Way;
use linerate_net::units::parse_address;
use lines::Told;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// How long who looks in may say nothing.
const IDLE: Duration = Duration::from_secs(60);

/// What whatever can be looked into takes.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct LookArgs {
    /// Let nobody look in: make no socket for linerate top and linerate conns
    #[arg(long)]
    no_inspect: bool,
}

/// What servers take that can be looked into.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct InspectArgs {
    /// Tell counters to Prometheus at http://ADDR:PORT/metrics, on a kernel socket; port 0 is any, which the ready line tells. Whoever
    /// reaches the address can read them
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    metrics: Option<SocketAddr>,

    #[command(flatten)]
    look: LookArgs,
}

impl InspectArgs {
    /// Begins to listen for who reads metrics, if that is asked for.
    pub fn listen(&self) -> Result<Windows, Error> {
        Ok(Windows { metrics: self.metrics.map(Metrics::bind).transpose()?, look: self.look.clone() })
    }
}

impl LookArgs {
    /// Answers those who look in, about so many workers to which `way` leads, until what is returned is dropped.
    pub fn open(&self, way: &Way, workers: usize) -> Result<Open, Error> {
        Windows { metrics: None, look: self.clone() }.open(way, workers)
    }

    /// A program that nobody can look into works all the same.
    fn bind(&self) -> Option<(UnixListener, place::Socket)> {
        if self.no_inspect {
            return None;
        }
        let said = |error: &place::NoPlace| tracing::info!("linerate top and conns do not see this process: {error}");
        place::Socket::bind().inspect_err(said).ok()
    }
}

/// Why nobody can look in.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("--metrics {address}: {source}: give a free address and port of this machine")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the kernel says.
        source: io::Error,
    },
    /// There can be no thread for it.
    #[error("cannot start the thread that answers who looks in: {0}: raise the limit of threads")]
    Spawn(io::Error),
}

/// Where metrics are asked for.
struct Metrics {
    listener: TcpListener,
    address: SocketAddr,
}

impl Metrics {
    fn bind(address: SocketAddr) -> Result<Self, Error> {
        let failed = |source| Error::Bind { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Metrics { listener, address })
    }
}

/// Where the program can be looked into, before there is anything to tell.
pub struct Windows {
    metrics: Option<Metrics>,
    look: LookArgs,
}

/// Those who look in are answered, until this is dropped.
pub struct Open {
    // In this order: whoever finds the socket finds somebody there.
    _socket: Option<place::Socket>,
    _server: Option<Server>,
}

impl Windows {
    /// The address of the metrics, with the port that was found for 0.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|metrics| metrics.address)
    }

    /// Answers those who look in, about so many workers to which `way` leads.
    pub fn open(self, way: &Way, workers: usize) -> Result<Open, Error> {
        let mut posts = Vec::new();
        if let Some(Metrics { listener, .. }) = self.metrics {
            let way = way.clone();
            let react = move |heard: &mut Vec<u8>| http::react(heard, || metrics::page(&way.snapshots(workers)));
            posts.push(Post::new(Listener::Tcp(listener), PATIENCE, react).map_err(Error::Spawn)?);
        }
        // Not before: until a network is open, another process may have to be waited for, and who found the socket would wait too.
        let socket = self.look.bind().and_then(|(listener, socket)| {
            let told = Told::new(about(workers), way.clone());
            let react = move |heard: &mut Vec<u8>| told.react(heard);
            posts.push(Post::new(Listener::Unix(listener), IDLE, react).ok()?);
            Some(socket)
        });
        let server = (!posts.is_empty()).then(|| answering::answer(posts)).transpose().map_err(Error::Spawn)?;
        Ok(Open { _socket: socket, _server: server })
    }
}

/// This process, with so many workers.
fn about(workers: usize) -> About {
    let words: Vec<_> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    About { pid: std::process::id(), program: env!("CARGO_PKG_VERSION").to_owned(), command: words.join(" "), workers }
}
