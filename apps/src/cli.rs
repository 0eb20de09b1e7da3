//! The command line of `linerate`.

use crate::commands::compare::{self, CompareArgs};
use crate::commands::doctor::{self, DoctorArgs};
use crate::commands::hugepages::{self, HugepagesArgs};
use crate::commands::{chargen, conns, discard, echo, kv, raw, top};
use crate::config::{self, Words};
use crate::error::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use linerate_compare::supervised;
use linerate_net::process::output::{print_line, tell};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

// With all features: the documentation has the commands for RDMA, too.
#[cfg(all(test, feature = "rdma"))]
mod reference;

/// Services and load generators over DPDK ports and kernel sockets.
#[derive(Debug, Parser)]
#[command(name = "linerate", version, propagate_version = true)]
struct Cli {
    /// Say more on standard error; -vv and -vvv say more still. RUST_LOG, if set, decides instead
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,

    /// End when standard input ends, as by SIGTERM; and at each line that comes, print what processors have done for this process until
    /// then, as one JSON object. For who runs this on another machine, as linerate compare --server-on does
    #[arg(long, global = true)]
    supervised: bool,

    /// Take options from a TOML file whose keys are their names without the dashes, in a table such as [kv.serve] those for one
    /// command; what is given here replaces what the file says
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send back what arrives (RFC 862), over TCP and UDP; or measure a server that does
    #[command(subcommand)]
    Echo(echo::Command),
    /// Throw away what arrives (RFC 863); or measure sending to a server that does
    #[command(subcommand)]
    Discard(discard::Command),
    /// Send without end (RFC 864); or measure receiving from a server that does
    #[command(subcommand)]
    Chargen(chargen::Command),
    /// Measure a key-value server that Redis or memcached clients talk to
    #[command(subcommand)]
    Kv(kv::Command),
    /// Compare the same application over every transport that this host has, and write a report
    Compare(Box<CompareArgs>),
    /// Move frames with no protocol: what a port can do by itself
    #[command(subcommand)]
    Raw(raw::Command),
    /// Watch a running server or load: its workers and their connections, on a screen
    Top(top::TopArgs),
    /// List the connections of a running server or load, with what their transport knows of them
    Conns(Box<conns::ConnsArgs>),
    /// Reserve, release and inspect hugepages, per NUMA node
    Hugepages(HugepagesArgs),
    /// Show the RDMA devices of this machine, and measure them
    #[cfg(feature = "rdma")]
    #[command(subcommand)]
    Rdma(crate::commands::rdma::Command),
    /// Say what this machine can do, and for every shortfall the command that mends it
    Doctor(DoctorArgs),
}

/// The definition of the command line, for who writes manual pages and completions from it.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Runs the program: exit status 0, or 2 for a wrong usage and 1 for any other failure, which is said in one line
/// on standard error.
pub fn main() -> ExitCode {
    let mut program = Cli::command();
    program.build();
    let words = match config::words(&program, std::env::args_os().collect()) {
        Ok(words) => words,
        Err(error) => {
            tell(format_args!("linerate: {error}"));
            return ExitCode::from(2);
        }
    };
    let cli = match Cli::try_parse_from(&words.words) {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return match print_line(error.to_string().trim_end()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
        Err(error) => {
            let said = match error.kind() {
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "a subcommand is missing".to_owned(),
                _ => error.to_string(),
            };
            tell(format_args!("linerate: {}{}", place_of(&error, &words), one_line(&said)));
            return ExitCode::from(2);
        }
    };
    log_to_stderr(cli.verbose);
    if cli.supervised
        && let Err(error) = supervised::begin()
    {
        tell(format_args!("linerate: --supervised: {error}"));
        return ExitCode::FAILURE;
    }
    let result = match cli.command {
        Command::Echo(command) => echo::run(command),
        Command::Discard(command) => discard::run(command),
        Command::Chargen(command) => chargen::run(command),
        Command::Kv(command) => kv::run(command),
        Command::Compare(args) => compare::run(*args).map_err(Error::from),
        Command::Raw(command) => raw::run(command),
        Command::Top(args) => top::run(&args),
        Command::Conns(args) => conns::run(&args),
        Command::Hugepages(args) => hugepages::run(args).map_err(Error::from),
        #[cfg(feature = "rdma")]
        Command::Rdma(command) => crate::commands::rdma::run(command).map_err(Error::from),
        Command::Doctor(args) => doctor::run(args).map_err(Error::from),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format_args!("linerate: {error}"));
            ExitCode::from(Error::status(&error))
        }
    }
}

/// Where the file of options has what clap found wrong, if that is of the file.
fn place_of(error: &clap::Error, words: &Words) -> String {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return String::new() };
    words.place_of(option).map(|place| format!("{place}: ")).unwrap_or_default()
}

fn log_to_stderr(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .with_env_filter(filter)
        .init();
}

/// What clap says about an error, without its usage lines, and where to read more.
fn one_line(error: &str) -> String {
    let said = error.split("\n\nUsage:").next().unwrap_or(error);
    let said = said.split("\n\nFor more information").next().unwrap_or(said);
    let said: Vec<&str> = said.trim_start_matches("error: ").split_whitespace().collect();
    format!("{}: see linerate --help", said.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn errors_of_usage_are_one_line() {
        for args in [
            &["linerate"][..],
            &["linerate", "eco"],
            &["linerate", "echo", "serve"],
            &["linerate", "echo", "serve", "--via", "ethernet", "--listen", "10.0.0.2:7"],
            &["linerate", "echo", "load", "--via", "kernel", "--connect", "10.0.0.2", "--duration", "1"],
        ] {
            let Err(error) = Cli::try_parse_from(args) else { panic!("{args:?}") };
            let line = one_line(&error.to_string());
            assert!(!line.contains('\n') && line.ends_with("--help") && !line.contains("Usage"), "{line}");
        }
    }
}
