//! `linerate rdma`: the RDMA devices of this machine, and what they do.
//!
//! With `--json`, `info` prints one object, `{"devices": […]}`, whose entries have the fields of `info::Device`.

mod connect_bench;
mod connections_bench;
mod info;
mod perf;

use linerate_bypass::ConnectError;
use linerate_bypass::arena::ArenaError;
use linerate_net::Error as NetError;
use linerate_rdma::native::{Error as Absent, Native};
use linerate_rdma::perf::{PerfError, Test};
use linerate_rdma::verbs::Error as VerbsError;
use std::io::{self, Write};

/// `linerate rdma`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the devices, their ports and addresses, and what they can do
    Info(InfoArgs),

    /// Measure how long connections take to be made, step by step and as a whole
    ConnectBench(connect_bench::ConnectBenchArgs),

    /// Measure what many connections cost: memory and time for each, with receive queues of their own, a shared one, and datagrams
    ConnectionsBench(connections_bench::ConnectionsBenchArgs),

    /// Measure SEND, WRITE and READ between two ends, as perftest does
    Perf(perf::PerfArgs),
}

/// `linerate rdma info`.
#[derive(Debug, clap::Args)]
pub struct InfoArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Why the devices cannot be shown, or measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// There is no device, or it cannot be opened.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// A device does not say what it is.
    #[error("RDMA device {name}: {error}: see linerate doctor")]
    Device {
        /// Its name.
        name: String,
        /// What it said instead.
        error: io::Error,
    },
    /// It cannot be used.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A step failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// There is no memory.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A connection was not made.
    #[error("a connection was not made{}", .0.map(|why| format!(": {why}")).unwrap_or_default())]
    NotConnected(Option<ConnectError>),
    /// Not all was measured.
    #[error("{device}: {test}: {error}")]
    Perf {
        /// The device.
        device: String,
        /// The test.
        test: Test,
        /// What stood in the way.
        error: PerfError,
    },
    /// What the arguments say cannot be.
    #[error("{0}")]
    Usage(String),
    /// The signals could not be caught.
    #[error("signals: {0}")]
    Signals(io::Error),
    /// Standard output did not take them.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// Runs a command.
///
/// # Errors
/// [`RdmaError`].
pub fn run(command: Command) -> Result<(), RdmaError> {
    match command {
        Command::Info(args) => show(&args),
        Command::ConnectBench(args) => connect_bench::run(&args),
        Command::ConnectionsBench(args) => connections_bench::run(&args),
        Command::Perf(args) => perf::run(&args),
    }
}

fn show(args: &InfoArgs) -> Result<(), RdmaError> {
    let names = Native::devices()?;
    if names.is_empty() {
        return Err(Absent::NoDevices.into());
    }
    let mut devices = Vec::with_capacity(names.len());
    for name in names {
        let native = Native::open(&name)?;
        devices.push(info::Device::of(&native).map_err(|error| RdmaError::Device { name, error })?);
    }
    match print(&devices, args.json, &mut io::stdout().lock()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

fn print(devices: &[info::Device], json: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut *out, &serde_json::json!({ "devices": devices }))?;
        return writeln!(out);
    }
    devices.iter().try_for_each(|device| device.print(out))
}
