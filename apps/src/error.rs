//! Errors of commands.

use crate::commands::compare::CompareError;
use crate::commands::doctor::DoctorError;
use crate::commands::hugepages::HugepagesError;
use crate::{inspect, local_client};
use linerate as net;
use linerate::tls::TlsError;
use linerate_bypass::Via;
use linerate_bypass::arena::ArenaError;
use linerate_http::SiteError;
use linerate_load::{Errors, PlanError};
use linerate_service::ConnectError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Error of a command. The message is one line that names the subject and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The network could not be opened, or failed.
    #[error(transparent)]
    Net(#[from] net::Error),
    /// Introspection could not be started.
    #[error(transparent)]
    Inspect(#[from] inspect::Error),
    /// Another process could not be queried.
    #[error(transparent)]
    Query(#[from] inspect::QueryError),
    /// The screen could not be opened.
    #[error("the terminal: {0}: use --once")]
    Terminal(io::Error),
    /// The load generator could not open any connection.
    #[error("{remote}: {}: start a server there or fix the network path", failure(.reason))]
    NoConnection {
        remote: SocketAddr,
        /// Error of the last attempt. `None` if all attempts timed out.
        reason: Option<ConnectError>,
    },
    /// The server is on an interface that it shares with the kernel of the load's own host.
    #[error(
        "{0}: connection refused: a process of this host has the port and no socket of the kernel listens on it, as a \
         server on af_xdp:INTERFACE,share: clients on its own host do not pass the interface: run the load on another \
         host, or a second server with --via kernel --listen {loopback}:{port}",
        loopback = if .0.is_ipv4() { "127.0.0.1" } else { "[::1]" }, port = .0.port()
    )]
    LocalServer(SocketAddr),
    /// The server does not use TLS, or one end refuses the certificate of the other.
    #[error("{0}: the TLS handshake failed: check --tls-ca and --tls-name, and that the server uses TLS 1.3")]
    Handshake(SocketAddr),
    /// A program could not be started by `linerate run`.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Run(#[from] crate::commands::run::RunError),
    /// No frame was reflected.
    #[error("{0}: no frame was reflected within 10 s: run raw reflect at the other end, or fix the link")]
    NoReflector(Via),
    /// Requests in datagrams or frames failed.
    #[error("{}", datagram_errors(.lost, .errors, .first))]
    Datagrams { lost: u64, errors: Errors, first: Option<String> },
    /// The server exports no memory.
    #[error("{0} exports nothing: start it with kv serve --export BYTES")]
    NoExport(SocketAddr),
    /// The server stopped replying while the load generator prepared it.
    #[error("{remote}: no reply for {limit:?} while preparing the server: check it and the network path")]
    Stalled { remote: SocketAddr, limit: Duration },
    /// A signal ended the load before the end of its measurement.
    #[error("{}", interrupted(.measured, .planned))]
    Interrupted { measured: Duration, planned: Duration },
    /// The server refused keys that the load set before measuring.
    #[error(
        "{remote} refused {refused} SET{} while keys were loaded{}: correct the settings of the server, or add --no-fill",
        if *.refused == 1 { "" } else { "s" },
        first_of(.first)
    )]
    NotFilled { remote: SocketAddr, refused: u64, first: Option<String> },
    /// The options contradict each other or the network.
    #[error("{0}")]
    Usage(String),
    /// The parameters of the load are invalid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Errors occurred during a measurement.
    #[error(
        "{}: the figures cover the remaining traffic; check the server and the network path",
        load_errors(.errors, .first)
    )]
    Load { errors: Errors, first: Option<String> },
    /// Memory for keys and values could not be allocated.
    #[error("--memory: {0}")]
    Arena(#[from] ArenaError),
    /// The server does not have the counter.
    #[error("{remote} has no counter {name}: {reply}")]
    NoCounter { remote: SocketAddr, name: String, reply: String },
    /// Counters differ from the operations applied to them.
    #[error(
        "the counters grew by {grew}, but acknowledged operations added {added} and {unknown} were not acknowledged: \
         an operation was lost or duplicated, or other clients changed the counters"
    )]
    Miscounted { grew: u64, added: u64, unknown: u64 },
    /// Memory for counters could not be allocated.
    #[error("--counters {count}: {error}: lower the count or add memory")]
    Counters { count: u32, error: std::io::Error },
    /// Exported memory could not be allocated.
    #[error("--export {bytes}: {error}: lower the size or add memory")]
    Export { bytes: u64, error: io::Error },
    /// The directory of an HTTP server could not be loaded.
    #[error("--dir {0}")]
    Site(#[from] SiteError),
    /// The cluster map could not be read, or is invalid.
    #[error("--cluster-map {}: {reason}", path.display())]
    ClusterMap { path: PathBuf, reason: String },
    /// The password file could not be read.
    #[error("--password-file {}: {error}: {}", path.display(), password_remedy(error))]
    PasswordFile { path: PathBuf, error: io::Error },
    /// The certificates or keys of a server cannot be used.
    #[error("--tls-cert: {0}: name PEM files that belong together")]
    TlsServer(TlsError),
    /// The certificates or keys of a client cannot be used.
    #[error("--tls: {0}: name PEM files that belong together, and a host by --tls-name")]
    TlsClient(TlsError),
    /// `linerate compare` failed.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// `linerate doctor` failed.
    #[error(transparent)]
    Doctor(#[from] DoctorError),
    /// `linerate hugepages` failed.
    #[error(transparent)]
    Hugepages(#[from] HugepagesError),
    /// `linerate rdma` failed.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Rdma(#[from] crate::commands::rdma::RdmaError),
    /// Signal handlers could not be installed.
    #[error("signals: {0}")]
    Signals(io::Error),
    /// Standard output could not be written.
    #[error("standard output: {0}")]
    Output(io::Error),
}

impl Error {
    /// Returns the error of a load without a connection to `remote`. `reason` is the error of the last attempt.
    pub fn no_connection(remote: SocketAddr, reason: Option<ConnectError>) -> Error {
        match reason {
            Some(ConnectError::Refused) if local_client::is_reserved(remote) => Error::LocalServer(remote),
            Some(ConnectError::Handshake) => Error::Handshake(remote),
            reason => Error::NoConnection { remote, reason },
        }
    }

    /// Returns true for an error of the library, whose message names settings in backticks.
    pub fn names_settings(&self) -> bool {
        match self {
            Error::Net(_) => true,
            #[cfg(feature = "rdma")]
            Error::Rdma(crate::commands::rdma::RdmaError::Net(_)) => true,
            _ => false,
        }
    }

    /// Returns the exit status: 2 for invalid arguments, 1 for other errors.
    pub fn status(&self) -> u8 {
        match self {
            Error::Net(error) if error.is_usage() => 2,
            Error::Usage(_) | Error::Plan(_) | Error::Compare(CompareError::Usage(_)) => 2,
            Error::Query(inspect::QueryError::Several(_)) | Error::Doctor(DoctorError::NoTerminal) => 2,
            #[cfg(feature = "rdma")]
            Error::Rdma(crate::commands::rdma::RdmaError::Usage(_)) => 2,
            _ => 1,
        }
    }
}

/// Returns the remedy for a password file that cannot be read.
fn password_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "create it with the password in its first line",
        io::ErrorKind::PermissionDenied => "make it readable by the user of the server",
        io::ErrorKind::IsADirectory => "give a file with the password in its first line",
        _ => "write the password into its first line",
    }
}

/// Formats the errors of a load.
fn load_errors(errors: &Errors, first: &Option<String>) -> String {
    let message = format!(
        "{} errors: {} connections with corrupt data, {} lost, {} refused, {} not opened in time",
        errors.total(),
        errors.corrupt,
        errors.lost,
        errors.refused,
        errors.unopened
    );
    message + &request_errors(errors) + &first_of(first)
}

/// Formats the errors of requests on any transport.
fn request_errors(errors: &Errors) -> String {
    let counts = [
        (errors.refusals, "error replies"),
        (errors.missing, "misses of existing keys"),
        (errors.stalled, "requests still unanswered at the end, after far longer than the others"),
    ];
    counts.iter().filter(|(count, _)| *count > 0).map(|(count, label)| format!(", {count} {label}")).collect()
}

/// Formats the errors of requests in datagrams.
fn datagram_errors(lost: &u64, errors: &Errors, first: &Option<String>) -> String {
    format!("{lost} requests were lost, {} replies were corrupt", errors.corrupt)
        + &request_errors(errors)
        + &first_of(first)
        + ": the figures cover the other requests; check the server and the network path, or lower --depth"
}

/// Formats the first error of several.
fn first_of(first: &Option<String>) -> String {
    first.as_ref().map(|first| format!("; the first: {first}")).unwrap_or_default()
}

/// Formats the end of a load by a signal.
fn interrupted(measured: &Duration, planned: &Duration) -> String {
    if measured.is_zero() {
        return "interrupted before the measurement".to_owned();
    }
    let (measured, planned) = (measured.as_secs_f64(), planned.as_secs_f64());
    format!("interrupted: the figures cover {measured:.1} of {planned:.1} s")
}

fn failure(reason: &Option<ConnectError>) -> String {
    reason.unwrap_or(ConnectError::TimedOut).to_string()
}
