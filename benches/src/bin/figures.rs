//! Writes a figure of the documentation: what a bench printed becomes a fragment that names its command and this machine.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate_benches::figures::{machine, root, write};
use std::io::{Read, stdin};
use std::process::ExitCode;

/// Write what comes from standard input to docs/src/figures/NAME.md, and to README.md where that shows it
#[derive(Parser)]
struct Args {
    /// The fragment's name
    name: String,

    /// The command that printed it
    #[arg(long, value_name = "COMMAND")]
    by: String,
}

fn main() -> ExitCode {
    let Args { name, by } = Args::parse();
    let mut printed = String::new();
    if let Err(error) = stdin().read_to_string(&mut printed) {
        eprintln!("figures: standard input: {error}");
        return ExitCode::FAILURE;
    }
    match write(&root(), &name, &by, &printed, &machine(&printed)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("figures: {error}");
            ExitCode::FAILURE
        }
    }
}
