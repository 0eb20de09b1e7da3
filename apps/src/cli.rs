//! Command line of `linerate`.

use crate::commands::compare::{self, CompareArgs};
use crate::commands::doctor::{self, DoctorArgs};
use crate::commands::hugepages::{self, HugepagesArgs};
use crate::commands::{chargen, conns, discard, echo, http, kv, raw, top};
use crate::config;
use crate::error::Error;
use crate::log;
use crate::usage;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use linerate_compare::supervised;
use linerate_process::output::{eprint_line, print_line};
use std::path::PathBuf;
use std::process::ExitCode;
#[cfg(feature = "dpdk")]
use {
    crate::doctor::{Machine, pci_advice},
    linerate_bypass::Via,
};

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
    /// HTTP/1.1 and HTTP/2 server and HTTP/1.1 load generator
    #[command(subcommand)]
    Http(http::Command),
    /// Key-value server for Redis and memcached clients, and load generator
    #[command(subcommand)]
    Kv(kv::Command),
    /// Compare one application over every available transport and write a report
    Compare(Box<CompareArgs>),
    /// Reflect and send raw frames to measure a port without a protocol stack
    #[command(subcommand)]
    Raw(raw::Command),
    /// Run an unmodified program whose sockets at the addresses of the network are carried by the stack
    #[cfg(feature = "dpdk")]
    Run(Box<crate::commands::run::RunArgs>),
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
/// line on standard error. Without arguments, it prints the commands to begin with.
pub fn main() -> ExitCode {
    let mut program = Cli::command();
    program.build();
    let given: Vec<_> = std::env::args_os().collect();
    if given.len() <= 1 {
        eprint_line(usage::FIRST_STEPS);
        return ExitCode::from(2);
    }
    let args = match config::merge(&program, given) {
        Ok(args) => args,
        Err(error) => {
            eprint_line(format_args!("linerate: {error}"));
            return ExitCode::from(2);
        }
    };
    let origin_in = |message: &str| args.origin_in(message).map(|origin| format!("{origin}: ")).unwrap_or_default();
    let parsed = program.clone().try_get_matches_from(&args.args);
    let (matches, cli) = match parsed.and_then(|matches| Ok((matches.clone(), Cli::from_arg_matches(&matches)?))) {
        Ok(parsed) => parsed,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return match print_line(error.to_string().trim_end()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
        Err(error) => {
            let (selected, _) = config::selected_commands(&program, &args.args);
            let message = usage::message(&program, &selected, &error);
            eprint_line(format_args!("linerate: {}{message}", origin_in(&message)));
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
    let other_networks = other_networks(&matches);
    let other_networks = other_networks.as_deref();
    let result = match cli.command {
        Command::Echo(command) => echo::run(command, other_networks),
        Command::Discard(command) => discard::run(command, other_networks),
        Command::Chargen(command) => chargen::run(command, other_networks),
        Command::Http(command) => http::run(command, other_networks),
        Command::Kv(command) => kv::run(command, other_networks),
        Command::Compare(args) => compare::run(*args).map_err(Error::from),
        Command::Raw(command) => raw::run(command),
        #[cfg(feature = "dpdk")]
        Command::Run(run) => {
            let (_, at) = config::selected_commands(&program, &args.args);
            let options = args.args[at..].split(|word| word == "--").next().unwrap_or_default();
            crate::commands::run::run(*run, options, cli.verbose)
        }
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
            let advice = advice(&matches, &error).map(|advice| format!("; {advice}")).unwrap_or_default();
            let (message, status) = (format!("{error}{advice}"), error.status());
            let message = if error.names_settings() { usage::with_options(&message) } else { message };
            let origin = if status == 2 || message.starts_with("--") { origin_in(&message) } else { String::new() };
            eprint_line(format_args!("linerate: {origin}{message}"));
            ExitCode::from(status)
        }
    }
}

/// Returns the advice of `linerate doctor` for a PCI device that could not be opened.
fn advice(matches: &ArgMatches, error: &Error) -> Option<String> {
    #[cfg(feature = "dpdk")]
    if let Error::Net(linerate::Error::Port(_)) = error {
        let (_, matches) = matches.subcommand()?.1.subcommand()?;
        let Via::Pci { address, .. } = matches.try_get_one("via").ok()?? else { return None };
        return pci_advice(&Machine::local(), address);
    }
    // Only DPDK opens PCI devices.
    let _ = (matches, error);
    None
}

/// Returns how to serve on a DPDK port, for a server that uses kernel sockets because no network was chosen.
fn other_networks(matches: &ArgMatches) -> Option<String> {
    let (service, matches) = matches.subcommand()?;
    let (action, matches) = matches.subcommand()?;
    if action != "serve" || matches.value_source("via") != Some(ValueSource::DefaultValue) || !cfg!(feature = "dpdk") {
        return None;
    }
    let port = match service {
        "kv" => "",
        "http" => ":80",
        _ => ":7",
    };
    Some(format!(
        "kernel sockets; on a DPDK port: linerate {service} serve --via tap:lr0 --ip 10.0.0.2/24 \
         --listen 10.0.0.2{port}; linerate doctor lists the networks of this host"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn server_without_a_network_names_another() {
        let line = |line: &str| other_networks(&Cli::command().try_get_matches_from(line.split(' ')).unwrap());
        for (args, part) in [
            ("linerate echo serve", "10.0.0.2:7;"),
            ("linerate http serve", "10.0.0.2:80;"),
            ("linerate kv serve --memory 8m", "10.0.0.2;"),
        ] {
            assert_eq!(line(args).is_some_and(|text| text.contains(part)), cfg!(feature = "dpdk"), "{args}");
        }
        for args in
            ["linerate echo serve --via kernel", "linerate echo load", "linerate doctor", "linerate hugepages status"]
        {
            assert_eq!(line(args), None, "{args}");
        }
    }
}
