//! `linerate rdma`: the RDMA devices of this machine.
//!
//! With `--json`, `info` prints one object, `{"devices": […]}`, whose entries have the fields of `info::Device`.

mod info;

use linerate_rdma::native::{Error as Absent, Native};
use std::io::{self, Write};

/// `linerate rdma`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the devices, their ports and addresses, and what they can do
    Info(InfoArgs),
}

/// `linerate rdma info`.
#[derive(Debug, clap::Args)]
pub struct InfoArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Why the devices cannot be shown.
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
    /// Standard output did not take them.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// Runs a command.
///
/// # Errors
/// [`RdmaError`].
pub fn run(command: Command) -> Result<(), RdmaError> {
    let Command::Info(args) = command;
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
