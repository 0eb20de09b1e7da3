//! `linerate http`.

mod load;
mod serve;

use crate::error::Error;

/// Subcommands of `linerate http`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run an HTTP server: HTTP/1.1, and HTTP/2 with prior knowledge on the same port
    Serve(Box<serve::HttpServeArgs>),
    /// Send HTTP/1.1 requests to a server on connections that are kept open, and measure the responses
    Load(Box<load::HttpLoadArgs>),
}

/// Runs `linerate http`. A server prints `other_networks`, if its network was not chosen.
pub fn run(command: Command, other_networks: Option<&str>) -> Result<(), Error> {
    match command {
        Command::Serve(args) => serve::run(&args, other_networks),
        Command::Load(args) => load::run(&args),
    }
}
