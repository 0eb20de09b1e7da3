//! `linerate`: see the crate's `cli` module.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    linerate_apps::cli::main()
}
