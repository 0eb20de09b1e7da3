//! Cost and rate of HTTP/1.1 by hyper on the tasks of a worker, beside hyper without them.
#![forbid(unsafe_code)]

mod hello;
mod hyper_on_tokio;

use clap::{Parser, Subcommand};
use hello::Over;
use linerate_benches::report::finish;
use std::net::SocketAddr;
use std::process::ExitCode;

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

        /// Number of connections
        #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1000))]
        connections: u32,

        /// Print one JSON object
        #[arg(long)]
        json: bool,
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
        Command::Hello { over, requests, connections, json } => {
            finish("http", Ok::<_, hello::Error>(hello::run(over, requests, connections)), json, |_| true)
        }
        Command::Tokio { listen } => match hyper_on_tokio::run(listen) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("http: {listen}: {error}");
                ExitCode::FAILURE
            }
        },
    }
}
