//! Commands of the script `run`, which installs packages and builds this program first.
//!
//! Each command releases its processes, network namespaces, temporary directories and hugepages, however it ends. The
//! current directory is the root of the repository.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod book;
mod cargo;
mod demo;
mod error;
mod lab;
mod machine;
mod output;
mod package;
mod process;
mod test;

use args::Args;
use error::Error;
use machine::Machine;
use output::note;
use std::process::ExitCode;

/// Exit status of a command that cannot run on this machine.
const UNABLE: u8 = 77;

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(unknown) => {
            eprintln!("unknown argument '{unknown}': ./run prints the commands");
            return ExitCode::from(2);
        }
    };
    let result = process::supervise().and_then(|()| execute(&args));
    process::end_descendants();
    let code = match result {
        Ok(()) => 0,
        Err(Error::Interrupted) => 130,
        Err(Error::Skipped(_)) => UNABLE,
        Err(Error::Usage(_)) => 2,
        Err(_) => 1,
    };
    if let Err(error) = result {
        note(&error.to_string());
    }
    ExitCode::from(process::signal_status().unwrap_or(code))
}

fn execute(args: &Args) -> Result<(), Error> {
    let machine = || Machine::detect();
    match args {
        Args::Demo => demo::run(&machine()),
        Args::Test { all, steps } => test::run(&machine(), *all, steps),
        Args::Bench { all, parts } => bench::run(&machine(), *all, parts),
        Args::Book => book::build_pages(),
        Args::Pictures => book::draw_pictures(&machine()),
        Args::Lab { suites } => lab::run(&machine(), suites),
        Args::Package => package::run(&machine()),
    }
}
