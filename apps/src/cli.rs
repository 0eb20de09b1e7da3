//! Command line of `linerate`.

use crate::commands::compare::{self, CompareArgs};
use crate::commands::doctor::{self, DoctorArgs};
use crate::commands::hugepages::{self, HugepagesArgs};
use crate::commands::{chargen, conns, discard, echo, kv, raw, top};
use crate::config::{self, MergedArgs};
use crate::error::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use linerate_compare::supervised;
use linerate_net::process::log;
use linerate_net::process::output::{eprint_line, print_line};
use std::path::PathBuf;
use std::process::ExitCode;

/// Services and load generators over DPDK ports, RDMA devices and kernel sockets
#[derive(Debug, Parser)]
#[command(name = "linerate", version, propagate_version = true)]
struct Cli {
    /// Log more to standard error (-v info, -vv debug, -vvv trace); RUST_LOG overrides it [default: warnings]
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,

    /// Exit when standard input closes, as on SIGTERM, and print the processor time of this process as one JSON object
    /// for each input line. Used by linerate compare --server-on on remote machines
    #[arg(long, global = true)]
    supervised: bool,

    /// Read options from a TOML file. Keys are option names without dashes; a table such as [kv.serve] applies to one
    /// command. Command-line options take precedence
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Echo server and load generator over TCP and UDP (RFC 862)
    #[command(subcommand)]
    Echo(echo::Command),
    /// Discard server and load generator: one-way transfer to the server (RFC 863)
    #[command(subcommand)]
    Discard(discard::Command),
    /// Chargen server and load generator: one-way transfer from the server (RFC 864)
    #[command(subcommand)]
    Chargen(chargen::Command),
    /// Key-value server for Redis and memcached clients, and load generator
    #[command(subcommand)]
    Kv(kv::Command),
    /// Compare one application over every available transport and write a report
    Compare(Box<CompareArgs>),
    /// Reflect and send raw frames to measure a port without a protocol stack
    #[command(subcommand)]
    Raw(raw::Command),
    /// Show the workers and connections of a running process on a live screen
    Top(top::TopArgs),
    /// List the connections of a running process with transport details
    Conns(Box<conns::ConnsArgs>),
    /// Reserve, release and inspect hugepages per NUMA node
    Hugepages(HugepagesArgs),
    /// Show and benchmark the RDMA devices of this host
    #[cfg(feature = "rdma")]
    #[command(subcommand)]
    Rdma(crate::commands::rdma::Command),
    /// Check this host and print a fix for each problem
    Doctor(DoctorArgs),
}

/// Returns the definition of the command line, from which manual pages and completions are generated.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Runs the program. Exit status: 0 for success, 2 for invalid usage, 1 for any other failure, which is printed as one
/// line on standard error.
pub fn main() -> ExitCode {
    let mut program = Cli::command();
    program.build();
    let args = match config::merge(&program, std::env::args_os().collect()) {
        Ok(args) => args,
        Err(error) => {
            eprint_line(format_args!("linerate: {error}"));
            return ExitCode::from(2);
        }
    };
    let cli = match Cli::try_parse_from(&args.args) {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return match print_line(error.to_string().trim_end()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
        Err(error) => {
            let message = match error.kind() {
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "a subcommand is missing".to_owned(),
                _ => error.to_string(),
            };
            eprint_line(format_args!("linerate: {}{}", location_of(&error, &args), one_line(&message)));
            return ExitCode::from(2);
        }
    };
    log::to_stderr(cli.verbose);
    if cli.supervised
        && let Err(error) = supervised::begin()
    {
        eprint_line(format_args!("linerate: --supervised: {error}"));
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
            eprint_line(format_args!("linerate: {error}"));
            ExitCode::from(Error::status(&error))
        }
    }
}

/// Returns the location in the configuration file of the option that clap rejected, or an empty string.
fn location_of(error: &clap::Error, args: &MergedArgs) -> String {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return String::new() };
    args.location_of(option).map(|location| format!("{location}: ")).unwrap_or_default()
}

/// Reduces an error message of clap to one line, without its usage section.
fn one_line(error: &str) -> String {
    let message = error.split("\n\nUsage:").next().unwrap_or(error);
    let message = message.split("\n\nFor more information").next().unwrap_or(message);
    let words: Vec<&str> = message.trim_start_matches("error: ").split_whitespace().collect();
    format!("{}: see linerate --help", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_errors_are_one_line() {
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
