//! `linerate rdma perf`: alias of the separate program `linerate-rdma-perf`.

use super::RdmaError;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// File name of the program, which is installed in the directory of `linerate`.
const PROGRAM: &str = "linerate-rdma-perf";

/// Arguments of `linerate rdma perf`.
#[derive(Debug, clap::Args)]
pub struct PerfArgs {
    /// Arguments of linerate-rdma-perf
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process with the program. Returns only on failure.
pub fn run(args: &PerfArgs) -> RdmaError {
    let program = match std::env::current_exe() {
        Ok(linerate) => linerate.with_file_name(PROGRAM),
        Err(_) => PathBuf::from(PROGRAM),
    };
    let error: io::Error = Command::new(&program).args(&args.arguments).exec();
    RdmaError::Perf { program, error }
}
