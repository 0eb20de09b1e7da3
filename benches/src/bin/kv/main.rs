//! Key-value service: compared with other servers over links; memory per key and longest calls; cost of a request on
//! one worker or two.
#![forbid(unsafe_code)]

mod links;
mod report;
mod required;
mod service;
mod store;
mod workers;

use clap::Parser;
use linerate_benches::client::BenchError;
use linerate_benches::external::process;
use serde::Serialize;
use std::fmt::Display;
use std::process::ExitCode;

/// Measure the key-value service
#[derive(Parser)]
enum Args {
    /// Compare `linerate kv` with echo, redis-server and memcached, on the same two cores
    Links(links::Args),
    /// Measure the memory of keys and values, and the longest single calls
    Store(store::Args),
    /// Measure the cost of requests in the service alone, without a network
    Service(service::Args),
    /// Measure the cost of a key that belongs to another worker than the client
    Workers(workers::Args),
}

/// Error that prevents a report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A started program failed.
    #[error(transparent)]
    Process(#[from] process::Error),
    /// The service failed.
    #[error(transparent)]
    BenchError(#[from] BenchError),
}

fn main() -> ExitCode {
    let done = match Args::parse() {
        Args::Links(args) => links::run(&args).map(|report| print_report(&report, args.json, report.is_met())),
        Args::Store(args) => store::run(&args).map(|report| print_report(&report, args.json, report.is_met())),
        Args::Service(args) => service::run(&args).map(|report| print_report(&report, args.json, true)),
        Args::Workers(args) => workers::run(&args).map(|report| print_report(&report, args.json, true)),
    };
    done.unwrap_or_else(|error| {
        eprintln!("kv: {error}");
        ExitCode::FAILURE
    })
}

/// Prints a report. Returns failure unless all requirements are met.
fn print_report(report: &(impl Display + Serialize), json: bool, is_met: bool) -> ExitCode {
    if json {
        println!("{}", serde_json::to_string(report).expect("a report is made of plain values"));
    } else {
        println!("{report}");
    }
    if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
