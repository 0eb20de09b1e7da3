//! Cost and rate of HTTP/1.1 by hyper, on the tasks of a worker and without them.
#![forbid(unsafe_code)]

mod hello;
mod hyper_on_tokio;

use clap::{Parser, Subcommand};
use hello::Over;
use std::net::SocketAddr;
use std::process::ExitCode;

/// Connections of the clients.
const CONNECTIONS: u32 = 32;

/// Measure hyper on the tasks of a worker
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve requests in one thread, for the count of the server's instructions
    Hello {
        /// Streams between the server and its clients
        #[arg(long, value_enum, default_value_t = Over::Tasks)]
        over: Over,

        /// Number of requests
        #[arg(long, value_name = "N", default_value_t = 100_000)]
        requests: u32,
    },

    /// Run the server of `linerate http serve` on tokio
    Tokio {
        /// Address
        #[arg(long, value_name = "ADDRESS")]
        listen: SocketAddr,
    },
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Hello { over, requests } => hello::run(over, requests, CONNECTIONS),
        Command::Tokio { listen } => {
            if let Err(error) = hyper_on_tokio::run(listen) {
                eprintln!("http: {listen}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
