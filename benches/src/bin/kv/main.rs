//! The key-value service: held against others over links, what its keys take in memory and its longest calls, and what a
//! request costs it by itself, on one worker or on two.
#![forbid(unsafe_code)]

mod links;
mod report;
mod required;
mod service;
mod store;
mod workers;

use clap::Parser;
use linerate_benches::client::Wrong;
use linerate_benches::external::process;
use serde::Serialize;
use std::fmt::Display;
use std::process::ExitCode;

/// Measure the key-value service
#[derive(Parser)]
enum Args {
    /// Hold `linerate kv` against echo, redis-server and memcached, on the same two cores
    Links(links::Args),
    /// Bytes that keys and values take, and the longest single calls
    Store(store::Args),
    /// What requests cost the service alone, without any network
    Service(service::Args),
    /// What it costs that a key belongs to another worker than the client
    Workers(workers::Args),
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program did not do what it was started for.
    #[error(transparent)]
    Process(#[from] process::Error),
    /// The service did not.
    #[error(transparent)]
    Wrong(#[from] Wrong),
}

fn main() -> ExitCode {
    let done = match Args::parse() {
        Args::Links(args) => links::run(&args).map(|report| tell(&report, args.json, report.is_met())),
        Args::Store(args) => store::run(&args).map(|report| tell(&report, args.json, report.is_met())),
        Args::Service(args) => service::run(&args).map(|report| tell(&report, args.json, true)),
        Args::Workers(args) => workers::run(&args).map(|report| tell(&report, args.json, true)),
    };
    done.unwrap_or_else(|error| {
        eprintln!("kv: {error}");
        ExitCode::FAILURE
    })
}

/// Prints a report. Whether all that is required is met decides how the program ends.
fn tell(report: &(impl Display + Serialize), json: bool, is_met: bool) -> ExitCode {
    if json {
        println!("{}", serde_json::to_string(report).expect("a report is made of plain values"));
    } else {
        println!("{report}");
    }
    if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
