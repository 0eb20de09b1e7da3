//! Execution of one end on a device.

use super::{ClientArgs, Measured, PerfArgs};
use crate::perf::{self, End, PerfError, Test};
use hdrhistogram::Histogram;
use linerate::Device;
use linerate_bypass::time::{Clock, Duration};
use linerate_process::WithContext;
use linerate_process::output::{eprint_line, print_line};
use linerate_process::signals;
use linerate_rdma::provider::Provider;
use linerate_rdma::rdma_core::{Error as RdmaCoreError, RdmaCore};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Initial range of the latency histogram, which grows if a message takes longer.
const INITIAL_RANGE_NANOS: u64 = 10_000_000_000;

/// Failure of the program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No device, or the device cannot be opened.
    #[error(transparent)]
    RdmaCore(#[from] RdmaCoreError),
    /// The test did not complete.
    #[error("{device}: {test}: {error}")]
    Perf {
        /// The device.
        device: String,
        /// The test.
        test: Test,
        /// The cause.
        error: PerfError,
    },
    /// Contradictory or invalid arguments.
    #[error("{0}")]
    Usage(String),
    /// The signal handlers could not be installed.
    #[error("signals: {0}")]
    Signals(io::Error),
    /// Standard output could not be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// Runs one end of a test and prints its report.
pub fn run(args: &PerfArgs) -> Result<(), Error> {
    let test = args.test();
    let parameters = args.parameters(test).map_err(Error::Usage)?;
    let remote = args.host.as_deref().map(|host| resolve(host, args.port)).transpose()?;
    let stop = signals::stop_flag().map_err(Error::Signals)?;
    let name = match &args.device {
        Some(name) => name.clone(),
        None => RdmaCore::devices()?.into_iter().next().ok_or(RdmaCoreError::NoDevices)?,
    };
    let provider = Arc::new(RdmaCore::open(&name)?);
    let device = Device { name: name.clone(), emulated_by: provider.emulated_by().map(str::to_owned) };
    let failed = |error| Error::Perf { device: name.clone(), test, error };
    let end = match remote {
        Some(remote) => End::client(&provider, parameters, remote).map_err(failed)?,
        None => {
            if args.client != ClientArgs::default() || args.atomic.is_some() {
                tracing::warn!("the client sends the test parameters: those given here have no effect");
            }
            let listen = SocketAddr::new(args.source.unwrap_or(perf::LISTEN.ip()), args.port);
            let end = End::server(&provider, test, listen).map_err(failed)?;
            eprint_line(format_args!("ready rdma perf {test} on {listen} via {name}"));
            end
        }
    };
    let mut nanos = Histogram::new_with_max(INITIAL_RANGE_NANOS, 3).expect("the bounds are valid");
    nanos.auto(true);
    let is_stopped = || stop.load(Ordering::Relaxed);
    let record = |time: Duration| {
        nanos.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    };
    let outcome = match end.run(&Clock::start(), is_stopped, record) {
        // A server that is stopped before a client connects has not failed.
        Err(PerfError::Interrupted(0)) if remote.is_none() => return Ok(()),
        result => result.map_err(failed)?,
    };
    let measured = WithContext { result: Measured::of(&outcome, &nanos), context: device.into() };
    let printed = if args.json { print_line(measured.json()) } else { print_line(measured) };
    Ok(printed?)
}

/// Returns the first address of `host`.
fn resolve(host: &str, port: u16) -> Result<SocketAddr, Error> {
    let found = (host, port).to_socket_addrs().map(|mut found| found.next());
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(Error::Usage(format!("{host} has no address"))),
        Err(error) => Err(Error::Usage(format!("{host}: {error}"))),
    }
}
