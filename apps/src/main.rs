//! `linerate` binary: calls [`linerate_apps::cli`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    linerate_apps::cli::main()
}
