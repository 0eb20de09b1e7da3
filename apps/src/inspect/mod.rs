//! Introspection of the running program: Prometheus metrics over HTTP, and a local socket for `linerate top` and
//! `linerate conns`.

mod http;
mod hw_counters;
mod metrics;
mod process;
mod responder;
mod runtime_dir;
mod server;
mod wire;

pub use process::{Process, QueryError, QueryResult, TargetArgs, find, with_pid};
pub use wire::{About, Connection, Counters, Value};

use linerate::StatsClient;
use linerate::units::parse_address;
use responder::Responder;
use runtime_dir::SocketError;
use server::{ClientServer, Endpoint, Listener, REQUEST_TIMEOUT};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

/// Idle timeout of clients of the local socket.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of every command whose process can be inspected.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct IntrospectionArgs {
    /// Disable the introspection socket, which linerate top and linerate conns use
    #[arg(long)]
    no_inspect: bool,
}

/// Introspection options of servers.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct InspectArgs {
    /// Serve Prometheus metrics at http://ADDR:PORT/metrics on a kernel socket. Port 0 picks a free port, which the
    /// ready line prints. Anyone who can reach the address can read them [default: off]
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    metrics: Option<SocketAddr>,

    #[command(flatten)]
    introspection: IntrospectionArgs,
}

impl InspectArgs {
    /// Binds the metrics address, if there is one.
    pub fn listen(&self) -> Result<BoundListeners, Error> {
        Ok(BoundListeners {
            metrics: self.metrics.map(Metrics::bind).transpose()?,
            introspection: self.introspection.clone(),
        })
    }
}

impl IntrospectionArgs {
    /// Answers queries about `workers` workers, which `stats` reaches, until the returned guard is dropped.
    pub fn serve(&self, stats: &StatsClient, workers: usize) -> Result<ServeGuard, Error> {
        BoundListeners { metrics: None, introspection: self.clone() }.serve(stats, workers)
    }

    /// Binds the local socket. A failure is logged only: the program works without it.
    fn bind(&self) -> Option<(UnixListener, runtime_dir::Socket)> {
        if self.no_inspect {
            return None;
        }
        let log = |error: &SocketError| tracing::info!("linerate top and conns cannot find this process: {error}");
        runtime_dir::Socket::bind().inspect_err(log).ok()
    }
}

/// Error that prevents introspection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be bound.
    #[error("--metrics {address}: {source}: give a free address and port of this machine")]
    Bind { address: SocketAddr, source: io::Error },
    /// The thread cannot be started.
    #[error("cannot start the introspection thread: {0}: raise the limit on threads")]
    Spawn(io::Error),
}

/// Bound listener for metrics.
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

/// Bound listeners, before the workers start.
pub struct BoundListeners {
    metrics: Option<Metrics>,
    introspection: IntrospectionArgs,
}

/// Keeps introspection running until dropped.
pub struct ServeGuard {
    // Dropped in this order: the socket file disappears before its server stops.
    _socket: Option<runtime_dir::Socket>,
    _server: Option<ClientServer>,
}

impl BoundListeners {
    /// Returns the address of the metrics, with the actual port if port 0 was requested.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|metrics| metrics.address)
    }

    /// Answers queries about `workers` workers, which `stats` reaches, until the returned guard is dropped.
    pub fn serve(self, stats: &StatsClient, workers: usize) -> Result<ServeGuard, Error> {
        let mut endpoints = Vec::new();
        if let Some(Metrics { listener, .. }) = self.metrics {
            let stats = stats.clone();
            let page = move || {
                let snapshots = stats.snapshots(workers);
                metrics::page(&snapshots) + &hw_counters::page(Path::new(hw_counters::DEVICES), &snapshots)
            };
            let react = move |received: &mut Vec<u8>| http::react(received, &page);
            endpoints.push(Endpoint::new(Listener::Tcp(listener), REQUEST_TIMEOUT, react).map_err(Error::Spawn)?);
        }
        // Bound only now: opening a network may wait for another process, and a client that found the socket would wait
        // too.
        let socket = self.introspection.bind().and_then(|(listener, socket)| {
            let responder = Responder::new(about(workers), stats.clone());
            let react = move |received: &mut Vec<u8>| responder.react(received);
            endpoints.push(Endpoint::new(Listener::Unix(listener), IDLE_TIMEOUT, react).ok()?);
            Some(socket)
        });
        let server = (!endpoints.is_empty()).then(|| server::spawn(endpoints)).transpose().map_err(Error::Spawn)?;
        Ok(ServeGuard { _socket: socket, _server: server })
    }
}

/// Describes this process.
fn about(workers: usize) -> About {
    let words: Vec<_> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    About { pid: std::process::id(), program: env!("CARGO_PKG_VERSION").to_owned(), command: words.join(" "), workers }
}
