//! `linerate discard`.

use super::{LoadArgs, ServeArgs};
use crate::error::Error;
use linerate_load::Direction;
use linerate_load::services::Discard;

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Serve discard over TCP
    Serve(ServeArgs),
    /// Measure sending to a discard server
    Load(LoadArgs),
}

/// Runs the command.
pub fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Serve(args) => {
            let services = super::serve::serve("discard", &args, false, |_| Discard::default())?;
            tracing::info!("{} bytes of payload thrown away", services.iter().map(Discard::bytes).sum::<u64>());
            Ok(())
        }
        Command::Load(args) => super::load::run_bulk(&args, Direction::Up),
    }
}
