//! `lab`: boots virtual machines that have the devices which this machine does not, and runs `linerate` in them.
#![forbid(unsafe_code)]

mod agent;
mod error;
mod gate;
mod host;
mod image;
mod log;
mod machine;
mod process;
mod program;
mod report;
mod suites;

use clap::Parser;
use error::{Context, Error};
use host::Lab;
use log::Log;
use report::Report;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use suites::{PARTS, SUITES, Suite};

/// The exit status that says that nothing was tested, because this machine lacks what the lab needs.
const UNABLE: u8 = 77;

/// Boots virtual machines that have the devices which this machine does not, and runs linerate in them
#[derive(Debug, Parser)]
struct Cli {
    /// The suites to run, or parts of them; all if none is named
    #[arg(value_parser = parse_suite)]
    suites: Vec<&'static Suite>,

    /// List the suites
    #[arg(long)]
    list: bool,

    /// Show what machines and programs say, as they say it
    #[arg(short, long)]
    verbose: bool,

    /// Where the suite compare writes its reports [default: lab-compare beside this program]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Run a program in a guest of a lab that is running, as if it ran here: the guest's socket, the program, and its arguments
    #[arg(long, value_names = ["SOCKET", "PROGRAM"], num_args = 2.., allow_hyphen_values = true, exclusive = true)]
    guest: Vec<String>,
}

fn parse_suite(name: &str) -> Result<&'static Suite, String> {
    let all = SUITES.iter().chain(PARTS);
    all.clone().find(|suite| suite.name == name).ok_or_else(|| {
        let names: Vec<_> = all.map(|suite| suite.name).collect();
        format!("the suites are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    // As the first process of a guest.
    if std::process::id() == 1 {
        if let Err(error) = agent::serve() {
            eprintln!("agent: {error}");
        }
        return ExitCode::FAILURE;
    }
    let cli = Cli::parse();
    if let [socket, words @ ..] = &cli.guest[..] {
        return gate::enter(Path::new(socket), words).unwrap_or_else(|error| {
            eprintln!("lab: {socket}: {error}");
            ExitCode::FAILURE
        });
    }
    if cli.list {
        for suite in SUITES.iter().chain(PARTS) {
            println!("{:14} {}", suite.name, suite.about);
        }
        return ExitCode::SUCCESS;
    }
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Error::Interrupted) => ExitCode::from(130),
        Err(error @ Error::Unable(_)) => {
            eprintln!("lab: {error}");
            ExitCode::from(UNABLE)
        }
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> error::Result<bool> {
    let stop = program::INTERRUPTED.get_or_init(|| Arc::new(AtomicBool::new(false)));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // A second one changes nothing: whatever waits here sees the flag, and the guests are to be ended.
        flag::register(signal, stop.clone()).context("signals")?;
    }
    let log = Log::new(cli.verbose);
    let lab = Lab::open(log.clone(), cli.out.clone())?;
    let mut report = Report::new(log);
    let chosen: Vec<&Suite> = if cli.suites.is_empty() { SUITES.iter().collect() } else { cli.suites.clone() };
    for suite in chosen {
        report.suite(suite.name);
        (suite.run)(&lab, &mut report);
    }
    let is_well = report.end();
    if program::is_interrupted() { Err(Error::Interrupted) } else { Ok(is_well) }
}
