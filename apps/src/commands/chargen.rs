//! `linerate chargen`.

use super::shared::{self, CHARGEN_ADDRESS, LoadArgs, ServeArgs};
use crate::error::Error;
use linerate_load::Direction;
use linerate_load::services::Chargen;

/// Subcommands of `linerate chargen`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run a chargen server over TCP
    #[command(mut_arg("listen", |arg| arg.default_value(CHARGEN_ADDRESS)))]
    Serve(ServeArgs),
    /// Measure receive throughput from a chargen server
    #[command(mut_arg("connect", |arg| arg.default_value(CHARGEN_ADDRESS)))]
    Load(LoadArgs),
}

/// Runs `linerate chargen`. A server prints `other_networks`, if its network was not chosen.
pub fn run(command: Command, other_networks: Option<&str>) -> Result<(), Error> {
    match command {
        Command::Serve(args) => shared::serve::serve("chargen", &args, false, other_networks, |_| Chargen).map(|_| ()),
        Command::Load(args) => shared::load::run_bulk(&args, Direction::Down),
    }
}
