//! `linerate discard`.

use super::shared::{self, LoadArgs, ServeArgs};
use crate::error::Error;
use linerate_load::Direction;
use linerate_load::services::Discard;

/// Subcommands of `linerate discard`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run a discard server over TCP
    Serve(ServeArgs),
    /// Measure send throughput to a discard server
    Load(LoadArgs),
}

/// Runs `linerate discard`.
pub fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Serve(args) => {
            let services = shared::serve::serve("discard", &args, false, |_| Discard::default())?;
            tracing::info!("{} payload bytes discarded", services.iter().map(Discard::bytes).sum::<u64>());
            Ok(())
        }
        Command::Load(args) => shared::load::run_bulk(&args, Direction::Up),
    }
}
