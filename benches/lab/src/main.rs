//! `lab`: runs `linerate` in virtual machines with devices that this machine does not have.
#![forbid(unsafe_code)]

mod agent;
mod capture;
mod error;
mod gate;
mod host;
mod image;
mod log;
mod machine;
mod program;
mod report;
mod suites;

use clap::Parser;
use error::{Context, Error};
use host::Lab;
use linerate_harness::interrupt;
use log::Log;
use report::Report;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use suites::{PARTS, SUITES, Suite};

/// Exit status if nothing was tested, because the machine does not meet the lab's requirements.
const UNABLE: u8 = 77;

/// Runs linerate in virtual machines with devices that this machine does not have
#[derive(Debug, Parser)]
struct Cli {
    /// Suites, or parts of suites, to run [default: all]
    #[arg(value_parser = parse_suite)]
    suites: Vec<&'static Suite>,

    /// List the suites
    #[arg(long)]
    list: bool,

    /// Show the output of machines and programs as it arrives
    #[arg(short, long)]
    verbose: bool,

    /// Directory for the reports of the suite compare [default: lab-compare in the directory of this program]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Run a program in a guest of a running lab: the guest's socket, the program, and its arguments
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
    // Init process of a guest.
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
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Waits check the flag, and the guests must be ended: a second signal has no further effect.
        flag::register(signal, interrupt::flag()).context("signals")?;
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
    if interrupt::is_interrupted() { Err(Error::Interrupted) } else { Ok(is_well) }
}
