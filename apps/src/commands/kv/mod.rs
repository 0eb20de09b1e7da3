//! `linerate kv`.

mod cluster;
mod load;
mod serve;
mod udp;

use crate::error::Error;

/// Subcommands of `linerate kv`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run a key-value server for Redis and memcached clients
    Serve(Box<serve::KvServeArgs>),
    /// Fill a key-value server, send GETs and SETs, and measure both
    Load(Box<load::KvLoadArgs>),
}

/// Runs `linerate kv`. A server prints `other_networks`, if its network was not chosen.
pub fn run(command: Command, other_networks: Option<&str>) -> Result<(), Error> {
    match command {
        Command::Serve(args) => serve::run(&args, other_networks),
        Command::Load(args) => load::run(&args),
    }
}
