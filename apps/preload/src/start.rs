//! Start of the network.

use crate::config;
use crate::descriptors;
use crate::real;
use libc::c_int;
use linerate::{InlineNetwork, PreparedNetwork};
use linerate_sockets::{Endpoint, Sockets};
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// State of the network of the process.
pub enum State {
    /// Not started.
    Idle,
    /// Bound and listening sockets of a network that the first wait or connection opens: in this process, or in
    /// children, which inherit them.
    Prepared(Box<Prepared>),
    Running(Box<InlineNetwork<Sockets>>),
    /// Cannot be started, or the program was not started by `linerate run`.
    Absent,
}

/// Prepared network, with the sockets that are bound.
pub struct Prepared {
    pub network: PreparedNetwork,
    pub sockets: Sockets,
}

/// Prepares the network of the configuration, and opens it if its addresses are not known before.
pub fn prepare() -> State {
    let config = match config::get() {
        Some(Ok(options)) => &options.network,
        Some(Err(error)) => {
            report_failure(error);
            return State::Absent;
        }
        None => return State::Absent,
    };
    log_to_stderr();
    match PreparedNetwork::new(config) {
        Ok(Some(network)) => State::Prepared(Box::new(Prepared { network, sockets: Sockets::default() })),
        Ok(None) => opened(InlineNetwork::open(config, |_| Sockets::default())),
        Err(error) => opened(Err(error)),
    }
}

impl Prepared {
    /// Opens the network in this process.
    pub fn open(self) -> State {
        let Prepared { network, sockets } = self;
        opened(network.open(|_| sockets))
    }
}

/// Returns the state with an opened network, whose sockets may listen.
fn opened(network: Result<InlineNetwork<Sockets>, linerate::Error>) -> State {
    let mut network = match network {
        Ok(network) => network,
        Err(error) => {
            report_failure(&error.to_string());
            return State::Absent;
        }
    };
    for endpoint in network.parts().0.endpoints() {
        // The log has the error.
        let _ = match endpoint {
            Endpoint::Tcp(address) => redirected(address, network.listen(address)),
            Endpoint::Udp(address) => redirected(address, network.listen_udp(address)),
        };
    }
    State::Running(Box::new(network))
}

/// Logs that the kernel does not change the redirection of `address`.
pub fn redirected(address: SocketAddr, result: io::Result<()>) -> Result<(), Errno> {
    result.map_err(|error| {
        tracing::warn!("{address}: the kernel does not change the redirection of its packets: {error}");
        Errno::ADDRNOTAVAIL
    })
}

/// Calls `operation`, and keeps the descriptors that it opens from close(2) of the program's threads.
pub fn protecting<R>(operation: impl FnOnce() -> R) -> R {
    let (fds, threads) = (open_descriptors(), threads());
    if threads.len() > 1 {
        HAD_THREADS.store(true, Ordering::Relaxed);
    }
    let result = operation();
    open_descriptors().into_iter().filter(|fd| !fds.contains(fd)).for_each(descriptors::protect);
    let mut known = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    known.extend(self::threads().into_iter().filter(|thread| !threads.contains(thread)));
    result
}

/// True if the program had several threads when the network opened: the descriptors that they opened meanwhile are
/// taken for those of the network.
static HAD_THREADS: AtomicBool = AtomicBool::new(false);

/// Threads of the network.
static THREADS: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

/// Returns whether this thread may close protected descriptors: one of the network, or of a program whose descriptors
/// could be among them.
pub fn may_close() -> bool {
    // SAFETY: no arguments.
    let thread = unsafe { libc::gettid() };
    HAD_THREADS.load(Ordering::Relaxed) || THREADS.lock().unwrap_or_else(PoisonError::into_inner).contains(&thread)
}

/// Returns the descriptors of the process.
fn open_descriptors() -> Vec<c_int> {
    let mut fds = numbers_in("/proc/self/fd");
    // The list contains its own descriptor, which is closed by now.
    fds.retain(|fd| is_open(*fd));
    fds
}

/// Returns the threads of the process.
fn threads() -> Vec<c_int> {
    numbers_in("/proc/self/task")
}

/// Returns the names in a directory of /proc that are numbers.
fn numbers_in(directory: &str) -> Vec<c_int> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn is_open(fd: c_int) -> bool {
    // SAFETY: F_GETFD takes no argument.
    unsafe { real::fcntl(fd, libc::F_GETFD, 0) >= 0 }
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

/// True if the network cannot be started.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Returns whether the network cannot be started. Its sockets must not reach others by the kernel instead.
pub fn has_failed() -> bool {
    HAS_FAILED.load(Ordering::Relaxed)
}

/// Prints why the program has no network.
fn report_failure(reason: &str) {
    HAS_FAILED.store(true, Ordering::Relaxed);
    report(reason);
}

/// Prints a message to the user of the program.
pub fn report(reason: &str) {
    eprintln!("linerate run: {reason}");
}
