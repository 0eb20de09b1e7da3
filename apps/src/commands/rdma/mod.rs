//! `linerate rdma`: information about and benchmarks of the RDMA devices of this host.
//!
//! With `--json`, `info` prints one object, `{"devices": […]}`, whose entries have the fields of `info::Device`.

mod connect_bench;
mod connections_bench;
mod info;

use linerate::Error as NetError;
use linerate_bypass::arena::ArenaError;
use linerate_process::output::print_line;
use linerate_rdma::rdma_core::{Error as Absent, RdmaCore};
use linerate_rdma::verbs::Error as VerbsError;
use linerate_service::ConnectError;
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};

/// Subcommands of `linerate rdma`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the devices, their ports, addresses and capabilities
    Info(InfoArgs),

    /// Measure connection setup, step by step and as a whole
    ConnectBench(connect_bench::ConnectBenchArgs),

    /// Measure memory and time per connection with private receive queues, a shared receive queue, and datagrams
    ConnectionsBench(connections_bench::ConnectionsBenchArgs),
}

/// Arguments of `linerate rdma info`.
#[derive(Debug, clap::Args)]
pub struct InfoArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Error of `linerate rdma`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// No device exists, or it cannot be opened.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// A device attribute cannot be read.
    #[error("RDMA device {name}: {error}: see linerate doctor")]
    Device { name: String, error: io::Error },
    /// The network failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Memory could not be allocated.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A connection could not be established.
    #[error("no connection established{}", .0.map(|reason| format!(": {reason}")).unwrap_or_default())]
    NotConnected(Option<ConnectError>),
    /// The arguments are invalid.
    #[error("{0}")]
    Usage(String),
    /// Signal handlers could not be installed.
    #[error("signals: {0}")]
    Signals(io::Error),
    /// Standard output could not be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// Runs `linerate rdma`.
///
/// # Errors
/// [`RdmaError`].
pub fn run(command: Command) -> Result<(), RdmaError> {
    match command {
        Command::Info(args) => show(&args),
        Command::ConnectBench(args) => connect_bench::run(&args),
        Command::ConnectionsBench(args) => connections_bench::run(&args),
    }
}

/// Prints the report of a benchmark as text or as one JSON object.
fn print_report(report: &(impl Serialize + fmt::Display), json: bool) -> Result<(), RdmaError> {
    let text = if json { serde_json::to_string(report).map_err(io::Error::from)? } else { report.to_string() };
    Ok(print_line(text)?)
}

fn show(args: &InfoArgs) -> Result<(), RdmaError> {
    let names = RdmaCore::devices()?;
    if names.is_empty() {
        return Err(Absent::NoDevices.into());
    }
    let mut devices = Vec::with_capacity(names.len());
    for name in names {
        let native = RdmaCore::open(&name)?;
        devices.push(info::Device::describe(&native).map_err(|error| RdmaError::Device { name, error })?);
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
