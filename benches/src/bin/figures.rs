//! Writes a figure of the documentation: a fragment with the output of a bench, its command and this machine.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate_benches::figures::{machine, root, write};
use std::io::{Read, stdin};
use std::process::ExitCode;

/// Write standard input to docs/src/figures/NAME.md, and to README.md if it includes the figure
#[derive(Parser)]
struct Args {
    /// Name of the fragment
    name: String,

    /// Command that printed the figure
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
