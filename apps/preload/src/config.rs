//! Configuration in the environment.

use clap::Parser;
use linerate::NetConfig;
use linerate_sockets::SocketOptions;
use std::sync::OnceLock;

/// Variable with the options of `linerate run`, a JSON array of strings, as it received them.
const VARIABLE: &str = "LINERATE_RUN";

#[derive(Debug, Parser)]
#[command(name = "linerate run", no_binary_name = true)]
pub struct Options {
    #[command(flatten)]
    pub network: NetConfig,
    #[command(flatten)]
    pub sockets: SocketOptions,
    /// Options of every command, which `linerate run` has applied.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    #[arg(long)]
    config: Option<String>,
    #[arg(long)]
    supervised: bool,
}

/// Returns the configuration, or `None` if the program was not started by `linerate run`.
pub fn get() -> Option<&'static Result<Options, String>> {
    static OPTIONS: OnceLock<Option<Result<Options, String>>> = OnceLock::new();
    let read = || {
        let arguments = std::env::var(VARIABLE).ok()?;
        let arguments = serde_json::from_str::<Vec<String>>(&arguments).map_err(|error| format!("{VARIABLE}: {error}"));
        Some(arguments.and_then(|all| Options::try_parse_from(all).map_err(|error| error.to_string())))
    };
    OPTIONS.get_or_init(read).as_ref()
}

fn sockets() -> Option<&'static SocketOptions> {
    Some(&get()?.as_ref().ok()?.sockets)
}

/// Returns whether the stack listens on `port`, if it has the address.
pub fn listens_on(port: u16) -> bool {
    sockets().is_none_or(|sockets| sockets.listens_on(port))
}

/// Returns whether the stack connects to `port`, if it has a route.
pub fn connects_to(port: u16) -> bool {
    sockets().is_none_or(|sockets| sockets.connects_to(port))
}

/// Returns whether the calls are reported (`--explain`).
pub fn explains() -> bool {
    // The programs that a program starts would otherwise parse the options, too.
    let is_given = std::env::var(VARIABLE).is_ok_and(|options| options.contains("--explain"));
    is_given && sockets().is_some_and(|sockets| sockets.explain)
}
