//! Key-value service: memory per key and longest calls; cost of a request on one worker or two.
#![forbid(unsafe_code)]

mod service;
mod store;
mod workers;

use clap::Parser;
use linerate_benches::client::BenchError;
use linerate_benches::report::finish;
use std::process::ExitCode;

/// Measure the key-value service
#[derive(Parser)]
enum Args {
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
    Process(#[from] linerate_harness::Error),
    /// The service failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
}

fn main() -> ExitCode {
    match Args::parse() {
        Args::Store(args) => finish("kv", store::run(&args), store::Report::is_met),
        Args::Service(args) => finish("kv", service::run(&args), |_| true),
        Args::Workers(args) => finish("kv", workers::run(&args), |_| true),
    }
}
