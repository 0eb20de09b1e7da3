//! Writes a figure of the documentation: a fragment with the output of a bench, its command and this machine.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate_benches::figures::{machine, redraw, root, write};
use std::io::{read_to_string, stdin};
use std::process::ExitCode;

/// Write standard input to docs/src/figures/NAME.md, and draw its plot beside it if it has one
#[derive(Parser)]
struct Args {
    /// Name of the fragment
    #[arg(required_unless_present = "redraw")]
    name: Option<String>,

    /// Command that printed the figure
    #[arg(long, value_name = "COMMAND", default_value = "")]
    by: String,

    /// Draw the plots of all fragments again
    #[arg(long, conflicts_with_all = ["name", "by"])]
    redraw: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("figures: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(Args { name, by, .. }: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let Some(name) = name else { return Ok(redraw(&root())?) };
    let printed = read_to_string(stdin()).map_err(|error| format!("standard input: {error}"))?;
    Ok(write(&root(), name, by, &printed, &machine(&printed))?)
}
