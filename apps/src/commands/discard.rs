//! `linerate discard`.

use super::shared::{self, DISCARD_ADDRESS, LoadArgs, ServeArgs};
use crate::error::Error;
use linerate_load::Direction;
use linerate_load::services::Discard;

/// Subcommands of `linerate discard`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run a discard server over TCP
    #[command(mut_arg("listen", |arg| arg.default_value(DISCARD_ADDRESS)))]
    Serve(ServeArgs),
    /// Measure send throughput to a discard server
    #[command(mut_arg("connect", |arg| arg.default_value(DISCARD_ADDRESS)))]
    Load(LoadArgs),
}

/// Runs `linerate discard`. A server prints `other_networks`, if its network was not chosen.
pub fn run(command: Command, other_networks: Option<&str>) -> Result<(), Error> {
    match command {
        Command::Serve(args) => {
            let services = shared::serve::serve("discard", &args, false, other_networks, |_| Discard::default())?;
            tracing::info!("{} payload bytes discarded", services.iter().map(Discard::bytes).sum::<u64>());
            Ok(())
        }
        Command::Load(args) => shared::load::run_bulk(&args, Direction::Up),
    }
}
