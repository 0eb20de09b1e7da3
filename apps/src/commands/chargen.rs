//! `linerate chargen`.

use super::{LoadArgs, ServeArgs};
use crate::error::Error;
use linerate_load::Direction;
use linerate_load::services::Chargen;

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Serve chargen over TCP
    Serve(ServeArgs),
    /// Measure receiving from a chargen server
    Load(LoadArgs),
}

/// Runs the command.
pub fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Serve(args) => super::serve::serve("chargen", &args, false, |_| Chargen).map(|_| ()),
        Command::Load(args) => super::load::run_bulk(&args, Direction::Down),
    }
}
