//! Configuration in the environment.

use clap::Parser;
use linerate::NetConfig;

/// Variable with the options of the network, a JSON array of strings, as `linerate run` received them.
const VARIABLE: &str = "LINERATE_RUN";

#[derive(Debug, Parser)]
#[command(name = "linerate run", no_binary_name = true)]
struct Options {
    #[command(flatten)]
    network: NetConfig,
    /// Options of every command, which `linerate run` has applied.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    #[arg(long)]
    config: Option<String>,
    #[arg(long)]
    supervised: bool,
}

/// Returns the configuration, or `None` if the program was not started by `linerate run`.
pub fn read() -> Option<Result<NetConfig, String>> {
    let given = std::env::var(VARIABLE).ok()?;
    let arguments: Result<Vec<String>, _> = serde_json::from_str(&given);
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(error) => return Some(Err(format!("{VARIABLE}: {error}"))),
    };
    Some(Options::try_parse_from(arguments).map(|options| options.network).map_err(|error| error.to_string()))
}
