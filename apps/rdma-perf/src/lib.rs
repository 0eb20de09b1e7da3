//! `linerate-rdma-perf`: latency and bandwidth of RDMA verbs, with perftest's options and operations.
//!
//! The program is separate from `linerate`, which runs it for `linerate rdma perf`.
#![forbid(unsafe_code)]

#[cfg_attr(not(feature = "native"), allow(dead_code, reason = "used by the program and tests"))]
mod command;
pub mod perf;

use clap::{ArgAction, CommandFactory, Parser};

/// Measure SEND, WRITE, READ and atomic operations between two ends, with the options of perftest.
#[derive(Debug, Parser)]
#[command(name = "linerate-rdma-perf", version)]
struct Cli {
    /// Log more to standard error; -vv and -vvv log still more. RUST_LOG takes precedence
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,

    #[command(flatten)]
    perf: command::PerfArgs,
}

/// Returns the definition of the command line, from which manual pages and the reference are written.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Runs the program. Exit status: 0 on success, 2 for wrong usage, 1 for any other failure.
#[cfg(feature = "native")]
pub fn main() -> std::process::ExitCode {
    use std::process::ExitCode;

    let cli = Cli::parse();
    linerate_process::log::to_stderr(cli.verbose);
    match command::run::run(&cli.perf) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            linerate_process::output::eprint_line(format_args!("linerate-rdma-perf: {error}"));
            ExitCode::from(if matches!(error, command::run::Error::Usage(_)) { 2 } else { 1 })
        }
    }
}
